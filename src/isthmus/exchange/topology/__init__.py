"""The guard that keeps the active links a tree."""
