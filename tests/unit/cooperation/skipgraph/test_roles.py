from __future__ import annotations

import pytest

from isthmus.cooperation.skipgraph import roles as module
from isthmus.cooperation.skipgraph.groups import MAX_TOPIC_LEVELS
from isthmus.cooperation.skipgraph.keys import Kind
from isthmus.cooperation.skipgraph.roles import Roles


def said(roles: Roles) -> set[tuple[str, Kind]]:
    return {(key.topic, key.kind) for key in roles.keys(publishing=True)}


def test_a_publisher_is_one_of_every_group_around() -> None:
    roles = Roles("n")
    assert roles.begun("a/b", 1)
    assert said(roles) == {(each, Kind.PUBLISHER) for each in ("a/b", "a/b/#", "a/#", "#")}
    assert roles.keys(publishing=False) == set()


def test_who_is_both_has_the_key_of_a_subscriber() -> None:
    roles = Roles("n")
    roles.begun("a", 1)
    roles.interest(["a"], [])
    assert said(roles) == {
        ("a", Kind.SUBSCRIBER),
        ("a/#", Kind.PUBLISHER),
        ("#", Kind.PUBLISHER),
    }


def test_a_topic_ends_when_nobody_publishes_on_it_any_more() -> None:
    roles = Roles("n")
    assert roles.begun("a", 1)
    assert not roles.begun("a", 1)
    assert not roles.ended("a")
    roles.forget("a")
    assert roles.topics == {"a"}
    assert roles.ended("a")
    assert roles.topics == {"a"}, "it lingers"
    roles.forget("a")
    assert not roles.topics
    assert said(roles) == set()


def test_a_client_that_comes_back_keeps_the_topic() -> None:
    roles = Roles("n")
    roles.begun("a", 1)
    roles.ended("a")
    roles.begun("a", 1)
    roles.forget("a")
    assert roles.topics == {"a"}


def test_groups_of_several_topics_are_shared() -> None:
    roles = Roles("n")
    roles.begun("a/1", 0)
    roles.begun("a/2", 0)
    roles.forget("a/1")
    assert said(roles) == {(each, Kind.PUBLISHER) for each in ("a/2", "a/2/#", "a/#", "#")}


def test_who_wants_too_much_wants_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 3)
    roles = Roles("n")
    roles.interest(["a", "b", "c"], [])
    assert roles.subscribed == {"a", "b", "c"}
    roles.interest(["d"], [])
    assert roles.subscribed == {"#"}
    roles.interest([], ["a"])
    assert roles.subscribed == {"b", "c", "d"}


def test_topics_beyond_the_bounds_have_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = Roles("n")
    deep = "/".join("x" * (MAX_TOPIC_LEVELS + 1))
    assert not roles.has_room(deep)
    assert not roles.begun(deep, 1)
    assert not roles.ended(deep)
    monkeypatch.setattr(module, "MAX_GROUPS", 6)
    assert roles.begun("a", 1)
    assert not roles.begun("b/c/d", 1)
    assert roles.topics == {"a"}
