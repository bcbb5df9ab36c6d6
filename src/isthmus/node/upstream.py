"""The way to the local broker: opening sessions with it, and knowing whether it is there.

A client's session is always tried for real, so a broker that comes back serves at once.  What the
node says of the broker (``/readyz``, the status) follows the last attempt; while no session with it
stands, a TCP connection is tried every `PROBE_S`.  That the kernel answers for a broker that hangs
is noticed by the node's own sessions (`isthmus.exchange.broker.injector`), if it has neighbors.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.config.files import BrokerTable
from isthmus.errors import BrokerError
from isthmus.exchange.session import Session
from isthmus.logs import get_logger
from isthmus.node.sockets import as_protocol, probe_when_idle
from isthmus.node.tls import broker_context

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["Upstream"]

PROBE_S = 5.0
RETRY_S = 0.5
MAX_CONNECTING = 64  # brokers' listen backlogs are small: a herd of clients is let in in turn

log = get_logger(__name__)


class Upstream:
    """Opens connections to a broker that a node stands before."""

    def __init__(self, table: BrokerTable, timeout_s: float, in_use: Callable[[], bool]) -> None:
        self._in_use = in_use
        self.url = table.url
        self._tls = table.tls
        self._timeout_s = timeout_s
        self._host = self.url.host
        self._port = self.url.port
        self._context: ssl.SSLContext | None = None
        self._connecting = asyncio.Semaphore(MAX_CONNECTING)
        self._probe: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()
        self._embedded: Broker | None = None
        self.reachable = False
        self.problem = "not tried yet"
        self._last_attempt_s = 0.0

    async def start(self) -> None:
        """Load what TLS needs, begin to look for the broker; an embedded one is started."""
        if self.url.scheme == "mqtts":
            self._context = broker_context(self._tls)
        elif self.url.scheme == "embedded":
            from isthmus.brokers import create

            self._embedded = create("embedded")
            if missing := self._embedded.missing():
                raise missing
        self._probe = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        if self._embedded is not None:
            await self._embedded.async_stop()

    def open(self, session: Session, failed: Callable[[str], None]) -> None:
        """Connect `session`; if that cannot be, `failed` is told the cause."""
        task = asyncio.get_running_loop().create_task(self._open(session, failed))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, session: Session, failed: Callable[[str], None]) -> None:
        try:
            await self.connect(as_protocol(session))
        except OSError as error:
            failed(str(error))

    def close(self) -> None:
        """Open nothing more."""
        for task in self._opening:
            task.cancel()

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Open one connection; raises `OSError` (a time-out is one too) with the cause."""
        loop = asyncio.get_running_loop()
        self._last_attempt_s = loop.time()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._started.wait()
                async with self._connecting:
                    transport, _ = await loop.create_connection(
                        lambda: protocol,
                        self._host,
                        self._port,
                        ssl=self._context,
                        server_hostname=(self._tls.server_name or self._host)
                        if self._context
                        else None,
                    )
                    probe_when_idle(transport.get_extra_info("socket"))
        except TimeoutError:
            self._found(f"no answer within {self._timeout_s:g} s")
            raise OSError(self.problem) from None
        except (OSError, UnicodeError) as error:  # the latter: no host can have that name
            self._found(str(error) or type(error).__name__)
            raise OSError(self.problem) from error
        self._found("")

    def _found(self, problem: str) -> None:
        if problem and (self.reachable or problem != self.problem):
            log.warning("broker unreachable", broker=str(self.url), cause=problem)
        elif not problem and not self.reachable:
            log.info("broker reachable", broker=str(self.url))
        self.reachable = not problem
        self.problem = problem

    async def _watch(self) -> None:
        """Keep an embedded broker up; probe whenever no client has tried lately."""
        loop = asyncio.get_running_loop()
        while True:
            if self._embedded is not None and not self._embedded.running:
                await self._start_embedded(self._embedded)
            self._started.set()
            waited_s = loop.time() - self._last_attempt_s
            if not self.reachable or (waited_s >= PROBE_S and not self._in_use()):
                try:
                    await self.connect(_Probe())
                except OSError:
                    pass  # _found has said so
            await asyncio.sleep(PROBE_S if self.reachable else RETRY_S)

    async def _start_embedded(self, broker: Broker) -> None:
        try:
            await broker.async_start()
        except BrokerError as error:
            log.error("embedded broker did not start", cause=str(error))
            return
        self._host, self._port = broker.host, broker.port


class _Probe(asyncio.Protocol):
    """A connection that is closed as soon as it stands."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
