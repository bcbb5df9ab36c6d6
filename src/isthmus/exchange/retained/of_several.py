"""The retained store and several brokers: copies at each, one not waiting for another.

The store is one, and so is what it owes; each topic's copy is its broker's to have.  What is on a
topic that no broker has is owed to nobody.

A client's message may have gone to other nodes when its own broker, which is away, does not get it.
So what clients have retained shortly before that, and what they retain meanwhile, their broker is
asked for when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isthmus.exchange.retained.broker import BrokerCopies
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.retained.values import Retained
from isthmus.exchange.traffic.message import Message

__all__ = ["CopiesOfSeveral"]


class CopiesOfSeveral:
    """`BrokerCopies` of each broker, behind the same calls."""

    def __init__(
        self,
        store: RetainedStore,
        of: Mapping[str, BrokerCopies],
        broker_of: Callable[[bytes], str],
        is_away: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._of = of
        self._broker_of = broker_of
        self._is_away = is_away

    def __len__(self) -> int:
        """How many topics brokers are owed."""
        return len(self._store.owed)

    def start(self) -> None:
        for topic in list(self._store.owed):
            if not self._broker_of(topic):
                self._settle(topic)
        for each in self._of.values():
            each.start()

    def stop(self) -> None:
        for each in self._of.values():
            each.stop()

    def published(self, topic: bytes) -> None:
        if name := self._broker_of(topic):
            self._of[name].published(topic)
            if self._is_away(name):
                self._of[name].missed(topic)

    def away(self, name: str) -> None:
        """A broker goes."""
        self._of[name].local_lost()

    def deliver(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> None:
        if name := self._broker_of(message.topic):
            self._of[name].deliver(message, key, done, kept)
        elif done is not None:
            done()

    def known(
        self,
        message: Message,
        key: str,
        done: Callable[[], None],
        kept: Callable[[], None] | None = None,
    ) -> None:
        if name := self._broker_of(message.topic):
            self._of[name].known(message, key, done, kept)
        else:
            done()

    def owe(self, retained: Retained, *, ask: bool) -> None:
        if name := self._broker_of(retained.topic):
            self._of[name].owe(retained, ask=ask)

    def want_only(self, is_wanted: Callable[[bytes], bool]) -> None:
        for each in self._of.values():
            each.want_only(is_wanted)

    def wanted(self, topic: bytes) -> None:
        if name := self._broker_of(topic):
            self._of[name].wanted(topic)

    def is_busy(self, topic: bytes) -> bool:
        name = self._broker_of(topic)
        return bool(name) and self._of[name].is_busy(topic)

    def session_lost(self, key: str = "") -> None:
        for each in self._of.values():
            each.session_lost(key)

    def _settle(self, topic: bytes) -> None:
        version = self._store.version(topic)
        if version is not None:
            self._store.settle(topic, version)
