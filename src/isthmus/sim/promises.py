"""What is promised of the messages of a schedule, and whether it was kept.

`isthmus.sim.run` lists the promises; each `check_…` here raises `Violation` if its own is broken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from isthmus.exchange.retention import JOURNAL_S
from isthmus.mqtt.topics import matches
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import Violation, component_of
from isthmus.sim.schedule import STEADY, TOPICS, Schedule

__all__ = ["Message", "Promises"]

NEVER_S = -1e9


@dataclass(frozen=True, slots=True)
class Message:
    """What was published, and by whom."""

    at_s: float
    node: str
    publisher: str
    topic: str
    qos: int
    retain: bool


@dataclass(slots=True)
class Promises:
    """What was done to a fabric, and what must have come of it."""

    schedule: Schedule
    fabric: SimFabric
    clients: dict[str, SimClient] = field(default_factory=dict)
    probes: dict[str, SimClient] = field(default_factory=dict)
    messages: dict[bytes, Message] = field(default_factory=dict)
    ends_s: list[float] = field(default_factory=list)
    """When nodes and brokers ended."""
    retained_s: list[float] = field(default_factory=list)
    """When retained messages were published."""

    def publish(
        self, client: SimClient, topic: str, payload: str, *, qos: int = 0, retain: bool = False
    ) -> bool:
        """False if the client is not connected."""
        if not client.publish(topic, payload.encode(), qos=qos, retain=retain):
            return False
        if retain:
            self.retained_s.append(self.fabric.now_s)
        if payload:
            self.messages[payload.encode()] = Message(
                self.fabric.now_s, client.node.name, client.client_id, topic, qos, retain
            )
        return True

    def retained_converges(self) -> bool:
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

    def _unsure(self, topic: str) -> set[str]:
        """Who wants `topic` by a filter that its broker keeps and it has no use for any more.

        It ended it while its connection was broken; its node knows of it or not.
        """
        return {
            client.client_id
            for client in self.clients.values()
            if (session := client.node.broker.sessions.get(client.client_id)) is not None
            and any(matches(each, topic) for each in session.filters)
            and not any(matches(each, topic) for each in session.filters if each in client.wanted)
        }

    def check_complete(self) -> None:
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

    def check_probes(self) -> None:
        """A message from every node on every topic."""
        expected: dict[bytes, set[str]] = {}
        for name, probe in self.probes.items():
            for index, topic in enumerate(TOPICS):
                text = f"probe {name} {topic}"
                if not self.publish(probe, topic, text, qos=index % 3):
                    raise Violation(f"{probe.client_id} is not connected although {name} runs")
                expected[text.encode()] = {
                    client.client_id for client in self._matching(topic, name)
                }
        self.fabric.settle()
        got: dict[bytes, Counter[str]] = {payload: Counter() for payload in expected}
        for client in self.clients.values():
            for payload in client.payloads():
                if payload in got:
                    got[payload][client.client_id] += 1
        for payload, clients in expected.items():
            unsure = self._unsure(self.messages[payload].topic)
            for client_id in unsure:
                if got[payload][client_id] < 2:
                    del got[payload][client_id]
            if got[payload] != Counter(clients - unsure):
                raise Violation(
                    f"{payload.decode()} should reach {sorted(clients)} once each "
                    f"and reached {dict(got[payload])}"
                )

    def check_wills(self) -> None:
        """Every client that is there vanishes, one after the other."""
        for client in self.clients.values():
            if not client.connected or client.will is None:
                continue
            will = client.will
            self.messages[will.payload] = Message(
                self.fabric.now_s, client.node.name, client.client_id, will.topic, 1, False
            )
            client.vanish()
            left_out = self._unsure(will.topic) | {client.client_id}
            expected = {
                each.client_id: 1
                for each in self._matching(will.topic, client.node.name)
                if each.client_id not in left_out
            }
            self.fabric.settle()
            got = {
                each.client_id: count
                for each in self.clients.values()
                if (count := each.payloads().count(will.payload)) and each.client_id not in left_out
            }
            if got != expected:
                raise Violation(f"{will} should reach {expected} and reached {got}")

    def check_at_most_once(self) -> None:
        steady = self.schedule.profile in STEADY  # nodes that have clients do not end
        last_end_s = NEVER_S if steady else max(self.ends_s, default=NEVER_S)
        for client in self.clients.values():
            live = Counter(each.payload for each in client.received if not each.retain)
            for payload, count in live.items():
                if count < 2 or not payload:
                    continue
                message = self.messages.get(payload)
                excused = last_end_s > NEVER_S and (
                    message is None
                    or ((message.qos or message.retain) and message.at_s <= last_end_s)
                )
                if not excused:
                    raise Violation(
                        f"{client.client_id} at {client.node.name} got {payload!r} "
                        f"({message}) {count} times"
                    )
