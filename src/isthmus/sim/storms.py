"""Draws the schedules of `storms`: many faults at once, on a graph that stays connected meanwhile.

Some nodes are *steady*: they never end, and between any two of them there is, at every moment, a
way of nodes that run and links that carry in both directions.  Everything else goes, several at
once and for longer than any limit: links are cut, in one direction or both, nodes are killed,
stopped and come back, wires become slow, brokers too, clocks jump.  So with an algorithm that
survives changes whatever a client of a steady node publishes reaches the clients of all steady
nodes, and once.  And when all is over, one that had ended comes back, and whatever a client of it,
the *visitor*, publishes reaches those with whom it is connected over links that are up just then;
but for what it publishes while its node is in a tree with some of the others alone.

One *gust* after the other is drawn: faults that overlap, and that together leave the steady nodes
connected; during some of them a client publishes without a pause.  Between gusts links have the
time to come back, or the hold time is longer than what two of them can take.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from isthmus.graph import search
from isthmus.sim.attacks import RECONNECTED_S
from isthmus.sim.drawing import Generator
from isthmus.sim.schedule import FILTERS, RETAINED, TOPICS, ClientSpec, NodeSpec, Schedule

__all__ = ["StormGenerator"]

LONG_HOLD_S: Final = 120.0
"""Longer than two gusts that follow each other take."""
FAULTS: Final = {"cut": 6, "one_way": 3, "break": 2, "down": 5, "wire": 2, "broker": 1, "clock": 1}
MINUTES_MS: Final = 600_000
MOST_STREAMED_S: Final = 5.0
"""Long enough for a node that is silent to be missed, and for the next tree."""


class StormGenerator(Generator):
    """Faults that overlap."""

    def __init__(self, seed: int, profile: str, rng: random.Random) -> None:
        super().__init__(seed, profile, rng)
        count = rng.choice((3, 4, 5, 5, 6, 7))
        self.names = [f"n{index}" for index in range(count)]
        self.steady = sorted(rng.sample(self.names, rng.randint(2, min(3, count - 1))))
        self.homes = self.steady
        self.mortal = [name for name in self.names if name not in self.steady]
        self.hold_s = rng.choice((10.0, 20.0, LONG_HOLD_S))
        self.keeps_state = random.Random(f"{seed}/state").random() < 0.7

    def schedule(self) -> Schedule:
        self.base = self._shape(crashes=False, hold_s=self.hold_s)
        for _ in range(self.rng.randint(1, 3)):
            self._gust()
        self.now_s = self.end_s + RECONNECTED_S
        self._visit(random.Random(f"{self.seed}/visit"))
        return self._made()

    def _visit(self, rng: random.Random) -> None:
        """The visitor's node ends and comes back, and the visitor with it."""
        node = rng.choice(self.mortal)
        visitor = ClientSpec("visitor", node, session_expiry_s=0xFFFF_FFFF)
        self.base = replace(self.base, clients=(*self.base.clients, visitor))
        self._add("crash", node, rng.choice(("told", "silent")))
        back_s = rng.choice((0.05, 1.0, 5.0))
        self._add("restart", node, after_s=back_s)
        topics = rng.sample(TOPICS, 2)
        for number in range(rng.choice((5, 20, 60))):
            after_s = back_s + 0.05 * number
            qos = str(rng.choice((1, 2)))
            self._add(
                "publish", "visitor", rng.choice(topics), qos, "0", self._payload(), after_s=after_s
            )

    # ---- shape ---------------------------------------------------------------------------

    def _tree(self) -> tuple[tuple[str, str], ...]:
        """A tree, and other links beside it."""
        rng = self.rng
        links = {tuple(sorted(pair)): pair for pair in super()._tree()}
        for _ in range(rng.randint(1, 2 * len(self.names))):
            a, b = rng.sample(self.names, 2)
            links.setdefault(tuple(sorted((a, b))), (a, b))
        return tuple(links.values())

    def _node(self, name: str, crashes: bool) -> NodeSpec:
        return replace(super()._node(name, crashes), state_dir=self.keeps_state)

    def _client(self, client_id: str) -> ClientSpec:
        rng = self.rng
        index = int(client_id[1:])
        home = self.steady[index] if index < 2 else rng.choice(self.steady)
        filters = tuple(rng.sample(FILTERS[:-1], rng.randint(1, 3)))
        return replace(super()._client(client_id), node=home, filters=filters)

    # ---- gusts ---------------------------------------------------------------------------

    def _gust(self) -> None:
        rng = self.rng
        begin_s = self.now_s
        self.cut: set[tuple[str, str]] = set()
        self.down: set[str] = set()
        self.end_s = begin_s
        for _ in range(rng.randint(1, 6)):
            self.now_s = begin_s + rng.choice((0.0, 0.0, 0.01, rng.uniform(0.0, 5.0)))
            kind = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            getattr(self, f"_do_{kind}")()
        lasts_s = self.end_s - begin_s
        for _ in range(rng.randint(3, 12)):
            self.now_s = begin_s + rng.choice((0.0, 0.3, 1.2)) * rng.uniform(0.0, lasts_s + 1.0)
            self._publish()
        self._stream(begin_s, lasts_s)
        self.now_s = self.end_s + RECONNECTED_S
        if self.hold_s == LONG_HOLD_S:
            self.now_s = self.end_s + rng.choice((0.0, 1.0, RECONNECTED_S))

    def _stream(self, begin_s: float, lasts_s: float) -> None:
        """One client publishes on one topic without a pause: something is always under way."""
        rng = random.Random(f"{self.seed}/stream at {begin_s}")
        if rng.random() < 0.5 or self.base.bytes_per_s:  # what waits would take seconds to write
            return
        client, topic = rng.choice(self.base.clients).client_id, rng.choice(TOPICS)
        qos, every_s = str(rng.choice((1, 2))), rng.choice((0.01, 0.03))
        self.now_s = begin_s
        for number in range(round(min(lasts_s + 1.0, MOST_STREAMED_S) / every_s)):
            after_s = every_s * number
            self._add("publish", client, topic, qos, "0", self._payload(), after_s=after_s)

    def _publish(self) -> None:
        rng = self.rng
        client, topic = self._some_client(), rng.choice(TOPICS)
        if rng.random() < 0.1:
            qos = str(rng.randrange(3))
            self._add("publish", client, rng.choice(RETAINED), qos, "1", self._payload())
            return
        for _ in range(rng.choice((1, 1, 2, 5, 12))):
            self._add("publish", client, topic, str(rng.randrange(3)), "0", self._payload())

    def _lasts_s(self) -> float:
        """From a blink to more than the hold time, and more than it takes to notice anything."""
        rng = self.rng
        longest_s = 20.0 if self.hold_s == LONG_HOLD_S else 8.0 + 2 * self.hold_s
        lasts_s = rng.choice((0.05, 0.5, 4.0, longest_s)) * rng.uniform(0.5, 1.0)
        self.end_s = max(self.end_s, self.now_s + lasts_s)
        return lasts_s

    def _leaves_connected(self, cut: set[tuple[str, str]], down: set[str]) -> bool:
        links = [
            (a, b)
            for a, b in self.base.links
            if not {a, b} & (self.down | down) and not {(a, b), (b, a)} & (self.cut | cut)
        ]
        return set(self.steady) <= search(links, self.steady[0]).keys()

    def _do_cut(self, kind: str = "cut") -> None:
        pair = self.rng.choice(self.base.links)
        if self._leaves_connected({pair}, set()):
            self.cut.add(pair)
            self._add(kind, *pair)
            self._add("mend", *pair, after_s=self._lasts_s())

    def _do_one_way(self) -> None:
        self._do_cut("cut-one-way")

    def _do_break(self) -> None:
        pair = self.rng.choice(self.base.links)
        if self._leaves_connected({pair}, set()):
            self.cut.add(pair)
            for _ in range(self.rng.choice((1, 1, 3))):
                self._add("break", *pair, after_s=self.rng.uniform(0.0, 1.0))
            self.end_s = max(self.end_s, self.now_s + 1.0)

    def _do_down(self) -> None:
        rng = self.rng
        name = rng.choice(self.mortal)
        if name not in self.down and self._leaves_connected(set(), {name}):
            self.down.add(name)
            end = rng.choice((("crash", name, "told"), ("crash", name, "silent"), ("stop", name)))
            self._add(*end)
            self._add("restart", name, after_s=self._lasts_s())

    def _do_wire(self) -> None:
        """The RTT jumps, and stays."""
        self._add(
            "wire", *self.rng.choice(self.base.links), self.rng.choice(("0.001", "0.1", "0.5"))
        )

    def _do_broker(self) -> None:
        name = self.rng.choice(self.names)
        self._add("broker-delay", name, self.rng.choice(("0.05", "0.5", "2.0")))
        self._add("broker-delay", name, "0.001", after_s=self._lasts_s())

    def _do_clock(self) -> None:
        ahead_ms = self.rng.randint(-MINUTES_MS, MINUTES_MS)
        self._add("clock", self.rng.choice(self.names), str(ahead_ms))
