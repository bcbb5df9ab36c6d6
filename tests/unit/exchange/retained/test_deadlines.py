"""What is due first, whatever was added and discarded before."""

from __future__ import annotations

import random

import pytest

from isthmus.exchange.retained.deadlines import Deadlines


def drained(deadlines: Deadlines) -> list[tuple[int, bytes]]:
    """All that is there, as it comes due."""
    found = []
    while (due := deadlines.first()) is not None:
        found.append(due)
        deadlines.discard(*due)
    return found


def test_nothing_is_due_at_first() -> None:
    assert Deadlines().first() is None


def test_what_is_due_earliest_comes_first() -> None:
    deadlines = Deadlines()
    for due_ms in (30, 10, 20):
        deadlines.add(due_ms, b"%d" % due_ms)
    assert deadlines.first() == (10, b"10")
    assert deadlines.first() == (10, b"10")  # looking takes nothing out
    assert drained(deadlines) == [(10, b"10"), (20, b"20"), (30, b"30")]


def test_several_topics_may_be_due_at_the_same_time() -> None:
    deadlines = Deadlines()
    for topic in (b"a", b"b", b"c"):
        deadlines.add(5, topic)
    deadlines.discard(5, b"b")
    assert sorted(drained(deadlines)) == [(5, b"a"), (5, b"c")]


def test_a_topic_that_is_added_twice_stands_there_once() -> None:
    deadlines = Deadlines()
    deadlines.add(5, b"a")
    deadlines.add(5, b"a")
    deadlines.discard(5, b"a")
    assert deadlines.first() is None


@pytest.mark.parametrize("others", [0, 1, 2])
def test_what_is_not_there_can_be_discarded(others: int) -> None:
    deadlines = Deadlines()
    for number in range(others):
        deadlines.add(5, b"%d" % number)
    deadlines.discard(5, b"never")
    deadlines.discard(6, b"0")
    assert len(drained(deadlines)) == others


def test_a_deadline_that_is_put_off_again_and_again_leaves_little_behind() -> None:
    deadlines = Deadlines()
    for due_ms in range(10_000):
        deadlines.add(due_ms, b"a")
        deadlines.discard(due_ms - 1, b"a")
        assert len(deadlines) <= 2 * 2 + 64 + 1
    assert drained(deadlines) == [(9_999, b"a")]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_a_sorted_list_would_be(seed: int) -> None:
    rng = random.Random(seed)
    deadlines, entries = Deadlines(), set[tuple[int, bytes]]()
    for _ in range(2_000):
        entry = (rng.randrange(40), rng.choice([b"a", b"b", b"c"]))
        if rng.random() < 0.5:
            deadlines.add(*entry)
            entries.add(entry)
        else:
            deadlines.discard(*entry)
            entries.discard(entry)
        first = deadlines.first()
        assert (first is None) == (not entries)
        if first is not None:
            assert first in entries
            assert first[0] == min(entries)[0]
    assert sorted(drained(deadlines)) == sorted(entries)
