"""Messages that have been here, whoever brought them: where nobody knows the ways.

Where the links form a tree, a neighbor's word for a message's number counts only if it is on the
way to the origin (`seen`).  In a mesh a message may come from anywhere.  So that nobody can make
others discard messages of a node by using up its numbers, a number is remembered with what the
message said: the same number with the same content is a repetition, with another it is not.  Of a
number the first content is kept with the number; others, which nobody honest has, are *disputed*,
and remembered for the neighbor that brought them, `MAX_DISPUTED` of each.

Numbers of one origin are dense, and kept in blocks, for each label by themselves.  A block counts
for the neighbor that was the first to bring one of its numbers; with more than `MAX_BLOCKS` the
oldest one of the neighbor that has the most is forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable

from isthmus.exchange.traffic.seen import Novelty, Seen

__all__ = ["SeenAnywhere"]

BLOCK_BITS = 7
BLOCK_NUMBERS = 1 << BLOCK_BITS
MAX_BLOCKS = 32_768
"""About 40 MB, and four million numbers if there are no labels."""
MAX_DISPUTED = 4_096

_Key = tuple[str, str, bytes, int]
"""Origin, its incarnation, label, and which `BLOCK_NUMBERS` of its numbers."""
_Dispute = tuple[_Key, int, int]
"""Block, place in it, and what was said."""
_EMPTY = array("Q", bytes(8 * BLOCK_NUMBERS))
_MASK = (1 << 64) - 1


class SeenAnywhere(Seen):
    """What has been here."""

    def __init__(self, node_id: str, incarnation: str) -> None:
        self._own = (node_id, incarnation)
        self._blocks: dict[_Key, array[int]] = {}
        self._disputed: dict[_Dispute, None] = {}
        self._disputes: dict[str, dict[_Dispute, None]] = {}
        """By who has brought them, the oldest first."""
        self._brought: dict[str, dict[_Key, None]] = {}
        """By the neighbor that they count for, the oldest first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def take_count(  # noqa: PLR0917 - of the hot path, where keywords cost time
        self,
        origin: str,
        incarnation: str,
        count: int,
        neighbor: str,
        content: Hashable,
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
        if not block[slot]:
            block[slot] = said
            return Novelty.NEW
        return self._dispute(neighbor, (key, slot, said))

    def has(self, origin: str, number: str, content: Hashable, label: bytes) -> bool:
        """Whether `take` would find it repeated."""
        incarnation, _, count = number.partition(".")
        place = int(count, 16)
        key = (origin, incarnation, label, place >> BLOCK_BITS)
        block = self._blocks.get(key)
        slot, said = place & (BLOCK_NUMBERS - 1), hash(content) & _MASK or 1
        return block is not None and (block[slot] == said or (key, slot, said) in self._disputed)

    def _dispute(self, neighbor: str, dispute: _Dispute) -> Novelty:
        """Something else was said under that number before."""
        if dispute in self._disputed:
            return Novelty.REPEATED
        mine = self._disputes.setdefault(neighbor, {})
        mine[dispute] = self._disputed[dispute] = None
        if len(mine) > MAX_DISPUTED:
            oldest = next(iter(mine))
            del mine[oldest], self._disputed[oldest]
        return Novelty.NEW

    def _begin(self, key: _Key, neighbor: str) -> array[int]:
        if len(self._blocks) >= MAX_BLOCKS:
            who = max(self._brought, key=lambda name: len(self._brought[name]))
            oldest = next(iter(self._brought[who]))
            del self._brought[who][oldest]
            del self._blocks[oldest]
            if not self._brought[who]:
                del self._brought[who]
        block = self._blocks[key] = _EMPTY[:]
        self._brought.setdefault(neighbor, {})[key] = None
        return block

    def look(self) -> None:
        """Whatever the topology is: nothing follows from it."""

    def joined(self, neighbor: str) -> None:
        """It may have been a neighbor before."""

    def left(self, neighbor: str) -> None:
        """What it brought may be brought again by others; not what is disputed."""
        for dispute in self._disputes.pop(neighbor, ()):
            del self._disputed[dispute]
