"""What an algorithm is told of local clients, and does with them, through the real relay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from isthmus.cooperation import api
from isthmus.cooperation.api import ReceivedPacket, Route, SessionInfo, SessionKind, SessionStatus
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client import broker_session, client_session
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.exchange import Exchange
from isthmus.exchange.session import Session
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode


class Listening(PublicationFlooding):
    """Notes what it is told of clients."""

    name = "listening"
    inspects_publishes = True
    follows_publishers = True

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.sessions: dict[SessionKind, SessionInfo] = {}
        self.told: list[str] = []
        self.refuses: type[Packet] | None = None

    def on_session_established(self, session: SessionInfo) -> None:
        super().on_session_established(session)
        self.sessions[session.kind] = session

    def on_session_closed(self, session: SessionInfo) -> None:
        super().on_session_closed(session)
        self.told.append(f"{session.kind.value} closed")

    def on_tcp_down(self, session: SessionInfo) -> None:
        self.told.append(f"{session.kind.value} down")

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        self.told.append(f"{session.kind.value} failure: {error}")

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        packet = message.packet
        if isinstance(packet, Publish):
            self.told.append(f"Publish {packet.topic}")
            return packet.payload != b"bad"
        self.told.append(type(packet).__name__)
        if self.refuses is type(packet):
            raise RemoteProtocolError("not here", reason_code=ReasonCode.NOT_AUTHORIZED)
        return True

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        self.told.append(f"interest {added} {removed}")

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        self.told.append(f"publisher {begun} {ended}")


class FakeWire:
    """Notes what is written, and calls nobody."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 1) if name == "peername" else default


class Stage:
    """A client and a broker, packet by packet, with the node's own sessions between them."""

    def __init__(self, level: int = 5, algorithm: type[Listening] = Listening) -> None:
        self.level = level
        self.fabric = SimFabric(algorithm=algorithm)
        self.node: SimNode = self.fabric.node("a")
        listening = self.node.algorithm
        assert isinstance(listening, Listening)
        self.algorithm = listening
        assert self.node.host is not None
        self.node.host.connect_broker = self._connect_broker  # type: ignore[method-assign]
        self.client, self.wire = ClientSession(self.node.host.relay, "mqtt"), FakeWire()
        self.broker: Session
        self.broker_wire = FakeWire()
        self.client.connection_made(self.wire)

    def _connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self.broker = session

    def says(self, packet: Packet) -> None:
        self.client.data_received(encode(packet, self.level))

    def answers(self, packet: Packet) -> None:
        self.broker.data_received(encode(packet, self.level))

    def connect(self) -> Stage:
        self.says(Connect(client_id="c", protocol_level=self.level))
        self.broker.connection_made(self.broker_wire)
        properties = Properties(topic_alias_maximum=9) if self.level == 5 else NO_PROPERTIES
        code = ReasonCode.SUCCESS if self.level == 5 else ConnectReturnCode(0)
        self.answers(ConnAck(False, code, properties))
        return self

    def hear(self) -> bytes:
        heard = bytes(self.wire.written)
        self.wire.written.clear()
        return heard

    def told(self) -> list[str]:
        self.fabric.run(0.001)
        told, self.algorithm.told = self.algorithm.told, []
        return told

    def session(self, kind: SessionKind = SessionKind.LOCAL_CLIENT) -> SessionInfo:
        return self.algorithm.sessions[kind]


PAGE = Path(__file__).parents[4] / "docs" / "reference" / "algorithm-api.md"


class Ordered(Listening):
    """Notes hooks as the page does."""

    def note(self, hook: str, *words: str) -> None:
        self.told.append(" ".join((hook, *words)))

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        self.note("route", arrived_on.kind.value)
        return super().route(topic, arrived_on, retain=retain)

    def on_session_established(self, session: SessionInfo) -> None:
        self.note("on_session_established", session.kind.value)

    def on_session_closed(self, session: SessionInfo) -> None:
        self.note("on_session_closed", session.kind.value)

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        self.note("mqtt_message_arrived", session.kind.value, message.type.name)
        return True

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        self.note("on_local_interest", "added" if added else "removed")

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        self.note("on_local_publisher", session.kind.value, "begun" if begun else "ended")


def test_the_page_says_what_is_told_in_which_order() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    page = [[" ".join(line.split()) for line in block.splitlines()] for block in blocks]
    stage = Stage(algorithm=Ordered).connect()
    happened = [stage.told()]
    stage.says(Subscribe(1, (Subscription("t"),)))
    stage.answers(SubAck(1, (ReasonCode.GRANTED_QOS_0,)))
    happened.append(stage.told())
    stage.says(Publish("t", b"x"))
    happened.append(stage.told())
    stage.says(Publish("t", b"x"))
    assert stage.told() == ["mqtt_message_arrived client PUBLISH"]
    stage.says(Disconnect())
    stage.client.connection_lost(None)
    happened.append(stage.told())
    assert happened == page


@pytest.fixture
def stage() -> Stage:
    return Stage().connect()


def test_connect_subscribe_publish_disconnect(stage: Stage) -> None:
    assert stage.told() == ["Connect", "ConnAck"]
    stage.says(Subscribe(1, (Subscription("t/#"),)))
    assert stage.told() == ["Subscribe"]
    stage.answers(SubAck(1, (ReasonCode.GRANTED_QOS_0,)))
    assert stage.told() == ["SubAck", "interest ('t/#',) ()"]
    stage.says(Publish("t/a", b"1", properties=Properties(topic_alias=1)))
    stage.says(Publish("", b"2", properties=Properties(topic_alias=1)))
    assert stage.told() == ["publisher ('t/a',) ()", "Publish t/a", "Publish t/a"]
    stage.says(Disconnect())
    stage.client.connection_lost(None)
    assert stage.told() == [
        "Disconnect",
        "publisher () ('t/a',)",
        "client closed",
        "broker closed",
        "interest () ('t/#',)",
    ]


def test_a_publish_can_be_kept_back(stage: Stage) -> None:
    stage.hear()
    stage.broker_wire.written.clear()
    stage.says(Publish("t", b"bad", 1, packet_id=7))
    assert stage.hear() == encode(PubAck(7, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR), 5)
    assert stage.broker_wire.written == b""


def test_acknowledgments_are_not_shown(stage: Stage) -> None:
    stage.told()
    stage.says(PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS))
    assert stage.told() == []


def test_an_algorithm_closes_a_client_and_no_neighbor_of_the_same_name(stage: Stage) -> None:
    other = stage.fabric.node("c")
    stage.fabric.link(stage.node, other)
    stage.fabric.settle()
    stage.told()
    stage.hear()
    session = stage.session()
    stage.node.exchange.close_session(session)
    assert session.status is SessionStatus.TERMINATING
    assert not stage.wire.closed  # not from within the call
    stage.fabric.run(0.001)
    assert stage.hear() == encode(Disconnect(ReasonCode.ADMINISTRATIVE_ACTION), 5)
    assert stage.wire.closed
    stage.client.connection_lost(None)
    assert stage.told() == ["client closed", "broker closed"]
    stage.fabric.settle()
    assert [link.info.name for link in stage.node.exchange.links] == ["c"]


@pytest.mark.parametrize("level", [4, 5])
def test_an_algorithm_sends_to_a_client_and_to_its_broker(level: int) -> None:
    stage = Stage(level).connect()
    port, session = stage.node.exchange, stage.session()
    stage.hear()
    stage.broker_wire.written.clear()
    packet = port.create_mqtt_message(Publish("t", b"x"), session.level)
    assert packet == encode(Publish("t", b"x"), level)
    assert port.send_message(session, packet)
    assert stage.hear() == packet
    assert port.send_message(stage.session(SessionKind.LOCAL_BROKER), packet)
    assert stage.broker_wire.written == packet
    stage.client.connection_lost(None)
    assert not port.send_message(session, packet)


def test_nothing_is_sent_into_a_packet_that_is_passing_in_pieces(stage: Stage) -> None:
    long = encode(Publish("t", bytes(200_000)), 5)
    stage.broker.data_received(long[:1000])
    stage.hear()
    port = stage.node.exchange
    assert not port.send_message(stage.session(), b"\xd0\x00")
    stage.broker.data_received(long[1000:])
    assert port.send_message(stage.session(), b"\xd0\x00")


def test_bad_bytes_are_told(stage: Stage) -> None:
    stage.told()
    stage.client.data_received(b"\x33\x00")  # a PUBLISH without a topic
    failure, *rest = stage.told()
    assert failure.startswith("client failure:")
    assert stage.session().status is SessionStatus.TERMINATING
    stage.client.connection_lost(None)
    assert [*rest, *stage.told()] == ["client closed", "broker closed"]


def test_bad_bytes_of_the_broker_are_told(stage: Stage) -> None:
    stage.told()
    stage.broker.data_received(b"\x30\xff\xff\xff\xff\xff")
    (failure,) = stage.told()
    assert failure.startswith("broker failure:")
    assert stage.wire.closed


def test_an_answer_that_cannot_be_read_is_left_to_the_client(stage: Stage) -> None:
    stage.says(Subscribe(1, (Subscription("t"),)))
    stage.told()
    stage.hear()
    stage.broker.data_received(b"\x90\x02\x00\x00")
    assert stage.hear() == b"\x90\x02\x00\x00"
    assert stage.told() == []
    assert stage.client.relay.counters.refusals["broker-protocol-error"] == 1
    stage.says(Subscribe(2, (Subscription("u"),)))
    stage.answers(SubAck(2, (ReasonCode.GRANTED_QOS_0,)))
    assert stage.told() == ["Subscribe", "SubAck", "interest ('u',) ()"]


def test_an_algorithm_may_refuse_what_comes() -> None:
    stage = Stage()
    stage.algorithm.refuses = Connect
    stage.connect()
    assert stage.hear() == encode(ConnAck(False, ReasonCode.NOT_AUTHORIZED), 5)
    assert stage.wire.closed

    stage = Stage().connect()
    stage.algorithm.refuses = SubAck
    stage.says(Subscribe(1, (Subscription("t"),)))
    stage.hear()
    stage.answers(SubAck(1, (ReasonCode.GRANTED_QOS_0,)))
    assert stage.hear() == encode(Disconnect(ReasonCode.NOT_AUTHORIZED), 5)
    assert stage.wire.closed


def test_each_packet_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: Counter[PacketType] = Counter()

    def counted(decode: Callable[..., Packet]) -> Callable[..., Packet]:
        def count(data: bytes, *arguments: object) -> Packet:
            decoded[PacketType(data[0] >> 4)] += 1
            return decode(data, *arguments)

        return count

    for module, name in (
        (client_session, "decode"),
        (client_session, "decode_connect"),
        (broker_session, "decode"),
        (api, "decode"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    stage = Stage().connect()
    stage.says(Subscribe(1, (Subscription("t"),)))
    stage.answers(SubAck(1, (ReasonCode.GRANTED_QOS_0,)))
    stage.says(Publish("t", b"x"))
    stage.says(Disconnect())
    stage.client.connection_lost(None)
    assert decoded == dict.fromkeys(
        (
            PacketType.CONNECT,
            PacketType.CONNACK,
            PacketType.SUBSCRIBE,
            PacketType.SUBACK,
            PacketType.PUBLISH,
            PacketType.DISCONNECT,
        ),
        1,
    )


class Watching(Listening):
    """Notes with each hook how many messages its neighbor has been sent until then."""

    inspects_publishes = False

    def note(self, hook: str) -> None:
        exchange = self.port
        assert isinstance(exchange, Exchange)
        self.told.append(f"{hook} {sum(link.sent for link in exchange.links)}")

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        self.note(f"route {topic}")
        return super().route(topic, arrived_on, retain=retain)

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        self.note(message.type.name)
        return True

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        self.note(f"publisher {','.join(begun)}")

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        self.note("failure")


class WatchingPublishes(Watching):
    inspects_publishes = True


def in_one_read(stage: Stage, *packets: Packet) -> None:
    stage.client.data_received(b"".join(encode(packet, stage.level) for packet in packets))


@pytest.mark.parametrize("last", [b"\x33\x00", b"\x31\x05\x00\x01#\x00\x00"])
def test_at_every_hook_what_came_before_has_been_sent(last: bytes) -> None:
    """Messages are sent in runs; a control packet of a hook must not overtake those before it."""
    stage = Stage(algorithm=Watching)
    stage.fabric.link(stage.node, stage.fabric.node("b"))
    stage.fabric.settle()
    stage.connect()
    stage.says(Publish("t/1", b"0"))
    stage.says(Publish("t/2", b"0"))
    stage.node.exchange.routes_changed(["t/2"])
    stage.told()
    in_one_read(stage, Publish("t/1", b"1"), Publish("t/1", b"2"), Publish("t/2", b"3"))
    assert stage.told() == ["route t/2 4"]
    in_one_read(stage, Publish("t/1", b"4"), Publish("t/3", b"5"), Publish("t/3", b"6"))
    assert stage.told() == ["route t/3 6", "publisher t/3 6"]
    in_one_read(stage, Publish("t/1", b"7"), Subscribe(1, (Subscription("s"),)))
    assert stage.told() == ["SUBSCRIBE 9"]
    stage.client.data_received(encode(Publish("t/1", b"8"), 5) + last)
    assert stage.told() == ["failure 10"]


def test_who_inspects_publishes_finds_those_before_sent() -> None:
    stage = Stage(algorithm=WatchingPublishes)
    stage.fabric.link(stage.node, stage.fabric.node("b"))
    stage.fabric.settle()
    stage.connect()
    stage.says(Publish("t", b"0"))
    stage.told()
    in_one_read(stage, *(Publish("t", b"%d" % number) for number in range(1, 4)))
    assert stage.told() == ["PUBLISH 1", "PUBLISH 2", "PUBLISH 3"]
