"""Runs a schedule and checks what is promised of it.

After the last action everything is healed and left to rest.  Then

1.  the active links are a spanning forest of what is linked, with both ends agreeing;
2.  SF: inter-subscriptions are exactly the definition's, and no client's interest is unknown;
3.  brokers that are connected hold the same retained messages, unless a node or broker that keeps
    nothing ended, or one did within a second of a retained message;
4.  a message from any node on any topic reaches every matching client exactly once, nobody else;
5.  so does the will of a client that vanishes;
6.  no message was delivered twice: at QoS 0 never, at QoS 1 and 2 unless the subscriber's node or
    a broker ended after it was published;
7.  `outages` and `kills`: every message at QoS 1 and 2 reached every matching client, and one
    publisher's messages on one topic in order;
8.  after all clients have left, nothing of their interest is left.

A fabric that does not come to rest fails too: something circulates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.exchange.link import LinkStatus
from isthmus.exchange.recovery import RECOVERY_S
from isthmus.exchange.retention import JOURNAL_S
from isthmus.mqtt.packets import Will
from isthmus.mqtt.topics import matches
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.invariants import (
    Violation,
    check_at_rest,
    check_empty,
    check_topology,
    component_of,
)
from isthmus.sim.network import Wire
from isthmus.sim.node import SimNode
from isthmus.sim.schedule import STEADY, TOPICS, Action, Schedule

__all__ = ["Outcome", "ScheduleFailed", "run_schedule"]

LARGE = 1e9


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
class Outcome:
    """What a run that kept all promises did."""

    events: int
    simulated_s: float
    messages: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class _Message:
    at_s: float
    node: str
    publisher: str
    topic: str
    qos: int
    retain: bool


def run_schedule(
    schedule: Schedule,
    algorithm: str | AlgorithmFactory = "sf",
    *,
    options: Mapping[str, object] | None = None,
    settle_s: float | None = None,
    trace: bool = False,
) -> Outcome:
    """Raises `ScheduleFailed`."""
    run = _Run(schedule, algorithm, options, settle_s, trace=trace)
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
    ) -> None:
        self.schedule = schedule
        self.messages: dict[bytes, _Message] = {}
        self.ends_s: list[float] = []
        """When nodes and brokers ended."""
        self.retained_s: list[float] = []
        """When retained messages were published."""
        self.fabric = SimFabric(
            seed=schedule.seed,
            algorithm=algorithm,
            options=options,
            link=schedule.settings,
            wire=Wire(schedule.delay_s, schedule.bytes_per_s),
            trace=trace,
            settle_s=settle_s,
        )
        self.clients: dict[str, SimClient] = {}
        self.probes: dict[str, SimClient] = {}
        self.wills = 0

    def run(self) -> Outcome:
        self._set_up()
        begin_s = self.fabric.now_s
        for action in self.schedule.actions:
            self.fabric.engine.run_until(begin_s + action.at_s)
            self._do(action)
        self._heal()
        check_at_rest(self.fabric, retained=self._retained_converges())
        if self.schedule.profile in STEADY:
            self._check_complete()
        self._probe()
        self._check_wills()
        self._check_at_most_once()
        self._leave()
        return Outcome(
            self.fabric.engine.events,
            self.fabric.now_s,
            len(self.messages),
            sum(len(client.received) for client in self.clients.values()),
        )

    def _set_up(self) -> None:
        fabric = self.fabric
        for spec in self.schedule.nodes:
            fabric.node(
                spec.name,
                state_dir=spec.state_dir,
                persistent_broker=spec.persistent_broker,
                broker_level=spec.broker_level,
                clock_ahead_ms=spec.clock_ahead_ms,
            )
        for a, b in self.schedule.links:
            fabric.link(fabric.nodes[a], fabric.nodes[b])
        for each in self.schedule.clients:
            persistent = bool(each.session_expiry_s)
            client = fabric.nodes[each.node].client(
                each.client_id,
                level=each.level,
                clean_start=not persistent,
                session_expiry_s=each.session_expiry_s,
                will=self._will(each.will_topic) if each.will_topic else None,
            )
            client.connecting = self._renew_will
            if each.filters:
                client.subscribe(*each.filters)
            self.clients[each.client_id] = client
        for name, node in fabric.nodes.items():
            self.probes[name] = node.client(f"probe-{name}")
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
                self._publish(self.clients[client], topic, int(qos), retain == "1", payload)
            case "subscribe", (client, topic_filter, qos):
                self.clients[client].subscribe(topic_filter, qos=int(qos))
            case "unsubscribe", (client, topic_filter):
                self.clients[client].unsubscribe(topic_filter)
            case "connect", (client,):
                self.clients[client].connect()
            case "disconnect", (client,):
                self.clients[client].disconnect()
            case "vanish", (client,):
                self.clients[client].vanish()
            case "link", (a, b):
                fabric.link(fabric.nodes[a], fabric.nodes[b])
            case "unlink", (a, b):
                fabric.unlink(fabric.nodes[a], fabric.nodes[b])
            case "break", (a, b):
                fabric.break_connections(fabric.nodes[a], fabric.nodes[b])
            case "partition", side:
                one = [node for name, node in fabric.nodes.items() if name in side]
                fabric.partition(one, [n for n in fabric.nodes.values() if n not in one])
            case "heal", _:
                fabric.heal()
            case kind, (name, *rest):
                self._end_or_begin(kind, fabric.nodes[name], rest)
            case _:
                raise ValueError(f"no such action: {action}")

    def _end_or_begin(self, kind: str, node: SimNode, rest: list[str]) -> None:
        if kind in ("crash", "stop", "broker-crash"):
            self.ends_s.append(self.fabric.now_s)
        match kind:
            case "crash":
                self.fabric.crash(node, silent=rest == ["silent"])
            case "stop":
                self.fabric.stop(node)
            case "restart":
                self.fabric.restart(node)
            case "broker-crash" if node.broker.up:
                self.fabric.crash_broker(node)
            case "broker-restart" if not node.broker.up:
                self.fabric.restart_broker(node)
            case "broker-crash" | "broker-restart":
                pass
            case _:
                raise ValueError(f"no such action: {kind}")

    def _renew_will(self, client: SimClient) -> None:
        if client.will is not None:
            client.will = self._will(client.will.topic)

    def _publish(self, client: SimClient, topic: str, qos: int, retain: bool, payload: str) -> bool:
        if not client.publish(topic, payload.encode(), qos=qos, retain=retain):
            return False
        if retain:
            self.retained_s.append(self.fabric.now_s)
        if payload:
            self.messages[payload.encode()] = _Message(
                self.fabric.now_s, client.node.name, client.client_id, topic, qos, retain
            )
        return True

    def _heal(self) -> None:
        fabric = self.fabric
        fabric.heal()
        for node in fabric.nodes.values():
            if not node.broker.up:
                fabric.restart_broker(node)
            if not node.running:
                fabric.restart(node)
        fabric.settle()
        if self.ends_s:
            fabric.run(RECOVERY_S)  # wills that were kept over a crash are late
            fabric.settle()
        if self._holds():
            fabric.run(self.schedule.settings.hold_s + 1.0)  # neighbours that will not come back
            fabric.settle()

    def _holds(self) -> bool:
        """Whether a node keeps a neighbour that is not there."""
        return any(
            link.status is LinkStatus.DOWN
            for node in self.fabric.nodes.values()
            for link in node.exchange.links
        )

    # ---- promises ------------------------------------------------------------------------

    def _retained_converges(self) -> bool:
        """Not asked of nodes and brokers that forget, nor of a journal that was not written yet."""
        if not self.ends_s:
            return True
        return all(
            spec.state_dir and spec.persistent_broker for spec in self.schedule.nodes
        ) and not any(
            retained_s <= end_s < retained_s + 2 * JOURNAL_S
            for end_s in self.ends_s
            for retained_s in self.retained_s
        )

    def _matching(self, topic: str, node: str) -> list[SimClient]:
        """The connected clients that want `topic`, wherever they are connected with `node`."""
        reached = component_of(self.fabric.wanted_links(), node)
        found = []
        for client in self.clients.values():
            session = client.node.broker.sessions.get(client.client_id)
            if (
                client.node.name in reached
                and client.connected
                and session is not None
                and any(matches(each, topic) for each in session.filters)
            ):
                found.append(client)
        return found

    def _check_complete(self) -> None:
        for payload, message in self.messages.items():
            if message.qos == 0:
                continue
            for client in self._matching(message.topic, message.node):
                if payload not in client.payloads():
                    raise Violation(
                        f"{payload.decode()} ({message}) never reached {client.client_id} "
                        f"at {client.node.name}"
                    )
        for client in self.clients.values():
            self._check_order(client)

    def _check_order(self, client: SimClient) -> None:
        seen: dict[tuple[str, str, int], int] = {}
        for payload in client.payloads():
            message = self.messages.get(payload)
            if message is None or message.qos == 0:
                continue
            number = int(payload[1:])
            key = (message.publisher, message.topic, message.qos)
            if number < seen.get(key, -1):
                raise Violation(
                    f"{client.client_id} got m{seen[key]} before {payload.decode()} of {key}"
                )
            seen[key] = number

    def _probe(self) -> None:
        fabric = self.fabric
        expected: dict[bytes, set[str]] = {}
        for name, probe in self.probes.items():
            for index, topic in enumerate(TOPICS):
                text = f"probe {name} {topic}"
                if not self._publish(probe, topic, index % 3, False, text):
                    raise Violation(f"{probe.client_id} is not connected although {name} runs")
                expected[text.encode()] = {
                    client.client_id for client in self._matching(topic, name)
                }
        fabric.settle()
        got: dict[bytes, Counter[str]] = {payload: Counter() for payload in expected}
        for client in self.clients.values():
            for payload in client.payloads():
                if payload in got:
                    got[payload][client.client_id] += 1
        for payload, clients in expected.items():
            if got[payload] != Counter(clients):
                raise Violation(
                    f"{payload.decode()} should reach {sorted(clients)} once each "
                    f"and reached {dict(got[payload])}"
                )

    def _check_wills(self) -> None:
        """Every client that is there vanishes, one after the other."""
        for client in self.clients.values():
            if not client.connected or client.will is None:
                continue
            will = client.will
            self.messages[will.payload] = _Message(
                self.fabric.now_s, client.node.name, client.client_id, will.topic, 1, False
            )
            client.vanish()
            expected = {
                each.client_id: 1
                for each in self._matching(will.topic, client.node.name)
                if each is not client
            }
            self.fabric.settle()
            got = {
                each.client_id: count
                for each in self.clients.values()
                if (count := each.payloads().count(will.payload)) and each is not client
            }
            if got != expected:
                raise Violation(f"{will} should reach {expected} and reached {got}")

    def _check_at_most_once(self) -> None:
        steady = self.schedule.profile in STEADY  # nodes that have clients do not end
        last_end_s = -LARGE if steady else max(self.ends_s, default=-LARGE)
        for client in self.clients.values():
            live = Counter(each.payload for each in client.received if not each.retain)
            for payload, count in live.items():
                if count < 2 or not payload:
                    continue
                message = self.messages.get(payload)
                excused = last_end_s > -LARGE and (
                    message is None
                    or ((message.qos or message.retain) and message.at_s <= last_end_s)
                )
                if not excused:
                    raise Violation(
                        f"{client.client_id} at {client.node.name} got {payload!r} "
                        f"({message}) {count} times"
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
