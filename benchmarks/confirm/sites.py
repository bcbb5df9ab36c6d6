"""Two brokers joined by two nodes, which confirm in one way or the other; all are children.

    publishers ─▶ near node ══link══▶ far node ◀─ subscriber
                      │                   │
                 near broker         far broker

With a delay a process stands in the link that takes its time.  The nodes have a `state_dir`, so
that they confirm from their first moment on.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fabric.sites import fabric_status
from benchmarks.relay.processes import Process, configured_node, running_broker

from isthmus.errors import LoadError
from isthmus.processes.children import Launch, end, launch
from isthmus.processes.ports import free_port

__all__ = ["MODES", "ConfirmSite", "running_site"]

MODES = ("local", "fabric")
LINKED_S = 20.0
STOP_S = 5.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ConfirmSite:
    """Where clients connect, and every process by its part."""

    near_port: int
    far_port: int
    near_admin: int
    pids: Mapping[str, int]

    def rtt_s(self) -> float:
        """Of the link, as the near node has measured it; 0 while it has not."""
        links = fabric_status(self.near_admin)["links"]
        return links[0]["rtt_ms"] / 1000 if links else 0.0

    def until_linked(self) -> None:
        deadline_s = time.monotonic() + LINKED_S
        while not self.rtt_s():
            if time.monotonic() > deadline_s:
                raise LoadError(f"no link within {LINKED_S:.0f} s")
            time.sleep(0.05)


@contextmanager
def running_site(mode: str, delay_s: float = 0.0) -> Iterator[ConfirmSite]:
    """Both brokers, joined; `delay_s` each way on the link."""
    with ExitStack() as stack:
        near, far = (stack.enter_context(running_broker()) for _ in range(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-bench-")))
        near_link, admin = free_port(), free_port()

        def node(name: str, broker: Process, peer: int, **listen: int) -> Process:
            mqtt = free_port()
            config = _node_file(name, broker.port, folder / name, mode, peer, mqtt=mqtt, **listen)
            return stack.enter_context(configured_node(config, mqtt))

        near_node = node("near", near, 0, link=near_link, admin=admin)
        dialed = near_link
        if delay_s:
            dialed = free_port()
            line = [str(dialed), str(near_link), str(delay_s)]
            command = [sys.executable, "-m", "benchmarks.confirm.line", *line]
            child = launch(Launch(command, {"PYTHONPATH": str(ROOT)}), folder / "line.log")
            stack.callback(end, child, STOP_S)
        far_node = node("far", far, dialed, link=free_port())
        pids = {
            "near broker": near.pid,
            "near node": near_node.pid,
            "far node": far_node.pid,
            "far broker": far.pid,
        }
        site = ConfirmSite(near_node.port, far_node.port, admin, pids)
        site.until_linked()
        yield site


def _node_file(name: str, broker: int, state: Path, mode: str, peer: int, **listen: int) -> str:
    lines = [f'[node]\nid = "{name}"\nstate_dir = "{state}"\n[listen]']
    lines += [f'{kind} = "127.0.0.1:{port}"' for kind, port in listen.items()]
    lines += [f'[broker]\nurl = "mqtt://127.0.0.1:{broker}"', '[log]\nlevel = "warning"']
    lines += [f'[cooperation]\nconfirm = "{mode}"\nconfirm_s = 60.0']
    if peer:
        lines.append(f'[[peer]]\naddress = "127.0.0.1:{peer}"')
    return "\n".join(lines) + "\n"
