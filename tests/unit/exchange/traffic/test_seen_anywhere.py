"""What has been here, whoever brought it."""

from __future__ import annotations

import pytest

from isthmus.exchange.traffic import seen_anywhere
from isthmus.exchange.traffic.message import number_of
from isthmus.exchange.traffic.seen import Novelty
from isthmus.exchange.traffic.seen_anywhere import BLOCK_NUMBERS, SeenAnywhere

NEW, REPEATED = Novelty.NEW, Novelty.REPEATED


class Node:
    def __init__(self) -> None:
        self.seen = SeenAnywhere("here", "1")

    def take(
        self,
        count: int,
        *,
        origin: str = "x",
        life: str = "1",
        by: str = "n",
        payload: bytes = b"p",
        label: bytes = b"",
    ) -> Novelty:
        return self.seen.take(origin, number_of(life, count), by, (b"t", payload), label)


def test_a_number_is_taken_once_whoever_brings_it() -> None:
    node = Node()
    assert [node.take(count) for count in (1, 0, 5_000, 1)] == [NEW, NEW, NEW, REPEATED]
    assert node.take(5_000, by="m") is REPEATED
    assert node.take(1, life="2") is NEW
    assert node.take(1, origin="y") is NEW


def test_every_number_of_a_block_has_its_place() -> None:
    node = Node()
    counts = range(3 * BLOCK_NUMBERS)
    assert {node.take(count) for count in counts} == {NEW}
    assert {node.take(count) for count in counts} == {REPEATED}
    assert len(node.seen) == 3


def test_what_says_something_else_is_another_message() -> None:
    """Numbers that somebody has used up keep nobody's messages from being taken."""
    node = Node()
    assert node.take(1, by="liar", payload=b"forged") is NEW
    assert node.take(1, payload=b"true") is NEW
    assert node.take(1, by="m", payload=b"true") is REPEATED
    assert node.take(1, by="m", payload=b"forged") is REPEATED, "nor does it come again"
    assert node.take(1, by="n", payload=b"true") is REPEATED


def test_what_is_disputed_is_bounded_for_who_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_anywhere, "MAX_DISPUTED", 10)
    node = Node()
    node.take(1, payload=b"first")
    node.take(1, by="m", payload=b"honest")
    for number in range(100):
        assert node.take(1, by="liar", payload=b"%d" % number) is NEW
    assert len(node.seen._disputed) == 11
    assert node.take(1, payload=b"honest") is REPEATED
    node.seen.left("liar")
    node.seen.left("m")
    assert not node.seen._disputed


def test_with_another_label_it_is_another_message() -> None:
    node = Node()
    assert [node.take(1, label=label) for label in (b"", b"a", b"b", b"a")] == [
        NEW,
        NEW,
        NEW,
        REPEATED,
    ]


def test_our_own_have_been_here_unless_they_have_a_label() -> None:
    node = Node()
    assert node.take(7, origin="here") is REPEATED
    assert node.take(7, origin="here", life="0") is NEW
    assert node.take(7, origin="here", label=b"a") is NEW
    assert node.take(7, origin="here", label=b"a") is REPEATED


def test_who_invents_numbers_makes_his_own_memory_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_anywhere, "MAX_BLOCKS", 10)
    node = Node()
    for count in range(4):
        node.take(count * BLOCK_NUMBERS, by="honest")
    for number in range(1_000):
        node.take(1, origin=f"made-up-{number}", by="liar")
    assert len(node.seen) == 10
    assert [node.take(count * BLOCK_NUMBERS, by="m") for count in range(4)] == [REPEATED] * 4
    assert node.take(1, origin="made-up-1", by="m") is NEW


def test_what_a_neighbor_brought_is_known_when_it_has_gone() -> None:
    node = Node()
    node.take(1)
    node.seen.left("n")
    node.seen.look()
    node.seen.joined("n")
    assert node.take(1, by="m") is REPEATED
