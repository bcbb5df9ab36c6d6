"""Draws the schedules of `apart`: on a tree, destinations do not take their messages, under load.

Brokers hang, nodes and brokers are away, and sides cut off from each other, for longer than the
hold time; disks are full for a while; who keeps what waits is killed in the middle of writing.
Nodes are *steady* or *mortal*; only clients of steady ones publish.

One thing is left out, since it is not promised: a node is not restarted while a neighbor of its is
away for longer than it then awaits that (`isthmus.exchange.traffic.recovery`).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from isthmus.sim.attacks import FOR_EVER, RECONNECTED_S, AttackGenerator
from isthmus.sim.schedule import FILTERS, TOPICS, ClientSpec, NodeSpec, Schedule

__all__ = ["ApartGenerator"]

HOLD_S: Final = 20.0
KINDS: Final = {
    "load": 4,
    "publish": 2,
    "hang": 4,
    "away": 3,
    "cut": 2,
    "broker_away": 2,
    "full": 2,
}


class ApartGenerator(AttackGenerator):
    """Who is slow, hangs or is away."""

    def __init__(self, seed: int, profile: str, rng: random.Random) -> None:
        super().__init__(seed, profile, rng)
        count = len(self.names)
        self.mortal = sorted(rng.sample(self.names, rng.randint(1, count - 1)))
        self.steady = [name for name in self.names if name not in self.mortal]

    def schedule(self) -> Schedule:
        rng = self.rng
        base = self._shape(crashes=False, hold_s=HOLD_S)
        settings = replace(
            base.settings,
            queue_bytes=65_536,
            apart_bytes=rng.choice((64 << 20, 64 << 20, 100_000)),
            apart_s=3_600.0,
        )
        self.base = replace(base, bytes_per_s=0.0, settings=settings)
        self._draw_actions()
        return self._made()

    def _kinds(self) -> dict[str, int]:
        return dict(KINDS)

    def _draw_actions(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(2, 8)):
            self.now_s += self._pause()
            kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
            getattr(self, f"_do_{kind}")()

    def _node(self, name: str, crashes: bool) -> NodeSpec:
        return replace(super()._node(name, crashes), state_dir=True, persistent_broker=True)

    def _client(self, client_id: str) -> ClientSpec:
        rng = self.rng
        return replace(
            super()._client(client_id),
            node=rng.choice(self.steady) if client_id == "c0" else rng.choice(self.names),
            filters=tuple(rng.sample(FILTERS[:-1], rng.randint(1, 3))),
            session_expiry_s=FOR_EVER,
            will_topic="",
        )

    # ---- actions --------------------------------------------------------------------------

    def _do_load(self, within_s: float = 3.0) -> None:
        """Many messages of one client, and some of others."""
        rng, now_s = self.rng, self.now_s
        for _ in range(rng.randint(1, 2)):
            client, topic = self._some_client(), rng.choice(TOPICS)
            qos = str(rng.choice((1, 1, 2)))
            begin_s = rng.uniform(0.0, within_s / 2)
            lasts_s = rng.uniform(0.0, min(within_s - begin_s, 10.0))
            count = rng.randint(20, 150)
            for number in range(count):
                self.now_s = now_s + begin_s + lasts_s * number / count
                self._add("publish", client, topic, qos, "0", self._payload())
        self.now_s = now_s
        self._burst(within_s)

    def _do_hang(self) -> None:
        """A broker hangs; the node before it may be killed meanwhile."""
        rng = self.rng
        node, lasts_s = rng.choice(self.names), rng.uniform(2.0, 120.0)
        self._add("broker-hang", node, f"{lasts_s:.3f}")
        self._do_load(lasts_s)
        part = rng.choice((0.5, 1.0))
        if node in self.mortal and rng.random() < 0.5:
            part = 1.0  # else what follows could be a neighbor that is away
            at_s = rng.uniform(0.0, lasts_s)
            self._add("crash", node, rng.choice(("told", "torn")), after_s=at_s)
            self._add("restart", node, after_s=at_s + rng.choice((0.0, 0.3, 3.0)))
        if rng.random() < 0.3:
            self._do_full()
        self.now_s += part * lasts_s + RECONNECTED_S

    def _do_away(self) -> None:
        """A node is away; just before it is back, one that may have kept for it is killed."""
        rng = self.rng
        node, lasts_s = rng.choice(self.mortal), HOLD_S * rng.uniform(0.2, 6.0)
        self._add("crash", node, rng.choice(("told", "silent")))
        self._add("restart", node, after_s=lasts_s)
        self._do_load(lasts_s)
        others = [name for name in self.mortal if name != node]
        if others and rng.random() < 0.5:
            other, at_s = rng.choice(others), lasts_s - rng.uniform(0.5, 4.0)
            self._add("crash", other, rng.choice(("told", "torn")), after_s=max(at_s, 0.1))
            self._add("restart", other, after_s=max(at_s, 0.1) + rng.choice((0.0, 0.3)))
        self.now_s += lasts_s + RECONNECTED_S

    def _do_cut(self) -> None:
        side, lasts_s = self._side(), HOLD_S * self.rng.uniform(0.2, 6.0)
        self._cut(side, lasts_s)
        self._do_load(lasts_s)
        self.now_s += lasts_s + RECONNECTED_S

    def _do_broker_away(self) -> None:
        rng = self.rng
        node, lasts_s = rng.choice(self.mortal), HOLD_S * rng.uniform(0.1, 6.0)
        self._add("broker-crash", node)
        self._add("broker-restart", node, after_s=lasts_s)
        self._do_load(lasts_s)
        self.now_s += lasts_s + RECONNECTED_S

    def _do_full(self) -> None:
        rng = self.rng
        node = rng.choice(self.names)
        self._add("disk-full", node, after_s=rng.uniform(0.0, 2.0))
        self._add("disk-room", node, after_s=rng.uniform(2.0, 60.0))
