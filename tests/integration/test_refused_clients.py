"""What a client sends before its broker has accepted it reaches nobody, or everybody it would have.

    refused client ── a ── b ── subscriber

The brokers of a and b know one user; the node's own sessions log in as that one.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.brokers.mosquitto import Mosquitto
from isthmus.exchange.client.input import PASSING_FRAMES
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.fabrics import FabricClient, NodeFabric
from support.nodes import NodeProcess
from support.raw import RawClient
from support.waiting import wait_for

USER, PASSWORD = "gate", b"keeper"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    folder = tmp_path_factory.mktemp("passwords")
    program = shutil.which("mosquitto_passwd")
    assert program is not None, "mosquitto_passwd comes with Debian's package mosquitto"
    subprocess.run(
        [program, "-b", "-c", str(folder / "passwords"), USER, PASSWORD.decode()], check=True
    )
    settings = {
        "extra": [f"password_file {folder / 'passwords'}"],
        "allow_anonymous": False,
        "username": USER,
        "password": PASSWORD.decode(),
    }
    joined = NodeFabric(folder, [("a", "b")], broker_options=settings, tapped=False)
    for node in joined.nodes.values():
        node.tables["broker"] |= {"username": USER, "password": PASSWORD.decode()}
    with joined:
        yield joined


@pytest.fixture
def subscriber(fabric: NodeFabric) -> Iterator[FabricClient]:
    with fabric.client("b", username=USER, password=PASSWORD) as client:
        client.subscribe("#")
        fabric.settle()
        yield client


def connect(level: int, password: bytes, client_id: str = "early", **fields: object) -> bytes:
    packet = Connect(client_id, username=USER, password=password, protocol_level=level, **fields)  # type: ignore[arg-type]
    return encode(packet, level)


def mark(fabric: NodeFabric, subscriber: FabricClient) -> list[Publish]:
    """What the subscriber has got, up to a message that an accepted client publishes now."""
    with fabric.client("a", username=USER, password=PASSWORD) as accepted:
        accepted.publish("mark", b"mark", 1)
        return subscriber.until(b"mark")


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True], ids=["live", "retained"])
def test_a_refused_client_publishes_nowhere(
    fabric: NodeFabric, subscriber: FabricClient, level: int, qos: int, retain: bool
) -> None:
    """[MQTT-3.1.4-6]: CONNECT with a wrong password and PUBLISH in one write."""
    forbidden = Publish("forbidden", b"x", qos, retain=retain, packet_id=1 if qos else 0)
    refusal = ReasonCode.NOT_AUTHORIZED if level == 5 else ConnectReturnCode.NOT_AUTHORIZED
    with RawClient(fabric["a"].port, level) as client:
        client.send(connect(level, b"wrong") + encode(forbidden, level))
        assert client.receive() == ConnAck(False, refusal)
        assert client.receive() is None
    assert mark(fabric, subscriber) == []
    assert fabric["a"].status()["fabric"]["retained"]["topics"] == 0


def test_an_accepted_clients_early_packets_arrive_in_order(
    fabric: NodeFabric, subscriber: FabricClient
) -> None:
    with RawClient(fabric["a"].port) as client:
        early = b"".join(encode(Publish("early", b"%d" % n), 5) for n in range(20))
        client.send(connect(5, PASSWORD) + early + encode(PingReq(), 5))
        assert isinstance(client.receive(), ConnAck)
        assert type(client.receive()).__name__ == "PingResp"
    assert [message.payload for message in mark(fabric, subscriber)] == [
        b"%d" % n for n in range(20)
    ]


@pytest.mark.parametrize("level", [4, 5])
def test_a_client_that_hangs_up_without_waiting_has_published(
    fabric: NodeFabric, subscriber: FabricClient, level: int
) -> None:
    """CONNECT, PUBLISH, DISCONNECT, end of stream, in one write: as without a node."""
    will = Will("will", b"never")
    with RawClient(fabric["a"].port, level) as client:
        client.send(
            connect(level, PASSWORD, will=will)
            + encode(Publish("hasty", b"x", 1, packet_id=1), level)
            + encode(Disconnect(), level)
        )
        client.socket.shutdown(socket.SHUT_WR)
        while client.receive_frame():
            pass
    assert [message.topic for message in mark(fabric, subscriber)] == ["hasty"]


def test_a_client_that_vanishes_before_its_connack_leaves_its_will(
    fabric: NodeFabric, subscriber: FabricClient
) -> None:
    with RawClient(fabric["a"].port) as client:
        client.send(connect(5, PASSWORD, will=Will("will", b"gone")))
        client.socket.shutdown(socket.SHUT_WR)
        while client.receive_frame():
            pass
    message = subscriber.next()
    assert (message.topic, message.payload) == ("will", b"gone")


def test_a_refused_client_that_hangs_up_leaves_nothing(
    fabric: NodeFabric, subscriber: FabricClient
) -> None:
    with RawClient(fabric["a"].port) as client:
        client.send(
            connect(5, b"wrong", will=Will("will", b"never")) + encode(Publish("forbidden"), 5)
        )
        client.socket.shutdown(socket.SHUT_WR)
        while client.receive_frame():
            pass
    wait_for(lambda: fabric["a"].status()["sessions"]["open"] == 0, 10, "the client to be gone")
    assert mark(fabric, subscriber) == []


# ---- before a broker that says what the test wants -----------------------------------------


class Script:
    """A broker that a test plays: it accepts connections and says what it is told."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self.server.getsockname()[1]}"

    def accept(self, first: bytes) -> socket.socket:
        """The session whose client begins with these bytes; the node's probes are passed over."""
        while True:
            session, _ = self.server.accept()
            session.settimeout(10)
            if exactly(session, len(first)) == first:
                return session
            session.close()


def exactly(session: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (more := session.recv(size - len(received))):
        received += more
    return received


def nothing_comes(session: socket.socket, for_s: float = 0.3) -> bool:
    session.settimeout(for_s)
    try:
        return not session.recv(1)
    except TimeoutError:
        return True
    finally:
        session.settimeout(10)


CONNECT_V5 = encode(Connect("x", properties=Properties(authentication_method="m")), 5)


@pytest.fixture
def script() -> Iterator[Script]:
    played = Script()
    with played.server:
        yield played


def test_auth_passes_before_the_connack_and_nothing_else(tmp_path: Path, script: Script) -> None:
    challenge = encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(
        authentication_method="m", authentication_data=b"?")), 5)  # fmt: skip
    answer = encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(
        authentication_method="m", authentication_data=b"!")), 5)  # fmt: skip
    early = encode(Subscribe(1, (Subscription("a"),)), 5) + encode(Publish("a", b"x"), 5)
    with NodeProcess(tmp_path, script.url) as node, RawClient(node.port) as client:
        client.send(CONNECT_V5 + early)
        with script.accept(CONNECT_V5) as session:
            session.sendall(challenge)
            assert client.receive_frame() == challenge
            client.send(encode(Publish("a", b"y"), 5) + answer)
            assert session.recv(1000) == answer
            session.sendall(encode(ConnAck(), 5))
            assert client.receive() == ConnAck()
            whole = early + encode(Publish("a", b"y"), 5)
            assert exactly(session, len(whole)) == whole


def test_a_flood_of_auth_waits_for_the_connack_like_the_rest(
    tmp_path: Path, script: Script
) -> None:
    """Each is decoded when it passes: a read full of them would hold the loop for a second."""
    auth = encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(
        authentication_method="m")), 5)  # fmt: skip
    flood = auth * 5_000  # less than is read at once, and than may wait
    with NodeProcess(tmp_path, script.url) as node, RawClient(node.port) as client:
        client.send(CONNECT_V5)
        with script.accept(CONNECT_V5) as session:
            client.send(flood)
            passed = exactly(session, PASSING_FRAMES * len(auth))
            session.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                while more := session.recv(65_536):
                    passed += more
            session.settimeout(10)
            assert len(passed) < len(flood) // 2
            session.sendall(encode(ConnAck(), 5))
            assert client.receive() == ConnAck()
            assert passed + exactly(session, len(flood) - len(passed)) == flood


def test_what_waits_for_the_connack_is_bounded(tmp_path: Path, script: Script) -> None:
    connect_v4 = encode(Connect("x", protocol_level=4), 4)
    message = encode(Publish("t", bytes(1000)), 4)
    limits = {"buffer_bytes": 65_536}
    with (
        NodeProcess(tmp_path, script.url, limits=limits) as node,
        RawClient(node.port, 4) as client,
    ):
        client.send(connect_v4)
        with script.accept(connect_v4) as session:
            client.socket.setblocking(False)
            sent = 0
            while select.select([], [client.socket], [], 1)[1] and sent < 64 << 20:
                sent += client.socket.send(message * 100)
            assert sent < 64 << 20
            held = node.status()["sessions"]["pending_bytes"]
            assert 65_536 < held < 65_536 + 512 * 1024
            assert nothing_comes(session)
            session.sendall(b"\x20\x02\x00\x00")
            client.socket.settimeout(10)
            arrived = 0
            while arrived < sent:
                data = session.recv(1 << 20)
                assert data
                arrived += len(data)
            assert node.status()["sessions"]["pending_bytes"] < 1100


def test_bytes_that_are_no_packet_wait_for_the_connack_too(tmp_path: Path, script: Script) -> None:
    connect_v5 = encode(Connect("x"), 5)
    good = encode(Publish("t", b"good"), 5)
    with NodeProcess(tmp_path, script.url) as node, RawClient(node.port) as client:
        client.send(connect_v5 + good + b"\x30\xff\xff\xff\xff\x01")
        with script.accept(connect_v5) as session:
            assert nothing_comes(session)
            session.sendall(encode(ConnAck(), 5))
            assert exactly(session, len(good)) == good
            assert session.recv(1) == b""
        assert client.receive() == ConnAck()
        assert client.receive() == Disconnect(ReasonCode.MALFORMED_PACKET)


def test_the_broker_that_never_answers_a_client_that_is_gone_is_not_waited_for(
    tmp_path: Path, script: Script
) -> None:
    connect_v5 = encode(Connect("x"), 5)
    limits = {"broker_timeout_s": 0.5}
    with NodeProcess(tmp_path, script.url, limits=limits) as node:
        with RawClient(node.port) as client:
            client.send(connect_v5 + encode(Publish("t"), 5))
            session = script.accept(connect_v5)
            client.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # reset
        with session:
            assert session.recv(1) == b""
        wait_for(lambda: node.status()["sessions"]["open"] == 0, 5, "the client to be gone")


# ---- what the CONNACK grants -------------------------------------------------------------


def test_what_the_own_broker_does_not_grant_does_not_reach_the_fabric(tmp_path: Path) -> None:
    """Retain Available 0: the near broker refuses the client, and no other one gets the message."""
    fabric = NodeFabric(tmp_path, [("a", "b")], tapped=False)
    broker = fabric.brokers["a"]
    assert isinstance(broker, Mosquitto)
    broker.extra = ("retain_available false", "max_packet_size 2000", "max_qos 1")
    with fabric, fabric.client("b") as subscriber, RawClient(fabric["a"].port) as client:
        subscriber.subscribe("#")
        fabric.settle()
        granted = client.connect("keeper").properties
        assert granted.retain_available is False
        assert granted.maximum_packet_size == 2000
        client.send(Publish("kept", b"x", 1, retain=True, packet_id=1))
        assert client.receive() == Disconnect(ReasonCode.RETAIN_NOT_SUPPORTED)
        with RawClient(fabric["a"].port) as other:
            other.connect("large")
            other.send(Publish("large", bytes(3000), 1, packet_id=1))
            assert other.receive() == Disconnect(ReasonCode.PACKET_TOO_LARGE)
        with RawClient(fabric["a"].port) as other:
            assert other.connect("exactly-once").properties.maximum_qos == 1
            other.send(Publish("q2", b"x", 2, packet_id=1))
            assert other.receive() == Disconnect(ReasonCode.QOS_NOT_SUPPORTED)
        with fabric.client("a") as accepted:
            accepted.publish("mark", b"mark", 1)
        assert subscriber.until(b"mark") == []
