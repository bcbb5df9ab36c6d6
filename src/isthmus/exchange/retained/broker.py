"""Store and local broker: what the store says the broker has, the broker has in the end.

The store is told first, the broker second, and between the two a session or a process may end.  So
every entry that comes from elsewhere is *owed* until the broker has acknowledged it, which the
journal remembers (`RetainedStore.owe`), and whatever is still owed is given again:

    a neighbor's message     ──▶ at once, in its order, with its own QoS
    what a comparison brought ──▶ queued by topic, given from the store at QoS 1 or 2,
                                  `MAX_GIVEN` at a time
    after a crash; a topic of which nothing was known; two publishers at once
                              ──▶ the broker is asked first, and given only what it has not

Asking spares live subscribers a repetition: to a broker every PUBLISH is a live message.

Two publishers at once.  The order in which a broker takes messages from two connections is its own.
When a neighbor's message meets one of a local client or of another neighbor on the same topic,
within `DOUBT_S` or while one is in flight, the older may be taken last; so `DOUBT_S` after the last
of them the broker is asked what it has.

QoS 0.  A message that was only written counts as given; when the session is lost, what was written
in the last `WRITTEN_S` is asked for.

Bounds: a queue holds topics of the store, each once; what was written or published lately
`MAX_LATELY` topics, the oldest forgotten; messages without a place in the store (it is full)
`MAX_GIVEN`, further ones are left for the next comparison.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Final

from isthmus.exchange.host import Host
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.retained.values import Retained, Version
from isthmus.exchange.timers import Timers
from isthmus.exchange.traffic.message import Message

__all__ = ["OWN_KEY", "BrokerCopies", "message_of"]

OWN_KEY: Final = ":retained"
"""The session by which the broker is given what is owed; no node has such an id."""

MAX_GIVEN: Final = 500
ASK: Final = 100
MAX_ASKED: Final = 20 * ASK
SLICE: Final = 100
DOUBT_S: Final = 2.0
WRITTEN_S: Final = 120.0
MAX_LATELY: Final = 100_000


def message_of(retained: Retained, origin: str, now_s: float) -> Message:
    """What a comparison brought, as a message of this node's."""
    return Message(
        retained.topic,
        retained.payload,
        qos=retained.qos,
        retain=True,
        properties=retained.properties,
        expiry_s=retained.expiry_s,
        origin=origin,
        version=str(retained.version),
        arrived_s=now_s,
    )


class BrokerCopies:
    """What the local broker has been given of the retained messages, and what it is owed."""

    def __init__(
        self,
        host: Host,
        store: RetainedStore,
        node_id: str,
        counters: Counter[str],
        has: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`has`: of several brokers, whether a topic is this one's."""
        self._has = has
        self._host = host
        self._store = store
        self._node_id = node_id
        self._counters = counters
        self._timers = Timers(host, self._timer_fired)
        self._to_give: dict[bytes, None] = {}
        self._to_ask: dict[bytes, None] = {}
        """Topics that the broker is asked for, and given if it has something else."""
        self._in_flight: dict[bytes, tuple[str, int]] = {}
        """How many the broker has not acknowledged, and by which session."""
        self._latest: dict[bytes, Version] = {}
        """Of each topic of these, which was given last."""
        self._given = 0
        """Of them those by `OWN_KEY`."""
        self._when_known: dict[bytes, list[Callable[[], None]]] = {}
        """Who waits for what is in flight."""
        self._asked: set[bytes] = set()
        self._outdated: set[bytes] = set()
        """Topics that are asked for, and of which the broker has taken something meanwhile."""
        self._local = _Lately()
        """When a local client published last; its own session brings it to the broker."""
        self._written: dict[str, _Lately] = {}
        """What was written at QoS 0, by session."""
        self._doubtful: OrderedDict[bytes, float] = OrderedDict()
        self._taken: dict[bytes, Version] = {}
        """What the broker has acknowledged of topics that it is to be asked for all the same."""
        self._is_wanted: Callable[[bytes], bool] | None = None
        """Whether local clients want it; else it is owed until they do.  None: they may."""
        self._lost: deque[Iterator[bytes]] = deque()
        """What was written to sessions that are lost, and is to be asked for."""

    def want_only(self, is_wanted: Callable[[bytes], bool]) -> None:
        """Give the broker only what its clients want."""
        self._is_wanted = is_wanted

    def __len__(self) -> int:
        """How many topics the broker is owed."""
        return len(self._store.owed)

    def start(self) -> None:
        """Give what was owed when the last life ended, if the broker has not got it after all."""
        tests = [test for test in (self._has, self._is_wanted) if test is not None]
        self._to_ask.update(
            (topic, None) for topic in self._store.owed if all(test(topic) for test in tests)
        )
        self._soon()

    def stop(self) -> None:
        self._timers.cancel_all()

    # ---- messages ------------------------------------------------------------------------

    def published(self, topic: bytes) -> None:
        """A local client published; the store has it."""
        now_s = self._host.now()
        self._local.note(topic, now_s)
        if (
            topic in self._in_flight
            or topic in self._doubtful
            or self._written_lately(topic, now_s, but_by=None)
        ):
            self._doubt(topic, now_s)

    def deliver(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> None:
        """A neighbor's message that is the newest: to the broker, as it comes (`Host.inject`)."""
        topic, now_s = message.topic, self._host.now()
        version = self._store.version(topic)
        if version is None or message.expired(now_s):
            # No room to remember anything of it, or no need to.
            if not self._host.inject(message, key, done, kept):
                self._counters["inject_dropped"] += 1
            return
        self._store.owe(topic)
        if (
            self._in_flight.get(topic, (key, 0))[0] != key
            or topic in self._doubtful
            or self._local.is_noted(topic, now_s - DOUBT_S)
            or self._written_lately(topic, now_s, but_by=key)
        ):
            self._doubt(topic, now_s)
        self._inject(message, version, key, done, kept)

    def known(
        self,
        message: Message,
        key: str,
        done: Callable[[], None],
        kept: Callable[[], None] | None = None,
    ) -> None:
        """A neighbor's message that a comparison has brought before: `done` when the broker has it.

        It may be owed still, and then it is given as it comes, unless the broker has taken it and
        is only to be asked what it took last: if a newer one is known before its turn comes, nobody
        would be given this one any more.
        """
        topic = message.topic
        if topic not in self._store.owed or str(self._taken.get(topic)) == message.version:
            done()
        elif str(self._latest.get(topic)) == message.version:
            self._when_known.setdefault(topic, []).append(done)
        else:
            self.deliver(message, key, done, kept)

    def owe(self, retained: Retained, *, ask: bool) -> None:
        """A comparison brought it and the store has it: give it to the broker in its turn."""
        topic = retained.topic
        if not self._store.has_body(topic):
            self._give_without_store(retained)
            return
        self._store.owe(topic)
        if self._is_wanted is not None and not self._is_wanted(topic):
            return
        if ask or topic in self._to_ask:
            self._to_ask[topic] = None
        else:
            self._to_give[topic] = None
        self._soon()

    def wanted(self, topic: bytes) -> None:
        """Local clients have come to want it: if the broker is owed it, it gets it now."""
        if topic in self._store.owed and topic not in self._in_flight:
            self._to_ask[topic] = None
            self._soon()

    def _give_without_store(self, retained: Retained) -> None:
        if self._given >= MAX_GIVEN:
            # Were it remembered, the next comparison would not bring it again.
            self._store.forget(retained.topic)
            self._counters["retained_postponed"] += 1
        else:
            self._give(retained)

    def is_busy(self, topic: bytes) -> bool:
        """Whether the broker may be about to have something else than it has just now."""
        now_s = self._host.now()
        return (
            topic in self._store.owed
            or topic in self._in_flight
            or self._local.is_noted(topic, now_s - DOUBT_S)
            or self._written_lately(topic, now_s, but_by=None)
        )

    def session_lost(self, key: str = "") -> None:
        """What was written to a session, or to any, at QoS 0 may not have been read."""
        for each in [key] if key else list(self._written):
            if written := self._written.pop(each, None):
                self._lost.append(written.since(self._host.now() - WRITTEN_S))
        self._ask_for_lost()

    def local_lost(self) -> None:
        """Nor may it have taken what local clients published."""
        lost, self._local = self._local, _Lately()
        self._lost.append(lost.since(self._host.now() - WRITTEN_S))
        self._ask_for_lost()

    def missed(self, topic: bytes) -> None:
        """A local client published, and the broker does not get it."""
        self._store.owe(topic)
        self._to_ask[topic] = None
        self._soon()

    def _ask_for_lost(self) -> None:
        """Some of what was written, the rest in later turns: there may be very many."""
        left = SLICE
        while self._lost and left:
            topics = list(islice(self._lost[0], left))
            if not topics:
                self._lost.popleft()
            left -= len(topics)
            for topic in topics:
                self._store.owe(topic)
                self._to_ask[topic] = None
        if self._lost:
            self._timers.set_timer_unless_set(0, "lost")
        self._soon()

    # ---- inside --------------------------------------------------------------------------

    def _inject(
        self,
        message: Message,
        version: Version,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> None:
        topic = message.topic
        _, count = self._in_flight.get(topic, (key, 0))
        self._in_flight[topic] = (key, count + 1)
        self._latest[topic] = version
        open_ = True

        def acknowledged() -> None:
            nonlocal open_
            if open_:
                open_ = False
                self._acknowledged(topic, version, key)
            if done is not None:
                done()

        if not self._host.inject(message, key, acknowledged, kept):
            if open_:
                open_ = False
                self._forget_in_flight(topic, key)
            self._counters["inject_dropped"] += 1
            self._store.owe(topic)
            self._to_ask[topic] = None
            self._soon(DOUBT_S)
        elif message.qos == 0:
            self._written.setdefault(key, _Lately()).note(topic, self._host.now())

    def _acknowledged(self, topic: bytes, version: Version, key: str) -> None:
        self._forget_in_flight(topic, key)
        if topic in self._asked:
            self._outdated.add(topic)
        # An answer that comes after this is of the time before it.
        if topic in self._doubtful or topic in self._to_ask:
            self._taken[topic] = version
        else:
            self._settle(topic, version)
            if topic in self._store.owed and topic not in self._in_flight:
                self._to_give[topic] = None  # a newer one came by a comparison meanwhile
        self._soon()

    def _forget_in_flight(self, topic: bytes, key: str) -> None:
        if key == OWN_KEY:
            self._given -= 1
        by, count = self._in_flight.pop(topic, (key, 0))
        if count > 1:
            self._in_flight[topic] = (by, count - 1)
            return
        self._latest.pop(topic, None)
        for done in self._when_known.pop(topic, ()):
            done()

    def _written_lately(self, topic: bytes, now_s: float, *, but_by: str | None) -> bool:
        """At QoS 0 nobody knows when the broker has read it."""
        return any(
            lately.is_noted(topic, now_s - DOUBT_S)
            for key, lately in self._written.items()
            if key != but_by
        )

    def _give(self, retained: Retained) -> None:
        self._given += 1
        message = message_of(retained, self._node_id, self._host.now())
        message.qos = max(1, message.qos)
        self._inject(message, retained.version, OWN_KEY, None)

    def _doubt(self, topic: bytes, now_s: float) -> None:
        self._store.owe(topic)
        self._doubtful[topic] = now_s + DOUBT_S
        self._doubtful.move_to_end(topic)
        if len(self._doubtful) == 1:
            self._timers.set_timer(DOUBT_S, "doubt")

    def _timer_fired(self, key: Hashable) -> None:
        if key == "doubt":
            self._doubts_are_due()
        elif key == "lost":
            self._ask_for_lost()
        else:
            self._give_more()

    def _doubts_are_due(self) -> None:
        now_s = self._host.now()
        left = SLICE
        while self._doubtful:
            topic, due_s = next(iter(self._doubtful.items()))
            if due_s > now_s or not left:
                self._timers.set_timer(max(0.0, due_s - now_s), "doubt")
                break
            left -= 1
            if topic in self._in_flight or topic in self._asked:
                self._doubtful[topic] = now_s + DOUBT_S
                self._doubtful.move_to_end(topic)
                continue
            del self._doubtful[topic]
            self._to_ask[topic] = None
        self._soon()

    @property
    def _may_give(self) -> bool:
        return bool(self._to_give) and self._given < MAX_GIVEN

    @property
    def _may_ask(self) -> bool:
        """As many at a time as possible: a question takes its time, however small it is."""
        return bool(self._to_ask) and len(self._asked) + ASK <= MAX_ASKED

    def _soon(self, delay_s: float = 0.0) -> None:
        if self._may_give or self._may_ask:
            self._timers.set_timer_unless_set(delay_s, "give")

    def _give_more(self) -> None:
        """Give and ask for some of what is queued, while the broker keeps up."""
        now_ms = self._host.wall_ms()
        for _ in range(SLICE):
            if not self._may_give:
                break
            topic, _ = self._to_give.popitem()
            retained = self._store.get(topic, now_ms)
            if retained is None:
                self._settle(topic)
            elif topic in self._store.owed and not (
                topic in self._asked or topic in self._in_flight
            ):
                self._give(retained)
        if self._may_ask:
            self._ask_some(now_ms)
        self._soon()

    def _ask_some(self, now_ms: int) -> None:
        topics: list[bytes] = []
        for _ in range(min(ASK, len(self._to_ask))):
            topic, _ = self._to_ask.popitem()
            if topic not in self._store.owed or self._store.get(topic, now_ms) is None:
                self._settle(topic)
            elif topic not in self._asked:
                topics.append(topic)
        if topics:
            self._asked.update(topics)
            self._host.ask_retained(topics, lambda found: self._told(topics, found))

    def _told(self, topics: list[bytes], found: Mapping[bytes, bytes | None] | None) -> None:
        now_ms = self._host.wall_ms()
        for topic in topics:
            self._asked.discard(topic)
            retained = self._store.get(topic, now_ms)
            outdated = topic in self._outdated
            self._outdated.discard(topic)
            if topic in self._in_flight or topic in self._doubtful:
                continue  # it is asked for again
            if outdated and topic in self._store.owed:
                self._to_ask[topic] = None
                continue
            if (
                topic not in self._store.owed
                or retained is None
                or (found is not None and found.get(topic, b"") == retained.payload)
            ):
                self._settle(topic)
            else:
                self._counters["retained_given_again"] += 1
                self._to_give[topic] = None  # in its turn: many answers may come at once
        self._soon()

    def _settle(self, topic: bytes, version: Version | None = None) -> None:
        """The broker has it, in this version or in the newest."""
        self._taken.pop(topic, None)
        version = version or self._store.version(topic)
        if version is not None:
            self._store.settle(topic, version)


class _Lately:
    """Topics with the time of the last note: the newest, between half of `MAX_LATELY` and all.

    In two parts, of which the older is forgotten as a whole: one that forgets topic by topic has
    to tidy up now and then, which takes long.
    """

    def __init__(self) -> None:
        self._newer: dict[bytes, float] = {}
        self._older: dict[bytes, float] = {}

    def note(self, topic: bytes, now_s: float) -> None:
        if len(self._newer) >= MAX_LATELY // 2:
            self._older, self._newer = self._newer, {}
        self._newer[topic] = now_s

    def is_noted(self, topic: bytes, since_s: float) -> bool:
        noted_s = self._newer.get(topic)
        if noted_s is None:
            noted_s = self._older.get(topic)
        return noted_s is not None and noted_s >= since_s

    def since(self, since_s: float) -> Iterator[bytes]:
        """What was noted since then, as long as nothing more is."""
        for part in (self._older, self._newer):
            for topic, noted_s in part.items():
                if noted_s >= since_s:
                    yield topic
