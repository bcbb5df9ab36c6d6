"""Runs a schedule and checks what is promised of it.

After the last action everything is healed and left to rest.  Then

1.  the active links are a spanning forest of what is linked, with both ends agreeing;
2.  SF: inter-subscriptions are exactly the definition's, and no client's interest is unknown;
3.  brokers that are connected hold the same retained messages, unless a node or broker that keeps
    nothing ended, or one did within a second of a retained message; if they go only where they are
    wanted, those that clients of the broker want, and so does one that wants them only now;
4.  a message from any node on any topic reaches every matching client exactly once, nobody else;
5.  so does the will of a client that vanishes;
6.  no message was delivered twice: at QoS 0 unless a partition held it up while the tree of a ring
    changed, at QoS 1 and 2 unless the subscriber's node or a broker ended after it was published,
    its broker closes sessions, or its publisher itself has sent it again;
7.  `outages` and `kills`: every message at QoS 1 and 2 reached every matching client, and one
    publisher's messages on one topic in order; with `confirm` it was at the brokers of all of them
    when its publisher got the acknowledgment;
8.  after all clients have left, nothing of their interest is left.

Under attack (`isthmus.sim.promises` has what differs from profile to profile) also: what is lost
because a neighbor was given up is counted, and nothing of a client that its broker refuses reaches
any broker.  Before the fabric is left to rest, twins are gone and clocks are right.

A fabric that does not come to rest fails too: something circulates.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from isthmus.cooperation.link_rules import NO_RULES
from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.discovery.discovery import DiscoverySettings
from isthmus.exchange.traffic.recovery import RECOVERY_S
from isthmus.mqtt.packets import Publish, Will
from isthmus.mqtt.properties import Properties
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.invariants import check_at_rest, check_empty, check_topology
from isthmus.sim.names import draw_rules
from isthmus.sim.network import DatagramSettings, WireSettings
from isthmus.sim.node import SimNode
from isthmus.sim.promises import COMPLETE, Promises
from isthmus.sim.schedule import POISON, Action, Schedule

__all__ = ["PLAIN", "ScheduleFailed", "ScheduleOutcome", "Variant", "run_schedule"]

RULED = tuple(each for each in COMPLETE if each not in ("renamed", "duplicates"))
"""Profiles with a tree that stays, in which links may have rules."""
CONFIRM_S = 3_600.0
"""Nobody is disconnected for what is not confirmed."""
BACK_S = 15.0
"""Clients are back after half a second, and after their node."""


class ScheduleFailed(AssertionError):
    """A schedule broke a promise; the message says which, and how to see it happen."""

    def __init__(self, schedule: Schedule, algorithm: str, problem: str, trace: str = "") -> None:
        self.schedule = schedule
        self.problem = problem
        self.trace = trace
        super().__init__(
            f"{problem}\n\nto see it happen: python -m isthmus.sim.replay --algorithm {algorithm} "
            f"--profile {schedule.profile} --seed {schedule.seed}\n{schedule}"
        )


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """What a run that kept all promises did."""

    events: int
    simulated_s: float
    messages: int
    deliveries: int
    faults: Counter[str] = field(default_factory=Counter)
    """What happened, by kind."""
    checked: Counter[str] = field(default_factory=Counter)
    """What the algorithm had to check at the end (`AtRest.checked`)."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How the nodes are set up, beside their algorithm."""

    confirm: bool = False
    """Publishers wait for all brokers."""
    rules: bool = False
    """Not everything may cross the links, where these stay what they are."""
    routes_retained: bool = False
    """Retained messages go only where they are wanted."""
    from_broker: bool = False
    """Messages are taken from the brokers."""
    brokers: int = 1
    """How many each node has."""


PLAIN: Final = Variant()


def run_schedule(
    schedule: Schedule,
    algorithm: str | AlgorithmFactory = "sf",
    *,
    options: Mapping[str, object] | None = None,
    settle_s: float | None = None,
    trace: bool = False,
    variant: Variant = PLAIN,
) -> ScheduleOutcome:
    """Raises `ScheduleFailed`."""
    run = _Run(schedule, algorithm, options, settle_s, trace=trace, variant=variant)
    try:
        return run.run()
    except Exception as error:  # whatever a node raises is a finding
        problem = str(error) if isinstance(error, AssertionError) else f"{error!r}"
        raise ScheduleFailed(
            schedule, run.fabric.algorithm_name, problem, run.fabric.trace.text()
        ) from error


class _Run:
    def __init__(
        self,
        schedule: Schedule,
        algorithm: str | AlgorithmFactory,
        options: Mapping[str, object] | None,
        settle_s: float | None,
        *,
        trace: bool,
        variant: Variant = PLAIN,
    ) -> None:
        self.schedule = schedule
        self.fabric = SimFabric(
            seed=schedule.seed,
            algorithm=algorithm,
            options=options,
            link=schedule.settings,
            wire=WireSettings(
                schedule.delay_s,
                schedule.bytes_per_s,
                schedule.lane_delay_s,
                schedule.control_delay_s,
            ),
            trace=trace,
            settle_s=settle_s,
            discovery=DiscoverySettings() if schedule.discovery else None,
            datagrams=DatagramSettings(loss=0.3, duplication=0.1, late=0.1),
            confirm=ConfirmSettings(variant.confirm, within_s=CONFIRM_S, back_s=BACK_S),
            routes_retained=variant.routes_retained,
            from_broker=variant.from_broker,
            brokers=variant.brokers,
        )
        self.directs: dict[str, SimClient] = {}
        """``source = "broker"``: others at the brokers of the clients, past the nodes."""
        self.promises = Promises(schedule, self.fabric)
        if schedule.profile == "clocks":
            self.promises.clocks_ms += [spec.clock_ahead_ms for spec in schedule.nodes]
        self.clients = self.promises.clients
        self.wills = 0
        self.rules = variant.rules and schedule.profile in RULED

    def run(self) -> ScheduleOutcome:
        self._set_up()
        begin_s = self.fabric.now_s
        for action in self.schedule.actions:
            self.fabric.engine.run_until(begin_s + action.at_s)
            self._do(action)
        self._heal()
        promises = self.promises
        checked = check_at_rest(
            self.fabric, retained=promises.retained_converges(), deleted=promises.deleted
        )
        promises.check_complete()
        promises.check_counted()
        promises.check_refused()
        promises.check_probes()
        promises.check_wills()
        promises.check_at_most_once()
        promises.check_disks()
        if self.fabric.routes_retained and promises.retained_converges():
            promises.check_late()
        self._leave()
        return ScheduleOutcome(
            self.fabric.engine.events,
            self.fabric.now_s,
            len(promises.messages),
            sum(len(client.received) for client in self.clients.values()),
            Counter(action.kind for action in self.schedule.actions),
            checked,
        )

    def _set_up(self) -> None:
        fabric = self.fabric
        for spec in self.schedule.nodes:
            fabric.node(**asdict(spec))
        rng = random.Random(f"rules {self.schedule.seed}")
        for a, b in self.schedule.links:
            rules = draw_rules(rng) if self.rules else NO_RULES
            fabric.link(fabric.nodes[a], fabric.nodes[b], rules=rules)
        for each in self.schedule.clients:
            persistent = bool(each.session_expiry_s)
            client = fabric.nodes[each.node].client(
                each.client_id,
                level=each.level,
                clean_start=not persistent,
                session_expiry_s=each.session_expiry_s,
                will=self._will(each.will_topic) if each.will_topic else None,
                packet_ids=each.packet_ids,
                subscribes_again=each.subscribes_again,
                repeats_qos1=each.repeats_qos1,
                connect=not each.refused,
            )
            if each.refused:
                for broker in fabric.nodes[each.node].brokers.values():
                    broker.refuses.add(each.client_id)
                self.promises.refused[each.client_id] = client
                continue
            client.connecting = self._renew_will
            if client.will is not None:
                self.promises.wills[client.will.payload] = client.node
            client.on_acknowledged = self.promises.acknowledged
            if each.filters:
                client.subscribe(*each.filters)
            self.clients[each.client_id] = client
            if fabric.from_broker:
                direct = fabric.nodes[each.node].client(
                    f"{each.client_id}-direct", level=each.level, direct=True
                )
                self.directs[each.client_id] = direct
        for name, node in fabric.nodes.items():
            probe = node.client(f"probe-{name}", direct=fabric.from_broker)
            self.promises.probes[name] = probe
        fabric.settle()
        check_at_rest(fabric)

    def _will(self, topic: str) -> Will:
        self.wills += 1
        return Will(topic, f"will {self.wills}".encode(), qos=1)

    # ---- actions -------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        fabric = self.fabric
        fabric.trace.note("schedule", f"{action.kind} {' '.join(action.args)}")
        match action.kind, action.args:
            case "publish", (client, topic, qos, retain, payload):
                self.promises.publish(
                    self._publisher(client, payload),
                    topic,
                    payload,
                    qos=int(qos),
                    retain=retain == "1",
                )
            case "expiring", (client, topic, qos, expiry_s, payload):
                self.promises.publish(
                    self.clients[client], topic, payload, qos=int(qos), expiry_s=int(expiry_s)
                )
            case "flood", (client, topic, qos, count):
                self._flood(self.clients[client], topic, int(qos), int(count))
            case "barge", (client, topic, qos, retain, payload):
                self.promises.barge(
                    client, Publish(topic, payload.encode(), qos=int(qos), retain=retain == "1")
                )
            case "subscribe", (client, topic_filter, qos):
                self.clients[client].subscribe(topic_filter, qos=int(qos))
            case "unsubscribe", (client, topic_filter):
                self.clients[client].unsubscribe(topic_filter)
            case "connect" | "disconnect" | "vanish" as kind, (client,):
                getattr(self.clients[client], kind)()
            case "takeover", (client,):
                self.clients[client].take_over()
            case "link" | "unlink" | "break" as kind, (a, b):
                does = fabric.break_connections if kind == "break" else getattr(fabric, kind)
                does(fabric.nodes[a], fabric.nodes[b])
            case ("partition" | "one-way") as kind, side:
                self.promises.cut()
                one = [node for name, node in fabric.nodes.items() if name in side]
                others = [node for node in fabric.nodes.values() if node not in one]
                fabric.partition(one, others, one_way=kind == "one-way")
            case ("cut" | "cut-one-way") as kind, (a, b):
                one, other = [fabric.nodes[a]], [fabric.nodes[b]]
                fabric.partition(one, other, one_way=kind == "cut-one-way")
            case "mend", (a, b):
                fabric.heal([(a, b), (b, a)])
            case "wire", (a, b, delay_s):
                fabric.wire(fabric.nodes[a], fabric.nodes[b], delay_s=float(delay_s))
            case "heal", _:
                fabric.heal()
                self.promises.healed()
            case "twin", (name, original, how, *via):
                self._twin(name, fabric.nodes[original], how, [fabric.nodes[each] for each in via])
            case "untwin", (name, how):
                self._untwin(name, how)
            case kind, (name, *rest):
                self._end_or_begin(kind, fabric.nodes[name], rest)
            case _:
                raise ValueError(f"no such action: {action}")

    def _publisher(self, client: str, payload: str) -> SimClient:
        """The client, or in its place every second time one that connects past its node."""
        if self.fabric.from_broker and zlib.crc32(payload.encode()) & 1:
            return self.directs[client]
        return self.clients[client]

    def _end_or_begin(self, kind: str, node: SimNode, rest: list[str]) -> None:
        if kind in ("crash", "stop", "broker-crash"):
            self.promises.ends_s.append(self.fabric.now_s)
        match kind:
            case "crash":
                self.fabric.crash(node, silent=rest == ["silent"], torn=rest == ["torn"])
            case "flip" | "rename" if node.running:
                pass  # it was back earlier than this schedule thought
            case "flip":
                node.flip()
            case "rename":
                self.promises.renamed.add(node.name)
                node.rename(rest[0])
            case "clock":
                node.clock_ahead_ms = int(rest[0])
                self.promises.clocks_ms.append(int(rest[0]))
            case "broker-hang":
                node.broker.hang(float(rest[0]))
            case "disk-full" | "disk-room":
                node.disk.full = kind == "disk-full"
            case "broker-delay":
                for broker in node.brokers.values():
                    broker.delay_s = float(rest[0])
            case "poison":
                node.broker_of(POISON).poison.add(POISON)
            case "stop":
                self.fabric.stop(node)
            case "restart":
                self.fabric.restart(node)
            case "broker-crash" if node.brokers_up:
                self.fabric.crash_broker(node)
            case "broker-restart" if not node.brokers_up:
                self.fabric.restart_broker(node)
            case "broker-crash" | "broker-restart":
                pass
            case _:
                raise ValueError(f"no such action: {kind}")

    def _flood(self, client: SimClient, topic: str, qos: int, count: int) -> None:
        properties = Properties(message_expiry_interval=1)
        client.flood(Publish(topic, b"flood", qos=qos, packet_id=1, properties=properties), count)

    def _twin(self, name: str, original: SimNode, how: str, via: list[SimNode]) -> None:
        fabric = self.fabric
        self.promises.duplicated.add(original.name)
        twin = fabric.node(name, node_id=original.node_id)
        for node in via:
            if how == "dials":
                fabric.link(twin, node)
            else:
                fabric.link(node, twin)

    def _untwin(self, name: str, how: str) -> None:
        fabric = self.fabric
        twin = fabric.nodes[name]
        if how == "stop":
            fabric.stop(twin)
        else:
            fabric.crash(twin, silent=how == "silent")
        for node in list(fabric.nodes.values()):
            fabric.unlink(node, twin)
        fabric.remove(twin)
        by_address = {node.address: node for node in fabric.nodes.values()}
        for node in fabric.nodes.values():  # whom it was mistaken for was removed with it
            for address, each in list(node.peers.items()):
                other = by_address[address]
                fabric.link(node, other, lanes=each.lanes, qos=each.qos, rules=each.rules)

    def _renew_will(self, client: SimClient) -> None:
        if client.will is not None:
            client.will = self._will(client.will.topic)
            self.promises.wills[client.will.payload] = client.node

    def _heal(self) -> None:
        fabric = self.fabric
        fabric.heal()
        self.promises.healed()
        for name in [name for name in fabric.nodes if name not in self.promises.probes]:
            self._untwin(name, "told")
        for node in fabric.nodes.values():
            node.disk.full = False
            for broker in node.brokers.values():
                broker.delay_s = min(broker.delay_s, 0.5)
            if self.promises.clocks_ms:
                node.clock_ahead_ms = 0
            if not node.brokers_up:
                fabric.restart_broker(node)
            if not node.running:
                fabric.restart(node)
        fabric.settle()
        if self.promises.ends_s:
            fabric.run(RECOVERY_S)  # wills that were kept over a crash are late
            fabric.settle()
        if self._holds():
            fabric.run(self.schedule.settings.hold_s + 1.0)  # neighbors that will not come back
            fabric.settle()

    def _holds(self) -> bool:
        """Whether a node keeps a neighbor that is not there."""
        return any(
            not link.state.up for node in self.fabric.nodes.values() for link in node.exchange.links
        )

    def _leave(self) -> None:
        """Every client ends its session for good."""
        for client in self.clients.values():
            client.disconnect()
        self.fabric.settle()
        for client in self.clients.values():
            client.clean_start, client.session_expiry_s, client.will = True, 0, None
            client.wanted.clear()
            client.connect()
        self.fabric.settle()
        for client in self.clients.values():
            client.disconnect()
        self.fabric.settle()
        check_topology(self.fabric)
        check_empty(self.fabric)
