"""A fabric on this machine: brokers, and a node process in front of each.

    fabric file ──▶ brokers started ──▶ one NODE.toml each ──▶ `isthmus node` processes ──▶ ready

Every node is the same process that an operator would start; the fabric only writes its file,
chooses free ports where the file says port 0, waits for ``/readyz`` and watches it.

Invariants: whatever was started is stopped again by its pid, in reverse order, on every way out,
Ctrl-C, SIGTERM and SIGHUP included, and dies with this process when that is killed
(:mod:`isthmus.brokers.processes`).  The terminal's Ctrl-C does not reach the nodes: they are
stopped from here, after their clients.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from isthmus.addresses import Address, BrokerUrl
from isthmus.admin_client import ask
from isthmus.brokers.ports import free_port
from isthmus.brokers.processes import Launch, end, launch
from isthmus.config import FabricConfig, FabricNode
from isthmus.errors import AdminError, NodeFailed

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["Fabric", "RunningNode", "free_address", "interruptible", "run_fabric"]

READY_TIMEOUT_S = 20.0
POLL_S = 0.05
START_ATTEMPTS = 3  # a free port that we chose can be taken by another process before the node
LOG_TAIL_BYTES = 4000
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class RunningNode:
    """One node process and what stands behind it."""

    id: str
    mqtt: Address
    ws: Address
    admin: Address
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
        text = self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-20:])


class Fabric:
    """The brokers and nodes of one fabric file; a context manager."""

    def __init__(self, config: FabricConfig, *, ready_timeout_s: float = READY_TIMEOUT_S) -> None:
        self.config = config
        self.nodes: list[RunningNode] = []
        self._ready_timeout_s = ready_timeout_s
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
        """Start everything; all nodes are ready on return.  Raises `BrokerError`, `NodeFailed`."""
        folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-")))
        for node in self.config.node:
            broker, url = self._start_broker(node.broker)
            self.nodes.append(self._start_node(node, broker, url, folder))

    def stop(self) -> None:
        """Stop nodes, then brokers.  Signals wait meanwhile: a second Ctrl-C must not leave any."""
        with _signals_held():
            for node in self.nodes:
                if node.process.poll() is None:
                    node.process.terminate()  # all at once: each takes its time to drain
            self._exit.close()

    def newly_dead(self) -> list[RunningNode]:
        """Nodes that have ended since the last call."""
        dead = [n for n in self.nodes if not n.reported_dead and n.process.poll() is not None]
        for node in dead:
            node.reported_dead = True
        return dead

    def _start_broker(self, kind: str) -> tuple[Broker | None, BrokerUrl]:
        if ":" in kind and kind != "embedded:":
            return None, BrokerUrl.parse(kind)
        from isthmus.brokers import create

        broker = create(_chosen_kind(kind.rstrip(":")))
        self._exit.callback(broker.stop)  # before start: a start that is interrupted is undone too
        broker.start()
        return broker, BrokerUrl("mqtt", broker.host, broker.port)

    def _start_node(
        self, node: FabricNode, broker: Broker | None, url: BrokerUrl, folder: Path
    ) -> RunningNode:
        for attempt in range(1, START_ATTEMPTS + 1):
            running = self._launch(node, broker, url, folder)
            try:
                _wait_until_ready(running, self._ready_timeout_s)
            except NodeFailed:
                chose_ports = 0 in (node.mqtt.port, node.ws.port, node.admin.port)
                taken = "[listen]" in running.log_tail() and chose_ports
                if attempt == START_ATTEMPTS or not taken:
                    raise
            else:
                return running
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _launch(
        self, node: FabricNode, broker: Broker | None, url: BrokerUrl, folder: Path
    ) -> RunningNode:
        listen = _addresses(node)
        node_file, log_file = folder / f"{node.id}.toml", folder / f"{node.id}.log"
        node_file.write_text(_node_file(node.id, listen, url, self.config))
        log_file.unlink(missing_ok=True)
        process = launch(
            Launch([sys.executable, "-m", "isthmus", "node", str(node_file)]), log_file
        )
        self._exit.callback(end, process, self.config.limits.drain_s + 2.0)
        return RunningNode(
            id=node.id,
            mqtt=listen["mqtt"],
            ws=listen["ws"],
            admin=listen["admin"],
            broker_url=url,
            broker=broker,
            process=process,
            log_file=log_file,
        )


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


def _addresses(node: FabricNode) -> dict[str, Address]:
    """The node's listeners, each with a port of its own."""
    chosen: dict[str, Address] = {}
    for name, wanted in (("mqtt", node.mqtt), ("ws", node.ws), ("admin", node.admin)):
        chosen[name] = wanted if wanted.port else Address(wanted.host, free_port(wanted.host))
    return chosen


def _chosen_kind(kind: str) -> str:
    if kind != "auto":
        return kind
    from isthmus.brokers import broker_class

    return "embedded" if broker_class("mosquitto").missing() else "mosquitto"


def _node_file(
    node_id: str, listen: dict[str, Address], url: BrokerUrl, fabric: FabricConfig
) -> str:
    """A node's file, as its operator would write it."""
    tables: dict[str, dict[str, object]] = {
        "node": {"id": node_id},
        "listen": {name: str(address) for name, address in listen.items()},
        "broker": {"url": str(url)},
        "limits": fabric.limits.model_dump(),
        "log": fabric.log.model_dump(),
    }
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        # A JSON string, number or boolean is also a TOML one.
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def _wait_until_ready(node: RunningNode, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    reason = "it does not answer"
    while time.monotonic() < deadline:
        if node.process.poll() is not None:
            raise node.death()
        try:
            status, body = ask(node.admin, "/readyz", timeout_s=1.0)
        except AdminError:
            status, body = 0, b""
        if status == 200:
            return
        reason = body.decode(errors="replace").strip() or reason
        time.sleep(POLL_S)
    raise NodeFailed(node.id, f"not ready within {timeout_s:g} s: {reason}", node.log_tail())


def run_fabric(config: FabricConfig, for_s: float | None) -> int:
    """Start a fabric and keep it until Ctrl-C or for `for_s`; 1 if a node died meanwhile."""
    died = False
    with interruptible():
        try:
            with Fabric(config) as fabric:
                for node in fabric.nodes:
                    _print_node(node)
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
        f"{node.id}: mqtt {node.mqtt}, ws {node.ws}, admin http://{node.admin}/, "
        f"broker {node.broker_name} {node.broker_url}"
    )
    if node.broker is not None and node.broker.username:
        print(f"  the broker asks clients for user {node.broker.username!r} and its password")


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end a wait as Ctrl-C does: by `KeyboardInterrupt`."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _signals_held() -> Iterator[None]:
    # Not a signal mask: client threads of the same process would still take the signal, and
    # Python would raise it in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, _ignore) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """A handler rather than SIG_IGN, which the processes that a stop runs would inherit."""
