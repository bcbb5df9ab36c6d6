"""The connected clients of a load process, and the one loop that serves their sockets.

:class:`Poller` waits for sockets with `epoll` and calls whoever has something to do.  It is not an
asyncio loop: a read here is one system call into memory that is already there, the process decides
itself how long it sleeps (below a millisecond, which libuv does not), and an error of ours comes
out where it happens.  Connections are made with uvloop (:mod:`isthmus.bench.load.connecting`).

A connection that ends is never passed over: the client is *lost*, with time and reason.  With
`come_back` it gets another one (:mod:`isthmus.bench.load.returning`).
"""

from __future__ import annotations

import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from isthmus.bench.load.acknowledging import Answers
from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.connecting import Connected
from isthmus.bench.load.receiving import Inbox, Parser
from isthmus.bench.load.returning import KeptInFlight, KeptSession
from isthmus.bench.load.sending import Outbox, Publisher
from isthmus.errors import RemoteProtocolError
from isthmus.pipeline.log.reading import LoggedClient

__all__ = ["ClientConnection", "Loss", "Poller", "PublishingClient", "SubscribingClient"]

_DISCONNECT: Final = b"\xe0\x00"
_ANSWERS_BYTES: Final = 1 << 16
READY_AT_ONCE: Final = 256
"""Sockets served before the schedule has its turn again."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A client lost its connection."""

    client: LoggedClient
    t_ns: int
    problem: str


class Poller:
    """Calls the handlers of file descriptors that are ready."""

    def __init__(self) -> None:
        # Made first of all, so that its own number is one that `select` takes.
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the events whenever `fd` has something to read."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Wait for `fd` no longer."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def turn(self, wait_s: float | None) -> int:
        """Wait for at most so long, to the microsecond, and serve all that are ready."""
        # epoll itself counts in milliseconds.
        if wait_s is None or wait_s > 0:
            select.select((self._epoll,), (), (), wait_s)
        ready = self._epoll.poll(0, READY_AT_ONCE)
        handlers = self._handlers
        for fd, events in ready:
            handler = handlers.get(fd)  # an earlier one of this turn may have closed it
            if handler is not None:
                handler(events)
        return len(ready)


class ClientConnection(ABC):
    """A client's socket; `lose` tells the process that it is gone."""

    def __init__(self, connected: Connected, poller: Poller, lose: Callable[[Loss], None]) -> None:
        self.client = connected.client
        self.client_id = connected.client_id
        self.clean = connected.clean
        self.sock: socket.socket | None = None
        self._poller = poller
        self._lose = lose
        self._use(connected.sock)

    def _use(self, sock: socket.socket) -> None:
        host, port = sock.getsockname()[:2]
        self.local = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.sock = self._sock = sock
        self._fd = sock.fileno()
        self._writing = False
        self._poller.watch(self._fd, self.ready)

    @abstractmethod
    def messages(self) -> tuple[int, int]:
        """Sent and received since it connected."""

    @abstractmethod
    def come_back(self, sock: socket.socket, heard: bytes) -> None:
        """It was lost and is connected again; `heard` came after CONNACK."""

    @abstractmethod
    def ready(self, events: int) -> None:
        """The socket has something to read, takes more, or is broken."""

    def send(self, data: memoryview) -> int:
        """How many bytes the socket took; if not all, `ready` comes when it takes more."""
        if self.sock is None:
            return 0
        try:
            taken = self._sock.send(data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self.lost(f"cannot be written to: {error.strerror}")
            return 0
        if taken < len(data):
            self._wait_to_write(True)
        return taken

    def _wait_to_write(self, wanted: bool) -> None:
        if wanted != self._writing and self.sock is not None:
            self._writing = wanted
            self._poller.change(self._fd, self._events(wanted))

    def _events(self, writing: bool) -> int:
        return select.EPOLLIN | select.EPOLLOUT if writing else select.EPOLLIN

    def lost(self, problem: str) -> None:
        """Close the socket and report it, once."""
        if self.sock is None:
            return
        self._poller.forget(self._fd)
        self.sock.close()
        self.sock = None
        self._lose(Loss(self.client, now_ns(), problem))

    def close(self) -> None:
        """Leave politely where the socket still takes two bytes."""
        if self.sock is None:
            return
        self._poller.forget(self._fd)
        try:
            self.sock.send(_DISCONNECT)
        except OSError:
            pass  # it is full or gone; closing says the same
        self.sock.close()
        self.sock = None


class SubscribingClient(ClientConnection):
    """A subscriber: reads into the inbox.

    At QoS 1 and 2 it answers, and reads no more until its answers are taken.
    """

    def __init__(
        self,
        connected: Connected,
        poller: Poller,
        lose: Callable[[Loss], None],
        *,
        number: int,
        inbox: Inbox,
        parser: Parser,
        parse: Callable[[], None],
        subscribe: bytes,
    ) -> None:
        """`subscribe` is the packet that it sends when it has come back."""
        super().__init__(connected, poller, lose)
        self._number = number
        self._inbox = inbox
        self._parser = parser
        self._parse = parse
        self._recv_into = connected.sock.recv_into
        self._session = None if connected.clean else KeptSession()
        self._answers = Answers() if parser.qos(number) and connected.clean else None
        self._subscribe = subscribe
        self._owed = b""
        if self._session is not None:
            self._put(connected.early)
            self._answer(b"")
        elif connected.early:
            parser.preload(number, connected.early)
            self._answer(connected.early)

    def messages(self) -> tuple[int, int]:
        return 0, int(self._parser.received[self._number])

    def lost(self, problem: str) -> None:
        super().lost(problem)
        self._parse()  # what is there belongs to the connection that is gone
        self._parser.preload(self._number, b"")
        self._owed = b""
        if self._session is not None:
            self._session.lost()

    def come_back(self, sock: socket.socket, heard: bytes) -> None:
        self._use(sock)
        self._recv_into = sock.recv_into
        self._owed = self._subscribe
        self._put(heard)
        self._answer(heard)

    def _put(self, data: bytes) -> None:
        """Bytes that were read elsewhere; a session keeps back what is repeated."""
        if self._session is not None:
            try:
                owed, data = self._session.take(data)
            except RemoteProtocolError as error:
                self.lost(f"sent what is not MQTT: {error}")
                return
            self._owed += owed
        while data:
            size = self._inbox.read(self._number, partial(_copy, data))
            data = data[size:]
            if self._inbox.full:
                self._parse()

    def ready(self, events: int) -> None:
        if self._owed:
            self._answer(b"")
            return
        if self._session is not None:
            self._read_again()
            return
        inbox = self._inbox
        try:
            size = inbox.read(self._number, self._recv_into)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(f"broke: {error.strerror}")
            return
        if not size:
            self.lost("closed by the other end")
            return
        if self._answers is not None:
            self._answer(inbox.last(size))
        if inbox.full:
            self._parse()

    def _read_again(self) -> None:
        """As the inbox does, but frame by frame."""
        try:
            chunk = self._sock.recv(_ANSWERS_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(f"broke: {error.strerror}")
            return
        if not chunk:
            self.lost("closed by the other end")
            return
        self._put(chunk)
        self._answer(b"")

    def _answer(self, chunk: bytes) -> None:
        try:
            if self._answers is not None:
                self._owed += self._answers.take(chunk)
        except RemoteProtocolError as error:
            self.lost(f"sent what is not MQTT: {error}")
            return
        if self._owed:
            self._owed = self._owed[self.send(memoryview(self._owed)) :]
        self._wait_to_write(bool(self._owed))

    def _events(self, writing: bool) -> int:
        return select.EPOLLOUT if writing else select.EPOLLIN


def _copy(data: bytes, into: memoryview) -> int:
    size = min(len(data), len(into))
    into[:size] = data[:size]
    return size


class PublishingClient(ClientConnection):
    """A publisher's connection: what the broker answers goes to the `publisher`."""

    def __init__(
        self, connected: Connected, poller: Poller, lose: Callable[[Loss], None], outbox: Outbox
    ) -> None:
        super().__init__(connected, poller, lose)
        client = connected.client
        kept = None if connected.clean else KeptInFlight()
        self.publisher = Publisher(client.client, client.topic, outbox, self.send, kept=kept)

    def messages(self) -> tuple[int, int]:
        return self.publisher.messages_out, 0

    def come_back(self, sock: socket.socket, heard: bytes) -> None:
        self._use(sock)
        self.publisher.back()
        try:
            self.publisher.answered(heard)
        except RemoteProtocolError as error:
            self.lost(f"sent what is not MQTT: {error}")

    def ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._wait_to_write(False)
            self.publisher.writable()
        if events & ~select.EPOLLOUT and self.sock is not None:
            self._read()

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(_ANSWERS_BYTES)
            if not chunk:
                self.lost("closed by the other end")
                return
            self.publisher.answered(chunk)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(f"broke: {error.strerror}")
        except RemoteProtocolError as error:
            self.lost(f"sent what is not MQTT: {error}")
