"""Retained messages that go only where somebody wants them (``[cooperation] retained = "routed"``).

A retained message then goes the way of any other one, and who comes to want it later gets it then:
when a filter reaches a node for the first time, from a neighbor or from local clients, all that the
node has of it follows.  Exact topics are looked up; for wildcards the store is gone through, once
for all filters that have come by then, `SLICE` topics in a turn.

A node keeps what its own clients published and what somebody wanted on the way through it.  Of the
latter it gives its broker only what local clients want; the rest is *owed* to it until they do, and
forgotten when nobody wants it any more (`forget_unwanted`): who published it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from isthmus.cooperation.api import SessionInfo
from isthmus.exchange.host import Host
from isthmus.exchange.retained.store import RetainedStore
from isthmus.mqtt.filters.covering_set import Steps
from isthmus.mqtt.filters.index import FilterIndex

__all__ = ["RetainedWants", "Wanting", "forget_unwanted"]

SLICE: Final = 100
MOST_STEPS: Final = 200
"""For a topic: with filters that are made to be hard, it counts as wanted."""
_OVER: Final = object()


class RetainedWants(Protocol):
    """What the algorithm knows."""

    def wants(self, session: SessionInfo | None, topic: str) -> bool:
        """Whether a neighbor, or with None a local client, wants what is on `topic`."""
        ...

    def asks(self, session: SessionInfo, topic: str) -> bool:
        """Whether this node has asked that neighbor for it."""
        ...


class Wanting:
    """Who has come to want what, and has not been given it yet."""

    def __init__(
        self,
        host: Host,
        store: RetainedStore,
        give: Callable[[SessionInfo | None, bytes], None],
    ) -> None:
        """`give` is called for who wants it, None for local clients, and what is in the store."""
        self._host = host
        self._store = store
        self._give = give
        self._next: FilterIndex[SessionInfo | None] = FilterIndex()
        self._everybody: dict[SessionInfo | None, None] = {}
        self._pass: Iterator[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def begin(self, session: SessionInfo | None, filters: Iterable[str]) -> None:
        """A neighbor, or local clients, want `filters` from now on."""
        for each in filters:
            if "+" in each or each.endswith("#"):
                self._next.add(each, session)
                self._everybody[session] = None
            elif self._store.version(each.encode()) is not None:
                self._give(session, each.encode())
        if self._everybody and self._pass is None:
            self._pass = self._go_through()
            self._host.call_later(0.0, self._go_on)

    def _go_on(self) -> None:
        if self._pass is None or self._stopped:
            return
        if next(self._pass, _OVER) is _OVER:
            self._pass = self._go_through() if self._everybody else None
        if self._pass is not None:
            self._host.call_later(0.0, self._go_on)

    def _go_through(self) -> Iterator[None]:
        index, self._next = self._next, FilterIndex()
        everybody, self._everybody = self._everybody, {}
        for topics in _slices(self._store):
            for topic in topics:
                matched = index.match_within(topic.decode(), Steps(MOST_STEPS))
                for session in everybody if matched is None else matched:
                    self._give(session, topic)
            yield


def forget_unwanted(
    store: RetainedStore, origin: str, is_wanted: Callable[[str], bool]
) -> Iterator[None]:
    """Go through the store: what others published and nobody wants is forgotten."""
    for topics in _slices(store):
        for topic in topics:
            version = store.version(topic)
            if version is not None and version.origin != origin and not is_wanted(topic.decode()):
                store.forget(topic)
        yield


def _slices(store: RetainedStore) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    for branch in range(256):
        for leaf in store.leaf_digests(branch):
            for topic in store.leaf_topics(leaf):
                some.append(topic)
                if len(some) == SLICE:
                    yield some
                    some = []
    yield some
