"""Retained messages on their way: the store, the neighbors and the local broker.

    local client's  ──▶ stamped with a version ──▶ every neighbor
    neighbor's     ──▶ newer than what is here?  yes: broker with retain, other neighbors
                                                  no: broker without retain; the very same: dropped
    neighbor joins ──▶ the two stores are compared, and each sends what the other lacks

`BrokerCopies` sees to it that the broker gets what the store has, `Journal` that it is kept over a
restart.  A comparison is dealt with one payload a turn, so that it holds up nobody, however many
topics there are; a neighbor that does not wait for the answers is at fault.

Where not everything may cross a link, views of the store are compared (`view`); each is made anew
before this node states what it has, and before it looks at what the neighbor states.  So it is
where retained messages go only where they are wanted (`wanting`): a view then has what the neighbor
wants, and the comparison begins when it has said so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.cooperation.api import SessionInfo
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Host
from isthmus.exchange.journal import Journal
from isthmus.exchange.link.link import Link, Room
from isthmus.exchange.retained.broker import BrokerCopies, message_of
from isthmus.exchange.retained.journal import JOURNAL_NAME, JOURNAL_VERSION
from isthmus.exchange.retained.of_several import CopiesOfSeveral
from isthmus.exchange.retained.store import RetainedLimits, RetainedStore
from isthmus.exchange.retained.sync import WINDOW, RetainedSync, as_it_is
from isthmus.exchange.retained.values import Retained, Version
from isthmus.exchange.retained.view import RetainedView, look
from isthmus.exchange.retained.wanting import RetainedWants, Wanting, forget_unwanted
from isthmus.exchange.timers import Timers
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["JOURNAL_S", "OLDEST", "RETAINED_TOPIC", "Retention", "RetentionOwner"]

RETAINED_TOPIC: Final = "$isthmus/retained"
JOURNAL_S: Final = 0.5
RESYNC_S: Final = 300.0
ANSWER_S: Final = 10.0
"""How long an answer is waited for; then the comparison begins anew."""
DROPPED_S: Final = 5.0
"""How often is looked whether a link has dropped something; then the stores are compared anew."""
TELL_AGAIN_S: Final = 300.0
CLOCK_SET_MS: Final = 60_000
FRESH_S: Final = 5.0
"""How old a view may be when what a neighbor states is compared with it."""
MAX_INBOX: Final = 8 * WINDOW
OLDEST: Final = (1, 0)
"""The version of what a broker had before its node knew of it."""
_OVER: Final = object()


class RetentionOwner(Protocol):
    """What `Retention` asks of the data plane."""

    def other_links(self, link: Link) -> list[Link]:
        """To whom goes what a comparison over `link` brings: to everybody else."""
        ...

    def number(self, message: Message) -> None:
        """Give a message of this node a number, if all have one here."""
        ...

    def broke_rules(self, link: Link, name: str) -> None:
        """The neighbor sent what may not cross the link; it is ignored."""
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
    looking: Iterator[None] | None = None
    """The pass through the store in which views are made; meanwhile nothing is said or heard."""
    alone: bool | None = None
    """With what a comparison is to begin when they are; None: none is."""
    looked_s: float = float("-inf")
    """When they were made."""


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
        self._links: dict[SessionInfo, Link] = {}
        self._timers = Timers(host, self._timer_fired)
        self._routing: RetainedWants | None = None
        """Who knows what is wanted, if retained messages go only there."""
        self._wanting = Wanting(host, self.store, self._give)
        self._unwanted: Iterator[None] | None = None
        self._loaded = False
        self._tell_again_s = 0.0
        self._offset_ms = host.wall_ms() - int(host.now() * 1000)

    def route_by(self, wants: RetainedWants) -> None:
        """Retained messages go only where they are wanted."""
        self._routing = wants
        self.broker.want_only(lambda topic: wants.wants(None, topic.decode()))

    def has_several_brokers(
        self,
        names: Iterable[str],
        broker_of: Callable[[bytes], str],
        is_away: Callable[[str], bool],
    ) -> Callable[[str], None]:
        """To be said before the start; what is to be told of each broker that goes."""
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
        self.broker = several = CopiesOfSeveral(self.store, copies, broker_of, is_away)
        return several.away

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
        self._wanting.stop()
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

    def found(self, retained: Retained, *, is_young: bool = False) -> bool:
        """The local broker has it; False if that cannot be judged now (``source = "broker"``).

        Somebody published it past the node, unless the fabric has it.  Of a topic of which nothing
        is known here it may be of any age: it is older than all that others know.  What differs
        from what the broker is known to have had is newer than that.  A node that `is_young` waits:
        its last life may have brought it there, and only neighbors know.
        """
        topic, now_ms = retained.topic, self._host.wall_ms()
        known = self.store.version(topic)
        if known is not None:
            if self.broker.is_busy(topic):
                return False
            before = self.store.get(topic, now_ms)
            if before is None or before.payload == retained.payload:
                return True
            if is_young:
                return False
        version = OLDEST if known is None else None
        if not self.store.record_found(retained, now_ms, version):
            return True
        self._counters["retained_found"] += 1
        for link, compared in self._compared.items():
            compared.sync.push(topic)
            self._say_soon(link)
        return True

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
        is_back = compared is not None
        self._links[link.info] = link
        if compared is None:
            first = self._host.wall_ms() & 0xFFFF_FFFF  # another one after a restart
            compared = self._compared[link] = _Compared(RetainedSync(self.store, first=first))
        compared.inbox.clear()  # of what came on an earlier connection
        if self._routing is None:
            self._compare(link, compared)
        elif is_back:  # else it has to tell first what it wants
            self._compare(link, compared, alone=True)

    def compare(self, link: Link) -> None:
        """Once more, as messages may have passed this neighbor by since the link stands."""
        compared = self._compared.get(link)
        if compared is not None and link.state.up:
            self._compare(link, compared, alone=True)

    def neighbor_left(self, link: Link) -> None:
        self._compared.pop(link, None)
        self._links.pop(link.info, None)
        for kind in ("say", "hear", "answer", "look"):
            self._timers.cancel_timer((kind, link))

    def _compare(self, link: Link, compared: _Compared, *, alone: bool = False) -> None:
        if self._has_views(link):
            compared.alone = alone or bool(compared.alone)
            self._make_views(link, compared)
            return
        sync = compared.sync
        sync.stated = sync.pushed = self.store
        sync.own = as_it_is
        compared.looking = compared.alone = None
        self._begin(link, compared, alone=alone)

    def _begin(self, link: Link, compared: _Compared, *, alone: bool) -> None:
        compared.sync.start(alone=alone, keeps=self._routing is not None)
        compared.dropped = link.dropped
        self._say(link)

    # ---- where not everything may cross --------------------------------------------------

    def _has_views(self, link: Link) -> bool:
        return link.crossing is not None or self._routing is not None

    def _make_views(self, link: Link, compared: _Compared) -> None:
        sync, crossing = compared.sync, link.crossing

        def own(topic: bytes) -> bytes | None:
            name = topic if crossing is None else crossing.comes(topic)
            if name is None:
                self._owner.broke_rules(link, topic.decode(errors="replace"))
            return name

        def stated_as(topic: bytes) -> bytes | None:
            if self._routing is not None and not self._routing.asks(link.info, topic.decode()):
                return None
            return topic if crossing is None else crossing.comes_as(topic)

        def pushed_as(topic: bytes) -> bytes | None:
            if self._routing is not None and not self._routing.wants(link.info, topic.decode()):
                return None
            return topic if crossing is None else crossing.leaves(topic)

        sync.own = own
        stated = RetainedView(self.store, stated_as)
        pushed = RetainedView(self.store, pushed_as)
        sync.stated, sync.pushed = stated, pushed
        compared.looking = look(self.store, (stated, pushed))
        self._timers.set_timer_unless_set(0, ("look", link))

    def _look(self, link: Link) -> None:
        """Go on with the pass through the store; then with what has waited for it."""
        compared = self._compared.get(link)
        if compared is None or compared.looking is None:
            return
        if next(compared.looking, _OVER) is not _OVER:
            self._timers.set_timer(0, ("look", link))
            return
        compared.looking, compared.looked_s = None, self._host.now()
        if compared.alone is not None:
            alone, compared.alone = compared.alone, None
            self._begin(link, compared, alone=alone)
        self._say_soon(link)
        if compared.inbox:
            self._timers.set_timer_unless_set(0, ("hear", link))

    def _must_look(self, link: Link, compared: _Compared) -> bool:
        """Whether views are being made, or are to be before the neighbor is heard."""
        if compared.looking is not None:
            return True
        if not self._has_views(link) or not compared.sync.is_statement(compared.inbox[0]):
            return False
        if self._host.now() < compared.looked_s + FRESH_S:
            return False
        self._make_views(link, compared)
        return True

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
        if not compared.sync.has_to_compare and self._must_look(link, compared):
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
            if not self._is_for(other, retained.topic):
                continue
            if kept and compared is not None:
                compared.sync.push(retained.topic)
                self._say_soon(other)
            else:
                other.send(message, self._host.now(), None)
        self.broker.owe(retained, ask=unknown)

    # ---- where they are wanted -----------------------------------------------------------

    def _is_for(self, link: Link, topic: bytes) -> bool:
        return self._routing is None or self._routing.wants(link.info, topic.decode())

    def wanted(self, session: SessionInfo | None, filters: Iterable[str]) -> None:
        """A neighbor, or local clients, have come to want `filters`: what is here follows."""
        self._wanting.begin(session, filters)

    def passed_by(self, topic: bytes) -> None:
        """A neighbor's message was stored and is not for the local broker."""
        if self._routing is not None:
            self.store.owe(topic)

    def _give(self, session: SessionInfo | None, topic: bytes) -> None:
        if session is None:
            self.broker.wanted(topic)
            return
        link = self._links.get(session)
        compared = None if link is None else self._compared.get(link)
        if link is not None and compared is not None:
            if not isinstance(compared.sync.pushed, RetainedView):
                self._make_views(link, compared)
            compared.sync.push(topic)
            self._say_soon(link)

    def _forget_unwanted(self) -> None:
        """What nobody wants any more; the next time begins when this is through."""
        if self._routing is None:
            return
        if self._unwanted is None:
            links, routing = self._compared, self._routing

            def is_wanted(topic: str) -> bool:
                return routing.wants(None, topic) or any(
                    routing.wants(link.info, topic) for link in links
                )

            self._unwanted = forget_unwanted(self.store, self._node_id, is_wanted)
        if next(self._unwanted, _OVER) is _OVER:
            self._unwanted = None
        else:
            self._timers.set_timer(0, "unwanted")

    def _say_soon(self, link: Link) -> None:
        compared = self._compared.get(link)
        if compared is not None and compared.sync.may_speak and compared.looking is None:
            self._timers.set_timer_unless_set(0.0, ("say", link))

    def _say(self, link: Link) -> None:
        """Say one thing if the link has room, and the rest in later turns."""
        compared = self._compared.get(link)
        if compared is None or not compared.sync.may_speak or not link.state.session:
            return
        if compared.looking is not None:
            return  # and then it goes on
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
            case ("look", Link() as link):
                self._look(link)
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
                self._forget_unwanted()
            case "unwanted":
                self._forget_unwanted()

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
