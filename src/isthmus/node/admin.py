"""The node's admin HTTP server: sockets, framing and bounds; pages are in `admin_pages`.

HTTP/1.1 by h11; asyncio carries the bytes.

Invariants: whatever a client sends costs bounded memory (`MAX_HEAD_BYTES`, `MAX_BODY_BYTES`,
`MAX_CONNECTIONS`) and bounded time (`HEAD_TIMEOUT_S` for the head of a request, from its first byte
or from the connection's beginning, `request_timeout_s` for a whole request, for the silence between
two requests, and for a whole answer).  There is always room for one more connection: for an address
that has `MAX_PER_ADDRESS` the one of its own that has stood still longest is closed, and where all
are taken one of the address that has most.  So however many slow ones stand, a probe that asks at
once is answered.  At most one request is answered in a turn of the loop, whoever sends how many.

No error here reaches the node: a request that fails answers 500, is logged, and that is all.  h11
and prometheus_client are imported at the first request and in a thread, so that they cost a
starting node nothing and a running one no pause.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from isthmus.config.addresses import Address
from isthmus.logs import get_logger
from isthmus.node.admin_pages import AdminNode, AdminRequest, Answer, answer, ip_address
from isthmus.node.sockets import cannot_listen

if TYPE_CHECKING:
    import h11

__all__ = ["AdminServer"]

MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 65_536
MAX_CONNECTIONS = 64
MAX_PER_ADDRESS = 32
HEAD_TIMEOUT_S = 5.0
TOLD_EVERY_S = 60.0
READ_BYTES = 16_384
LINGER_S = 1.0
LINGER_READS = 64

log = get_logger(__name__)


class _Refused(Exception):
    """The request cannot be taken; answer and close."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.answer = Answer(status, f"{problem}\n".encode())


@dataclass(eq=False, slots=True)
class _Connection:
    """One that is open: whose it is, and since when it has been doing what it does."""

    address: str
    client: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since_s: float
    answering: bool = False
    """A whole request is there; else it is waited for, and what it costs is the client's doing."""


class AdminServer:
    """Serves a node's admin pages on one address."""

    def __init__(
        self,
        node: AdminNode,
        address: Address,
        *,
        hosts: Iterable[str] = (),
        request_timeout_s: float = 15.0,
    ) -> None:
        self._node = node
        self._wanted = address
        self._hosts = frozenset(name.lower() for name in (*hosts, address.host))
        self._request_timeout_s = request_timeout_s
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._told_s = -math.inf
        self._libraries: asyncio.Task[None] | None = None

    @property
    def bound(self) -> tuple[str, int]:
        """Where it listens: host and port, with the port that was chosen once it is started."""
        if self._server is None or not self._server.sockets:
            return self._wanted.host, self._wanted.port
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    async def start(self) -> None:
        """Bind; raises `OSError` that names the key when the address cannot be had."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self._wanted.host, self._wanted.port, limit=READ_BYTES
            )
        except OSError as error:
            raise cannot_listen("admin", self._wanted, error) from error

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = [*self._connections.values(), *([self._libraries] if self._libraries else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain callback rather than a coroutine: the tasks are ours to count and to cancel.
        peername = writer.get_extra_info("peername")
        client = peername[0] if peername else ""
        now_s = asyncio.get_running_loop().time()
        connection = _Connection(_network(client), client, reader, writer, now_s)
        self._make_room(connection.address, now_s)
        task = asyncio.create_task(self._serve(connection))
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._connections.pop(connection, None))

    def _make_room(self, address: str, now_s: float) -> None:
        """Close the connection that has stood still longest, if one more would be too many."""
        of_address = Counter(each.address for each in self._connections)
        if of_address[address] >= MAX_PER_ADDRESS:
            crowded = address
        elif len(self._connections) >= MAX_CONNECTIONS:
            ((crowded, _),) = of_address.most_common(1)
        else:
            return
        stalest = min(
            (each for each in self._connections if each.address == crowded),
            key=lambda each: (each.answering, each.since_s),
        )
        self._connections.pop(stalest).cancel()
        stalest.writer.transport.abort()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            log.warning("admin connections full; the stalest is closed", client=stalest.client)

    async def _serve(self, connection: _Connection) -> None:
        writer = connection.writer
        # With a high-water mark of 0 `drain` waits until all is sent: nothing is cut off at close.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            await self._load_libraries()
            await self._requests(connection)
        except (OSError, TimeoutError):
            pass  # gone, or too slow: closing is the whole answer
        except Exception:
            log.exception("admin connection failed")
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # a client that does not read would keep the rest for ever
            else:
                writer.close()

    async def _load_libraries(self) -> None:
        if self._libraries is None:
            self._libraries = asyncio.create_task(asyncio.to_thread(_import_libraries))
        await asyncio.shield(self._libraries)

    async def _requests(self, connection: _Connection) -> None:
        import h11

        reader, writer = connection.reader, connection.writer
        loop = asyncio.get_running_loop()
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        head_s = loop.time() + HEAD_TIMEOUT_S
        while True:
            connection.answering, connection.since_s = False, loop.time()
            try:
                received = await self._receive(http, reader, head_s)
                if received is None:
                    return
                request = _request(*received, connection.client)
                connection.answering, connection.since_s = True, loop.time()
                async with self._turn:
                    reply = self._answer(request)
                    await asyncio.sleep(0)
                head_only = request.method == "HEAD"
            except h11.RemoteProtocolError as error:
                problem = f"{error}\n".encode()
                reply, head_only = Answer(error.error_status_hint, problem), False
            except _Refused as error:
                reply, head_only = error.answer, False
            async with asyncio.timeout(self._request_timeout_s):
                writer.write(_encode(http, reply, head_only))
                await writer.drain()
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return await _linger(reader, writer)
            http.start_next_cycle()
            head_s = math.inf

    async def _receive(
        self, http: h11.Connection, reader: asyncio.StreamReader, head_s: float
    ) -> tuple[h11.Request, bytes] | None:
        """The next whole request, its head by `head_s`, with its body; None: the client is done."""
        import h11

        request: h11.Request | None = None
        body = bytearray()
        now_s = asyncio.get_running_loop().time
        last_s = now_s() + self._request_timeout_s
        async with asyncio.timeout_at(min(head_s, last_s)) as patience:
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    if request is None and http.trailing_data[0]:  # a head has begun
                        head_s = min(head_s, now_s() + HEAD_TIMEOUT_S)
                        patience.reschedule(min(head_s, last_s))
                    http.receive_data(await reader.read(READ_BYTES))
                elif isinstance(event, h11.Request):
                    request = event
                    patience.reschedule(last_s)
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY_BYTES:
                        raise _Refused(413, f"a body has at most {MAX_BODY_BYTES} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    return request, bytes(body)
                else:  # ConnectionClosed or PAUSED
                    return None

    def _answer(self, request: AdminRequest) -> Answer:
        try:
            reply = answer(self._node, request, self._hosts)
        except Exception:
            log.exception("admin request failed", method=request.method, target=request.target)
            return Answer(500, b"internal error; the node's log says more\n")
        if request.method not in ("GET", "HEAD"):
            log.info(
                "admin request",
                method=request.method,
                target=request.target,
                client=request.client,
                status=reply.status,
            )
        return reply


def _network(client: str) -> str:
    """Whose connections count together: an IPv4 address, or the 64 bits that one IPv6 host has."""
    address = ip_address(client)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address or client)


def _request(head: h11.Request, body: bytes, client: str) -> AdminRequest:
    def header(name: bytes) -> str:
        return b",".join(value for key, value in head.headers if key == name).decode("latin-1")

    return AdminRequest(
        method=head.method.decode("latin-1"),
        target=head.target.decode("latin-1"),
        accept=header(b"accept"),
        content_type=header(b"content-type"),
        host=header(b"host"),
        origin=header(b"origin"),
        client=client,
        body=body,
    )


def _import_libraries() -> None:
    import h11  # noqa: F401

    import isthmus.node.metrics  # noqa: F401


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client read the last answer: a close with bytes unread would reset the connection."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        for _ in range(LINGER_READS):
            if not await reader.read(READ_BYTES):
                return


def _encode(http: h11.Connection, reply: Answer, head_only: bool) -> bytes:
    import h11

    headers = [
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        *reply.headers,
    ]
    if http.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    reason = HTTPStatus(reply.status).phrase.encode()
    parts = [http.send(h11.Response(status_code=reply.status, headers=headers, reason=reason))]
    if not head_only:
        parts.append(http.send(h11.Data(data=reply.body)))
    parts.append(http.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
