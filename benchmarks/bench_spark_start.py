"""How long a Spark session takes to start: until it is there, its first result, and its end."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

from isthmus.pipeline.spark.session import open_session


def _time_one(quick: bool) -> None:
    """Print seconds until the session, the first result and the end; all in this process."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    with open_session(quick=quick) as spark:
        opened = time.monotonic()
        spark.range(1000).groupBy(f.col("id") % 7).count().toArrow()
        result = time.monotonic()
    print(opened - began, result - began, time.monotonic() - result)


def _time(rounds: int) -> None:
    """Each start in a fresh process; with a cache of their own, so that the first is a first."""
    times: dict[str, list[tuple[float, ...]]] = {"quick, first ever": [], "quick": [], "plain": []}
    with tempfile.TemporaryDirectory(prefix="isthmus-time-") as cache:
        for title in ("quick, first ever", *(["plain", "quick"] * rounds)):
            before = os.times()
            printed = subprocess.run(
                [sys.executable, __file__, "--one", title.split(",")[0]],
                env={**os.environ, "ISTHMUS_CACHE": cache},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
            after = os.times()
            cpu_s = sum(after[2:4]) - sum(before[2:4])
            times[title].append((*(float(number) for number in printed.split()), cpu_s))
    print(f"{'s: median (min-max)':20}{'session':>18}{'first result':>18}{'end':>18}{'CPU':>18}")
    for title, measured in times.items():
        columns = [
            f"{median(column):.1f} ({min(column):.1f}-{max(column):.1f})"
            for column in zip(*measured, strict=True)
        ]
        print(f"{title:20}" + "".join(f"{column:>18}" for column in columns))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench_spark_start")
    parser.add_argument("--rounds", type=int, default=5, help="how often each kind (5)")
    parser.add_argument("--one", choices=("plain", "quick"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        _time_one(given.one == "quick")
    else:
        _time(given.rounds)


if __name__ == "__main__":
    main()
