"""The relay before a real Mosquitto: faults of the broker, back-pressure, order, stop."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import require_broker
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

MIB = 1 << 20


@pytest.fixture
def broker() -> Iterator[Broker]:
    require_broker("mosquitto")
    with create("mosquitto") as started:
        yield started


@pytest.fixture
def node(tmp_path: Path, broker: Broker) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as started:
        yield started


def subscribed(client: RawClient, topic_filter: str, qos: int = 0) -> RawClient:
    client.send(Subscribe(1, (Subscription(topic_filter, qos),)))
    client.receive()
    return client


# ---- the broker's faults -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "answer"),
    [(4, ConnectReturnCode.SERVER_UNAVAILABLE), (5, ReasonCode.SERVER_UNAVAILABLE)],
)
def test_broker_down_at_connect(
    tmp_path: Path, level: int, answer: ReasonCode | ConnectReturnCode
) -> None:
    node = NodeProcess(tmp_path, f"mqtt://127.0.0.1:{free_port()}").start(ready=False)
    try:
        with RawClient(node.port, level) as client:
            assert client.connect("early") == ConnAck(False, answer)
            assert client.receive() is None
        assert node.status()["refusals"]["broker-unavailable"] == 1
        assert not node.is_ready()
    finally:
        node.stop()


def test_a_broker_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        # Fill the accept queue, so that the next connection hangs in the handshake.
        filler = [socket.socket() for _ in range(4)]
        for sock in filler:
            sock.setblocking(False)
            sock.connect_ex(silent.getsockname())
        node = NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{silent.getsockname()[1]}",
            limits={"broker_timeout_s": 0.5},
        ).start(ready=False)
        try:
            with RawClient(node.port, 5) as client:
                assert client.connect("patient") == ConnAck(False, ReasonCode.SERVER_UNAVAILABLE)
            assert "no answer within 0.5 s" in node.log()
        finally:
            node.stop()
            for sock in filler:
                sock.close()


def test_broker_killed_and_back(node: NodeProcess, broker: Broker) -> None:
    with RawClient(node.port) as client:
        client.connect("survivor")
        broker.kill()
        assert client.receive() is None
    wait_for(lambda: node.status()["counters"]["broker_sessions_lost"] == 1, 5, "it to be counted")
    with RawClient(node.port) as client:
        assert client.connect("between").reason_code == ReasonCode.SERVER_UNAVAILABLE
    broker.start()
    with RawClient(node.port) as client:
        assert client.connect("after").reason_code == 0
    assert node.is_ready()


def test_readiness_follows_the_broker_without_any_client(node: NodeProcess, broker: Broker) -> None:
    assert node.is_ready()
    broker.kill()
    wait_for(lambda: not node.is_ready(), 10, "readiness to go")
    assert node.is_live()
    broker.start()
    wait_for(node.is_ready, 10, "readiness to come back")


def test_a_broker_that_talks_nonsense_ends_only_that_pair(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nonsense:
        url = f"mqtt://127.0.0.1:{nonsense.getsockname()[1]}"
        with NodeProcess(tmp_path, url) as node, RawClient(node.port, 4) as client:
            client.send(encode_connect())
            while True:  # the node's own probes connect too
                session, _ = nonsense.accept()
                if session.recv(100):
                    break
            session.sendall(b"\x30\xff\xff\xff\xff\xff")
            assert client.receive() is None
            session.close()
            assert node.status()["refusals"]["broker-protocol-error"] == 1
            assert node.is_live()


def encode_connect() -> bytes:
    from isthmus.mqtt.packets import Connect

    return encode(Connect("x", protocol_level=4), 4)


# ---- back-pressure, order, whole packets -------------------------------------------------


def test_a_slow_subscriber_costs_the_node_no_memory(node: NodeProcess) -> None:
    process = psutil.Process(node.pid)
    with RawClient(node.port) as slow, RawClient(node.port) as publisher:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect("slow")
        subscribed(slow, "flood")
        publisher.connect("publisher")
        before = process.memory_info().rss
        message = encode(Publish("flood", bytes(60_000)), 5)
        for _ in range(1000):
            publisher.send(message)
        publisher.send(Publish("mark", b""))
        assert process.memory_info().rss - before < 10 * MIB
        # It reads again: what it gets is whole packets in order.
        for _ in range(3):
            packet = slow.receive()
            assert isinstance(packet, Publish)
            assert len(packet.payload) == 60_000


def test_a_slow_broker_stops_the_publisher(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        with (
            NodeProcess(tmp_path, f"mqtt://127.0.0.1:{deaf.getsockname()[1]}") as node,
            RawClient(node.port, 4) as client,
        ):
            process = psutil.Process(node.pid)
            before = process.memory_info().rss
            client.send(encode_connect())
            message = encode(Publish("t", bytes(60_000)), 4)
            sent = 0
            client.socket.setblocking(False)
            while select.select([], [client.socket], [], 2)[1] and sent < 100 * MIB:
                sent += client.socket.send(message)
            # What the kernel's buffers hold on both sides, and little more.
            assert sent < 30 * MIB
            assert process.memory_info().rss - before < 10 * MIB


def test_order_is_kept_and_nothing_lost_under_load(node: NodeProcess) -> None:
    count = 20_000
    with RawClient(node.port) as subscriber, RawClient(node.port) as publisher:
        subscriber.connect("subscriber")
        subscribed(subscriber, "seq", 1)
        publisher.connect("publisher")
        expected = itertools.count()
        sent = acked = 0
        while acked < count:
            while sent < count and sent - acked < 20:
                publisher.send(
                    Publish("seq", str(sent).encode(), qos=1, packet_id=sent % 65535 + 1)
                )
                sent += 1
            publisher.receive()
            acked += 1
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert int(packet.payload) == next(expected)
            subscriber.send(b"\x40\x02" + packet.packet_id.to_bytes(2))


def test_a_packet_arrives_in_one_piece(node: NodeProcess) -> None:
    """Small clients read each packet with one recv()."""
    with RawClient(node.port) as subscriber, RawClient(node.port) as publisher:
        subscriber.connect("subscriber")
        subscribed(subscriber, "whole")
        publisher.connect("publisher")
        for size in (0, 100, 5_000, 60_000):
            frame = encode(Publish("whole", bytes(size)), 5)
            for pos in range(0, len(frame), 1 + len(frame) // 7):  # sent in pieces
                publisher.send(frame[pos : pos + 1 + len(frame) // 7])
                time.sleep(0.002)  # not for luck: without it the kernel joins the pieces
            assert subscriber.socket.recv(1 << 20) == frame


def test_a_packet_of_many_megabytes_passes(node: NodeProcess) -> None:
    payload = os.urandom(12 * MIB)
    with RawClient(node.port) as subscriber, RawClient(node.port) as publisher:
        subscriber.connect("subscriber")
        subscribed(subscriber, "large")
        publisher.connect("publisher")
        publisher.send(Publish("large", payload))
        assert subscriber.receive() == Publish("large", payload)


def test_packets_sent_right_behind_the_connect(node: NodeProcess) -> None:
    from isthmus.mqtt.packets import Connect

    with RawClient(node.port) as client:
        client.send(
            encode(Connect("eager"), 5)
            + encode(Subscribe(1, (Subscription("eager"),)), 5)
            + encode(Publish("eager", b"now"), 5)
            + b"\xc0"
        )
        kinds = [type(client.receive()).__name__ for _ in range(3)]
        assert kinds == ["ConnAck", "SubAck", "Publish"]
        client.send(b"\x00")
        assert type(client.receive()).__name__ == "PingResp"


# ---- stop --------------------------------------------------------------------------------


def test_sigterm_drains_tells_v5_clients_and_stops(tmp_path: Path, broker: Broker) -> None:
    with (
        NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as node,
        RawClient(node.port, 5) as v5,
        RawClient(node.port, 4) as v4,
    ):
        v5.connect("five")
        v4.connect("four")
        v4.send(Publish("in/flight", b"x", qos=1, packet_id=9))
        node.stop()
        assert v5.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        assert v5.receive() is None
        assert type(v4.receive()).__name__ == "PubAck"
        assert v4.receive() is None
        assert node.process is not None
        assert node.process.returncode == 0


def test_sigterm_ends_in_time_with_a_client_that_does_not_read(
    tmp_path: Path, broker: Broker
) -> None:
    with (
        NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}") as node,
        RawClient(node.port) as stuck,
        RawClient(node.port) as publisher,
    ):
        stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect("stuck")
        subscribed(stuck, "flood")
        publisher.connect("publisher")
        for _ in range(300):
            publisher.send(Publish("flood", bytes(60_000)))
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        try:
            node.process.wait(8)  # it promises 5 s; the rest is the machine's
        except subprocess.TimeoutExpired:
            pytest.fail("the node did not stop")
        assert node.process.returncode == 0
