"""A relay on wires in memory, before a broker that is the test."""

from __future__ import annotations

from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay, Unpaced
from isthmus.exchange.turns import Turns
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import ConnAck, Connect
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.sim.fabric import SimFabric
from support.hosts import HandHost, MemoryWire

__all__ = ["LIMITS", "RelayRig"]

LIMITS = ClientLimits(clients=3, connect_timeout_s=10.0, broker_timeout_s=5.0, packet_bytes=200_000)


class RelayRig:
    """One relay; its exchange has no neighbors."""

    def __init__(self, limits: ClientLimits = LIMITS) -> None:
        fabric = SimFabric(algorithm="none")
        self.exchange = fabric.node("n", state_dir=False).exchange
        self.host = HandHost(fabric.engine)
        self.relay = Relay(
            self.host,
            self.exchange,
            limits,
            counters=Counters(),
            pacer=Unpaced(),
            turns=Turns(self.host),
            own_client_ids="isthmus-n-",
        )

    def open(self) -> tuple[ClientSession, MemoryWire]:
        session = ClientSession(self.relay, "mqtt")
        wire = MemoryWire(self.host, session)
        session.connection_made(wire)
        return session, wire

    def broker(self) -> MemoryWire:
        """The connection with the broker that is asked for is made."""
        session, _ = self.host.opening.popleft()
        wire = MemoryWire(self.host, session)
        session.connection_made(wire)
        return wire

    def broker_fails(self, cause: str) -> None:
        _, failed = self.host.opening.popleft()
        failed(cause)

    def connected(
        self, client_id: str = "c", *, level: int = 5, connack: ConnAck | None = None
    ) -> tuple[ClientSession, MemoryWire, MemoryWire]:
        """A client that its broker has accepted, its wire, and the broker's."""
        session, client = self.open()
        client.feed(encode(Connect(client_id, protocol_level=level), level))
        broker = self.broker()
        broker.taken()
        accepted = ConnAck(False, ReasonCode.SUCCESS) if connack is None else connack
        broker.feed(encode(accepted, level))
        client.taken()
        return session, client, broker
