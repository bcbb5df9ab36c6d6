"""Trees that nodes build by themselves (Overlays)."""
