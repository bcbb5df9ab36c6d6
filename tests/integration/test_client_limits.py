"""What one client may make the node do: every limit, its reason code, and who has to go.

How long the loop is held by each of these is measured by ``make bench-hostile``.
"""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require_broker
from isthmus.brokers import create
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

LIMITS = {
    "packet_bytes": 200_000,
    "connect_bytes": 2_000,
    "property_bytes": 500,
    "filters_per_packet": 10,
    "filters_per_client": 25,
    "topic_levels": 5,
    "pending_bytes": 2_000_000,
    "pending_bytes_per_address": 500_000,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    require_broker("mosquitto")
    folder = tmp_path_factory.mktemp("limits")
    with (
        create("mosquitto") as broker,
        NodeProcess(
            folder,
            f"mqtt://127.0.0.1:{broker.port}",
            limits=LIMITS,
            listen={"ws": f"127.0.0.1:{free_port()}"},
        ) as process,
    ):
        yield process


def many(size: int) -> Properties:
    return Properties(user_properties=(("", ""),) * (size // 5))


def subscribe(count: int, prefix: str = "f", packet_id: int = 1) -> Subscribe:
    return Subscribe(packet_id, tuple(Subscription(f"{prefix}/{n}") for n in range(count)))


# ---- CONNECT -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "reason"),
    [
        (Connect("x", will=Will("w", bytes(2_000))), ReasonCode.PACKET_TOO_LARGE),
        (Connect("x", properties=many(505)), ReasonCode.QUOTA_EXCEEDED),
        (Connect("x", will=Will("w", properties=many(505))), ReasonCode.QUOTA_EXCEEDED),
        (Connect("x", will=Will("1/2/3/4/5/6")), ReasonCode.TOPIC_NAME_INVALID),
    ],
    ids=["bytes", "properties", "will-properties", "will-levels"],
)
def test_a_connect_over_a_limit_is_refused(
    node: NodeProcess, connect: Connect, reason: ReasonCode
) -> None:
    with RawClient(node.port) as client:
        client.send(connect)
        assert client.receive() == ConnAck(False, reason)
        assert client.receive() is None


def test_a_connect_at_the_limits_is_taken(node: NodeProcess) -> None:
    will = Will("1/2/3/4/5", bytes(800), properties=many(500))
    with RawClient(node.port) as client:
        assert client.connect("full", properties=many(500), will=will).reason_code == 0
        client.send(Disconnect())


def test_a_long_connect_is_refused_before_it_has_come(node: NodeProcess) -> None:
    """Its header is enough; nothing of it is kept."""
    with RawClient(node.port) as client:
        client.send(b"\x10\x80\x80\x40\x00\x04MQTT\x05")
        assert client.receive() == ConnAck(False, ReasonCode.PACKET_TOO_LARGE)
        assert client.receive() is None
    with RawClient(node.port, 4) as client:
        client.send(b"\x10\x80\x80\x40\x00\x04MQTT\x04")
        assert client.receive() is None


# ---- packets of an accepted client -------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Publish("a", properties=many(505)), ReasonCode.QUOTA_EXCEEDED),
        (Disconnect(properties=many(505)), ReasonCode.QUOTA_EXCEEDED),
        (PubRel(1, properties=many(505)), ReasonCode.QUOTA_EXCEEDED),
        (subscribe(11), ReasonCode.QUOTA_EXCEEDED),
        (Unsubscribe(1, tuple(f"f/{n}" for n in range(11))), ReasonCode.QUOTA_EXCEEDED),
        (Publish("1/2/3/4/5/6"), ReasonCode.TOPIC_NAME_INVALID),
        (Subscribe(1, (Subscription("1/2/3/4/5/#"),)), ReasonCode.TOPIC_FILTER_INVALID),
        (Unsubscribe(1, ("1/2/3/4/5/#",)), ReasonCode.TOPIC_FILTER_INVALID),
    ],
    ids=[
        "publish-properties",
        "disconnect-properties",
        "pubrel-properties",
        "subscribe-filters",
        "unsubscribe-filters",
        "topic-levels",
        "subscribe-levels",
        "unsubscribe-levels",
    ],
)
def test_a_packet_over_a_limit_ends_its_connection(
    node: NodeProcess, packet: Publish, reason: ReasonCode
) -> None:
    with RawClient(node.port) as client:
        client.connect("over")
        client.send(packet)
        assert client.receive() == Disconnect(reason)
        assert client.receive() is None


def test_packets_at_the_limits_pass(node: NodeProcess) -> None:
    with RawClient(node.port) as client:
        client.connect("at-the-limits")
        client.send(subscribe(10)).send(Subscribe(2, (Subscription("1/2/3/4/#"),)))
        assert client.receive() == SubAck(1, (ReasonCode.SUCCESS,) * 10)
        assert isinstance(client.receive(), SubAck)
        client.send(Publish("1/2/3/4/5", properties=many(500)))
        assert client.receive() == Publish("1/2/3/4/5", properties=many(500))


def test_filters_of_a_client_are_bounded(node: NodeProcess) -> None:
    """Over its connections, as the subscriptions are its session's; repeating one costs nothing."""
    fields = {"clean_start": False, "properties": Properties(session_expiry_interval=60)}
    with RawClient(node.port) as client:
        client.connect("many-filters", **fields)
        for prefix in "ab":
            client.send(subscribe(10, prefix))
            assert isinstance(client.receive(), SubAck)
    with RawClient(node.port) as client:
        client.connect("many-filters", **fields)
        for packet in (subscribe(10, "a"), subscribe(5, "c"), subscribe(10, "b")):
            client.send(packet)
            assert isinstance(client.receive(), SubAck)
        client.send(subscribe(1, "d"))
        assert client.receive() == Disconnect(ReasonCode.QUOTA_EXCEEDED)
    with RawClient(node.port) as client:
        client.connect("pipelining")
        client.send(b"".join(encode(subscribe(9, "p", n), 5) for n in (1, 2)))  # the same ones
        client.send(b"".join(encode(subscribe(9, f"p{n}", n), 5) for n in (3, 4)))
        answers = [client.receive() for _ in range(4)]
        assert Disconnect(ReasonCode.QUOTA_EXCEEDED) in answers


# ---- unfinished packets ------------------------------------------------------------------


def unfinished(size: int) -> bytes:
    """The beginning of a PUBLISH of 190,000 bytes."""
    return (b"\x30" + b"\xb0\xcc\x0b" + b"\x00\x01a\x00" + bytes(size))[:size]


def test_who_holds_the_most_has_to_go(node: NodeProcess) -> None:
    """16 clients with unfinished packets: they go, and not who sends an honest one in between."""
    greedy = [RawClient(node.port) for _ in range(16)]
    honest = RawClient(node.port)
    try:
        honest.connect("honest")
        honest.send(Subscribe(1, (Subscription("large"),)))
        honest.receive()
        for number, client in enumerate(greedy):
            client.connect(f"greedy-{number}")
        payload = bytes(150_000)
        whole = encode(Publish("large", payload), 5)
        before = node.status()["refusals"].get("pending-limit", 0)
        for number, client in enumerate(greedy):
            client.send(unfinished(180_000))
            # The honest one's packet comes in two parts, of which the first waits.
            honest.send(whole[:50_000])
            wait_for(
                lambda: node.status()["sessions"]["pending_bytes"] >= 50_000, 10, "the first half"
            )
            honest.send(whole[50_000:])
            assert honest.receive() == Publish("large", payload), number
        status = node.status()
        assert status["sessions"]["pending_bytes"] <= LIMITS["pending_bytes_per_address"]
        gone = status["refusals"]["pending-limit"] - before
        assert gone >= 13
        told = [client for client in greedy if has_something(client)]
        assert len(told) == gone
        assert all(client.receive() == Disconnect(ReasonCode.QUOTA_EXCEEDED) for client in told)
    finally:
        for client in (*greedy, honest):
            client.close()
    wait_for(lambda: node.status()["sessions"]["pending_bytes"] == 0, 10, "nothing to be held")


def has_something(client: RawClient) -> bool:
    client.socket.setblocking(False)
    try:
        client.socket.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        client.socket.settimeout(10)
    return True


# ---- slices ------------------------------------------------------------------------------


def test_everything_arrives_in_order_although_it_is_handled_in_slices(node: NodeProcess) -> None:
    """Far more frames in one write than fit in a slice, and a DISCONNECT behind them."""
    count = 60_000
    with RawClient(node.port, 4) as subscriber, RawClient(node.port, 4) as client:
        subscriber.connect("subscriber")
        subscriber.send(Subscribe(1, (Subscription("slices/#", 2),)))
        subscriber.receive()
        client.connect("flood")
        parts = []
        for number in range(0, count, 10):
            parts.append(encode(Publish("slices/q0", b"%d" % number), 4))
            parts.append(b"\xc0\x00" * 8)
        last = encode(Publish("slices/q1", b"last", 1, packet_id=1), 4)
        client.send(b"".join(parts) + last + encode(Disconnect(), 4))
        numbers = []
        while (packet := subscriber.receive()) != Publish("slices/q1", b"last", 1, packet_id=1):
            assert isinstance(packet, Publish)
            numbers.append(int(packet.payload))
        assert numbers == sorted(numbers)
        assert len(numbers) > 100  # QoS 0 may be dropped by the broker, not reordered
        while client.receive_frame():
            pass


def test_a_bad_packet_behind_a_flood_is_answered_after_it(node: NodeProcess) -> None:
    with RawClient(node.port) as client:
        client.connect("flood-and-fault")
        client.send(b"\xc0\x00" * 30_000 + b"\x30\xff\xff\xff\xff\x01")
        pongs = 0
        while isinstance(packet := client.receive(), PingResp):
            pongs += 1
        assert packet == Disconnect(ReasonCode.MALFORMED_PACKET)
        assert pongs <= 30_000


# ---- WebSocket ---------------------------------------------------------------------------


class WebSocketClient:
    """Frames as the test wants them, masked with zeros."""

    def __init__(self, node: NodeProcess) -> None:
        port = int(str(node.tables["listen"]["ws"]).rpartition(":")[2])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall(
            "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )
        self._received = b""
        while b"\r\n\r\n" not in self._received:
            self._received += self.socket.recv(4096)
        self._received = self._received.partition(b"\r\n\r\n")[2]

    @staticmethod
    def frame(payload: bytes, opcode: int = 2, *, final: bool = True) -> bytes:
        head = bytes((final << 7 | opcode,))
        if len(payload) < 126:
            head += bytes((0x80 | len(payload),))
        elif len(payload) < 65_536:
            head += b"\xfe" + struct.pack(">H", len(payload))
        else:
            head += b"\xff" + struct.pack(">Q", len(payload))
        return head + bytes(4) + payload

    def receive(self) -> tuple[int, bytes]:
        """The next frame's opcode and payload, of fewer than 126 bytes; (0, b"") at the end."""
        while len(self._received) < 2 or len(self._received) < 2 + self._received[1]:
            chunk = self.socket.recv(4096)
            if not chunk:
                return 0, b""
            self._received += chunk
        size = 2 + self._received[1]
        frame, self._received = self._received[:size], self._received[size:]
        return frame[0] & 0x0F, frame[2:]


def test_tiny_frames_over_websocket_are_all_taken(node: NodeProcess) -> None:
    """One byte a frame, fragments and empty frames between them, more than fits in a slice."""
    client = WebSocketClient(node)
    with client.socket:
        client.socket.sendall(b"".join(
            client.frame(bytes((byte,))) for byte in encode(Connect("tiny", protocol_level=4), 4)
        ))  # fmt: skip
        assert client.receive() == (2, b"\x20\x02\x00\x00")
        client.socket.sendall(
            client.frame(b"\xc0", final=False)
            + client.frame(b"", 0, final=False) * 10_000
            + client.frame(b"\x00", 0)
            + client.frame(b"") * 10_000
            + client.frame(b"\xc0\x00")
        )
        assert client.receive() == (2, b"\xd0\x00")
        assert client.receive() == (2, b"\xd0\x00")


def test_a_frame_before_the_connect_is_as_short_as_a_connect(node: NodeProcess) -> None:
    client = WebSocketClient(node)
    with client.socket:
        client.socket.sendall(client.frame(bytes(100_000))[:20])
        opcode, payload = client.receive()
        assert (opcode, payload[:2]) == (8, struct.pack(">H", 1009))


def test_an_unfinished_websocket_frame_counts(node: NodeProcess) -> None:
    client = WebSocketClient(node)
    with client.socket:
        client.socket.sendall(client.frame(encode(Connect("ws-holding", protocol_level=4), 4)))
        assert client.receive() == (2, b"\x20\x02\x00\x00")
        client.socket.sendall(client.frame(bytes(150_000))[:100_000])
        wait_for(
            lambda: node.status()["sessions"]["pending_bytes"] > 90_000, 10, "it to be counted"
        )
    wait_for(lambda: node.status()["sessions"]["pending_bytes"] == 0, 10, "it to be forgotten")


# ---- MQTT 3.1 ----------------------------------------------------------------------------


def test_mqtt_3_1_is_relayed(tmp_path: Path) -> None:
    """MQIsdp, level 3: what old devices speak, with DUP where later versions forbid it."""
    require_broker("mosquitto")
    with (
        create("mosquitto") as broker,
        NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as node,
        RawClient(node.port, 3) as client,
    ):
        assert client.connect("old-device", will=Will("w", b"gone")).reason_code == 0
        client.send(Subscribe(1, (Subscription("t", 2),)))
        assert isinstance(client.receive(), SubAck)
        client.send(Publish("t", b"x", 2, packet_id=5))
        assert client.receive() == PubRec(5)
        client.send(b"\x6a\x02\x00\x05")
        kinds = {type(client.receive()).__name__ for _ in range(2)}
        assert kinds == {"PubComp", "Publish"}
        assert node.status()["sessions"]["clients"][0]["protocol_level"] == 3
        client.send(PingReq())
        assert client.receive() == PingResp()
