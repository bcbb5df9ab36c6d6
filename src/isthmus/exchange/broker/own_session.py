"""One connection of the node's own with its broker: it says CONNECT, and is given whole packets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from isthmus.errors import ProtocolError
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import Session, SessionStatus, Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import ConnAck, Packet
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.broker.own_sessions import OwnSessions

__all__ = ["KEEP_ALIVE_S", "OwnSession", "Owner"]

KEEP_ALIVE_S = 30

_CONNACK = 0x20
_UNSUPPORTED = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


class Owner(Protocol):
    """Who opens such sessions, one after the other."""

    key: str
    closed: bool


class OwnSession(Session):
    """Until its CONNACK has come it is `greeting`."""

    __slots__ = ("_buffer", "_own", "_timer", "greeting", "level")

    def __init__(self, own: OwnSessions) -> None:
        super().__init__(own.host, own.linger_s)
        self._own = own
        self._buffer = FrameBuffer()
        self._timer: Cancellable | None = None
        self.greeting = True
        self.level = own.level

    def begin(self, wire: Wire, owner: Owner, buffer_bytes: int) -> bool:
        """The connection stands: say who is there, if it is still wanted."""
        self.established(wire, buffer_bytes)
        if owner.closed:
            self.greeting = False  # nothing is to be concluded from how it ends
            wire.abort()
            return False
        self.level = self._own.level
        self.send(self._own.connect(owner.key, KEEP_ALIVE_S, self.level))
        return True

    def send(self, packet: Packet) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            self.wire.write(encode(packet, self.level))

    def data_received(self, data: bytes) -> None:
        if not (data := self._buffer.push(data)):
            return
        try:
            offsets = scan(data)
            self._frames(data, offsets)
            self._buffer.keep(data[offsets[-1] :])
        except ProtocolError as error:
            self.host.log("warning", "broker sent bad bytes", session="own", detail=str(error))
            self.close()

    def _frames(self, data: bytes, offsets: Sequence[int]) -> None:
        for start, stop in pairwise(offsets):
            self._frame(data[start:stop])

    @abstractmethod
    def _frame(self, frame: bytes) -> None: ...

    def _connack(self, frame: bytes) -> ConnAck | None:
        """What was answered to CONNECT, if that can be read; the next one may be of MQTT 3.1.1."""
        connack = None
        try:
            packet = decode(frame, self.level)
            connack = packet if isinstance(packet, ConnAck) else None
        except ProtocolError:
            pass  # a 3.1.1 broker's answer to MQTT 5
        older = connack is None or connack.reason_code == _UNSUPPORTED
        if older and self.level == 5 and frame[0] == _CONNACK:
            self._own.says_it_is_older()
        return connack

    def gone(self) -> None:
        super().gone()
        if self._timer is not None:
            self._timer.cancel()
