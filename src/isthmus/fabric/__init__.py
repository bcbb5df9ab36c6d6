"""A fabric on this machine: brokers, nodes and links as processes."""
