"""The peer: the indexes of one log as SQL, in the forms in which DuckDB is fastest.

`counted` is what can be had without looking at single messages: throughput per second, latency
percentiles per topic, loss as expected less received.  `exact` is what our job computes: loss,
duplicates and order from every single message, and latency of first deliveries only.  Percentiles
come from an exact histogram of microseconds, which DuckDB counts several times faster than it
takes quantiles of 200 million values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

__all__ = ["Tables", "counted", "exact", "open_log"]

Tables = dict[str, list[tuple[Any, ...]]]

_SETUP: Final = """
CREATE TABLE run AS SELECT * FROM read_parquet('{log}/runs/*/*.parquet', hive_partitioning=false);
CREATE TABLE client AS
  SELECT c.client, c.name, c.kind, c.role, c.topic
  FROM (SELECT unnest(clients) AS c FROM run);
CREATE TABLE span AS SELECT started_ns, window_start_ns, window_end_ns FROM run;
CREATE VIEW publishes AS
  SELECT * FROM read_parquet('{log}/publishes/*/*.parquet', hive_partitioning=false);
CREATE VIEW deliveries AS
  SELECT * FROM read_parquet('{log}/deliveries/*/*.parquet', hive_partitioning=false,
                             file_row_number=true, filename=true);
"""

_INGRESS: Final = """
SELECT (t_send_ns - started_ns) // 1000000000 AS second, count(*)
FROM publishes JOIN client ON publisher = client AND kind = 't', span
GROUP BY second ORDER BY second
"""

_EGRESS: Final = """
SELECT (t_receive_ns - started_ns) // 1000000000 AS second, count(*)
FROM deliveries JOIN client ON subscriber = client AND kind = 't', span
GROUP BY second ORDER BY second
"""

# Counts per topic and publisher in the window, then expected deliveries of each subscriber.
_EXPECTED: Final = """
CREATE OR REPLACE TABLE expected AS
WITH sent AS (
  SELECT topic, count(*) AS n FROM publishes, span
  WHERE t_send_ns >= window_start_ns AND t_send_ns < window_end_ns GROUP BY topic)
SELECT client.client AS subscriber, client.topic, coalesce(sent.n, 0) AS n
FROM client LEFT JOIN sent ON client.topic = sent.topic
WHERE client.role = 'subscriber' AND client.kind = 't'
"""

_RECEIVED: Final = """
SELECT expected.topic, subscriber, n, coalesce(got, 0) FROM expected LEFT JOIN (
  SELECT subscriber, count(*) AS got FROM deliveries, span
  WHERE t_send_ns >= window_start_ns AND t_send_ns < window_end_ns GROUP BY subscriber)
USING (subscriber) ORDER BY subscriber
"""

_HISTOGRAM: Final = """
CREATE OR REPLACE TABLE histogram AS
SELECT topic, (t_receive_ns - t_send_ns) // 1000 AS us, count(*) AS n,
       sum(t_receive_ns - t_send_ns) AS total_ns, max(t_receive_ns - t_send_ns) AS most_ns
FROM {source}, span
WHERE t_send_ns >= window_start_ns AND t_send_ns < window_end_ns
GROUP BY topic, us
"""

_PERCENTILES: Final = """
WITH summed AS (
  SELECT topic, us, n, sum(n) OVER (PARTITION BY topic ORDER BY us) AS upto,
         sum(n) OVER (PARTITION BY topic) AS total FROM histogram)
SELECT topic, any_value(total)::BIGINT,
       min(us) FILTER (upto >= ceil(total * 0.5)), min(us) FILTER (upto >= ceil(total * 0.99)),
       min(us) FILTER (upto * 1000 >= total * 999),
       (SELECT max(most_ns) FROM histogram h WHERE h.topic = summed.topic) // 1000
FROM summed GROUP BY topic ORDER BY topic
"""

# One row per message and subscriber, with the place of its first delivery.  Messages sent after the
# window are wanted too: they may have overtaken one of the window.  Earlier ones, whose numbers are
# lower, are not.
_FIRST: Final = """
CREATE OR REPLACE TABLE first AS
SELECT subscriber, publisher, message, any_value(topic) AS topic,
       any_value(t_send_ns) AS t_send_ns, min(t_receive_ns) AS t_receive_ns,
       min(file_row_number) AS place, count(*) AS copies
FROM deliveries, span
WHERE t_send_ns >= window_start_ns
GROUP BY subscriber, publisher, message
"""

_EXACT: Final = """
SELECT expected.topic, subscriber, n, delivered, duplicates, violations FROM expected LEFT JOIN (
  SELECT subscriber, count(*) AS delivered, sum(copies - 1)::BIGINT AS duplicates,
         count(*) FILTER (message < most) AS violations
  FROM (SELECT subscriber, message, copies, t_send_ns,
               max(message) OVER (PARTITION BY subscriber, publisher ORDER BY place
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS most
        FROM first), span
  WHERE t_send_ns < window_end_ns
  GROUP BY subscriber)
USING (subscriber) ORDER BY subscriber
"""


def open_log(log: Path, temporary: Path, threads: int, memory: str) -> duckdb.DuckDBPyConnection:
    """DuckDB over the log's files; nothing is read yet but the run's row."""
    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    connection.execute(f"SET memory_limit = '{memory}'")
    connection.execute(f"SET temp_directory = '{temporary}'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(_SETUP.format(log=log))
    return connection


def counted(connection: duckdb.DuckDBPyConnection) -> Tables:
    """Throughput, latency of all deliveries, loss by counts."""
    connection.execute(_EXPECTED)
    connection.execute(_HISTOGRAM.format(source="deliveries"))
    return {
        "ingress": connection.execute(_INGRESS).fetchall(),
        "egress": connection.execute(_EGRESS).fetchall(),
        "latency": connection.execute(_PERCENTILES).fetchall(),
        "received": connection.execute(_RECEIVED).fetchall(),
    }


def exact(connection: duckdb.DuckDBPyConnection) -> Tables:
    """The same from every single message: first deliveries, duplicates, order."""
    connection.execute(_EXPECTED)
    tables = {
        "ingress": connection.execute(_INGRESS).fetchall(),
        "egress": connection.execute(_EGRESS).fetchall(),
    }
    connection.execute(_FIRST)
    tables["losses"] = connection.execute(_EXACT).fetchall()
    connection.execute(_HISTOGRAM.format(source="first"))
    tables["latency"] = connection.execute(_PERCENTILES).fetchall()
    return tables
