"""Messages that have been here, whoever brought them: where nobody knows the ways.

Where the links form a tree, a neighbor's word for a message's number counts only if it is on the
way to the origin (`seen`).  In a mesh a message may come from anywhere.  So that nobody can make
others discard messages of a node by using up its numbers, a number is remembered with what the
message said: the same number with the same topic and payload is a repetition, with others it is
not.

Numbers of one origin are dense, and kept in blocks.  A block counts for the neighbor that was the
first to bring one of its numbers; with more than `MAX_BLOCKS` the oldest one of the neighbor that
has the most is forgotten, so who invents numbers makes his own memory short before that of others.
"""

from __future__ import annotations

from array import array

from isthmus.exchange.traffic.seen import Novelty

__all__ = ["SeenAnywhere"]

BLOCK_BITS = 7
BLOCK_NUMBERS = 1 << BLOCK_BITS
MAX_BLOCKS = 32_768
"""About 40 MB, and four million numbers."""

_Key = tuple[str, str, bytes, int]
"""Origin, its incarnation, label, and which `BLOCK_NUMBERS` of its numbers."""
_EMPTY = array("Q", bytes(8 * BLOCK_NUMBERS))
_MASK = (1 << 64) - 1


class SeenAnywhere:
    """What has been here."""

    def __init__(self, node_id: str, incarnation: str) -> None:
        self._own = (node_id, incarnation)
        self._blocks: dict[_Key, array[int]] = {}
        self._brought: dict[str, dict[_Key, None]] = {}
        """By the neighbor that they count for, the oldest first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def take(
        self,
        origin: str,
        number: str,
        neighbor: str,
        content: tuple[bytes, bytes],
        label: bytes = b"",
    ) -> Novelty:
        """Judge what `neighbor` brings; it is remembered if it is new.

        `number` is ``<incarnation>.<hexadecimal count>``, `content` topic and payload.
        """
        incarnation, _, count = number.partition(".")
        return self.take_count(origin, incarnation, int(count, 16), neighbor, content, label)

    def take_count(  # noqa: PLR0917 - of the hot path, where keywords cost time
        self,
        origin: str,
        incarnation: str,
        count: int,
        neighbor: str,
        content: tuple[bytes, bytes],
        label: bytes = b"",
    ) -> Novelty:
        """`take` of a number that was taken apart before."""
        if not label and (origin, incarnation) == self._own:
            return Novelty.REPEATED  # of our own we know that they were here
        key = (origin, incarnation, label, count >> BLOCK_BITS)
        block = self._blocks.get(key)
        if block is None:
            block = self._begin(key, neighbor)
        slot, said = count & (BLOCK_NUMBERS - 1), hash(content) & _MASK or 1
        if block[slot] == said:
            return Novelty.REPEATED
        # Of two that say different things under one number, the latter is remembered: who comes
        # first with a number that is not his own does not keep the other's from being known.
        block[slot] = said
        return Novelty.NEW

    def _begin(self, key: _Key, neighbor: str) -> array[int]:
        if len(self._blocks) >= MAX_BLOCKS:
            most = max(self._brought.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            del self._blocks[oldest]
        block = self._blocks[key] = _EMPTY[:]
        self._brought.setdefault(neighbor, {})[key] = None
        return block

    def look(self) -> None:
        """Whatever the topology is: nothing follows from it."""

    def joined(self, neighbor: str) -> None:
        """It may have been a neighbor before."""

    def left(self, neighbor: str) -> None:
        """What it brought may be brought again by others."""
