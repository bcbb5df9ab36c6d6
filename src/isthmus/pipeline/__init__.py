"""The data pipeline: log tables in, indexes out, by Spark.

    load tool ─┐                         ┌─▶ tables of indexes
    simulators ┴─▶ log tables (Parquet) ─┴─▶ report

:mod:`isthmus.pipeline.log.schema` is the one log schema.  Whoever writes or reads the log needs
PyArrow only; Spark is imported by the jobs alone.
"""
