"""The relay benchmark's own arithmetic: the check of deliveries, slices, targets."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.relay.load import Check, Shape, clients_of, shape_of
from benchmarks.relay.processes import memory, peak_bytes
from benchmarks.relay.report import cpu_model, document_of, write_json
from benchmarks.relay.rounds import Pace, Round
from benchmarks.relay.statistics import Slice, Target, percentile, pool, slices_of, spread
from benchmarks.relay.verdict import doubts, figures_of, round_document, targets_of
from numpy.typing import NDArray

from isthmus.bench.load.frames import template
from isthmus.errors import LoadError


def deliveries(*rows: tuple[int, int, int]) -> dict[str, NDArray[Any]]:
    """Of (subscriber, publisher, message); each took 1 µs, the n-th was sent n µs after 1 ms."""
    sent_ns = 1_000_000 + 1000 * np.arange(len(rows))
    found = np.array(rows, np.uint32).reshape(-1, 3)
    names = ("subscriber", "publisher", "message")
    columns: dict[str, NDArray[Any]] = {name: found[:, n] for n, name in enumerate(names)}
    return columns | {"t_send_ns": sent_ns, "t_receive_ns": sent_ns + 1000}


def part(rate: float, others: float, node_us: float = 2.0) -> Slice:
    """Half a second at `rate`, broker 4 µs, generator 1 µs, while others used so many cores."""
    delivered = round(rate / 2)
    cpu_ns = {"broker": 4000 * delivered, "generator": 1000 * delivered}
    cpu_ns["node"] = round(node_us * 1000) * delivered
    cpu_ns["machine"] = sum(cpu_ns.values()) + round(others * 0.5e9)
    return Slice(0.5, delivered, cpu_ns)


class TestCheck:
    @pytest.mark.parametrize("seed", range(20))
    def test_what_comes_in_order_is_counted_however_it_is_cut(self, seed: int) -> None:
        rng = random.Random(seed)
        rows = [(s, p, m) for m in range(20) for p in range(3) for s in (3, 4)]
        check, at = Check(5), 0
        while at < len(rows):
            size = rng.randint(0, 30)
            check.add("deliveries", deliveries(*rows[at : at + size]))
            at += size
        assert check.delivered == len(rows)

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            ([(3, 0, 0), (3, 0, 2)], "subscriber 3 got message 2 of publisher 0 where 1"),
            ([(3, 0, 0), (4, 1, 0), (3, 0, 0)], "message 0 of publisher 0 where 1"),
            ([(3, 0, 0), (3, 0, 2), (3, 0, 1)], "message 2 of publisher 0 where 1"),
            ([(4, 1, 1)], "subscriber 4 got message 1 of publisher 1 where 0"),
        ],
    )
    def test_gaps_repetitions_and_disorder_are_noticed(
        self, rows: list[tuple[int, int, int]], words: str
    ) -> None:
        with pytest.raises(LoadError, match=words):
            Check(5).add("deliveries", deliveries(*rows))
        *good, bad = (deliveries(row) for row in rows if row != (3, 0, 1))
        one_by_one = Check(5)
        for one in good:
            one_by_one.add("deliveries", one)
        with pytest.raises(LoadError, match=words):
            one_by_one.add("deliveries", bad)

    def test_latencies_are_kept_from_a_time_on(self) -> None:
        check = Check(5)
        check.latencies_ns, check.counted_from_ns = [], 1_001_000
        check.add("deliveries", deliveries((3, 0, 0), (3, 0, 1), (3, 0, 2)))
        assert np.concatenate(check.latencies_ns).tolist() == [1000, 1000]


class TestClients:
    def test_they_are_the_scenarios_and_spread_evenly(self) -> None:
        plan = clients_of("n2")
        assert shape_of(plan) == Shape()
        assert Shape().fan_out == 10
        assert {(client.role, client.node) for client in plan.clients} == {
            ("publisher", "n1"),
            ("subscriber", "n2"),
        }
        assert len({template(topic, 0, 32).size for topic in plan.topics}) == 1, "counted by bytes"
        publishers = [client for client in plan.clients if client.role == "publisher"]
        assert [client.topic for client in publishers] == list(range(5)) * 10, "all topics in turn"


class TestSlices:
    def test_it_goes_on_until_enough_are_quiet(self) -> None:
        busy_ns = iter([0, int(9e9), int(9e9), int(9e9)])  # others disturb the first slice only
        done = itertools.count()
        found = slices_of(lambda end: next(done), lambda: {"machine": next(busy_ns)}, 2, 0.0, 4)
        assert [part.quiet for part in found] == [False, True, True]
        assert [part.delivered for part in found] == [1, 1, 1]


class TestStatistics:
    def test_percentiles_interpolate(self) -> None:
        values = [10.0, 20.0, 30.0, 40.0]
        assert percentile(values, 0) == 10
        assert percentile(values, 50) == 25
        assert percentile(values, 100) == 40
        assert percentile([7.0], 99) == 7

    def test_spread(self) -> None:
        found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
        assert (found.median, found.low, found.high, found.iqr) == (3, 1, 5, 2)
        with pytest.raises(ValueError, match="at least one"):
            spread([])

    def test_disturbed_slices_are_left_out(self) -> None:
        run = pool([part(200_000, 0.02), part(90_000, 0.8), part(220_000, -0.01)])
        assert run.rate == 210_000
        assert run.slowest_slice_rate == 200_000
        assert (run.slices, run.quiet_slices) == (3, 2)
        assert run.cpu_us_per_delivered == {"broker": 4.0, "generator": 1.0, "node": 2.0}
        assert run.cores["broker"] == pytest.approx(0.84)

    def test_without_a_quiet_slice_all_are_used(self) -> None:
        run = pool([part(100_000, 0.8), part(120_000, 0.6)])
        assert run.rate == 110_000
        assert run.quiet_slices == 0
        assert run.others_cores == pytest.approx(0.7)

    def test_the_limit_is_who_fills_a_core(self) -> None:
        assert pool([part(245_000, 0.0)]).limit == "broker"
        assert pool([part(240_000, 0.0, node_us=4.0)]).limit == "broker and node"
        assert pool([part(100_000, 0.0)]).limit == "none at a full core"

    def test_targets(self) -> None:
        assert Target("rate", "x", 0.95, 0.95, at_least=True).met
        assert not Target("rate", "x", 0.949, 0.95, at_least=True).met
        assert Target("start", "s", 1.0, 1.0).met
        assert not Target("start", "s", 1.1, 1.0).met
        assert not Target("memory", "MiB", None, 80.0).met


def one_round(direct: float, node: float, *, others: float = 0.0, added_us: float = 80) -> Round:
    """A round with these rates, the lazy ones twice as high, while others used so many cores."""
    runs = {"direct": pool([part(direct, others)]), "node": pool([part(node, others)])}
    lazy = {"direct": pool([part(2 * direct, 0)]), "node": pool([part(node, 0)])}
    paces = {
        path: Pace(median_us, 500, 900, 10, 2000, others)
        for path, median_us in (("direct", 150), ("node", 150 + added_us))
    }
    return Round("direct node node direct", runs, lazy, paces)


class TestVerdict:
    def test_the_ratio_is_taken_per_round_first(self) -> None:
        rounds = [one_round(100_000, 100_000), one_round(200_000, 180_000)]
        figures = figures_of([*rounds, one_round(300_000, 240_000)])
        assert figures["rate ratio"].spread.median == pytest.approx(0.9)
        assert figures["rate ratio, lazy"].spread.median == pytest.approx(0.45)
        assert figures["node CPU / broker CPU, same run"].spread.median == pytest.approx(0.5)

    def test_disturbed_rounds_do_not_count_where_they_were_disturbed(self) -> None:
        rounds = [one_round(200_000, 190_000), one_round(200_000, 90_000, others=0.9)]
        figures = figures_of(rounds)
        assert figures["rate ratio"].rounds == figures["added median latency"].rounds == 1
        assert figures["rate ratio"].spread.median == pytest.approx(0.95)
        assert figures["rate ratio, lazy"].rounds == 2
        assert len(doubts(rounds)) == 2

    def test_when_all_rounds_were_disturbed_all_count(self) -> None:
        rounds = [one_round(200_000, rate, others=0.9) for rate in (90_000, 110_000)]
        assert figures_of(rounds)["rate ratio"].rounds == 2

    def test_targets(self) -> None:
        figures = figures_of([one_round(200_000, 200_000, added_us=301)])
        met = {target.name: target.met for target in targets_of(figures, [0.4, 1.2, 0.4], None)}
        assert met == {
            "highest rate, node / direct": True,
            "highest rate, node / direct, lazy": False,
            "CPU per delivered, node / Mosquitto": True,
            "listens after": False,  # the slowest start decides
            "added median latency": False,
            "RSS with 5000 idle clients": False,  # not measured
        }

    def test_a_round_can_be_written(self) -> None:
        written = json.loads(json.dumps(round_document(one_round(200_000, 190_000))))
        assert written["rate_ratio"] == pytest.approx(0.95)
        assert written["saturated"]["node"]["cpu_us_per_delivered"]["node"] == 2.0


class TestReport:
    def test_memory_is_resident_proportional_and_unique(self) -> None:
        found = memory(os.getpid())
        assert found.rss_bytes >= found.pss_bytes >= found.uss_bytes > 1 << 20
        assert peak_bytes(os.getpid()) > 1 << 20

    def test_cpu_model(self) -> None:
        assert cpu_model("processor\t: 0\nmodel name\t: Some CPU 3000\nflags: x\n") == (
            "Some CPU 3000"
        )

    def test_the_document_says_which_targets_were_met(self, tmp_path: Path) -> None:
        targets = [Target("a", "s", 2.0, 1.0), Target("b", "x", 1.0, 0.95, at_least=True)]
        path = tmp_path / "new" / "relay.json"
        write_json(document_of({"machine": {"cores": 2}}, targets), path)
        read = json.loads(path.read_text())
        assert read["schema"] == 1
        assert [target["met"] for target in read["targets"]] == [False, True]
        assert list(path.parent.iterdir()) == [path]
