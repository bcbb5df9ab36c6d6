"""Five nodes with the algorithm `tree`, each in front of a Mosquitto, that find each other.

        a ──10 ms── b ──10 ms── c ──10 ms── d ──10 ms── e        all others: 40 ms

Everybody links with everybody, and nobody is told of anybody.  With *near and far* links, which a
shaping process emulates, a tree over the measured round trips has inner nodes, whoever is the root;
on bare loopback it mostly is a star.  Nodes have the defaults but for addresses and group.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from benchmarks.overlay.shapes import Place

from isthmus.bench.rig.lines import Shape, Shapes
from isthmus.bench.rig.shaping_main import start_shaping
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from isthmus.config.addresses import Address
from isthmus.errors import AdminError, LoadError
from isthmus.fabric.admin_client import fetch_status
from isthmus.processes.children import Launch, end, launch, log_tail
from isthmus.processes.ports import free_port

__all__ = ["NAMES", "Member", "Overlay", "Sweep", "node_text", "overlay", "started_brokers"]

NAMES: Final = ("a", "b", "c", "d", "e")
NEAR_S, FAR_S = 0.01, 0.04
BYTES_PER_S: Final = 1_250_000
"""10 Mbit/s, the paper's."""
SECRET: Final = "5c1d9a7e60b3f248"
LOOK_S: Final = 0.01
LIMIT_S: Final = 60.0
STOP_S: Final = 6.0


def node_text(name: str, ports: Mapping[str, int], broker: int, group: str, advertise: str) -> str:
    """A node's file."""
    lines = [f'[node]\nid = "{name}"']
    if advertise:
        lines.append(f'advertise = "{advertise}"')
    lines.append("[listen]")
    lines += [f'{what} = "127.0.0.1:{port}"' for what, port in ports.items()]
    lines += [
        f'[broker]\nurl = "mqtt://127.0.0.1:{broker}"',
        f'[link]\nsecret = "{SECRET}"',
        '[cooperation]\nalgorithm = "tree"',
        f'[discovery]\ngroup = "{group}"\ninterface = "127.0.0.1"\nttl = 0',
    ]
    return "\n".join(lines) + "\n"


@dataclass(eq=False, slots=True)
class Member:
    """One node, which is started, killed, stopped and asked."""

    name: str
    ports: Mapping[str, int]
    file: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def mqtt_port(self) -> int:
        return self.ports["mqtt"]

    def start(self) -> None:
        program = [sys.executable, "-m", "isthmus", "node", str(self.file)]
        self.process = launch(Launch(program), self.log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process is not None:
            end(self.process, STOP_S)

    def listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.mqtt_port)) == 0

    def fabric(self) -> dict[str, Any]:
        """What it says of its links and its tree; empty if it does not answer."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise LoadError(f"node {self.name} ended by itself:\n{log_tail(self.log)}")
        try:
            found: dict[str, Any] = fetch_status(Address("127.0.0.1", self.ports["admin"]))
        except AdminError:
            return {}
        fabric: dict[str, Any] = found["fabric"]
        return fabric


@dataclass(frozen=True, slots=True)
class Sweep:
    """What some nodes said, all asked at once; `at_s` is when the last of them had answered."""

    at_s: float
    places: Mapping[str, Place]
    linked: Mapping[str, frozenset[str]]
    """Neighbors with which each has a link that is up."""

    def is_one_tree(self, names: Iterable[str]) -> bool:
        """Whether these use one tree, which has them and nobody else."""
        wanted = frozenset(names)
        trees = {self.places[name].tree for name in wanted if name in self.places}
        return (
            wanted <= self.places.keys()
            and len(trees) == 1
            and all(self.places[name].nodes == wanted for name in wanted)
        )


@dataclass(slots=True)
class Overlay:
    """The nodes of one fabric."""

    members: Mapping[str, Member]
    _askers: ThreadPoolExecutor

    def sweep(self, names: Sequence[str]) -> Sweep:
        places, linked = {}, {}
        asked = [self.members[name] for name in names]
        for name, fabric in zip(names, self._askers.map(Member.fabric, asked), strict=True):
            linked[name] = frozenset(
                link["neighbor"] for link in fabric.get("links", ()) if link["status"] == "active"
            )
            tree = fabric.get("algorithm", {}).get("tree")
            if tree:
                places[name] = Place(
                    (tree["number"], tree["root"]),
                    frozenset(tree["nodes"]),
                    tree["parent"],
                    tuple(tree["children"]),
                )
        return Sweep(time.monotonic(), places, linked)

    def until(self, names: Sequence[str], what: str, seen: Callable[[Sweep], bool]) -> Sweep:
        """The first sweep in which it is so."""
        limit_s = time.monotonic() + LIMIT_S
        while not seen(found := self.sweep(names)):
            if found.at_s > limit_s:
                raise LoadError(f"waited {LIMIT_S:g} s in vain until {what}: {found}")
            time.sleep(LOOK_S)
        return found

    def until_one_tree(self, names: Sequence[str] = NAMES) -> Sweep:
        return self.until(
            names, f"{', '.join(names)} use one tree", lambda sweep: sweep.is_one_tree(names)
        )


def started_brokers(stack: ExitStack, brokers: Sequence[Broker]) -> None:
    for broker in brokers:
        stack.callback(broker.stop)
        broker.start()


@contextmanager
def overlay(*, shaped: bool) -> Iterator[Overlay]:
    """Five Mosquittos and five nodes that are not started yet; whatever runs then is ended."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-bench-")))
        brokers = [create("mosquitto", extra=["max_queued_messages 0"]) for _ in NAMES]
        started_brokers(stack, brokers)
        ports = {name: {what: free_port() for what in ("mqtt", "admin", "link")} for name in NAMES}
        advertised = _shaped(ports, folder, stack) if shaped else {}
        group = f"239.255.77.85:{_udp_port()}"
        members = {}
        for name, broker in zip(NAMES, brokers, strict=True):
            file = folder / f"{name}.toml"
            way = str(advertised.get(name, ""))
            file.write_text(node_text(name, ports[name], broker.port, group, way))
            members[name] = Member(name, ports[name], file, folder / f"{name}.log")
            stack.callback(members[name].end)
        askers = stack.enter_context(ThreadPoolExecutor(len(NAMES)))
        yield Overlay(members, askers)
        for member in members.values():  # all at once: each takes its time
            if member.process is not None and member.process.poll() is None:
                member.process.terminate()


def _shaped(
    ports: Mapping[str, Mapping[str, int]], folder: Path, stack: ExitStack
) -> Mapping[str, Address]:
    """Where the nodes are to be dialed: proxies, as far apart as the drawing says."""
    near = Shape(NEAR_S, BYTES_PER_S)
    between = {
        (a, b): near for a, b in permutations(NAMES, 2) if abs(NAMES.index(a) - NAMES.index(b)) == 1
    }
    listening = {name: Address("127.0.0.1", ports[name]["link"]) for name in NAMES}
    process, proxies = start_shaping(Shapes(Shape(FAR_S, BYTES_PER_S), between), listening, folder)
    stack.callback(end, process, 1.0)
    return proxies


def _udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
