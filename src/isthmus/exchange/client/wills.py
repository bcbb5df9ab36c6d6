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
host keeps anything; MQTT 5 §3.1.2.5 allows them to be late in this case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from isthmus.errors import IsthmusError
from isthmus.exchange.client.client import Client, ClientWill
from isthmus.exchange.client.wills_journal import NAME, VERSION, WillsJournal, read_journal
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.journal import Journal
from isthmus.mqtt.packets import Publish, Will
from isthmus.mqtt.properties import NO_PROPERTIES

__all__ = ["NAME", "RESTORED_AFTER_S", "WRITE_S", "DueWill", "Wills"]

WRITE_S: Final = 1.0
RESTORED_AFTER_S: Final = 5.0

_OVERHEAD_BYTES: Final = 512


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
    """The wills of one node's local clients; `due` is called with each when it is."""

    def __init__(
        self, host: Host, due: Callable[[DueWill], None], *, max_bytes: int = 64 << 20
    ) -> None:
        self._host = host
        self._due = due
        self._max_bytes = max_bytes
        self._armed: dict[int, Client] = {}  # by number
        self._waiting: dict[int, Client] = {}  # by number, the oldest first
        self._next_number = 0
        self._book = WillsJournal(int.from_bytes(host.token_bytes(4)))
        self._journal = Journal(
            host,
            NAME,
            drain=lambda: self._book.drain(host.now()),
            snapshot=lambda: self._book.rewriting(host.now()),
        )
        self._restored: dict[int, DueWill] = {}
        """Those of the node's last life, by number; they wait until the neighbors are back."""
        self._restoring: Cancellable | None = None
        self._bytes = self._waiting_bytes = 0
        self._sent = self._sent_early = self._not_remembered = 0

    def taken_up(self, client: Client, *, session_ended: bool) -> None:
        """Another connection of the client was accepted: what becomes of the earlier one's will."""
        earlier = client.will
        if earlier is not None:
            stood = earlier.due_s is None
            self._forget(client, earlier)
            if session_ended or (stood and client.will_delay_s(earlier.will) == 0):
                self._send(DueWill(client.name, earlier.will))

    def arm(self, client: Client, will: Will) -> None:
        """The connection that was accepted has a will; others may have to make room for it."""
        size = _size(will, client.name)
        self._make_room(size)
        if self._bytes + size > self._max_bytes:
            self._not_remembered += 1
            return
        self._bytes += size
        self._next_number += 1
        self._armed[self._next_number] = client
        client.will = ClientWill(self._next_number, will)
        self._book.changed(client, client.will)
        self._write_soon()

    def discard(self, client: Client) -> None:
        """The client said that its will is not wanted [MQTT-3.14.4-3]."""
        if client.will is not None and client.will.due_s is None:
            self._forget(client, client.will)

    def lost(self, client: Client) -> None:
        """The connection ended in any other way, at either side of the node.

        Call it at every end: after a DISCONNECT or a takeover there is nothing left to do.
        """
        kept = client.will
        if kept is not None and kept.due_s is None:
            self._forget(client, kept)
            if delay_s := client.will_delay_s(kept.will):
                self._wait(client, kept.number, kept.will, delay_s)
            else:
                self._send(DueWill(client.name, kept.will))

    # ---- over a restart ----

    def start(self, client_of: Callable[[str], Client]) -> None:
        """Go on after a restart, before the first connection: none survived it.

        The time that the node was away does not count towards a delay.
        """
        kept = self._host.load_state(NAME, VERSION)
        try:
            wills = read_journal(kept or b"")
        except IsthmusError as error:
            self._host.log("error", "kept wills cannot be read", cause=str(error))
            return
        for client_id, will, delay_s in wills:
            if delay_s == 0 or self._bytes + _size(will, client_id) > self._max_bytes:
                self._next_number += 1
                self._restored[self._next_number] = DueWill(client_id, will)
                kept_will = ClientWill(self._next_number, will, self._host.now())
                self._book.changed(Client(client_id or "\0"), kept_will)
            else:
                client = client_of(client_id)
                self.taken_up(client, session_ended=False)  # at most one of them is meant
                self._next_number += 1
                self._wait(client, self._next_number, will, delay_s)
        if self._restored:
            self._write_soon()
            self._restoring = self._host.call_later(RESTORED_AFTER_S, self._send_restored)

    def _send_restored(self) -> None:
        restored, self._restored = self._restored, {}
        for number, due in restored.items():
            self._book.over(number)
            self._send(due)
        self._write_soon()

    def stop(self) -> None:
        """The node stops, and with it every connection.

        What has a delay is not sent: its clients may come back in time.  It is kept.
        """
        if self._restoring is not None:
            self._restoring.cancel()
        self._send_restored()
        for client in list(self._armed.values()):
            self.lost(client)
        for client in self._waiting.values():
            if client.will is not None and client.will.timer is not None:
                client.will.timer.cancel()
        self.abandon()
        if self._host.keeps_state:
            self._host.save_state(NAME, b"".join(self._book.rewriting(self._host.now())))

    def abandon(self) -> None:
        """Write nothing more."""
        self._journal.abandon()

    def state_lost(self) -> None:
        """Not all of what was appended could be written."""
        self._journal.lost()

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

    def _make_room(self, size: int) -> None:
        if self._bytes - self._waiting_bytes + size > self._max_bytes:
            return  # it would not fit even without them
        while self._waiting and self._bytes + size > self._max_bytes:
            self._sent_early += 1
            self._over(next(iter(self._waiting.values())))

    def _wait(self, client: Client, number: int, will: Will, delay_s: float) -> None:
        size = _size(will, client.name)
        timer = self._host.call_later(delay_s, lambda: self._over(client))
        client.will = ClientWill(number, will, self._host.now() + delay_s, timer)
        self._waiting[number] = client
        self._bytes += size
        self._waiting_bytes += size
        self._book.changed(client, client.will)
        self._write_soon()

    def _over(self, client: Client) -> None:
        """It does not wait any longer."""
        kept = client.will
        assert kept is not None
        self._forget(client, kept)
        self._send(DueWill(client.name, kept.will))

    def _forget(self, client: Client, kept: ClientWill) -> None:
        client.will = None
        size = _size(kept.will, client.name)
        self._bytes -= size
        self._armed.pop(kept.number, None)
        if self._waiting.pop(kept.number, None) is not None:
            self._waiting_bytes -= size
        if kept.timer is not None:
            kept.timer.cancel()
        self._book.over(kept.number)
        self._write_soon()

    def _write_soon(self) -> None:
        self._journal.changed(WRITE_S)

    def _send(self, due: DueWill) -> None:
        self._sent += 1
        self._due(due)


def _size(will: Will, client_id: str) -> int:
    """About what remembering a will costs."""
    size = _OVERHEAD_BYTES + len(will.payload) + 2 * len(will.topic) + len(client_id)
    properties = will.properties
    if properties is not NO_PROPERTIES:
        size += len(properties.content_type or "") + len(properties.response_topic or "")
        size += len(properties.correlation_data or b"")
        size += sum(128 + len(name) + len(value) for name, value in properties.user_properties)
    return size
