"""Messages at QoS 1 and 2 that have passed this node already, and who may bring them.

Links suppress repetitions on one way (`lane`).  When the tree changes under load, or a node in
between crashes, a message can come again on another way or in another life of the neighbor.  So
the node where it enters, its *origin*, numbers it, and every node takes each number only once.

A neighbor could make others discard messages of a node that it has nothing to do with, by using up
that node's numbers.  Therefore numbers are believed from those only that are *on the way* to the
origin, now or `recent_s` ago, as the topology guard has it:

    origin known,   neighbor on the way      taken; remembered for that neighbor
    origin known,   neighbor not on the way  doubtful: not taken, not passed on, not remembered
    origin unknown  (cut off or not yet heard of; its messages may still be under way)
                                             taken; remembered with what it says: the same number
                                             with the same topic and payload is a repetition
                                             from whomever it comes, with others it is not

Who is on the way can do what it likes, since all that comes from the origin passes there; but what
it brought counts no longer when it has not been on the way for `recent_s`.

Bounded: every neighbor has its own memory of `MAX_BLOCKS` times `BLOCK_NUMBERS` numbers, and of
`MAX_EARLY` of unknown origins; those that were not used for longest are forgotten, and who invents
nodes and numbers makes only his own short.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from enum import Enum
from typing import Protocol

__all__ = ["Novelty", "Seen", "SeenMessages", "Ways"]

BLOCK_NUMBERS = 1_024
MAX_BLOCKS = 8_192
MAX_EARLY = 32_768
MAX_RECENT = 16_384
"""Of how many origins the ways of the past are known."""

_Key = tuple[str, str, bytes, int]
"""Origin, its incarnation, label, and which `BLOCK_NUMBERS` of its numbers, or which number."""


class Novelty(Enum):
    NEW = "new"
    REPEATED = "repeated"
    DOUBTFUL = "doubtful"


class Ways(Protocol):
    """What the topology guard knows."""

    def ways(self) -> Mapping[str, frozenset[str]]:
        """The neighbors on the way to each node, as of now."""
        ...

    def ways_gone(self) -> Mapping[str, Collection[str]]:
        """Nodes, and neighbors that are no longer on the way to them since this was last asked."""
        ...


class _Numbers:
    """A set of numbers; a bit for each."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[_Key, int] = {}

    def has(self, key: _Key, bit: int) -> bool:
        return bool(self._blocks.get(key, 0) & bit)

    def add(self, key: _Key, bit: int) -> bool:
        """Whether it was not there."""
        bits = self._blocks.pop(key, 0)
        self._blocks[key] = bits | bit
        if len(self._blocks) > MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return not bits & bit

    def __len__(self) -> int:
        return len(self._blocks)


class Seen:
    """What has been here; in a tree, or anywhere."""

    def take(
        self,
        origin: str,
        number: str,
        neighbor: str,
        content: Hashable,
        label: bytes = b"",
    ) -> Novelty:
        """Judge what `neighbor` brings; it is remembered if it is new.

        `number` is ``<incarnation>.<hexadecimal count>``, `content` all that the publisher said.
        With another label it is another message.
        """
        incarnation, _, count = number.partition(".")
        return self.take_count(origin, incarnation, int(count, 16), neighbor, content, label)

    @abstractmethod
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
        ...


class SeenMessages(Seen):
    """What each neighbor has brought."""

    def __init__(
        self,
        node_id: str,
        incarnation: str,
        ways: Ways,
        *,
        now: Callable[[], float],
        recent_s: float,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._guard = ways
        self._now = now
        self._recent_s = recent_s
        self._recent: dict[str, dict[str, float]] = {}
        """Of an origin, the neighbors that were on the way to it, and until when they count."""
        self._brought: dict[str, _Numbers] = {}
        self._early: dict[str, dict[_Key, int]] = {}
        """Of origins that were not known at the time: neighbor → message → content."""
        self._left: dict[str, float] = {}
        """Neighbors that have gone, and when they are forgotten."""

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
        if not label and origin == self._node_id and incarnation == self._incarnation:
            return Novelty.REPEATED  # of our own we know that they were here
        block, offset = divmod(count, BLOCK_NUMBERS)
        key, bit = (origin, incarnation, label, block), 1 << offset
        self.look()
        ways = self._guard.ways().get(origin)
        trusted = self._trusted(origin, ways or frozenset())
        if neighbor not in trusted and ways is not None:
            return Novelty.DOUBTFUL
        for name in trusted:
            if name != neighbor and (brought := self._brought.get(name)) and brought.has(key, bit):
                return Novelty.REPEATED
        if self._early or ways is None:
            early = (origin, incarnation, label, count)
            if any(early in each and each[early] == hash(content) for each in self._early.values()):
                return Novelty.REPEATED
            if neighbor not in trusted:
                brought_early = self._early.setdefault(neighbor, {})
                brought_early[early] = hash(content)
                if len(brought_early) > MAX_EARLY:
                    del brought_early[next(iter(brought_early))]
                return Novelty.NEW
        brought = self._brought.get(neighbor)
        if brought is None:
            brought = self._brought[neighbor] = _Numbers()
        return Novelty.NEW if brought.add(key, bit) else Novelty.REPEATED

    def _trusted(self, origin: str, ways: frozenset[str]) -> frozenset[str]:
        recent = self._recent.get(origin)
        if recent is None:
            return ways
        now_s = self._now()
        return ways | {name for name, until_s in recent.items() if until_s >= now_s}

    def look(self) -> None:
        """Whether the topology has changed, and what that means; the more often, the better."""
        gone = self._guard.ways_gone()
        if not gone:
            return
        until_s = self._now() + self._recent_s
        for origin, neighbors in gone.items():
            recent = self._recent.pop(origin, {})
            recent.update(dict.fromkeys(neighbors, until_s))
            self._recent[origin] = recent
        while len(self._recent) > MAX_RECENT:
            del self._recent[next(iter(self._recent))]

    # ---- neighbors -----------------------------------------------------------------------

    def joined(self, neighbor: str) -> None:
        self._left.pop(neighbor, None)

    def left(self, neighbor: str) -> None:
        """What it brought is of use for a while: it may be brought again on another way."""
        now_s = self._now()
        self._left[neighbor] = now_s + self._recent_s
        for name in [name for name, until_s in self._left.items() if until_s < now_s]:
            del self._left[name]
            self._brought.pop(name, None)
            self._early.pop(name, None)
        for origin, recent in list(self._recent.items()):
            for name in [name for name, until_s in recent.items() if until_s < now_s]:
                del recent[name]
            if not recent:
                del self._recent[origin]
