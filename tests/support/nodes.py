"""Real node processes for tests, on free ports, with file and log in a temporary folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.processes.ports import free_port
from support.waiting import wait_for

__all__ = ["NodeProcess", "free_port", "to_toml"]


def to_toml(
    tables: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]],
    peers: Sequence[Mapping[str, Any]] = (),
    brokers: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The few shapes a node's file needs: tables of strings, numbers, booleans, inline tables.

    A list of tables is an array of them.
    """

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return (
                "{ "
                + ", ".join(f"{json.dumps(key)} = {value(v)}" for key, v in item.items())
                + " }"
            )
        return json.dumps(str(item) if isinstance(item, Path) else item)

    lines = []
    named: list[tuple[str, Mapping[str, Any]]] = []
    for name, table in tables.items():
        if isinstance(table, Mapping):
            named.append((f"[{name}]", table))
        else:
            named += [(f"[[{name}]]", each) for each in table]
    named += [("[[peer]]", peer) for peer in peers]
    named += [("[[broker]]", broker) for broker in brokers]
    for name, table in named:
        lines.append(name)
        lines += [f"{key} = {value(item)}" for key, item in table.items()]
    return "\n".join(lines) + "\n"


class NodeProcess:
    """`isthmus node` in front of a broker; a context manager that stops it by its id."""

    def __init__(
        self,
        folder: Path,
        broker_url: str,
        *,
        id: str = "edge-1",
        peers: Sequence[Mapping[str, Any]] = (),
        interest: Sequence[Mapping[str, Any]] = (),
        brokers: Sequence[Mapping[str, Any]] = (),
        **tables: dict[str, Any],
    ) -> None:
        """`brokers`: the tables of several, in place of the one at `broker_url`."""
        self.folder = folder
        self.id = id
        self.peers = list(peers)
        self.interest = list(interest)
        self.brokers = list(brokers)
        self.port = free_port()
        self.admin_port = free_port()
        listen = {"mqtt": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin_port}"}
        self.tables: dict[str, dict[str, Any]] = {
            "node": {"id": id} | tables.pop("node", {}),
            "listen": listen | tables.pop("listen", {}),
            "broker": {"url": broker_url} | tables.pop("broker", {}),
            **tables,
        }
        if brokers:
            del self.tables["broker"]
        self.file = folder / f"{id}.toml"
        self.log_file = folder / f"{id}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True) -> NodeProcess:
        self.launch()
        self.wait_until(self.is_ready if ready else self.is_live)
        return self

    def launch(self) -> None:
        """Start the process and do not wait: several nodes start faster at the same time."""
        tables: dict[str, Any] = {**self.tables, "interest": self.interest}
        self.file.write_text(to_toml(tables, self.peers, self.brokers))
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isthmus", "node", str(self.file)], stdout=log, stderr=log
            )

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 30) -> None:
        """Wait for something about this node; its log is shown if it does not come."""
        try:
            wait_for(condition, timeout_s, f"node {self.id}", every_s=0.02)
        except AssertionError as error:
            log = self.log()
            raise (error if log in str(error) else AssertionError(f"{error}\n{log}")) from None

    def is_live(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the node exited {self.process.returncode}:\n{self.log()}")
        return self._answers("/healthz")

    def is_ready(self) -> bool:
        return self.is_live() and self._answers("/readyz")

    def _answers(self, path: str) -> bool:
        try:
            self.get(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as response:
            text: str = response.read().decode()
            return text

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.get("/api/status"))
        return status

    def fabric(self) -> dict[str, Any]:
        """What the node says of its links, algorithm and topology."""
        fabric: dict[str, Any] = self.status()["fabric"]
        return fabric

    def change(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """A changing call of the admin API; its status and the JSON that came back."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def begin_stop(self) -> None:
        """SIGTERM; `stop` waits for the end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process is there, its connections stand, and it says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> NodeProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
