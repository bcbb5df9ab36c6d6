"""The Spark jobs of the reproduction: from the log to one row per run, and to one row per figure.

    log ──▶ indexes (as for any log) ──▶ cells: a row per run ──▶ grid: a row per experiment
                  links, since the fabric's start ──▲

`cells` has for each run: delay of the messages within the window, traffic between nodes within it,
signalling since the nodes were started, loss, CPU and memory of nodes and brokers.  `grid` has for
each experiment the mean, the deviation and both extremes of these over its rounds.

Bytes are those that arrived: what a saturated line's sender has handed over may still wait before
it.  `publications` alone are messages that a node has sent.

What counts as what (Overlays §6.2): *publications* are messages between nodes and their
acknowledgments; *signalling* is everything else on the links: hellos after the greeting, pings and
their answers, the tree's and the overlays' waves, advertisements, what clients want, and the
comparison of retained messages, which is 2 KiB even of none.  Not counted are the greeting of each
connection and the announcements by multicast, which are on no link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.pipeline.log.schema import Table, file_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KEYS", "MEASURES", "cells", "compute_tables", "grid"]

COORDINATOR: Final = "c0"
"""Who writes what nodes say of their links."""
KEYS: Final = ("experiment", "contender", "locality", "topics", "payload_bytes", "stress")
MEASURES: Final = (
    "delay_ms",
    "delay_p99_ms",
    "publications_bytes_s",
    "publications_s",
    "signalling_bytes_s",
    "signalling_bytes",
    "publications_bytes",
    "node_cores",
    "broker_cores",
    "node_rss_bytes",
    "broker_rss_bytes",
    "expected",
    "lost",
    "loss_rate",
    "duplicates",
    "topics_used",
    "member_sets",
)
"""Columns of `cells` that `grid` sums up."""


def compute_tables(log: Path, out: Path, runs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The tables of indexes of `runs`, with `cells` and `grid`; all kept in `out`."""
    from isthmus.pipeline.spark.job import run_job

    def more(spark: SparkSession, computed: dict[str, DataFrame]) -> dict[str, DataFrame]:
        per_run = cells(computed, _links(spark, log, runs)).persist()
        return {
            "cells": per_run.orderBy("run"),
            "grid": grid(per_run).orderBy("experiment"),
        }

    tables = run_job(log, out, runs=runs, show=False, more=more)
    return {name: table.to_pylist() for name, table in tables.items()}


def _links(spark: SparkSession, log: Path, runs: Sequence[str]) -> DataFrame:
    """What nodes said of their links, with the end of each run's window."""
    from pyspark.sql import functions as f

    def read(table: Table) -> DataFrame:
        files = [str(file_path(log, table, run, COORDINATOR)) for run in runs]
        return spark.read.option("basePath", str(log / table)).parquet(*files)

    windows = read("runs").select("run", "window_end_ns")
    links = read("links").where(f.col("kind") == "link")
    return links.join(f.broadcast(windows), "run").where("t_ns <= window_end_ns")


def cells(indexes: Mapping[str, DataFrame], links: DataFrame) -> DataFrame:
    """One row per run; `links` are the samples up to the window's end."""
    from pyspark.sql import functions as f

    def label(name: str) -> Column:
        return f.col("labels")[name]

    summary = indexes["summary"].select(
        "run",
        *(label(name).alias(name) for name in ("experiment", "contender")),
        *(
            label(name).cast("int").alias(name)
            for name in (
                "round",
                "locality",
                "topics",
                "payload_bytes",
                "topics_used",
                "member_sets",
            )
        ),
        label("stress").cast("boolean").alias("stress"),
        "window_s",
        "expected",
        "lost",
        "loss_rate",
        "duplicates",
        "order_violations",
        "limited_by",
    )
    delay = (
        indexes["latency"]
        .where("kind = 't' AND scope = 'all'")
        .select(
            "run",
            f.col("count").alias("delays"),
            (f.col("mean_us") / 1000).alias("delay_ms"),
            (f.col("p50_us") / 1000).alias("delay_p50_ms"),
            (f.col("p99_us") / 1000).alias("delay_p99_ms"),
            (f.col("max_us") / 1000).alias("delay_max_ms"),
        )
    )
    traffic = (
        indexes["traffic"]
        .where("kind = 'link'")
        .groupBy("run")
        .agg(
            (f.sum("data_bytes_in") / f.avg("span_s")).alias("publications_bytes_s"),
            (f.sum("messages_in") / f.avg("span_s")).alias("publications_s"),
            (f.sum("control_bytes_in") / f.avg("span_s")).alias("signalling_bytes_s"),
        )
    )
    since_start = (
        links.groupBy("run", "node", "peer")
        .agg(
            f.max("control_bytes_in").alias("control_bytes"),
            f.max("control_packets_in").alias("control_packets"),
            f.max("messages_out").alias("messages"),
            f.max("data_bytes_in").alias("data_bytes"),
        )
        .groupBy("run")
        .agg(
            f.sum("control_bytes").alias("signalling_bytes"),
            f.sum("control_packets").alias("signalling_packets"),
            f.sum("messages").alias("publications"),
            f.sum("data_bytes").alias("publications_bytes"),
        )
    )
    usage = indexes["usage"].where("node <> ''").groupBy("run").pivot("process", ["node", "broker"])
    resources = usage.agg(
        f.sum("cpu_cores").alias("cores"), f.sum("rss_mean_bytes").alias("rss_bytes")
    )
    joined = summary
    for other in (delay, traffic, since_start, resources):
        joined = joined.join(other, "run", "left")
    return joined


def grid(per_run: DataFrame) -> DataFrame:
    """One row per experiment: how often it was measured, and each measure's spread."""
    from pyspark.sql import functions as f

    spreads = [
        column
        for name in MEASURES
        for column in (
            f.avg(name).alias(f"{name}_mean"),
            f.stddev(name).alias(f"{name}_deviation"),
            f.min(name).alias(f"{name}_least"),
            f.max(name).alias(f"{name}_most"),
        )
    ]
    return per_run.groupBy(*KEYS).agg(f.count("*").alias("rounds"), *spreads)
