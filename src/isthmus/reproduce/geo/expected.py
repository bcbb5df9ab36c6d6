"""What each system must count, derived from the workload and the shape of the fabric alone.

Nothing here knows the code that is measured: it is the path of each message and of each change over
a graph, by what the systems are said to do.

* *Broadcast* (PF): a message crosses every link of the tree once.
* *Interest on a tree* (SF): a message crosses the links on the way to cells that listen.  A cell
  that begins to listen is told over every link, away from it, behind which (seen from there) nobody
  else listened: all of them if nobody does, else those that its ways to all who listen have in
  common.  One that ends is told over the same links.
* *Interest, one hop*: a change goes to the broker of the topic's cell if nobody else of the cell
  listens to that topic, and a message from there to each cell that listens.
* *Gateway*: the broker of a topic's cell gets its messages and changes, and delivers to all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from isthmus.reproduce.geo.model import Rates
from isthmus.reproduce.geo.workload import Publication, Topic, Workload

__all__ = ["Counts", "Fabric", "Shape", "Way", "expected", "mean_rates", "parents"]

Way = Literal["broadcast", "interest-tree", "interest-one-hop", "gateway"]
Shape = Literal["star", "z-tree"]
"""All linked with cell 0, or each with the cell whose last digit other than 0 is 0 instead."""


@dataclass(slots=True)
class Counts:
    """Of one broker, within the window."""

    received_publish: int = 0
    received_subscribe: int = 0
    transmitted_publish: int = 0
    transmitted_subscribe: int = 0


def mean_rates(counts: Sequence[Counts], window_s: float) -> Rates:
    """Of the average broker, in a second."""
    shares = len(counts) * window_s
    return Rates(
        sum(each.received_publish for each in counts) / shares,
        sum(each.received_subscribe for each in counts) / shares,
        sum(each.transmitted_publish for each in counts) / shares,
        sum(each.transmitted_subscribe for each in counts) / shares,
    )


def parents(k: int, shape: Shape) -> list[int]:
    """The cell that each is linked with; cell 0 with itself, that is with none."""
    if shape == "star":
        return [0] * 4**k

    def parent(cell: int) -> int:
        digit = 0
        while digit < k and not cell >> 2 * digit & 3:
            digit += 1
        return cell & ~(3 << 2 * digit) if digit < k else 0

    return [parent(cell) for cell in range(4**k)]


class Fabric:
    """A tree of cells, as `parents` has it."""

    def __init__(self, parent: Sequence[int]) -> None:
        self._up = [self._to_root(parent, cell) for cell in range(len(parent))]
        self.neighbors: list[list[int]] = [[] for _ in parent]
        for cell, above in enumerate(parent):
            if cell != above:
                self.neighbors[cell].append(above)
                self.neighbors[above].append(cell)

    @staticmethod
    def _to_root(parent: Sequence[int], cell: int) -> list[int]:
        way = [cell]
        while parent[way[-1]] != way[-1]:
            way.append(parent[way[-1]])
        return way

    def way(self, source: int, target: int) -> list[tuple[int, int]]:
        """The links from one cell to another, each in the direction of the way."""
        up, down = list(self._up[source]), list(self._up[target])
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        cells = up + down[-2::-1]
        return list(pairwise(cells))

    def away(self, source: int) -> list[tuple[int, int]]:
        """All links, each away from `source`."""
        found, reached = [], [(source, source)]
        for cell, before in reached:
            for other in self.neighbors[cell]:
                if other != before:
                    found.append((cell, other))
                    reached.append((other, cell))
        return found


class _Walk:
    """Goes through the steps of a workload and counts."""

    def __init__(self, workload: Workload, fabric: Fabric) -> None:
        self.counts = [Counts() for _ in range(workload.of.areas)]
        self.fabric = fabric
        self._workload = workload
        self._listening: dict[Topic, Counter[int]] = {}
        for listener in workload.listeners:
            self._cells(listener.before)[listener.cell] += 1

    def _cells(self, topic: Topic) -> Counter[int]:
        """Who listens: how many of which cells."""
        return self._listening.setdefault(topic, Counter())

    def go(
        self,
        publish: Callable[[_Walk, Topic, Mapping[int, int]], None],
        subscribe: Callable[[_Walk, int, Topic, Mapping[int, int]], None],
    ) -> list[Counts]:
        for step in self._workload.steps():
            if isinstance(step, Publication):
                publish(self, step.topic, +self._cells(step.topic))
                continue
            listener = step.listener
            self._cells(listener.before)[listener.cell] -= 1
            subscribe(self, listener.cell, listener.after, +self._cells(listener.after))
            self._cells(listener.after)[listener.cell] += 1
        return self.counts

    # ---- what may happen -------------------------------------------------------------------

    def from_publisher(self, cell: int) -> None:
        self.counts[cell].received_publish += 1

    def from_listener(self, cell: int) -> None:
        self.counts[cell].received_subscribe += 1

    def deliver(self, cell: int, listeners: int) -> None:
        self.counts[cell].transmitted_publish += listeners

    def carry(self, source: int, target: int) -> None:
        self.counts[source].transmitted_publish += 1
        self.counts[target].received_publish += 1

    def tell(self, source: int, target: int) -> None:
        self.counts[source].transmitted_subscribe += 1
        self.counts[target].received_subscribe += 1


def _broadcast(walk: _Walk, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_publisher(topic.cell)
    for source, target in walk.fabric.away(topic.cell):
        walk.carry(source, target)
    _deliver(walk, listening)


def _deliver(walk: _Walk, listening: Mapping[int, int]) -> None:
    for cell, listeners in listening.items():
        walk.deliver(cell, listeners)


def _keep(walk: _Walk, cell: int, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_listener(cell)


def _multicast(walk: _Walk, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_publisher(topic.cell)
    links = dict.fromkeys(link for cell in listening for link in walk.fabric.way(topic.cell, cell))
    for source, target in links:
        walk.carry(source, target)
    _deliver(walk, listening)


def _flood_interest(walk: _Walk, cell: int, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_listener(cell)
    if cell in listening:
        return
    ways = [walk.fabric.way(cell, other) for other in listening]
    links = walk.fabric.away(cell)
    if ways:
        same = [len(set(steps)) == 1 for steps in zip(*ways, strict=False)]
        links = ways[0][: (*same, False).index(False)]
    for source, target in links:
        walk.tell(source, target)


def _send_there(walk: _Walk, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_publisher(topic.cell)
    for cell in listening:
        if cell != topic.cell:
            walk.carry(topic.cell, cell)
    _deliver(walk, listening)


def _tell_there(walk: _Walk, cell: int, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_listener(cell)
    if cell not in (topic.cell, *listening):
        walk.tell(cell, topic.cell)


def _at_its_broker(walk: _Walk, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_publisher(topic.cell)
    walk.deliver(topic.cell, sum(listening.values()))


def _ask_its_broker(walk: _Walk, cell: int, topic: Topic, listening: Mapping[int, int]) -> None:
    walk.from_listener(topic.cell)


_STEPS: Final = {
    "broadcast": (_broadcast, _keep),
    "interest-tree": (_multicast, _flood_interest),
    "interest-one-hop": (_send_there, _tell_there),
    "gateway": (_at_its_broker, _ask_its_broker),
}


def expected(way: Way, workload: Workload, shape: Shape = "star") -> list[Counts]:
    """What each cell's broker must have counted at the end of the window."""
    fabric = Fabric(parents(workload.of.k, shape))
    return _Walk(workload, fabric).go(*_STEPS[way])
