"""The process that shapes links: ``python -m isthmus.bench.rig.shaping_main LINKS``.

LINKS is JSON: ``{"connect": ["HOST:PORT", …], "delay_s": 0.005, "bytes_per_s": null}``.  It prints
where it listens for each link, on one line, and goes on until it is ended.  All links of a rig
share the process; it is outside every CPU quota.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isthmus.bench.rig.shaping import Shape, listen
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.processes.children import Launch, launch

__all__ = ["start_shaping"]

START_TIMEOUT_S = 20.0
READY = "listening "


def start_shaping(
    shape: Shape, connect: Sequence[Address], log: Path
) -> tuple[subprocess.Popen[bytes], list[Address]]:
    """Start the process; it and, for each address in `connect`, where to connect instead.

    The caller ends it.  Raises `ShapingFailed`; then nothing runs.
    """
    shaping = json.dumps({**asdict(shape), "connect": [str(each) for each in connect]})
    program = [sys.executable, "-m", "isthmus.bench.rig.shaping_main", shaping]
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


async def _serve(connect: Sequence[str], **shape: Any) -> None:
    servers = [await listen(Shape(**shape), Address.parse(each)) for each in connect]
    names = [server.sockets[0].getsockname() for server in servers]
    print(READY + " ".join(str(Address(name[0], name[1])) for name in names), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(**json.loads(sys.argv[1])))
