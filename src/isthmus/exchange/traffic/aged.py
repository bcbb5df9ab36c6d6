"""A bounded memory of what is asked for again and again: it ages, and is never emptied at once.

    keep ──▶ young (the dictionary itself) ──full──▶ old ──young is full again──▶ leaving
                  ▲─────────────── recall ────────────┘

What is in use comes back from the old generation to the young one; what is not leaves with the old
one.  So with more keys in use than there is room for, those that are used most stay, and a miss
costs one more look, and nothing is thrown away at a stroke.  What leaves is freed as new comes,
a few at a time, because to free a hundred thousand objects takes as long as many messages do.

Sizes are told by who keeps, since only he knows what a value takes.  Room is for `most_bytes` in
both generations together; as much again may be leaving.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

__all__ = ["ENTRY_BYTES", "Aged"]

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES: Final = 160
"""What an entry takes besides the bytes of its key: the dictionary's place and the key's object."""
_FREED: Final = 8
"""So many of what leaves are freed for each that comes; it all came one by one."""
_GENERATIONS: Final = 2


class Aged(dict[K, V]):
    """The young generation, which is looked up as any dictionary."""

    __slots__ = ("_bytes", "_leaving", "_old", "most_bytes")

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self.most_bytes = most_bytes
        self._bytes = 0
        """Of the young generation; what was removed from it counts until it is old."""
        self._old: dict[K, V] = {}
        self._leaving: list[dict[K, V]] = []

    @property
    def total(self) -> int:
        """How many are remembered."""
        return len(self) + len(self._old)

    def every_key(self) -> Iterator[K]:
        yield from self
        yield from self._old

    def keep(self, key: K, value: V, size: int) -> None:
        """Remember it; `size` is what key and value take in memory, in bytes."""
        self._free_some()
        if self._bytes + size > self.most_bytes // _GENERATIONS and self:
            self._leave(self._old)
            self._old = dict(self)
            self.clear()
            self._bytes = 0
        self._bytes += size
        self[key] = value

    def recall(self, key: K, size: int) -> V | None:
        """What is known of a key that is not in the young generation; it is now."""
        value = self._old.pop(key, None)
        if value is not None:
            self.keep(key, value, size)
        return value

    def remove(self, key: K) -> None:
        self.pop(key, None)
        self._old.pop(key, None)

    def forget(self) -> None:
        """All of it."""
        if self:
            self._leave(dict(self))
            self.clear()
        self._leave(self._old)
        self._old = {}
        self._bytes = 0

    def _leave(self, entries: dict[K, V]) -> None:
        if entries:
            self._leaving.append(entries)
            # Rare: the first has not been freed although as much came since, of longer keys.
            del self._leaving[:-_GENERATIONS]

    def _free_some(self) -> None:
        if self._leaving:
            first = self._leaving[0]
            for _ in range(min(_FREED, len(first))):
                first.popitem()
            if not first:
                del self._leaving[0]
