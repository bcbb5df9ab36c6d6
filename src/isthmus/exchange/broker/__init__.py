"""The node's own sessions with its broker."""
