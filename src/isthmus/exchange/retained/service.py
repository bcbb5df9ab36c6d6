"""Retained messages on their way: the store, the neighbors and the local broker.

    local client's  ──▶ stamped with a version ──▶ every neighbor
    neighbor's     ──▶ newer than what is here?  yes: broker with retain, other neighbors
                                                  no: broker without retain; the very same: dropped
    neighbor joins ──▶ the two stores are compared, and each sends what the other lacks

`BrokerCopies` sees to it that the broker gets what the store has, `Journal` that it is kept over a
restart.  A comparison is dealt with one payload a turn, so that it holds up nobody, however many
topics there are; a neighbor that does not wait for the answers is at fault.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Host
from isthmus.exchange.journal import Journal
from isthmus.exchange.link.link import Link, Room
from isthmus.exchange.retained.broker import BrokerCopies, message_of
from isthmus.exchange.retained.journal import JOURNAL_NAME, JOURNAL_VERSION
from isthmus.exchange.retained.of_several import CopiesOfSeveral
from isthmus.exchange.retained.store import RetainedLimits, RetainedStore
from isthmus.exchange.retained.sync import WINDOW, RetainedSync
from isthmus.exchange.retained.values import Retained, Version
from isthmus.exchange.timers import Timers
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["JOURNAL_S", "RETAINED_TOPIC", "Retention", "RetentionOwner"]

RETAINED_TOPIC: Final = "$isthmus/retained"
JOURNAL_S: Final = 0.5
RESYNC_S: Final = 300.0
ANSWER_S: Final = 10.0
"""How long an answer is waited for; then the comparison begins anew."""
DROPPED_S: Final = 5.0
"""How often is looked whether a link has dropped something; then the stores are compared anew."""
TELL_AGAIN_S: Final = 300.0
CLOCK_SET_MS: Final = 60_000
MAX_INBOX: Final = 8 * WINDOW


class RetentionOwner(Protocol):
    """What `Retention` asks of the data plane."""

    def other_links(self, link: Link) -> list[Link]:
        """To whom goes what a comparison over `link` brings: to everybody else."""
        ...

    def number(self, message: Message) -> None:
        """Give a message of this node a number, if all have one here."""
        ...

    def retained_trouble(self, link: Link, error: RemoteProtocolError) -> None:
        """The neighbor broke the rules of the comparison."""
        ...


@dataclass(eq=False, slots=True)
class _Compared:
    """The comparison with one neighbor."""

    sync: RetainedSync
    inbox: deque[bytes] = field(default_factory=deque)
    dropped: int = 0
    """What the link had dropped when the comparison began."""


class Retention:
    """What a node does about retained messages."""

    def __init__(
        self,
        host: Host,
        node_id: str,
        owner: RetentionOwner,
        counters: Counter[str],
        limits: RetainedLimits | None = None,
    ) -> None:
        self._host = host
        self._node_id = node_id
        self._owner = owner
        self._counters = counters
        salt = int.from_bytes(host.token_bytes(4))
        self.store = RetainedStore(node_id, limits, journal=host.keeps_state, salt=salt)
        self.broker: BrokerCopies | CopiesOfSeveral
        self.broker = BrokerCopies(host, self.store, node_id, counters)
        self.journal = Journal(
            host, JOURNAL_NAME, drain=self.store.drain, snapshot=self.store.snapshot
        )
        self._compared: dict[Link, _Compared] = {}
        self._timers = Timers(host, self._timer_fired)
        self._loaded = False
        self._tell_again_s = 0.0
        self._offset_ms = host.wall_ms() - int(host.now() * 1000)

    def has_several_brokers(self, names: Iterable[str], broker_of: Callable[[bytes], str]) -> None:
        """To be said before the start."""
        copies = {
            name: BrokerCopies(
                self._host,
                self.store,
                self._node_id,
                self._counters,
                lambda topic, name=name: broker_of(topic) == name,  # type: ignore[misc]
            )
            for name in names
        }
        self.broker = CopiesOfSeveral(self.store, copies, broker_of)

    def loading(self) -> Iterator[None]:
        """Read what was kept, before `start`, with a pause after each slice."""
        if self._loaded:
            return
        self._loaded = True
        kept = self._host.load_state(JOURNAL_NAME, JOURNAL_VERSION)
        if kept is not None:
            for problem in self.store.loading(kept, self._host.wall_ms()):
                if problem:
                    self._host.log("warning", "kept retained messages: lost a part", cause=problem)
                yield
            self.journal.resume()
            self.journal.changed(JOURNAL_S)

    def start(self) -> None:
        for _ in self.loading():
            pass
        self.broker.start()
        self._timers.set_timer(RESYNC_S, "resync")
        self._timers.set_timer(DROPPED_S, "dropped")
        if self._host.keeps_state:
            self._timers.set_timer(JOURNAL_S, "journal")

    def stop(self) -> None:
        self._timers.cancel_all()
        self.broker.stop()
        self.journal.stop()

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
        self.broker.published(message.topic)

    def arrived(self, message: Message) -> Message | None:
        """A neighbor's retained message: how it goes to the local broker, None if it is here.

        If it goes there as it is, then by `broker.deliver`.
        """
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
        self._tell_of_clocks()
        live = copy(message)
        live.retain, live.version = False, ""
        return live

    def _tell_of_clocks(self) -> None:
        """Say that a clock is wrong, here or there, if a version was refused for that."""
        refused, self.store.refused = self.store.refused, None
        if refused is None:
            return
        self._counters["retained_from_future"] += 1
        if self._host.now() >= self._tell_again_s:
            self._tell_again_s = self._host.now() + TELL_AGAIN_S
            self._host.log(
                "error",
                "a clock is wrong: a retained message is from the future and not kept as retained",
                published_at=refused.origin,
                ahead_s=(refused.wall_ms - self._host.wall_ms()) // 1000,
            )

    # ---- comparing -----------------------------------------------------------------------

    def neighbor_joined(self, link: Link) -> None:
        """The link stands (again)."""
        compared = self._compared.get(link)
        if compared is None:
            first = self._host.wall_ms() & 0xFFFF_FFFF  # another one after a restart
            compared = self._compared[link] = _Compared(RetainedSync(self.store, first=first))
        compared.inbox.clear()  # of what came on an earlier connection
        self._compare(link, compared)

    def compare(self, link: Link) -> None:
        """Once more, as messages may have passed this neighbor by since the link stands."""
        compared = self._compared.get(link)
        if compared is not None and link.state.up:
            self._compare(link, compared, alone=True)

    def neighbor_left(self, link: Link) -> None:
        self._compared.pop(link, None)
        for kind in ("say", "hear", "answer"):
            self._timers.cancel_timer((kind, link))

    def _compare(self, link: Link, compared: _Compared, *, alone: bool = False) -> None:
        compared.sync.start(alone=alone)
        compared.dropped = link.dropped
        self._say(link)

    def sync_arrived(self, link: Link, payload: bytes) -> None:
        compared = self._compared.get(link)
        if compared is None:
            return  # it was let go while this was on its way
        if compared.sync.is_answer(payload):
            self._timers.cancel_timer(("answer", link))
            self._say_soon(link)
            return
        if len(compared.inbox) >= MAX_INBOX:
            raise RemoteProtocolError("it does not wait for answers about retained messages")
        compared.inbox.append(payload)
        self._timers.set_timer_unless_set(0, ("hear", link))

    def _hear(self, link: Link) -> None:
        """Deal with one payload of the neighbor, or with a part of it."""
        compared = self._compared.get(link)
        if compared is None or not compared.inbox:
            return
        sync, payload = compared.sync, compared.inbox[0]
        if sync.has_to_compare:
            sync.compare_more()
        else:
            try:
                for retained, unknown in sync.receive(payload, self._host.wall_ms()):
                    self._news(retained, link, unknown=unknown)
                self._tell_of_clocks()
            except RemoteProtocolError as error:
                compared.inbox.clear()
                self._owner.retained_trouble(link, error)
                return
        if not sync.has_to_compare:
            compared.inbox.popleft()
            self._send(link, sync.answer(payload))
        if compared.inbox:
            self._timers.set_timer(0, ("hear", link))
        self._say_soon(link)

    def _news(self, retained: Retained, link: Link, *, unknown: bool) -> None:
        """A comparison brought something: to the broker, and to the other neighbors."""
        self._counters["retained_synchronized"] += 1
        kept = self.store.has_body(retained.topic)
        message = message_of(retained, self._node_id, self._host.now())
        self._owner.number(message)
        for other in self._owner.other_links(link):
            compared = self._compared.get(other)
            if kept and compared is not None:
                compared.sync.push(retained.topic)
                self._say_soon(other)
            else:
                other.send(message, self._host.now(), None)
        self.broker.owe(retained, ask=unknown)

    def _say_soon(self, link: Link) -> None:
        compared = self._compared.get(link)
        if compared is not None and compared.sync.may_speak:
            self._timers.set_timer_unless_set(0.0, ("say", link))

    def _say(self, link: Link) -> None:
        """Say one thing if the link has room, and the rest in later turns."""
        compared = self._compared.get(link)
        if compared is None or not compared.sync.may_speak or not link.state.session:
            return
        if link.connections[0] is None:
            return  # all of it begins anew when the link is back
        if not link.has_room(Room.UNWRITTEN):
            if not link.waits_for_room(Room.UNWRITTEN):
                link.when_room(Room.UNWRITTEN, lambda: self._say_soon(link))
            return
        payload = compared.sync.next_payload(self._host.wall_ms())
        if payload is not None:
            self._send(link, payload)
            self._timers.set_timer(ANSWER_S, ("answer", link))
        self._say_soon(link)

    @staticmethod
    def _send(link: Link, payload: bytes) -> None:
        link.send_control(encode(Publish(RETAINED_TOPIC, payload), 5))

    def _timer_fired(self, key: Hashable) -> None:
        match key:
            case ("say", Link() as link):
                self._say(link)
            case ("hear", Link() as link):
                self._hear(link)
            case ("answer", Link() as link):
                self._not_answered(link)
            case "dropped":
                self._look_at_the_clock()
                self._compare_where_dropped()
                self._timers.set_timer(DROPPED_S, "dropped")
            case "journal":
                more = self.store.sweep(self._host.wall_ms())
                if self.store.has_changed:
                    self.journal.changed(0)
                self._timers.set_timer(0 if more else JOURNAL_S, "journal")
            case "resync":
                for link, compared in self._compared.items():
                    self._compare(link, compared)
                self._timers.set_timer(RESYNC_S, "resync")

    def _not_answered(self, link: Link) -> None:
        """What was said was lost with a connection, or is not understood."""
        compared = self._compared.get(link)
        if compared is not None and compared.sync.awaits_answer:
            self._compare(link, compared, alone=True)

    def _look_at_the_clock(self) -> None:
        """If it has been set, what clocks kept apart can come together."""
        offset_ms = self._host.wall_ms() - int(self._host.now() * 1000)
        if abs(offset_ms - self._offset_ms) > CLOCK_SET_MS:
            for link, compared in self._compared.items():
                self._compare(link, compared, alone=True)
        self._offset_ms = offset_ms

    def _compare_where_dropped(self) -> None:
        """A retained message at QoS 0 may be among what a full link has dropped."""
        for link, compared in self._compared.items():
            if link.dropped != compared.dropped and link.state.up and not compared.sync.has_more:
                self._compare(link, compared, alone=True)
