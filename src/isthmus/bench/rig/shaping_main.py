"""The process that shapes links: ``python -m isthmus.bench.rig.shaping_main FILE``.

FILE is JSON; a shape is ``{"delay_s": 0.005, "bytes_per_s": null}``::

    {"nodes": {"a": "HOST:PORT", …}, "default": SHAPE, "between": [["a", "b", SHAPE], …]}

It prints where it listens for each node, on one line, and goes on until it is ended.  On standard
input it takes ``{"do": "cut", "ways": [["a", "b"], …]}``, likewise ``heal``, one a line, and prints
``done`` for each (:func:`order`).  All nodes of a rig share the process; it is outside every CPU
quota.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from isthmus.bench.rig.lines import Lines, Shape, Shapes
from isthmus.bench.rig.shaping import listen
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.processes.children import Launch, launch

__all__ = ["order", "start_shaping"]

START_TIMEOUT_S = 20.0
ORDER_TIMEOUT_S = 5.0
READY = "listening "
DONE = "done\n"


def start_shaping(
    shapes: Shapes, nodes: Mapping[str, Address], folder: Path
) -> tuple[subprocess.Popen[bytes], dict[str, Address]]:
    """Start the process; it and, for each of `nodes`, where others are to dial it instead.

    Its file and log stand in `folder`.  The caller ends it.  Raises `ShapingFailed`; then nothing
    runs.
    """
    file, log = folder / "shaping.json", folder / "shaping.log"
    shaping = {
        "nodes": {node: str(address) for node, address in nodes.items()},
        "default": asdict(shapes.default),
        "between": [[*pair, asdict(shape)] for pair, shape in shapes.between.items()],
    }
    file.write_text(json.dumps(shaping))
    program = [sys.executable, "-m", "isthmus.bench.rig.shaping_main", str(file)]
    process = launch(Launch(program, pipe_stdin=True), log)
    try:
        return process, dict(zip(nodes, _until_listening(process, log), strict=True))
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


def order(
    process: subprocess.Popen[bytes],
    folder: Path,
    what: Literal["cut", "heal"],
    ways: Iterable[tuple[str, str]],
) -> None:
    """Have `process`, whose files stand in `folder`, cut some ways or heal them; it is done then.

    Raises `ShapingFailed`.
    """
    log = folder / "shaping.log"
    done = log.read_text().count(DONE)
    if process.stdin is None or process.stdin.closed:
        raise ShapingFailed("takes no orders: it has ended", log.read_text()[-4000:])
    try:
        process.stdin.write(json.dumps({"do": what, "ways": list(ways)}).encode() + b"\n")
        process.stdin.flush()
    except OSError as error:
        problem = f"takes no orders: {error.strerror}"
        raise ShapingFailed(problem, log.read_text()[-4000:]) from None
    deadline = time.monotonic() + ORDER_TIMEOUT_S
    while (text := log.read_text()).count(DONE) == done:
        if process.poll() is not None or time.monotonic() >= deadline:
            raise ShapingFailed(f"did not {what} within {ORDER_TIMEOUT_S:g} s", text[-4000:])
        time.sleep(0.002)


async def _serve(shaping: Mapping[str, Any]) -> None:
    between = {(one, other): Shape(**shape) for one, other, shape in shaping["between"]}
    lines = Lines(Shapes(Shape(**shaping["default"]), between), shaping["nodes"])
    # Ports in the order of the nodes: where a tie goes to the lowest address, it is the first one.
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in shaping["nodes"]]
    doors.sort(key=lambda door: int(door.getsockname()[1]))
    servers = [
        await listen(lines, node, Address.parse(address), door)
        for (node, address), door in zip(shaping["nodes"].items(), doors, strict=True)
    ]
    names = [server.sockets[0].getsockname() for server in servers]
    print(READY + " ".join(str(Address(name[0], name[1])) for name in names), flush=True)
    await _obey(lines)
    await asyncio.Event().wait()


async def _obey(lines: Lines) -> None:
    """Until nobody gives orders any more."""
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        told = json.loads(line)
        ways = [(one, other) for one, other in told["ways"]]
        {"cut": lines.cut, "heal": lines.heal}[told["do"]](ways)
        print(DONE, end="", flush=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(json.loads(Path(sys.argv[1]).read_text())))
