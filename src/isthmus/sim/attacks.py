"""Draws the schedules of `ATTACKS`: on a tree, with what an operator or a stranger can do to it.

Nodes are *steady* or *mortal*.  Where a profile promises something of messages that are published
while nodes end, only clients of steady nodes publish: what only its own node had when that was
killed is nobody's to keep.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from isthmus.sim.drawing import Generator
from isthmus.sim.schedule import (
    FILTERS,
    POISON,
    RETAINED,
    TOPICS,
    ClientSpec,
    NodeSpec,
    Schedule,
)

__all__ = ["AttackGenerator"]

FOR_EVER: Final = 0xFFFF_FFFF
MINUTE_MS: Final = 60_000
YEAR_MS: Final = 365 * 24 * 3_600_000
RECONNECTED_S: Final = 15.0
"""Everybody who can be reached is linked again by then."""
FLOODS: Final = (33_000, 40_000, 70_000)
"""More than half of the packet identifiers, and more than all of them."""

KINDS: Final = {
    "double": {"publish": 10, "retain": 2, "double": 4, "break": 1},
    "outlast": {"publish": 10, "retain": 2, "long_partition": 3, "long_crash": 2, "break": 1},
    "expiry": {"publish": 6, "expiring": 6, "cut_off": 3, "flood": 2, "break": 1},
    "renamed": {"publish": 10, "rename": 3, "break": 1},
    "duplicates": {"publish": 10, "twin": 3, "break": 1},
    "clocks": {"publish": 8, "retain": 6, "clock": 4, "kill": 2, "partition": 2, "break": 1},
    "brokers": {"publish": 10, "poison": 4, "slow": 3, "partition": 1, "break": 1},
    "clients": {"publish": 12, "takeover": 4, "barge": 4, "return": 2, "partition": 1, "break": 1},
    "torn": {"publish": 8, "retain": 5, "tear": 5}
    | {"subscribe": 3, "unsubscribe": 2, "vanish": 2, "connect": 4},
    "attack": {"publish": 12, "retain": 4, "break": 1, "partition": 2, "long_partition": 1}
    | {"double": 1, "tear": 2, "rename": 1, "twin": 1, "clock": 2, "slow": 1, "poison": 2}
    | {"barge": 2, "takeover": 2, "expiring": 2, "broker_crash": 1, "link": 2, "unlink": 1}
    | {"subscribe": 3, "unsubscribe": 2, "vanish": 2, "leave": 1, "connect": 4},
}


class AttackGenerator(Generator):
    """One kind of malice, or all of them."""

    def __init__(self, seed: int, profile: str, rng: random.Random) -> None:
        super().__init__(seed, profile, rng)
        count = rng.choice((3, 4, 4, 5, 6))
        self.names = [f"n{index}" for index in range(count)]
        self.homes = list(self.names)
        most = {"double": count - 1, "outlast": count - 2, "renamed": count - 1}
        least = {"double": 2, "renamed": 1, "clocks": 0}
        many = rng.randint(least.get(profile, 0), most.get(profile, 0))
        if profile in ("torn", "attack"):
            many = count
        self.mortal = sorted(rng.sample(self.names, many))
        self.steady = [name for name in self.names if name not in self.mortal] or self.names
        if profile == "clocks":
            self.transit = sorted(rng.sample(self.names, rng.randint(1, count - 2)))
            self.homes = self.steady = [n for n in self.names if n not in self.transit]
        self.poisoned = sorted(rng.sample(self.names, rng.randint(1, count - 1)))
        self.clock_unit_ms = rng.choice((MINUTE_MS, MINUTE_MS, YEAR_MS))
        self.original = rng.choice(self.names)
        """Whose id another node has; one only, so that the others have to do with each other."""
        self.twins = 0
        self.names_given = 0

    def schedule(self) -> Schedule:
        rng = self.rng
        hold_s = 60.0
        if self.profile in ("outlast", "attack"):
            hold_s = rng.choice((1.0, 3.0, 6.0))
        elif self.profile == "renamed":
            hold_s = rng.choice((6.0, 10.0))  # longer than it takes to connect again
        elif self.profile == "expiry":
            hold_s = 600.0  # one partition after the other, and what does not expire is kept
        base = self._shape(crashes=self.profile == "attack", hold_s=hold_s)
        base = replace(base, settings=replace(base.settings, queue_bytes=256 << 20))
        if self.profile == "expiry":
            base = replace(base, bytes_per_s=0.0)  # a flood would take for ever
        if self.profile in ("clients", "attack"):
            barging = tuple(self._barger(f"x{index}") for index in range(rng.randint(1, 3)))
            base = replace(base, clients=base.clients + barging)
        self.base = base
        if self.profile in ("brokers", "attack"):
            for name in self.poisoned:
                self._add("poison", name)
        self._draw_actions()
        return self._made()

    def _kinds(self) -> dict[str, int]:
        kinds = dict(KINDS[self.profile])
        if not self.mortal:
            kinds.pop("long_crash", None)
        return kinds

    # ---- shape ---------------------------------------------------------------------------

    def _node(self, name: str, crashes: bool) -> NodeSpec:
        spec = super()._node(name, crashes)
        if self.profile == "clocks":
            return replace(spec, clock_ahead_ms=self._ahead_ms())
        return spec

    def _client(self, client_id: str) -> ClientSpec:
        rng = self.rng
        spec = super()._client(client_id)
        if self.profile in ("torn", "attack"):
            return spec
        kept = self.profile in ("double", "clients")
        return replace(
            spec,
            node=rng.choice(self.steady) if client_id == "c0" else spec.node,
            level=5 if self.profile == "expiry" else spec.level,
            filters=tuple(rng.sample(FILTERS[:-1], rng.randint(1, 3))),
            session_expiry_s=FOR_EVER if kept else spec.session_expiry_s,
            packet_ids=rng.choice((4, 16, 65_535)) if self.profile == "clients" else 65_535,
        )

    def _barger(self, client_id: str) -> ClientSpec:
        rng = self.rng
        return ClientSpec(
            client_id,
            rng.choice(self.homes),
            level=rng.choice((4, 5)),
            will_topic=rng.choice(TOPICS) if rng.random() < 0.5 else "",
            refused=True,
        )

    def _ahead_ms(self) -> int:
        rng = self.rng
        unit_ms = rng.choice((0, self.clock_unit_ms))
        return round(rng.uniform(-10, 10) * unit_ms)

    # ---- who ------------------------------------------------------------------------------

    def _some_client(self) -> str:
        """One that may publish."""
        may = [
            client.client_id
            for client in self.base.clients
            if not client.refused and client.node in self.steady
        ]
        return self.rng.choice(may)

    def _burst(self, within_s: float) -> None:
        """Messages while something lasts."""
        rng, now_s = self.rng, self.now_s
        times = sorted(rng.uniform(0.0, within_s) for _ in range(rng.randint(2, 8)))
        for at_s in times:
            self.now_s = now_s + at_s
            self._do_publish()
        self.now_s = now_s

    # ---- actions --------------------------------------------------------------------------

    def _do_publish(self) -> None:
        rng = self.rng
        client, topic = self._some_client(), rng.choice(TOPICS)
        for _ in range(rng.choice((1, 1, 2, 5))):
            qos = rng.choice((0, 2, 2)) if self.profile == "clients" else rng.randrange(3)
            self._add("publish", client, topic, str(qos), "0", self._payload())

    def _do_double(self) -> None:
        """The one that comes back late is away for less than the hold time."""
        rng = self.rng
        one, other = rng.sample(self.mortal, 2)
        late_s = rng.choice((3.0, 8.0, 15.0, 25.0))
        if self.profile == "attack":
            late_s = rng.choice((0.5, 3.0, 8.0))
        for node in (one, other):
            how = rng.choice(("told", "silent"))
            self._add("crash", node, how, after_s=rng.choice((0.0, 0.02)))
        self._add("restart", one, after_s=0.1 + rng.choice((0.0, 0.3, 3.0)))
        self._add("restart", other, after_s=0.1 + late_s)
        self._burst(late_s)
        # Else a link could be down for longer than the hold time, one crash after the other.
        apart_s = rng.choice((0.0, late_s)) if self.profile == "attack" else late_s + RECONNECTED_S
        self.now_s += apart_s

    def _do_long_partition(self) -> None:
        side, lasts_s = self._side(), self._too_long_s()
        self._cut(side, lasts_s)
        self._burst(lasts_s)
        self.now_s += self.rng.choice((0.0, lasts_s))

    def _too_long_s(self) -> float:
        """More than the hold time."""
        return 5.0 + self.base.settings.hold_s * self.rng.uniform(1.0, 2.5)

    def _do_long_crash(self) -> None:
        rng = self.rng
        node = rng.choice(self.mortal)
        lasts_s = self._too_long_s()
        self._add("crash", node, rng.choice(("told", "silent")))
        self._add("restart", node, after_s=lasts_s)
        self._burst(lasts_s)

    def _do_cut_off(self) -> None:
        """A partition within the hold time, long enough for messages to expire."""
        rng = self.rng
        side, lasts_s = self._side(), rng.uniform(4.0, 20.0)
        self._cut(side, lasts_s)
        now_s = self.now_s
        for _ in range(rng.randint(1, 6)):
            self.now_s = now_s + rng.uniform(0.0, lasts_s)
            rng.choice((self._do_publish, self._do_expiring))()
        self.now_s = now_s + rng.choice((0.0, lasts_s))

    def _do_expiring(self) -> None:
        rng = self.rng
        client, topic = self._some_client(), rng.choice(TOPICS)
        for _ in range(rng.choice((1, 2, 5))):
            expiry_s = str(rng.choice((1, 1, 2, 5, 60)))
            qos = str(rng.randrange(3))
            self._add("expiring", client, topic, qos, expiry_s, self._payload())

    def _do_flood(self) -> None:
        """A node that nobody reaches gets many messages, which expire before anybody does."""
        rng = self.rng
        count = rng.choice(FLOODS) if rng.random() < 0.04 else rng.randint(50, 2_500)
        publisher = self._some_client()
        home = next(c.node for c in self.base.clients if c.client_id == publisher)
        self.now_s = max([self.now_s, *(action.at_s for action in self.actions)])
        self._add("partition", home)
        qos = str(rng.choice((1, 2)))
        flood_s = 5.0 if count > 300 else rng.choice((0.0, 5.0))
        self._add("flood", publisher, rng.choice(TOPICS), qos, str(count), after_s=flood_s)
        for _ in range(rng.randint(0, 4)):
            self._add("publish", publisher, rng.choice(TOPICS), qos, "0", self._payload())
        self._add("heal", after_s=flood_s + 6.0)
        self.now_s += flood_s + 6.0

    def _do_rename(self) -> None:
        rng = self.rng
        node = rng.choice(self.mortal)
        self.names_given += 1
        node_id = node if rng.random() < 0.2 else f"{node}-{self.names_given}"
        self._add(*rng.choice((("crash", node, "told"), ("crash", node, "silent"), ("stop", node))))
        self._add("rename", node, node_id)
        back_s = rng.choice((0.0, 0.5, 3.0)) * rng.uniform(0.5, 1.5)
        self._add("restart", node, after_s=back_s)
        self._burst(back_s + self.base.settings.hold_s)
        self.now_s += rng.choice((0.0, back_s + self.base.settings.hold_s + 5.0))

    def _do_twin(self) -> None:
        """A second node of the same id: beside the first one's neighbors, or somewhere else."""
        rng = self.rng
        original = self.original
        self.twins += 1
        twin = f"twin{self.twins}"
        around = [
            b if a == original else a for a, b in self.base.links if original in (a, b)
        ]  # as with a copy of its file
        anywhere = [name for name in self.names if name != original]
        via = around if rng.random() < 0.4 else [rng.choice(anywhere)]
        how = rng.choice(("dials", "dials", "is-dialed"))
        lasts_s = rng.choice((1.0, 5.0, 20.0))
        self._add("twin", twin, original, how, *via)
        self._add("untwin", twin, rng.choice(("stop", "told", "silent")), after_s=lasts_s)
        self._burst(lasts_s)
        self.now_s += rng.choice((0.0, lasts_s))

    def _do_clock(self) -> None:
        self._add("clock", self.rng.choice(self.names), str(self._ahead_ms()))

    def _do_slow(self) -> None:
        rng = self.rng
        node = rng.choice(self.names)
        self._add("broker-delay", node, str(rng.choice((0.001, 0.05, 0.5, 2.0))))
        if rng.random() < 0.5:
            self._add("broker-delay", node, "0.001", after_s=rng.uniform(0.0, 5.0))

    def _do_poison(self) -> None:
        """A message that its publisher's broker takes, and others close the session on."""
        rng = self.rng
        clean = [
            client.client_id
            for client in self.base.clients
            if client.node not in self.poisoned and not client.refused
        ]
        if clean:
            qos = str(rng.randrange(3))
            self._add("publish", rng.choice(clean), POISON, qos, "0", self._payload())

    def _do_takeover(self) -> None:
        rng = self.rng
        client = self._some_client()
        if rng.random() < 0.7:  # with messages under way
            for _ in range(rng.randint(1, 4)):
                topic = rng.choice(TOPICS)
                self._add("publish", client, topic, "2", "0", self._payload())
        self._add("takeover", client, after_s=rng.choice((0.0, 0.001, 0.003, 0.01)))

    def _do_return(self) -> None:
        client = self._some_client()
        self._add("vanish", client)
        self._add("connect", client, after_s=self.rng.choice((0.0, 0.01, 1.0)))

    def _do_barge(self) -> None:
        rng = self.rng
        client = rng.choice([each.client_id for each in self.base.clients if each.refused])
        topic, qos = rng.choice((*TOPICS, *RETAINED)), str(rng.randrange(3))
        self._add("barge", client, topic, qos, rng.choice("01"), f"x{self._payload()}")

    def _do_tear(self) -> None:
        """Killed while it writes; a bit may flip before it is back."""
        rng = self.rng
        node = rng.choice(self.mortal)
        self._add("crash", node, "torn")
        if rng.random() < 0.5:
            self._add("flip", node, after_s=0.01)
        self._add("restart", node, after_s=0.02 + rng.choice((0.0, 0.2, 2.0, 8.0)))
