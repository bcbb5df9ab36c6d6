"""What of a store is compared with one neighbor, if not all of it, or not under the same names.

A *view* has the part of a store of which a function says what it is called on the link.  It is made
by going through the store once (`look`), in slices, before a comparison; what changes afterwards is
not in it.  That does no harm: a new message goes to the neighbor by itself, and a statement that is
out of date makes a neighbor send only what then is found not to be newer (`RetainedSync`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

from isthmus.exchange.retained.store import SORTED_FROM, RetainedStore
from isthmus.exchange.retained.values import Retained, Version, leaf_of, topic_digest

__all__ = ["Named", "RetainedTopics", "RetainedView", "look"]

SLICE: Final = 100
"""Topics that are looked at in a turn."""

Named = Callable[[bytes], bytes | None]
"""What a topic of this node is called on the link; None if it has nothing to do with it."""


class RetainedTopics(Protocol):
    """What is compared: a store, or a view of it."""

    def branch_digests(self) -> tuple[int, ...]: ...

    def leaf_digests(self, branch: int) -> dict[int, int]: ...

    def leaf_topics(self, leaf: int) -> list[bytes]: ...

    def leaf_versions(
        self, leaf: int, after: bytes = b"", up_to: bytes | None = None
    ) -> Iterator[tuple[bytes, Version]]: ...

    def get(self, topic: bytes, now_ms: int) -> Retained | None: ...

    def add(self, topic: bytes) -> bytes | None:
        """What a topic of this node is called there; None if it has nothing to do with it."""
        ...


class RetainedView:
    """A part of a store, with the names of the link; leaves and branches are by these."""

    def __init__(self, store: RetainedStore, name: Named) -> None:
        self._store = store
        self.name = name
        self._leaves: dict[int, dict[bytes, bytes]] = {}
        """By leaf: the names there, and here."""
        self._in_order: dict[int, list[bytes]] = {}
        """The names of large leaves; others are put in order when asked for."""
        self._leaf_digests: dict[int, int] = {}
        self._branch_digests = [0] * 256

    def note(self, topic: bytes) -> None:
        """`topic` is in the store: it is part of the view if it has a name there."""
        name = self.name(topic)
        version = None if name is None else self._store.version(topic)
        if name is None or version is None:
            return
        leaf, digest = leaf_of(name), topic_digest(name, version)
        self._put(leaf, name, topic)
        self._leaf_digests[leaf] = self._leaf_digests.get(leaf, 0) ^ digest
        self._branch_digests[leaf >> 8] ^= digest

    def _put(self, leaf: int, name: bytes, topic: bytes) -> None:
        names = self._leaves.setdefault(leaf, {})
        if name in names:
            return
        names[name] = topic
        in_order = self._in_order.get(leaf)
        if in_order is not None:
            insort(in_order, name)
        elif len(names) > SORTED_FROM:
            self._in_order[leaf] = sorted(names)

    def branch_digests(self) -> tuple[int, ...]:
        return tuple(self._branch_digests)

    def leaf_digests(self, branch: int) -> dict[int, int]:
        found = self._leaf_digests
        indices = range(branch << 8, (branch + 1) << 8)
        return {index: found[index] for index in indices if index in found}

    def leaf_topics(self, leaf: int) -> list[bytes]:
        return list(self._leaves.get(leaf, ()))

    def leaf_versions(
        self, leaf: int, after: bytes = b"", up_to: bytes | None = None
    ) -> Iterator[tuple[bytes, Version]]:
        topics = self._leaves.get(leaf, {})
        in_order = self._in_order.get(leaf)
        if in_order is None:
            in_order = sorted(topics)
        stop = len(in_order) if up_to is None else bisect_right(in_order, up_to)
        for place in range(bisect_right(in_order, after), stop):
            name = in_order[place]
            version = self._store.version(topics[name])
            if version is not None:
                yield name, version

    def get(self, topic: bytes, now_ms: int) -> Retained | None:
        own = self._leaves.get(leaf_of(topic), {}).get(topic)
        retained = None if own is None else self._store.get(own, now_ms)
        return None if retained is None else replace(retained, topic=topic)

    def add(self, topic: bytes) -> bytes | None:
        """What `topic` is called there, if it is part of the view; it may have come since."""
        name = self.name(topic)
        if name is not None:
            self._put(leaf_of(name), name, topic)
        return name


def look(store: RetainedStore, views: tuple[RetainedView, ...]) -> Iterator[None]:
    """Go through the store once, with a pause after each `SLICE`."""
    left = SLICE
    for branch in range(256):
        for leaf in store.leaf_digests(branch):
            for topic in store.leaf_topics(leaf):
                for view in views:
                    view.note(topic)
                left -= 1
                if not left:
                    left = SLICE
                    yield
