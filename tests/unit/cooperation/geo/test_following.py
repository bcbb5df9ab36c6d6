"""Somebody who moves: only what changes is told, and it adds up."""

from __future__ import annotations

import math
from random import Random

import pytest

from isthmus.cooperation.geo import WORLD, Area, Change, Circle, Following, smallest_filters

PLANE = Area.plane(0, 0, 64, 64)


@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_what_is_told_adds_up(slack: float) -> None:
    random = Random(3)
    following = Following(PLANE, 8, 6, "temperature", slack=slack)
    subscribed: set[str] = set()
    x = y = 32.0
    for _ in range(200):
        x = min(max(x + random.uniform(-1, 1), 0), 64)
        y = min(max(y + random.uniform(-1, 1), 0), 64)
        change = following.follow((x, y), 3)
        assert not subscribed & set(change.added)
        assert subscribed >= set(change.removed)
        subscribed |= set(change.added)
        subscribed -= set(change.removed)
        assert subscribed == set(following.filters)
        wanted = Circle((x, y), 3).cells(PLANE, 6)
        assert wanted & following.cells == wanted
        most = Circle((x, y), 3 * (1 + slack)).cells(PLANE, 6)
        assert most | following.cells == most
        assert following.filters == smallest_filters(following.cells, 8, "temperature")


def test_nothing_is_told_twice() -> None:
    following = Following(WORLD, 12, 12)
    assert following.follow((35.68, 139.76), 10_000)
    assert not following.follow((35.68, 139.76), 10_000)
    assert following.follow((35.68, 139.76), 10_000) == Change((), ())


def test_everything_and_nothing() -> None:
    following = Following(PLANE, 3, 3)
    assert following.follow((1, 1), 0) == Change(("2/2/2/#",), ())
    assert following.everything() == Change(("#",), ("2/2/2/#",))
    assert following.stop() == Change((), ("#",))
    assert following.stop() == Change()
    assert following.filters == ()


def test_who_stands_at_a_border_changes_filters_once() -> None:
    changes = {}
    for slack in (0.0, 0.2):
        following = Following(PLANE, 6, 6, slack=slack)
        steps = [(31.95 + 0.1 * (step % 2), 10.0) for step in range(50)]
        changes[slack] = sum(bool(following.follow(each, 2)) for each in steps)
    assert changes[0.0] == 50
    assert changes[0.2] <= 2


def test_what_is_refused_changes_nothing() -> None:
    following = Following(PLANE, 3, 3)
    following.follow((1, 1), 0)
    with pytest.raises(ValueError, match="center of the circle: x 65 is outside the area"):
        following.follow((65, 1), 1)
    assert following.filters == ("2/2/2/#",)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ValueError, match="precision: 4 is not allowed; 1 to 3 is"):
        Following(PLANE, 3, 4)
    with pytest.raises(ValueError, match="slack: nan"):
        Following(PLANE, 3, 3, slack=math.nan)
    with pytest.raises(ValueError, match="rest '#/a'"):
        Following(PLANE, 3, 3, "#/a")
