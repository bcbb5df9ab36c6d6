"""What is promised of the messages of a schedule, and whether it was kept.

`isthmus.sim.run` lists the promises; each `check_…` here raises `Violation` if its own is broken.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, pairwise

from isthmus.exchange.retained.broker import DOUBT_S
from isthmus.exchange.retained.service import JOURNAL_S
from isthmus.graph import path_to, search
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.packets import Publish
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import Violation, check_retained
from isthmus.sim.names import has_rules, names_at
from isthmus.sim.node import SimNode
from isthmus.sim.schedule import CONFIRMED, STEADY, TOPICS, Schedule

__all__ = ["PromisedMessage", "Promises"]

NEVER_S = -1e9
SETTLED_S = 2.0
"""Before a neighbor is let go, a message that is published may or may not be for it any more."""
KNOWN_S = 10.0
"""After a neighbor has come, it may not be known yet what is wanted behind it."""
KEPT_S = 3_600
"""A session that is kept for so long does not end when its client loses its connection."""
BOUND_MS = 3_600_000
"""How far clocks may be wrong for retained messages to be the newest everywhere."""

COMPLETE = (*STEADY, "double", "expiry", "renamed", "duplicates", "clocks", "brokers", "clients")
"""Profiles in which messages at QoS 1 and 2 are not lost, but for what `_may_miss` says."""
ONCE = (*STEADY, "expiry", "duplicates", "clocks", "brokers", "clients")
"""Profiles in which no node that has clients ends, so nothing comes twice."""
RINGS = ("churn", "found", "chaos", "attack", "storms")
"""Profiles in which links close rings."""
HELD_UP_S = 30.0
"""The longest that a message is under way."""
SLOW_S = 0.3
"""A wire on which a message takes so long that a ring of them may change meanwhile."""
ONCE_AT_THE_STEADY = ("double", "outlast", "renamed", "storms")
"""Profiles in which nothing comes twice to clients of nodes that do not end."""


@dataclass(frozen=True, slots=True)
class PromisedMessage:
    """What was published, and by whom."""

    at_s: float
    node: str
    publisher: str
    topic: str
    qos: int
    retain: bool
    order: int = 0
    expiry_s: int | None = None
    links: frozenset[tuple[str, str]] = frozenset()
    """`outlast`: which node had which neighbor just then, also if the link between was cut."""
    wanted: frozenset[str] = frozenset()
    """With `confirm`: clients that wanted it."""
    joined: frozenset[str] = frozenset()
    """`storms`: who was connected with its node over links that were up, if that was in a tree with
    everybody, or with nobody yet."""


@dataclass(slots=True)
class Promises:
    """What was done to a fabric, and what must have come of it."""

    schedule: Schedule
    fabric: SimFabric
    clients: dict[str, SimClient] = field(default_factory=dict)
    probes: dict[str, SimClient] = field(default_factory=dict)
    messages: dict[bytes, PromisedMessage] = field(default_factory=dict)
    ends_s: list[float] = field(default_factory=list)
    """When nodes and brokers ended."""
    retained: list[tuple[float, str, int]] = field(default_factory=list)
    """Retained messages and deletions: when, on which topic, after how many other messages."""
    deleted: set[str] = field(default_factory=set)
    """Topics of which a retained message was deleted."""
    cuts: list[tuple[float, float]] = field(default_factory=list)
    """When partitions began and ended."""
    wills: dict[bytes, SimNode] = field(default_factory=dict)
    """Whose clients have them."""
    refused: dict[str, SimClient] = field(default_factory=dict)
    """Clients that their brokers refuse."""
    forbidden: set[bytes] = field(default_factory=set)
    """What those have said."""
    renamed: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    confirmed: set[PromisedMessage] = field(default_factory=set)
    """What its publisher has an acknowledgment for."""
    clocks_ms: list[int] = field(default_factory=list)
    """How wrong clocks have been."""

    def publish(
        self,
        client: SimClient,
        topic: str,
        payload: str,
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: int | None = None,
    ) -> bool:
        """False if the client is not connected."""
        if not client.publish(topic, payload.encode(), qos=qos, retain=retain, expiry_s=expiry_s):
            return False
        if retain:
            self.retained.append((self.fabric.now_s, topic, len(self.messages)))
            if not payload:
                self.deleted.add(topic)
        if payload:
            self.messages[payload.encode()] = PromisedMessage(
                self.fabric.now_s,
                client.node.name,
                client.client_id,
                topic,
                qos,
                retain,
                len(self.messages),
                expiry_s,
                self._links() if self.schedule.profile == "outlast" else frozenset(),
                joined=self._joined(client.node)
                if self.schedule.profile == "storms"
                else frozenset(),
                wanted=self._wanted(topic, client.node)
                if self.fabric.confirm.is_on
                else frozenset(),
            )
        return True

    def _joined(self, node: SimNode) -> frozenset[str]:
        if not node.running or 1 < node.exchange.algorithm.fabric_size < len(self.schedule.nodes):
            return frozenset()
        up = {
            (each.name, link.info.name)
            for each in self.fabric.nodes.values()
            if each.running
            for link in each.exchange.links
            if link.state.up
        }
        return frozenset(search([(a, b) for a, b in up if (b, a) in up], node.name))

    def cut(self) -> None:
        self.cuts.append((self.fabric.now_s, float("inf")))

    def healed(self) -> None:
        now_s = self.fabric.now_s
        self.cuts = [(cut_s, min(until_s, now_s)) for cut_s, until_s in self.cuts]

    def barge(self, client_id: str, packet: Publish) -> None:
        """A client that may not connect sends CONNECT and PUBLISH in one write."""
        client = self.refused[client_id]
        self.forbidden.add(packet.payload)
        if client.will is not None:
            self.forbidden.add(client.will.payload)
        client.connect_and_publish(packet)

    def _links(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            (name, link.info.name)
            for name, node in self.fabric.nodes.items()
            if node.host is not None
            for link in node.host.exchange.links
            if link.state.session
        )

    def retained_converges(self) -> bool:
        """Not asked of nodes and brokers that forget, nor of a journal that was not written yet."""
        if self.renamed or any(node.forgetful for node in self.fabric.nodes.values()):
            return False
        if self._clocks_too_wrong():
            return False
        if not self.ends_s:
            return True
        return all(
            spec.state_dir and spec.persistent_broker for spec in self.schedule.nodes
        ) and not any(
            retained_s <= end_s < retained_s + 2 * JOURNAL_S
            for end_s in self.ends_s
            for retained_s, _, _ in self.retained
        )

    def _clocks_too_wrong(self) -> bool:
        return any(abs(ahead_ms) >= BOUND_MS for ahead_ms in self.clocks_ms)

    def _matching(self, topic: str, node: str) -> list[SimClient]:
        """The connected clients that want `topic`, wherever they are connected with `node`."""
        names = self._names(topic, node)
        found = []
        for client in self.clients.values():
            session = client.node.broker_of(topic).sessions.get(client.client_id)
            if (
                (name := names.get(client.node.name)) is not None
                and client.connected
                and session is not None
                and any(matches(each, name) for each in session.filters)
            ):
                found.append(client)
        return found

    def _names(self, topic: str, node: str) -> dict[str, str]:
        """What a message on `topic` of `node` is called where it can come to."""
        if has_rules(self.fabric):
            return names_at(self.fabric, topic, node)
        return dict.fromkeys(search(self.fabric.wanted_links(), node), topic)

    def _unsure(self, topic: str, node: str) -> set[str]:
        """Who wants `topic` by a filter that its broker keeps and it has no use for any more.

        It ended it while its connection was broken; its node knows of it or not.
        """
        names = self._names(topic, node)
        return {
            client.client_id
            for client in self.clients.values()
            if (
                session := client.node.broker_of(names.get(client.node.name, topic)).sessions.get(
                    client.client_id
                )
            )
            is not None
            and (name := names.get(client.node.name, topic))
            and any(matches(each, name) for each in session.filters)
            and not any(matches(each, name) for each in session.filters if each in client.wanted)
        }

    def check_complete(self) -> None:
        if not self._is_complete():
            return
        refused = self._refused_by_one()
        for payload, message in self.messages.items():
            if message.qos == 0 or (self._forgetful() and message not in self.confirmed):
                continue
            if payload in refused:
                continue
            for client in self._matching(message.topic, message.node):
                if payload not in client.payloads() and not self._may_miss(message, client):
                    raise Violation(
                        f"{payload.decode()} ({message}) never reached {client.client_id} "
                        f"at {client.node.name}"
                    )
        for client in self.clients.values():
            self._check_order(client)
            if self.fabric.confirm.is_on and client.unanswered:
                raise Violation(f"{client.client_id} waits for answers to {client.unanswered}")

    def _refused_by_one(self) -> set[bytes]:
        """Whose publisher was told that the one of several brokers in charge is away."""
        if self.fabric.broker_settings is None:
            return set()
        return {payload for client in self.clients.values() for payload in client.refused}

    def acknowledged(self, payload: bytes) -> None:
        """A publisher has been told, just now, that it has given a message away."""
        message = self.messages.get(payload)
        if message is None:
            return
        self.confirmed.add(message)
        if not self.fabric.confirm.is_on or not self._is_complete():
            return
        if message.retain and message.qos == 2:
            return  # acknowledged by its own broker alone
        for client in map(self.clients.__getitem__, message.wanted):
            node = client.node
            if payload not in node.published and not self._may_miss(message, client):
                raise Violation(f"{payload.decode()} ({message}) is confirmed, not at {node.name}")

    def _wanted(self, topic: str, node: SimNode) -> frozenset[str]:
        """Whose subscriptions to `topic` are known everywhere, and that stay, if it is away too."""
        known_s = self.fabric.now_s - KNOWN_S
        reached = search(self.fabric.wanted_links(), node.name)
        names = self._names(topic, node.name)  # where it may not come by the rules, there is none
        return frozenset(
            client.client_id
            for client in self.clients.values()
            if client.node.name in reached
            and client.node.name in names
            and client.session_expiry_s > KEPT_S
            and any(
                since_s <= known_s and matches(each, names[client.node.name])
                for each, since_s in client.granted.items()
            )
        )

    def _forgetful(self) -> bool:
        return self.schedule.profile in CONFIRMED

    def _is_complete(self) -> bool:
        """Where the graph changes, what survives that has to deliver everything."""
        profile = self.schedule.profile
        if profile in CONFIRMED:
            return self.fabric.confirm.is_on
        if profile == "apart":  # neighbors are not set apart where the algorithm finds the ways
            return self.fabric.topology == "tree"
        return profile in COMPLETE or (profile == "storms" and self._changes_ways())

    def _may_miss(self, message: PromisedMessage, client: SimClient) -> bool:
        if message.expiry_s is not None:
            return True
        if message.topic in client.node.broker_of(message.topic).poison:
            return True
        if self._confirms_too_much() and message not in self.confirmed:
            return True  # its publisher was told, and has hung up with what was not read yet
        if self.fabric.confirm.is_on and client.client_id not in message.wanted:
            return True  # its node may have closed its connection, and its session was over then
        if self.schedule.profile == "storms" and client.node.name not in message.joined:
            return bool(self.fabric.nodes[message.node].ended_s)  # it has just come back
        return self._touched(message, client)

    def _confirms_too_much(self) -> bool:
        """Whether more may wait to be confirmed than a node keeps in mind."""
        return self.fabric.confirm.is_on and self.schedule.profile == "apart"

    def _touched(self, message: PromisedMessage, client: SimClient) -> bool:
        """Whether on its way there was a node whose id was not its own alone all the time.

        What the way is in a mesh, only its algorithm knows.  Who survives changes has to find one
        without such a node, if there is any.
        """
        touched = self.renamed | self.duplicated
        if touched and self._changes_ways():
            links = [link for link in self.schedule.links if touched.isdisjoint(link)]
            return client.node.name not in search(links, message.node)
        if self.fabric.topology == "any":
            return bool(touched)
        return bool(touched) and not touched.isdisjoint(self._way(message.node, client.node.name))

    def _way(self, one: str, other: str) -> tuple[str, ...]:
        """The nodes from `one` to `other` in the tree that the schedule began with."""
        return path_to(search(self.schedule.links, one), other)

    def check_counted(self) -> None:
        """What was lost because a neighbor was given up is counted as given up.

        Where an algorithm has several ways it may be lost because its way was another one.
        """
        rings = len(self.schedule.links) >= len(self.schedule.nodes)
        if self.schedule.profile != "outlast" or (self.fabric.topology == "any" and rings):
            return
        lost = {
            payload
            for payload, message in self.messages.items()
            if message.qos
            for client in self._matching(message.topic, message.node)
            if payload not in client.payloads()
            and self._was_for(message, client)
            and not self._was_away(message, client)
        }
        counted = sum(node.given_up for node in self.fabric.nodes.values())
        if len(lost) > counted:
            names = sorted(payload.decode() for payload in lost)
            raise Violation(f"{len(lost)} messages are lost and {counted} given up: {names}")

    def _was_for(self, message: PromisedMessage, client: SimClient) -> bool:
        """Whether every node on the way had the next one as its neighbor, and none ended."""
        way = self._way(message.node, client.node.name)
        trace = self.fabric.trace
        return (
            all(pair in message.links for pair in pairwise(way))
            and not any(
                message.at_s <= at_s <= message.at_s + SETTLED_S and {one, other} <= set(way)
                for at_s, one, other in trace.departures
            )
            and not any(
                message.at_s - KNOWN_S <= at_s <= message.at_s and {one, other} <= set(way)
                for at_s, one, other in trace.arrivals
            )
            and not any(self.fabric.nodes[name].ended_s for name in way)
        )

    @staticmethod
    def _was_away(message: PromisedMessage, client: SimClient) -> bool:
        """Whether its connection was closed, and with it its session ended, about that time.

        With `confirm` that is how a client of MQTT 3.1.1 is told.
        """
        return client.clean_start and client.back_s > message.at_s - KNOWN_S

    def check_refused(self) -> None:
        """Nothing of a client that its broker refuses is at any broker."""
        for name, node in self.fabric.nodes.items():
            if found := self.forbidden & node.published.keys():
                raise Violation(f"of clients that may not connect, {sorted(found)} reached {name}")
        for client in self.refused.values():
            if client.connected or client.received:
                raise Violation(f"{client.client_id} may not connect, and did")

    def _check_order(self, client: SimClient) -> None:
        """Of the first time that each came: what a crash repeats, it repeats in order as well."""
        seen: dict[tuple[str, str, int], PromisedMessage] = {}
        first = {each.payload: each.at_s for each in reversed(client.received)}
        for payload in dict.fromkeys(client.payloads()):
            message = self.messages.get(payload)
            if message is None or message.qos == 0 or message.retain:
                continue
            expires_s = message.at_s + (message.expiry_s or math.inf)
            if self._changes_ways() and first[payload] >= expires_s:
                continue  # it has gone a long way, and seconds are rounded in its favor
            if self._touched(message, client):
                continue
            key = (message.publisher, message.topic, message.qos)
            if key in seen and message.order < seen[key].order:
                raise Violation(f"{client.client_id} got {seen[key]} before {payload!r} of {key}")
            seen[key] = message

    def _changes_ways(self) -> bool:
        """Whether the algorithm sends what is under way again on other ways."""
        return bool(getattr(self.fabric.factory, "survives_changes", False))

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
            unsure = self._unsure(self.messages[payload].topic, self.messages[payload].node)
            for client_id in unsure:
                if got[payload][client_id] < 2:
                    del got[payload][client_id]
            if got[payload] != Counter(clients - unsure):
                raise Violation(
                    f"{payload.decode()} should reach {sorted(clients)} once each "
                    f"and reached {dict(got[payload])}"
                )

    def check_late(self) -> None:
        """At every node somebody comes to want all that is retained, and gets the newest of it."""
        late = {name: node.client(f"late-{name}") for name, node in self.fabric.nodes.items()}
        for client in late.values():
            client.subscribe("r/#")
        self.fabric.settle()
        check_retained(self.fabric)
        for name, client in late.items():
            last = {each.topic: each.payload for each in client.received}
            for topic, publish in self.fabric.nodes[name].retained.items():
                if matches("r/#", topic) and last.get(topic) != publish.payload:
                    raise Violation(
                        f"{client.client_id} got {last.get(topic)!r} of {topic}, "
                        f"where {publish.payload!r} is retained"
                    )
        for client in late.values():
            client.disconnect()
        self.fabric.settle()

    def check_wills(self) -> None:
        """Every client that is there vanishes, one after the other."""
        for client in self.clients.values():
            if not client.connected or client.will is None:
                continue
            will = client.will
            self.messages[will.payload] = PromisedMessage(
                self.fabric.now_s, client.node.name, client.client_id, will.topic, 1, False
            )
            client.vanish()
            left_out = self._unsure(will.topic, client.node.name) | {client.client_id}
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
        for client in self.clients.values():
            live = Counter(each.payload for each in client.received if not each.retain)
            for payload, count in live.items():
                if count < 2 or not payload or payload == b"flood":
                    continue
                message = self.messages.get(payload)
                if message is not None and message.retain and self._clocks_too_wrong():
                    continue  # what is stamped anew is news
                if message is not None and (
                    self._held_up(message) or self._mixed_up(message) or self._compared(message)
                ):
                    continue
                poisoned = message is not None and client.node.broker_of(message.topic).poison
                if message is not None and message.qos and poisoned:
                    continue  # its node's session falls, and what was in flight is published anew
                if payload in self.wills and self.wills[payload].ended_s:
                    continue  # sent by a node that ended before it had noted that
                if message is not None and (
                    self._is_sent_again(payload, message, count) or self._is_taken_again(message)
                ):
                    continue
                last_end_s = self._last_end_s(client, message)
                excused = last_end_s > NEVER_S and (
                    message is None
                    or ((message.qos or message.retain) and message.at_s <= last_end_s)
                )
                if not excused:
                    raise Violation(
                        f"{client.client_id} at {client.node.name} got {payload!r} "
                        f"({message}) {count} times"
                    )

    def check_disks(self) -> None:
        """When everybody has everything, nothing waits on disk."""
        for name, node in self.fabric.nodes.items():
            if self.schedule.profile == "apart" and node.disk.spools:
                raise Violation(f"{name} still keeps {sorted(node.disk.spools)}")

    def _is_sent_again(self, payload: bytes, message: PromisedMessage, count: int) -> bool:
        """By its publisher, whose connection ended before it was acknowledged.

        At QoS 2 its node knows that it has had it; but with `confirm` not if it ended, or has told
        the publisher that somebody misses it.
        """
        publisher = self.clients.get(message.publisher)
        if publisher is None or count > 1 + publisher.repeated[payload]:
            return False
        if message.qos == 1:
            return True
        node = self.fabric.nodes[message.node]
        told = node.host is not None and node.host.relay.counters.not_confirmed
        ended = any(end_s >= message.at_s for end_s in node.ended_s)
        return self.fabric.confirm.is_on and bool(told or ended)

    def _is_taken_again(self, message: PromisedMessage) -> bool:
        """With ``source = "broker"``, by a node that ended and does not know that it had it.

        Its own broker delivers again what it had not acknowledged; one of MQTT 3.1.1 also what the
        node itself had published there, and had not had back yet.
        """
        return self.fabric.from_broker and any(
            end_s >= message.at_s
            for node in self.fabric.nodes.values()
            if node.name == message.node or node.broker.level < 5
            for end_s in node.ended_s
        )

    def _mixed_up(self, message: PromisedMessage) -> bool:
        """What was retained before it has waited for a broker that was away, and came after it.

        Then the broker is given this one once more.
        """
        return message.retain and any(
            topic == message.topic
            and retained_s != message.at_s
            and retained_s - DOUBT_S <= message.at_s <= retained_s + HELD_UP_S
            and any(retained_s - HELD_UP_S <= end_s <= message.at_s for end_s in self.ends_s)
            for retained_s, topic, _ in self.retained
        )

    def _compared(self, message: PromisedMessage) -> bool:
        """In a mesh: a comparison with a third node brought it, and a newer one followed it.

        When the link that it waited for is back, it is not known any more.
        """
        return (
            message.retain
            and self.fabric.topology == "any"
            and any(
                topic == message.topic and retained_s > message.at_s
                for retained_s, topic, _ in self.retained
            )
        )

    def _held_up(self, message: PromisedMessage) -> bool:
        """At QoS 0, without a number: it was under way for long while a ring changed.

        By a partition, or over slow wires: it then comes by the old way and, late, by the new one.
        """
        if message.qos or self.schedule.profile not in RINGS or self._changes_ways():
            return False
        schedule = self.schedule
        slow = schedule.delay_s >= SLOW_S or schedule.lane_delay_s or schedule.control_delay_s
        stalled = slow or any(
            cut_s < message.at_s + SETTLED_S and healed_s > message.at_s
            for cut_s, healed_s in self.cuts
        )
        trace = self.fabric.trace
        # Of a link that has just come, not everybody has heard yet.
        return stalled and any(
            message.at_s - SETTLED_S < at_s < message.at_s + HELD_UP_S
            for at_s, _, _ in chain(trace.departures, trace.arrivals)
        )

    def _last_end_s(self, client: SimClient, message: PromisedMessage | None) -> float:
        """Until when something may come twice to `client`."""
        if self.schedule.profile in ONCE:
            return NEVER_S
        if self.schedule.profile == "apart":
            brokers = client.node.brokers.values()
            ended_s = (each for broker in brokers for each in broker.ended_s)
            return max((*client.node.ended_s, *ended_s), default=NEVER_S)
        if self.schedule.profile in ONCE_AT_THE_STEADY:
            return max(client.node.ended_s, default=NEVER_S)
        if self.schedule.profile == "found" and self._changes_ways():
            origin = self.fabric.nodes[message.node].ended_s if message is not None else []
            return max((*client.node.ended_s, *origin), default=NEVER_S)
        return max(self.ends_s, default=NEVER_S)
