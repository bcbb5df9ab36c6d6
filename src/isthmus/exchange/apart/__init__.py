"""Destinations that are set apart: what waits for them is on disk."""
