"""One Spark job for each figure: from the log to the rows that it is drawn from.

    tallies ──┐
              ├──▶ tallies with what was simulated ──▶ fig3.7, fig3.8 … table3.3 …
    runs ─────┘    (a column for each label)

Sums are of whole numbers, and each quotient is taken last: a table is the same, to the last digit,
however the rows were spread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.pipeline.log.schema import Table, file_path
from isthmus.simulate.tallies import WRITER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["JOBS", "Rows", "compute_figures", "labeled"]

Rows = list[dict[str, Any]]
Job = Callable[["DataFrame"], "DataFrame"]

LISTED_HERE: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
TEXTS: Final = ("experiment", "method", "pattern")
NUMBERS: Final = ("nodes", "publishers", "subscribers", "topics", "dimensions")
"""Labels of runs."""


def compute_figures(
    spark: SparkSession, log: Path, runs: Sequence[str], figures: Sequence[str]
) -> dict[str, Rows]:
    """The rows of each figure, in order."""
    tallies = labeled(spark, log, runs).persist()
    try:
        return {name: JOBS[name](tallies).toArrow().to_pylist() for name in figures}
    finally:
        tallies.unpersist()


def labeled(spark: SparkSession, log: Path, runs: Sequence[str]) -> DataFrame:
    """All tallies of the runs, with their labels as columns."""
    from pyspark.sql import functions as f

    # Some hundred small files are looked up sooner here than by a job with a task for each.
    spark.conf.set(LISTED_HERE, str(len(runs) + 1))

    def read(table: Table) -> DataFrame:
        files = [str(file_path(log, table, run, WRITER)) for run in runs]
        return spark.read.option("basePath", str(log / table)).parquet(*files)

    texts = [f.col("labels")[name].alias(name) for name in TEXTS]
    numbers = [f.col("labels")[name].cast("long").alias(name) for name in NUMBERS]
    labels = read("runs").select("run", *texts, *numbers)
    return read("tallies").join(f.broadcast(labels), "run")


def _of(tallies: DataFrame, experiment: str, *what: str) -> DataFrame:
    from pyspark.sql import functions as f

    return tallies.where((f.col("experiment") == experiment) & f.col("what").isin(*what))


def _mean() -> Column:
    from pyspark.sql import functions as f

    return f.sum("total") / f.sum("count")


# ---- §3.4.1 ------------------------------------------------------------------------------


def _messages(tallies: DataFrame) -> DataFrame:
    """Of all publishers together, one publish each; over the rounds."""
    from pyspark.sql import functions as f

    keys = ("nodes", "publishers", "subscribers", "method")
    each = (
        _of(tallies, "messages", "messages").groupBy(*keys, "part").agg(f.sum("total").alias("m"))
    )
    spreads = (f.avg("m").alias("messages"), f.min("m").alias("least"), f.max("m").alias("most"))
    return each.groupBy(*keys).agg(f.count("m").alias("rounds"), *spreads).orderBy(*keys)


def fig3_7(tallies: DataFrame) -> DataFrame:
    return _messages(tallies).where("subscribers > 0")


def fig3_8(tallies: DataFrame) -> DataFrame:
    return _messages(tallies).where("subscribers = 0")


# ---- §3.4.2 ------------------------------------------------------------------------------


def _paths(tallies: DataFrame, method: str) -> DataFrame:
    """The mean length from each publisher to each of its subscribers."""
    from pyspark.sql import functions as f

    keys = ("nodes", "publishers", "subscribers", "pattern")
    hops = _of(tallies, "paths", "hops").where(f.col("method") == method)
    return (
        hops.groupBy(*keys)
        .agg(_mean().alias("hops"), f.max("value").alias("longest"), f.sum("count").alias("pairs"))
        .orderBy("nodes", f.col("publishers") + f.col("subscribers"), "publishers")
    )


def fig3_9(tallies: DataFrame) -> DataFrame:
    return _paths(tallies, "proposed")


def fig3_10(tallies: DataFrame) -> DataFrame:
    return _paths(tallies, "scribe")


def fig3_11(tallies: DataFrame) -> DataFrame:
    """Pattern alpha: which share of the pairs is so many hops apart, or fewer."""
    return _cumulated(
        _of(tallies, "paths", "hops").where("pattern = 'alpha' AND value IS NOT NULL"),
        ("nodes", "method"),
    )


def _cumulated(tallies: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    counts = tallies.groupBy(*keys, "value").agg(f.sum("count").alias("count"))
    up_to = Window.partitionBy(*keys).orderBy("value")
    share = f.sum("count").over(up_to) / f.sum("count").over(Window.partitionBy(*keys))
    return counts.withColumn("share", share).orderBy(*keys, "value")


# ---- §3.4.3 ------------------------------------------------------------------------------


def _scatter(tallies: DataFrame, role: str) -> DataFrame:
    """How many nodes forwarded so much, given what they sent or received; in the first round."""
    from pyspark.sql import functions as f

    return (
        _of(tallies, "load", f"{role}_forwards")
        .where("part = 0")
        .groupBy("method", "given", f.col("value").alias("forwards"))
        .agg(f.sum("count").alias("nodes"))
        .orderBy("method", "given", "forwards")
    )


def fig3_12(tallies: DataFrame) -> DataFrame:
    return _scatter(tallies, "publisher")


def fig3_13(tallies: DataFrame) -> DataFrame:
    return _scatter(tallies, "subscriber")


def table3_3(tallies: DataFrame) -> DataFrame:
    """Pearson's coefficients over all nodes of a role; and the most forwards for one message."""
    from pyspark.sql import functions as f

    x, y, n = f.col("given"), f.col("value"), f.col("count")
    others = ("most", "once", "twice")
    sums = _of(tallies, "load", "publisher_forwards", "subscriber_forwards").groupBy(
        "method", f.substring_index("what", "_", 1).alias("role"), "part"
    )
    return (
        sums.agg(
            f.sum(n).alias("nodes"),
            f.sum(n * x).alias("sx"),
            f.sum(n * y).alias("sy"),
            f.sum(n * x * x).alias("sxx"),
            f.sum(n * y * y).alias("syy"),
            f.sum(n * x * y).alias("sxy"),
            f.max(y / x).alias("most"),
            # Of nodes that forward a message once and twice: the shares behind the coefficient.
            (f.sum(f.when(y == x, n).otherwise(0)) / f.sum(n)).alias("once"),
            (f.sum(f.when(y == 2 * x, n).otherwise(0)) / f.sum(n)).alias("twice"),
        )
        .select("method", "role", "part", "nodes", _coefficient().alias("coefficient"), *others)
        .orderBy("role", "method", "part")
    )


def _coefficient() -> Column:
    from pyspark.sql import functions as f

    n, sx, sy, sxx, syy, sxy = (
        f.col(name).cast("double") for name in ("nodes", "sx", "sy", "sxx", "syy", "sxy")
    )
    return (n * sxy - sx * sy) / (f.sqrt(n * sxx - sx * sx) * f.sqrt(n * syy - sy * sy))


# ---- §3.4.4 ------------------------------------------------------------------------------


def fig3_14(tallies: DataFrame) -> DataFrame:
    """Entries of a node, on average; `distinct` without redundancy."""
    from pyspark.sql import functions as f

    keys = ("nodes", "topics", "method")

    def of(what: str) -> Column:
        chosen = f.col("what") == what
        return f.sum(f.when(chosen, f.col("total"))) / f.sum(f.when(chosen, f.col("count")))

    return (
        _of(tallies, "tables", "entries", "distinct_entries")
        .groupBy(*keys)
        .agg(of("entries").alias("entries"), of("distinct_entries").alias("distinct"))
        .orderBy(*keys)
    )


def fig3_15(tallies: DataFrame) -> DataFrame:
    """Which share of the nodes has so many entries or fewer, normalized as in §3.4.3.

    `topics` is what those with exactly so many subscribe to, on average.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    shares = _of(tallies, "shares", "entries")
    topics = shares.groupBy("method", "value").agg(
        (f.sum(f.col("given") * f.col("count")) / f.sum("count")).alias("topics")
    )
    each = _cumulated(shares, ("method",)).join(topics, ["method", "value"])
    least, most = (which("value").over(Window.partitionBy("method")) for which in (f.min, f.max))
    normalized = (f.col("value") - least) / (most - least)
    return each.withColumn("normalized", normalized).orderBy("method", "value")


# ---- chapter 4 ---------------------------------------------------------------------------


def fig4_5(tallies: DataFrame) -> DataFrame:
    """How many nodes are how deep."""
    from pyspark.sql import functions as f

    return (
        _of(tallies, "depths", "hops")
        .groupBy("nodes", "method", f.col("value").alias("depth"))
        .agg(f.sum("count").alias("count"))
        .orderBy("nodes", "method", "depth")
    )


def fig4_6(tallies: DataFrame) -> DataFrame:
    keys = ("nodes", "method")
    return _of(tallies, "depths", "hops").groupBy(*keys).agg(_mean().alias("hops")).orderBy(*keys)


def fig4_9(tallies: DataFrame) -> DataFrame:
    """Times in milliseconds, by size of the topic; T_d by the formulas, simulated, by eq. 4.1-4."""
    from pyspark.sql import functions as f

    def of(method: str, what: str) -> Column:
        chosen = (f.col("method") == method) & (f.col("what") == what)
        return f.sum(f.when(chosen, f.col("total"))) / 1e6

    keys = ("nodes", "subscribers", f.col("given").alias("size"))
    return (
        _of(tallies, "assignment", "formula", "simulated", "approximate")
        .groupBy(*keys)
        .agg(
            of("intensive", "formula").alias("intensive"),
            of("extensive", "formula").alias("extensive"),
            of("intensive", "simulated").alias("intensive_simulated"),
            of("extensive", "simulated").alias("extensive_simulated"),
            of("approximate", "approximate").alias("approximate"),
        )
        .orderBy("nodes", "subscribers", "size")
    )


def table3_1(tallies: DataFrame) -> DataFrame:
    """Path length, entries of a node on average, messages of idle publishers."""
    from pyspark.sql import functions as f

    def of(what: str) -> Column:
        chosen = f.col("what") == what
        return f.sum(f.when(chosen, f.col("total"))) / f.sum(f.when(chosen, f.col("count")))

    keys = ("method", "dimensions", "nodes", "publishers", "subscribers", "topics")
    longest = f.max(f.when(f.col("what") == "hops", f.col("value")))
    return (
        tallies.where("experiment = 'growth'")
        .groupBy(*keys)
        .agg(
            of("hops").alias("hops"),
            longest.alias("longest"),
            of("entries").alias("entries"),
            of("idle_messages").alias("idle_messages"),
            of("missed").alias("missed"),
        )
        .orderBy(*keys)
    )


JOBS: Final[Mapping[str, Job]] = {
    "table3.1": table3_1,
    "fig3.7": fig3_7,
    "fig3.8": fig3_8,
    "fig3.9": fig3_9,
    "fig3.10": fig3_10,
    "fig3.11": fig3_11,
    "fig3.12": fig3_12,
    "fig3.13": fig3_13,
    "table3.3": table3_3,
    "fig3.14": fig3_14,
    "fig3.15": fig3_15,
    "fig4.5": fig4_5,
    "fig4.6": fig4_6,
    "fig4.9": fig4_9,
}
