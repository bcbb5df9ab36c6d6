"""``isthmus`` as a user runs it: real processes, real brokers, real signals.

    this test ──▶ isthmus node | up ──▶ its nodes ──▶ its brokers

Whatever a command starts must be gone when it ends, however it ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.fabric.admin_client import ask, fetch_peers
from isthmus.processes.ports import free_port, owns_listener
from isthmus.processes.tree import process_tree

DEADLINE_S = 60.0
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a"


def isthmus(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "isthmus", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Running:
    """A command that runs until it is told to stop, or ends."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self._output = output

    def output(self) -> str:
        return self._output.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def family(self) -> dict[int, str]:
        """Every process that it has started and that is alive now, with its command line."""
        pids = set(process_tree(self.process.pid)) - {self.process.pid}
        return {pid: command_line(pid) for pid in pids}


def command_line(pid: int) -> str:
    """Empty once the process is gone; a zombie has none either."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def the_one(family: dict[int, str], pattern: str) -> int:
    (pid,) = [pid for pid, command in family.items() if re.search(pattern, command)]
    return pid


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def run(*arguments: object) -> Running:
        output = tmp_path / f"output-{len(started)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "isthmus", *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                # One that is killed cannot remove its folder; pytest does.
                env={**os.environ, "TMPDIR": str(tmp_path)},
            )
        started.append(Running(process, output))
        return started[-1]

    yield run
    for running in started:
        if running.process.poll() is None:
            running.process.terminate()
            try:
                running.process.wait(10)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@contextmanager
def all_gone_after(running: Running) -> Iterator[dict[int, str]]:
    """What `running` has started is alive before, and gone after."""
    family = running.family()
    assert family
    yield family
    wait_for(
        lambda: not any(command_line(pid) == command for pid, command in family.items()),
        lambda: f"still alive: {[pid for pid in family if command_line(pid)]}",
    )


def is_ready(admin: Address) -> bool:
    try:
        return ask(admin, "/readyz")[0] == 200
    except AdminError:
        return False


@pytest.fixture
def node_file(tmp_path: Path) -> tuple[Path, Address, Address]:
    """A node in front of the embedded broker: its file, its mqtt and its admin address."""
    mqtt, admin = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    path = tmp_path / "node.toml"
    path.write_text(
        f'[node]\nid = "edge-1"\n[listen]\nmqtt = "{mqtt}"\nadmin = "{admin}"\n'
        '[broker]\nurl = "embedded:"\n[log]\nformat = "json"\n'
    )
    return path, mqtt, admin


# ---- isthmus node ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_serves_tells_its_status_and_stops(
    node_file: tuple[Path, Address, Address],
    start: Callable[..., Running],
    number: signal.Signals,
) -> None:
    path, mqtt, admin = node_file
    node = start("node", path)
    wait_for(lambda: is_ready(admin), node.output)
    with socket.create_connection((mqtt.host, mqtt.port), timeout=10) as client:
        client.sendall(CONNECT)
        assert client.recv(4) == b"\x20\x02\x00\x00"
        status = json.loads(isthmus("status", path, "--json").stdout)
        assert status["node"]["id"] == "edge-1"
        assert status["sessions"]["open"] == 1
        shown = isthmus("status", "--admin", admin)
        assert shown.returncode == 0
        assert "edge-1" in shown.stdout
        with all_gone_after(node):
            began = time.monotonic()
            node.signal(number)
            assert node.wait() == 0
            assert time.monotonic() - began < 5.0
    records = [json.loads(line) for line in node.output().splitlines()]
    assert {"node running", "node stopped"} <= {record["event"] for record in records}


def test_a_taken_port_exits_1_and_names_the_key(node_file: tuple[Path, Address, Address]) -> None:
    path, mqtt, _ = node_file
    with socket.create_server((mqtt.host, mqtt.port)):
        result = isthmus("node", path)
    assert result.returncode == 1
    assert f"[listen] mqtt = {mqtt}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_file_exits_2_with_one_line_per_mistake(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('[node]\nid = "a b"\n[broker]\nurll = "embedded:"\n')
    for command in ("node", "check"):
        result = isthmus(command, path)
        assert result.returncode == 2
        lines = result.stderr.splitlines()
        assert [line.split(": ")[1] for line in lines] == ["node.id", "broker.url", "broker.urll"]


# ---- isthmus up ------------------------------------------------------------------------------


@pytest.fixture
def fabric_file(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[[node]]\nid = "left"\nbroker = "embedded"\npeers = ["right"]\n'
        '[[node]]\nid = "right"\nbroker = "embedded"\n'
        "[limits]\ndrain_s = 0.5\n"
    )
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_fabric_starts_and_leaves_nothing(
    fabric_file: Path, start: Callable[..., Running], number: signal.Signals
) -> None:
    up = start("up", fabric_file)
    wait_for(lambda: "Ctrl-C" in up.output(), up.output)
    admins = re.findall(r"^(left|right): .*admin http://(\S+)/", up.output(), re.MULTILINE)
    assert [name for name, _ in admins] == ["left", "right"]
    assert all(is_ready(Address.parse(address)) for _, address in admins)
    assert [states(address) for _, address in admins] == [{"right": "active"}, {"left": "active"}]
    with all_gone_after(up):
        up.signal(number)
        assert up.wait() == 0


def states(admin: str) -> dict[str | None, str]:
    """The neighbors of a node, and how they stand."""
    return {row["neighbor"]: row["state"] for row in fetch_peers(Address.parse(admin))["peers"]}


def test_neighbors_are_added_and_removed_while_the_nodes_run(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    """left -- middle -- right, then left -- right: a ring, until it is cut again."""
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[[node]]\nid = "left"\nbroker = "embedded"\n'
        '[[node]]\nid = "middle"\nbroker = "embedded"\npeers = ["left"]\n'
        '[[node]]\nid = "right"\nbroker = "embedded"\npeers = ["middle"]\n'
        '[link]\nsecret = "a secret of all three"\n[limits]\ndrain_s = 0.5\n'
    )
    up = start("up", path)
    wait_for(lambda: "Ctrl-C" in up.output(), up.output)
    found = re.findall(r"^(\w+): .*link (\S+), admin http://(\S+)/", up.output(), re.MULTILINE)
    links = {name: link for name, link, _ in found}
    admins = {name: admin for name, _, admin in found}
    added = isthmus("peers", "add", links["right"], "--admin", admins["left"], "--wait", 30)
    assert added.returncode == 0
    assert "blocked" in added.stdout
    listed = isthmus("peers", "list", "--admin", admins["middle"])
    cut = re.search(r"on (\w+), `isthmus peers remove (\w+)`", listed.stdout)
    assert cut, listed.stdout
    removed = isthmus("peers", "remove", cut[2], "--admin", admins[cut[1]])
    assert removed.returncode == 0, removed.stderr
    wait_for(lambda: not fetch_peers(Address.parse(admins["middle"]))["rings"], up.output)
    assert cut[2] not in states(admins[cut[1]])
    again = isthmus("peers", "remove", cut[2], "--admin", admins[cut[1]])
    assert again.returncode == 1
    assert "no neighbor has the id or address" in again.stderr


def test_nothing_outlives_a_fabric_that_is_killed(
    fabric_file: Path, start: Callable[..., Running]
) -> None:
    up = start("up", fabric_file)
    wait_for(lambda: "Ctrl-C" in up.output(), up.output)
    with all_gone_after(up):
        up.signal(signal.SIGKILL)
        up.wait()


def test_a_node_that_dies_is_reported(fabric_file: Path, start: Callable[..., Running]) -> None:
    up = start("up", fabric_file)
    wait_for(lambda: "Ctrl-C" in up.output(), up.output)
    with all_gone_after(up) as family:
        os.kill(the_one(family, r"right\.toml"), signal.SIGKILL)
        wait_for(lambda: "isthmus: node right: ended with exit code -9" in up.output(), up.output)
        up.signal(signal.SIGTERM)
        assert up.wait() == 1


def test_a_fabric_whose_address_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        path.write_text(f'[[node]]\nid = "a"\nbroker = "embedded"\nmqtt = "{address}"\n')
        result = isthmus("up", path)
    assert result.returncode == 1
    assert "isthmus: node a: ended with exit code 1" in result.stderr
    assert f"[listen] mqtt = {address}" in result.stderr


def test_nodes_of_a_fabric_that_names_no_peers_find_each_other(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[[node]]\nid = "left"\nbroker = "embedded"\n[[node]]\nid = "right"\nbroker = "embedded"\n'
        '[cooperation]\nalgorithm = "tree"\n[discovery]\ngroup = "239.255.77.84:0"\n'
        "[limits]\ndrain_s = 0.5\n"
    )
    up = start("up", path)
    wait_for(lambda: "Ctrl-C" in up.output(), up.output)
    admins = re.findall(r"^(?:left|right): .*admin http://(\S+)/", up.output(), re.MULTILINE)
    assert [states(admin) for admin in admins] == [{"right": "active"}, {"left": "active"}]
    assert "links: by discovery in the group 239.255.77.84:" in up.output()
    assert "note:" not in up.output()
    drawn = r"built a tree, \d\.\d\d s after .*\n  (\w+)  root\n  └─ (\w+)  \d+\.\d ms\n"
    assert set(re.search(drawn, up.output()).groups()) == {"left", "right"}  # type: ignore[union-attr]
    with all_gone_after(up):
        up.signal(signal.SIGTERM)
        assert up.wait() == 0


def test_a_wrong_option_of_the_algorithm_is_named_in_the_fabrics_own_file(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[[node]]\nid = "a"\n[cooperation]\nalgorithm = "tree"\nmerge_s = "soon"\n'
        '[discovery]\ngroup = "239.255.77.84:0"\n'
    )
    for command in ("up", "check"):
        result = isthmus(command, path)
        assert result.returncode == 2
        assert result.stderr.startswith(f"{path}:5: cooperation.merge_s: 'soon' is not a number")


def test_the_demo_ends_by_itself_with_everything_arrived() -> None:
    result = isthmus("up", "--for", 3)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Every message that should have arrived did." in result.stdout
    ways = r"^garden → cloud\s+archive\s+home/\+/temperature\s+([1-9]\d*)\s+\1\s"
    assert re.search(ways, result.stdout, re.MULTILINE), result.stdout
    assert "mosquitto_sub -h 127.0.0.1 -p" in result.stdout
    numbers = re.search(r"^(\d+) messages published", result.stdout, re.MULTILINE)
    carried = re.search(r"carried (\d+) messages.* would be (\d+)\.", result.stdout)
    assert numbers, result.stdout
    assert carried, result.stdout
    assert int(carried[2]) == 2 * int(numbers[1])
    assert 0 < int(carried[1]) < int(carried[2])
    assert "they found each other by multicast" in result.stdout
    assert re.search(r"built a tree, \d\.\d\d s after the last of them was up", result.stdout)
    assert len(re.findall(r"^  (?:garden|house|cloud)  root$", result.stdout, re.MULTILINE)) == 1
    branches = re.findall(r"^ +[├└]─ (\w+)  \d+\.\d ms$", result.stdout, re.MULTILINE)
    assert len(branches) == 2, result.stdout


def test_the_demo_where_there_is_no_multicast() -> None:
    """Three nodes that are told of each other, and a line that says why."""
    program = (
        "import isthmus.demo.run as demo; demo.no_multicast = lambda _: 'no such network'; "
        "raise SystemExit(demo.run_demo(0.5))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "told to link as garden - house - cloud" in result.stdout
    assert "(no such network)" in result.stdout
    assert "built a tree" in result.stdout
    assert "Every message that should have arrived did." in result.stdout


def test_the_demo_at_ctrl_c(start: Callable[..., Running]) -> None:
    demo = start("up")
    wait_for(lambda: "garden → cloud" in demo.output(), demo.output)
    with all_gone_after(demo):
        demo.signal(signal.SIGINT)
        assert demo.wait() == 0, demo.output()
    assert "Every message that should have arrived did." in demo.output()


def test_the_demo_fails_when_messages_are_lost(start: Callable[..., Running]) -> None:
    demo = start("up", "--for", 4)
    wait_for(lambda: "garden → cloud" in demo.output(), demo.output)
    port = re.search(r"^node house: .* on 127\.0\.0\.1:(\d+)$", demo.output(), re.MULTILINE)
    assert port, demo.output()
    with all_gone_after(demo) as family:
        for pid in family:
            if owns_listener([pid], int(port[1])):
                os.kill(pid, signal.SIGKILL)
        assert demo.wait() == 1
    assert re.search(r"archive misses \d+:\n  home/\w+/\w+ #\d+", demo.output()), demo.output()
    assert "Every message that should" not in demo.output()
    assert "Traceback" not in demo.output()
