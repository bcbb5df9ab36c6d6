"""Several brokers behind one node: a client's session in parts, one at each broker it needs."""
