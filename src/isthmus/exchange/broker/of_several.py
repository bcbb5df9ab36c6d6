"""The node's own sessions where it has several brokers: a set of them at each.

What comes over links is published at the broker in charge of its topic, and retained messages are
asked there.  Each broker's sessions know nothing of the others': what one refuses, is slow with or
closes on does not touch the rest.  A message on a topic that no broker has is counted and done
with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby

from isthmus.exchange.broker.injector import Injector
from isthmus.exchange.broker.own_session import KEEP_ALIVE_S
from isthmus.exchange.broker.own_sessions import OwnSessions
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import Session, SessionHost, Wire
from isthmus.exchange.split.brokers import Brokers
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.encoding import encode

__all__ = ["AtBroker", "OwnSessionsOfSeveral"]

ASKS_KEY = ":looks"
"""Of a session that only asks whether the broker is there; no node has such an id."""


class AtBroker:
    """What sessions with one of several brokers need of their surroundings (`SessionHost`)."""

    def __init__(self, host: SessionHost, brokers: Callable[[], Brokers], name: str) -> None:
        self._brokers = brokers
        self._name = name
        self._host = host
        self.now, self.clock = host.now, host.clock

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        return self._host.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self._host.call_soon(callback)

    def connect_broker(
        self, session: Session, failed: Callable[[str], None], broker: str = ""
    ) -> None:
        self._brokers().connect(self._name, session, failed)

    def silent_s(self, wire: Wire) -> float | None:
        return self._host.silent_s(wire)

    def log(self, level: str, event: str, **fields: object) -> None:
        self._host.log(level, event, broker=self._name, **fields)


class OwnSessionsOfSeveral:
    """`OwnSessions` of each broker, behind the same calls."""

    source = None
    """Nothing is taken from several."""

    def __init__(
        self, host: SessionHost, of: Mapping[str, OwnSessions], brokers: Callable[[], Brokers]
    ) -> None:
        self._host = host
        self.of = of
        self._brokers = brokers

    # ---- what comes over links -----------------------------------------------------------

    def inject(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> bool:
        brokers = self._brokers()
        name = brokers.of(message.topic)
        if brokers.move is not None and brokers.move.holds(message.topic):
            cost = 0 if message.qos else message.cost
            return brokers.move.hold(partial(self.inject, message, key, done, kept), cost)
        if name:
            return self.of[name].inject(message, key, done, kept)
        self._brokers().counters["nobodys_topic"] += 1
        if done is not None:
            done()
        return True

    def inject_plain(self, topics: Sequence[bytes], payloads: Sequence[bytes], key: str) -> int:
        of, move = self._brokers().of, self._brokers().move
        dropped = 0
        for name, some in groupby(zip(topics, payloads, strict=True), lambda each: of(each[0])):
            theirs = list(some)
            if move is not None and (held := [each for each in theirs if move.holds(each[0])]):
                theirs = [each for each in theirs if not move.holds(each[0])]
                again = partial(
                    self.inject_plain, [each for each, _ in held], [each for _, each in held], key
                )
                if not move.hold(again, sum(len(a) + len(b) for a, b in held)):
                    dropped += len(held)
            if name:
                dropped += self.of[name].inject_plain(
                    [topic for topic, _ in theirs], [payload for _, payload in theirs], key
                )
            else:
                self._brokers().counters["nobodys_topic"] += len(theirs)
        return dropped

    def set_apart(self, key: str) -> bool:
        """At each: whoever takes its messages as they come has nothing to be put on disk."""
        set_apart = [own.set_apart(key) for own in self.of.values()]
        return any(set_apart)

    def publish_left(self, key: str) -> None:
        neighbor, _, name = key.partition("@")
        if name in self.of:
            self.of[name].publish_left(neighbor)
        else:
            self._host.log(
                "warning",
                "messages on disk for a broker that is not configured; they stay there",
                broker=name,
                neighbor=neighbor,
            )

    def give_up_injected(self, key: str, size: int) -> int:
        """Of those at brokers that are away, before the others."""
        away = self._brokers().is_away
        given_up = 0
        for name in sorted(self.of, key=lambda name: not away(name)):
            given_up += self.of[name].give_up_injected(key, size)
            if given_up:
                break
        return given_up

    def neighbor_joined(self, key: str) -> None:
        for own in self.of.values():
            own.neighbor_joined(key)

    def neighbor_left(self, key: str) -> None:
        for own in self.of.values():
            own.neighbor_left(key)

    def ask_retained(
        self, topics: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        """The topics are all of one broker."""
        name = self._brokers().of(topics[0])
        self.of[name].ask_retained(topics, answer)

    # ---- what comes from brokers: nothing is taken from several ----------------------------

    def start(self) -> None:
        raise AssertionError("several brokers, and source = broker: the configuration refuses it")

    def want(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Never called."""

    def retained_published(self, topic: bytes, payload: bytes) -> None:
        """Of no interest."""

    def stop_taking(self) -> None:
        """There is nothing to stop."""

    def greeting(self, name: str) -> bytes:
        """A CONNECT of the node's own."""
        own = self.of[name]
        return encode(own.connect(ASKS_KEY, KEEP_ALIVE_S, own.level), own.level)

    def close(self) -> None:
        for own in self.of.values():
            own.close()

    # ---- what is told of them --------------------------------------------------------------

    @property
    def injectors(self) -> list[Injector]:
        return [each for own in self.of.values() for each in own.injectors.values()]

    @property
    def standing(self) -> int:
        return sum(own.standing for own in self.of.values())

    @property
    def silent(self) -> bool:
        return any(own.silent for own in self.of.values())

    @property
    def problem(self) -> str:
        """Why brokers refuse them."""
        return "; ".join(f"{name}: {own.problem}" for name, own in self.of.items() if own.problem)
