"""What crosses a link is what both ends allow, under one name at each; against naive oracles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.link_rules import Crossing, LinkRules
from isthmus.cooperation.subscription_flooding.crossing_table import CrossingTable
from isthmus.cooperation.subscription_flooding.invariants import largest
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.overlap import common, overlap
from support.topic_oracle import (
    FILTERS,
    all_filters,
    by_regular_expression,
    close_filters,
    filters_for,
    mask,
    topic_names,
)

PREFIXES = ("", "a/", "b/a/", "/", "a//", "ab/")
few_filters = st.sampled_from(all_filters(("a", "b", ""), 3)).filter(lambda f: f[0] != "$")
lists = st.one_of(st.none(), st.lists(few_filters, max_size=3).map(tuple))
prefixes = st.sampled_from(PREFIXES)
names = st.one_of(
    topic_names, st.lists(st.sampled_from(["a", "b", "", "$s"]), min_size=1).map("/".join)
).filter(bool)


@st.composite
def two_ends(draw: st.DrawFn) -> tuple[LinkRules, LinkRules]:
    """Of which one at most has a prefix."""
    first = LinkRules(draw(lists), draw(lists), draw(prefixes))
    second = LinkRules(draw(lists), draw(lists), "" if first.prefix else draw(prefixes))
    return first, second


def naive(here: LinkRules, there: LinkRules, name: str) -> str | None:
    """What `name` is called at the other end, if it may go there."""
    there_name = here.prefix + name
    if there.prefix:
        if not name.startswith(there.prefix):
            return None
        there_name = name[len(there.prefix) :]
    if not there_name or name.startswith("$") or there_name.startswith("$"):
        return None
    for filters, each in ((here.out, name), (there.into, there_name)):
        if filters is not None and not any(by_regular_expression(f, each) for f in filters):
            return None
    return there_name


# ---- two filters --------------------------------------------------------------------------


def test_what_two_small_filters_have_in_common() -> None:
    few = all_filters(("a", "", "$s"), 2)
    for a in few:
        for b in few:
            found = common(a, b)
            both = mask(a) & mask(b)
            assert (0 if found is None else mask(found)) == both, (a, b)
            assert overlap(a, b) == bool(both), (a, b)


@settings(deadline=None)
@given(st.sampled_from(FILTERS), close_filters)
def test_what_two_filters_have_in_common(a: str, b: str) -> None:
    found = common(a, b)
    assert (0 if found is None else mask(found)) == mask(a) & mask(b)
    assert found == common(b, a)
    assert found is None or found == normal_form(found)


# ---- names --------------------------------------------------------------------------------


@settings(deadline=None)
@given(two_ends(), names)
def test_what_crosses_is_what_both_ends_allow(ends: tuple[LinkRules, LinkRules], name: str) -> None:
    here, there = Crossing(*ends), Crossing(*reversed(ends))
    wire = here.leaves(name.encode())
    expected = naive(*ends, name)
    arrived = None if wire is None else there.comes(wire)
    assert arrived == (None if expected is None else expected.encode())
    assert wire is None or arrived is not None, "sent, and then not believed"
    if arrived is not None:
        assert there.comes_as(arrived) == wire


@settings(deadline=None)
@given(two_ends(), names)
def test_names_come_back_as_they_were(ends: tuple[LinkRules, LinkRules], name: str) -> None:
    free = tuple(LinkRules(prefix=each.prefix) for each in ends)
    here, there = Crossing(*free), Crossing(*reversed(free))
    wire = here.leaves(name.encode())
    if wire is not None:
        arrived = there.comes(wire)
        assert arrived is not None
        back = there.leaves(arrived)
        assert back is not None
        assert here.comes(back) == name.encode()


@settings(deadline=None)
@given(two_ends(), names)
def test_what_comes_uninvited_is_not_believed(ends: tuple[LinkRules, LinkRules], wire: str) -> None:
    """Whatever a neighbor sends: what is taken is what it could have sent by the rules."""
    here, there = Crossing(*ends), Crossing(*reversed(ends))
    own = here.comes(wire.encode())
    if own is not None:
        theirs = wire if ends[0].prefix else wire.removeprefix(ends[1].prefix)
        assert naive(ends[1], ends[0], theirs) == own.decode()
        assert there.leaves(theirs.encode()) == wire.encode()


# ---- filters ------------------------------------------------------------------------------


@settings(deadline=None)
@given(two_ends(), st.data())
def test_who_wants_it_gets_it(ends: tuple[LinkRules, LinkRules], data: st.DataObject) -> None:
    """What may come and is wanted is asked for, in filters that the other end believes."""
    here, there = Crossing(*ends), Crossing(*reversed(ends))
    name = data.draw(names)
    wanted = normal_form(data.draw(st.one_of(few_filters, filters_for(name))))
    if wanted.startswith("$"):
        return
    asked = [there.asked(each) for each in here.asks(wanted)]
    assert None not in asked, "asked for, and then not believed"
    arrived = naive(ends[1], ends[0], name)
    comes = arrived is not None and by_regular_expression(wanted, arrived)
    matched = any(by_regular_expression(each, name) for each in asked if each is not None)
    assert matched or not comes
    if matched and not comes:  # nothing is asked for but what crosses
        assert naive(ends[1], ends[0], name) is None


@settings(deadline=None)
@given(two_ends(), st.lists(few_filters, max_size=8), st.lists(few_filters, max_size=4))
def test_a_table_announces_the_largest_that_may_come(
    ends: tuple[LinkRules, LinkRules], wanted: list[str], dropped: list[str]
) -> None:
    crossing = Crossing(*ends)
    table = CrossingTable(crossing)
    for each in (*wanted, *dropped):
        table.add(each)
    for each in dropped:
        table.remove(each)
    table.settle()
    left = {normal_form(each) for each in wanted} - {normal_form(each) for each in dropped}
    assert len(table) == len(left)
    assert set(table.announced) == largest(part for each in left for part in crossing.asks(each))


@settings(deadline=None)
@given(two_ends())
def test_rules_are_told_as_they_are(ends: tuple[LinkRules, LinkRules]) -> None:
    for each in ends:
        assert LinkRules.parse(each.text()) == each


@settings(deadline=None)
@given(st.text(max_size=200))
def test_what_a_neighbor_says_of_rules_is_read_or_refused(text: str) -> None:
    try:
        rules = LinkRules.parse(text)
    except ValueError:
        return
    assert LinkRules.parse(rules.text()) == rules


def test_two_prefixes_are_refused() -> None:
    with pytest.raises(ValueError, match="both ends of the link set a prefix"):
        Crossing(LinkRules(prefix="a/"), LinkRules(prefix="b/"))
