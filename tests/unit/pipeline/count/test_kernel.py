"""Small cases worked out by hand, and the parts that the kernel is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.pipeline.count import histogram
from isthmus.pipeline.count.direct import run_tables, summarize
from isthmus.pipeline.count.histogram import BLOCK, Distribution, Histograms, tally
from isthmus.pipeline.count.published import Numbers
from support.generated_logs import GeneratedRun, write_log

S = 1_000_000_000
T0 = 1_700_000_000 * S


def one_pair(
    delivered: list[tuple[int, int]], messages: int = 5, offset_ns: int = 0
) -> GeneratedRun:
    """A publisher sends a message a second from 0.5 s on; `delivered`: message and latency in ns.

    The window is [1 s, 4 s), so messages 1, 2 and 3 count.  The subscriber's clock is `offset_ns`
    behind.
    """
    clients = [
        {"client": n, "name": f"c{n}", "kind": "t", "role": role, "topic": 0, "node": "n1"}
        for n, role in enumerate(("publisher", "subscriber"))
    ]
    run = GeneratedRun(
        {
            "run": "r",
            "schema_version": 1,
            "scenario": "pair",
            "scenario_json": "{}",
            "labels": [],
            "started_ns": T0,
            "ended_ns": T0 + 5 * S,
            "window_start_ns": T0 + S,
            "window_end_ns": T0 + 4 * S,
            "interval_ns": S,
            "topics": ["topic1"],
            "clients": [client | {"writer": f"w{client['client']}"} for client in clients],
            "clocks": [
                {"writer": "w0", "machine": "a", "offset_ns": 0, "error_ns": 0},
                {"writer": "w1", "machine": "b", "offset_ns": offset_ns, "error_ns": 0},
            ],
            "strays": [],
            "limited_by": "",
            "notes": [],
        }
    )
    sent_ns = [T0 + S // 2 + n * S for n in range(messages)]
    run.tables["publishes"]["w0"] = [
        {"publisher": 0, "message": n, "topic": 0, "t_send_ns": time_ns}
        for n, time_ns in enumerate(sent_ns)
    ]
    run.tables["deliveries"]["w1"] = [
        {
            "subscriber": 1,
            "publisher": 0,
            "message": n,
            "topic": 0,
            "t_send_ns": sent_ns[n],
            "t_receive_ns": sent_ns[n] + latency_ns - offset_ns,
        }
        for n, latency_ns in delivered
    ]
    return run


def test_all_messages_in_order(tmp_path: Path) -> None:
    write_log(tmp_path, [one_pair([(n, 1500) for n in range(5)])])
    summary = summarize(tmp_path, "r")
    assert (summary.ingress, summary.egress) == (1.0, 1.0)
    assert (summary.sp_ratio, summary.limit_ratio, summary.under_limit) == (1.0, 1.0, True)
    assert (summary.expected, summary.delivered, summary.lost, summary.loss_rate) == (3, 3, 0, 0.0)
    assert (summary.duplicates, summary.order_violations, summary.latency_count) == (0, 0, 0)
    everything = run_tables(tmp_path, "r")["latency"][0]
    assert (everything["count"], everything["mean_us"], everything["max_us"]) == (3, 1.5, 1)


def test_only_messages_sent_in_the_window_count(tmp_path: Path) -> None:
    """0 and 4 are outside: that 0 comes twice and after 1 says nothing about the window."""
    write_log(
        tmp_path, [one_pair([(1, 0), (0, 0), (0, 0), (3, 0), (2, 0), (2, 0), (4, 0), (4, 0)])]
    )
    summary = summarize(tmp_path, "r")
    assert (summary.delivered, summary.lost) == (3, 0)
    assert (summary.duplicates, summary.order_violations) == (1, 1)


def test_a_late_message_after_one_outside_the_window_is_out_of_order(tmp_path: Path) -> None:
    write_log(tmp_path, [one_pair([(4, 0), (1, 2 * S), (2, 0), (3, 0)])])
    summary = summarize(tmp_path, "r")
    assert (summary.delivered, summary.order_violations) == (3, 3)


def test_egress_counts_by_the_time_of_receiving(tmp_path: Path) -> None:
    """Message 3 arrives after the window, message 0 in it."""
    write_log(tmp_path, [one_pair([(0, S // 2), (1, 0), (2, 0), (3, S // 2)])])
    summary = summarize(tmp_path, "r")
    assert summary.egress == 1.0
    assert summary.delivered == 3
    seconds = {row["second"]: row for row in run_tables(tmp_path, "r")["per_second"]}
    assert [seconds[n]["egress"] for n in range(5)] == [0, 2, 1, 0, 1]
    assert [seconds[n]["in_window"] for n in range(5)] == [False, True, True, True, False]


@pytest.mark.parametrize("offset_ns", [0, 3 * S + 1, -3 * S - 1])
def test_times_are_put_on_the_coordinators_clock(tmp_path: Path, offset_ns: int) -> None:
    write_log(tmp_path, [one_pair([(n, 1500) for n in range(5)], offset_ns=offset_ns)])
    assert summarize(tmp_path, "r").egress == 1.0
    assert run_tables(tmp_path, "r")["latency"][0]["mean_us"] == 1.5


def test_nothing_sent_is_not_under_the_limit(tmp_path: Path) -> None:
    write_log(tmp_path, [one_pair([], messages=0)])
    summary = summarize(tmp_path, "r")
    assert (summary.ingress, summary.limit_ratio, summary.under_limit) == (0.0, None, False)
    assert (summary.expected, summary.loss_rate) == (0, None)


def test_the_limit_is_at_99_of_100(tmp_path: Path) -> None:
    """Definition 1 says at least 0.99; with 300 messages in 3 s that is 297."""
    for arrived, under in ((297, True), (296, False)):
        run = one_pair([], messages=0)
        sent_ns = [T0 + S + n * S // 100 for n in range(300)]
        run.tables["publishes"]["w0"] = [
            {"publisher": 0, "message": n, "topic": 0, "t_send_ns": time_ns}
            for n, time_ns in enumerate(sent_ns)
        ]
        run.tables["deliveries"]["w1"] = [
            {**row, "subscriber": 1, "t_receive_ns": row["t_send_ns"]}
            for row in run.tables["publishes"]["w0"][:arrived]
        ]
        log = tmp_path / str(arrived)
        write_log(log, [run])
        summary = summarize(log, "r")
        assert (summary.limit_ratio, summary.under_limit) == (arrived / 300, under)


def test_tally_counts_close_and_far_values() -> None:
    for values in ([3, 1, 3], [-5, 2**50, -5, 7], []):
        distinct, counts = tally(np.array(values, np.int64))
        assert dict(zip(distinct.tolist(), counts.tolist(), strict=True)) == {
            value: values.count(value) for value in values
        }


def test_histograms_add_up_over_files_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histogram, "_GATHERED", 4)
    values = [0, 0, 5, BLOCK - 1, BLOCK, 3 * BLOCK + 1, -1, -BLOCK, -BLOCK - 1, 10**13, -(10**13)]
    files = []
    for part in (values[::2], values[1::2]):
        file = Histograms(3)
        file.add(np.full(len(part), 2), np.array(part))
        file.add(np.ones(2, np.int64), np.array([7, -7]))
        files += list(file.blocks())
    assert {block.series for block in files} == {1, 2}
    found = Distribution(block for block in files if block.series == 2)
    assert (found.values, found.sum_us, found.max_us) == (len(values), sum(values), 10**13)
    for rank in range(1, len(values) + 1):
        assert found.percentile(rank, len(values)) == sorted(values)[rank - 1]
    assert Distribution([]).percentile(1, 2) is None


def test_percentiles_are_nearest_ranks() -> None:
    """Of 1 … 1000: the 990th and the 999th; of 1 … 1001 the next whole rank."""
    for count, p50, p99, p999 in ((1000, 500, 990, 999), (1001, 501, 991, 1000), (1, 1, 1, 1)):
        counted = Histograms(1)
        counted.add(np.zeros(count, np.int64), np.arange(1, count + 1))
        found = Distribution(counted.blocks())
        assert found.percentile(50, 100) == p50
        assert found.percentile(99, 100) == p99
        assert found.percentile(999, 1000) == p999


def test_numbers_are_a_set() -> None:
    chance = np.random.default_rng(5)
    for _ in range(200):
        numbers, plain = Numbers(), set()
        for _ in range(4):
            some = chance.integers(0, 30, chance.integers(0, 12))
            taken = numbers.add(some)
            fresh = []
            for value in some.tolist():
                fresh.append(value not in plain)
                plain.add(value)
            assert taken.tolist() == fresh
            spans = zip(numbers.starts.tolist(), numbers.ends.tolist(), strict=True)
            assert {n for start, end in spans for n in range(start, end)} == plain
            assert (numbers.starts[1:] > numbers.ends[:-1]).all()
            assert len(numbers) == len(plain)
        again = Numbers.from_bytes(numbers.to_bytes())
        assert (again.starts.tolist(), again.ends.tolist()) == (
            numbers.starts.tolist(),
            numbers.ends.tolist(),
        )
