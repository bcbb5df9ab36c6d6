"""The indexes of a big log: our Spark job against DuckDB on the same files.

* :mod:`.generate` writes the log, seeded;
* :mod:`.duck` is the peer: the same tables in SQL;
* :mod:`.child` runs one of the two, DuckDB or our job, in a process of its own;
* :mod:`.rounds` watches that process's time and memory, and compares what two of them found.
"""
