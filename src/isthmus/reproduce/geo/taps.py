"""Taps before brokers and nodes: bytes are passed on as they come, and the packets in them counted.

    whoever dials ──▶ tap ──▶ broker, or node

What a tap says does not depend on what nodes and brokers say about themselves.  All taps share one
thread.  Who dials is told by the CONNECT that a connection begins with: of a link, the node.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self, TypeVar

from isthmus.bench.rig.shaping import caller
from isthmus.config.addresses import Address
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.publish_layout import topic_start

__all__ = ["Seen", "Taps"]

READ_BYTES: Final = 65_536
START_S: Final = 10.0
POLL_S: Final = 0.005
_PINGS: Final = (PacketType.PINGREQ, PacketType.PINGRESP)
_CONTROL: Final = b"$isthmus/"

Result = TypeVar("Result")


class Seen(NamedTuple):
    """What is counted together."""

    tap: str
    node: str
    """The node that dialed; empty for whoever else did."""
    inwards: bool
    """From who dialed to who was dialed."""
    kind: str


class Taps:
    """A context manager; add taps within."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._counts: Counter[Seen] = Counter()
        self._last_s = 0.0
        """When something passed that is no ping."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target: Address) -> Address:
        """Where to dial `target` by way of a new tap."""
        return self._do(self._listen(name, target))

    def so_far(self) -> Counter[Seen]:
        """What has passed until now."""

        async def copied() -> Counter[Seen]:
            return Counter(self._counts)

        return self._do(copied())

    def rest(self, quiet_s: float, limit_s: float) -> None:
        """Wait until nothing has passed for `quiet_s`; raises `TimeoutError` after `limit_s`."""
        began_s = time.monotonic()
        while time.monotonic() - max(began_s, self._last_s) < quiet_s:
            if time.monotonic() - began_s > limit_s:
                raise TimeoutError(f"messages pass all the time, for {limit_s:g} s")
            time.sleep(POLL_S)

    # ---- in their thread -------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, name: str, target: Address) -> Address:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._pass(name, target, reader, writer)
            except (OSError, asyncio.CancelledError):
                pass  # who is left sees it close
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._tasks.add(asyncio.ensure_future(_serve(server)))
        host, port = server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def _pass(
        self,
        name: str,
        target: Address,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        there, back = await asyncio.open_connection(target.host, target.port)
        said = await reader.read(READ_BYTES)
        while (node := caller(said)) is None and said:
            more = await reader.read(READ_BYTES)
            if not more:
                break
            said += more
        try:
            await asyncio.gather(
                self._one_way(Seen(name, node or "", True, ""), reader, back, said),
                self._one_way(Seen(name, node or "", False, ""), there, writer),
            )
        finally:
            back.close()

    async def _one_way(
        self,
        way: Seen,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        data: bytes = b"",
    ) -> None:
        frames = FrameBuffer()
        while data or (data := await reader.read(READ_BYTES)):
            seen = frames.push(data)
            offsets = scan(seen)
            for start, _ in pairwise(offsets):
                kind = PacketType(seen[start] >> 4)
                if kind in _PINGS:
                    continue
                self._last_s = time.monotonic()
                if kind is PacketType.PUBLISH and seen.startswith(
                    _CONTROL, topic_start(seen, start)
                ):
                    continue
                self._counts[way._replace(kind=kind.name)] += 1
            frames.keep(seen[offsets[-1] :])
            writer.write(data)
            await writer.drain()
            data = b""
        writer.close()


async def _serve(server: asyncio.Server) -> None:
    async with server:
        await server.serve_forever()
