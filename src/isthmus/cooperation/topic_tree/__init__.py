"""One tree for the nodes that have a topic in common (Overlays)."""
