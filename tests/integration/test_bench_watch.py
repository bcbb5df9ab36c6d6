"""The bottleneck watch on real sockets, brokers and nodes: who held whom back is told right.

publisher ── Mosquitto ── subscriber that does not read        → subscribers
publisher ── Mosquitto (SIGSTOP) ── subscriber                 → brokers
publisher ── node a ── node b ── subscriber                    → traffic of the link
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conftest import BrokerFactory
from isthmus.bench.load.clock import now_ns
from isthmus.bench.watch import tcp_info
from isthmus.bench.watch import watch as watch_module
from isthmus.bench.watch.bottleneck import Bottleneck, judge
from isthmus.bench.watch.evidence import Counts, gather
from isthmus.bench.watch.watch import Watch, Watched, WatchedConnection, WatchedTables
from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.fabric.admin_client import fetch_peers
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish, Subscribe, Subscription
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

LIMITED_US = 300_000
"""Long enough to be most of a short run."""
MESSAGE = encode(Publish("t", bytes(4_000), 0), 4)


# ---- TCP_INFO ------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(family: int, host: str) -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """A client, the server's end, and the server's port."""
    both = family == socket.AF_INET6 and host == "127.0.0.1"
    listening = "::" if both else host
    with socket.create_server((listening, 0), family=family, dualstack_ipv6=both) as listener:
        port = listener.getsockname()[1]
        with (
            socket.create_connection((host, port)) as client,
            listener.accept()[0] as server,
        ):
            yield client, server, port


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "127.0.0.1")],
    ids=["IPv4", "IPv6", "IPv4 at a listener for both"],
)
def test_the_kernel_tells_of_both_ends(family: int, host: str) -> None:
    with connected(family, host) as (client, server, port):
        client.sendall(bytes(1_000))
        server.recv(1_000)
        local = str(Address(*client.getsockname()[:2]))
        found = tcp_info.of_connections([port])
        assert set(found) == {(port, local)}
        theirs, ours = found[port, local], tcp_info.read(client)
        assert theirs.bytes_received == 1_000
        assert ours.bytes_sent in (1_000, None)  # None before Linux 4.19
        assert tcp_info.read(server).bytes_received == 1_000


def test_no_connection_no_entry() -> None:
    assert tcp_info.of_connections([free_port()]) == {}
    assert tcp_info.of_connections([]) == {}


# ---- who held whom back --------------------------------------------------------------------


class Run:
    """One publisher and one subscriber at a broker, watched."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self.watch = Watch(lambda: [Watched("n1", "broker", (pid,))], every_s=0.05)
        self.subscriber, self.publisher = RawClient(port, 4), RawClient(port, 4)
        self.subscriber.connect("subscriber")
        self.subscriber.send(Subscribe(1, (Subscription("t", 0),))).receive()
        self.publisher.connect("publisher")
        self.publisher.socket.setblocking(False)
        self.local = str(Address(*self.subscriber.socket.getsockname()))
        self.offered = self.sent = 0

    def start(self) -> None:
        server = Address("127.0.0.1", self.port)
        self.before = tcp_info.read(self.publisher.socket)
        self.started_ns = now_ns()
        self.watching = self.watch.start(
            connections=[WatchedConnection("t-sub-1", "n1", "subscriber", self.local, server)]
        )

    def publish_until(self, condition: Callable[[], bool]) -> None:
        """As fast as the broker takes it: bytes of whole and of broken messages."""

        def one_more() -> bool:
            self.offered += len(MESSAGE)
            try:
                self.sent += self.publisher.socket.send(MESSAGE)
            except BlockingIOError:
                pass
            return condition()

        wait_for(one_more, 20, "somebody to be held back", every_s=0.0005)

    def their_end(self) -> tcp_info.TcpInfo:
        return tcp_info.of_connections([self.port])[self.port, self.local]

    def our_end(self) -> tcp_info.TcpInfo:
        return tcp_info.read(self.publisher.socket).since(self.before)

    def judged(self, received: int) -> tuple[WatchedTables, Bottleneck]:
        ended_ns = now_ns()
        tables = self.watching.stop()
        entry: dict[str, Any] = {"peer": "t-pub-0", "node": "n1", **asdict(self.our_end())}
        evidence = gather(
            tables,
            (self.started_ns, ended_ns),
            duration_s=(ended_ns - self.started_ns) / 1e9,
            counts=Counts(self.offered, self.sent, self.sent, received),
            headroom={},
            tcp=[entry],
            subscribers=["t-sub-1"],
        )
        # Whatever else this machine does while the test runs is not what it is about.
        return tables, judge(replace(evidence, machine_busy=None))

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close()


@pytest.fixture
def run(broker_factory: BrokerFactory) -> Iterator[Run]:
    broker = broker_factory("mosquitto")
    assert broker.pid is not None
    with contextlib.closing(Run(broker.port, broker.pid)) as started:
        yield started


def test_a_subscriber_that_does_not_read(run: Run) -> None:
    run.start()
    run.publish_until(lambda: (run.their_end().rwnd_limited_us or 0) > LIMITED_US)
    tables, verdict = run.judged(received=0)
    assert verdict.limited_by == "subscribers", verdict
    assert any("t-sub-1 at n1" in note for note in verdict.notes)
    rows = [row for row in tables.links.to_pylist() if row["kind"] == "server"]
    assert {(row["node"], row["peer"]) for row in rows} == {("n1", "t-sub-1")}
    assert rows[-1]["rwnd_limited_us"] > LIMITED_US
    assert rows[-1]["bytes_out"] > rows[0]["bytes_out"]
    assert "pause frames are not reported by lo" in verdict.notes


def test_a_broker_that_stands_still(run: Run) -> None:
    run.start()
    os.kill(run.pid, signal.SIGSTOP)
    try:
        run.publish_until(lambda: (run.our_end().rwnd_limited_us or 0) > LIMITED_US)
        tables, verdict = run.judged(received=0)
    finally:
        os.kill(run.pid, signal.SIGCONT)
    assert verdict.limited_by == "brokers", verdict
    assert any(note.startswith("servers held publishers back") for note in verdict.notes)
    assert tables.servers_ends[0].grown.rwnd_limited_us == 0


def test_a_run_that_nothing_limits(run: Run) -> None:
    run.start()
    received = 0
    for _ in range(50):
        run.publisher.socket.sendall(MESSAGE)
        run.offered, run.sent = run.offered + len(MESSAGE), run.sent + len(MESSAGE)
        received += len(run.subscriber.receive_frame())
    tables, verdict = run.judged(received)
    assert verdict.limited_by == "nothing", verdict
    broker = [row for row in tables.resources.to_pylist() if row["node"] == "n1"]
    assert len(broker) >= 2
    assert broker[-1]["rss_bytes"] > 0


def test_a_broker_that_dies_is_noted(broker_factory: BrokerFactory) -> None:
    broker = broker_factory("mosquitto")
    assert broker.pid is not None
    watched = Watched("n1", "broker", (broker.pid,))
    samples: list[int] = []

    def processes() -> list[Watched]:
        samples.append(1)
        return [watched]

    watch = Watch(processes, every_s=0.02)
    watching = watch.start()
    wait_for(lambda: len(samples) >= 2, 10, "samples of the broker alive")
    broker.kill()
    seen = len(samples)
    wait_for(lambda: len(samples) > seen + 1, 10, "a sample of the broker dead")
    tables = watching.stop()
    assert f"n1: broker (process {watched.pids[0]}) ended while it was watched" in tables.notes


# ---- nodes ---------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each question of the watch to a node was answered."""
    told: list[bool] = []

    def asked(address: Address, timeout_s: float) -> dict[str, Any]:
        try:
            answer = fetch_peers(address, timeout_s)
        except AdminError:
            told.append(False)
            raise
        told.append(True)
        return answer

    monkeypatch.setattr(watch_module, "fetch_peers", asked)
    return told


def test_traffic_of_the_link_between_two_nodes(
    tmp_path: Path, broker_factory: BrokerFactory, answers: list[bool]
) -> None:
    brokers = [broker_factory("mosquitto") for _ in range(2)]
    link = f"127.0.0.1:{free_port()}"
    url = "mqtt://127.0.0.1:{}"
    b = NodeProcess(tmp_path, url.format(brokers[1].port), id="b", listen={"link": link})
    a = NodeProcess(tmp_path, url.format(brokers[0].port), id="a", peers=[{"address": link}])
    with b, a, RawClient(b.port) as subscriber, RawClient(a.port) as publisher:
        subscriber.connect("subscriber")
        subscriber.send(Subscribe(1, (Subscription("t", 0),))).receive()
        publisher.connect("publisher")
        wait_for(
            lambda: a.fabric()["algorithm"]["neighbors"]["b"]["received_filters"] == 1,
            10,
            "the inter-subscription",
        )
        admins = {node.id: Address("127.0.0.1", node.admin_port) for node in (a, b)}
        nodes = [Watched(node.id, "node", (node.pid,)) for node in (a, b)]
        watch = Watch(lambda: nodes, admins, every_s=0.1)
        asked_ns = now_ns()
        watching = watch.start()
        wait_for(lambda: len(answers) >= 2, 10, "the first answers of the nodes")
        for _ in range(20):
            publisher.send(Publish("t", b"x", 0))
            subscriber.receive()
        tables = watching.stop()
    rows = tables.links.to_pylist()
    first, *_, last = (row for row in rows if (row["node"], row["peer"]) == ("a", "b"))
    assert last["messages_out"] - first["messages_out"] == 20
    assert last["data_bytes_out"] - first["data_bytes_out"] > 20 * len("$i t x")
    assert last["control_packets_out"] > 0, "of the guard and of the algorithm"
    for way in ("out", "in"):
        data, control = last[f"data_bytes_{way}"], last[f"control_bytes_{way}"]
        assert data + control == last[f"bytes_{way}"]
    assert all(row["t_ns"] > asked_ns and row["kind"] == "link" for row in rows)
    assert {(row["node"], row["peer"]) for row in rows} == {("a", "b"), ("b", "a")}
    assert tables.dropped == {}
    assert {row["node"] for row in tables.resources.to_pylist()} == {"", "a", "b"}


def test_a_node_that_hangs_does_not_delay_the_samples(
    tmp_path: Path, broker_factory: BrokerFactory, answers: list[bool]
) -> None:
    url = f"mqtt://127.0.0.1:{broker_factory('mosquitto').port}"
    with NodeProcess(tmp_path, url) as node:
        watch = Watch(admins={"a": Address("127.0.0.1", node.admin_port)}, every_s=0.02)
        node.pause()
        try:
            watching = watch.start()
            wait_for(lambda: answers, 30, "the watch to give up on the node")
            tables = watching.stop()
        finally:
            node.resume()
    assert not any(answers)
    assert any(note.startswith("a: its admin address gave no answer") for note in tables.notes)
    assert tables.resources.num_rows > 2, "more than the first and the last"
