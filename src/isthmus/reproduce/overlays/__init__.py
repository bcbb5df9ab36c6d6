"""The evaluation of the Overlays paper."""
