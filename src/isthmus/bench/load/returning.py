"""Clients that come back when their connection broke: those of nodes that a scenario crashes.

    cut off ──RETRY_S──▶ TCP ──▶ CONNECT ──▶ CONNACK ──▶ as before
       ▲                  │         │            │
       ╰──────────────────┴─────────┴────────────╯ broke, refused, or longer than ATTEMPT_S

At QoS 0 what was under way is lost, as MQTT has it.  At QoS 1 and 2 such a client has a session
that its broker keeps, and does what MQTT 3.1.1 §4.4 asks for: a publisher sends again what was not
acknowledged, in its order and with DUP; a subscriber tells a message that is sent again from a new
one.  So there what is lost or comes twice is not for the clients to answer.

What falls due while a publisher is cut off is left out (:mod:`isthmus.bench.load.sending`).

Bytes in, bytes out, but for :class:`Attempt`.  Kept are a message's number and time for each that
is in flight, and 32 bytes of the last one with each packet id: 65,535 at most.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from isthmus.bench.coordinator.control import Target
from isthmus.bench.load.acknowledging import InFlight, answers
from isthmus.bench.load.frames import LEVEL, MAX_FRAME_BYTES
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length, scan
from isthmus.mqtt.packets import ConnAck, Connect
from isthmus.mqtt.publish_layout import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS,
    publish_answer,
    topic_bounds,
)
from isthmus.pipeline.log.payload import SIZE

if TYPE_CHECKING:
    from isthmus.bench.load.clients import Poller

__all__ = ["RETRY_NS", "Attempt", "KeptInFlight", "KeptSession"]

RETRY_NS: Final = 500_000_000
ATTEMPT_NS: Final = 5_000_000_000
DUP: Final = 0x08
_READ_BYTES: Final = 1 << 16


class KeptSession:
    """A subscriber's, at QoS 1 or 2: what it answers, and which messages are new."""

    def __init__(self) -> None:
        self._rest = b""
        self._last: dict[int, bytes] = {}
        """By packet id, how the last payload with it began; at QoS 2 until it is released."""

    def take(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Answers to the packets that `chunk` completes, and those of them that are new.

        Bad bytes raise a protocol error.
        """
        data = self._rest + chunk
        bounds = scan(data, MAX_FRAME_BYTES)
        self._rest = data[bounds[-1] :]
        owed, new = bytearray(), bytearray()
        for begin, end in pairwise(bounds):
            frame = data[begin:end]
            first = frame[0]
            if first & 0xF0 == PUBLISH and first & QOS:
                at = topic_bounds(frame)[1]
                owed += answers(publish_answer(first), frame[at : at + 1], frame[at + 1 : at + 2])
                if not self._is_repeated(frame, at):
                    new += frame
                continue
            if first == PUBREL:
                owed += answers(PUBCOMP, frame[2:3], frame[3:4])
                self._last.pop(int.from_bytes(frame[2:4]), None)
            new += frame
        return bytes(owed), bytes(new)

    def _is_repeated(self, frame: bytes, at: int) -> bool:
        packet_id, head = int.from_bytes(frame[at : at + 2]), frame[at + 2 : at + 2 + SIZE]
        repeated = bool(frame[0] & DUP) and self._last.get(packet_id) == head
        self._last[packet_id] = head
        return repeated

    def lost(self) -> None:
        """The connection broke; half a packet is none."""
        self._rest = b""


class KeptInFlight(InFlight):
    """A publisher's messages in flight, so that they can be sent again."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, tuple[int, int] | None] = {}
        """By packet id, in order: number and time of sending; None if a PUBREL is what is due."""

    def keep(self, ids: list[int], message: int, t_ns: int) -> None:
        """Those, of the messages from number `message` on, went out at `t_ns`."""
        for packet_id in ids:
            self._kept[packet_id] = (message, t_ns)
            message += 1

    def lost(self) -> None:
        """The connection broke; half a packet is none."""
        self._rest = b""

    def again(self, frame: Callable[[int, int, int], bytes]) -> Iterator[bytes]:
        """What is sent first on a new connection.

        `frame` makes the PUBLISH with a packet id, a number and a time.
        """
        for packet_id, kept in self._kept.items():
            if kept is None:
                yield bytes((PUBREL, 2)) + packet_id.to_bytes(2)
            else:
                again = bytearray(frame(packet_id, *kept))
                again[0] |= DUP
                yield bytes(again)

    def _take(self, kind: int, packets: bytes) -> bytes:
        owed = super()._take(kind, packets)
        if kind in (PUBACK, PUBREC, PUBCOMP):
            for high, low in zip(packets[2::4], packets[3::4], strict=True):
                packet_id = high << 8 | low
                if kind == PUBREC and packet_id in self._kept:
                    self._kept[packet_id] = None
                elif kind != PUBREC:
                    self._kept.pop(packet_id, None)
        return owed


class Attempt:
    """One attempt to be connected again; `ended` gets the socket and what came too, or None.

    The session is resumed if there is one: it was made with `clean` False.
    """

    def __init__(
        self,
        target: Target,
        client_id: str,
        *,
        clean: bool,
        poller: Poller,
        at_ns: int,
        ended: Callable[[socket.socket | None, bytes], None],
    ) -> None:
        self.deadline_ns = at_ns + ATTEMPT_NS
        self._poller = poller
        self._ended = ended
        self._heard = b""
        password = None if target.password is None else target.password.encode()
        self._said: bytes | None = encode(
            Connect(
                client_id,
                clean_start=clean,
                keep_alive=0,
                username=target.username,
                password=password,
                protocol_level=LEVEL,
            ),
            LEVEL,
        )
        family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
        self._sock: socket.socket | None = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.connect_ex((target.host, target.port))  # what becomes of it, `_ready` is told
        poller.watch(self._sock.fileno(), self._ready)
        poller.change(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def give_up(self) -> None:
        """It took too long, or nobody waits for it any more."""
        self._end(None)

    def _ready(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            if self._said is not None and events & select.EPOLLOUT:
                sock.sendall(self._said)  # some bytes into an empty buffer
                self._said = None
                self._poller.change(sock.fileno(), select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                chunk = sock.recv(_READ_BYTES)
                self._heard += chunk
                self._answered(gone=not chunk)
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError):
            self._end(None)

    def _answered(self, *, gone: bool) -> None:
        length = frame_length(self._heard, 0)
        if 0 < length <= len(self._heard):
            answer = decode(self._heard[:length], LEVEL)
            if isinstance(answer, ConnAck) and answer.reason_code == 0:
                self._end(self._heard[length:])
                return
            gone = True
        if gone:
            self._end(None)

    def _end(self, heard: bytes | None) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._poller.forget(sock.fileno())
        if heard is None:
            sock.close()
            self._ended(None, b"")
        else:
            self._ended(sock, heard)
