"""The brokers behind one node: which topic lives where, and who of them is there.

A topic lives at exactly one broker.  Which one the algorithm may say (`broker_of`, `brokers_of`);
where it says nothing the configuration's table does (`isthmus.mqtt.filters.partition`).  What was
asked is remembered, `MAX_TOPICS` topics and filters of it, until `Port.routes_changed`.

A broker counts as *away* when it takes no connection, or takes one and does not answer: from then
on it is tried every `TRY_S`, and when it answers those who wait for it are told, `SLICE` in a turn.
The algorithm is told both.  That a session with it ended says nothing: a broker that stands may end
any; so `look` asks it, with a CONNECT of the node's own, once for all who want to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isthmus.cooperation.api import CooperationAlgorithm, TopicMove
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.session import Session, SessionHost, Wire
from isthmus.mqtt.filters.partition import Partition
from isthmus.mqtt.filters.topics import matches, split_shared

if TYPE_CHECKING:
    from isthmus.exchange.broker.own_sessions import OwnSessions
    from isthmus.exchange.split.kept import KeptSessions
    from isthmus.exchange.split.moving import Move
    from isthmus.exchange.split.split import Split

__all__ = ["Brokers", "BrokersSettings"]

TRY_S: Final = 0.5
LOOK_S: Final = 0.2
"""A broker that ends closes its sessions a moment before its listener."""
ANSWER_S: Final = 5.0
SLICE: Final = 50
MAX_TOPICS: Final = 65_536


@dataclass(frozen=True, slots=True)
class BrokersSettings:
    """What the configuration says of them, by their names."""

    names: tuple[str, ...]
    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default: str = ""
    """Who has what no other has; empty: nobody."""
    holding: frozenset[str] = frozenset()
    """For whom messages of MQTT 5 clients wait while they are away, as those of 3.1.1 do."""


@dataclass(slots=True)
class _Broker:
    away: str = ""
    """Why it counts as away."""
    waiting: dict[Callable[[], None], None] = field(default_factory=dict)
    """Who is to be told when it is back."""
    asking: list[Callable[[bool], None]] = field(default_factory=list)
    timer: Cancellable | None = None


class _Topics(dict[bytes, str]):
    def __init__(self, ask: Callable[[str], str]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, topic: bytes) -> str:
        if len(self) >= MAX_TOPICS:
            self.clear()
        name = self[topic] = self._ask(topic.decode())
        return name


class Brokers:
    """All of one node's."""

    def __init__(self, host: Host, settings: BrokersSettings, counters: Counter[str]) -> None:
        self.host = self._host = host
        self.counters = counters
        self.names = settings.names
        self.holding = settings.holding
        self.home = settings.default or settings.names[0]
        """Who is asked first about a client."""
        self.algorithm: CooperationAlgorithm | None = None
        """From the node's start to its end."""
        self._partition = Partition(
            {name: settings.topics.get(name, ()) for name in settings.names}, settings.default
        )
        self._brokers = {name: _Broker() for name in settings.names}
        self.of = _Topics(self._broker_of).__getitem__
        """The broker of a topic; empty if it has none."""
        self._topics: _Topics = self.of.__self__  # type: ignore[attr-defined]
        self._filters: dict[str, tuple[str, ...]] = {}
        self._stopped = False
        self.splits: dict[Split, None] = {}
        """The clients' sessions, as long as they last."""
        self.move: Move | None = None
        """Of topics, from one of them to another."""
        self.last_move: Move | None = None
        """For people to see."""
        self.moved_wills: dict[str, None] = {}
        """Clients whose wills are at a broker that their topics have left: the node's to send."""
        self._own: Mapping[str, OwnSessions] = {}
        self.on_away: Callable[[str], None] = lambda _: None
        """Told of each broker that goes."""
        self._sessions: SessionHost
        self._greeting: Callable[[str], bytes] = lambda _: b""

    def join(
        self,
        sessions: SessionHost,
        greeting: Callable[[str], bytes],
        own: Mapping[str, OwnSessions] = MappingProxyType({}),
    ) -> None:
        """Who makes connections; `greeting`: the node's own CONNECT for a broker."""
        self.sessions = self._sessions = sessions
        self._greeting = greeting
        self._own = own

    # ---- which topic lives where -----------------------------------------------------------

    def _broker_of(self, topic: str) -> str:
        said = None if self.algorithm is None else self.algorithm.broker_of(topic)
        return self._partition.of(topic) if said is None else self._known(said)

    def matching(self, topic_filter: str) -> tuple[str, ...]:
        """The brokers that have topics which a subscription to `topic_filter` matches."""
        found = self._filters.get(topic_filter)
        if found is None:
            found = self.matching_before(topic_filter)
            if self.move is not None and self.move.is_under_way:
                found = tuple(dict.fromkeys((*found, *self.move.matching(topic_filter))))
            if len(self._filters) >= MAX_TOPICS:
                self._filters.clear()
            self._filters[topic_filter] = found
        return found

    def place_of(self, topic: str) -> str:
        """Its broker; empty if it has none."""
        return self.of(topic.encode())

    @property
    def topics_move(self) -> bool:
        """Whether a topic may have lived at another broker before."""
        return self.algorithm is not None and self.algorithm.places_topics

    # ---- topics that move ------------------------------------------------------------------

    def begin_move(
        self, wanted: TopicMove, sessions: KeptSessions, over: Callable[[str], None]
    ) -> Move:
        """Raises `ValueError` if that cannot be now."""
        from isthmus.exchange.split.moving import Move  # it is seldom needed

        if self.move is not None and self.move.is_under_way:
            raise ValueError(f"{self.move.wanted.name} is under way; one at a time")
        before, self.move = self.move, Move(self, self._own, sessions, wanted, over)
        try:
            self.move.begin()
        except ValueError:
            self.move = before
            raise
        self.last_move = self.move
        return self.move

    def moved(self, move: Move) -> None:
        """There is nothing more to it."""
        if self.move is move:
            self.move = None
        self.matching_changed()

    def matching_changed(self) -> None:
        self._filters.clear()

    def login_at(self, name: str) -> tuple[str | None, bytes | None]:
        """The node's own."""
        return self._own[name].login()

    def note_will(self, client_id: str) -> None:
        self.moved_wills[client_id] = None
        if len(self.moved_wills) > MAX_TOPICS:
            del self.moved_wills[next(iter(self.moved_wills))]

    def matching_before(self, topic_filter: str) -> tuple[str, ...]:
        """Likewise, without those where topics are still to go."""
        _, matched = split_shared(topic_filter)
        said = None if self.algorithm is None else self.algorithm.brokers_of(matched)
        if said is None:
            return self._partition.matching(matched)
        return tuple(dict.fromkeys(map(self._known, said)))

    def _known(self, name: str) -> str:
        if name and name not in self._brokers:
            raise ValueError(f"there is no broker {name!r}; there are {', '.join(self.names)}")
        return name

    def changed(self, filters: Iterable[str] | None) -> None:
        """Forget the topics that `filters` match; everything without."""
        self._filters.clear()
        wild = []
        for each in filters if filters is not None else ("#", "$"):
            if "+" in each or each.endswith(("#", "$")):
                wild.append(each)
            else:
                self._topics.pop(each.encode(), None)
        if len(wild) * len(self._topics) > SLICE * SLICE or "$" in wild:
            self._topics.clear()
        elif wild:
            for topic in list(self._topics):
                if any(matches(each, topic.decode()) for each in wild):
                    del self._topics[topic]

    # ---- who is there ----------------------------------------------------------------------

    def is_away(self, name: str) -> bool:
        return bool(self._brokers[name].away)

    def problems(self) -> dict[str, str]:
        """Why each counts as away, or nothing."""
        return {name: broker.away for name, broker in self._brokers.items()}

    def connect(self, name: str, session: Session, failed: Callable[[str], None]) -> None:
        """Connect `session` with the broker `name`; what comes of it is known to all."""

        def not_connected(cause: str) -> None:
            self.failed(name, cause)
            failed(cause)

        self._sessions.connect_broker(session, not_connected, name)

    def failed(self, name: str, cause: str) -> None:
        """It takes no connection, or does not answer."""
        broker = self._brokers[name]
        if broker.away or self._stopped:
            return
        broker.away = cause or "unreachable"
        self._host.log("warning", "broker away", broker=name, cause=cause)
        self.counters["broker_away"] += 1
        if broker.timer is None:
            broker.timer = self._host.call_later(TRY_S, partial(self._try, name))
        self.on_away(name)
        if self.algorithm is not None:
            self.algorithm.on_broker_down(name)

    def when_back(self, name: str, tell: Callable[[], None]) -> None:
        """Call `tell` when the broker, which is away, is back."""
        self._brokers[name].waiting[tell] = None

    def never_mind(self, name: str, tell: Callable[[], None]) -> None:
        self._brokers[name].waiting.pop(tell, None)

    def look(self, name: str, found: Callable[[bool], None]) -> None:
        """Whether it stands: `found` is told in a moment."""
        asking = self._brokers[name].asking
        asking.append(found)
        if len(asking) == 1:
            self._host.call_later(LOOK_S, partial(self._ask, name, partial(self._found, name)))

    def _found(self, name: str, stands: bool, cause: str) -> None:
        broker = self._brokers[name]
        asking, broker.asking = broker.asking, []
        if not stands:
            self.failed(name, cause)
        self._tell_some(asking, stands)

    def _tell_some(self, asking: list[Callable[[bool], None]], stands: bool) -> None:
        for tell in asking[:SLICE]:
            tell(stands)
        if rest := asking[SLICE:]:
            self._host.call_later(0.0, partial(self._tell_some, rest, stands))

    def _try(self, name: str) -> None:
        self._ask(name, partial(self._tried, name))

    def _tried(self, name: str, stands: bool, cause: str) -> None:
        broker = self._brokers[name]
        if self._stopped:
            return
        if not stands:
            broker.timer = self._host.call_later(TRY_S, partial(self._try, name))
            return
        broker.timer, broker.away = None, ""
        self._host.log("info", "broker back", broker=name)
        if self.algorithm is not None:
            self.algorithm.on_broker_up(name)
        self._tell_more(name)

    def _tell_more(self, name: str) -> None:
        broker = self._brokers[name]
        if broker.away:
            return  # they go on waiting
        for tell in list(islice(broker.waiting, SLICE)):
            del broker.waiting[tell]
            tell()
        if broker.waiting:
            self._host.call_later(0.0, partial(self._tell_more, name))

    def _ask(self, name: str, answer: Callable[[bool, str], None]) -> None:
        question = _Question(self._sessions, self._greeting(name), answer)
        self._sessions.connect_broker(question, question.not_connected, name)

    def stop(self) -> None:
        self.algorithm = None
        self._stopped = True
        for broker in self._brokers.values():
            if broker.timer is not None:
                broker.timer.cancel()


class _Question(Session):
    """A CONNECT of the node's own, to which any answer will do, and a refusal, too."""

    def __init__(
        self, host: SessionHost, greeting: bytes, answer: Callable[[bool, str], None]
    ) -> None:
        super().__init__(host, 0.0)
        self._greeting = greeting
        self._answer: Callable[[bool, str], None] | None = answer
        self._timer: Cancellable | None = None

    def not_connected(self, cause: str) -> None:
        self._tell(False, cause)

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, 0)
        wire.write(self._greeting)
        self._timer = self.host.call_later(ANSWER_S, self._too_late)

    def _too_late(self) -> None:
        self._tell(False, f"no answer within {ANSWER_S:g} s")
        self.wire.abort()

    def data_received(self, data: bytes) -> None:
        self._tell(True, "")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._tell(exc is None, str(exc or ""))

    def _tell(self, stands: bool, cause: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(stands, cause)
