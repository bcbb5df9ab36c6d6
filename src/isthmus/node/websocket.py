"""MQTT over WebSocket towards clients ([MQTT-6.0.0-1] to [MQTT-6.0.0-4]).

The protocol itself is the `websockets` library's, used without its I/O: bytes in, events and
bytes out.  :class:`WebSocketServerSide` is the connection's protocol towards the event loop and,
once the handshake is done, the wire of an ordinary client session, which does not know the
difference.  Packets may be spread over frames in any way; each write of the session is one frame.

Invariants: bytes are given to the library `PIECE_BYTES` at a time and for one slice at a time
(`isthmus.exchange.turns`), because tiny frames cost it far more than their bytes; reading stops
meanwhile.  A frame is complete or counted as pending by the session, and the first one, which has
the CONNECT, is not much longer than a CONNECT may be.  Who pings and does not read the answers is
cut off when these fill the buffer twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from isthmus.exchange.client.input import ClientInput
from isthmus.exchange.client.life import ClientState
from isthmus.exchange.session import SessionStatus, remote_name
from isthmus.logs import get_logger

if TYPE_CHECKING:
    from isthmus.exchange.client.relay import Relay

__all__ = ["WebSocketServerSide"]

MQTT_SUBPROTOCOL = Subprotocol("mqtt")
PIECE_BYTES = 2048
CLOSE_NORMAL = 1000
CLOSE_NOT_BINARY = 1003

log = get_logger(__name__)


class WebSocketServerSide(asyncio.Protocol):
    """A WebSocket connection; also the wire of the client session that it carries."""

    __slots__ = (
        "_limits",
        "_lost",
        "_make_session",
        "_protocol",
        "_reads",
        "_relay",
        "_session",
        "_timer",
        "_transport",
        "_turns",
        "_unread",
    )

    _transport: asyncio.Transport

    def __init__(self, relay: Relay, make_session: Callable[[], ClientInput]) -> None:
        self._make_session = make_session
        self._relay = relay
        self._limits = limits = relay.limits
        self._turns = relay.turns
        self._unread = b""
        """Bytes that wait for their turn; reading has stopped."""
        self._reads = True
        """Whether the session wants to read."""
        self._lost: tuple[Exception | None] | None = None
        """The connection ended before everything was read."""
        self._session: ClientInput | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._protocol = ServerProtocol(
            subprotocols=[MQTT_SUBPROTOCOL],
            max_size=min(limits.connect_bytes, limits.packet_bytes) + limits.buffer_bytes,
        )

    # ---- towards the event loop ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if not self._relay.knocked(self):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.connect_timeout_s, self._handshake_timed_out)

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread += data
        elif len(data) <= PIECE_BYTES:
            self._feed(data)
        else:
            self._unread = data
            self.go_on(self._turns.slice_ends_s())

    def go_on(self, ends_s: float) -> None:
        """Give the library what is unread, until the slice is over."""
        unread, at = self._unread, 0
        while at < len(unread):
            self._feed(unread[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            if at < len(unread) and perf_counter() > ends_s:
                self._unread = unread[at:]
                if not self._transport.is_closing():
                    self._transport.pause_reading()
                self._turns.wait(self)
                return
        self._unread = b""
        if self._lost is not None:
            self.connection_lost(*self._lost)
        elif self._reads and not self._transport.is_closing():
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._advance()
        if self._session is not None:
            self._session.carrier_holds(len(self._protocol.reader.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unread:
            self._lost = (exc,)
            return
        self._cancel_timer()
        self._relay.entrance.leave(self)
        if self._session is not None:
            self._session.connection_lost(exc)
            self._session = None

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    def _handshake_timed_out(self) -> None:
        self._timer = None
        if self._session is None:
            self._transport.abort()

    def cut_off(self) -> None:
        """Its handshake is not over, and somebody else needs the room."""
        self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self) -> None:
        """Act on what the protocol found in the bytes, then send what it has to say."""
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    self._protocol.fail(CLOSE_NOT_BINARY, "MQTT needs binary frames")
                    break  # what came behind it in the same piece is read already
                self._frame_received(event)
        self._flush()
        if self._protocol.close_expected():
            self._transport.close()

    def _shake_hands(self, request: Request) -> None:
        response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._flush()
        if self._protocol.state is not OPEN:
            log.warning(
                "websocket refused",
                remote=self._remote(),
                cause=str(self._protocol.handshake_exc),
            )
            return
        self._cancel_timer()
        self._relay.entrance.leave(self)
        self._session = self._make_session()
        self._session.connection_made(self)

    def _frame_received(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            session = self._session
            if session is not None and frame.data and session.status is SessionStatus.ESTABLISHED:
                session.data_received(bytes(frame.data))
                if session.state is not ClientState.CONNECT:
                    self._protocol.max_size = self._limits.packet_bytes + self._limits.buffer_bytes
        elif frame.opcode is Opcode.PING:
            waiting = self._transport.get_write_buffer_size()
            if waiting > 2 * self._limits.buffer_bytes:
                log.warning(
                    "websocket cut off", remote=self._remote(), cause="pings, and never reads"
                )
                self._transport.abort()

    def _remote(self) -> str:
        return remote_name(self._transport.get_extra_info("peername"))

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            elif self._transport.can_write_eof() and not self._transport.is_closing():
                self._transport.write_eof()

    # ---- towards the session: a Wire -----------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_binary(data)
            self._flush()

    def close(self) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_close(CLOSE_NORMAL)
            self._flush()
        # The client's close frame ends it (`close_expected`), or this does.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.drain_s, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._reads = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reads = True
        if not self._unread:
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)
