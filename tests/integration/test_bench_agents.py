"""Agents: load from several machines, here several processes with clocks of their own.

coordinator ── l0                     clock of this machine
    ├── TCP ── agent 1 ── w0          clock of this machine
    └── TCP ── agent 2 ── w1          clock an hour ahead
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import SharedBroker
from isthmus.bench.coordinator import agent as agent_module
from isthmus.bench.coordinator.agent import Agent
from isthmus.bench.coordinator.agent_hello import greet_agent, read_token
from isthmus.bench.coordinator.control import LineChannel, Target
from isthmus.bench.coordinator.session import LoadSession, RunRecord
from isthmus.bench.coordinator.workers import COMMAND, RemoteWorker
from isthmus.bench.load.clock import SHIFT_VARIABLE
from isthmus.config.addresses import Address
from isthmus.errors import ConfigError, LoadError, LoadFailed
from isthmus.pipeline.count.direct import summarize
from isthmus.pipeline.log.reading import list_runs, open_file, read_run
from isthmus.pipeline.log.schema import file_path
from support.load_sessions import NOWHERE, load_processes, small_scenario, stand_in
from support.waiting import wait_for

# An agent's thread that ends by an exception is a fault, whatever else it did.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

TOKEN = b"0123456789abcdef"
HOUR_NS = 3600 * 10**9
ANY = Address("127.0.0.1", 0)

AGENT = """
import sys
from pathlib import Path
from isthmus.config.addresses import Address
from isthmus.bench.coordinator.agent import serve
sys.exit(serve(Address("127.0.0.1", 0), Path(sys.argv[1]), sys.argv[2:]))
"""


class AgentProcess:
    """An agent in a process of its own, whose clock may be another."""

    def __init__(self, folder: Path, command: tuple[str, ...], shift_ns: int = 0) -> None:
        token = folder / "bench.token"
        token.write_bytes(TOKEN)
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(token), *command],
            env={**os.environ, SHIFT_VARIABLE: str(shift_ns) if shift_ns else ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()  # agent on 127.0.0.1:40123; Ctrl-C ends it
        self.address = Address.parse(said.split()[2].rstrip(";"))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def agent() -> Iterator[Agent]:
    """One in this process, whose load processes are stand-ins."""
    made = Agent(ANY, TOKEN, stand_in())
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join(10)
    assert not thread.is_alive()
    assert load_processes() == []


# ---- measuring ---------------------------------------------------------------------------


def session(folder: Path, *agents: Address, writers: int = 1, subscribers: int = 3) -> LoadSession:
    return LoadSession(
        small_scenario(folder, subscribers=subscribers),
        NOWHERE,
        folder / "log",
        writers=writers,
        agents=agents,
        token=TOKEN,
        command=stand_in(),
    )


def test_files_are_gathered_at_the_coordinator(agent: Agent, tmp_path: Path) -> None:
    with session(tmp_path, agent.address) as load:
        assert len(load_processes()) == 2
        for name in ("r1", "r2"):
            record = load.measure(name)
            assert record.received == record.expected == 360
    log = tmp_path / "log"
    assert list_runs(log) == ("r1", "r2")
    run = read_run(log, "r2")
    assert {(f.table, f.writer) for f in run.files} == {
        (table, writer) for table in ("publishes", "deliveries") for writer in ("w0", "l0")
    }
    for file in run.files:
        open_file(log, "r2", file).close()
    assert not list(log.rglob("*.part"))
    wait_for(lambda: not load_processes(), 10, "the agent's load process to end")


def test_every_agent_runs_as_many_processes(agent: Agent, tmp_path: Path) -> None:
    with session(tmp_path, agent.address, agent.address, writers=2, subscribers=4) as load:
        assert load.plan.writers == ("w0", "w1", "w2", "w3", "l0")
        assert len(load_processes()) == 5


def shifted_run(folder: Path, broker: Target, agents: list[AgentProcess]) -> RunRecord:
    scenario = small_scenario(folder, publishers=2, subscribers=2)
    addresses = [agent.address for agent in agents]
    with LoadSession(
        scenario, {"n1": broker}, folder / "log", writers=1, agents=addresses, token=TOKEN
    ) as load:
        record = load.measure("r", duration_s=2.0, trim_s=0.2)
    assert record.ending == "complete", record
    assert record.received == record.expected, record
    return record


def test_another_machines_clock_is_measured_and_taken_out(
    tmp_path: Path, shared_broker: SharedBroker
) -> None:
    broker = shared_broker("mosquitto")
    agents = [AgentProcess(tmp_path, COMMAND), AgentProcess(tmp_path, COMMAND, HOUR_NS)]
    try:
        record = shifted_run(tmp_path, Target(broker.host, broker.port), agents)
    finally:
        for agent in agents:
            agent.end()

    log = tmp_path / "log"
    run = read_run(log, "r")
    clocks = {clock.writer: clock for clock in run.clocks}
    assert abs(clocks["w0"].offset_ns) <= clocks["w0"].error_ns
    assert abs(clocks["w1"].offset_ns + HOUR_NS) <= clocks["w1"].error_ns < HOUR_NS / 100

    writer_of = {client.client: client.writer for client in run.clients}
    pairs = set()
    for writer in ("w0", "w1"):
        for row in pq.read_table(file_path(log, "deliveries", "r", writer)).to_pylist():
            sender = clocks[writer_of[row["publisher"]]]
            sent_ns = row["t_send_ns"] + sender.offset_ns
            received_ns = row["t_receive_ns"] + clocks[writer].offset_ns
            error_ns = sender.error_ns + clocks[writer].error_ns
            assert -error_ns <= received_ns - sent_ns < 10 * 10**9
            assert run.started_ns - error_ns <= sent_ns <= run.ended_ns + error_ns
            pairs.add((sender.writer, writer))
    assert len(pairs) == 4, "both have messages of both"

    summary = summarize(log, "r")
    assert summary == record.summary
    assert (summary.lost, summary.duplicates, summary.order_violations) == (0, 0, 0)
    assert summary.expected == 2 * round(summary.ingress * summary.window_s)


# ---- who is refused ----------------------------------------------------------------------


def test_another_token_is_refused(agent: Agent) -> None:
    with pytest.raises(LoadFailed, match=r"w0 at 127.*the agent refused: has another token"):
        RemoteWorker("w0", agent.address, b"another token, long enough")
    RemoteWorker("w0", agent.address, TOKEN).close()


def test_an_agent_with_another_token_is_found_out() -> None:
    """Whoever listens there must prove that it knows the token, too."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"is":"agent","version":1,"nonce":"00"}\n')
        theirs.sendall(b'{"is":"joined","proof":"00","machine":"evil"}\n')
        channel = LineChannel("w0", ours.fileno(), ours.fileno())
        with pytest.raises(LoadFailed, match="the agent has another token"):
            greet_agent(channel, TOKEN, "w0")


def test_no_agent_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        with pytest.raises(LoadError, match=f"cannot listen on {address}: Address already in use"):
            Agent(address, TOKEN)
    with pytest.raises(LoadFailed, match=f"w0 at {address}: no agent answers: Connection refused"):
        session(tmp_path, address).__enter__()
    with pytest.raises(LoadError, match="agents ask for a token"):
        LoadSession(small_scenario(tmp_path), NOWHERE, tmp_path, agents=[address])


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b'{"is":"something else"}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(LoadFailed, match="whatever listens there is not"):
            RemoteWorker("w0", Address(*server.getsockname()), TOKEN)
        thread.join()


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "mqtt": b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
    "zeros": bytes(3000),
    "endless line": b"x" * 100_000,
    "deep": b"[" * 4000 + b"\n",
    "no join": b'{"do":"measure"}\n',
    "no proof": b'{"do":"join","version":1,"nonce":"00","writer":"w0"}\n',
    "wrong proof": b'{"do":"join","version":1,"nonce":"00","writer":"w0","proof":"\\u00e4"}\n',
    "another version": b'{"do":"join","version":9,"nonce":"00","writer":"w0","proof":"00"}\n',
    "nothing": b"",
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_strangers_bytes_end_that_connection_only(agent: Agent, sent: bytes) -> None:
    friend = RemoteWorker("w5", agent.address, TOKEN)
    with socket.create_connection((agent.address.host, agent.address.port), 10) as stranger:
        try:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
        except ConnectionError:
            pass  # closed with some of it unread
    friend.channel.send({"do": "clock"}, 1)
    assert friend.channel.receive(30)["is"] == "clock"
    assert len(load_processes()) == 1
    friend.close()


def test_a_name_that_is_no_writers_is_refused(agent: Agent) -> None:
    with pytest.raises(LoadFailed, match=r"asked for a load process '\.\./w0'"):
        RemoteWorker("../w0", agent.address, TOKEN)


def test_one_that_never_greets_is_closed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.bench.coordinator.agent_hello.GREETING_S", 0.1)
    with socket.create_connection((agent.address.host, agent.address.port), 10) as stranger:
        lines = stranger.makefile("rb").read().splitlines()
    assert json.loads(lines[-1])["problem"] == "has not answered in time"


def test_no_more_than_it_can(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "MAX_CONNECTIONS", 1)
    first = RemoteWorker("w0", agent.address, TOKEN)
    with pytest.raises(LoadFailed, match="runs 1 load processes, which is all"):
        RemoteWorker("w1", agent.address, TOKEN)
    first.close()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"do": "fetch", "run": "../../x", "table": "links"}, "is not the name of a run"),
        ({"do": "fetch", "run": "r", "table": "../runs"}, "which is not a table"),
        ({"do": "fetch", "run": "r", "table": "links"}, "has no links of that run"),
        ({"do": "measure", "run": "a/b"}, "is not the name of a run"),
    ],
)
def test_only_files_of_runs_are_handed_over(
    agent: Agent, message: dict[str, str], said: str
) -> None:
    worker = RemoteWorker("w0", agent.address, TOKEN)
    worker.channel.send(message, 1)
    assert said in worker.channel.receive(30)["problem"]
    with pytest.raises(EOFError):
        worker.channel.receive(30)
    worker.close()


# ---- who fails ---------------------------------------------------------------------------


def test_a_load_process_that_dies_at_an_agent_is_named(tmp_path: Path) -> None:
    remote = AgentProcess(tmp_path, stand_in("dies-measuring"))
    try:
        with session(tmp_path, remote.address) as load:
            said = r"w0 at 127.*: ended with exit code 4\nw0 connects"
            with pytest.raises(LoadFailed, match=said):
                load.measure("r")
    finally:
        remote.end()
    assert not list((tmp_path / "log").rglob("*.parquet"))


def test_an_agent_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    remote = AgentProcess(tmp_path, stand_in())
    try:
        with session(tmp_path, remote.address) as load:
            theirs = load_processes(remote.process.pid)
            assert len(theirs) == 1
            threading.Timer(1.0, remote.process.send_signal, [signal.SIGKILL]).start()
            with pytest.raises(LoadFailed, match=r"w0 at .*the agent closed the connection"):
                load.measure("r", duration_s=30.0)
    finally:
        remote.end()
    wait_for(lambda: not Path(f"/proc/{theirs[0]}").exists(), 10, "its load process to end")
    assert load_processes() == []


def test_an_agent_that_is_asked_to_end_ends_its_processes(tmp_path: Path) -> None:
    remote = AgentProcess(tmp_path, stand_in())
    try:
        worker = RemoteWorker("w0", remote.address, TOKEN)
        theirs = wait_for(lambda: load_processes(remote.process.pid), 10, "its load process")
        remote.process.terminate()
        assert remote.process.wait(30) == 0
        worker.close()
    finally:
        remote.end()
    assert not Path(f"/proc/{theirs[0]}").exists()


def test_tokens_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(file)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="has 5 characters, a token 16 or more"):
        read_token(file)
    file.write_bytes(TOKEN + b"\n")
    assert read_token(file) == TOKEN
