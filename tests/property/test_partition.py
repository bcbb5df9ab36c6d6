"""Who has which topic, against looking at every name there is over a small alphabet."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from isthmus.mqtt.filters.covering import covers
from isthmus.mqtt.filters.partition import Partition, conflicts, intersection
from isthmus.mqtt.filters.topics import matches

LEVELS = ("a", "b", "", "$s", "z")  # no filter has a z
NAMES = [
    "/".join(levels)
    for length in range(1, 5)
    for levels in product(LEVELS, repeat=length)
    if any(levels) or length > 1
]

levels = st.lists(st.sampled_from(["a", "b", "", "$s", "+"]), min_size=1, max_size=3)
filters = st.builds(
    lambda parts, is_open: "/".join([*parts, "#"] if is_open else parts), levels, st.booleans()
).filter(bool) | st.just("#")
tables = st.dictionaries(
    st.sampled_from(["one", "two", "three"]), st.lists(filters, max_size=4), max_size=3
)


@cache
def names_of(topic_filter: str) -> set[str]:
    return {name for name in NAMES if matches(topic_filter, name)}


@given(filters, filters)
def test_what_two_filters_both_match_is_a_filter(a: str, b: str) -> None:
    both = intersection(a, b)
    assert (names_of(both) if both is not None else set()) == names_of(a) & names_of(b)


@given(tables)
def test_conflicts_are_those_with_a_name_that_two_have(table: dict[str, list[str]]) -> None:
    expected = False
    every = [(owner, each) for owner, theirs in table.items() for each in theirs]
    for (owner, a), (other, b) in product(every, every):
        if owner != other and names_of(a) & names_of(b):
            expected |= names_of(a) == names_of(b) or not (covers(a, b) or covers(b, a))
    found = list(conflicts(table))
    assert bool(found) == expected
    for each in found:
        assert matches(each.filter, each.topic), each
        assert matches(each.other_filter, each.topic), each


def owner_of(table: dict[str, list[str]], default: str, name: str) -> str:
    """By comparing all that match with each other."""
    found = [(f, o) for o, theirs in table.items() for f in theirs if matches(f, name)]
    narrowest = {
        owner
        for each, owner in found
        if not any(covers(each, other) and not covers(other, each) for other, _ in found)
    }  # filters of one owner may cross
    assert len(narrowest) == bool(found)
    return narrowest.pop() if narrowest else default


@given(tables, st.sampled_from(["", "rest"]), filters)
def test_owners_are_those_of_every_name(
    table: dict[str, list[str]], default: str, topic_filter: str
) -> None:
    if list(conflicts(table)):
        table = dict(list(table.items())[:1])
    partition = Partition(table, default)
    owners = {name: partition.of(name) for name in NAMES}
    for name in NAMES[:300]:
        assert owners[name] == owner_of(table, default, name), name
    expected = {owners[name] for name in names_of(topic_filter)} - {""}
    assert set(partition.matching(topic_filter)) == expected
