"""A tap in a link between two nodes: counts the packets that pass, and can cut the wire.

    dialing node ──▶ tap ──▶ accepting node

The tap relays bytes as they come and decodes them beside, so what it says about a link does not
depend on what the nodes say about themselves.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from dataclasses import dataclass

from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import Packet, Publish, Subscribe, Unsubscribe

__all__ = ["LinkTap", "Passed"]


@dataclass(frozen=True, slots=True)
class Passed:
    """A packet that matters to an algorithm: what it was, and about which topic or filter."""

    sender: str
    kind: str
    about: str
    connection: int
    """Which of the connections since the tap was made it passed on."""


def _described(packet: Packet) -> list[tuple[str, str]]:
    match packet:
        case Subscribe():
            return [("subscribe", each.topic_filter) for each in packet.subscriptions]
        case Unsubscribe():
            return [("unsubscribe", topic_filter) for topic_filter in packet.topic_filters]
        case Publish() if not packet.topic.startswith("$isthmus/"):
            return [("publish", packet.topic)]
    return []


class LinkTap:
    """Listens in front of the link port of node `acceptor`, for node `dialer`; `close` it."""

    def __init__(self, dialer: str, acceptor: str, port: int) -> None:
        self.ends = (dialer, acceptor)
        self._target = port
        self._lock = threading.Lock()
        self._passed: list[Passed] = []
        self._packets: Counter[str] = Counter()
        self._sockets: set[socket.socket] = set()
        self._open = True
        self._closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    # ---- what a test does ----------------------------------------------------------------

    def passed(self) -> list[Passed]:
        """Subscribes, unsubscribes and messages so far, in the order they came."""
        with self._lock:
            return list(self._passed)

    def count(self, kind: str, about: str | None = None) -> Counter[str]:
        """How many of a kind each end has sent."""
        return Counter(
            each.sender
            for each in self.passed()
            if each.kind == kind and about in (None, each.about)
        )

    def other(self, end: str) -> str:
        dialer, acceptor = self.ends
        return acceptor if end == dialer else dialer

    def packets(self) -> Counter[str]:
        """Packets of every type, both ways."""
        with self._lock:
            return Counter(self._packets)

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._sockets) // 2

    def cut(self) -> None:
        """Break every connection and let none come about."""
        self._open = False
        self._break()

    def break_one(self) -> None:
        """Break one of the connections; others, and new ones, are let through."""
        with self._lock:
            one = next(iter(self._sockets))
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._open = True

    def freeze(self) -> None:
        """Let nothing pass, and break nothing: a line that has gone silent."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()

    # ---- the wire ------------------------------------------------------------------------

    def _break(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        connection = 0
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._open:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            dialer, acceptor = self.ends
            for sender, here, there in ((dialer, near, far), (acceptor, far, near)):
                arguments = (sender, connection, here, there)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()
            connection += 1

    def _pump(
        self, sender: str, connection: int, here: socket.socket, there: socket.socket
    ) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := here.recv(262_144):
                self._flowing.wait()
                rest = self._read(sender, connection, rest + data)
                there.sendall(data)
        for each in (here, there):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(here)
        here.close()

    def _read(self, sender: str, connection: int, data: bytes) -> bytes:
        """Note the whole packets in `data`; what is left over."""
        pos = 0
        while (length := frame_length(data, pos)) and pos + length <= len(data):
            packet = decode(data[pos : pos + length], 5)
            with self._lock:
                self._packets[type(packet).__name__] += 1
                self._passed += [
                    Passed(sender, kind, about, connection) for kind, about in _described(packet)
                ]
            pos += length
        return data[pos:]
