"""What a client must not send, through a real node before a real Mosquitto.

Each case ends that connection with the right answer, is counted under its cause, and nobody else
notices: a bystander's round trip is checked after every case.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.nodes import NodeProcess
from support.raw import RawClient
from support.waiting import wait_for

PACKET_LIMIT = 4096


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    require_broker("mosquitto")
    limits = {"packet_bytes": PACKET_LIMIT, "connect_timeout_s": 1.0, "pending_bytes": 65_536}
    folder = tmp_path_factory.mktemp("node")
    with (
        create("mosquitto") as broker,
        NodeProcess(folder, f"mqtt://127.0.0.1:{broker.port}", limits=limits) as process,
    ):
        yield process


@pytest.fixture(scope="module")
def bystander(node: NodeProcess) -> Iterator[RawClient]:
    with RawClient(node.port) as client:
        client.connect("bystander")
        yield client


@dataclass(frozen=True)
class Bad:
    """Bytes that a connected client sends, and what it gets for them."""

    name: str
    level: int
    data: bytes
    reason: int
    cause: str = ""

    @property
    def counted_as(self) -> str:
        return self.cause or f"reason-0x{self.reason:02x}"


def publish(flags: int, body: bytes) -> bytes:
    return bytes([0x30 | flags, len(body)]) + body


def topic(name: bytes) -> bytes:
    return struct.pack(">H", len(name)) + name


def same_in_both_versions() -> list[Bad]:
    cases: list[Bad] = []
    for level in (4, 5):
        none = b"\x00" if level == 5 else b""  # no properties
        cases += [
            Bad("qos-3", level, publish(6, topic(b"a") + b"\x00\x01" + none), 0x81),
            Bad("dup-with-qos-0", level, publish(8, topic(b"a") + none), 0x81),
            Bad("wildcard-in-topic-name", level, publish(0, topic(b"a/#") + none), 0x82),
            Bad("topic-not-utf8", level, publish(0, topic(b"\xff\xfe") + none), 0x81),
            Bad("topic-with-nul", level, publish(0, topic(b"a\0b") + none), 0x81),
            Bad("topic-longer-than-packet", level, publish(0, b"\x00\x09ab"), 0x81),
            Bad("publish-without-body", level, b"\x30\x00", 0x81),
            Bad("packet-id-0", level, publish(2, topic(b"a") + b"\x00\x00" + none), 0x82),
            Bad("packet-type-0", level, b"\x00\x00", 0x82),
            Bad("length-of-five-bytes", level, b"\x30\xff\xff\xff\xff\x01", 0x81),
            Bad("oversize", level, b"\x30\x80\x80\x01", 0x95),
            Bad("oversize-whole", level, publish_of(PACKET_LIMIT, level), 0x95),
            Bad("connack-from-client", level, b"\x20\x02\x00\x00", 0x82),
            Bad("suback-from-client", level, b"\x90\x03\x00\x01\x00", 0x82),
            Bad(
                "second-connect", level, encode(Connect("again", protocol_level=level), level), 0x82
            ),
            Bad("puback-id-0", level, b"\x40\x02\x00\x00", 0x82),
            Bad("pubrel-flags", level, b"\x60\x02\x00\x01", 0x81),
            Bad("pingreq-with-body", level, b"\xc0\x01\x00", 0x81),
            Bad("empty-subscribe", level, bytes([0x82, 2 + len(none), 0, 1]) + none, 0x82),
            Bad("subscribe-flags", level, b"\x80\x02\x00\x01", 0x81),
        ]
    return cases


def publish_of(size: int, level: int) -> bytes:
    return encode(Publish("a", bytes(size)), level)


def v5_only() -> list[Bad]:
    return [
        Bad("alias-never-set", 5, publish(0, b"\x00\x00\x03\x23\x00\x01"), 0x82),
        Bad("alias-0", 5, publish(0, topic(b"a") + b"\x03\x23\x00\x00"), 0x94),
        Bad("alias-over-maximum", 5, publish(0, topic(b"a") + b"\x03\x23\xff\xff"), 0x94),
        Bad("no-topic-no-alias", 5, publish(0, b"\x00\x00\x00"), 0x82),
        Bad("unknown-property", 5, publish(0, topic(b"a") + b"\x02\x7f\x00"), 0x81),
        Bad("properties-beyond-packet", 5, publish(0, topic(b"a") + b"\x7f\x01"), 0x81),
        Bad("subscription-id-from-client", 5, publish(0, topic(b"a") + b"\x02\x0b\x01"), 0x82),
        Bad("dup-with-qos-0-and-properties", 5, publish(8, topic(b"a") + b"\x02\x01\x00"), 0x81),
        Bad("auth-flags", 5, b"\xf1\x00", 0x81),
    ]


@pytest.mark.parametrize(
    "bad", [*same_in_both_versions(), *v5_only()], ids=lambda bad: f"v{bad.level}-{bad.name}"
)
def test_a_bad_packet_ends_its_own_connection(
    node: NodeProcess, bystander: RawClient, bad: Bad
) -> None:
    before = node.status()["refusals"].get(bad.counted_as, 0)
    with RawClient(node.port, bad.level) as client:
        client.connect("bad")
        good = encode(Subscribe(7, (Subscription("ok"),)), bad.level)
        client.send(good + bad.data)
        answers = []
        while (answer := client.receive()) is not None:
            answers.append(answer)
    if bad.level == 5:
        assert Disconnect(ReasonCode(bad.reason)) in answers
    else:
        assert not any(isinstance(answer, Disconnect) for answer in answers)
    assert node.status()["refusals"][bad.counted_as] == before + 1
    bystander.send(PingReq())
    assert isinstance(bystander.receive(), PingResp)


def test_what_came_before_the_bad_packet_in_the_same_write_is_delivered(
    node: NodeProcess, bystander: RawClient
) -> None:
    bystander.send(Subscribe(1, (Subscription("before/#"),)))
    bystander.receive()
    with RawClient(node.port) as client:
        client.connect("half-good")
        client.send(
            encode(Publish("before/1", b"good"), 5) + publish(0, topic(b"before/#") + b"\0")
        )
        assert client.receive() == Disconnect(ReasonCode.PROTOCOL_ERROR)
        assert client.receive() is None
    assert bystander.receive() == Publish("before/1", b"good")


def test_a_broken_connection_lets_the_broker_publish_the_will(
    node: NodeProcess, bystander: RawClient
) -> None:
    from isthmus.mqtt.packets import Will

    bystander.send(Subscribe(2, (Subscription("wills"),)))
    bystander.receive()
    with RawClient(node.port, 4) as client:
        client.connect("doomed", will=Will("wills", b"gone"))
        client.send(b"\x00\x00")
        assert client.receive() is None
    assert bystander.receive() == Publish("wills", b"gone")


CONNECT_V4 = encode(Connect("x", protocol_level=4), 4)
CONNECT_V5 = encode(Connect("x", protocol_level=5), 5)


def with_level(frame: bytes, level: int) -> bytes:
    return frame[:8] + bytes([level]) + frame[9:]


@pytest.mark.parametrize(
    ("data", "level", "answer", "cause"),
    [
        (
            with_level(CONNECT_V4, 3),
            4,
            ConnAck(False, ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION),
            "protocol-level",
        ),
        (
            with_level(CONNECT_V5, 6),
            5,
            ConnAck(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
            "protocol-level",
        ),
        (
            CONNECT_V5[:9] + b"\x03" + CONNECT_V5[10:],  # reserved connect flag
            5,
            ConnAck(False, ReasonCode.MALFORMED_PACKET),
            "malformed-connect",
        ),
        (CONNECT_V4[:9] + b"\x03" + CONNECT_V4[10:], 4, None, "malformed-connect"),
        (
            b"\x10\x0f\x00\x06MQIsdp\x04\x02\x00\x3c\x00\x01x",
            4,
            ConnAck(False, ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION),
            "protocol-level",
        ),
        (b"\x10\x0c\x00\x04HTTP\x04\x02\x00\x3c\x00\x00", 4, None, "malformed-connect"),
        (encode(PingReq(), 4), 4, None, "no-connect"),
        (encode(Publish("a", b"x"), 5), 5, None, "no-connect"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 4, None, "no-connect"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 4, None, "malformed-connect"),  # a TLS hello
        (b"", 4, None, "connect-timeout"),
        (CONNECT_V4[:7], 4, None, "connect-timeout"),
        (b"\x10\xff\xff\xff\x7f", 4, None, "reason-0x95"),
        (b"\x10\xff\xff\xff\xff\x7f", 4, None, "reason-0x81"),
    ],
    ids=[
        "level-3",
        "level-6",
        "v5-reserved-flag",
        "v4-reserved-flag",
        "MQIsdp-of-level-4",
        "protocol-name",
        "ping-first",
        "publish-first",
        "http",
        "tls-on-plain-port",
        "silence",
        "half-a-connect",
        "huge-connect",
        "endless-length",
    ],
)
def test_a_wrong_first_packet(
    node: NodeProcess, data: bytes, level: int, answer: ConnAck | None, cause: str
) -> None:
    before = node.status()["refusals"].get(cause, 0)
    with RawClient(node.port, level) as client:
        client.send(data)
        assert client.receive() == answer
        if answer is not None:
            assert client.receive() is None
    wait_for(
        lambda: node.status()["refusals"].get(cause, 0) == before + 1, 5, f"{cause} to be counted"
    )


def test_incomplete_packets_of_all_clients_are_bounded(node: NodeProcess) -> None:
    """64 KiB in all: some of 40 clients that each hold back 4,000 bytes must go, not all."""
    clients = [RawClient(node.port) for _ in range(40)]
    try:
        for number, client in enumerate(clients):
            client.connect(f"holding-{number}")
        for client in clients:
            client.send(b"\x30\xf0\x1f" + topic(b"a") + b"\0" + bytes(3_500))
        wait_for(
            lambda: node.status()["refusals"].get("pending-limit", 0) >= 20, 10, "clients to go"
        )
        status = node.status()
        assert 0 < status["sessions"]["pending_bytes"] <= 65_536
        gone = [client for client in clients if not is_open(client)]
        assert len(gone) == status["refusals"]["pending-limit"]
        assert all(client.receive() == Disconnect(ReasonCode.QUOTA_EXCEEDED) for client in gone)
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: node.status()["sessions"]["pending_bytes"] == 0, 5, "nothing to be held")


def is_open(client: RawClient) -> bool:
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1, socket.MSG_PEEK) == b"never"
    except BlockingIOError:
        return True
    finally:
        client.socket.settimeout(10)


@pytest.mark.parametrize("over", [1, 80])
def test_clients_over_the_limit_are_told_so(tmp_path: Path, over: int) -> None:
    require_broker("mosquitto")
    with (
        create("mosquitto") as broker,
        NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}", limits={"clients": 3}) as node,
    ):
        inside = [RawClient(node.port, 4) for _ in range(3)]
        for number, client in enumerate(inside):
            assert client.connect(f"c{number}").reason_code == 0
        # The waiting room has 64 places; who does not fit in is just closed.
        outside = [RawClient(node.port, 5) for _ in range(over)]
        dropped = max(0, over - 64)
        wait_for(
            lambda: (
                node.status()["sessions"]["open"] == 3 + over - dropped
                and node.status()["refusals"].get("clients-limit", 0) == dropped
            ),
            5,
            "all to be taken in or dropped",
        )
        told = 0
        for client in outside:
            try:
                client.send(Connect("late", protocol_level=5))
                told += client.receive() == ConnAck(False, ReasonCode.QUOTA_EXCEEDED)
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert told == min(over, 64)
        for client in (*inside, *outside):
            client.close()
        wait_for(lambda: node.status()["sessions"]["open"] == 0, 5, "the clients to be gone")
        with RawClient(node.port, 4) as client:
            assert client.connect("again").reason_code == 0


def test_half_open_sockets_are_probed_by_the_kernel(node: NodeProcess) -> None:
    """A client that vanishes without a FIN is found even with keep-alive 0."""
    with RawClient(node.port, 4) as client:
        client.connect("half-open", keep_alive=0)
        options: Callable[[], str] = lambda: _socket_timers(node.port)  # noqa: E731
        wait_for(lambda: "timer:(keepalive" in options(), 5, "a keep-alive timer on the socket")


def _socket_timers(port: int) -> str:
    import subprocess

    return subprocess.run(
        ["ss", "-Htno", f"sport = :{port}"], check=True, capture_output=True, text=True
    ).stdout


def test_properties_are_relayed_and_aliases_resolved(tmp_path: Path) -> None:
    """A broker that grants aliases gets them as they came; the node knows the real topic."""
    require_broker("mosquitto")
    with (
        create("mosquitto") as broker,
        NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as node,
        RawClient(node.port) as client,
    ):
        granted = client.connect("aliases").properties.topic_alias_maximum
        assert granted is not None
        assert granted > 0
        client.send(Subscribe(1, (Subscription("real/topic"),)))
        client.receive()
        alias = Properties(topic_alias=1, user_properties=(("k", "v"),), content_type="text/plain")
        client.send(Publish("real/topic", b"1", properties=alias))
        client.send(Publish("", b"2", properties=Properties(topic_alias=1)))
        plain = Properties(user_properties=(("k", "v"),), content_type="text/plain")
        assert client.receive() == Publish("real/topic", b"1", properties=plain)
        assert client.receive() == Publish("real/topic", b"2")
        assert node.status()["routes"]["topics"] == 1
