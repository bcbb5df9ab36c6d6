"""What the node is subscribed to at its own broker, with ``source = "broker"``.

    wanted by neighbors ──disjoint──▶ covers ──SUBSCRIBE──▶ asked ──SUBACK──▶ granted, or refused
                                        └──no longer──▶ UNSUBSCRIBE ──UNSUBACK──▶ gone

Filters do not overlap (`isthmus.mqtt.filters.disjoint`).  When they change, what is new is asked
for first, and only when that is answered, what it takes the place of is given back: nothing falls
between.  Meanwhile both match, and a broker may deliver a message for each.  So of what the old
ones match, while they are *going*, every second message of the same content is swallowed: if it was
published twice within these moments, one of the two is lost.

A filter that the broker refuses (a code of 0x80 or more, or none) is told once and listed until it
is not wanted any more, or a session begins.  What it was to take the place of stays: it is wanted
as well, though neighbors do not say so any more (a *stand-in*).

A broker may refuse a filter by closing the session.  What a session fell with, not answered, is
*suspect*: the next one asks for it last, and one by one.  With whom it has fallen so `FALLS` times,
while it answered others, is refused, and not tried again until it is not wanted any more.

Packets have at most `BATCH` filters of `BATCH_BYTES`, one packet at a time is not answered.  What
the broker may be subscribed to is kept over a restart, before it is asked for (`save`): a session
that the broker keeps goes on with it, also if nobody wants it any more.  Until the neighbors are
back all of it is still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import Final

from isthmus.mqtt.filters.covering import covers
from isthmus.mqtt.filters.disjoint import DisjointFilters
from isthmus.mqtt.filters.index import FilterIndex
from isthmus.mqtt.packets import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe

__all__ = ["BATCH", "BrokerSubscriptions"]

BATCH: Final = 100
BATCH_BYTES: Final = 8_000
FALLS: Final = 3
MAX_FIRST: Final = 100_000
"""Messages that are remembered while filters change."""
_REFUSED: Final = 0x80
_ID: Final = 65_535
"""Of the one packet that is not answered; messages that are published have other identifiers."""


class BrokerSubscriptions:
    """The filters, and what of them the broker has been asked for."""

    def __init__(
        self,
        send: Callable[[Subscribe | Unsubscribe], None],
        *,
        granted: Callable[[Sequence[str], int], None],
        refused: Callable[[str, int], None],
        save: Callable[[Sequence[str]], None],
        always: Sequence[str] = (),
    ) -> None:
        """`granted` is told of filters that are new, and the least QoS; `always` are asked for
        first, whoever wants what."""
        self._send = send
        self._save = save
        self._granted = granted
        self._refused_now = refused
        self._always = tuple(always)
        self._wanted = DisjointFilters()
        self._kept: set[str] = set()
        self._neighbors: set[str] = set()
        """What neighbors want, without what is only kept."""
        self._stand_ins: dict[str, None] = {}
        self._told: set[str] = set()
        """What the broker has been asked for and not been asked to end, or not answered so."""
        self._to_ask: dict[str, None] = {}
        self._to_end: dict[str, None] = {}
        self._suspects: dict[str, int] = {}
        """How often the session has fallen with them."""
        self._closing: set[str] = set()
        """What the broker closes on."""
        self._has_answered = False
        """In this session, what it was asked for."""
        self._asked: Sequence[str] = ()
        self._ended: Sequence[str] = ()
        self._level = 0
        """0 while there is no session."""
        self._index: FilterIndex[int] = FilterIndex()
        """All that messages may come by."""
        self._matching: dict[bytes, bool] = {}
        self._going: FilterIndex[int] = FilterIndex()
        self._first: set[int] = set()
        """What has come once by filters of which some are going."""
        self.refused: dict[str, int] = {}
        self.granted: dict[str, None] = {}
        """What messages come by."""

    def __len__(self) -> int:
        return len(self._wanted.covers)

    @property
    def filters(self) -> tuple[str, ...]:
        """What is subscribed to, or about to be."""
        return tuple(self._wanted.covers)

    def _may_be_subscribed(self) -> Sequence[str]:
        going = (each for each in (*self._to_end, *self._ended) if each not in self._wanted.covers)
        return (*self._wanted.covers, *going)

    @property
    def changing(self) -> bool:
        """Whether a message may come twice now."""
        return len(self._going) > 0

    # ---- what is wanted ------------------------------------------------------------------

    def keep(self, filters: Iterable[str]) -> None:
        """What was subscribed to in the last life: as if it were wanted, until `forget_kept`."""
        self._kept.update(filters)
        for each in self._kept:
            self._wanted.add(each)
        self._told |= self._kept
        self._to_end |= dict.fromkeys(self._kept.difference(self._wanted.covers))
        self._changed()

    def forget_kept(self) -> None:
        kept, self._kept = self._kept, set()
        for each in kept - self._neighbors:
            self._end(each)
        self._changed()

    def want(self, added: Iterable[str], removed: Iterable[str]) -> None:
        for each in added:
            self._neighbors.add(each)
            self._wanted.add(each)
        for each in removed:
            self._neighbors.discard(each)
            if each not in self._kept:
                self._end(each)
        for each in list(self._stand_ins):
            if not self._stands_in(each):
                del self._stand_ins[each]
                if each not in self._neighbors and each not in self._kept:
                    self._wanted.remove(each)
        self._changed()

    def _end(self, topic_filter: str) -> None:
        if topic_filter in self._told and self._stands_in(topic_filter):
            self._stand_ins[topic_filter] = None
        else:
            self._wanted.remove(topic_filter)

    def _stands_in(self, topic_filter: str) -> bool:
        """Whether one that is refused, and wanted, covers it."""
        return any(
            each in self._neighbors and each != topic_filter and covers(each, topic_filter)
            for each in self._wanted.refused
        )

    def _refuse(self, topic_filter: str, code: int) -> None:
        self._told.discard(topic_filter)
        self._to_end.pop(topic_filter, None)
        self._going.discard(topic_filter, 0)
        self.refused[topic_filter] = code
        self._wanted.refuse(topic_filter)
        for each in [each for each in self._to_end if self._stands_in(each)]:
            self._stand_ins[each] = None
            self._wanted.add(each)
        self._refused_now(topic_filter, code)

    def _changed(self) -> None:
        wanted = self._wanted
        self._closing.intersection_update(chain(wanted.refused, self._always))
        for each in [each for each in self.refused if each not in wanted.refused]:
            if each not in self._always:
                del self.refused[each]
        if not wanted.added and not wanted.removed:
            return
        for each in wanted.added:
            self._to_end.pop(each, None)
            self._going.discard(each, 0)
            if each not in self.granted or each in self._ended:
                self._to_ask[each] = None
        for each in wanted.removed:
            self._to_ask.pop(each, None)
            self._suspects.pop(each, None)
            if each in self._told:
                self._to_end[each] = None
        wanted.added.clear()
        wanted.removed.clear()
        self._save(self._may_be_subscribed())
        self._go_on()

    # ---- the session ---------------------------------------------------------------------

    def opened(self, level: int, *, resumed: bool = False) -> None:
        """All is asked for again: the broker may have forgotten it.

        If the session is `resumed` messages may come by it already.
        """
        self._wanted.forgive(but=self._closing)
        self._changed()
        self._level = level
        for each in (*self._wanted.covers, *self._told) if resumed else ():
            self._index.add(each, 0)
        self._matching.clear()
        self.refused = dict.fromkeys(self._closing, _REFUSED)
        everything = [each for each in self._always if each not in self._closing]
        everything += self._wanted.covers
        self._to_ask = dict.fromkeys(each for each in everything if each not in self._suspects)
        self._to_ask |= dict.fromkeys(each for each in self._suspects if each in everything)
        self._has_answered = len(everything) == 1
        self._go_on()

    def lost(self) -> None:
        self._level = 0
        self._suspect()
        self.granted.clear()
        self._to_end |= dict.fromkeys(self._ended)
        self._asked = self._ended = ()
        self._first.clear()

    def _suspect(self) -> None:
        """The session falls, and it may be for what was asked."""
        wanted = {*self._always, *self._wanted.covers}
        asked = [each for each in self._asked if each in wanted]
        falls = len(self._asked) == 1 and self._has_answered
        for each in asked:
            self._suspects[each] = self._suspects.pop(each, 0) + falls
            if self._suspects[each] >= FALLS:
                del self._suspects[each]
                self._closing.add(each)
                self._refuse(each, _REFUSED)
                self._changed()

    @property
    def waits(self) -> bool:
        """The broker has not answered what it was asked for."""
        return bool(self._asked)

    def _next(self, filters: Iterable[str]) -> Sequence[str]:
        """What of them goes into one packet."""
        some: list[str] = []
        size = 0
        for each in islice(filters, BATCH):
            size += len(each.encode()) + 3
            if some and (size > BATCH_BYTES or each in self._suspects):
                break
            some.append(each)
            if each in self._suspects:
                break
        return some

    def _go_on(self) -> None:
        if not self._level or self._asked or self._ended:
            return
        if self._to_ask:
            self._asked = self._next(self._to_ask)
            for each in self._asked:
                del self._to_ask[each]
                self._told.add(each)
                self._index.add(each, 0)
            self._matching.clear()
            for each in self._to_end:
                self._going.add(each, 0)
            new = self._level == 5
            subscriptions = tuple(
                Subscription(
                    each, 2, no_local=new, retain_as_published=new, retain_handling=2 if new else 0
                )
                for each in self._asked
            )
            self._send(Subscribe(_ID, subscriptions))
        elif self._to_end:
            self._ended = self._next(self._to_end)
            for each in self._ended:
                del self._to_end[each]
            self._send(Unsubscribe(_ID, tuple(self._ended)))

    def answered(self, packet: SubAck | UnsubAck) -> None:
        """The broker's answer; one that was not asked for means nothing."""
        if packet.packet_id != _ID:
            return
        if isinstance(packet, SubAck) and self._asked:
            asked, self._asked = self._asked, ()
            self._has_answered = True
            for each in asked:
                self._suspects.pop(each, None)
            said = packet.reason_codes[: len(asked)]
            codes: dict[str, int] = dict(zip_longest(asked, said, fillvalue=_REFUSED))  # type: ignore[arg-type]
            for each, code in codes.items():
                if code >= _REFUSED:
                    self._index.discard(each, 0)
                    self._refuse(each, code)
            self._matching.clear()
            taken = [each for each, code in codes.items() if code < _REFUSED]
            self.granted |= dict.fromkeys(each for each in taken if each not in self._always)
            if taken:
                self._granted(taken, min(codes[each] for each in taken))
            self._changed()
        elif isinstance(packet, UnsubAck) and self._ended:
            ended, self._ended = self._ended, ()
            for each in ended:
                self._going.discard(each, 0)
                self._told.discard(each)
                self.granted.pop(each, None)
                if each not in self._to_ask and each not in self._wanted.covers:
                    self._index.discard(each, 0)
            self._matching.clear()
            self._save(self._may_be_subscribed())
            if not len(self._going):
                self._first.clear()
        self._go_on()

    # ---- what comes by them --------------------------------------------------------------

    def matches(self, topic: bytes) -> bool:
        """Whether what is published on `topic` comes to the node."""
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) > 65_536:
                self._matching.clear()
            found = self._matching[topic] = bool(self._index.match(topic.decode()))
        return found

    def is_second(self, topic: bytes, payload: bytes) -> bool:
        """While `changing`: whether a message has come by another filter already."""
        if not self._going.match(topic.decode()):
            return False
        key = hash((topic, payload))
        if key in self._first:
            self._first.discard(key)
            return True
        if len(self._first) >= MAX_FIRST:
            self._first.clear()
        self._first.add(key)
        return False
