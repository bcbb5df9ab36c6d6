"""The indexes of a big log: our Spark job against DuckDB on the same files.

* :mod:`.generate` writes the log, seeded;
* :mod:`.duck` is the peer: the same tables in SQL;
* :mod:`.spark` is ours; both run in a child process of their own (:mod:`.child`);
* :mod:`.rounds` alternates the two and compares what they found.
"""
