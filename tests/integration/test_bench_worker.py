"""The load process, driven over its pipes as the coordinator drives it, against real sockets.

test ──orders──▶ worker ──MQTT──▶ Mosquitto (or a listener of the test's own)
     ◀─answers──        ──files─▶ LOG
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks.load.rounds import Plan, measure_flood, measure_sending

from conftest import BrokerFactory
from isthmus.bench.coordinator.control import ControlMessage, LineChannel
from isthmus.brokers.base import Broker
from isthmus.mqtt.packets import Publish
from isthmus.pipeline.log.payload import LAYOUT, MAGIC, run_tag
from isthmus.pipeline.log.reading import LoggedClient
from isthmus.pipeline.log.schema import TABLES, Table, file_path
from isthmus.processes.children import Launch, end, launch
from isthmus.processes.ports import free_port
from support.raw import RawClient

TOPICS = ["topic1", "another/topic"]
ANSWER_S = 30.0
MS = 1_000_000


class Load:
    """One load process called w0."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.stderr = folder / "w0.stderr"
        self.process = launch(
            Launch(
                [sys.executable, "-m", "isthmus.bench.load.worker", "w0"],
                pipe_stdin=True,
                pipe_stdout=True,
            ),
            self.stderr,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = LineChannel("w0", self.process.stdout.fileno(), self.process.stdin.fileno())

    def say(self, do: str, **rest: Any) -> None:
        self.channel.send({"do": do, **rest}, ANSWER_S)

    def hear(self, *expected: str) -> ControlMessage:
        answer = self.channel.receive(ANSWER_S)
        assert answer["writer"] == "w0"
        assert answer["is"] in expected, answer
        return answer

    def connect(
        self, clients: list[LoggedClient], port: int, *, expected: str = "connected", **changed: Any
    ) -> ControlMessage:
        target = {"host": "127.0.0.1", "port": port, "username": None, "password": None}
        order: dict[str, Any] = {
            "clients": [asdict(client) for client in clients],
            "topics": TOPICS,
            "targets": {"n1": target | changed.pop("target", {})},
            "qos": {"t": 0, "l": 0},
            "payload_bytes": 32,
            "timeout_s": 20,
            "returning": [],
        }
        self.say("connect", **(order | changed))
        return self.hear(expected)

    def begin(self, run: str, *, duration_s: float = 0.6, interval_ns: int = 5 * MS) -> None:
        self.say(
            "measure",
            run=run,
            log=str(self.log),
            start_ns=time.time_ns() + 50 * MS,
            duration_s=duration_s,
            interval_ns={"t": interval_ns, "l": 100 * MS},
        )

    def progress(self, until: Callable[[ControlMessage], bool]) -> ControlMessage:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            report = self.hear("progress")
            if until(report):
                return report
        raise AssertionError(f"it did not come to that: {report}")

    def finish(self) -> ControlMessage:
        self.say("finish")
        while (answer := self.hear("progress", "measured"))["is"] == "progress":
            pass
        return answer

    def failed(self) -> str:
        while (answer := self.hear("progress", "failed"))["is"] == "progress":
            pass
        assert self.process.wait(ANSWER_S) == 1
        return str(answer["problem"])

    def rows(self, table: Table, run: str) -> list[dict[str, Any]]:
        path = file_path(self.log, table, run, "w0")
        read = pq.read_table(path, partitioning=None)
        assert read.schema.equals(TABLES[table])
        metadata = pq.read_metadata(path).metadata
        said = {name: metadata[f"isthmus.{name}".encode()] for name in ("table", "run", "writer")}
        assert said == {"table": table.encode(), "run": run.encode(), "writer": b"w0"}
        rows: list[dict[str, Any]] = read.to_pylist()
        return rows


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    worker = Load(tmp_path)
    yield worker
    end(worker.process, 0)


@pytest.fixture
def broker(broker_factory: BrokerFactory) -> Broker:
    return broker_factory("mosquitto", extra=["max_queued_messages 0"])


def population(publishers: int, subscribers: int, *, latency: bool = True) -> list[LoggedClient]:
    """t-clients in turns on both topics, and a pair of l-clients on the first."""
    clients: list[LoggedClient] = []

    def add(kind: Any, role: Any, topic: int) -> None:
        number = len(clients)
        name = f"{kind}-{role[:3]}-{number}"
        clients.append(LoggedClient(number, name, kind, role, topic, "n1", "w0"))

    for number in range(publishers):
        add("t", "publisher", number % 2)
    for number in range(subscribers):
        add("t", "subscriber", number % 2)
    if latency:
        add("l", "publisher", 0)
        add("l", "subscriber", 0)
    return clients


def expected(clients: list[LoggedClient], sent: Mapping[int, int]) -> int:
    topics = {client.client: client.topic for client in clients}
    return sum(
        count
        for publisher, count in sent.items()
        for client in clients
        if client.role == "subscriber" and client.topic == topics[publisher]
    )


def check_files(
    load: Load, run: str, measured: ControlMessage, clients: list[LoggedClient]
) -> None:
    """All messages are there, once, in order, with the right fields."""
    publishes, deliveries = load.rows("publishes", run), load.rows("deliveries", run)
    links = load.rows("links", run)
    assert {(file["table"], file["rows"]) for file in measured["files"]} == {
        ("publishes", len(publishes)),
        ("deliveries", len(deliveries)),
        ("links", len(links)),
    }
    sent_at = {(row["publisher"], row["message"]): row["t_send_ns"] for row in publishes}
    assert len(sent_at) == len(publishes) == measured["sent"] == measured["offered"]
    topic = {client.client: client.topic for client in clients}
    assert all(row["topic"] == topic[row["publisher"]] for row in publishes)
    counts: dict[int, int] = {}
    for publisher, _ in sent_at:
        counts[publisher] = counts.get(publisher, 0) + 1
    assert all((p, n) in sent_at for p, count in counts.items() for n in range(count))

    assert len(deliveries) == measured["received"] == expected(clients, counts)
    following: dict[tuple[int, int], int] = {}
    for row in deliveries:
        pair = row["subscriber"], row["publisher"]
        assert row["message"] == following.get(pair, 0)
        following[pair] = row["message"] + 1
        assert row["topic"] == topic[row["subscriber"]] == topic[row["publisher"]]
        assert row["t_send_ns"] == sent_at[row["publisher"], row["message"]]
        assert row["t_receive_ns"] > row["t_send_ns"]
    assert {row["peer"] for row in links} == {client.name for client in clients}
    assert {row["kind"] for row in links} == {"client"}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_two_runs_in_one_session(load: Load, broker: Broker, qos: int) -> None:
    clients = population(4, 6)
    elsewhere = LoggedClient(99, "t-sub-99", "t", "subscriber", 0, "n1", "w1")
    load.say("clock")
    assert abs(load.hear("clock")["t_ns"] - time.time_ns()) < 10_000 * MS
    connected = load.connect([*clients, elsewhere], broker.port, qos={"t": qos, "l": qos})
    assert connected["clients"] == len(clients) == len(set(connected["sockets"].values()))
    wanted = 4 * 120 * 3 + 2 * 120 + 6 * 4  # t to t, t to l on the first topic, l to both
    for run in ("first", "second"):
        load.begin(run)
        report = load.progress(lambda r: not r["sending"] and r["received"] >= wanted)
        assert report["sent"] == sum(report["sent_by_topic"]) == 4 * 120 + 6
        assert report["held"] == report["closed"] == 0
        measured = load.finish()
        assert measured["run"] == run
        assert measured["strays"] == []
        assert measured["notes"] == []
        check_files(load, run, measured, clients)
        assert set(measured["headroom"]) == {"cpu", "late_ms_max", "late_share", "stalled_ms"}
        assert 0 < measured["headroom"]["cpu"] < 4
        assert {entry["peer"] for entry in measured["tcp"]} == {one.name for one in clients}
        publisher = next(entry for entry in measured["tcp"] if entry["peer"] == "t-pub-0")
        assert publisher["bytes_sent"] >= 120 * 42
    load.say("close")
    assert load.process.wait(ANSWER_S) == 0
    assert load.stderr.read_text() == ""


def test_strays_are_counted_by_reason_and_not_recorded(load: Load, broker: Broker) -> None:
    clients = population(1, 2, latency=False)
    load.connect(clients, broker.port)
    load.begin("run")
    payload = LAYOUT.pack(MAGIC, 0, 1, 0, 0, run_tag("yesterday"))
    with RawClient(broker.port, 4) as stranger:
        stranger.connect("stranger")
        stranger.send(Publish(TOPICS[0], b"hello"))
        stranger.send(Publish(TOPICS[0], payload))
        stranger.send(Publish(TOPICS[1], bytes(32)))
        stranger.send(Publish(TOPICS[1], payload + b"more"))
        load.progress(lambda report: not report["sending"] and report["received"] >= 120)
        measured = load.finish()
    check_files(load, "run", measured, clients)
    assert {stray["reason"]: stray["rows"] for stray in measured["strays"]} == {
        "not a message of the benchmark": 2,
        "a message of another run": 1,
        "a payload of another size": 1,
    }


def test_leftovers_of_a_run_are_strays_of_the_next(load: Load, broker: Broker) -> None:
    clients = population(0, 1, latency=False)
    load.connect(clients, broker.port)
    load.begin("first", duration_s=0.1)
    first = load.finish()
    assert first["received"] == 0
    with RawClient(broker.port, 4) as late:
        late.connect("late")
        late.send(Publish(TOPICS[0], LAYOUT.pack(MAGIC, 0, 1, 0, 0, run_tag("first"))))
        # Delivered before the second run begins: the broker has answered somebody since.
        late.send(Publish(TOPICS[0], b"", qos=1, packet_id=1))
        late.receive()
    load.begin("second", duration_s=0.1)
    load.hear("progress")
    second = load.finish()
    assert {stray["reason"]: stray["rows"] for stray in second["strays"]} == {
        "not a message of the benchmark": 1,
        "a message of another run": 1,
    }
    assert load.rows("deliveries", "second") == []


def test_large_payloads(load: Load, broker: Broker) -> None:
    clients = population(2, 2, latency=False)
    load.connect(clients, broker.port, payload_bytes=200_000)
    load.begin("large", interval_ns=50 * MS)
    load.progress(lambda report: not report["sending"] and report["received"] >= 24)
    check_files(load, "large", load.finish(), clients)


def test_lost_connections_are_reported_and_the_next_run_is_refused(
    load: Load, broker: Broker
) -> None:
    clients = population(2, 2, latency=False)
    load.connect(clients, broker.port)
    load.begin("cut", duration_s=60)
    load.progress(lambda report: report["received"] > 0)
    broker.kill()
    load.progress(lambda report: report["closed"] == 4)
    measured = load.finish()
    assert measured["sent"] < measured["offered"]
    assert len(measured["notes"]) == 4
    for note in measured["notes"]:
        assert " at n1: connection " in note
        assert note.endswith(" s after the start")
    load.begin("next")
    problem = load.failed()
    assert problem.startswith("measure: 4 clients have lost their connection, the first was t-")


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens on a port and serves one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_S)

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(ANSWER_S)
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        thread.join(ANSWER_S)


def test_a_broker_that_does_not_read_holds_the_publishers(load: Load) -> None:
    over = threading.Event()

    def deaf(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"\x20\x02\x00\x00")
        over.wait(ANSWER_S)

    with listener(deaf) as port:
        try:
            load.connect(population(1, 0, latency=False), port, payload_bytes=500_000)
            load.begin("deaf", duration_s=1.0, interval_ns=2 * MS)
            load.progress(lambda report: report["held"] == 1)
            load.progress(lambda report: not report["sending"])
            measured = load.finish()
        finally:
            over.set()
    assert measured["offered"] == 500
    assert measured["sent"] < 100
    assert len(load.rows("publishes", "deaf")) == measured["sent"]
    assert measured["notes"] == []


def test_bytes_that_are_not_mqtt_cost_that_client_its_connection(load: Load) -> None:
    def gibberish(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"\x20\x02\x00\x00")
        connection.recv(4096)
        connection.sendall(b"\x90\x03\x00\x01\x00")
        connection.sendall(b"\x30\xff\xff\xff\xff\x7f")
        connection.recv(1)

    with listener(gibberish) as port:
        load.connect(population(0, 1, latency=False), port)
        load.begin("gibberish", duration_s=0.1)
        load.progress(lambda report: report["closed"] == 1)
        (note,) = load.finish()["notes"]
    assert "t-sub-0 at n1: connection sent what is not MQTT: a remaining length" in note


def test_nobody_listens(load: Load) -> None:
    port = free_port()
    answer = load.connect(population(3, 0), port, expected="failed")
    assert f"at n1 (127.0.0.1:{port}): cannot connect: " in answer["problem"]
    assert load.process.wait(ANSWER_S) == 1


def test_credentials_are_sent_and_a_refusal_is_told(load: Load) -> None:
    heard: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        heard.append(connection.recv(4096))
        connection.sendall(b"\x20\x02\x00\x04")
        connection.recv(1)

    with listener(refuse) as port:
        answer = load.connect(
            population(1, 0, latency=False),
            port,
            expected="failed",
            target={"username": "bench", "password": "s3cret"},
        )
    assert heard[0].endswith(b"\x00\x05bench\x00\x06s3cret")
    where = f"t-pub-0 at n1 (127.0.0.1:{port})"
    assert answer["problem"] == f"{where}: refused: bad user name or password"


def test_a_broker_that_never_answers(load: Load) -> None:
    def silent(connection: socket.socket) -> None:
        while connection.recv(4096):
            pass

    with listener(silent) as port:
        clients = population(1, 0, latency=False)
        answer = load.connect(clients, port, expected="failed", timeout_s=0.3)
    assert answer["problem"].endswith(": not connected within 0.3 s")


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (b"what?\n", "'what?', which is not a JSON object"),
        (
            b'{"do":"dance"}\n',
            "is not an order; known are clock, connect, measure, finish, close",
        ),
        (b'{"do":"finish"}\n', "finish: no run is being measured"),
        (b'{"do":"measure"}\n', "measure: nobody is connected"),
        (b'{"do":"connect","clients":7}\n', "clients=7"),
    ],
)
def test_orders_that_mean_nothing_end_it(load: Load, order: bytes, problem: str) -> None:
    load.channel.send_bytes(order, ANSWER_S)
    assert problem in load.failed()


def test_a_run_that_is_there_already_is_refused(load: Load, broker: Broker) -> None:
    load.connect(population(1, 1, latency=False), broker.port)
    path = file_path(load.log, "deliveries", "again", "w0")
    path.parent.mkdir(parents=True)
    path.touch()
    load.begin("again")
    assert "run 'again'" in load.failed()


def test_an_interval_of_nothing_is_refused(load: Load, broker: Broker) -> None:
    load.connect(population(1, 0, latency=False), broker.port)
    load.begin("never", interval_ns=0)
    assert load.failed() == "measure: an interval of 0 ns for t-clients"


def test_the_end_of_its_input_ends_it_in_the_middle_of_a_run(load: Load, broker: Broker) -> None:
    load.connect(population(2, 2), broker.port)
    load.begin("abandoned", duration_s=60)
    load.progress(lambda report: report["received"] > 0)
    assert load.process.stdin is not None
    load.process.stdin.close()
    assert load.process.wait(ANSWER_S) == 0


@pytest.mark.parametrize(("processes", "per_write"), [(1, 1500), (2, 7)])
def test_a_flood_is_recorded_whole(processes: int, per_write: int) -> None:
    """Against the benchmark's source, which is as fast as the tool lets it be."""
    flood = measure_flood(Plan(seconds=0.2, clients=12), processes, per_write)
    assert flood.messages > 0  # that all of them are in the files has been checked
    assert flood.peak_memory_bytes < 512 * 2**20


def test_the_schedule_is_kept_against_a_sink() -> None:
    sending = measure_sending(Plan(seconds=0.3, clients=12), 20_000)
    assert sending.sent == sending.offered == 6_000


def test_it_wants_a_name(tmp_path: Path) -> None:
    worker = launch(Launch([sys.executable, "-m", "isthmus.bench.load.worker"]), tmp_path / "log")
    try:
        assert worker.wait(ANSWER_S) == 2
        assert "usage: python -m isthmus.bench.load.worker WRITER" in (tmp_path / "log").read_text()
    finally:
        end(worker, 0)
