"""The search for the limit (Definition 1)."""
