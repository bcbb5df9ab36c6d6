"""The exchange's surroundings on asyncio: clock, timers, links, the local broker, files."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isthmus.config.files import BrokerTable
from isthmus.cooperation.api import Resources
from isthmus.exchange.broker.of_several import AtBroker, OwnSessionsOfSeveral
from isthmus.exchange.broker.own_sessions import OwnSessions
from isthmus.exchange.host import Channel, StateRewrite
from isthmus.exchange.session import Session, SessionHost, Wire
from isthmus.exchange.split.brokers import Brokers
from isthmus.logs import get_logger
from isthmus.node.discovery_io import DiscoveryIo
from isthmus.node.link_io import dial
from isthmus.node.sockets import unacknowledged_s
from isthmus.node.spool_files import SpoolFiles
from isthmus.node.storage import Storage
from isthmus.processes.resources import FreeResources

if TYPE_CHECKING:
    from isthmus.exchange.link.connection import Connection
    from isthmus.node.runtime import Node

__all__ = ["NodeHost"]

log = get_logger("isthmus.exchange")


class NodeHost:
    """Implements `isthmus.exchange.host.Host` and `isthmus.exchange.session.SessionHost`."""

    def __init__(self, node: Node, link_context: ssl.SSLContext | None) -> None:
        self._node = node
        self._loop = node.loop
        self._link_context = link_context
        self._woken = False
        self._dials: set[asyncio.Task[None]] = set()
        self.random = random.Random()
        self.now = self._loop.time
        self.clock = time.perf_counter
        self.call_later = self._loop.call_later
        self.call_soon = self._loop.call_soon
        self.own: OwnSessions | OwnSessionsOfSeveral
        if node.config.has_several_brokers:
            of = {
                str(table.name): self._own_sessions(
                    AtBroker(self, self._brokers, str(table.name)), table, str(table.name)
                )
                for table in node.config.brokers
            }
            self.own = OwnSessionsOfSeveral(self, of, self._brokers)
        else:
            self.own = self._own_sessions(self, node.config.broker)
        own = self.own
        self.take_from_broker, self.want = own.start, own.want
        self.stop_taking = own.stop_taking
        self.inject, self.inject_plain = own.inject, own.inject_plain
        self.give_up_injected, self.ask_retained = own.give_up_injected, own.ask_retained
        self.neighbor_joined, self.neighbor_left = own.neighbor_joined, own.neighbor_left
        self.set_broker_apart, self.publish_left = own.set_apart, own.publish_left
        self.discovery = DiscoveryIo(node.config.discovery, self._announced)
        self.announce = self.discovery.send
        self._free = FreeResources()
        self.storage: Storage | None = None
        if (folder := node.config.node.state_dir) is not None:
            self.storage = Storage(folder, node.config.node.id, self._state_lost)
            self.storage.open()
            self._spool_files = SpoolFiles(folder / "apart", self._loop)

    def _own_sessions(self, host: SessionHost, table: BrokerTable, broker: str = "") -> OwnSessions:
        node = self._node
        return OwnSessions(
            host,
            node.config.node.id,
            broker=broker,
            exchange=lambda: node.exchange,
            login=lambda: (table.username, table.password_bytes()),
            linger_s=node.limits.drain_s,
            set_aside=node.set_aside.keep,
            shares=lambda: node.exchange.algorithm.topology == "any",
            takes=table.source == "broker",
            keeps=node.config.node.state_dir is not None,
        )

    def _brokers(self) -> Brokers:
        brokers = self._node.exchange.brokers
        assert brokers is not None
        return brokers

    def join(self) -> None:
        """There is an exchange now."""
        if isinstance(self.own, OwnSessionsOfSeveral):
            self._brokers().join(self, self.own.greeting, self.own.of)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def token_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)

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
        links, turns = self._node.exchange.links, self._node.relay.turns
        task = self._loop.create_task(
            dial(links, turns, address, self._link_context, opened=opened, failed=failed)
        )
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self._node.upstreams[broker].open(session, failed)

    def silent_s(self, wire: Wire) -> float | None:
        return unacknowledged_s(wire.get_extra_info("socket"))

    def resources(self) -> Resources:
        return Resources(*self._free.now())

    def _announced(self, datagram: bytes, remote: str) -> None:
        self._node.exchange.discovery.arrived(datagram, remote)

    def close(self) -> None:
        for task in self._dials:
            task.cancel()
        self.discovery.close()
        self.own.close()

    async def close_storage(self) -> None:
        """Write what waits, beside the loop."""
        if self.storage is not None:
            await self._loop.run_in_executor(None, self._spool_files.close)
            await self._loop.run_in_executor(None, self.storage.close)

    # ---- what must survive a restart -----------------------------------------------------

    @property
    def keeps_state(self) -> bool:
        return self.storage is not None

    def load_state(self, name: str, version: int) -> bytes | None:
        return None if self.storage is None else self.storage.load(name, version)

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

    def spools(self) -> Mapping[str, int]:
        return {} if self.storage is None else self._spool_files.sizes()

    def load_spool(self, file: str, size: int) -> bytes:
        return self._spool_files.load(file, size)

    def write_spool(self, file: str, offset: int, data: bytes, done: Callable[[str], None]) -> None:
        self._spool_files.write(file, offset, data, done)

    def read_spool(
        self, file: str, offset: int, size: int, done: Callable[[bytes | None], None]
    ) -> None:
        self._spool_files.read(file, offset, size, done)

    def drop_spool(self, file: str) -> None:
        self._spool_files.drop(file)

    def log(self, level: str, event: str, **fields: object) -> None:
        getattr(log, level)(event, **fields)
