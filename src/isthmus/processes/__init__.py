"""Child processes, ports and folders: for brokers, nodes, benchmarks and Spark."""
