"""What is retained under some filters at one broker: read, and published at another.

For topics that move (`moving`).  A session of the node's own reads at QoS 2, so that it learns of
each message the QoS that it was published at, or does what a list says, `WINDOW` messages at a
time.  MQTT does not say when the last retained message has come: it counts as read when none has
come for `GRACE_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isthmus.exchange.broker.own_session import KEEP_ALIVE_S, OwnSession
from isthmus.exchange.session import Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packet_ids import free_packet_id
from isthmus.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import NO_PROPERTIES

if TYPE_CHECKING:
    from isthmus.exchange.broker.own_sessions import OwnSessions
    from isthmus.exchange.host import Cancellable

__all__ = ["Retained", "publish_retained", "read_retained"]

Retained = Mapping[str, Publish]
"""By topic."""

GRACE_S: Final = 0.5
SILENT_S: Final = 10.0
"""Without any progress; then the broker counts as one that does not answer."""
FILTERS_AT_ONCE: Final = 100
WINDOW: Final = 100
MAX_TRIES: Final = 2
MAX_BYTES: Final = 64 << 20
"""Of what is retained, as much is held in memory."""
MAX_BUFFER_BYTES: Final = 1 << 20


def read_retained(
    own: OwnSessions, filters: Sequence[str], told: Callable[[Retained | None, str], None]
) -> Callable[[], None]:
    """Tell all that is retained under `filters`, or what went wrong; how to give up is returned."""
    return _Reading(own, filters, told).begin()


def publish_retained(
    own: OwnSessions, messages: Iterable[Publish], told: Callable[[str], None]
) -> Callable[[], None]:
    """Publish, and tell when all are acknowledged, or what went wrong."""
    return _Publishing(own, messages, told).begin()


class _Work:
    """One session for one piece of work."""

    key = ":moves"

    def __init__(self, own: OwnSessions) -> None:
        self._own = own
        self._host = own.host
        self._session: _WorkSession | None = None
        self._timer: Cancellable | None = None
        self._packet_id = 0
        self._tries = 0
        self.closed = False

    def begin(self) -> Callable[[], None]:
        session = _WorkSession(self._own, self)
        self._host.connect_broker(session, self._not_connected)
        self.wait(SILENT_S)
        return self.close

    def _not_connected(self, cause: str) -> None:
        self.over(cause or "it cannot be reached")

    def opened(self, session: _WorkSession) -> None:
        self._session = session
        self.go_on()

    def lost(self, session: _WorkSession) -> None:
        """Once more, if it may be a broker that does not know MQTT 5."""
        if self.closed or self._session is not None or self._tries == MAX_TRIES:
            self.over("it closed the node's session")
            return
        self._tries += 1
        if self._own.level == session.level:
            self._own.greeting_fell(session.level)
        self.begin()

    def wait(self, silent_s: float) -> None:
        self._cancel_timer()
        self._timer = self._host.call_later(silent_s, self.waited)

    def waited(self) -> None:
        self.over("it does not answer")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def send(self, packet: Subscribe | Publish | PubAck | PubRec | PubRel) -> None:
        assert self._session is not None
        self._session.send(packet)

    def close(self) -> None:
        self.closed = True
        self._cancel_timer()
        if self._session is not None:
            self._session.send(Disconnect())
            self._session.close()

    def over(self, problem: str) -> None:
        if not self.closed:
            self.close()
            self.tell(problem)

    def tell(self, problem: str) -> None:
        raise NotImplementedError

    def go_on(self) -> None:
        raise NotImplementedError

    def packet(self, packet: object) -> None:
        raise NotImplementedError


class _Reading(_Work):
    def __init__(
        self, own: OwnSessions, filters: Sequence[str], told: Callable[[Retained | None, str], None]
    ) -> None:
        super().__init__(own)
        self._filters = list(dict.fromkeys(filters))
        self._told = told
        self._asked = 0
        """How many of the filters."""
        self._found: dict[str, Publish] = {}
        self._bytes = 0

    def tell(self, problem: str) -> None:
        self._told(None if problem else self._found, problem)

    def go_on(self) -> None:
        """Ask for the next filters."""
        some = self._filters[self._asked : self._asked + FILTERS_AT_ONCE]
        if not some:
            self.wait(GRACE_S)
            return
        self._asked += len(some)
        self._packet_id = free_packet_id(self._packet_id, ())
        wanted = tuple(Subscription(each, qos=2) for each in some)
        self.send(Subscribe(self._packet_id, wanted))
        self.wait(SILENT_S)

    def waited(self) -> None:
        self.over("" if self._asked == len(self._filters) else "it does not answer")

    def packet(self, packet: object) -> None:
        match packet:
            case Publish():
                self._publish(packet)
            case PubRel(packet_id=packet_id):
                assert self._session is not None
                self._session.send(PubComp(packet_id))
            case SubAck(reason_codes=codes):
                if max(codes, default=0) >= 0x80:
                    self.over("it does not let the node read what is retained")
                else:
                    self.go_on()

    def _publish(self, packet: Publish) -> None:
        if packet.qos:
            self.send((PubAck, PubRec)[packet.qos - 1](packet.packet_id))
        if not packet.retain:
            return
        before = self._found.get(packet.topic)
        self._found[packet.topic] = packet
        self._bytes += len(packet.payload) - (len(before.payload) if before is not None else 0)
        if self._bytes > MAX_BYTES:
            self.over(f"more than {MAX_BYTES >> 20} MiB are retained there")
        elif self._asked == len(self._filters):
            self.wait(GRACE_S)


class _Publishing(_Work):
    def __init__(
        self, own: OwnSessions, messages: Iterable[Publish], told: Callable[[str], None]
    ) -> None:
        super().__init__(own)
        self._waiting = deque(messages)
        self._under_way: dict[int, Publish] = {}
        self._told = told

    def begin(self) -> Callable[[], None]:
        if self._waiting:
            return super().begin()
        self._host.call_soon(lambda: self.over(""))
        return self.close

    def tell(self, problem: str) -> None:
        self._told(problem)

    def go_on(self) -> None:
        while self._waiting and len(self._under_way) < WINDOW:
            message = self._waiting.popleft()
            self._packet_id = free_packet_id(self._packet_id, self._under_way)
            self._under_way[self._packet_id] = message
            assert self._session is not None
            self.send(
                replace(
                    message,
                    packet_id=self._packet_id,
                    qos=max(1, message.qos),
                    dup=False,
                    retain=True,
                    properties=message.properties if self._session.level == 5 else NO_PROPERTIES,
                )
            )
        if self._under_way:
            self.wait(SILENT_S)
        else:
            self.over("")

    def packet(self, packet: object) -> None:
        match packet:
            case PubRec(packet_id=packet_id, reason_code=code) if code < 0x80:
                self.send(PubRel(packet_id))
                self.wait(SILENT_S)
            case PubAck() | PubRec() | PubComp():
                message = self._under_way.pop(packet.packet_id, None)
                if packet.reason_code >= 0x80 and message is not None:
                    self.over(
                        f"it refuses what is retained on {message.topic!r} "
                        f"(0x{packet.reason_code:02x})"
                    )
                elif message is not None:
                    self.go_on()


class _WorkSession(OwnSession):
    __slots__ = ("_work",)

    def __init__(self, own: OwnSessions, work: _Work) -> None:
        super().__init__(own)
        self._work = work

    def connection_made(self, wire: Wire) -> None:
        if self.begin(wire, self._work, MAX_BUFFER_BYTES):
            self._timer = self.host.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def _keep_alive(self) -> None:
        self.wire.write(b"\xc0\x00")
        self._timer = self.host.call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    def _frame(self, frame: bytes) -> None:
        if self._work.closed:
            return
        if not self.greeting:
            self._work.packet(decode(frame, self.level))
            return
        connack = self._connack(frame)
        if connack is not None and connack.reason_code == 0:
            self.greeting = False
            self._work.opened(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._work.lost(self)
