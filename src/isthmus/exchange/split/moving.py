"""Topics that go from one broker to another while clients use them (`TopicMove`).

    PREPARING    what is retained of them is brought to where they go (by a node that goes alone);
                 what a client subscribes to from now on, it subscribes to at both
    HOLDING      what clients and other nodes publish on them waits; what is under way there is
                 waited for
    COPYING      what of the retained messages has changed since is brought there, too
    SUBSCRIBING  who has subscribed to them is subscribed where they go: who is connected, and, in
                 the name of each, those who are away and have a session
    SETTLING     copies that are still on their way to subscribers arrive
    MOVED        the topics live there; what has waited goes there, in order

Nothing is published on these topics, by this node, between HOLDING and MOVED, and each message is
published at one broker; so each subscriber gets it from one.  Who has subscribed where they go, to
other topics as well, gets from there what is retained as if it were new: that is known by topic and
payload, and goes no further (`Copies`).  The old subscriptions stay until a client has had what the
old broker has for it.

Several nodes before the same brokers go in step (`TopicMove.waits`): each step begins when the one
before is done at all of them.  A node that is not told to go on gives up, but for the last step:
some may have taken it.

Whatever goes wrong before MOVED, all is as before: what has waited goes to the old broker.  What
was subscribed and retained elsewhere by then does no harm, nobody publishes there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.cooperation.api import TopicMove
from isthmus.exchange.split.copying import Retained, publish_retained, read_retained
from isthmus.exchange.split.envoy import Envoy
from isthmus.exchange.split.kept import SAVE_S, Copies
from isthmus.exchange.split.life import MOVE, MoveEvent, MoveState, PartState
from isthmus.mqtt.filters.topics import split_shared
from isthmus.mqtt.packets import Publish
from isthmus.tables import step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isthmus.exchange.broker.own_sessions import OwnSessions
    from isthmus.exchange.split.brokers import Brokers
    from isthmus.exchange.split.kept import KeptSession, KeptSessions
    from isthmus.exchange.split.split import Split
    from isthmus.exchange.split.subscribing import Request

__all__ = ["STEPS", "Move"]

WRITTEN_S: Final = 5 * SAVE_S
"""By then what has changed of a kept session is on disk."""
STEPS: Final = ("hold", "copy", "publish", "subscribe", "switch")
"""What several nodes do together, one after the other."""
HOLD, COPY, PUBLISH, SUBSCRIBE, SWITCH = STEPS

LOOK_S: Final = 0.02
HOLD_S: Final = 30.0
"""How long anything waits at most; then the move is given up."""
SETTLE_S: Final = 0.3
LATE_S: Final = 30.0
"""For so long a copy is known as such that comes late to who is connected."""
MOVES_REMEMBERED: Final = 8
"""Of sessions of clients that are away, for when they are back."""
CLEAN_S: Final = 2.0
"""When it is looked, and looked again, who can do without its old subscription."""
CLEANINGS: Final = 30
SLICE: Final = 50
MAX_TRIES: Final = 3
"""For each client that is away, at each broker."""
ENVOYS: Final = 20
"""At a time."""
MAX_TOPICS: Final = 65_536
MAX_HELD_BYTES: Final = 8 << 20
"""Of QoS 0 from other nodes; more is dropped, and counted."""

Injected = Callable[[], object]


_HOLDS: Final = frozenset(
    (MoveState.HOLDING, MoveState.COPYING, MoveState.SUBSCRIBING, MoveState.SETTLING)
)


class Move:
    """One move, at one node; `over` is told how it ended, empty if the topics have moved."""

    def __init__(
        self,
        brokers: Brokers,
        own: Mapping[str, OwnSessions],
        sessions: KeptSessions,
        wanted: TopicMove,
        over: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._host = brokers.host
        self._own = own
        self._sessions = sessions
        self.wanted = wanted
        self._over = over
        self.state = MoveState.PREPARING
        self.problem = ""
        self.copied = self.subscribed = self.envoys = 0
        self.not_moved: list[str] = []
        """Clients that are away and could not be subscribed in their name."""
        self._from = list(dict.fromkeys(old for _, old, _ in wanted.parts))
        self._to = list(dict.fromkeys(new for _, _, new in wanted.parts))
        self._moves: dict[bytes, bool] = {}
        self._held: deque[Injected] = deque()
        self._held_bytes = 0
        self._reading: dict[str, Retained] = {}
        self._works: list[Callable[[], None]] = []
        self._copies: dict[str, dict[str, list[bytes]]] = {name: {} for name in self._to}
        """By broker and topic, what was published there as a copy."""
        self._publishing = 0
        self._told_sessions = False
        self._hold_ends_s = 0.0
        self._away: deque[Envoy] = deque()
        self._under_way: set[Envoy] = set()
        self._tries: Counter[tuple[str, str]] = Counter()
        """Envoys that were sent, by client and broker."""
        self._asked: list[tuple[Split, list[Request]]] = []
        """What clients had asked for, when it began, and were not answered."""
        self._next: tuple[str, Callable[[], None]] | None = None
        """The step that waits to be told."""
        self._done = False
        self._cleanings = 0

    def happens(self, event: MoveEvent) -> None:
        self.state, actions = step(MOVE, self.state, event)
        if actions:  # there is but one
            self._end()

    @property
    def is_under_way(self) -> bool:
        return self.state not in (MoveState.MOVED, MoveState.FAILED)

    # ---- which topics ------------------------------------------------------------------------

    def moves(self, topic: bytes) -> bool:
        found = self._moves.get(topic)
        if found is None:
            if len(self._moves) >= MAX_TOPICS:
                self._moves.clear()
            name = topic.decode()
            now = self._brokers.place_of(name)
            found = self._moves[topic] = bool(now) and self.wanted.broker_of(name) != now
        return found

    def holds(self, topic: bytes) -> bool:
        """Whether what is published on it has to wait."""
        return self.state in _HOLDS and self.moves(topic)

    def hold(self, publish: Injected, cost: int) -> bool:
        """What other nodes have published waits here; False if that is too much."""
        if self._held_bytes > MAX_HELD_BYTES and cost:
            return False
        self._held.append(publish)
        self._held_bytes += cost
        return True

    def matching(self, topic_filter: str) -> tuple[str, ...]:
        """The brokers that will have topics which it matches."""
        _, matched = split_shared(topic_filter)
        return tuple(self.wanted.brokers_of(matched))

    def gained(self, topic_filter: str) -> tuple[str, ...]:
        """The brokers that a filter will concern and has not: all that is there is copied."""
        before = self._brokers.matching_before(topic_filter)
        return tuple(each for each in self.matching(topic_filter) if each not in before)

    # ---- PREPARING, COPYING ------------------------------------------------------------------

    def begin(self) -> None:
        """Raises `ValueError` if a broker is away."""
        for name in (*self._from, *self._to):
            if problem := self._brokers.problems().get(name):
                raise ValueError(f"broker {name!r} is away: {problem}")
        self._brokers.matching_changed()
        self._asked = [(each, each.subscribing.requests()) for each in self._brokers.splits]
        if self.wanted.waits:
            self._step(HOLD, self._hold)
        else:
            self._read()

    def _step(self, name: str, do: Callable[[], None]) -> None:
        """The next step: at once, or when it is told to."""
        if not self.wanted.waits:
            do()
            return
        self._next = name, do
        if name != SWITCH:  # then others may have switched, and only who asked for it knows
            self._host.call_later(HOLD_S, partial(self._told_nothing, name))

    def _told_nothing(self, name: str) -> None:
        if self._next is not None and self._next[0] == name:
            self.fail(f"was not told to go on with {name!r} for {HOLD_S:g} s")

    def go(self, step: str) -> None:
        if self._next is None or self._next[0] != step:
            said = f"{step!r} is not the next step"
            now = self._next[0] if self._next is not None else self.state.value
            raise ValueError(f"{said} of {self.wanted.name}; it is {now}")
        _, do = self._next
        self._next = None
        self._hold_ends_s = self._host.now() + HOLD_S
        do()

    def _read(self) -> None:
        """All that is retained at all of them."""
        self._works.clear()
        self._reading.clear()
        names = dict.fromkeys((*self._from, *self._to))
        for name in names:
            filters = [each for each, *ends in self.wanted.parts if name in ends]
            told = partial(self._was_read, name, len(names))
            self._works.append(read_retained(self._own[name], filters, told))

    def _was_read(self, name: str, count: int, found: Retained | None, problem: str) -> None:
        if found is None:
            self.fail(f"broker {name!r}: {problem}")
            return
        self._reading[name] = found
        if len(self._reading) == count:
            self._compare()

    def _compare(self) -> None:
        todo: dict[str, list[Publish]] = {name: [] for name in self._to}
        place_of, broker_of = self._brokers.place_of, self.wanted.broker_of
        wanted: dict[str, dict[str, Publish]] = {name: {} for name in self._to}
        for old in self._from:
            for topic, publish in self._reading[old].items():
                if place_of(topic) == old and (new := broker_of(topic)) != old and new in wanted:
                    wanted[new][topic] = publish
        for new, theirs in wanted.items():
            there = self._reading[new]
            for topic, publish in theirs.items():
                if topic not in there or _differ(publish, there[topic]):
                    todo[new].append(publish)
            for topic in there:
                if topic not in theirs and broker_of(topic) == new != place_of(topic):
                    todo[new].append(Publish(topic, b"", 1, retain=True))
        self._reading.clear()
        for new, messages in todo.items():
            for each in messages:
                self._copies[new].setdefault(each.topic, []).append(each.payload)
        if not self._told_sessions:
            self._told_sessions = True
            self._tell_sessions_of_copies()
        if self.wanted.copies:
            self._step(PUBLISH, lambda: self._publish(todo))
        else:
            self._step(PUBLISH, self._all_copied)

    def _publish(self, todo: Mapping[str, Sequence[Publish]]) -> None:
        self._publishing = len(todo)
        self._works.clear()
        for new, messages in todo.items():
            self.copied += len(messages)
            told = partial(self._was_copied, new)
            self._works.append(publish_retained(self._own[new], messages, told))

    def _tell_sessions_of_copies(self) -> None:
        """Those that have subscribed there already."""
        kept = [split.kept for split in self._brokers.splits]
        kept += [each for _, each in self._sessions.away()]
        for session in kept:
            for name in self._to:
                asked = session.asked.get(name, ())
                unasked = [each for each in session.untold.get(name, ()) if each not in asked]
                known = {each for each in session.wanted.get(name, ()) if each not in unasked}
                known |= set(session.unwanted.get(name, ()))  # of which it may not know yet
                filters = tuple(
                    sorted(each for each in known.union(asked) if split_shared(each)[1] == each)
                )
                self._note_copies(session, name, filters)

    def note_subscriber(self, session: KeptSession, topic_filter: str) -> None:
        """It subscribes while copies may be on their way."""
        for name in self.matching(topic_filter):
            if name in self._copies:
                self._note_copies(session, name, (topic_filter,))

    def _note_copies(self, session: KeptSession, name: str, filters: tuple[str, ...]) -> None:
        if filters:
            theirs = session.copies.setdefault(name, [])
            theirs.append(Copies(self._copies[name], filters))
            del theirs[:-MOVES_REMEMBERED]

    def _was_copied(self, name: str, problem: str) -> None:
        if problem:
            self.fail(f"broker {name!r}: {problem}")
            return
        self._publishing -= 1
        if not self._publishing:
            self._all_copied()

    def _all_copied(self) -> None:
        if self._done:
            return
        if self.state is MoveState.PREPARING:
            self._hold()
        else:
            self._step(SUBSCRIBE, self._subscribe)

    # ---- HOLDING -----------------------------------------------------------------------------

    def _hold(self) -> None:
        self.happens(MoveEvent.HOLD)
        self._hold_ends_s = self._host.now() + HOLD_S
        for split in self._brokers.splits:
            for name in self._from:
                if (part := split.part_at(name)) is not None:
                    part.watch_under_way()
        self._look()

    def _look(self) -> None:
        """Go on when nothing is waited for any more."""
        if self._done:
            return
        for name in (*self._from, *self._to):
            if self._brokers.is_away(name):
                self.fail(f"broker {name!r} is away: {self._brokers.problems()[name]}")
                return
        if self._host.now() > self._hold_ends_s:
            self.fail(f"{self.state.value} for {HOLD_S:g} s: {self._waits_for()}")
            return
        if self._waits_for():
            self._host.call_later(LOOK_S, self._look)
        elif self.state is MoveState.HOLDING:
            self.happens(MoveEvent.DRAINED)
            self._step(COPY, self._read)
        elif self.state is MoveState.SUBSCRIBING:
            if self._look_for_sessions_away():
                self._host.call_later(LOOK_S, self._look)
                return
            self.happens(MoveEvent.SUBSCRIBED)
            self._host.call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        if not self._done:
            self._step(SWITCH, self._switch)

    def _waits_for(self) -> str:
        if self.state is MoveState.HOLDING:
            for split, requests in self._asked:
                now = split.subscribing.requests()
                if any(each in now for each in requests):
                    return f"client {split.client_id!r} waits for a subscription"
            for split in self._brokers.splits:
                for name in self._from:
                    part = split.part_at(name)
                    if part is not None and part.has_under_way(self.moves):
                        return f"client {split.client_id!r} and {name} have not finished"
            for name in self._from:
                for injector in self._own[name].injectors.values():
                    if injector.has_on(self.moves):
                        return f"{name} has not acknowledged what came from other nodes"
        elif self.state is MoveState.SUBSCRIBING:
            if self._under_way or self._away:
                return f"{len(self._under_way) + len(self._away)} clients that are away"
            for split in self._brokers.splits:
                if not split.is_open:
                    if self._comes_back(split):
                        return f"client {split.client_id!r} is not let in yet"
                    continue
                for name in self._to:
                    if self._is_untold(split, name):
                        return f"client {split.client_id!r} is not subscribed at {name}"
        return ""

    def _comes_back(self, split: Split) -> bool:
        """Whether it is about to go on with a session that lacks a subscription."""
        kept = self._sessions.of(split.client_id) if split.client_id else None
        return kept is not None and any(kept.untold.get(name) for name in self._to)

    def _is_untold(self, split: Split, name: str) -> bool:
        """Whether a broker is still to be told; it is, if it can be."""
        part = split.part_at(name)
        if not split.kept.untold.get(name):
            return part is not None and part.state.waits
        part = split.part(name)
        if part.state is PartState.OPEN:
            part.tell_more()
        return part.state is not PartState.REFUSED

    # ---- SUBSCRIBING -------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self.happens(MoveEvent.COPIED)
        self._subscribe_some(deque(self._brokers.splits))

    def _subscribe_some(self, splits: deque[Split]) -> None:
        """Those who are connected, then those who are away."""
        if self._done:
            return
        for _ in range(min(SLICE, len(splits))):
            split = splits.popleft()
            if split.is_open:
                for name in self._add(split.kept):
                    split.part(name).tell_more()
        if splits:
            self._host.call_later(0.0, partial(self._subscribe_some, splits))
            return
        for client_id, kept in list(self._sessions.away()):
            if self._add(kept):
                self._sessions.changed(client_id)
        self._look_for_sessions_away()
        self._look()

    def _look_for_sessions_away(self) -> bool:
        """Whether somebody is away, now, for whom there is something to do still."""
        for client_id, kept in self._sessions.away():
            for name in self._to:
                if kept.untold.get(name) and self._tries[client_id, name] < MAX_TRIES:
                    self._tries[client_id, name] += 1
                    self._away.append(
                        Envoy(self._brokers, client_id, kept, name, self._envoy_is_back)
                    )
        self._send_envoys()
        return bool(self._away or self._under_way)

    def _add(self, kept: KeptSession) -> list[str]:
        """Note what is to be subscribed where, of one session; at which brokers."""
        added: dict[str, None] = {}
        everywhere = {
            topic_filter: wanted
            for theirs in list(kept.wanted.values())
            for topic_filter, wanted in theirs.items()
        }
        for topic_filter, wanted in everywhere.items():
            for name in self.matching(topic_filter):
                if name not in self._copies:
                    continue
                theirs = kept.wanted.setdefault(name, {})
                if topic_filter not in theirs:
                    theirs[topic_filter] = wanted
                    kept.untold.setdefault(name, {})[topic_filter] = None
                    kept.quiet.setdefault(name, set()).add(topic_filter)
                    kept.unwanted.get(name, {}).pop(topic_filter, None)
                    added[name] = None
                    self.subscribed += 1
        return list(added)

    def _send_envoys(self) -> None:
        while self._away and len(self._under_way) < ENVOYS:
            envoy = self._away.popleft()
            if envoy.is_back():
                continue  # it has come back, and is looked after with those who are connected
            self._under_way.add(envoy)
            self.envoys += 1
            envoy.go()

    def _envoy_is_back(self, envoy: Envoy, problem: str) -> None:
        self._under_way.discard(envoy)
        is_back = any(split.client_id == envoy.client_id for split in self._brokers.splits)
        tries = self._tries[envoy.client_id, envoy.name]
        if problem and not is_back and tries == MAX_TRIES:
            self.not_moved.append(envoy.client_id)
            self._host.log(
                "warning",
                "a client that is away could not be subscribed where its topics go",
                client_id=envoy.client_id,
                broker=envoy.name,
                cause=problem,
            )
        self._send_envoys()

    # ---- MOVED -------------------------------------------------------------------------------

    def _switch(self) -> None:
        if self._done:
            return
        self._done = True
        for split in self._brokers.splits:
            split.note_will(self.wanted.broker_of)
        self.happens(MoveEvent.SWITCH)
        self._host.call_later(LATE_S, self._forget_copies)
        self._host.call_later(CLEAN_S, self._clean)

    def _forget_copies(self) -> None:
        for split in self._brokers.splits:
            theirs = [each for some in split.kept.copies.values() for each in some]
            mine = list(map(id, self._copies.values()))
            split.kept.forget_copies([each for each in theirs if id(each.payloads) in mine])
        self._brokers.moved(self)

    def _clean(self) -> None:
        """Old subscriptions end where nothing more is to come."""
        waits = False
        for split in list(self._brokers.splits):
            if not split.is_open:
                continue
            for name in self._from:
                part = split.part_at(name)
                ended = self._ended(split.kept, name)
                if part is None or not ended:
                    continue
                if split.delivering.identifiers.has(name) or part.state is not PartState.OPEN:
                    waits = True
                    continue
                self._end_subscriptions(split.kept, name, ended)
                split.kept_changed()
                self._host.call_later(WRITTEN_S, partial(self._unsubscribe, split, name))
        self._cleanings += 1
        if self._cleanings == 1:
            for client_id, kept in list(self._sessions.away()):
                for name in self._from:
                    self._end_subscriptions(kept, name, self._ended(kept, name))
                self._sessions.changed(client_id)
        if waits and self._cleanings < CLEANINGS:
            self._host.call_later(CLEAN_S, self._clean)

    @staticmethod
    def _unsubscribe(split: Split, name: str) -> None:
        """Not before it is written that it is to be: a node that crashed then would believe the
        broker to have what it has not, and not subscribe there when topics come back."""
        part = split.part_at(name)
        if split.is_open and part is not None and part.state is PartState.OPEN:
            part.tell_more()

    def _ended(self, kept: KeptSession, name: str) -> list[str]:
        return [
            each for each in kept.wanted.get(name, ()) if name not in self._brokers.matching(each)
        ]

    def _end_subscriptions(self, kept: KeptSession, name: str, filters: Iterable[str]) -> None:
        for each in filters:
            del kept.wanted[name][each]
            kept.untold.get(name, {}).pop(each, None)
            kept.unwanted.setdefault(name, {})[each] = None

    # ---- how it ends -------------------------------------------------------------------------

    def fail(self, problem: str) -> None:
        """All is as it was."""
        if self._done:
            return
        self._done = True
        self._next = None
        self.problem = problem
        works, self._works = self._works, []
        for close in works:
            close()
        for envoy in list(self._under_way):
            envoy.close()
        self._away.clear()
        self.happens(MoveEvent.FAIL)

    def _end(self) -> None:
        """The algorithm is told; then what has waited finds its way."""
        if self.state is MoveState.FAILED:
            self._brokers.moved(self)
        self._over(self.problem)
        self._release()

    def _release(self) -> None:
        """What has waited goes on, in order."""
        held, self._held = self._held, deque()
        self._held_bytes = 0
        for publish in held:
            publish()
        for split in list(self._brokers.splits):
            split.release_held()

    def status(self) -> dict[str, object]:
        return {
            "move": self.wanted.name,
            "state": self.state.value,
            "next": self._next[0] if self._next is not None else "",
            "problem": self.problem,
            "waits_for": "" if self._done else self._waits_for(),
            "retained_copied": self.copied,
            "subscriptions": self.subscribed,
            "sessions_away": self.envoys,
            "sessions_not_moved": self.not_moved[:20],
        }


def _differ(one: Publish, other: Publish) -> bool:
    return (one.payload, one.qos, one.properties) != (other.payload, other.qos, other.properties)
