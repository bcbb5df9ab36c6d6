"""The lines between nodes, without any I/O: how far apart two nodes are, and how broad the way is.

    lane 1 ──DelayLine──╮
    lane 2 ──DelayLine──┼── Line: one direction between two nodes ──▶
    lane 3 ──DelayLine──╯

A :class:`Line` is what all connections between two nodes share in one direction.  A
:class:`DelayLine` holds the bytes of one connection that are under way on it.

Invariants:

* a byte leaves no earlier than `delay_s` after it came, and of one connection no byte before the
  one that came before it;
* n bytes of a line, of whichever of its connections, take at least n / `bytes_per_s`: they pass in
  the order in which they came;
* a connection whose receiver does not read keeps what it has and takes nothing from the others;
* an end of file travels like a byte;
* of a line that is cut nothing leaves.  What is on it, and what comes meanwhile, leaves when it is
  whole again, at once as far as it is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["DelayLine", "Line", "Lines", "Shape", "Shapes"]

NS = 1_000_000_000
QUEUED_S = 0.1  # what a narrow line keeps besides what is under way
LEAST_QUEUE_BYTES = 64 * 1024
MOST_QUEUE_BYTES = 16 * 1024 * 1024
PIECE_NS = 1_000_000  # of a narrow line's bytes, as many as pass in this time leave at once


@dataclass(frozen=True, slots=True)
class Shape:
    """What a line does to bytes, in one direction."""

    delay_s: float = 0.0
    bytes_per_s: int | None = None

    @property
    def queue_bytes(self) -> int:
        """How much may be under way or wait, of one connection."""
        if self.bytes_per_s is None:
            return MOST_QUEUE_BYTES
        under_way = int(self.bytes_per_s * (self.delay_s + QUEUED_S))
        return min(max(under_way, LEAST_QUEUE_BYTES), MOST_QUEUE_BYTES)

    def passing_ns(self, count: int) -> int:
        """How long `count` bytes take to get onto the line."""
        if self.bytes_per_s is None:
            return 0
        return -(-count * NS // self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of all lines between some nodes."""

    default: Shape = Shape()
    between: Mapping[tuple[str, str], Shape] = field(default_factory=dict)
    """Of the lines that differ: from one node to another."""

    @property
    def plain(self) -> bool:
        """Whether no line does anything to bytes."""
        return all(shape == Shape() for shape in (self.default, *self.between.values()))


class Line:
    """One direction between two nodes, which all their connections share."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.cuts = 0
        """How many cuts keep it back now."""
        self.waiting: set[Callable[[], None]] = set()
        """What to call when it is whole again, once each."""
        self._free_ns = 0  # when it has taken in all that came
        waiting = LEAST_QUEUE_BYTES
        if shape.bytes_per_s is not None:
            waiting = max(waiting, int(shape.bytes_per_s * QUEUED_S))
        self._patience_ns = shape.passing_ns(waiting)

    def enter(self, now_ns: int, count: int) -> int:
        """`count` bytes come behind those that wait; when the first of them gets onto the line."""
        begin_ns = max(now_ns, self._free_ns)
        self._free_ns = begin_ns + self.shape.passing_ns(count)
        return begin_ns

    @property
    def room_ns(self) -> int:
        """From when on not too much waits for it any more."""
        return self._free_ns - self._patience_ns


class Lines:
    """The lines between `nodes`, made when they are first asked for."""

    def __init__(self, shapes: Shapes, nodes: Collection[str]) -> None:
        self._shapes = shapes
        self._nodes = frozenset(nodes)
        self._lines: dict[tuple[str, str], Line] = {}

    def between(self, caller: str, node: str) -> tuple[Line, Line]:
        """From `caller` to `node`, and back.

        Who is none of the nodes has a line of the default shape to itself.
        """
        if caller not in self._nodes:
            return Line(self._shapes.default), Line(self._shapes.default)
        return self._line(caller, node), self._line(node, caller)

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """From now on nothing passes from one node to another, for each of `ways`."""
        for source, target in ways:
            self._line(source, target).cuts += 1

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        """One cut less of each of `ways`."""
        for source, target in ways:
            line = self._line(source, target)
            line.cuts -= 1
            if not line.cuts:
                waiting, line.waiting = line.waiting, set()
                for come_back in waiting:
                    come_back()

    def _line(self, source: str, target: str) -> Line:
        found = self._lines.get((source, target))
        if found is None:
            shape = self._shapes.between.get((source, target), self._shapes.default)
            found = self._lines[source, target] = Line(shape)
        return found


@dataclass(slots=True)
class _Stretch:
    """Bytes that came together; none: the end of file."""

    begin_ns: int
    """When the first of them gets onto the line."""
    data: memoryview
    gone: int = 0


class DelayLine:
    """Bytes of one connection under way on `line`.

    `push` puts them in, `take` lets out those that are due.
    """

    def __init__(self, line: Line) -> None:
        self.queued_bytes = 0
        self.ended = False
        """Whether the end of file has come out."""
        self._line = line
        self._delay_ns = round(line.shape.delay_s * NS)
        self._bytes_per_s = line.shape.bytes_per_s
        self._limit_bytes = line.shape.queue_bytes
        self._stretches: deque[_Stretch] = deque()

    def push(self, now_ns: int, data: bytes) -> None:
        """Bytes come in; none of them are the end of file."""
        begin_ns = self._line.enter(now_ns, len(data))
        self._stretches.append(_Stretch(begin_ns, memoryview(data)))
        self.queued_bytes += len(data)

    def take(self, now_ns: int) -> memoryview | None:
        """The next bytes that are due; None if there are none now."""
        if not self._stretches:
            return None
        head = self._stretches[0]
        since_ns = now_ns - self._delay_ns - head.begin_ns
        if since_ns < 0:
            return None
        due = len(head.data)
        if self._bytes_per_s is not None:
            due = min(due, since_ns * self._bytes_per_s // NS)
        if due == len(head.data):
            self._stretches.popleft()
            self.ended = due == 0
        data = head.data[head.gone : due]
        head.gone = due
        self.queued_bytes -= len(data)
        return data or None

    def has_room(self, now_ns: int) -> bool:
        """Whether more should be pushed: not too much of this connection is there, or of all.

        With nothing of its own there it may always push once, so that connections take turns.
        """
        if self.queued_bytes > self._limit_bytes:
            return False
        return self.queued_bytes == 0 or self._line.room_ns <= now_ns

    def next_ns(self) -> int | None:
        """When it is worth taking again; None: when something has come in."""
        if not self._stretches:
            return None
        head = self._stretches[0]
        wanted = len(head.data)
        if self._bytes_per_s is not None:
            piece = max(1, self._bytes_per_s * PIECE_NS // NS)
            wanted = min(wanted, head.gone + piece)
        return head.begin_ns + self._delay_ns + self._line.shape.passing_ns(wanted)
