"""What a benchmark found, to look at: figures, one HTML page, CSV and JSON."""
