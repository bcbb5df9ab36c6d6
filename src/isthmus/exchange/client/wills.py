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

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from isthmus.exchange.client.client import Client, ClientWill
from isthmus.exchange.client.wills_journal import WillsJournal, read_journal
from isthmus.mqtt.packets import Publish, Will
from isthmus.mqtt.properties import NO_PROPERTIES

__all__ = ["DueWill", "WillTimers", "Wills"]

_OVERHEAD_BYTES: Final = 512


class WillTimers(Protocol):
    """Where wills with a delay wait; `Wills.on_timer(key)` is called when one has run out."""

    def set_timer(self, delay_s: float, key: Hashable) -> None: ...

    def cancel_timer(self, key: Hashable) -> object: ...


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


class Wills:
    """The wills of one node's local clients: events in, wills that are due out."""

    def __init__(self, timers: WillTimers, *, salt: int = 0, max_bytes: int = 64 << 20) -> None:
        """`salt` is the journal's."""
        self._timers = timers
        self._max_bytes = max_bytes
        self._armed: dict[int, Client] = {}  # by number
        self._waiting: dict[int, Client] = {}  # by number, which is the timer's key; oldest first
        self._next_number = 0
        self.journal = WillsJournal(salt)
        """What has to be written so that `restore` reads it."""
        self._bytes = self._waiting_bytes = 0
        self._sent = self._sent_early = self._not_remembered = 0

    def taken_up(self, client: Client, *, session_ended: bool) -> list[DueWill]:
        """Another connection of the client was accepted: what becomes of the earlier one's will."""
        earlier = client.will
        if earlier is None:
            return []
        stood = earlier.due_s is None
        self._forget(client, earlier)
        if session_ended or (stood and client.will_delay_s(earlier.will) == 0):
            return self._count([DueWill(client.name, earlier.will)])
        return []

    def arm(self, client: Client, will: Will) -> list[DueWill]:
        """The connection that was accepted has a will; others may have to make room for it."""
        size = _size(will, client.name)
        due = self._make_room(size)
        if self._bytes + size > self._max_bytes:
            self._not_remembered += 1
        else:
            kept = client.will = ClientWill(self._new_number(), will)
            self._armed[kept.number] = client
            self._bytes += size
            self.journal.changed(client, kept)
        return self._count(due)

    def discard(self, client: Client) -> None:
        """The client said that its will is not wanted [MQTT-3.14.4-3]."""
        if client.will is not None and client.will.due_s is None:
            self._forget(client, client.will)

    def lost(self, client: Client, now_s: float) -> list[DueWill]:
        """The connection ended in any other way, at either side of the node.

        Call it at every end: after a DISCONNECT or a takeover there is nothing left to do.
        """
        kept = client.will
        if kept is None or kept.due_s is not None:
            return []
        self._forget(client, kept)
        delay_s = client.will_delay_s(kept.will)
        if delay_s == 0:
            return self._count([DueWill(client.name, kept.will)])
        self._wait(client, kept.number, kept.will, delay_s, now_s)
        return []

    def on_timer(self, key: Hashable) -> list[DueWill]:
        """A timer has run out; one that was cancelled in the meantime does nothing."""
        client = self._waiting.get(key) if isinstance(key, int) else None
        if client is None or client.will is None:
            return []
        will = client.will.will
        self._forget(client, client.will)
        return self._count([DueWill(client.name, will)])

    def stop(self, now_s: float) -> list[DueWill]:
        """The node stops, and with it every connection.

        What has a delay is not sent: its clients may come back in time.  It is in the next
        `snapshot`.
        """
        due: list[DueWill] = []
        for client in list(self._armed.values()):
            due += self.lost(client, now_s)
        for key in self._waiting:
            self._timers.cancel_timer(key)
        return due

    # ---- over a restart ----

    def snapshot(self, now_s: float) -> bytes:
        """All that is remembered, for `restore`, at one go."""
        return b"".join(self.journal.rewriting(now_s))

    def restore(
        self, snapshot: bytes, now_s: float, client_of: Callable[[str], Client]
    ) -> list[DueWill]:
        """Go on after a restart, before the first connection: none survived it.

        The time that the node was away does not count towards a delay.  Raises `IsthmusError` if
        this is not what `snapshot` or the journal wrote.
        """
        due: list[DueWill] = []
        for client_id, will, delay_s in read_journal(snapshot):
            due += self._make_room(_size(will, client_id))
            if delay_s == 0 or self._bytes + _size(will, client_id) > self._max_bytes:
                due.append(DueWill(client_id, will))
            else:
                client = client_of(client_id)
                self.taken_up(client, session_ended=False)  # at most one of them is meant
                self._wait(client, self._new_number(), will, delay_s, now_s)
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

    def _make_room(self, size: int) -> list[DueWill]:
        early: list[DueWill] = []
        if self._bytes - self._waiting_bytes + size > self._max_bytes:
            return early  # it would not fit even without them
        while self._waiting and self._bytes + size > self._max_bytes:
            client = next(iter(self._waiting.values()))
            assert client.will is not None
            early.append(DueWill(client.name, client.will.will))
            self._forget(client, client.will)
        self._sent_early += len(early)
        return early

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _wait(self, client: Client, number: int, will: Will, delay_s: float, now_s: float) -> None:
        size = _size(will, client.name)
        kept = client.will = ClientWill(number, will, now_s + delay_s)
        self._waiting[number] = client
        self._bytes += size
        self._waiting_bytes += size
        self.journal.changed(client, kept)
        self._timers.set_timer(delay_s, number)

    def _forget(self, client: Client, kept: ClientWill) -> None:
        client.will = None
        size = _size(kept.will, client.name)
        self._bytes -= size
        if self._waiting.pop(kept.number, None) is not None:
            self._waiting_bytes -= size
            self._timers.cancel_timer(kept.number)
        self._armed.pop(kept.number, None)
        self.journal.over(kept.number)

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
