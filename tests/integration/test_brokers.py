"""Every broker for real: it starts, answers, delivers, crashes, comes back and goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import paho.mqtt.client as mqtt
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from conftest import BrokerFactory, SharedBroker, require_broker
from isthmus.brokers import broker_class, create, names
from isthmus.brokers.base import Broker
from isthmus.brokers.mosquitto import Mosquitto, TlsListener
from isthmus.brokers.probe import connect_answer
from isthmus.errors import BrokerFailed
from isthmus.processes.folders import OwnedFolder, clear_abandoned
from isthmus.processes.ports import free_port, owns_listener
from support.waiting import wait_for

SPOKEN = [(name, level) for name in names() for level in broker_class(name).protocol_levels]
UNSPOKEN = [(name, level) for name in names() for level in (4, 5) if (name, level) not in SPOKEN]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Client:
    """A paho client whose network loop runs; disconnected at the end of the `with`."""

    def __init__(self, broker: Broker, level: int = 4, *, port: int = 0) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.acknowledged = threading.Event()
        self._connected = threading.Event()
        self._address = (broker.host, port or broker.port)
        self.mqtt = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"t{uuid.uuid4().hex[:12]}",
            protocol=MQTTProtocolVersion(level),
        )
        if broker.username is not None:
            self.mqtt.username_pw_set(broker.username, broker.password)
        self.mqtt.on_connect = lambda client, data, flags, reason, properties: (
            self._connected.set() if not reason.is_failure else None
        )
        self.mqtt.on_subscribe = lambda client, data, mid, reasons, properties: (
            self.acknowledged.set()
        )
        self.mqtt.on_message = lambda client, data, message: self.got.append(
            (message.topic, bytes(message.payload))
        )

    def __enter__(self) -> Client:
        self.mqtt.connect(*self._address)
        self.mqtt.loop_start()
        assert self._connected.wait(10), "no CONNACK"
        return self

    def __exit__(self, *error: object) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()

    def subscribe(self, topic: str, qos: int = 0) -> None:
        self.acknowledged.clear()
        self.mqtt.subscribe(topic, qos)
        assert self.acknowledged.wait(10), "no SUBACK"


def deliver_one(broker: Broker, level: int = 4) -> None:
    """One message from one client to another."""
    topic = f"t/{uuid.uuid4().hex}"
    with Client(broker, level) as subscriber, Client(broker, level) as publisher:
        subscriber.subscribe(topic)
        publisher.mqtt.publish(topic, b"hello")
        wait_for(lambda: subscriber.got, 10, f"a message through {broker}")
        assert subscriber.got == [(topic, b"hello")]


# ---- every make --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "level"), SPOKEN)
def test_it_speaks_what_it_claims(shared_broker: SharedBroker, name: str, level: int) -> None:
    broker = shared_broker(name)
    answer = connect_answer(
        broker.host,
        broker.port,
        level=level,
        username=broker.username,
        password=broker.password,
        timeout_s=10,
    )
    assert answer == 0
    deliver_one(broker, level)


@pytest.mark.parametrize(("name", "level"), UNSPOKEN)
def test_it_does_not_speak_what_it_does_not_claim(
    shared_broker: SharedBroker, name: str, level: int
) -> None:
    broker = shared_broker(name)
    assert connect_answer(broker.host, broker.port, level=level, timeout_s=10) != 0
    assert broker.running


@pytest.mark.parametrize("name", names())
def test_it_listens_on_loopback_only(shared_broker: SharedBroker, name: str) -> None:
    broker = shared_broker(name)
    listening = {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for pid in broker.process_ids()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert (broker.host, broker.port) in listening
    assert {host for host, _ in listening} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("name", names())
def test_it_comes_back_after_a_crash_and_leaves_nothing(
    broker_factory: BrokerFactory, name: str
) -> None:
    broker = broker_factory(name)
    port, folder, first = broker.port, broker.folder, set(broker.process_ids())
    assert broker.pid in first
    assert folder is not None

    broker.kill()
    assert not broker.running
    assert not alive(max(first - set(broker.process_ids())))
    assert connect_answer(broker.host, port) is None

    broker.start()
    assert (broker.port, broker.folder) == (port, folder)
    deliver_one(broker)
    every = first | set(broker.process_ids())

    broker.stop()
    assert [pid for pid in every if alive(pid)] == []
    assert not folder.exists()
    assert broker.process_ids() == []
    assert connect_answer(broker.host, port) is None
    broker.stop()


_PARENT = """
import sys, threading, time
from isthmus.brokers import create
brokers = [create(name) for name in sys.argv[1:]]
threads = [threading.Thread(target=broker.start) for broker in brokers]
for thread in threads: thread.start()
for thread in threads: thread.join()  # the threads are gone, the brokers must not be
print(*(pid for broker in brokers for pid in broker.process_ids()), flush=True)
print(*(broker.folder for broker in brokers), flush=True)
sys.stdin.read()
"""


def test_they_die_with_their_parent_even_when_it_is_killed() -> None:
    for name in names():
        require_broker(name)
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, *names()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        try:
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            folders = parent.stdout.readline().split()
            assert len(pids) >= len(names())
            assert [pid for pid in pids if not alive(pid)] == []
        finally:
            parent.kill()
    wait_for(
        lambda: not [pid for pid in pids if alive(pid)],
        10,
        "the brokers' end after their parent was killed",
    )
    # Nobody was left to remove their folders: the next start on this machine does.
    clear_abandoned()
    assert [folder for folder in folders if Path(folder).exists()] == []


# ---- start-up, in detail -----------------------------------------------------------------


def test_a_start_that_fails_shows_the_end_of_the_log() -> None:
    require_broker("mosquitto")
    broker = create("mosquitto", extra=["no_such_option true"])
    with pytest.raises(BrokerFailed) as caught:
        broker.start()
    assert caught.value.name == "mosquitto"
    assert "ended with status" in caught.value.problem
    assert "no_such_option" in caught.value.log_tail
    assert "no_such_option" in str(caught.value)
    assert not broker.running
    assert broker.folder is None


def test_a_broker_that_refuses_the_probe_fails_with_the_return_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_broker("mosquitto")
    monkeypatch.setattr(Mosquitto, "start_timeout_s", 0.5)
    broker = create("mosquitto", allow_anonymous=False)
    with pytest.raises(BrokerFailed, match="return code 5"):
        broker.start()
    assert broker.folder is None


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("name", ["mosquitto", "embedded", "aedes", "moquette"])
def test_a_port_that_somebody_took_is_changed_for_another(
    monkeypatch: pytest.MonkeyPatch, taken_port: int, name: str
) -> None:
    require_broker(name)
    ports = iter([taken_port])
    monkeypatch.setattr(
        "isthmus.brokers.base.free_port", lambda host: next(ports, None) or free_port(host)
    )
    with create(name) as broker:
        assert broker.port != taken_port
        assert owns_listener(broker.process_ids(), broker.port)


def test_a_port_that_was_asked_for_is_not_changed(taken_port: int) -> None:
    require_broker("mosquitto")
    broker = create("mosquitto", port=taken_port)
    with pytest.raises(BrokerFailed, match="already in use"):
        broker.start()


def test_another_broker_on_the_port_is_not_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch, broker_factory: BrokerFactory
) -> None:
    other = broker_factory("mosquitto")
    ports = iter([other.port])
    monkeypatch.setattr(
        "isthmus.brokers.base.free_port", lambda host: next(ports, None) or free_port(host)
    )
    # The embedded one needs a while until it finds its port taken; the other answers at once.
    broker = broker_factory("embedded")
    assert broker.port != other.port
    assert not owns_listener(broker.process_ids(), other.port)


def test_starting_twice_is_an_error(broker_factory: BrokerFactory) -> None:
    broker = broker_factory("mosquitto")
    with pytest.raises(RuntimeError, match="already running"):
        broker.start()
    assert broker.running


def test_a_folder_in_use_is_not_cleared_away() -> None:
    folder = OwnedFolder("test")
    try:
        assert folder.path not in clear_abandoned()
        assert folder.path.is_dir()
    finally:
        folder.remove()
    assert not folder.path.exists()


def test_given_ports_are_all_different() -> None:
    assert len({free_port() for _ in range(50)}) == 50


# ---- from an event loop ------------------------------------------------------------------


def test_async_start_and_stop() -> None:
    async def scenario() -> tuple[bool, bool]:
        broker = create("embedded")
        await broker.async_start()
        during = broker.running
        await broker.async_stop()
        return during, broker.running

    require_broker("embedded")
    assert asyncio.run(scenario()) == (True, False)


def test_canceling_async_start_leaves_nothing() -> None:
    async def scenario() -> Broker:
        broker = create("embedded")
        starting = asyncio.create_task(broker.async_start())
        await asyncio.to_thread(wait_for, lambda: broker.running, 10, "the process")
        pids = broker.process_ids()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [pid for pid in pids if alive(pid)] == []
        return broker

    require_broker("embedded")
    broker = asyncio.run(scenario())
    assert not broker.running
    assert broker.folder is None


def test_the_embedded_one_ends_when_standard_input_ends() -> None:
    require_broker("embedded")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "isthmus.brokers.embedded_main", "--port", str(port)],
        stdin=subprocess.PIPE,
    )
    try:
        wait_for(lambda: connect_answer("127.0.0.1", port) == 0, 15, "the embedded broker")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


# ---- Mosquitto's options -----------------------------------------------------------------


def make_certificate(
    folder: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A key and a certificate in `folder`, signed by `issuer` or, as an authority, by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]),
            critical=False,
        )
    )
    certificate = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, key


def test_mosquitto_listens_with_tls_and_asks_for_a_certificate(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    authority = make_certificate(tmp_path, "ca", None)
    make_certificate(tmp_path, "server", authority)
    make_certificate(tmp_path, "client", authority)
    ca = tmp_path / "ca.pem"
    tls = TlsListener(
        cert=tmp_path / "server.pem",
        key=tmp_path / "server.key",
        ca=ca,
        require_certificate=True,
    )
    broker = broker_factory("mosquitto", tls=tls)
    assert isinstance(broker, Mosquitto)
    client = Client(broker, port=broker.tls_port)
    client.mqtt.tls_set(
        ca_certs=str(ca),
        certfile=str(tmp_path / "client.pem"),
        keyfile=str(tmp_path / "client.key"),
    )
    with client:
        client.subscribe("t")
        client.mqtt.publish("t", b"x")
        wait_for(lambda: client.got == [("t", b"x")], 10, "a message over TLS")
    assert connect_answer(broker.host, broker.tls_port) is None


def test_mosquitto_keeps_retained_messages_over_a_crash(broker_factory: BrokerFactory) -> None:
    broker = broker_factory("mosquitto", persistence=True)
    assert broker.folder is not None
    database = broker.folder / "mosquitto.db"
    with Client(broker) as publisher:
        publisher.mqtt.publish("kept/topic", b"kept", qos=1, retain=True).wait_for_publish(10)
    wait_for(
        lambda: database.exists() and b"kept/topic" in database.read_bytes(),
        10,
        "the message on disk",
    )
    os.kill(broker.pid, signal.SIGKILL)
    wait_for(lambda: not broker.running, 10, "the broker's death")
    broker.start()
    with Client(broker) as subscriber:
        subscriber.subscribe("kept/topic")
        wait_for(lambda: subscriber.got == [("kept/topic", b"kept")], 10, "the retained message")
