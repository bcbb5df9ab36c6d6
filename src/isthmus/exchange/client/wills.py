"""When a local client's will is to be sent to the neighbors (ILDM §4.5.3).

The local broker publishes the will to its own clients, and nothing in that PUBLISH says that it is
one.  So the node remembers the will of each CONNECT that the broker accepted, and decides by the
same rules as the broker when it is due:

    connected ──DISCONNECT 0x00──▶ forgotten                                     [MQTT-3.14.4-3]
        └──any other end──▶ waits for min(will delay, session expiry), then due  [MQTT-3.1.2-8]
                                 └──CONNECT to the same session──▶ forgotten     [MQTT-3.1.3-9]

The delay ends early when the session does: by a CONNECT with Clean Start 1, or at once if the
session expiry interval is 0.  A CONNECT that takes a client id over from a connection that still
stands is an end of that connection, so the old will is due unless it has a delay and its session
goes on (MQTT 5 §3.1.3.2.2); it makes no difference whether the node first sees the old connection
end or the new one begin.  In MQTT 3.1.1 there is no delay: every end but a DISCONNECT is final.

Brokers differ here and some break these rules; the neighbors get what the specification says.

Invariants: a will is due at most once; only sessions with a will are remembered, and together they
take no more than `max_bytes`.  When that is full, wills that are waiting are due early, the longest
waiting first, because late or never is worse for who relies on them; if this does not suffice, the
new will is not remembered, which `status` counts.

Departures from the paper: MQTT 5 is covered.  Wills survive a stop or a crash of the node if the
surroundings keep what `journal` or `snapshot` says; MQTT 5 §3.1.2.5 allows them to be late in this
case.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from isthmus.exchange.client.wills_journal import WillsJournal, read_journal
from isthmus.mqtt.packets import Connect, Publish, Will
from isthmus.mqtt.properties import NO_PROPERTIES

__all__ = ["DueWill", "WillTimers", "Wills"]

_OVERHEAD_BYTES: Final = 512


class WillTimers(Protocol):
    """Where wills with a delay wait; `Wills.on_timer(key)` is called when one has run out."""

    def set_timer(self, delay_s: float, key: Hashable) -> None: ...

    def cancel_timer(self, key: Hashable) -> None: ...


@dataclass(frozen=True, slots=True)
class DueWill:
    """A will that is to be sent to the neighbors now."""

    client_id: str
    will: Will

    def publish(self) -> Publish:
        """As a message; the delay is no property of a PUBLISH."""
        will = self.will
        properties = will.properties
        if properties.will_delay_interval is not None:
            properties = replace(properties, will_delay_interval=None)
        return Publish(
            topic=will.topic,
            payload=will.payload,
            qos=will.qos,
            retain=will.retain,
            properties=properties,
        )


@dataclass(slots=True)
class _Armed:
    """The will of a connection that stands."""

    number: int
    client_id: str
    will: Will
    session_expiry_s: int
    """0xFFFFFFFF, which is longer than any delay, for a session that does not expire."""
    may_change_expiry: bool

    def delay_s(self) -> int:
        """Until the will delay has passed or the session ends, whichever happens first."""
        return min(self.will.properties.will_delay_interval or 0, self.session_expiry_s)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The will of a connection that ended, before its delay is over."""

    client_id: str
    will: Will
    due_s: float


class Wills:
    """The wills of one node's local clients: events in, wills that are due out."""

    def __init__(self, timers: WillTimers, *, salt: int = 0, max_bytes: int = 64 << 20) -> None:
        """`salt` is the journal's."""
        self._timers = timers
        self._max_bytes = max_bytes
        self._armed: dict[int, _Armed] = {}
        self._connections: dict[str, int] = {}  # client id → session id, of those armed
        self._waiting: dict[tuple[str, int], _Waiting] = {}  # by timer key, the oldest first
        self._waiting_keys: dict[str, tuple[str, int]] = {}  # client id → timer key
        self._next_number = 0
        self.journal = WillsJournal(salt)
        """What has to be written so that `restore` reads it."""
        self._bytes = self._waiting_bytes = 0
        self._sent = self._sent_early = self._not_remembered = 0

    def connected(
        self,
        session_id: int,
        connect: Connect,
        client_id: str,
        *,
        session_expiry: int | None = None,
        session_present: bool | None = None,
    ) -> list[DueWill]:
        """The broker accepted `connect`; never call it for a CONNECT that was refused.

        `client_id` is the one that the broker assigned if the client left it open, or empty where
        that stays unknown (MQTT 3.1.1), and then no other connection can be meant by it.
        `session_expiry` and `session_present` are those of the CONNACK, where it has them.  A
        broker that says that there is no session has ended it, which makes a waiting will due;
        leave it out for brokers that are known to say so wrongly.
        """
        if session_id in self._armed:
            raise ValueError(f"session {session_id} is connected already")
        ended = connect.clean_start or session_present is False
        due = self._end_earlier(client_id, session_ended=ended)
        if connect.will is None:
            return self._count(due)
        size = _size(connect.will, client_id)
        due += self._make_room(size)
        if self._bytes + size > self._max_bytes:
            self._not_remembered += 1
            return self._count(due)
        # Absent is 0 (MQTT 5 §3.1.2.11.2); for 3.1.1, which has no delay, it does not matter.
        requested = connect.properties.session_expiry_interval or 0
        armed = self._armed[session_id] = _Armed(
            self._new_number(),
            client_id,
            connect.will,
            requested if session_expiry is None else session_expiry,
            requested != 0,
        )
        self.journal.armed(armed.number, client_id, armed.will, armed.delay_s())
        if client_id:
            self._connections[client_id] = session_id
        self._bytes += size
        return self._count(due)

    def disconnected_cleanly(
        self,
        session_id: int,
        now_s: float,
        *,
        with_will: bool = False,
        session_expiry: int | None = None,
    ) -> list[DueWill]:
        """The client sent a DISCONNECT.

        `with_will` for every reason code but 0x00: 0x04 asks for the will, and the others do not
        discard it either [MQTT-3.14.4-3].  `session_expiry` is the DISCONNECT's property, if any.
        """
        armed = self._armed.get(session_id)
        if armed is None:
            return []
        if session_expiry is not None:
            if session_expiry and not armed.may_change_expiry:
                # Not a valid DISCONNECT (MQTT 5 §3.14.2.2.2): the broker ends the connection.
                return self.lost(session_id, now_s)
            armed.session_expiry_s = session_expiry
        if with_will:
            return self.lost(session_id, now_s)
        self._disarm(session_id)
        return []

    def lost(self, session_id: int, now_s: float) -> list[DueWill]:
        """The connection ended in any other way, at either side of the node.

        Call it at every end: after a DISCONNECT or a takeover there is nothing left to do.
        """
        if session_id not in self._armed:
            return []
        armed = self._disarm(session_id)
        delay_s = armed.delay_s()
        if delay_s == 0:
            return self._count([DueWill(armed.client_id, armed.will)])
        self._wait(armed.number, armed.client_id, armed.will, delay_s, now_s)
        return []

    def on_timer(self, key: Hashable) -> list[DueWill]:
        """A timer has run out; one that was cancelled in the meantime does nothing."""
        waiting = self._forget_waiting(key)
        return [] if waiting is None else self._count([DueWill(waiting.client_id, waiting.will)])

    def stop(self, now_s: float) -> list[DueWill]:
        """The node stops, and with it every connection.

        What has a delay is not sent: its clients may come back in time.  It is in the next
        `snapshot`.
        """
        due: list[DueWill] = []
        for session_id in list(self._armed):
            due += self.lost(session_id, now_s)
        for key in self._waiting:
            self._timers.cancel_timer(key)
        return due

    # ---- over a restart ----

    def snapshot(self, now_s: float) -> bytes:
        """All that is remembered, for `restore`, at one go."""
        return b"".join(self.journal.rewriting(now_s))

    def restore(self, snapshot: bytes, now_s: float) -> list[DueWill]:
        """Go on after a restart, before the first `connected`: no connection survived it.

        The time that the node was away does not count towards a delay.  Raises `IsthmusError` if
        this is not what `snapshot` or the journal wrote.
        """
        due: list[DueWill] = []
        for client_id, will, delay_s in read_journal(snapshot):
            due += self._make_room(_size(will, client_id))
            if delay_s == 0 or self._bytes + _size(will, client_id) > self._max_bytes:
                due.append(DueWill(client_id, will))
            else:
                self._wait(self._new_number(), client_id, will, delay_s, now_s)
        return self._count(due)

    def status(self) -> dict[str, object]:
        """JSON-able facts for people."""
        return {
            "armed": len(self._armed),
            "waiting": len(self._waiting),
            "bytes": self._bytes,
            "max_bytes": self._max_bytes,
            "sent": self._sent,
            "sent_early": self._sent_early,
            "not_remembered": self._not_remembered,
        }

    # ---- inside ----

    def _end_earlier(self, client_id: str, *, session_ended: bool) -> list[DueWill]:
        """A new connection uses the client id: what becomes of the earlier one's will."""
        earlier: Will | None = None
        due = session_ended
        if client_id in self._connections:
            armed = self._disarm(self._connections[client_id])
            earlier = armed.will
            due = due or armed.delay_s() == 0
        elif client_id in self._waiting_keys:
            key = self._waiting_keys[client_id]
            waiting = self._forget_waiting(key)
            self._timers.cancel_timer(key)
            earlier = waiting.will if waiting is not None else None
        return [DueWill(client_id, earlier)] if due and earlier is not None else []

    def _make_room(self, size: int) -> list[DueWill]:
        early: list[DueWill] = []
        if self._bytes - self._waiting_bytes + size > self._max_bytes:
            return early  # it would not fit even without them
        while self._waiting and self._bytes + size > self._max_bytes:
            key = next(iter(self._waiting))
            self._timers.cancel_timer(key)
            waiting = self._waiting[key]
            self._forget_waiting(key)
            early.append(DueWill(waiting.client_id, waiting.will))
        self._sent_early += len(early)
        return early

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _wait(self, number: int, client_id: str, will: Will, delay_s: float, now_s: float) -> None:
        key = ("will", number)
        self.journal.waits(number, client_id, will, now_s + delay_s)
        self._waiting[key] = _Waiting(client_id, will, now_s + delay_s)
        if client_id:
            self._waiting_keys[client_id] = key
        self._bytes += _size(will, client_id)
        self._waiting_bytes += _size(will, client_id)
        self._timers.set_timer(delay_s, key)

    def _forget_waiting(self, key: Hashable) -> _Waiting | None:
        if not isinstance(key, tuple):
            return None
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self.journal.over(key[1])
            self._bytes -= _size(waiting.will, waiting.client_id)
            self._waiting_bytes -= _size(waiting.will, waiting.client_id)
            if self._waiting_keys.get(waiting.client_id) == key:
                del self._waiting_keys[waiting.client_id]
        return waiting

    def _disarm(self, session_id: int) -> _Armed:
        armed = self._armed.pop(session_id)
        self.journal.over(armed.number)
        self._bytes -= _size(armed.will, armed.client_id)
        if self._connections.get(armed.client_id) == session_id:
            del self._connections[armed.client_id]
        return armed

    def _count(self, due: list[DueWill]) -> list[DueWill]:
        self._sent += len(due)
        return due


def _size(will: Will, client_id: str) -> int:
    """About what remembering a will costs."""
    size = _OVERHEAD_BYTES + len(will.payload) + 2 * len(will.topic) + len(client_id)
    properties = will.properties
    if properties is not NO_PROPERTIES:
        size += len(properties.content_type or "") + len(properties.response_topic or "")
        size += len(properties.correlation_data or b"")
        size += sum(128 + len(name) + len(value) for name, value in properties.user_properties)
    return size
