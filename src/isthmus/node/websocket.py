"""MQTT over WebSocket towards clients ([MQTT-6.0.0-1] to [MQTT-6.0.0-4]).

The protocol itself is the `websockets` library's, used without its I/O: bytes in, events and
bytes out.  :class:`WebSocketServerSide` is the connection's protocol towards the event loop and,
once the handshake is done, the wire of an ordinary client session, which does not know the
difference.  Packets may be spread over frames in any way; each write of the session is one frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from isthmus.config import Limits
from isthmus.logs import get_logger
from isthmus.node.session import Session, SessionStatus

__all__ = ["WebSocketServerSide"]

MQTT_SUBPROTOCOL = Subprotocol("mqtt")
CLOSE_NORMAL = 1000
CLOSE_NOT_BINARY = 1003

log = get_logger(__name__)


class WebSocketServerSide(asyncio.Protocol):
    """A WebSocket connection; also the wire of the client session that it carries."""

    __slots__ = (
        "_limits",
        "_make_session",
        "_protocol",
        "_session",
        "_timer",
        "_transport",
    )

    _transport: asyncio.Transport

    def __init__(self, make_session: Callable[[], Session], limits: Limits) -> None:
        self._make_session = make_session
        self._limits = limits
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._protocol = ServerProtocol(
            subprotocols=[MQTT_SUBPROTOCOL], max_size=limits.packet_bytes + limits.buffer_bytes
        )

    # ---- towards the event loop ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.connect_timeout_s, self._handshake_timed_out)

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._advance()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
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
                peer=str(self._transport.get_extra_info("peername")),
                cause=str(self._protocol.handshake_exc),
            )
            return
        self._cancel_timer()
        self._session = self._make_session()
        self._session.connection_made(self)  # type: ignore[arg-type]

    def _frame_received(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(CLOSE_NOT_BINARY, "MQTT needs binary frames")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            session = self._session
            if session is not None and frame.data and session.status is SessionStatus.ESTABLISHED:
                session.data_received(bytes(frame.data))

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
        # The peer's close frame ends it (`close_expected`), or this does.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.drain_s, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)
