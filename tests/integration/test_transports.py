"""TLS towards clients and the broker, and MQTT over WebSocket, with paho as the client."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from conftest import BrokerFactory
from isthmus.brokers.mosquitto import Mosquitto, TlsListener
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect
from support.certificates import Authority, Pair
from support.nodes import NodeProcess, free_port
from support.waiting import wait_for


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.issue("server")


def round_trip(
    port: int,
    *,
    transport: str = "tcp",
    ca: Path | None = None,
    pair: Pair | None = None,
    payload: bytes = b"hello",
) -> bytes:
    """Subscribe, publish at QoS 2, and return what comes back."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        transport=transport,  # type: ignore[arg-type]
        protocol=MQTTProtocolVersion.MQTTv5,
    )
    if ca is not None:
        client.tls_set(str(ca), str(pair.cert) if pair else None, str(pair.key) if pair else None)
    received: list[bytes] = []
    subscribed: list[Any] = []
    client.on_message = lambda _c, _u, message: received.append(bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.append(1)
    client.on_connect = lambda c, *_: c.subscribe("t", 2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        wait_for(lambda: subscribed, 10, "SUBACK")
        client.publish("t", payload, 2)
        wait_for(lambda: received, 10, "the message")
    finally:
        client.disconnect()
        client.loop_stop()
    return received[0]


@pytest.fixture
def tls_node(
    tmp_path: Path, broker_factory: BrokerFactory, server_pair: Pair
) -> Iterator[NodeProcess]:
    broker = broker_factory("mosquitto")
    with NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{broker.port}",
        listen={"mqtts": f"127.0.0.1:{free_port()}", "wss": f"127.0.0.1:{free_port()}"},
        tls={"cert": server_pair.cert, "key": server_pair.key},
    ) as node:
        yield node


def port_of(node: NodeProcess, listener: str) -> int:
    return int(node.status()["listeners"][listener].rpartition(":")[2])


@pytest.mark.parametrize(("listener", "transport"), [("mqtts", "tcp"), ("wss", "websockets")])
def test_tls_towards_clients(
    tls_node: NodeProcess, authority: Authority, listener: str, transport: str
) -> None:
    port = port_of(tls_node, listener)
    payload = bytes(200_000)
    assert round_trip(port, ca=authority.cert, transport=transport, payload=payload) == payload


def test_a_plain_client_on_the_tls_port_harms_nobody(
    tls_node: NodeProcess, authority: Authority
) -> None:
    port = port_of(tls_node, "mqtts")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(encode(Connect("plain"), 5))
        while chunk := plain.recv(100):
            assert chunk[0] == 0x15  # a TLS alert, not MQTT
    assert round_trip(port, ca=authority.cert) == b"hello"


@pytest.mark.parametrize("known", [True, False], ids=["known", "stranger"])
def test_client_certificates_are_demanded(
    tmp_path: Path,
    broker_factory: BrokerFactory,
    authority: Authority,
    server_pair: Pair,
    known: bool,
) -> None:
    broker = broker_factory("mosquitto")
    with NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{broker.port}",
        listen={"mqtts": f"127.0.0.1:{free_port()}"},
        tls={
            "cert": server_pair.cert,
            "key": server_pair.key,
            "client_ca": authority.cert,
            "require_client_cert": True,
        },
    ) as node:
        port = port_of(node, "mqtts")
        if known:
            assert round_trip(port, ca=authority.cert, pair=authority.issue("device")) == b"hello"
            return
        stranger = Authority(tmp_path, "Other CA").issue("stranger")
        context = ssl.create_default_context(cafile=str(authority.cert))
        context.load_cert_chain(stranger.cert, stranger.key)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            first_answer(port, context)


def first_answer(port: int, context: ssl.SSLContext) -> bytes:
    """What a CONNECT over TLS is answered with; TLS 1.3 tells of a refusal at the first read."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(encode(Connect("stranger"), 5))
        if not (answer := sock.recv(100)):
            raise ConnectionError("closed")
        return answer


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "untrusted"])
def test_tls_towards_the_broker_with_a_client_certificate(
    tmp_path: Path,
    broker_factory: BrokerFactory,
    authority: Authority,
    server_pair: Pair,
    trusted: bool,
) -> None:
    listener = TlsListener(server_pair.cert, server_pair.key, authority.cert, True)
    broker = broker_factory("mosquitto", tls=listener)
    assert isinstance(broker, Mosquitto)
    pair = authority.issue("node")
    ca = authority.cert if trusted else Authority(tmp_path, "Other CA").cert
    node = NodeProcess(
        tmp_path,
        f"mqtts://127.0.0.1:{broker.tls_port}",
        broker={"tls": {"ca": ca, "cert": pair.cert, "key": pair.key}},
    )
    try:
        node.start(ready=trusted)
        if trusted:
            assert round_trip(node.port) == b"hello"
        else:
            wait_for(lambda: "certificate verify failed" in node.log(), 10, "the cause in the log")
            assert not node.is_ready()
    finally:
        node.stop()


@pytest.fixture
def ws_port(tmp_path: Path, broker_factory: BrokerFactory) -> Iterator[int]:
    broker = broker_factory("mosquitto")
    listen = {"ws": f"127.0.0.1:{free_port()}"}
    with NodeProcess(tmp_path, f"mqtt://127.0.0.1:{broker.port}", listen=listen) as node:
        yield port_of(node, "ws")


def test_websocket(ws_port: int) -> None:
    payload = bytes(range(256)) * 2000
    assert round_trip(ws_port, transport="websockets", payload=payload) == payload


def test_websocket_packets_spread_over_frames_and_text_frames_refused(ws_port: int) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    url = f"ws://127.0.0.1:{ws_port}/mqtt"
    with connect(url, subprotocols=[Subprotocol("mqtt")]) as ws:
        for byte in encode(Connect("bytewise"), 5):
            ws.send(bytes([byte]))
        answer = ws.recv(10)
        assert isinstance(answer, bytes)
        assert answer[0] == 0x20
        ws.send("text")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


def test_websocket_without_the_subprotocol_is_refused(ws_port: int) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{ws_port}/mqtt")
    assert refused.value.response.status_code == 400
