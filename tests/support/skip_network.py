"""Nodes that keep a Skip Graph among themselves, on a virtual network.

Links are made when somebody sends, as `MaintenanceActions.send` says; each carries what is sent in
order, after delays drawn anew for each message.  Links are lost with what is on them, nodes crash
without notice and come back empty, groups are cut off from each other.  All messages are bytes on
their way, and are read as those of a link.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import count, pairwise

from isthmus.cooperation.skipgraph.keys import Key, Kind, default_key, key_of
from isthmus.cooperation.skipgraph.maintenance import Maintenance
from isthmus.cooperation.skipgraph.messages import GraphMessage, encode, parse
from isthmus.cooperation.skipgraph.tables import Neighbor, NodeTable, Side, linked
from isthmus.cooperation.skipgraph.vectors import vector_of
from isthmus.errors import RemoteProtocolError

__all__ = ["KINDS", "TOPICS", "SkipNetwork", "SkipNode"]

TOPICS = ("a", "a/b", "b", "c/#", "+/d")
KINDS = (Kind.SUBSCRIBER, Kind.PUBLISHER)
DIAL_S = 0.05
HOLD_S = 3.0
"""How long a link that was lost is tried again before it is given up."""
REDIAL_S = 5.0
BANNED_S = 60.0
"""How long a node that was refused is."""


class Link:
    """One life of a link between two nodes."""

    def __init__(self, ends: frozenset[str]) -> None:
        self.ends = ends
        self.up = False
        self.waiting: list[tuple[str, str, bytes]] = []
        self.free_s: dict[str, float] = {}
        """When what is sent by each end next arrives at the earliest."""


class SkipNode:
    """One life of a node: the actions of a `Maintenance`, carried out."""

    def __init__(self, network: SkipNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.alive = True
        self.timers: dict[Hashable, int] = {}
        self.keys = {default_key(name)}
        self.changes = 0
        self.graph = Maintenance(name, f"{name}:1", self, base=network.base)

    def send(self, node: str, address: str, message: GraphMessage) -> None:
        assert node != self.name
        self.network.send(self.name, node, encode(message))
        self.network.sent[type(message).__name__] += 1

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        number = self.timers[key] = next(self.network.numbers)

        def run_out() -> None:
            if self.alive and self.timers.get(key) == number:
                del self.timers[key]
                self.graph.timer(key)

        self.network.after(delay_s, run_out)

    def cancel_timer(self, key: Hashable) -> None:
        self.timers.pop(key, None)

    def changed(self, keys: Collection[Key]) -> None:
        assert keys
        self.changes += 1

    def now(self) -> float:
        return self.network.now_s

    def random(self) -> float:
        return self.network.rng.random()

    def add(self, topic: str, kind: Kind = Kind.SUBSCRIBER) -> Key:
        key = key_of(topic, kind, self.name)
        self.keys.add(key)
        self.graph.add(key)
        return key

    def remove(self, key: Key) -> None:
        self.keys.discard(key)
        self.graph.remove(key)


class SkipNetwork:
    def __init__(self, seed: int, *, base: int = 2, delay_s: float = 0.02) -> None:
        self.rng = random.Random(seed)
        self.base = base
        self.delay_s = delay_s
        self.now_s = 0.0
        self.numbers = count()
        self.nodes: dict[str, SkipNode] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.cuts: list[tuple[frozenset[str], frozenset[str]]] = []
        self.banned: dict[frozenset[str], float] = {}
        self.sent: Counter[str] = Counter()
        self.accused: Counter[str] = Counter()
        self.liars: dict[str, Callable[[str, bytes], None]] = {}
        """What is done with what comes to them."""
        self.after_each: Callable[[], None] = lambda: None
        """Looks at the whole after each event."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    # ---- time ----------------------------------------------------------------------------

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self.numbers), what))

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
            self.after_each()
        self.now_s = until_s

    # ---- nodes ---------------------------------------------------------------------------

    def start(self, name: str, *seeds: str) -> SkipNode:
        node = self.nodes[name] = SkipNode(self, name)
        node.graph.start()
        self._dial_seeds(node, seeds)
        return node

    def grow(self, count: int, *, keys: int = 0) -> None:
        """A graph of so many nodes, and so many keys on top, at rest."""
        for number in range(count):
            seeds = [f"n{self.rng.randrange(number)}"] if number else []
            node = self.start(f"n{number}", *seeds)
            self.run(0.2)
            for _ in range(keys):
                node.add(self.rng.choice(TOPICS), self.rng.choice(KINDS))
        self.settle(step_s=1.0)

    def _dial_seeds(self, node: SkipNode, seeds: Sequence[str]) -> None:
        """As those of a configuration: again and again."""
        if node.alive and seeds:
            for seed in seeds:
                self.dial(node.name, seed)
            self.after(REDIAL_S, lambda: self._dial_seeds(node, seeds))

    def lie(self, name: str, hears: Callable[[str, bytes], None]) -> None:
        """A node that is not one of ours."""
        self.liars[name] = hears

    def crash(self, name: str) -> None:
        if name in self.nodes:
            self.nodes.pop(name).alive = False
        self.liars.pop(name, None)
        for link in [link for link in self.links.values() if name in link.ends]:
            self._drop(link)

    def restart(self, name: str, *seeds: str) -> SkipNode:
        self.crash(name)
        return self.start(name, *seeds)

    def leave(self, name: str) -> None:
        """In an orderly way: it is gone a second after it has left."""
        node = self.nodes[name]
        node.graph.stop()
        self.after(8.0, lambda: self.crash(name) if self.nodes.get(name) is node else None)

    # ---- links ---------------------------------------------------------------------------

    def cut(self, one: Iterable[str], other: Iterable[str]) -> None:
        self.cuts.append((frozenset(one), frozenset(other)))
        for link in list(self.links.values()):
            if not self._can_reach(link.ends):
                self._drop(link)

    def heal(self) -> None:
        self.cuts.clear()

    def lose(self, one: str, other: str) -> None:
        """A link, with what is on it; it is made again."""
        link = self.links.get(frozenset((one, other)))
        if link is not None and link.up:
            self._drop(link)

    def _is_there(self, name: str) -> bool:
        return name in self.nodes or name in self.liars

    def _can_reach(self, ends: frozenset[str]) -> bool:
        a, b = ends
        return (
            self._is_there(a)
            and self._is_there(b)
            and self.banned.get(ends, 0.0) <= self.now_s
            and not any((a in x and b in y) or (b in x and a in y) for x, y in self.cuts)
        )

    def dial(self, one: str, other: str) -> Link:
        ends = frozenset((one, other))
        if ends not in self.links:
            link = self.links[ends] = Link(ends)
            self.after(self._delay() + DIAL_S, lambda: self._dialed(link, self.now_s + HOLD_S))
        return self.links[ends]

    def _dialed(self, link: Link, until_s: float) -> None:
        if self.links.get(link.ends) is not link:
            return
        if self._can_reach(link.ends):
            link.up = True
            for name, other in self._pairs(link):
                if name in self.nodes:
                    self.nodes[name].graph.link_up(other, f"{other}:1")
            waiting, link.waiting = link.waiting, []
            for sender, receiver, data in waiting:
                self.send(sender, receiver, data)
        elif self.now_s < until_s:
            self.after(0.5 + self._delay(), lambda: self._dialed(link, until_s))
        else:
            self._give_up(link)

    def _give_up(self, link: Link) -> None:
        del self.links[link.ends]
        for name, other in self._pairs(link):
            if name in self.nodes:
                self.nodes[name].graph.gone(other)

    def _drop(self, link: Link) -> None:
        was_up, link.up = link.up, False
        del self.links[link.ends]
        again = self.links[link.ends] = Link(link.ends)
        if was_up:
            for name, other in self._pairs(link):
                if name in self.nodes:
                    self.nodes[name].graph.link_down(other)
        until_s = self.now_s + HOLD_S
        self.after(0.2 + self._delay(), lambda: self._dialed(again, until_s))

    def _pairs(self, link: Link) -> list[tuple[str, str]]:
        a, b = sorted(link.ends)
        return [(a, b), (b, a)]

    def _delay(self) -> float:
        return self.rng.uniform(0.1, 1.0) * self.delay_s

    def send(self, sender: str, receiver: str, data: bytes) -> None:
        link = self.dial(sender, receiver)
        if not link.up:
            link.waiting.append((sender, receiver, data))
            return
        at_s = max(link.free_s.get(sender, 0.0), self.now_s + self._delay())
        link.free_s[sender] = at_s
        self.after(at_s - self.now_s, lambda: self._arrive(link, sender, receiver, data))

    def _arrive(self, link: Link, sender: str, receiver: str, data: bytes) -> None:
        if not link.up or self.links.get(link.ends) is not link:
            return
        if receiver in self.liars:
            self.liars[receiver](sender, data)
        elif receiver in self.nodes:
            try:
                self.nodes[receiver].graph.arrived(sender, parse(data, sender, receiver))
            except RemoteProtocolError:
                self.accused[sender] += 1
                self.banned[link.ends] = self.now_s + BANNED_S
                link.up = False
                self._give_up(link)

    def introduce(self) -> None:
        """Link parts that have never heard of each other: nobody but an operator can."""
        parts: list[set[str]] = []
        for name, node in sorted(self.nodes.items()):
            part = {name, *(each for each in node.graph.acquainted if each in self.nodes)}
            parts = [*(each for each in parts if not each & part),
                     part.union(*(each for each in parts if each & part))]  # fmt: skip
        for one, other in pairwise(sorted(map(min, parts))):
            self.dial(one, other)

    # ---- what should be ------------------------------------------------------------------

    def expected(self) -> dict[str, NodeTable]:
        return linked(
            {name: (vector_of(name, self.base), node.keys) for name, node in self.nodes.items()}
        )

    def differences(self) -> list[str]:
        found = []
        for name, table in self.expected().items():
            have = self.nodes[name].graph.table
            if have.keys != table.keys:
                found.append(f"{name}: keys {set(have.keys) ^ set(table.keys)}")
                continue
            for right, virtual in zip(table, have, strict=True):
                for side in Side:
                    if right.neighbors(side) != virtual.neighbors(side):
                        want, got = _shown(right.neighbors(side)), _shown(virtual.neighbors(side))
                        found.append(
                            f"{name} {virtual.key.topic!r} {side.value}: {got}, not {want}"
                        )
        return found

    def settle(self, within_s: float = 600.0, step_s: float = 5.0) -> float:
        """Run until all is as it should be; how long it took."""
        begun_s = self.now_s
        while self.differences():
            if self.now_s - begun_s > within_s:
                raise AssertionError("\n".join(self.differences()[:20]))
            self.run(step_s)
        return self.now_s - begun_s


def _shown(row: Iterable[Neighbor | None]) -> list[str]:
    return [f"{each.node}/{each.key.topic}" if each else "-" for each in row]
