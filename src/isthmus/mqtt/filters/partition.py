"""A partition of all topic names: filters with owners, and for each name the one who has it.

Several owners have filters each.  Where filters lie within each other the narrowest decides, so
``plant/#`` and ``plant/hall-2/#`` may have two owners; filters that cross, as ``+/a`` and ``b/+``
do, may not (`conflicts`): the name ``b/a`` would have two.  What no filter matches is the default
owner's, or nobody's.

Whose messages a filter can match is decided exactly.  What two filters both match is again a
filter.  Put a level that no filter mentions in each of its ``+``, and any number of them for its
``#`` up to one level more than the longest filter has: the names that come out have the owners of
that filter's typical names.  A name that is less typical is so by matching another filter, and
that one is looked at as well.

Filters are trusted to be valid, and ``$share/NAME/`` to have been split off.  A filter that starts
with a wildcard matches no name that starts with ``$`` [MQTT-4.7.2-1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, NamedTuple

from isthmus.mqtt.filters.covering import covers, normal_form

__all__ = ["Conflict", "Partition", "conflicts", "intersection"]

_UNMENTIONED: Final = "\0"
"""A level that no filter has."""


class Conflict(NamedTuple):
    """Two filters that cannot both be there, and a name that would have two owners."""

    filter: str
    owner: str
    other_filter: str
    other_owner: str
    topic: str


@dataclass(slots=True)
class _Node:
    """Filters with the same beginning."""

    children: dict[str, _Node] = field(default_factory=dict)
    """By the next level, ``+`` among them."""
    exact: str | None = None
    """The owner of the filter that ends here."""
    open: str | None = None
    """The owner of the filter that ends here with ``#``."""


class Partition:
    """Who has which topic names."""

    def __init__(self, filters: Mapping[str, Sequence[str]], default: str = "") -> None:
        """`filters` by owner; nobody is `""`."""
        self.default = default
        self.owners = tuple(dict.fromkeys((*filters, *([default] if default else ()))))
        self._root = _Node()
        self._longest = 1
        for owner, theirs in filters.items():
            for topic_filter in theirs:
                self._add(normal_form(topic_filter), owner)

    def _add(self, topic_filter: str, owner: str) -> None:
        levels = topic_filter.split("/")
        self._longest = max(self._longest, len(levels))
        is_open = levels[-1] == "#"
        node = self._root
        for level in levels[:-1] if is_open else levels:
            node = node.children.setdefault(level, _Node())
        if is_open:
            node.open = owner
        else:
            node.exact = owner

    def of(self, topic: str) -> str:
        """Whose `topic` is; empty if it is nobody's."""
        found = self._narrowest(self._root, topic.split("/"), 0)
        return self.default if found is None else found

    def _narrowest(self, node: _Node, levels: list[str], at: int) -> str | None:
        """Of those that match each lies within the next: a level before ``+``, then ``#``."""
        if at == len(levels):
            return node.exact if node.exact is not None else node.open
        level = levels[at]
        found = None
        if (child := node.children.get(level)) is not None:
            found = self._narrowest(child, levels, at + 1)
        if at == 0 and level.startswith("$"):
            return found
        if found is None and (child := node.children.get("+")) is not None:
            found = self._narrowest(child, levels, at + 1)
        return node.open if found is None else found

    def matching(self, topic_filter: str) -> tuple[str, ...]:
        """Whose names `topic_filter` matches some of, in the order of `owners`."""
        if "+" not in topic_filter and not topic_filter.endswith("#"):
            owner = self.of(topic_filter)
            return (owner,) if owner else ()
        found: set[str] = set()
        for other, _ in ((topic_filter, ""), *self.crossing(topic_filter)):
            both = intersection(topic_filter, other)
            if both is not None:
                found.update(map(self.of, self._typical(both)))
            if len(found - {""}) == len(self.owners):
                break
        return tuple(owner for owner in self.owners if owner in found)

    def _typical(self, topic_filter: str) -> Iterator[str]:
        levels = [_UNMENTIONED if each == "+" else each for each in topic_filter.split("/")]
        if levels[-1] != "#":
            yield "/".join(levels)
            return
        levels.pop()
        most = max(len(levels), self._longest) + 1
        while len(levels) <= most:
            if levels and levels != [""]:
                yield "/".join(levels)
            levels.append(_UNMENTIONED)

    def crossing(self, topic_filter: str) -> Iterator[tuple[str, str]]:
        """The filters, with their owners, that match a name that `topic_filter` matches too."""
        yield from _crossing(self._root, topic_filter.split("/"), ())


def _crossing(node: _Node, levels: list[str], before: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    at = len(before)
    special = at == 0 and levels[0].startswith("$")
    if node.open is not None and not special:
        yield "/".join((*before, "#")), node.open
    if at == len(levels):
        if node.exact is not None:
            yield "/".join(before), node.exact
        return
    level = levels[at]
    if level == "#":
        if node.exact is not None:
            yield "/".join(before), node.exact
        levels = [*levels[:-1], "+", "#"]  # the same, one level further
        level = "+"
    for name, child in node.children.items():
        if level == "+":
            fits = at > 0 or not name.startswith("$")
        else:
            fits = name == level or (name == "+" and not special)
        if fits:
            yield from _crossing(child, levels, (*before, name))


def intersection(a: str, b: str) -> str | None:
    """The filter of the names that both match; None if there are none."""
    ours, theirs = a.split("/"), b.split("/")
    if "$" in (ours[0][:1], theirs[0][:1]) and {"+", "#"} & {ours[0], theirs[0]}:
        return None
    both: list[str] = []
    for one, other in zip_longest(ours, theirs):
        if "#" in (one, other):
            both += (theirs if one == "#" else ours)[len(both) :]
            break
        if one is None or other is None or not (one == other or "+" in (one, other)):
            return None
        both.append(other if one == "+" else one)
    return "/".join(both) or None  # the empty string is no name


def conflicts(filters: Mapping[str, Sequence[str]]) -> Iterator[Conflict]:
    """Filters of two owners that match the same names, neither lying within the other."""
    partition = Partition({})
    owners: dict[str, str] = {}
    for owner, theirs in filters.items():
        for topic_filter in map(normal_form, theirs):
            for other, other_owner in partition.crossing(topic_filter):
                if other_owner == owner:
                    continue
                both = intersection(topic_filter, other)
                if both is not None and (
                    topic_filter == other
                    or not (covers(topic_filter, other) or covers(other, topic_filter))
                ):
                    name = both.removesuffix("/#").replace("+", "x").replace("#", "x")
                    yield Conflict(topic_filter, owner, other, other_owner, name)
            if owners.setdefault(topic_filter, owner) == owner:
                partition._add(topic_filter, owner)
