"""What may cross a link, and under which names: the rules of both ends, and what follows of them.

An end can have *rules* for a link (``[[peer]]``), which it tells in the greeting:

    out       filters of what may leave over this link, in this end's own names; None: everything
    into      filters of what may come, likewise
    prefix    is put before the names of what leaves, and taken from the names of what comes

as with ``topic PATTERN DIRECTION "" REMOTE-PREFIX`` of a Mosquitto bridge.  The end that has a
prefix translates; on the wire are the names of the other end, and only one of the two may have one.
What crosses is what both ends allow.  `Crossing` is what that comes to for one end, all in its own
names, so both compute the same, and each enforces it: it does not send what may not cross, and does
not believe what should not have come.

A name ``t`` at the end with the prefix is ``prefix + t`` at the other: to each name belongs one at
most, there and back.  Names that begin with ``$`` stay where they are, at either end.  Of a filter
with a name in common that may cross, that part is told across the link (`asks`), so that nobody
further on sends what would be dropped here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.cover_table import CoverTable
from isthmus.mqtt.filters.covering import covers, normal_form
from isthmus.mqtt.filters.overlap import common, overlap
from isthmus.mqtt.filters.topics import (
    MAX_TOPIC_BYTES,
    check_topic_filter,
    check_topic_name,
    matches,
)

__all__ = [
    "NO_RULES",
    "Crossing",
    "LinkRules",
    "check_filter",
    "check_prefix",
    "check_rules",
    "no_rules",
]

MAX_LEVELS: Final = 128
"""Of a filter on a link."""
MAX_FILTERS: Final = 64
"""In one direction."""
MAX_PREFIX_BYTES: Final = 256
MAX_RULES_BYTES: Final = 4_096
"""As text: all of it stands in the greeting."""
MAX_NAMES: Final = 65_536
"""How many names are remembered; then all are forgotten."""

_KEYS: Final = {"out": "out", "in": "into", "prefix": "prefix"}


@dataclass(frozen=True, slots=True)
class LinkRules:
    """What one end of a link has to say of it."""

    out: tuple[str, ...] | None = None
    into: tuple[str, ...] | None = None
    prefix: str = ""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return self.out is not None or self.into is not None or bool(self.prefix)

    def shown(self) -> dict[str, object]:
        """By the names of the configuration, what is set."""
        every = {key: getattr(self, name) for key, name in _KEYS.items()}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in every.items()
            if value is not None and value != ""
        }

    def text(self) -> str:
        """As it stands in a greeting."""
        return json.dumps(self.shown(), ensure_ascii=False, separators=(",", ":")) if self else ""

    @classmethod
    def parse(cls, text: str) -> LinkRules:
        """Read `text`; raises `ValueError` for what no end can mean."""
        if not text:
            return NO_RULES
        if len(text) > MAX_RULES_BYTES:
            raise ValueError(f"{len(text)} characters of rules")
        try:
            said: Any = json.loads(text)
        except RecursionError:
            raise ValueError("rules within rules") from None
        if not isinstance(said, dict) or not said.keys() <= _KEYS.keys():
            raise ValueError("rules that make no sense")
        prefix = said.get("prefix", "")
        lists = [said.get("out"), said.get("in")]
        for each in lists:
            if each is not None and not (
                isinstance(each, list) and all(isinstance(item, str) for item in each)
            ):
                raise ValueError("a list of filters that is none")
        if not isinstance(prefix, str):
            raise ValueError("a prefix that is no text")
        out, into = (None if each is None else tuple(each) for each in lists)
        rules = cls(out, into, prefix)
        check_rules(rules)
        return rules


NO_RULES: Final = LinkRules()


def check_filter(text: str) -> None:
    """`ValueError` unless `text` can say what crosses a link."""
    try:
        check_topic_filter(text, shared_subscriptions=False)
    except RemoteProtocolError as error:
        raise ValueError(error.problem) from None
    if text.startswith("$"):
        raise ValueError(f"{text[:80]!a}: what starts with $ stays with its broker")
    if text.count("/") >= MAX_LEVELS:
        raise ValueError(f"{text[:80]!a}: at most {MAX_LEVELS} levels are allowed")


def check_prefix(text: str) -> None:
    """`ValueError` unless `text` can be put before names."""
    try:
        check_topic_name(text)
    except RemoteProtocolError as error:
        raise ValueError(error.problem) from None
    if text.startswith("$"):
        raise ValueError(f"{text[:80]!a}: what starts with $ stays with its broker")
    if not text.endswith("/"):
        raise ValueError(f'{text[:80]!a} has to end with a slash: write "{text[:80]}/"')
    if len(text.encode()) > MAX_PREFIX_BYTES:
        raise ValueError(f"a prefix of more than {MAX_PREFIX_BYTES} bytes")
    if text.count("/") > MAX_LEVELS // 2:
        raise ValueError(f"a prefix of more than {MAX_LEVELS // 2} levels")


def check_rules(rules: LinkRules) -> None:
    """`ValueError` unless an end can have these."""
    for filters in (rules.out or (), rules.into or ()):
        if len(filters) > MAX_FILTERS:
            raise ValueError(f"{len(filters)} filters; at most {MAX_FILTERS} in one direction")
        for each in filters:
            check_filter(each)
    if rules.prefix:
        check_prefix(rules.prefix)
    if (size := len(rules.text().encode())) > MAX_RULES_BYTES:
        raise ValueError(
            f"the rules of a link take {size} bytes in its greeting; at most {MAX_RULES_BYTES}"
        )


def no_rules(algorithm: str) -> str:
    """Why links cannot have any."""
    return (
        f"algorithm {algorithm!r} knows no rules of what may cross a link (out, in, prefix): its "
        "messages may come over several ways, and would be others on each; use pf or sf"
    )


class Crossing:
    """What may cross a link, as one end sees it: in its own names.

    `leaves` and `comes` are of topic names, `asks` and `asked` of filters: those of what this end
    wants of the other, and those of what the other wants.  Wire names are the other end's if this
    one has a prefix, else its own.
    """

    __slots__ = ("_coming", "_leaving", "_put", "_required", "into", "out", "own", "theirs")

    def __init__(self, own: LinkRules, theirs: LinkRules) -> None:
        """Raises `ValueError` if both ends have a prefix."""
        self.check(own, theirs)
        self.own = own
        self.theirs = theirs
        self._put = own.prefix
        self._required = theirs.prefix
        self.out = _both(_plain(own.out), self._as_own(theirs.into))
        """Filters of what may leave; None: everything."""
        self.into = _both(_plain(own.into), self._as_own(theirs.out))
        self._leaving: dict[bytes, bytes | None] = {}
        self._coming: dict[bytes, bytes | None] = {}

    @staticmethod
    def check(own: LinkRules, theirs: LinkRules) -> None:
        """Raises `ValueError` if the two cannot go together."""
        if own.prefix and theirs.prefix:
            raise ValueError(
                f"both ends of the link set a prefix, {own.prefix[:80]!a} and "
                f"{theirs.prefix[:80]!a}; only one of them may"
            )

    @classmethod
    def of(cls, own: LinkRules, theirs: LinkRules) -> Crossing | None:
        """None if everything may cross, as it is."""
        return cls(own, theirs) if own or theirs else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Crossing):
            return NotImplemented
        return (self.own, self.theirs) == (other.own, other.theirs)

    def __hash__(self) -> int:
        return hash((self.own, self.theirs))

    def _as_own(self, filters: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """What the other end says, in this end's names."""
        if self._required:
            return tuple(
                self._required + normal_form(each)
                for each in (("#",) if filters is None else filters)
            )
        if not self._put or filters is None:
            return _plain(filters)
        found = (common(each, f"{self._put}#") for each in filters)
        rests = (_without(each, self._put) for each in found if each)
        return tuple(normal_form(rest) for rest in rests if rest and not rest.startswith("$"))

    # ---- names ----

    def leaves(self, topic: bytes) -> bytes | None:
        """The name on the wire of what is published on `topic` here; None: it may not leave."""
        try:
            return self._leaving[topic]
        except KeyError:
            return self._remember(self._leaving, topic, self._leaving_as(topic))

    def comes(self, topic: bytes) -> bytes | None:
        """The name here of what comes as `topic` on the wire; None: it should not have come."""
        try:
            return self._coming[topic]
        except KeyError:
            return self._remember(self._coming, topic, self._coming_as(topic))

    def comes_as(self, topic: bytes) -> bytes | None:
        """Under which name on the wire something would come that is called `topic` here."""
        name = self._put.encode() + topic
        return None if self.comes(name) is None else name

    @staticmethod
    def _remember(
        known: dict[bytes, bytes | None], topic: bytes, name: bytes | None
    ) -> bytes | None:
        if len(known) >= MAX_NAMES:
            known.clear()
        known[topic] = name
        return name

    def _leaving_as(self, topic: bytes) -> bytes | None:
        name = self._put.encode() + topic
        if len(name) > MAX_TOPIC_BYTES or not self._may(topic, self.out):
            return None
        return name

    def _coming_as(self, topic: bytes) -> bytes | None:
        put = self._put.encode()
        if not topic.startswith(put):
            return None
        own = topic[len(put) :]
        return own if self._may(own, self.into) else None

    def _may(self, topic: bytes, filters: tuple[str, ...] | None) -> bool:
        """Whether a name here has one at the other end, and `filters` match it."""
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return False
        there = name.removeprefix(self._required)
        if self._required and there == name:
            return False
        if not there or there.startswith("$") or name.startswith("$"):
            return False
        return filters is None or any(matches(each, name) for each in filters)

    # ---- filters ----

    def asks(self, topic_filter: str) -> tuple[str, ...]:
        """Wire filters of all that this end wants by `topic_filter` and may come."""
        found: dict[str, None] = {}
        for each in ("#",) if self.into is None else self.into:
            part = common(topic_filter, each)
            if part is None:
                continue
            rest = _without(part, self._required)
            if rest and not rest.startswith("$"):
                found[_shortened(self._put + self._required + normal_form(rest))] = None
        return tuple(found)

    def asked(self, wire_filter: str) -> str | None:
        """The filter here of what the other end wants; None if nothing of it may leave."""
        prefix = self._put or self._required
        rest = _without(wire_filter, prefix)
        if not rest or rest.startswith("$"):
            return None
        own = normal_form(rest) if self._put else wire_filter
        if self.out is not None and not any(overlap(own, each) for each in self.out):
            return None
        return own

    # ---- what people see ----

    @property
    def added_bytes(self) -> int:
        """By how much names are longer on the wire."""
        return len(self._put.encode())

    def differences(self) -> tuple[str, ...]:
        """Where both ends say something, and not the same; what crosses is what both allow."""
        told: list[str] = []
        for ours, theirs, what in (
            (self.own.out, self.theirs.into, "out"),
            (self.own.into, self.theirs.out, "in"),
        ):
            if ours is None or theirs is None:
                continue
            here, there = _plain(ours) or (), self._as_own(theirs) or ()
            if not (_all_in(here, there) and _all_in(there, here)):
                told.append(f"{what}: here {_listed(here)}, the other end {_listed(there)}")
        return tuple(told)

    def shown(self) -> dict[str, object]:
        """JSON-able, in this end's names."""
        return {
            "out": None if self.out is None else list(self.out),
            "in": None if self.into is None else list(self.into),
            "prefix": self._put,
            "prefix_there": self._required,
            "set_by": [
                end for end, rules in (("here", self.own), ("the other end", self.theirs)) if rules
            ],
            "differ": list(self.differences()),
        }


def _plain(filters: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if filters is None else tuple(map(normal_form, filters))


def _without(topic_filter: str, prefix: str) -> str:
    """The rest of a filter that begins with `prefix`; empty if it does not."""
    return topic_filter[len(prefix) :] if topic_filter.startswith(prefix) else ""


def _both(ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What filters of both have in common: the largest of them."""
    if ours is None or theirs is None:
        filters = ours if theirs is None else theirs
        if filters is None:
            return None
        parts: Iterable[str | None] = filters
    else:
        parts = (common(one, other) for one in ours for other in theirs)
    table = CoverTable()
    for part in parts:
        if part is not None:
            table.add(part)
    table.settle()
    return tuple(sorted(table.announced))


def _shortened(topic_filter: str) -> str:
    """One that is too long with its prefix: its beginning, which matches more."""
    levels = topic_filter.split("/")
    if len(levels) <= MAX_LEVELS and len(topic_filter.encode()) <= MAX_TOPIC_BYTES:
        return topic_filter
    shorter = levels[: MAX_LEVELS - 1]
    while len("/".join(shorter).encode()) + 2 > MAX_TOPIC_BYTES:
        shorter.pop()
    return "/".join((*shorter, "#"))


def _all_in(some: Sequence[str], others: Sequence[str]) -> bool:
    return all(any(covers(other, each) for other in others) for each in some)


def _listed(filters: Sequence[str]) -> str:
    shown = ", ".join(ascii(each) for each in filters[:8])
    return f"[{shown}{', …' if len(filters) > 8 else ''}]"
