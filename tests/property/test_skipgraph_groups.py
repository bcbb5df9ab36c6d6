"""Wildcards in the Skip Graph against plain matching: who wants a message is always reached."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.skipgraph import groups as groups_module
from isthmus.cooperation.skipgraph import roles as roles_module
from isthmus.cooperation.skipgraph.graph import Graph
from isthmus.cooperation.skipgraph.groups import (
    Groups,
    around,
    group_of,
    groups_of,
    is_family,
    is_inside,
    outermost,
)
from isthmus.cooperation.skipgraph.keys import (
    Key,
    Kind,
    key_of,
    label_of,
    range_from,
    subscribers_of,
)
from isthmus.cooperation.skipgraph.options import SkipGraphOptions
from isthmus.cooperation.skipgraph.roles import Roles
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.topics import matches

LEVELS = ("a", "b", "", "+")
Topics = (
    st.lists(st.sampled_from(("a", "b", "")), min_size=1, max_size=5).map("/".join).filter(bool)
)


@st.composite
def _filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(LEVELS), min_size=0, max_size=5))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    return normal_form("/".join(levels) or "#")


Filters = _filters()


@settings(max_examples=2_000)
@given(Filters, Topics)
def test_a_filter_that_matches_has_a_group_of_the_topic(topic_filter: str, topic: str) -> None:
    if matches(topic_filter, topic):
        assert group_of(topic_filter) in groups_of(topic)


@settings(max_examples=500)
@given(st.lists(Filters, max_size=8), Topics)
def test_a_node_gets_what_its_clients_want_by_one_group(filters: list[str], topic: str) -> None:
    """And with no filter inside the topic's families, by none."""
    mine = outermost(group_of(each) for each in filters) & set(groups_of(topic))
    assert len(mine) <= 1
    if any(matches(each, topic) for each in filters):
        assert len(mine) == 1


@settings(max_examples=500)
@given(Filters, Topics)
def test_groups_match_the_topics_in_them(topic_filter: str, topic: str) -> None:
    """So routes of a group's topics can be dropped by it, and a label can name it."""
    group = group_of(topic_filter)
    assert matches(group, topic) == (group in groups_of(topic))
    if group in groups_of(topic):
        keys = subscribers_of(group)
        assert range_from(label_of(keys, topic), topic) == keys


@settings(max_examples=500)
@given(Filters, Filters, Topics)
def test_groups_that_share_a_topic_overlap(one: str, other: str, topic: str) -> None:
    mine, theirs = group_of(one), group_of(other)
    shared = {mine, theirs} <= set(groups_of(topic))
    assert Groups([theirs]).overlaps(mine) or not shared
    if is_inside(mine, theirs) and matches(mine, topic):
        assert matches(theirs, topic)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), Filters), max_size=20))
def test_interest_that_comes_and_goes(changes: list[tuple[bool, str]]) -> None:
    roles, wanted, keys = Roles("n"), set[str](), set[Key]()
    for begins, topic_filter in changes:
        if begins and topic_filter not in wanted:
            roles.interest([topic_filter], [])
            wanted.add(topic_filter)
        elif not begins and topic_filter in wanted:
            roles.interest([], [topic_filter])
            wanted.discard(topic_filter)
        come, gone = roles.take_changes(publishing=True)
        keys = (keys | come) - gone
    expected = outermost(map(group_of, wanted))
    assert roles.subscribed == expected
    assert keys == {key_of(group, Kind.SUBSCRIBER, "n") for group in expected}
    assert roles.keys(publishing=True) == keys


def test_names() -> None:
    assert group_of("a/b") == "a/b"
    assert group_of("a/+/c") == group_of("a/#") == group_of("a/+") == "a/#"
    assert group_of("+/c") == group_of("#") == group_of("+") == "#"
    assert group_of("/+") == "/#"
    assert groups_of("a/b") == ["a/b", "a/b/#", "a/#", "#"]


@settings(max_examples=500)
@given(st.lists(Filters, max_size=8), st.lists(Filters, max_size=4), Filters)
def test_groups_in_order(added: list[str], removed: list[str], other: str) -> None:
    group = group_of(other)
    groups = Groups(map(group_of, added[:4]))
    for each in added:
        groups.add(group_of(each))
    for each in removed:
        groups.discard(group_of(each))
    left = set(map(group_of, added)) - set(map(group_of, removed))
    if is_family(group):
        assert sorted(groups.inside(group)) == sorted(e for e in left if is_inside(e, group))
    assert groups.overlaps(group) == any(
        is_inside(each, group) or is_inside(group, each) for each in left
    )


def test_many_families_at_once_hold_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is not compared with all others: 10,000 of them would take a minute."""
    looked = 0

    def counted(group: str) -> list[str]:
        nonlocal looked
        looked += 1
        return around(group)

    for module in (groups_module, roles_module):
        monkeypatch.setattr(module, "around", counted)
    count = 600
    ones, others = ([f"{name}{n}/#" for n in range(count)] for name in "xy")
    roles = Roles("n")
    options = SkipGraphOptions()
    graph = Graph("n", ["n", "m"], options, b"e", send=lambda *_: None, refuse=lambda *_: None)
    for added, removed in ((ones, []), (others, ones), ([], others)):
        looked = 0
        roles.interest(added, removed)
        graph.want(*roles.take_changes(publishing=True))
        graph.retire(1.0, 1.0)
        graph.retire(2.0, 1.0)
        assert looked <= 6 * count
