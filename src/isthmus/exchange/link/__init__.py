"""Links to neighbors: greeting, connections, lanes."""
