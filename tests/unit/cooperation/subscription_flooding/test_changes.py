"""Filters that change while there is no time for them: rounds of additions, then removals."""

from __future__ import annotations

import random

import pytest

from isthmus.cooperation.subscription_flooding.changes import Changes

FILTERS = [f"f{number}" for number in range(6)]


def steps(changes: Changes[str]) -> list[str]:
    """All that is to be done: ``+`` added, ``-`` removed, ``!`` a mark."""
    done = []
    while changes:
        added, what = changes.next()
        done.append(f"!{what[0]}" if isinstance(what, tuple) else f"{'-+'[added]}{what}")
    return done


def test_nothing_is_to_be_done_at_first() -> None:
    assert not Changes[str]()


def test_changes_of_one_filter_merge_while_they_gather() -> None:
    changes = Changes[str]()
    changes.add("a")
    changes.remove("a")
    assert not changes
    changes.remove("b")
    changes.add("b")
    assert not changes
    changes.add("a")
    assert steps(changes) == ["+a"]


def test_all_additions_of_a_round_come_before_its_removals() -> None:
    changes = Changes[str]()
    changes.remove("#")
    changes.add("a/#")
    changes.remove("b/#")
    changes.add("c/#")
    assert steps(changes) == ["+a/#", "+c/#", "-#", "-b/#"]


def test_what_has_ended_since_the_round_began_is_added_all_the_same() -> None:
    """The example of the module: ``#`` by ``a/#``, and that by ``+/+``."""
    changes = Changes[str]()
    changes.remove("#")
    changes.add("a/#")
    changes.add("z")
    assert changes.next() == (True, "a/#")
    changes.remove("a/#")
    changes.add("+/+")
    assert steps(changes) == ["+z", "-#", "++/+", "-a/#"]


def test_an_addition_that_waits_in_a_round_is_not_taken_back() -> None:
    changes = Changes[str]()
    changes.add("y")
    changes.add("z")
    assert changes.next() == (True, "y")
    changes.remove("z")
    assert steps(changes) == ["+z", "-z"]


def test_a_removal_that_waits_in_a_round_is_carried_out_and_mended_in_the_next() -> None:
    changes = Changes[str]()
    changes.remove("y")
    changes.remove("z")
    assert changes.next() == (False, "y")
    changes.add("z")
    assert steps(changes) == ["-z", "+z"]


def test_a_round_ends_however_often_somebody_changes_filters() -> None:
    changes = Changes[str]()
    changes.remove("old")
    for number in range(10):
        changes.add(f"n{number}")
    for number in range(10):
        assert changes.next() == (True, f"n{number}")
        changes.add(f"more {number}")
    assert changes.next() == (False, "old")


def test_a_mark_comes_after_all_that_was_wanted_when_it_was_set() -> None:
    changes = Changes[str]()
    changes.add("a")
    changes.add("b")
    assert changes.next() == (True, "a")
    changes.add("c")
    changes.mark("joined")
    changes.add("d")
    found = steps(changes)
    assert found == ["+b", "+c", "+d", "!joined"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_mark_can_be_taken_back_also_in_a_round(begun: bool) -> None:
    changes = Changes[str]()
    changes.add("a")
    changes.mark("joined")
    changes.mark("other")
    done = [f"+{changes.next()[1]}"] if begun else []
    changes.unmark("joined")
    changes.unmark("never set")
    assert [*done, *steps(changes)] == ["+a", "!other"]


def test_a_mark_is_not_a_filter_of_the_same_name() -> None:
    changes = Changes[str]()
    changes.mark("a")
    changes.add("a")
    assert steps(changes) == ["+a", "!a"]


@pytest.mark.parametrize(
    ("before", "held", "wanted", "then"),
    [
        ("", False, True, ["+a"]),
        ("", False, False, []),
        ("", True, True, []),
        ("", True, False, ["-a"]),
        ("add", False, False, []),
        ("add", False, True, ["+a"]),
        ("remove", True, True, []),
        ("remove", True, False, ["-a"]),
    ],
)
def test_settling_brings_about_what_is_wanted_whatever_was_before(
    before: str, held: bool, wanted: bool, then: list[str]
) -> None:
    changes = Changes[str]()
    if before:
        getattr(changes, before)("a")
    changes.settle("a", wanted=wanted, held=held)
    assert steps(changes) == then


@pytest.mark.parametrize("seed", range(30))
def test_rounds_lead_from_what_was_wanted_at_one_beginning_to_the_next(seed: int) -> None:
    """Every step is one of the round's, additions first; in the end all is as wanted."""
    rng = random.Random(seed)
    changes = Changes[str]()
    wanted, effect = set[str](), set[str]()
    adding, removing = set[str](), set[str]()

    def step() -> None:
        nonlocal adding, removing
        if not adding and not removing:
            adding, removing = wanted - effect, effect - wanted
        added, what = changes.next()
        assert isinstance(what, str)
        if added:
            adding.remove(what)
            effect.add(what)
        else:
            assert not adding
            removing.remove(what)
            effect.remove(what)

    for _ in range(300):
        topic_filter = rng.choice(FILTERS)
        if rng.random() < 0.4:
            is_wanted = rng.random() < 0.5
            held = topic_filter in effect
            changes.settle(topic_filter, wanted=is_wanted, held=held)
            (wanted.add if is_wanted else wanted.discard)(topic_filter)
        elif topic_filter in wanted:
            wanted.remove(topic_filter)
            changes.remove(topic_filter)
        else:
            wanted.add(topic_filter)
            changes.add(topic_filter)
        if changes and rng.random() < 0.6:
            step()
    while changes:
        step()
    assert effect == wanted
    assert not adding
    assert not removing
