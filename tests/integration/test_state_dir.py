"""A real node and its state_dir: a disk that is full or read-only, damage, two nodes in one folder.

The disk is a small tmpfs, which only root can mount; elsewhere those tests say so and are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import require_broker
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from isthmus.exchange import kept_records
from isthmus.exchange.retained.journal import read_journal_body
from support.fabrics import FabricClient
from support.nodes import NodeProcess, free_port
from support.waiting import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    require_broker("mosquitto")
    with create("mosquitto", persistence=True) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, broker: Broker) -> Iterator[NodeProcess]:
    made = NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{broker.port}",
        id="a",
        node={"state_dir": tmp_path / "state"},
    )
    yield made
    made.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """1 MiB in place of the state_dir."""
    folder = tmp_path / "state"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = f"no tmpfs can be mounted here, which needs root: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(problem, pytrace=False)
        pytest.skip(problem)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def readiness(node: NodeProcess) -> str:
    try:
        return node.get("/readyz")
    except urllib.error.HTTPError as error:
        text: str = error.read().decode()
        return text


def persistent(node: NodeProcess, client_id: str, topic_filter: str) -> None:
    with FabricClient(node.port, 4) as client:
        client.connect(client_id, clean_start=False)
        client.subscribe(topic_filter, qos=1)


def filters(node: NodeProcess) -> int:
    count: int = node.fabric()["interest"]["filters"]
    return count


def kept_clients(folder: Path) -> set[str]:
    path = folder / "client-sessions.state"
    if not path.exists():
        return set()
    return {json.loads(record)["id"] for record in kept_records.read(path.read_bytes()).records}


def kept_topics(folder: Path) -> set[bytes]:
    """Of retained messages."""
    path = folder / "retained.state"
    if not path.exists():
        return set()
    records = kept_records.read(path.read_bytes()).records
    return {read_journal_body(record)[0] for record in records} - {b""}


def until_kept(node: NodeProcess, folder: Path, *clients: str) -> None:
    node.wait_until(lambda: kept_clients(folder) >= set(clients))


def fill(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        pass  # that is what it is for
    finally:
        os.close(file)


def tell_of_disk(log: str) -> list[str]:
    return [line for line in log.splitlines() if "state cannot be kept" in line]


def test_a_full_disk_is_told_and_recovered_from(node: NodeProcess, small_disk: Path) -> None:
    node.start()
    persistent(node, "before", "before/#")
    until_kept(node, small_disk, "before")
    filler = small_disk / "filler"
    fill(filler)
    persistent(node, "meanwhile", "meanwhile/#")
    with FabricClient(node.port) as client:
        client.connect()
        for number in range(100):
            client.publish(f"r/{number}", bytes(1000), 1, retain=True)
    node.wait_until(lambda: "No space left on device" in readiness(node))
    metrics = node.get("/metrics")
    assert "isthmus_state_faulty 1.0" in metrics
    assert "isthmus_ready 0.0" in metrics
    assert kept_clients(small_disk) == {"before"}
    filler.unlink()
    node.wait_until(lambda: readiness(node) == "ready\n")
    until_kept(node, small_disk, "before", "meanwhile")
    log = node.log()
    assert len(tell_of_disk(log)) == 1
    assert "Traceback" not in log
    assert "toml" not in log
    node.wait_until(lambda: len(kept_topics(small_disk)) == 100)
    node.kill()
    node.start()
    assert node.fabric()["retained"]["topics"] == 100
    assert filters(node) >= 2


def test_a_full_disk_under_a_destination_set_apart_is_told_and_loses_nothing(
    small_disk: Path, tmp_path: Path
) -> None:
    """The broker of `a` hangs, and what waits for it finds no room: who sends waits, too."""
    payloads = [b"%04d" % number + bytes(1000) for number in range(600)]
    require_broker("mosquitto")
    with ExitStack() as stack:
        hangs, other = (
            stack.enter_context(create("mosquitto", extra=("max_queued_messages 0",)))
            for _ in range(2)
        )
        link = {"queue_bytes": 65_536}
        a = NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{hangs.port}",
            id="a",
            node={"state_dir": small_disk},
            listen={"link": f"127.0.0.1:{free_port()}"},
            link=link,
        )
        address = a.tables["listen"]["link"]
        b = NodeProcess(
            tmp_path,
            f"mqtt://127.0.0.1:{other.port}",
            id="b",
            peers=[{"address": address}],
            link=link,
        )
        for each in (a, b):
            stack.callback(each.stop)
            each.start()
        subscriber = stack.enter_context(FabricClient(a.port, timeout_s=60.0))
        subscriber.connect("s", keep_alive=0)
        subscriber.subscribe("t", qos=1)
        publisher = stack.enter_context(FabricClient(b.port, timeout_s=120.0))
        publisher.connect("p", keep_alive=0)
        publisher.publish("t", b"first", 1)
        assert subscriber.next().payload == b"first"

        def publish() -> None:
            for payload in payloads:
                publisher.publish("t", payload, 1)

        pool = stack.enter_context(ThreadPoolExecutor(1))
        assert hangs.pid is not None
        os.kill(hangs.pid, signal.SIGSTOP)
        try:
            publishing = pool.submit(publish)
            a.wait_until(lambda: sum(each["messages"] for each in a.fabric()["apart"]) > 20)
            filler = small_disk / "filler"
            fill(filler)
            a.wait_until(lambda: "isthmus_fabric_apart_blocked 1.0" in a.get("/metrics"))
            assert "no room on disk for what waits, broker-b: No space left" in readiness(a)
            (waiting,) = a.fabric()["apart"]
            assert waiting["problem"] == "No space left on device"
            b.wait_until(lambda: b.fabric()["counters"].get("publishers_held", 0) > 0)
            assert not publishing.done(), "who sends waits"
            filler.unlink()
            a.wait_until(lambda: "isthmus_fabric_apart_blocked 0.0" in a.get("/metrics"))
            a.wait_until(lambda: readiness(a) == "ready\n")
        finally:
            os.kill(hangs.pid, signal.SIGCONT)
        assert [subscriber.next().payload for _ in payloads] == payloads
        publishing.result(60)
        publisher.publish("t", b"last", 1)
        assert subscriber.next().payload == b"last"
        assert a.log().count("no room on disk for what waits") == 1
        assert "Traceback" not in a.log() + b.log()


def test_a_read_only_disk_is_told_and_recovered_from(node: NodeProcess, small_disk: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    remount("ro")
    node.start(ready=False)
    node.wait_until(lambda: "Read-only file system" in readiness(node))
    persistent(node, "meanwhile", "meanwhile/#")
    remount("rw")
    node.wait_until(lambda: readiness(node) == "ready\n")
    until_kept(node, small_disk, "meanwhile")
    assert "Traceback" not in node.log()
    assert len(tell_of_disk(node.log())) == 1


def test_a_second_node_in_the_same_folder_says_whose_it_is(
    node: NodeProcess, tmp_path: Path, broker: Broker
) -> None:
    node.start()
    (tmp_path / "other").mkdir()
    second = NodeProcess(
        tmp_path / "other",
        f"mqtt://127.0.0.1:{broker.port}",
        id="a",
        node={"state_dir": tmp_path / "state"},
    )
    second.launch()
    assert second.process is not None
    assert second.process.wait(20) == 1
    assert f"in use by node a, process {node.pid}" in second.log()
    assert "Traceback" not in second.log()
    node.stop()
    third = NodeProcess(
        tmp_path / "other",
        f"mqtt://127.0.0.1:{broker.port}",
        id="b",
        node={"state_dir": tmp_path / "state"},
    )
    third.launch()
    assert third.process is not None
    assert third.process.wait(20) == 1
    assert "belongs to node 'a', not 'b'" in third.log()
    node.start()  # its own is not refused


def test_a_damaged_file_costs_one_client_and_not_the_start(
    node: NodeProcess, tmp_path: Path
) -> None:
    node.start()
    names = [f"client-{number}" for number in range(8)]
    for name in names:
        persistent(node, name, f"{name}/#")
    with FabricClient(node.port) as client:
        client.connect()
        client.publish("r/1", b"kept", 1, retain=True)
    state = tmp_path / "state"
    until_kept(node, state, *names)
    node.stop()
    for path in state.glob("*.state"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x20
        path.write_bytes(data)
    node.start()
    assert filters(node) == 7
    assert (state / "client-sessions.damaged").exists()
    told = [line for line in node.log().splitlines() if "kept state is damaged" in line]
    assert any("client-sessions.state" in line and "offset=" in line for line in told)
    assert "Traceback" not in node.log()
    wait_for(lambda: readiness(node) == "ready\n", 10, "the node to be ready")
