"""Evidence out of the watch's samples and the load processes' reports."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.bench.watch.evidence import Counts, Evidence, Flow, LoadUse, ServerUse, gather
from isthmus.bench.watch.samples import ResourceRow, Series, table
from isthmus.bench.watch.tcp_info import TcpInfo
from isthmus.bench.watch.watch import ServersEnd, WatchedTables
from isthmus.pipeline.log.schema import RESOURCES

S = 1_000_000_000
COUNTS = Counts(offered=10, sent=10, expected=100, received=100)


def resources(*rows: tuple[int, str, str, int, int | None]) -> Any:
    series = Series()
    for t_s, node, process, cpu_ns, throttled_ns in rows:
        series.append([ResourceRow(t_s * S, node, process, cpu_ns, 1, throttled_ns)])
    return table([series], RESOURCES)


def gathered(
    tables: WatchedTables | None, *, window: tuple[int, int] = (10, 20), **said: Any
) -> Evidence:
    said = {"headroom": {}, "tcp": [], "subscribers": []} | said
    start_s, end_s = window
    return gather(tables, (start_s * S, end_s * S), duration_s=10.0, counts=COUNTS, **said)


def entry(peer: str, **changed: int | None) -> dict[str, Any]:
    counters = {"rwnd_limited_us": 0, "retransmits": 0, "segments_out": 0}
    return {"peer": peer, "node": "n1"} | counters | changed


def test_only_the_window_counts() -> None:
    seen = WatchedTables(
        resources(
            (5, "", "machine", 0, None),
            (5, "n1", "broker", 0, 0),
            (10, "", "machine", 10 * S, None),
            (10, "n1", "broker", 4 * S, 1 * S),
            (10, "n1", "node", 1 * S, None),
            (10, "", "load:w0", 1 * S, None),
            (20, "", "machine", 25 * S, None),
            (20, "n1", "broker", 5 * S, 8 * S),
            (20, "n1", "node", 3 * S, None),
            (20, "", "load:w0", 9 * S, None),
            (25, "n1", "broker", 90 * S, 90 * S),
        ),
        cores=2,
    )
    found = gathered(seen)
    assert found.machine_busy == pytest.approx(0.75)
    assert found.servers == {"n1": ServerUse({"broker": 0.1, "node": 0.2}, {"broker": 0.7})}


def test_a_window_too_short_for_two_samples_is_judged_by_the_run() -> None:
    seen = WatchedTables(
        resources((5, "", "machine", 0, None), (15, "", "machine", 5 * S, None)), cores=1
    )
    assert gathered(seen).machine_busy == pytest.approx(0.5)


def test_one_sample_tells_nothing() -> None:
    seen = WatchedTables(resources((15, "", "machine", 5 * S, None), (15, "n1", "node", 1, None)))
    assert gathered(seen).machine_busy is None
    assert gathered(seen).servers == {}


def test_who_sends_on_which_connection() -> None:
    end = TcpInfo(*[0] * 9)
    seen = WatchedTables(servers_ends=(ServersEnd("t-sub-1", "n2", end),))
    found = gathered(
        seen,
        tcp=[
            entry("t-pub-0", rwnd_limited_us=2_500_000, retransmits=3, segments_out=70),
            entry("t-sub-1", rwnd_limited_us=9_000_000, receive_window_min_bytes=0),
            entry("t-sub-2", receive_window_min_bytes=4_096),
            entry("t-sub-3", receive_window_min_bytes=None),
        ],
        subscribers=["t-sub-1", "t-sub-2", "t-sub-3"],
    )
    assert found.publishers == [Flow("t-pub-0", "n1", 0.25, 3, 70)]
    assert found.subscribers == [Flow("t-sub-1", "n2", 0.0)]
    assert found.closed_windows == ["t-sub-1"]


def test_a_kernel_that_counts_less_and_a_share_of_more_than_the_run() -> None:
    found = gathered(
        WatchedTables(),
        tcp=[
            entry("old", rwnd_limited_us=None, retransmits=None, segments_out=None),
            entry("long", rwnd_limited_us=12_000_000),
        ],
    )
    assert [flow.rwnd_limited_share for flow in found.publishers] == [0.0, 1.0]


def test_what_the_other_end_had_already_was_not_lost() -> None:
    late_timers = entry("t-pub-0", retransmits=35, duplicate_retransmits=33)
    (flow,) = gathered(WatchedTables(), tcp=[late_timers]).publishers
    assert flow.retransmits == 2


def test_headroom_as_the_load_processes_say_it() -> None:
    said = {"w0": {"cpu": 0.5, "late_ms_max": 3.0, "late_share": 0.001, "more": 1.0}}
    assert gathered(WatchedTables(), headroom=said).load == {"w0": LoadUse(0.5, 3.0, 0.001)}
    said["w0"]["stalled_ms"] = 2_500.0
    assert gathered(WatchedTables(), headroom=said).load["w0"].stalled_share == 0.25


def test_nobody_watched() -> None:
    found = gathered(None)
    assert found.machine_busy is None
    assert found.notes == ("nobody watched the servers",)
    assert (found.servers, list(found.subscribers)) == ({}, [])
