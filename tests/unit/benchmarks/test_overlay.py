"""The overlay benchmark's own arithmetic: graphs, victims, accounts, figures, tables."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.overlay.load import Account, Load, account
from benchmarks.overlay.members import NAMES, Sweep, node_text
from benchmarks.overlay.plot import growth
from benchmarks.overlay.rounds import FAULTS, Converged, Repaired, Round
from benchmarks.overlay.shapes import Place, links_of, victims_of
from benchmarks.overlay.simulated import Row, Seen, measure
from benchmarks.overlay.star import bridge_lines
from benchmarks.overlay.verdict import (
    doubts_of,
    figures_of,
    leaf_lost,
    simulated_document,
    simulated_table,
    targets_of,
)
from benchmarks.pages import DOCS
from benchmarks.relay.statistics import Target

from isthmus.config.files import load_node_config
from isthmus.errors import LoadError
from isthmus.graph import search
from support.steady_load import Sent

# ---- graphs and victims ------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [10, 40])
def test_whoever_is_lost_the_others_of_a_graph_are_connected(nodes: int) -> None:
    pairs = links_of("graph", nodes, random.Random(3))
    assert len(set(pairs)) == len(pairs) == 3 * nodes
    for lost in range(nodes):
        left = [pair for pair in pairs if lost not in pair]
        others = set(range(nodes)) - {lost}
        assert set(search([*left, *((b, a) for a, b in left)], min(others))) == others


def test_few_nodes_and_meshes_have_every_link() -> None:
    for shape in ("graph", "mesh"):
        assert links_of(shape, 5, random.Random(1)) == list(combinations(range(5), 2))


def place(parent: str, *children: str, tree: int = 1, nodes: str = "abcde") -> Place:
    return Place((tree, "a"), frozenset(nodes), parent, children)


#      a
#     / \
#    b   c
#       / \
#      d   e
TREE = {
    "a": place("", "b", "c"),
    "b": place("a"),
    "c": place("a", "d", "e"),
    "d": place("c"),
    "e": place("c"),
}


def test_root_inner_node_and_leaf_are_told_from_the_places() -> None:
    assert victims_of(TREE) == {"root": "a", "inner node": "c", "leaf": "b"}
    star = {"a": place("", "b"), "b": place("a")}
    assert victims_of(star) == {"root": "a", "leaf": "b"}


def test_two_trees_have_no_root() -> None:
    with pytest.raises(LoadError, match="2 roots"):
        victims_of({"a": place(""), "b": place("")})


def test_a_tree_counts_when_all_use_it_and_nobody_else_is_in_it() -> None:
    assert Sweep(0.0, TREE, {}).is_one_tree(NAMES)
    assert not Sweep(0.0, TREE, {}).is_one_tree("bcde")
    assert not Sweep(0.0, TREE | {"e": place("c", tree=2)}, {}).is_one_tree(NAMES)
    assert not Sweep(0.0, {name: TREE[name] for name in "abcd"}, {}).is_one_tree(NAMES)


# ---- the account -------------------------------------------------------------------------


def delivered(load: Load, arrived: dict[int, list[float]]) -> None:
    """Every 10 ms one from each place, which takes 1 ms unless `arrived` says otherwise."""
    for publisher in load.publishers:
        publisher.sent = [Sent(number / 100, number / 100) for number in range(300)]
    for publisher, subscriber in load.ways():
        for number, sent in enumerate(publisher.sent):
            times = arrived.get(number, [sent.sent_s + 0.001])
            if times:
                subscriber.got[f"{publisher.name}:{number}"] = times


def test_an_account_of_a_run_without_a_fault() -> None:
    load = Load({"a": 1, "b": 2, "c": 3})
    delivered(load, {})
    assert account(load, 1.0, 2.0) == Account(1800, 0, 0, 0.01, 0.01, 0.011)


def test_what_is_lost_late_and_doubled_is_counted_and_the_gap_measured() -> None:
    load = Load({"a": 1, "b": 2})
    late: dict[int, list[float]] = {number: [1.5] for number in range(100, 150)}
    delivered(load, late | {120: [], 200: [2.0, 2.1]})
    found = account(load, 0.995, 1.8)
    assert (found.lost, found.doubled) == (2, 2)
    assert found.gap_s == pytest.approx(1.5 - 0.991)
    assert found.later_gap_s == pytest.approx(0.011)
    assert found.flowing_s == pytest.approx(1.5 - 0.995)


def test_what_was_not_acknowledged_or_repeated_by_its_publisher_does_not_count() -> None:
    load = Load({"a": 1, "b": 2})
    delivered(load, {7: [], 8: [0.1, 0.2]})
    for publisher in load.publishers:
        publisher.sent[7].acknowledged_s = None
        publisher.sent[8].repeated = True
    found = account(load, 1.0, 2.0)
    assert (found.expected, found.lost, found.doubled) == (2 * 299, 0, 0)


def test_loads_do_not_see_each_others_messages() -> None:
    one, other = Load({"a": 1}), Load({"a": 1})
    assert one.subscribers[0].topic_filter != other.subscribers[0].topic_filter
    assert one.publishers[0].name != other.publishers[0].name


# ---- files -------------------------------------------------------------------------------


def test_nodes_know_a_group_and_nobody(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    ports = {"mqtt": 18830, "admin": 18831, "link": 18832}
    file.write_text(node_text("a", ports, 18833, "239.255.77.85:9000", "127.0.0.1:18834"))
    config = load_node_config(file)
    assert (config.cooperation.algorithm, config.peer) == ("tree", ())
    assert config.discovery.is_on
    assert str(config.node.advertise) == "127.0.0.1:18834"


def test_bridges_keep_their_own_pause() -> None:
    lines = bridge_lines("b", 1883)
    assert "address 127.0.0.1:1883" in lines
    assert not any(line.startswith("restart_timeout") for line in lines)


# ---- simulated ---------------------------------------------------------------------------


def test_a_simulated_fabric_converges_and_loses_three_nodes_one_after_the_other() -> None:
    row = measure("graph", 12, seed=1)
    assert (row.nodes, row.links) == (12, 36)
    assert set(row.repaired) == {"root", "inner node", "leaf"}
    for seen in (row.converged, *row.repaired.values()):
        assert 0 < seen.took_s < 10  # of virtual time
        assert seen.messages_per_node >= 2
        assert seen.bytes_per_node > seen.messages_per_node


def rows() -> list[Row]:
    def seen(took_s: float) -> Seen:
        return Seen(took_s, 30.0, 1234, 0.5)

    return [
        Row(shape, nodes, 3 * nodes, 0.04, seen(0.1 * seed), {"root": seen(0.2)})
        for shape, nodes in (("graph", 10), ("graph", 1000), ("mesh", 10))
        for seed in (1, 2, 3)
    ]


def test_simulated_fabrics_are_summed_up_by_shape_and_size() -> None:
    entries = simulated_document(rows())
    assert [(each["shape"], each["nodes"], each["fabrics"]) for each in entries] == [
        ("graph", 10, 3),
        ("graph", 1000, 3),
        ("mesh", 10, 3),
    ]
    table = simulated_table(entries)
    assert table["rows"][1] == [
        "graph of 1,000",
        "3,000",
        "0.20 s (0.30), 30.0 messages, 1,234 B",
        "0.20 s (0.20), 30.0 messages, 1,234 B",
        "none",
        "none",
        "0.50 s",
    ]


def test_the_page_of_the_tree_says_what_was_counted_when_a_leaf_is_lost() -> None:
    record = json.loads((DOCS / "tree-performance.json").read_text())
    said = leaf_lost(record["simulated"])
    assert " in a graph of 1,000" in said
    assert f"<!-- leaf-lost: begin -->\n{said}\n<!-- leaf-lost: end -->" in (
        (DOCS / "tree.md").read_text()
    )


def test_the_picture_has_a_line_for_each_thing_and_units() -> None:
    left, right = growth(simulated_document(rows())).axes
    assert [line.get_label() for line in left.lines] == [
        "convergence",
        "repair: root lost",
        "convergence, full mesh",
        "repair: root lost, full mesh",
    ]
    assert "seconds" in left.get_ylabel()
    assert "messages per node" in right.get_ylabel()
    assert np.asarray(left.lines[0].get_xdata()).tolist() == [10, 1000]


# ---- figures and targets -----------------------------------------------------------------


def a_round(detected_s: float = 0.05, lost: int = 0, **more: Any) -> Round:
    found = Account(1000, lost, 0, 0.4, 0.1, 0.5)
    repaired = {
        str(fault): Repaired(
            "a", detected_s if fault.killed else 3.6, 0.8 if fault.killed else 4.4, 2.0, found
        )
        for fault in FAULTS
    }
    star = Account(1000, 7, 3, 6.0, 0.0, 5.5)
    return Round(Converged(1.8, 0.3, 1), Converged(2.5, 0.5, 2), repaired, "a", star, **more)


def by_name(targets: list[Target]) -> dict[str, Target]:
    return {each.name: each for each in targets}


def test_figures_have_a_median_over_the_rounds_and_the_star_beside() -> None:
    rounds = [a_round(0.1), a_round(0.2), a_round(0.6)]
    figures = figures_of(rounds)
    assert figures["leaf killed: detected"].spread.median == 0.2
    assert figures["root killed: repaired, from detection"].spread.median == pytest.approx(0.6)
    assert figures["gap, star / root killed"].spread.median == pytest.approx(15)
    assert figures["star of bridges, center killed: lost"].spread.median == 7


def test_a_silent_node_that_is_noticed_too_late_is_a_missed_target() -> None:
    rounds = [a_round()]
    targets = by_name(targets_of(figures_of(rounds), rounds))
    assert targets["detection after kill -9"].met
    assert targets["repair after kill -9, from detection"].met
    assert not targets["detection of a silent node (SIGSTOP)"].met
    assert targets["five nodes use one tree, shaped, beyond T_d of 1 s"].value == 1.5


def test_one_lost_message_of_any_round_is_a_missed_target() -> None:
    rounds = [a_round(), a_round(lost=1)]
    targets = by_name(targets_of(figures_of(rounds), rounds))
    assert not targets["lost, QoS 1"].met
    assert targets["doubled, QoS 1"].met


def test_what_was_not_done_is_not_met() -> None:
    rounds = [Round(Converged(1.8, 0.3, 1), Converged(2.5, 0.5, 2))]
    targets = by_name(targets_of(figures_of(rounds), rounds))
    assert targets["detection after kill -9"].value is None
    assert not targets["detection after kill -9"].met


def test_a_busy_machine_is_a_doubt() -> None:
    assert doubts_of([0.2, 0.9], 2) == []
    assert doubts_of([0.2, 3.14], 2) == [
        "Other processes used the 2 cores as well: the load averages before the rounds were "
        "0.2, 3.1."
    ]
