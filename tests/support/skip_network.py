"""Nodes in one epoch of a Skip Graph, without anything below: messages that take their time.

What two nodes say to each other arrives in order, after a delay of its own each; messages with
ranges take other ways, and overtake.  Everything is a function of the seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from isthmus.cooperation.skipgraph.graph import Graph
from isthmus.cooperation.skipgraph.groups import groups_of
from isthmus.cooperation.skipgraph.keys import Key, Kind, default_key, key_of
from isthmus.cooperation.skipgraph.messages import InEpoch, encode, parse
from isthmus.cooperation.skipgraph.options import SkipGraphOptions
from isthmus.cooperation.skipgraph.tables import linked
from isthmus.cooperation.skipgraph.vectors import vector_of
from isthmus.errors import RemoteProtocolError

EPOCH = b"an epoch"
DELAY_S = 1.0
"""The longest."""


@dataclass
class Published:
    topic: str
    source: str
    owed: frozenset[tuple[str, Key, float]]
    """Subscribers that nothing may pass by, and since when they are in the lists."""
    comes_again: bool = False
    """Somebody on the way had left the group: who sent it there sends it again, elsewhere."""
    reached: set[str] = field(default_factory=set)


class SkipNetwork:
    def __init__(self, seed: int, count: int, *, base: int = 2, forwarding: str = "sfb") -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.base = base
        names = [f"n{number}" for number in range(count)]
        options = SkipGraphOptions(base=base, forwarding=forwarding)  # type: ignore[arg-type]
        self.graphs = {
            name: Graph(
                name,
                names,
                options,
                EPOCH,
                send=partial(self._send, name),
                refuse=self._refuse,
            )
            for name in names
        }
        self.wanted: dict[str, set[Key]] = {name: set() for name in names}
        self.usable_s: dict[Key, float] = {}
        """Since when a key is in the lists for good."""
        self.published: list[Published] = []
        self.sent = 0
        self.slow_s: dict[tuple[str, str], float] = {}
        """What some take longer, from one to another."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._last_s: dict[tuple[str, str], float] = {}
        self._count = 0
        for graph in self.graphs.values():
            graph.want(frozenset(), frozenset())

    # ---- what happens --------------------------------------------------------------------

    def _later(self, at_s: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_s, self._count, call))

    def _send(self, sender: str, receiver: str, message: InEpoch) -> None:
        """In order between two; and what is said can be written and read."""
        self.sent += 1
        said = parse(encode(message), sender, receiver)
        assert said == message
        assert isinstance(said, InEpoch)
        delay_s = self.rng.uniform(0, DELAY_S) + self.slow_s.get((sender, receiver), 0.0)
        at_s = max(self._last_s.get((sender, receiver), 0.0), self.now_s + delay_s)
        self._last_s[sender, receiver] = at_s
        inner = said.message
        self._later(at_s, lambda: self.graphs[receiver].arrived(sender, inner))  # type: ignore[arg-type]

    def _refuse(self, name: str, error: RemoteProtocolError) -> None:
        raise AssertionError(f"honest {name} is refused: {error}")

    def run(self, until_s: float | None = None) -> None:
        """Without an end: until nothing happens any more."""
        while self._queue and (until_s is None or self._queue[0][0] <= until_s):
            self.now_s, _, call = heapq.heappop(self._queue)
            call()
            self._look()
        self.now_s = max(self.now_s, until_s or 0.0)

    def _look(self) -> None:
        for name, graph in self.graphs.items():
            for key in self.wanted[name]:
                if graph.lists.is_usable(key):
                    self.usable_s.setdefault(key, self.now_s)
                else:
                    self.usable_s.pop(key, None)
            graph.retire(self.now_s, 0.0)

    # ---- deeds ---------------------------------------------------------------------------

    def want(self, name: str, topic: str, kind: Kind) -> None:
        key = key_of(topic, kind, name)
        self.wanted[name].add(key)
        self.graphs[name].want({key}, frozenset())
        self._look()

    def unwant(self, name: str, key: Key) -> None:
        self.wanted[name].discard(key)
        self.usable_s.pop(key, None)
        self.graphs[name].want(frozenset(), {key})
        self._look()

    def publish(self, name: str, topic: str) -> bool:
        """Whether it can: it has all the keys for that."""
        graph = self.graphs[name]
        ways = graph.ways(topic)
        if ways is None:
            return False
        groups = set(groups_of(topic))
        owed = frozenset(
            (other, key, self.usable_s[key])
            for other in self.graphs
            if other != name
            for key in self.wanted[other]
            if key.kind is Kind.SUBSCRIBER
            and key.topic in groups
            and key in self.usable_s
            and self._is_resumed(name, key.topic)
        )
        message = Published(topic, name, owed)
        self.published.append(message)
        self._pass_on(message, name, ways)
        return True

    def _is_resumed(self, name: str, group: str) -> bool:
        graph = self.graphs[name]
        if graph.lists.is_usable(key_of(group, Kind.SUBSCRIBER, name)):
            return True
        return graph.suspension.is_resumed(key_of(group, Kind.PUBLISHER, name))

    def _pass_on(
        self, message: Published, sender: str, ways: tuple[tuple[str, bytes], ...]
    ) -> None:
        sent_in = self.graphs[sender].generation(message.topic)
        for receiver, label in ways:
            at_s = self.now_s + self.rng.uniform(0, 3 * DELAY_S)
            self._later(at_s, partial(self._comes, message, sender, sent_in, receiver, label))

    def _comes(
        self, message: Published, sender: str, sent_in: bytes, receiver: str, label: bytes
    ) -> None:
        message.reached.add(receiver)
        ways = self.graphs[receiver].ways_of_label(label, message.topic)
        if not ways.is_member:
            message.comes_again = True
            assert self.graphs[sender].generation(message.topic) != sent_in, (
                f"{receiver} has left the group of {message.topic}, and {sender} does not know"
            )
        self._pass_on(message, receiver, ways.hops)

    # ---- what must hold ------------------------------------------------------------------

    def check_published(self) -> None:
        """Who was owed a message, and has been in the lists ever since, has it."""
        for message in self.published:
            missing = {
                name
                for name, key, since_s in message.owed
                if self.usable_s.get(key) == since_s and name not in message.reached
            }
            assert message.comes_again or not missing, (
                f"{message.topic} from {message.source} passed {sorted(missing)} by"
            )

    def longest_wrong_s(self) -> float:
        """How long a publisher has been suspended by now though there was a subscriber."""
        longest = 0.0
        for graph in self.graphs.values():
            for key in graph.lists.keys:
                if key.kind is not Kind.PUBLISHER or not graph.lists.is_usable(key):
                    continue
                if graph.suspension.is_resumed(key):
                    continue
                since_s = min(
                    (
                        at_s
                        for other, at_s in self.usable_s.items()
                        if other.kind is Kind.SUBSCRIBER and other.topic == key.topic
                    ),
                    default=self.now_s,
                )
                since_s = max(since_s, self.usable_s.get(key, self.now_s))
                longest = max(longest, self.now_s - since_s)
        return longest

    def check_tables(self) -> None:
        """At rest they are those that the lists are defined by."""
        keys = {
            name: (vector_of(name, self.base), [default_key(name), *graph.lists.keys])
            for name, graph in self.graphs.items()
        }
        for name, graph in self.graphs.items():
            assert set(graph.lists.keys) == self.wanted[name]
            assert graph.lists.at_rest
        for name, right in linked(keys).items():
            lists = self.graphs[name].lists
            for virtual in right:
                found = lists.table[virtual.key]
                top = lists.height + 1
                assert found.left == _trimmed(virtual.left[:top])
                assert found.right == _trimmed(virtual.right[:top])

    def check_suspension(self) -> None:
        subscribed = {
            key.topic
            for keys in self.wanted.values()
            for key in keys
            if key.kind is Kind.SUBSCRIBER
        }
        for name, graph in self.graphs.items():
            for key in graph.lists.keys:
                if key.kind is Kind.PUBLISHER:
                    resumed = graph.suspension.is_resumed(key)
                    assert resumed == (key.topic in subscribed), (name, key.topic, resumed)


def _trimmed(row: list) -> list:  # type: ignore[type-arg]
    row = list(row)
    while row and row[-1] is None:
        row.pop()
    return row
