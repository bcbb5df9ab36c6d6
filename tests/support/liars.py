"""A simulated node that says what a test wants, on links that are like all others.

Its neighbors run the algorithm; it has the algorithm's name and says nothing by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import combinations
from typing import Any

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.registry import load
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.packets import Publish
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric

__all__ = ["LIAR", "Liar", "LyingFabric"]

LIAR = "liar"
SAID_OF = (
    "name",
    "topology",
    "max_label_bytes",
    "survives_changes",
    "discovers",
    "synchronizes",
    "follows_publishers",
)
"""What an algorithm says of itself."""


class Liar(CooperationAlgorithm):
    """Hears what neighbors say, and says what it is told to."""

    topology = "any"
    discovers = True
    synchronizes = True
    heard: list[tuple[str, list[Any]]]

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self.heard = []
        self.answers: Callable[[str, list[Any]], None] = lambda _neighbor, _said: None
        self.sessions: dict[str, SessionInfo] = {}

    def say(self, neighbor: str, said: object, topic: str = "$isthmus/tree") -> None:
        if neighbor in self.sessions:
            packet = Publish(topic, json.dumps(said).encode())
            message = self.port.create_mqtt_message(packet)
            self.port.send_message(self.sessions[neighbor], message)

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self.sessions[session.name] = session

    def on_session_closed(self, session: SessionInfo) -> None:
        self.sessions.pop(session.name, None)

    def on_timer(self, key: Hashable) -> None:
        pass

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        packet = message.packet
        if isinstance(packet, Publish):
            said = json.loads(packet.payload)
            self.heard.append((session.name, said))
            self.answers(session.name, said)
        return True

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        return Route(to_local_broker=True)


class LyingFabric(SimFabric):
    """Nodes of the names given, each with a publisher and a subscriber, and a liar beside them."""

    def __init__(
        self,
        algorithm: str,
        names: str = "abc",
        links: Iterable[tuple[str, str]] | None = None,
        *,
        beside: str = "a",
        seed: int = 1,
    ) -> None:
        """Without `links` any two are linked; `beside` are the liar's neighbors."""
        honest = load(algorithm)

        def factory(port: Port, options: Mapping[str, object]) -> CooperationAlgorithm:
            if port.node_id != LIAR:
                return honest(port, options)
            made = type("SuchALiar", (Liar,), {key: getattr(honest, key) for key in SAID_OF})
            liar: CooperationAlgorithm = made(port, options)
            return liar

        for key in SAID_OF:
            setattr(factory, key, getattr(honest, key))
        super().__init__(seed=seed, algorithm=factory, link=LinkSettings())
        self.names = names
        for name in names:
            self.node(name)
        for a, b in combinations(names, 2) if links is None else links:
            self.link(self.nodes[a], self.nodes[b], delay_s=0.002)
        self.run(3)
        self.beside = beside
        self.publishers: dict[str, SimClient] = {}
        self.subscribers: dict[str, SimClient] = {}
        self.sent = 0
        for name in names:
            self.add_clients(name)

    def add_clients(self, name: str) -> None:
        self.publishers[name] = self.nodes[name].client(f"publisher-{name}")
        self.subscribers[name] = self.nodes[name].client(f"subscriber-{name}")
        self.subscribers[name].subscribe("t/#")
        self.run(0.5)

    def let_in(self) -> Liar:
        """The liar comes."""
        node = self.node(LIAR)
        for name in self.beside:
            self.link(node, self.nodes[name], delay_s=0.002)
        self.run(1)
        liar = node.algorithm
        assert isinstance(liar, Liar)
        return liar

    def drive_out(self) -> None:
        """The liar goes, and its neighbors have let it go."""
        node = self.nodes[LIAR]
        node.crash()
        for name in self.beside:
            self.unlink(node, self.nodes[name])
        self.run(self.link_settings.hold_s + 10)

    def cut(self, a: str, b: str) -> None:
        self.partition([self.nodes[a]], [self.nodes[b]])

    def lacking(self, within_s: float = 10.0) -> list[tuple[str, str, int]]:
        """Who publishes, who should get it, and how often it does: all that is not once."""
        self.sent += 1
        for name, publisher in self.publishers.items():
            assert publisher.publish("t/1", f"{name}{self.sent}".encode(), qos=1)
        self.run(within_s)
        return [
            (one, other, count)
            for one in self.publishers
            for other, subscriber in self.subscribers.items()
            if (count := subscriber.payloads().count(f"{one}{self.sent}".encode())) != 1
        ]

    def honest_accused(self) -> list[str]:
        """Where a node found another one than the liar at fault."""
        return [said for said in self.trace.accusations if f"'remote': '{LIAR}'" not in said]
