"""The process that shapes links: ``python -m isthmus.bench.rig.shaping_main FILE``.

FILE is JSON; a shape is ``{"delay_s": 0.005, "bytes_per_s": null}``::

    {"nodes": {"a": "HOST:PORT", …}, "default": SHAPE, "between": [["a", "b", SHAPE], …]}

It prints where it listens for each node, on one line, and goes on until it is ended.  All nodes of
a rig share the process; it is outside every CPU quota.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isthmus.bench.rig.lines import Lines, Shape, Shapes
from isthmus.bench.rig.shaping import listen
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.processes.children import Launch, launch

__all__ = ["start_shaping"]

START_TIMEOUT_S = 20.0
READY = "listening "


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
    process = launch(Launch(program), log)
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


async def _serve(shaping: Mapping[str, Any]) -> None:
    between = {(one, other): Shape(**shape) for one, other, shape in shaping["between"]}
    lines = Lines(Shapes(Shape(**shaping["default"]), between), shaping["nodes"])
    servers = [
        await listen(lines, node, Address.parse(address))
        for node, address in shaping["nodes"].items()
    ]
    names = [server.sockets[0].getsockname() for server in servers]
    print(READY + " ".join(str(Address(name[0], name[1])) for name in names), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(json.loads(Path(sys.argv[1]).read_text())))
