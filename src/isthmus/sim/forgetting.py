"""Draws the schedules of `forgetful`: nodes that keep nothing are killed, whatever they are.

Its promise is one of ``confirm = "fabric"``: what is acknowledged to its publisher is at every
broker that has an interested subscriber, and reaches it.  Hardly a node has a `state_dir`; brokers
persist, and subscribers have sessions there that last.  Any process is killed, ingress, transit and
egress alike, and started again: a node, a broker, or two of them at once, which are then back
before any of the others can have been missed (`YOUNG_S`).  Clients that lose their connection send
again what was not acknowledged; some do not subscribe again to what their session still has.

Faults come one after the other, or so that what the second one meets is still young; and while they
last clients publish all the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from isthmus.sim.attacks import FOR_EVER, RECONNECTED_S
from isthmus.sim.drawing import Generator
from isthmus.sim.schedule import FILTERS, TOPICS, ClientSpec, NodeSpec, Schedule

__all__ = ["ForgetfulGenerator"]

VICTIMS: Final = {"node": 6, "broker": 2, "both": 1, "nodes": 2}
LONGEST_AWAY_S: Final = 8.0
SOON_S: Final = 2.0
"""Who is killed beside another, or while another is young, is back so soon."""


class ForgetfulGenerator(Generator):
    """One kill after the other."""

    def schedule(self) -> Schedule:
        rng = self.rng
        self.base = self._shape(crashes=False, hold_s=60.0)
        settings = replace(self.base.settings, queue_bytes=256 << 20)
        delay_s = min(self.base.delay_s, 0.02)  # else linking takes long
        self.base = replace(self.base, settings=settings, bytes_per_s=0.0, delay_s=delay_s)
        pause_s = RECONNECTED_S
        for _ in range(rng.randint(1, 5)):
            self._strike(LONGEST_AWAY_S if pause_s == RECONNECTED_S else SOON_S)
            pause_s = rng.choice((0.5, RECONNECTED_S))
            self.now_s += pause_s
        return self._made()

    def _node(self, name: str, crashes: bool) -> NodeSpec:
        spec = super()._node(name, crashes)
        return replace(spec, state_dir=self.rng.random() < 0.1)

    def _client(self, client_id: str) -> ClientSpec:
        rng = self.rng
        return replace(
            super()._client(client_id),
            will_topic="",
            filters=tuple(rng.sample(FILTERS[:-1], rng.randint(1, 3))),
            session_expiry_s=FOR_EVER,
            subscribes_again=rng.random() < 0.7,
            repeats_qos1=True,
        )

    def _strike(self, longest_s: float) -> None:
        rng = self.rng
        begin_s = self.now_s
        kind = rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if kind in ("nodes", "both"):
            longest_s = SOON_S
        away_s = min(longest_s, rng.choice((0.0, 0.3, 2.0, LONGEST_AWAY_S)) * rng.uniform(0.5, 1.0))
        victims = rng.sample(self.names, 2 if kind == "nodes" and len(self.names) > 2 else 1)
        for victim in victims:
            self.now_s = begin_s + rng.choice((0.0, 0.0, 0.02, 0.3))
            if kind != "broker":
                self._add("crash", victim, rng.choice(("told", "silent")))
                self._add("restart", victim, after_s=away_s)
            if kind in ("broker", "both"):
                self._add("broker-crash", victim, after_s=rng.choice((0.0, 0.1)))
                self._add("broker-restart", victim, after_s=0.1 + away_s)
        for _ in range(rng.randint(5, 25)):
            self.now_s = begin_s + rng.uniform(-1.0, 1.0) + rng.choice((0.0, away_s, away_s + 2.0))
            self.now_s = max(0.0, self.now_s)
            self._publish()
        self.now_s = begin_s + away_s

    def _publish(self) -> None:
        rng = self.rng
        client, topic = self._some_client(), rng.choice(TOPICS)
        for _ in range(rng.choice((1, 1, 2, 5))):
            self._add("publish", client, topic, str(rng.choice((0, 1, 1, 2))), "0", self._payload())
