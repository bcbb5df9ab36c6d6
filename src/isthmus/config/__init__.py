"""Configuration files of nodes and fabrics."""
