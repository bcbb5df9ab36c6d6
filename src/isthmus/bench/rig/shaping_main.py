"""The process that shapes links: ``python -m isthmus.bench.rig.shaping_main LINKS``.

LINKS is a JSON array with one ``{"connect": "HOST:PORT", "delay_s": 0.005, "bytes_per_s": null}``
per link.  It prints where it listens for each, on one line, and goes on until it is ended.  All
links of a rig share the process; it is outside every CPU quota.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.bench.rig.shaping import Shape, listen
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.processes.children import Launch, launch

__all__ = ["ShapedLink", "start_shaping"]

START_TIMEOUT_S = 20.0
READY = "listening "


@dataclass(frozen=True, slots=True)
class ShapedLink:
    """A line that ends at `connect`."""

    connect: Address
    shape: Shape


def start_shaping(
    links: Sequence[ShapedLink], log: Path
) -> tuple[subprocess.Popen[bytes], list[Address]]:
    """Start the process; it and, in the order of `links`, where to connect instead.

    The caller ends it.  Raises `ShapingFailed`; then nothing runs.
    """
    tables = [
        {
            "connect": str(link.connect),
            "delay_s": link.shape.delay_s,
            "bytes_per_s": link.shape.bytes_per_s,
        }
        for link in links
    ]
    program = [sys.executable, "-m", "isthmus.bench.rig.shaping_main", json.dumps(tables)]
    process = launch(Launch(program), log)
    try:
        return process, _until_listening(process, log)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _until_listening(process: subprocess.Popen[bytes], log: Path) -> list[Address]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        ended = process.poll() is not None
        text = log.read_text()
        for line in text.splitlines(keepends=True):
            if line.startswith(READY) and line.endswith("\n"):
                return [Address.parse(each) for each in line.removeprefix(READY).split()]
        if ended:
            raise ShapingFailed(f"ended with exit code {process.returncode}", text[-4000:])
        if time.monotonic() >= deadline:
            raise ShapingFailed(f"does not listen within {START_TIMEOUT_S:g} s", text[-4000:])
        time.sleep(0.01)


async def _serve(tables: list[dict[str, object]]) -> None:
    servers = [
        await listen(_shape(table), Address.parse(str(table["connect"]))) for table in tables
    ]
    names = [server.sockets[0].getsockname() for server in servers]
    print(READY + " ".join(str(Address(name[0], name[1])) for name in names), flush=True)
    await asyncio.Event().wait()


def _shape(table: dict[str, object]) -> Shape:
    delay_s, bytes_per_s = table["delay_s"], table["bytes_per_s"]
    assert isinstance(delay_s, int | float)
    assert bytes_per_s is None or isinstance(bytes_per_s, int)
    return Shape(delay_s, bytes_per_s)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(json.loads(sys.argv[1])))
