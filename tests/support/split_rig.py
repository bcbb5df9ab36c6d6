"""One node before several brokers, without sockets: the test is the clients and the brokers.

`Rig` has the production `Relay`, `ClientSession`, `BrokerSession`, `Split` and `Exchange`; in
memory are the wires, and the virtual clock is driven by hand.  Brokers are called ``one`` (the
default) and ``two`` (`TOPICS`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay, Unpaced
from isthmus.exchange.exchange import Exchange, ExchangeSettings
from isthmus.exchange.session import Session
from isthmus.exchange.split.brokers import LOOK_S, TRY_S, Brokers, BrokersSettings
from isthmus.exchange.turns import Turns
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import ConnAck, Connect, Packet
from isthmus.sim.fabric import SimFabric
from support.hosts import HandHost, MemoryWire

__all__ = ["TOPICS", "RigBroker", "RigClient", "SplitRig"]

TOPICS = ("two/#", "+/both")
LIMITS = ClientLimits(packet_bytes=100_000, buffer_bytes=1024)


class Recorder(CooperationAlgorithm):
    """Notes which brokers come and go."""

    name = "recorder"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: list[tuple[str, str]] = []

    def on_broker_down(self, name: str) -> None:
        self.told.append(("down", name))

    def on_broker_up(self, name: str) -> None:
        self.told.append(("up", name))


class _Host(HandHost):
    def __init__(self, rig: SplitRig, engine: Any) -> None:
        super().__init__(engine)
        self._rig = rig

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self._rig.dialed[broker].append((session, failed))


class RigClient:
    """A client of the node."""

    def __init__(self, rig: SplitRig, level: int) -> None:
        self.rig = rig
        self.level = level
        self.session = ClientSession(rig.relay, "mqtt")
        self.wire = MemoryWire(rig.host, self.session, 1)
        self.session.connection_made(self.wire)

    def say(self, *packets: Packet) -> None:
        self.wire.feed(b"".join(encode(packet, self.level) for packet in packets))
        self.rig.host.run()

    def heard(self) -> list[Packet]:
        self.rig.host.run()
        return packets_in(self.wire.taken(), self.level)

    def hangs_up(self) -> None:
        self.wire.feed(b"")
        self.rig.host.run()

    @property
    def closed(self) -> bool:
        self.rig.host.run()
        return self.wire.closing


class RigBroker:
    """A broker's end of one connection."""

    def __init__(self, rig: SplitRig, session: Session) -> None:
        self.rig = rig
        self.wire = MemoryWire(rig.host, session)
        self.level = 5
        session.connection_made(self.wire)
        rig.host.run()

    def heard(self) -> list[Packet]:
        self.rig.host.run()
        return packets_in(self.wire.taken(), self.level)

    def greeting(self) -> Connect:
        """The CONNECT that it gets."""
        connect = decode_connect(self.wire.taken())
        self.level = connect.protocol_level
        return connect

    def say(self, *packets: Packet) -> None:
        self.wire.feed(b"".join(encode(packet, self.level) for packet in packets))
        self.rig.host.run()

    def accepts(self, **said: Any) -> Connect:
        connect = self.greeting()
        self.say(ConnAck(**said))
        return connect

    def closes(self) -> None:
        self.wire.close()
        self.rig.host.run()


def packets_in(data: bytes, level: int) -> list[Packet]:
    return [decode(data[a:b], level) for a, b in pairwise(scan(data))]


class SplitRig:
    """The node, and who is connected."""

    def __init__(
        self,
        algorithm: type[CooperationAlgorithm] = Recorder,
        *,
        default: str = "one",
        names: tuple[str, ...] = ("one", "two"),
        topics: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        fabric = SimFabric(algorithm=algorithm)
        self.node = fabric.node("n")
        self.host = _Host(self, fabric.engine)
        self.dialed: dict[str, deque[tuple[Session, Callable[[str], None]]]] = defaultdict(deque)
        assert self.node.host is not None
        settings = BrokersSettings(names, topics or {"two": TOPICS}, default)
        self.exchange = Exchange(
            self.node.host, ExchangeSettings("n", "recorder", brokers=settings), algorithm
        )
        assert self.exchange.brokers is not None
        self.brokers: Brokers = self.exchange.brokers
        self.brokers.join(self.host, lambda _: encode(Connect("isthmus-n-:looks"), 5))
        self.exchange.start()
        self.relay = Relay(
            self.host,
            self.exchange,
            LIMITS,
            counters=Counters(),
            pacer=Unpaced(),
            turns=Turns(self.host),
            own_client_ids="isthmus-n-",
        )

    @property
    def recorder(self) -> Recorder:
        assert isinstance(self.exchange.algorithm, Recorder)
        return self.exchange.algorithm

    def client(self, client_id: str = "c", level: int = 5, **connect: Any) -> RigClient:
        """A client that has said CONNECT."""
        client = RigClient(self, level)
        client.say(Connect(client_id, protocol_level=level, **connect))
        return client

    def joined(self, client_id: str = "c", level: int = 5, **connect: Any) -> RigClient:
        """A client that broker ``one`` has let in."""
        client = self.client(client_id, level, **connect)
        self.one = self.connects("one")
        self.one.accepts()
        client.heard()
        return client

    def connects(self, name: str) -> RigBroker:
        """The broker takes the next connection."""
        session, _ = self.dialed[name].popleft()
        return RigBroker(self, session)

    def refuses(self, name: str) -> None:
        """The broker takes no connection."""
        _, failed = self.dialed[name].popleft()
        failed("connection refused")
        self.host.run()

    def goes(self, name: str, *brokers: RigBroker) -> None:
        """The broker is away, with these connections."""
        for broker in brokers:
            broker.closes()
        self.host.run(LOOK_S)
        if not self.brokers.is_away(name):
            self.refuses(name)

    def comes_back(self, name: str) -> None:
        """It answers the node's question."""
        self.host.run(TRY_S)
        question = self.connects(name)
        question.say(ConnAck())
        question.closes()
        self.host.run()
