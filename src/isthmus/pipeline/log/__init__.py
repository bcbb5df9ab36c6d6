"""The log: its schema, opening it, its clients."""
