from __future__ import annotations

import pytest

from isthmus.cooperation.topic_tree import membership as bounds
from isthmus.cooperation.topic_tree.membership import Membership
from isthmus.cooperation.topic_tree.messages import News
from isthmus.errors import RemoteProtocolError


def wants(*filters: str) -> News:
    return News(filters, publish=False, begins=True)


def publishes(*topics: str) -> News:
    return News(topics, publish=True, begins=True)


def tell(membership: Membership, name: str, *news: News) -> None:
    membership.begin(name)
    for each in news:
        assert not membership.heard(name, each)
    membership.end(name)


def test_who_wants_and_publishes_what() -> None:
    membership = Membership("a")
    tell(membership, "b", wants("t/#", "u"), publishes("t/1"))
    tell(membership, "c", wants("+/1"))
    assert membership.told == {"a", "b", "c"}
    assert membership.wanting("t/1") == {"b", "c"}
    assert membership.wanting("u") == {"b"}
    assert membership.publishing("t/1") == {"b"}
    assert membership.heard("b", News(("t/#",), publish=False, begins=False))
    assert membership.wanting("t/1") == {"c"}


def test_what_was_told_counts_until_all_is_told_anew() -> None:
    membership = Membership("a")
    tell(membership, "b", wants("t", "u"), publishes("t"))
    membership.begin("b")
    membership.heard("b", wants("v"))
    assert membership.wanting("t") == {"b"}
    assert membership.wanting("v") == set()
    membership.end("b")
    assert membership.wanting("t") == set()
    assert membership.publishing("t") == set()
    assert membership.wanting("v") == {"b"}
    assert membership.unfinished
    membership.work(2)
    assert membership.unfinished
    membership.work(100)
    assert not membership.unfinished
    assert not list(membership.topics)
    assert membership.wanting("v") == {"b"}


def test_who_is_gone_wants_nothing() -> None:
    membership = Membership("a")
    tell(membership, "b", wants("t"), publishes("t"))
    membership.begin("b")
    membership.gone("b")
    assert membership.told == {"a"}
    assert membership.wanting("t") == set()
    membership.work(100)
    assert not membership.unfinished


def test_what_breaks_the_rules_is_the_neighbors_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    membership = Membership("a")
    with pytest.raises(RemoteProtocolError, match="before"):
        membership.heard("b", wants("t"))
    with pytest.raises(RemoteProtocolError, match="not begun"):
        membership.end("b")
    monkeypatch.setattr(bounds, "MAX_FILTERS", 2)
    monkeypatch.setattr(bounds, "MAX_BYTES", 10)
    membership.begin("b")
    with pytest.raises(RemoteProtocolError, match="more than"):
        membership.heard("b", wants("x", "y", "z"))
    with pytest.raises(RemoteProtocolError, match="more than"):
        membership.heard("b", publishes("x" * 11))


def test_filters_that_are_hard_to_match_are_given_up() -> None:
    membership = Membership("a")
    membership.begin("b")
    for number in range(2**11):
        levels = ["+" if number >> bit & 1 else "a" for bit in range(11)]
        membership.heard("b", wants("/".join(levels)))
    membership.end("b")
    assert membership.wanting("/".join("a" * 11)) is None
