"""The exchange's surroundings on asyncio: clock, timers, links, the local broker, files."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.exchange.host import Cancellable, Channel, StateRewrite
from isthmus.exchange.traffic.message import Message
from isthmus.logs import get_logger
from isthmus.node.injector import Injector
from isthmus.node.link_io import dial
from isthmus.node.retained_reader import RetainedReader
from isthmus.node.storage import Storage

if TYPE_CHECKING:
    from isthmus.exchange.link.connection import Connection
    from isthmus.node.runtime import Node

__all__ = ["NodeHost"]

RETIRE_S = 0.5

log = get_logger("isthmus.exchange")


class NodeHost:
    """Implements `isthmus.exchange.host.Host`."""

    def __init__(self, node: Node, link_context: ssl.SSLContext | None) -> None:
        self._node = node
        self._loop = node.loop
        self._link_context = link_context
        self._woken = False
        self._dials: set[asyncio.Task[None]] = set()
        self.injectors: dict[str, Injector] = {}
        self._joined: set[str] = set()
        self.random = random.Random()
        self.now = self._loop.time
        self.storage: Storage | None = None
        self._reader = RetainedReader(node)
        if (folder := node.config.node.state_dir) is not None:
            self.storage = Storage(folder, node.config.node.id, self._state_lost)
            self.storage.open()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def token_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        return self._loop.call_later(delay_s, callback)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._woken = False
        self._node.exchange.flush()

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        links, turns = self._node.exchange.links, self._node.turns
        task = self._loop.create_task(
            dial(links, turns, address, self._link_context, opened=opened, failed=failed)
        )
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def inject(self, message: Message, key: str, done: Callable[[], None] | None) -> bool:
        return self._injector(key).inject(message, done)

    def give_up_injected(self, key: str, size: int) -> int:
        injector = self.injectors.get(key)
        return 0 if injector is None else injector.give_up(size)

    def inject_plain(self, topic: bytes, payload: bytes, key: str) -> bool:
        return self._injector(key).inject_plain(topic, payload)

    def _injector(self, key: str) -> Injector:
        injector = self.injectors.get(key)
        if injector is None:
            injector = self.injectors[key] = Injector(self._node, key)
            if key not in self._joined:
                self._loop.call_later(RETIRE_S, self._retire, key)
        return injector

    def neighbor_joined(self, key: str) -> None:
        self._joined.add(key)
        self._injector(key)

    def neighbor_left(self, key: str) -> None:
        self._joined.discard(key)
        self._retire(key)

    def _retire(self, key: str) -> None:
        """Close the session of a neighbor that is gone, once all that it sent is acknowledged."""
        injector = self.injectors.get(key)
        if injector is None or key in self._joined:
            return
        if len(injector):
            self._loop.call_later(RETIRE_S, self._retire, key)
            return
        injector.close()
        del self.injectors[key]
        if not self.injectors:
            self._node.own_session_refused("")

    def close(self) -> None:
        for task in self._dials:
            task.cancel()
        for injector in self.injectors.values():
            injector.close()
        self._reader.close()

    async def close_storage(self) -> None:
        """Write what waits, beside the loop."""
        if self.storage is not None:
            await self._loop.run_in_executor(None, self.storage.close)

    def ask_retained(
        self, topics: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        self._reader.ask(topics, answer)

    # ---- what must survive a restart -----------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return self.storage is not None

    def load_state(self, name: str) -> bytes | None:
        return None if self.storage is None else self.storage.load(name)

    def save_state(self, name: str, state: bytes) -> None:
        if self.storage is not None:
            self.storage.save(name, state)

    def append_state(self, name: str, more: bytes) -> None:
        if self.storage is not None:
            self.storage.append(name, more)

    def rewrite_state(self, name: str) -> StateRewrite:
        if self.storage is None:
            raise RuntimeError("this node keeps nothing")
        return self.storage.rewrite(name)

    def _state_lost(self, name: str) -> None:
        """Called in the writing thread: not all of what was appended could be written."""
        self._loop.call_soon_threadsafe(self._node.exchange.state_lost, name)

    def log(self, level: str, event: str, **fields: object) -> None:
        getattr(log, level)(event, **fields)
