"""Retained messages on their way: the store, the neighbours and the local broker.

    local client's  ──▶ stamped with a version ──▶ every neighbour
    neighbour's     ──▶ newer than what is here?  yes: broker with retain, other neighbours
                                                  no: broker without retain; the very same: dropped
    neighbour joins ──▶ the two stores are compared, and each sends what the other lacks

The store is kept over restarts in a journal that is appended to and rewritten now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from isthmus.errors import IsthmusError
from isthmus.exchange.host import Host
from isthmus.exchange.link import Link
from isthmus.exchange.message import Message
from isthmus.exchange.retained import RetainedLimits, RetainedStore
from isthmus.exchange.retained_sync import RetainedSync
from isthmus.exchange.retained_values import Retained, Version
from isthmus.exchange.timers import Timers
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["RETAINED_TOPIC", "Retention"]

RETAINED_TOPIC = "$isthmus/retained"
JOURNAL_S = 0.5
PUMP_S = 0.02
RESYNC_S = 300.0
REWRITE_BYTES = 16 << 20
MAX_WAITING_BYTES = 1 << 20


class Retention:
    """What a node does about retained messages; `news` is called with what a sync brought."""

    def __init__(
        self,
        host: Host,
        node_id: str,
        news: Callable[[Message, Link], None],
        limits: RetainedLimits | None = None,
    ) -> None:
        self._host = host
        self._node_id = node_id
        self._news = news
        self.store = RetainedStore(node_id, limits, journal=host.keeps_state)
        self._syncs: dict[Link, RetainedSync] = {}
        self._timers = Timers(host, self._timer_fired)
        self._appended = 0

    def start(self) -> None:
        if journal := self._host.load_state("retained"):
            self._load(journal)
        if self._host.keeps_state:
            self._timers.set_timer(JOURNAL_S, "journal")
        self._timers.set_timer(RESYNC_S, "resync")

    def _load(self, journal: bytes) -> None:
        try:
            good = self.store.load(journal, self._host.wall_ms())
        except IsthmusError as error:
            self._host.log("error", "kept retained messages cannot be read", cause=str(error))
            return
        if good < len(journal):
            self._host.log("warning", "retained journal: torn end cut off", at=good)
        self._rewrite()

    def stop(self) -> None:
        self._timers.cancel_all()
        self._write()

    # ---- messages ------------------------------------------------------------------------

    def published(self, message: Message) -> None:
        """A local client's retained message: give it its version."""
        retained = self.store.record_local(
            message.topic,
            message.payload,
            properties=message.properties,
            qos=message.qos,
            expiry_s=message.expiry_s,
            now_ms=self._host.wall_ms(),
        )
        message.version = str(retained.version)

    def arrived(self, message: Message) -> Message | None:
        """A neighbour's retained message: how it goes to the local broker, None if it is here."""
        version = Version.parse(message.version)
        if self.store.version(message.topic) == version:
            return None
        retained = Retained(
            message.topic,
            message.payload,
            message.properties,
            message.qos,
            version,
            message.expiry_s,
        )
        if self.store.offer(retained, self._host.wall_ms()):
            return message
        return Message(
            message.topic,
            message.payload,
            qos=message.qos,
            properties=message.properties,
            expiry_s=message.expiry_s,
            origin=message.origin,
            hops=message.hops,
            number=message.number,
            arrived_s=message.arrived_s,
        )

    # ---- synchronisation -----------------------------------------------------------------

    def neighbor_joined(self, link: Link) -> None:
        sync = self._syncs.setdefault(link, RetainedSync(self.store))
        sync.start()
        self._pump(link)

    def neighbor_left(self, link: Link) -> None:
        self._syncs.pop(link, None)
        self._timers.cancel_timer(link)

    def sync_arrived(self, link: Link, payload: bytes) -> None:
        sync = self._syncs.get(link)
        if sync is None:
            return  # it was let go while this was on its way
        for retained in sync.receive(payload, self._host.wall_ms()):
            self._news(self._message(retained), link)
        self._pump(link)

    def _message(self, retained: Retained) -> Message:
        return Message(
            retained.topic,
            retained.payload,
            qos=retained.qos,
            retain=True,
            properties=retained.properties,
            expiry_s=retained.expiry_s,
            origin=self._node_id,
            version=str(retained.version),
            arrived_s=self._host.now(),
        )

    def _pump(self, link: Link) -> None:
        """Say what is to be said while the link has room, and the rest a little later."""
        sync = self._syncs.get(link)
        while sync is not None and sync.has_more and link.active:
            connection = link.connections[0]
            if connection is None or connection.waiting_bytes() > MAX_WAITING_BYTES:
                self._timers.set_timer(PUMP_S, link)
                return
            payload = sync.next_payload(self._host.wall_ms())
            if payload is None:
                return
            link.send_control(encode(Publish(RETAINED_TOPIC, payload), 5))

    def _timer_fired(self, key: Hashable) -> None:
        if isinstance(key, Link):
            self._pump(key)
            return
        if key == "resync":
            # Repairs what QoS 0 on a congested link may have lost; equal stores say 2 KiB.
            for link, sync in self._syncs.items():
                sync.start()
                self._pump(link)
            self._timers.set_timer(RESYNC_S, "resync")
            return
        self.store.sweep(self._host.wall_ms())
        self._write()
        self._timers.set_timer(JOURNAL_S, "journal")

    # ---- the journal ---------------------------------------------------------------------

    def _write(self) -> None:
        if not self._host.keeps_state:
            return
        while more := self.store.drain():
            if self._appended == 0:
                self._rewrite()  # a journal begins with a snapshot, which has all of it
                return
            self._host.append_state("retained", more)
            self._appended += len(more)
        if self._appended > REWRITE_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        if self._host.keeps_state:
            snapshot = b"".join(self.store.snapshot())
            self._host.save_state("retained", snapshot)
            self._appended = 1
