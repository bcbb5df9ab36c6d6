"""Whose word counts on what has passed already, and how much is remembered."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.exchange.traffic import seen
from isthmus.exchange.traffic.message import number_of
from isthmus.exchange.traffic.seen import BLOCK_NUMBERS, MAX_BLOCKS, Novelty, SeenMessages

NEW, REPEATED, DOUBTFUL = Novelty.NEW, Novelty.REPEATED, Novelty.DOUBTFUL


class Fabric:
    """What the guard of node `here` knows."""

    def __init__(self, **ways: str) -> None:
        self.now_s = 0.0
        self._ways: dict[str, frozenset[str]] = {}
        self._gone: dict[str, set[str]] = {}
        self.become(**ways)
        self.seen = SeenMessages("here", "1", self, now=lambda: self.now_s, recent_s=120.0)

    def become(self, **ways: str) -> None:
        before = self._ways
        self._ways = {origin: frozenset(names.split()) for origin, names in ways.items()}
        for origin, names in before.items():
            if gone := names - self._ways.get(origin, frozenset()):
                self._gone.setdefault(origin, set()).update(gone)

    def ways(self) -> Mapping[str, frozenset[str]]:
        return self._ways

    def ways_gone(self) -> Mapping[str, set[str]]:
        gone, self._gone = self._gone, {}
        return gone

    def take(
        self,
        neighbor: str,
        number: int,
        origin: str = "x",
        incarnation: str = "1",
        payload: bytes = b"",
    ) -> Novelty:
        return self.seen.take(origin, number_of(incarnation, number), neighbor, (b"t", payload))


def test_each_number_is_taken_once() -> None:
    fabric = Fabric(x="g")
    for number in (1, 2, 5_000, 3, 2**60):
        assert fabric.take("g", number) is NEW
        assert fabric.take("g", number) is REPEATED
    assert fabric.take("g", 1, incarnation="2") is NEW


def test_a_whole_queue_is_remembered() -> None:
    """Far more than the 4,096 that it once was: repetitions may come after `hold_s`."""
    fabric = Fabric(x="g")
    for number in range(100_000):
        assert fabric.take("g", number) is NEW
    assert fabric.take("g", 0) is REPEATED


def test_one_that_is_not_on_the_way_uses_up_no_numbers() -> None:
    fabric = Fabric(x="g", h="h")
    assert fabric.take("h", 7) is DOUBTFUL
    assert fabric.take("g", 7) is NEW
    assert fabric.take("h", 7) is DOUBTFUL


def test_when_the_way_changes_both_count() -> None:
    fabric = Fabric(x="g")
    assert fabric.take("g", 1) is NEW
    fabric.become(x="h")
    assert fabric.take("h", 1) is REPEATED
    assert fabric.take("g", 2) is NEW, "it was on its way when the way changed"
    assert fabric.take("h", 2) is REPEATED
    assert fabric.take("h", 3) is NEW
    assert fabric.take("g", 3) is REPEATED


def test_one_that_is_on_the_way_no_longer_counts_no_longer_after_a_while() -> None:
    fabric = Fabric(x="h")
    assert fabric.take("h", 1_000_000) is NEW, "forged, and nobody can know"
    fabric.become(x="g")
    assert fabric.take("g", 1) is NEW
    assert fabric.take("g", 1_000_000) is REPEATED
    fabric.now_s += 121.0
    assert fabric.take("h", 2) is DOUBTFUL
    assert fabric.take("g", 1_000_000) is NEW


def test_what_came_while_its_origin_was_unknown_does_not_come_twice() -> None:
    fabric = Fabric()
    assert fabric.take("h", 7) is NEW
    assert fabric.take("g", 7) is REPEATED
    fabric.become(x="g")
    assert fabric.take("g", 7) is REPEATED


def test_who_forges_numbers_of_an_unknown_origin_uses_none_up() -> None:
    fabric = Fabric()
    assert fabric.take("h", 7, payload=b"forged") is NEW
    assert fabric.take("g", 7, payload=b"real") is NEW
    assert fabric.take("h", 8, payload=b"forged") is NEW
    fabric.become(x="g")
    assert fabric.take("g", 8, payload=b"real") is NEW
    assert fabric.take("g", 8, payload=b"real") is REPEATED


def test_an_origin_that_was_cut_off_is_still_reached_by_its_old_way() -> None:
    fabric = Fabric(x="g")
    assert fabric.take("g", 1) is NEW
    fabric.become()
    assert fabric.take("g", 1) is REPEATED
    assert fabric.take("g", 2) is NEW
    fabric.become(x="g")
    assert fabric.take("g", 2) is REPEATED


def test_our_own_do_not_come_back() -> None:
    fabric = Fabric(x="g")
    assert fabric.take("g", 10**9, origin="here") is REPEATED
    assert fabric.take("g", 1, origin="here", incarnation="0") is NEW, "of an earlier life"


def test_who_invents_nodes_and_numbers_makes_only_his_own_memory_short() -> None:
    fabric = Fabric(x="g", y="h")
    assert fabric.take("g", 1) is NEW
    assert fabric.take("h", 1, origin="y") is NEW
    for number in range(MAX_BLOCKS + 1):
        fabric.take("h", number * BLOCK_NUMBERS, origin="y", incarnation=f"{number:x}")
        fabric.take("h", number * BLOCK_NUMBERS, origin=f"invented-{number}")
    assert fabric.take("g", 1) is REPEATED
    assert fabric.take("h", 1, origin="y") is NEW
    assert max(map(len, fabric.seen._brought.values())) == MAX_BLOCKS


def test_who_invents_nodes_is_remembered_as_far_as_there_is_room() -> None:
    fabric = Fabric()
    for number in range(seen.MAX_EARLY + 1):
        assert fabric.take("h", 1, origin=f"invented-{number}") is NEW
    assert [len(each) for each in fabric.seen._early.values()] == [seen.MAX_EARLY]


def test_who_has_left_is_forgotten_after_a_while() -> None:
    fabric = Fabric(x="g")
    fabric.take("g", 1)
    fabric.seen.left("g")
    assert fabric.take("g", 1) is REPEATED
    fabric.now_s += 121.0
    fabric.seen.left("other")
    assert "g" not in fabric.seen._brought


def test_ways_of_the_past_are_bounded() -> None:
    fabric = Fabric()
    for number in range(10):
        fabric.become(**{f"o{number}-{each}": "g" for each in range(seen.MAX_RECENT // 4)})
        fabric.take("g", number)
    assert len(fabric.seen._recent) <= seen.MAX_RECENT
