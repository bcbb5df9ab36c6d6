"""The evaluation of the Geo paper."""
