"""How the matrix judges: what a broker does seldom is learned, what only the node does is found.

Nothing runs here but the judging: the two sides are lists of what they are to see, run by run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import chain, product, repeat
from pathlib import Path
from threading import Lock

import pytest

from conformance.matrix import (
    AGAIN,
    CROWD,
    DIRECT_RUNS,
    MANY,
    Cell,
    Outcome,
    Site,
    all_cells,
    run_cells,
)
from conformance.observation import Observation
from conformance.stage import Address

from . import variants

DIRECT, NODE = Address(1), Address(2)

SEEN = {
    "usual": Observation({"messages": ("1", "2")}, ({"messages": ("1", "2")},)),
    "seldom": Observation({"messages": ("2",)}, ({"messages": ("1", "2")},)),
    "wrong": Observation({"messages": ("1", "1")}, ({"messages": ("1", "2")},)),
    "stops": Observation({"stopped": "SUBSCRIBE to t: no SUBACK"}),
    "stops elsewhere": Observation({"stopped": "SUBSCRIBE to a/+: no SUBACK"}),
    "silent": Observation({"stopped": "CONNECT of client s: no CONNACK"}),
}


def judged(
    direct: Iterable[str], node: Iterable[str], count: int = 1, broker: str = "mosquitto"
) -> list[Outcome]:
    """Outcomes of `count` cells of which each sees this, and from then on the usual."""
    lock = Lock()
    cells = [cell for cell in all_cells() if cell.broker == broker][:count]
    sides = {
        (cell, address): chain(words, repeat("usual"))
        for cell in cells
        for address, words in ((DIRECT, [*direct]), (NODE, [*node]))
    }

    def observing(cell: Cell, address: Address, patience_s: float) -> Observation:
        with lock:
            return SEEN[next(sides[cell, address])]

    site = Site(DIRECT, NODE)
    outcomes = run_cells(broker, cells, lambda: nullcontext(site), observing)
    return [outcomes[cell] for cell in cells]


def test_where_both_see_the_same_one_run_is_enough() -> None:
    (outcome,) = judged([], [])
    assert outcome.agrees
    assert (len(outcome.direct_runs), len(outcome.node_runs)) == (1, 1)


@pytest.mark.parametrize("place", [1, 3, 7, 14, 24, 29, 60, 150])
def test_a_variant_of_the_broker_is_learned(place: int) -> None:
    """The node is the first to show what the broker does once in many runs."""
    (outcome,) = judged([*["usual"] * place, "seldom"], ["seldom"])
    assert outcome.agrees, outcome.difference
    assert outcome.direct.seen == SEEN["usual"].seen
    assert [count for _, count in outcome.variants] == [len(outcome.direct_runs) - 1, 1]


def test_a_variant_of_the_broker_is_told() -> None:
    (outcome,) = judged(["seldom"], [])
    assert outcome.agrees
    assert outcome.varieties() == ["in 1 of 13 runs: messages [2], not [1, 2]"]


@pytest.mark.parametrize("pattern", [*product(("usual", "wrong"), repeat=4)])
@pytest.mark.parametrize("count", [1, MANY])
def test_a_fault_of_the_node_is_found_however_seldom_it_shows(
    pattern: tuple[str, ...], count: int
) -> None:
    """Once in the first run and once or more in the next ones, or never again."""
    for outcome in judged([], ["wrong", *pattern], count):
        assert not outcome.agrees
        assert outcome.difference.startswith("messages [1, 1], not [1, 2] (in ")


def test_a_fault_that_shows_only_where_the_broker_varies_is_found() -> None:
    (outcome,) = judged(["seldom"], ["usual", *["wrong", "seldom"] * (AGAIN // 2)])
    assert not outcome.agrees
    assert len(outcome.unexplained) == AGAIN // 2


def test_a_broker_that_mixes_clients_up_is_judged_when_fresh() -> None:
    (outcome,) = judged([], ["wrong"], broker="moquette")
    assert outcome.agrees
    assert (len(outcome.direct_runs), len(outcome.node_runs)) == (1 + AGAIN, AGAIN)
    (outcome,) = judged([], ["wrong", "usual", "wrong"], broker="moquette")
    assert not outcome.agrees


def test_looking_for_variants_ends() -> None:
    (outcome,) = judged([], ["wrong"])
    assert DIRECT_RUNS <= len(outcome.direct_runs) - 2 * CROWD < DIRECT_RUNS + AGAIN
    assert len(outcome.node_runs) == 1 + AGAIN


@pytest.mark.parametrize("count", [1, MANY])
def test_a_broker_that_does_not_answer_is_asked_again(count: int) -> None:
    for outcome in judged(["silent"], ["silent"], count):
        assert outcome.agrees
        assert outcome.direct.seen == SEEN["usual"].seen
        assert outcome.varieties()[-1].endswith("no answer to CONNECT")


def test_a_broker_that_never_answers_departs_from_the_standard() -> None:
    (outcome,) = judged(["silent"] * 100, ["silent"] * 100)
    assert outcome.agrees
    assert outcome.direct.seen == SEEN["silent"].seen


def test_a_node_that_alone_does_not_answer_is_found() -> None:
    (outcome,) = judged(["silent", "usual"], ["silent", "silent"])
    assert len(outcome.unexplained) == 1
    assert not outcome.agrees


def test_a_node_may_keep_the_standard_where_packets_come_early() -> None:
    early, other = (Cell("moquette", 4, "raw", name) for name in ("byte-by-byte", "takeover"))
    departs, keeps, wrong = SEEN["seldom"], SEEN["usual"], SEEN["wrong"]
    assert Outcome(early, (departs,), (keeps,)).mended
    assert not Outcome(early, (departs,), (wrong,)).agrees
    assert not Outcome(other, (departs,), (keeps,)).agrees


def test_a_broker_that_stops_answering_for_good_excuses_the_node() -> None:
    (outcome,) = judged(["seldom", "usual", *["silent"] * 40], ["usual", "usual", *["silent"] * 5])
    assert outcome.agrees


def test_what_was_learned_before_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(variants, "FILE", tmp_path / "variants.json")
    variants._recorded.cache_clear()
    first = next(cell for cell in all_cells() if cell.broker == "mosquitto")
    variants.add({(first.broker, first.level, first.name): [SEEN["seldom"].seen]})
    variants.add({("aedes", 4, first.name): [SEEN["wrong"].seen]})
    assert json.loads(variants.FILE.read_text()).keys() == {
        f"aedes-3.1.1-{first.name}",
        f"mosquitto-3.1.1-{first.name}",
    }
    (outcome,) = judged([], ["seldom"])
    assert outcome.agrees
    assert len(outcome.node_runs) == 1
    (outcome,) = judged([], ["wrong"])
    assert not outcome.agrees
    variants._recorded.cache_clear()


def test_where_a_broker_was_seen_to_stop_counts_once_in_each_scenario(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(variants, "FILE", tmp_path / "variants.json")
    variants._recorded.cache_clear()
    (outcome,) = judged([], ["wrong", "usual", "stops elsewhere"], broker="moquette")
    assert not outcome.agrees
    variants.add({("moquette", 4, "some-other"): [SEEN["stops"].seen]})
    (outcome,) = judged([], ["wrong", "usual", "stops elsewhere"], broker="moquette")
    assert outcome.agrees
    (outcome,) = judged([], ["wrong", "stops", "stops elsewhere"], broker="moquette")
    assert not outcome.agrees
    (outcome,) = judged([], ["stops"], broker="mosquitto")
    assert not outcome.agrees
    variants._recorded.cache_clear()
