"""Location: topics that begin with a cell of a map, and the brokers in charge of cells (Geo)."""
