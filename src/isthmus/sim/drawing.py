"""Draws the actions of random schedules, those of an ordinary bad day; `attacks` has the rest."""

from __future__ import annotations

import random
from dataclasses import replace

from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.schedule import (
    FILTERS,
    RETAINED,
    STEADY,
    TOPICS,
    Action,
    ClientSpec,
    NodeSpec,
    Schedule,
)

__all__ = ["Generator"]

OF_A_CLIENT = {"leave": "disconnect", "vanish": "vanish", "connect": "connect"}
"""What is drawn, and the action that it becomes, of some client."""
OF_A_PAIR = ("link", "unlink", "break")
"""Actions of any two nodes."""


class Generator:
    """Draws the schedules of `PROFILES`."""

    def __init__(self, seed: int, profile: str, rng: random.Random) -> None:
        self.seed = seed
        self.profile = profile
        self.rng = rng
        count = rng.choice((2, 3, 3, 4, 4, 5, 6))
        if profile == "kills":
            count = rng.choice((3, 4, 5, 6))
        self.names = [f"n{index}" for index in range(count)]
        transit = rng.sample(self.names, rng.randint(1, count - 2)) if profile == "kills" else []
        self.transit = sorted(transit)
        self.homes = [name for name in self.names if name not in transit]
        """Where clients are."""
        self.base: Schedule
        self.actions: list[Action] = []
        self.now_s = 0.0
        self.payloads = 0

    def schedule(self) -> Schedule:
        rng = self.rng
        crashes = self.profile == "chaos"
        hold_s = 60.0 if self.profile in STEADY else rng.choice((1.0, 6.0, 60.0))
        self.base = self._shape(crashes=crashes, hold_s=hold_s)
        if self.profile == "found":
            self.base = replace(self.base, links=(), discovery=True)
        self._draw_actions()
        return self._made()

    def _shape(self, *, crashes: bool, hold_s: float) -> Schedule:
        rng = self.rng
        return Schedule(
            self.seed,
            self.profile,
            tuple(self._node(name, crashes) for name in self.names),
            tuple(self._client(f"c{index}") for index in range(rng.randint(2, 6))),
            self._tree(),
            delay_s=rng.choice((0.0, 0.001, 0.02, 0.3)),
            bytes_per_s=rng.choice((0.0, 0.0, 20_000.0)),
            lane_delay_s=random.Random(f"{self.seed}/lanes").choice((0.0, 0.0, 0.15)),
            control_delay_s=random.Random(f"{self.seed}/lane-0").choice((0.0, 0.0, 0.0, 0.2)),
            settings=LinkSettings(
                qos=rng.choice((1, 2)),
                lanes=rng.choice((1, 1, 2, 3)),
                dead_after_s=2.0,
                hold_s=hold_s,
                secret=rng.choice((b"", b"", b"secret")),
            ),
        )

    def _draw_actions(self) -> None:
        rng = self.rng
        kinds = self._kinds()
        for _ in range(rng.randint(5, 40)):
            self.now_s += self._pause()
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            if kind in OF_A_CLIENT:
                self._add(OF_A_CLIENT[kind], self._some_client())
            elif kind in OF_A_PAIR:
                self._add(kind, *rng.sample(self.names, 2))
            else:
                getattr(self, f"_do_{kind}")()

    def _made(self) -> Schedule:
        actions = tuple(sorted(self.actions, key=lambda action: action.at_s))
        return replace(self.base, actions=actions)

    def _kinds(self) -> dict[str, int]:
        kinds = {"publish": 12, "break": 2, "partition": 2}
        if self.profile == "kills":
            return {"publish": 12, "break": 1, "kill": 3}
        if self.profile == "oneway":
            return kinds | {"one_way": 4}
        if self.profile == "found":
            return kinds | {"one_way": 2, "crash": 2, "subscribe": 4, "unsubscribe": 2}
        if self.profile != "outages":
            kinds |= {"link": 4, "unlink": 3, "subscribe": 5, "unsubscribe": 3, "retain": 3}
            kinds |= {"leave": 2, "vanish": 2, "connect": 4}
        if self.profile == "chaos":
            kinds |= {"crash": 3, "stop": 1, "broker_crash": 2}
        return kinds

    def _pause(self) -> float:
        """Bursts, and pauses in which this and that runs out."""
        rng = self.rng
        drawn = rng.random()
        if drawn < 0.35:
            return 0.0
        if drawn < 0.65:
            return rng.uniform(0.0, 0.05)
        if drawn < 0.95:
            return rng.uniform(0.0, 2.0)
        return rng.uniform(2.0, 9.0)

    # ---- shape ---------------------------------------------------------------------------

    def _node(self, name: str, crashes: bool) -> NodeSpec:
        rng = self.rng
        return NodeSpec(
            name,
            state_dir=rng.random() < 0.8 or not crashes,
            persistent_broker=rng.random() < 0.8 or not crashes,
            broker_level=rng.choice((4, 5)),
            clock_ahead_ms=rng.randint(-500, 500),
        )

    def _client(self, client_id: str) -> ClientSpec:
        rng = self.rng
        filters = tuple(rng.sample(FILTERS, rng.randint(0, 3)))
        if self.profile in STEADY:
            filters = tuple(rng.sample(FILTERS[:-1], rng.randint(1, 3)))
        return ClientSpec(
            client_id,
            rng.choice(self.homes),
            level=rng.choice((4, 5)),
            session_expiry_s=rng.choice((0, 0, 3, 0xFFFF_FFFF)),
            will_topic=f"w/{client_id}" if rng.random() < 0.4 else "",
            filters=filters,
        )

    def _tree(self) -> tuple[tuple[str, str], ...]:
        rng = self.rng
        pairs = []
        for index, name in enumerate(self.names[1:], 1):
            pair = [name, self.names[rng.randrange(index)]]
            rng.shuffle(pair)
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    # ---- actions -------------------------------------------------------------------------

    def _add(self, kind: str, *args: str, after_s: float = 0.0) -> None:
        self.actions.append(Action(round(self.now_s + after_s, 4), kind, args))

    def _some_client(self) -> str:
        return self.rng.choice(self.base.clients).client_id

    def _payload(self) -> str:
        self.payloads += 1
        return f"m{self.payloads}"

    def _do_publish(self) -> None:
        rng = self.rng
        client, topic = self._some_client(), rng.choice(TOPICS)
        for _ in range(rng.choice((1, 1, 2, 5))):
            self._add("publish", client, topic, str(rng.randrange(3)), "0", self._payload())

    def _do_retain(self) -> None:
        rng = self.rng
        payload = "" if rng.random() < 0.25 else self._payload()
        client, topic = self._some_client(), rng.choice(RETAINED)
        self._add("publish", client, topic, str(rng.randrange(3)), "1", payload)

    def _do_subscribe(self) -> None:
        rng = self.rng
        self._add("subscribe", self._some_client(), rng.choice(FILTERS), str(rng.randrange(3)))

    def _do_unsubscribe(self) -> None:
        self._add("unsubscribe", self._some_client(), self.rng.choice(FILTERS))

    def _side(self) -> list[str]:
        """Some nodes, not all, that a partition cuts off from the others."""
        return self.rng.sample(self.names, self.rng.randint(1, len(self.names) - 1))

    def _cut(self, side: list[str], lasts_s: float, kind: str = "partition") -> None:
        self._add(kind, *sorted(side))
        self._add("heal", after_s=lasts_s)

    def _do_partition(self, kind: str = "partition") -> None:
        rng = self.rng
        side = self._side()
        self._cut(side, rng.choice((0.3, 2.0, 4.0, 5.0, 9.0)) * rng.uniform(0.5, 1.5), kind)

    def _do_one_way(self) -> None:
        self._do_partition("one-way")

    def _do_kill(self) -> None:
        node = self.rng.choice(self.transit)
        self._add("crash", node, self.rng.choice(("told", "silent")))
        self._add("restart", node, after_s=self.rng.choice((0.0, 0.3, 3.0)))

    def _do_crash(self) -> None:
        rng = self.rng
        node = rng.choice(self.names)
        self._add("crash", node, rng.choice(("told", "silent")))
        self._add("restart", node, after_s=rng.choice((0.0, 0.2, 2.0, 8.0)) * rng.uniform(0.5, 1.5))

    def _do_stop(self) -> None:
        node = self.rng.choice(self.names)
        self._add("stop", node)
        self._add("restart", node, after_s=self.rng.uniform(0.1, 3.0))

    def _do_broker_crash(self) -> None:
        node = self.rng.choice(self.names)
        self._add("broker-crash", node)
        self._add("broker-restart", node, after_s=self.rng.uniform(0.1, 3.0))
