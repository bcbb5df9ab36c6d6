"""A fabric on this machine: brokers, a node process in front of each, and links between the nodes.

    fabric file ──▶ brokers started ──▶ one NODE.toml each ──▶ `isthmus node` processes ──▶ joined

Every node is the same process that an operator would start; the fabric only writes its file,
chooses free ports where the file says port 0, waits for ``/readyz``, then until every node reaches
all those that links join it with, or everybody if they find each other (`joining`), and watches
them.

Invariants: whatever was started is stopped again by its pid, in reverse order, on every way out,
Ctrl-C, SIGTERM and SIGHUP included, and dies with this process when that is killed
(:mod:`isthmus.processes.children`).  The terminal's Ctrl-C does not reach the nodes: they are
stopped from here, after their clients.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.config.files import FabricConfig, FabricNode
from isthmus.errors import AdminError, NodeFailed
from isthmus.fabric.admin_client import ask
from isthmus.fabric.brokers import broker_url, create_broker, start_brokers
from isthmus.fabric.joining import Joined, for_this_run, until_joined
from isthmus.fabric.links import fabric_links, notes
from isthmus.fabric.node_file import node_file
from isthmus.fabric.view import joined_lines
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.ports import free_port

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["Fabric", "Proxies", "RunningNode", "free_address", "interruptible", "run_fabric"]

READY_TIMEOUT_S = 20.0
POLL_S = 0.05
START_ATTEMPTS = 3  # a free port that we chose can be taken by another process before the node
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Proxies = Callable[[Mapping[str, Address]], Mapping[str, Address]]
"""Told where each node takes links, by id, says where others are to dial it instead."""


@dataclass(slots=True)
class RunningNode:
    """One node process and what stands behind it."""

    id: str
    mqtt: Address
    ws: Address
    admin: Address
    link: Address
    """Where other nodes are to dial it."""
    broker_url: BrokerUrl
    broker: Broker | None
    """The broker that the fabric started; None when the file names a URL."""
    process: subprocess.Popen[bytes]
    log_file: Path
    reported_dead: bool = field(default=False)

    @property
    def broker_name(self) -> str:
        return self.broker.name if self.broker is not None else "external"

    def death(self) -> NodeFailed:
        """How the process ended."""
        return NodeFailed(
            self.id, f"ended with exit code {self.process.returncode}", self.log_tail()
        )

    def log_tail(self) -> str:
        """The end of what the node wrote to standard error."""
        return log_tail(self.log_file)


class Fabric:
    """The brokers and nodes of one fabric file; a context manager.

    Files and logs of the nodes stand in `folder`, or in a temporary one.  With `keeps_state` nodes
    store what they need to go on when they were killed, in folders there.
    """

    def __init__(
        self,
        config: FabricConfig,
        *,
        ready_timeout_s: float = READY_TIMEOUT_S,
        folder: Path | None = None,
        proxies: Proxies | None = None,
        keeps_state: bool = False,
    ) -> None:
        self.config = config
        self.nodes: list[RunningNode] = []
        self.joined = Joined({})
        """As they were when the fabric was started."""
        self._ready_timeout_s = ready_timeout_s
        self._folder = folder
        self._proxies = proxies
        self._keeps_state = keeps_state
        self._exit = ExitStack()

    def __enter__(self) -> Fabric:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; on return all nodes are ready and joined.

        Raises `BrokerError` or `NodeFailed`, `IsthmusError` if nodes could not find each other.
        """
        folder = self._folder or Path(
            self._exit.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-"))
        )
        self.config = for_this_run(self.config)
        # All at once, before any node: each is named in the files of those that link to it.
        links = {node.id: _with_port(node.link) for node in self.config.node}
        brokers = [create_broker(node.broker) for node in self.config.node]
        started = [broker for broker in brokers if broker is not None]
        for broker in started:
            self._exit.callback(broker.stop)  # before: a start that is interrupted is undone too
        start_brokers(started)
        proxies = self._proxies(links) if self._proxies is not None else {}
        plans = [
            _Plan(node, broker, broker_url(node.broker, broker), folder, links, proxies)
            for node, broker in zip(self.config.node, brokers, strict=True)
        ]
        launched = [self._launch(plan) for plan in plans]
        for plan, running in zip(plans, launched, strict=True):
            self.nodes.append(self._until_ready(plan, running))
        self.joined = until_joined(self.nodes, self.config, self._ready_timeout_s)

    def stop(self) -> None:
        """Stop nodes, then brokers.  Signals wait meanwhile: a second Ctrl-C must not leave any."""
        in_main = threading.current_thread() is threading.main_thread()
        with _handled_by(_ignore) if in_main else nullcontext():
            for node in self.nodes:
                if node.process.poll() is None:
                    node.process.terminate()  # all at once: each takes its time to drain
            self._exit.close()

    def kill(self, node: str) -> None:
        """SIGKILL, as `kill -9` does; its broker stays."""
        running = self._called(node)
        running.reported_dead = True
        running.process.kill()
        running.process.wait()

    def start_again(self, node: str) -> RunningNode:
        """A node that was killed, from the same file at the same ports; not waited for.

        Meanwhile its process is another one; whether it is ready its admin address tells.
        """
        running = self._called(node)
        running.process = self._process(running.log_file.with_suffix(".toml"), running.log_file)
        running.reported_dead = False
        return running

    def is_ready(self, node: str) -> bool:
        """Whether it says so now; raises `NodeFailed` if it has ended."""
        running = self._called(node)
        if running.process.poll() is not None:
            raise running.death()
        return _readiness(running)[0] == 200

    def _called(self, node: str) -> RunningNode:
        return next(each for each in self.nodes if each.id == node)

    def newly_dead(self) -> list[RunningNode]:
        """Nodes that have ended since the last call."""
        dead = [n for n in self.nodes if not n.reported_dead and n.process.poll() is not None]
        for node in dead:
            node.reported_dead = True
        return dead

    def _until_ready(self, plan: _Plan, running: RunningNode) -> RunningNode:
        node, attempts_left = plan.node, START_ATTEMPTS
        while True:
            try:
                _wait_until_ready(running, self._ready_timeout_s)
                return running
            except NodeFailed:
                attempts_left -= 1
                chose_ports = 0 in (node.mqtt.port, node.ws.port, node.admin.port)
                if not (attempts_left and chose_ports and "[listen]" in running.log_tail()):
                    raise
            running = self._launch(plan)

    def _launch(self, plan: _Plan) -> RunningNode:
        node, folder, broker = plan.node, plan.folder, plan.broker
        listen = {
            "mqtt": _with_port(node.mqtt),
            "ws": _with_port(node.ws),
            "admin": _with_port(node.admin),
            "link": plan.links[node.id],
        }
        path, log_file = folder / f"{node.id}.toml", folder / f"{node.id}.log"
        path.touch(mode=0o600)  # it may hold secrets
        path.write_text(
            node_file(
                node,
                listen,
                plan.url,
                self.config,
                peers=[plan.way_to(peer) for peer in node.peers],
                advertise=plan.proxies.get(node.id),
                state_dir=folder / f"{node.id}.state" if self._keeps_state else None,
                login=(broker.username, broker.password) if broker and broker.username else None,
            )
        )
        log_file.unlink(missing_ok=True)
        process = self._process(path, log_file)
        return RunningNode(
            id=node.id,
            mqtt=listen["mqtt"],
            ws=listen["ws"],
            admin=listen["admin"],
            link=plan.way_to(node.id),
            broker_url=plan.url,
            broker=broker,
            process=process,
            log_file=log_file,
        )

    def _process(self, path: Path, log_file: Path) -> subprocess.Popen[bytes]:
        process = launch(Launch([sys.executable, "-m", "isthmus", "node", str(path)]), log_file)
        self._exit.callback(end, process, self.config.limits.drain_s + 2.0)
        return process


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a node is started with, as often as it takes."""

    node: FabricNode
    broker: Broker | None
    url: BrokerUrl
    folder: Path
    links: Mapping[str, Address]
    """Where the nodes of this fabric take links, by id."""
    proxies: Mapping[str, Address]
    """Where others are to dial them instead."""

    def way_to(self, peer: str) -> Address:
        """Where `peer`, an id or an address, is dialed."""
        return self.proxies.get(peer) or self.links.get(peer) or Address.parse(peer)


def free_address(wanted: Address) -> Address:
    """`wanted` if nobody listens there now, else the same host with a free port."""
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node's listener
        try:
            trial.bind((wanted.host, wanted.port))
        except OSError:
            return Address(wanted.host, free_port(wanted.host))
    return wanted


def _with_port(wanted: Address) -> Address:
    return wanted if wanted.port else Address(wanted.host, free_port(wanted.host))


def _wait_until_ready(node: RunningNode, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    reason = "it does not answer"
    while time.monotonic() < deadline:
        if node.process.poll() is not None:
            raise node.death()
        status, body = _readiness(node)
        if status == 200:
            return
        reason = body.decode(errors="replace").strip() or reason
        time.sleep(POLL_S)
    raise NodeFailed(node.id, f"not ready within {timeout_s:g} s: {reason}", node.log_tail())


def _readiness(node: RunningNode) -> tuple[int, bytes]:
    try:
        return ask(node.admin, "/readyz", timeout_s=1.0)
    except AdminError:
        return 0, b""


def run_fabric(config: FabricConfig, for_s: float | None) -> int:
    """Start a fabric and keep it until Ctrl-C or for `for_s`; 1 if a node died meanwhile."""
    died = False
    with interruptible():
        try:
            with Fabric(config) as fabric:
                for node in fabric.nodes:
                    _print_node(node)
                _print_joined(fabric)
                print("Ctrl-C ends the fabric." if for_s is None else f"Ends in {for_s:g} s.")
                sys.stdout.flush()
                deadline = None if for_s is None else time.monotonic() + for_s
                while deadline is None or time.monotonic() < deadline:
                    for node in fabric.newly_dead():
                        died = True
                        print(f"isthmus: {node.death()}", file=sys.stderr, flush=True)
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            pass  # the usual end
    return 1 if died else 0


def _print_node(node: RunningNode) -> None:
    print(
        f"{node.id}: mqtt {node.mqtt}, ws {node.ws}, link {node.link}, "
        f"admin http://{node.admin}/, broker {node.broker_name} {node.broker_url}"
    )
    if node.broker is not None and node.broker.username:
        print(f"  the broker asks clients for user {node.broker.username!r} and its password")


def _print_joined(fabric: Fabric) -> None:
    config, joined = fabric.config, fabric.joined
    shown = [f"{one} - {other}" for one, other in fabric_links(config).links]
    if config.discovery.is_on:
        shown.append(f"by discovery in the group {config.discovery.group}")
    if shown:
        print(f"links: {', '.join(shown)}; algorithm {config.cooperation.algorithm}")
    for note in notes(config, tree=joined.needs_tree):
        print(f"note: {note}")
    for line in joined_lines(joined):
        print(line)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end a wait as Ctrl-C does: by `KeyboardInterrupt`."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """A handler rather than SIG_IGN, which the processes that a stop runs would inherit.

    Nor a signal mask: client threads of the same process would still take the signal, and Python
    would raise it in the main thread.
    """


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within, `handler` is what the signals that end a process come to."""
    previous = {number: signal.signal(number, handler) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
