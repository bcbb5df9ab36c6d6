"""A gateway as its operator starts it: ``isthmus node`` with a file that names the brokers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from isthmus.brokers import broker_class, create
from isthmus.brokers.base import Broker
from isthmus.config.addresses import Address
from isthmus.errors import AdminError, NodeFailed
from isthmus.fabric.admin_client import ask
from isthmus.fabric.brokers import start_brokers
from isthmus.fabric.node_file import toml
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.ports import free_port

__all__ = ["running_brokers", "running_gateway", "usual_broker"]

READY_S: Final = 60.0
POLL_S: Final = 0.05
STOP_S: Final = 5.0


def usual_broker() -> str:
    """Mosquitto, as in the paper, or the one that comes with Isthmus."""
    return "embedded" if broker_class("mosquitto").missing() else "mosquitto"


@contextmanager
def running_brokers(kind: str, count: int, *, nagle: bool = True) -> Iterator[list[Broker]]:
    """So many of one make; without `nagle` Mosquitto sends small packets at once."""
    more = {} if nagle or kind != "mosquitto" else {"extra": ("set_tcp_nodelay true",)}
    brokers = [create(kind, **more) for _ in range(count)]
    with ExitStack() as exit_:
        for broker in brokers:
            exit_.callback(broker.stop)
        start_brokers(brokers)
        yield brokers


@contextmanager
def running_gateway(
    name: str,
    brokers: Mapping[str, Address],
    cells: Mapping[str, Sequence[str]],
    k: int,
    folder: Path,
) -> Iterator[Address]:
    """A gateway before `brokers`, by name; where clients connect.  It is ready.

    Raises `NodeFailed`.
    """
    listen = {key: Address("127.0.0.1", free_port()) for key in ("mqtt", "admin")}
    file, log = folder / f"{name}.toml", folder / f"{name}.log"
    lines = [
        "[node]",
        f"id = {toml(name)}",
        "[listen]",
        *(f"{key} = {toml(str(address))}" for key, address in listen.items()),
        *(
            line
            for broker, address in brokers.items()
            for line in ("[[broker]]", f"name = {toml(broker)}", f'url = "mqtt://{address}"')
        ),
        "[cooperation]",
        'algorithm = "geo"',
        f"k = {k}",
        "[cooperation.cells]",
        *(f"{toml(broker)} = {toml(list(theirs))}" for broker, theirs in cells.items()),
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    process = launch(Launch([sys.executable, "-m", "isthmus", "node", str(file)]), log)
    try:
        _until_ready(name, process, listen["admin"], log)
        yield listen["mqtt"]
    finally:
        end(process, STOP_S)


def _until_ready(name: str, process: subprocess.Popen[bytes], admin: Address, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise NodeFailed(name, f"ended with exit code {process.returncode}", log_tail(log))
        try:
            if ask(admin, "/readyz", timeout_s=1.0)[0] == 200:
                return
        except AdminError:
            pass  # it does not listen yet
        time.sleep(POLL_S)
    raise NodeFailed(name, f"not ready within {READY_S:g} s", log_tail(log))
