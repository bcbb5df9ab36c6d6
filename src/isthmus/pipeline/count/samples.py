"""`resources` and `links`: counters that were read about once a second, taken over the window.

Which samples count: the last one at or before the window's start and those after it up to the
window's end.  What a counter grew by is the sum of its steps; where it falls, its process or
connection began anew, and the step is what it counted since.  Both tables are small (a sample a
second), so a file is read whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from isthmus.pipeline.count.partials import Partial
from isthmus.pipeline.log.reading import Run

__all__ = ["TRAFFIC_COUNTERS", "sample_partials", "usage"]

TRAFFIC_COUNTERS: Final = (
    "messages_out",
    "messages_in",
    "bytes_out",
    "bytes_in",
    "data_bytes_out",
    "data_bytes_in",
    "control_packets_out",
    "control_packets_in",
    "control_bytes_out",
    "control_bytes_in",
)


def sample_partials(run: Run, table: str, writer: str, rows: pa.Table) -> Iterator[Partial]:
    """One row of `usage` per process, or of `traffic` per connection, that `writer` sampled."""
    what, found = ("usage", usage) if table == "resources" else ("traffic", _all_traffic)
    window_ns = (run.window_start_ns, run.window_end_ns)
    for row in found(rows, window_ns, run.offsets_ns[writer]):
        data = json.dumps({"run": run.run, "writer": writer, **row}).encode()
        yield Partial(run.run, what, data=data)


def usage(rows: pa.Table, window_ns: tuple[int, int], offset_ns: int = 0) -> list[dict[str, Any]]:
    """What each process of `resources` used within the window; None where too little was seen."""
    grouped = _by_name(rows, ("node", "process"))
    return [name | _usage(_in_window(part, window_ns, offset_ns)) for name, part in grouped]


def _all_traffic(
    rows: pa.Table, window_ns: tuple[int, int], offset_ns: int
) -> list[dict[str, Any]]:
    grouped = _by_name(rows, ("node", "peer", "kind"))
    return [name | _traffic(_in_window(part, window_ns, offset_ns)) for name, part in grouped]


def _by_name(rows: pa.Table, keys: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    grouped: dict[tuple[str, ...], list[int]] = {}
    names = zip(*(rows.column(key).to_pylist() for key in keys), strict=True)
    for index, name in enumerate(names):
        grouped.setdefault(name, []).append(index)
    for name, indexes in grouped.items():
        yield dict(zip(keys, name, strict=True)), rows.take(indexes)


def _in_window(rows: pa.Table, window_ns: tuple[int, int], offset_ns: int) -> dict[str, list[Any]]:
    """The samples that count, in the order of time, on the coordinator's clock."""
    start_ns, end_ns = window_ns
    samples: dict[str, list[Any]] = rows.to_pydict()
    times_ns = [time_ns + offset_ns for time_ns in samples["t_ns"]]
    order = sorted(range(len(times_ns)), key=times_ns.__getitem__)
    before = [index for index in order if times_ns[index] <= start_ns]
    inside = [index for index in order if start_ns < times_ns[index] <= end_ns]
    chosen = before[-1:] + inside
    samples["t_ns"] = times_ns
    return {name: [values[index] for index in chosen] for name, values in samples.items()}


def _steps(samples: dict[str, list[Any]], counter: str) -> list[tuple[int, int]]:
    """How much `counter` grew and how long that took, from each known value to the next."""
    known = [
        (time_ns, value)
        for time_ns, value in zip(samples["t_ns"], samples[counter], strict=True)
        if value is not None
    ]
    return [
        (value - earlier if value >= earlier else value, time_ns - earlier_ns)
        for (earlier_ns, earlier), (time_ns, value) in pairwise(known)
    ]


def _share(steps: list[tuple[int, int]]) -> float | None:
    """Growth per time over all steps; none without time."""
    span_ns = sum(step_ns for _, step_ns in steps)
    return sum(grown for grown, _ in steps) / span_ns if span_ns else None


def _usage(samples: dict[str, list[Any]]) -> dict[str, Any]:
    steps = _steps(samples, "cpu_ns")
    rss_bytes = samples["rss_bytes"]
    return {
        "samples": len(rss_bytes),
        "cpu_cores": _share(steps),
        "cpu_cores_max": max((grown / ns for grown, ns in steps if ns), default=None),
        "rss_mean_bytes": sum(rss_bytes) / len(rss_bytes) if rss_bytes else None,
        "rss_max_bytes": max(rss_bytes, default=None),
        "throttled_share": _share(_steps(samples, "throttled_ns")),
    }


def _traffic(samples: dict[str, list[Any]]) -> dict[str, Any]:
    times_ns = samples["t_ns"]
    row: dict[str, Any] = {"samples": len(times_ns)}
    row["span_s"] = (times_ns[-1] - times_ns[0]) / 10**9 if times_ns else None
    for counter in TRAFFIC_COUNTERS:
        steps = _steps(samples, counter)
        row[counter] = sum(grown for grown, _ in steps) if steps else None
    return row
