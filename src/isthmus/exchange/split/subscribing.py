"""A SUBSCRIBE or UNSUBSCRIBE in parts, and the one answer made of theirs.

Each filter goes to every broker that has topics for it, and gets one code:

* SUBSCRIBE: the lowest QoS that was granted; or, if one of the brokers refuses it, that refusal,
  and those that granted it are unsubscribed again before the client is told: there is no half of a
  subscription; it is counted and logged, since the client hears of one answer only.  A broker that
  is away subscribes when it is back; a filter that only brokers have which are away, or nobody, is
  refused.
* UNSUBSCRIBE: success if it was there at one of them; a broker that is away is told later.

All parts have the packet identifier of the client's own packet, and so has what is taken back: the
client does not use it again before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.exchange.split.kept import KeptSession, Wanted
from isthmus.exchange.split.life import PartState
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.topics import split_shared
from isthmus.mqtt.packets import (
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.split.part import Part
    from isthmus.exchange.split.split import Split

__all__ = ["Request", "Subscribing"]

_AWAY = -1


class Request:
    """What a client has asked for and has not been answered."""

    __slots__ = ("_codes", "_places", "packet", "settled", "undoing", "unsure", "waits")

    def __init__(
        self, packet: Subscribe | Unsubscribe, brokers_of: Iterable[Sequence[str]]
    ) -> None:
        """`brokers_of`: for each filter the brokers that it goes to."""
        self.packet = packet
        self._places: dict[str, list[int]] = {}
        self._codes: list[dict[str, int]] = []
        """Of each filter, by broker."""
        for index, names in enumerate(brokers_of):
            self._codes.append({})
            for name in names:
                self._places.setdefault(name, []).append(index)
        self.waits = set(self._places)
        self.unsure: set[str] = set()
        """Brokers that went when they had been asked, and may have granted it."""
        self.settled = False
        """All have answered; what is now waited for is what is taken back."""
        self.undoing: dict[str, Unsubscribe] = {}
        """What is being taken back, by broker."""

    @property
    def brokers(self) -> Sequence[str]:
        return list(self._places)

    @property
    def is_whole(self) -> bool:
        """All of it goes to one broker, whose answer is the client's."""
        return len(self._places) == 1 and all(
            len(places) == len(self._codes) for places in self._places.values()
        )

    def awaits(self, name: str) -> bool:
        """Not of one that answers an earlier packet, with whose identifier a client goes wrong."""
        return name in self.waits or name in self.undoing

    def part(self, name: str) -> Subscribe | Unsubscribe:
        """What goes to one broker."""
        asked, places = self.packet, self._places[name]
        if isinstance(asked, Subscribe):
            return replace(asked, subscriptions=tuple(asked.subscriptions[at] for at in places))
        return replace(asked, topic_filters=tuple(asked.topic_filters[at] for at in places))

    def answered(self, name: str, codes: Sequence[int]) -> None:
        """A broker has; one that has answered too little has refused the rest."""
        self.waits.discard(name)
        places = self._places[name]
        if isinstance(self.packet, Unsubscribe) and not codes:
            codes = (0,) * len(places)  # MQTT 3.1.1 has none
        padded = [*codes, *(ReasonCode.UNSPECIFIED_ERROR for _ in places)]
        for at, code in zip(places, padded, strict=False):
            self._codes[at][name] = code

    def refused(self, name: str, code: ReasonCode) -> None:
        """A broker takes nothing of this client."""
        self.answered(name, (code,) * len(self._places[name]))

    def is_away(self, name: str) -> None:
        """A broker cannot be asked now."""
        self.answered(name, (_AWAY,) * len(self._places[name]))

    def was_away(self, name: str) -> bool:
        return any(self._codes[at].get(name) == _AWAY for at in self._places[name])

    def granted(self, name: str) -> Iterable[tuple[Subscription, bool]]:
        """What the client now has subscribed to at a broker; True: the broker is to be told."""
        assert isinstance(self.packet, Subscribe)
        for at in self._places.get(name, ()):
            codes = self._codes[at]
            if not _refused(codes) and any(code != _AWAY for code in codes.values()):
                yield self.packet.subscriptions[at], codes[name] == _AWAY

    def ended(self, name: str) -> Iterable[str]:
        """What a broker has unsubscribed the client from, or will have when it is back."""
        assert isinstance(self.packet, Unsubscribe)
        for at in self._places[name]:
            if self._codes[at][name] < 0x80:
                yield self.packet.topic_filters[at]

    def refused_filters(self, name: str) -> Iterable[str]:
        """Of what a broker was asked for what the client does not have."""
        assert isinstance(self.packet, Subscribe)
        for at in self._places[name]:
            codes = self._codes[at]
            if _refused(codes) or all(code == _AWAY for code in codes.values()):
                yield self.packet.subscriptions[at].topic_filter

    def undo(self) -> dict[str, Unsubscribe]:
        """What has to be taken back, by broker, because another one refuses it."""
        if not isinstance(self.packet, Subscribe):
            return {}
        found: dict[str, list[str]] = {}
        for asked, codes in zip(self.packet.subscriptions, self._codes, strict=True):
            if _refused(codes):
                for name in _granting(codes):
                    found.setdefault(name, []).append(asked.topic_filter)
        return {
            name: Unsubscribe(self.packet.packet_id, tuple(filters))
            for name, filters in found.items()
        }

    def in_dispute(self) -> list[tuple[str, str, int]]:
        """Filters that one broker refuses and another one grants; who refuses, and with what."""
        if not isinstance(self.packet, Subscribe):
            return []
        return [
            next((asked.topic_filter, name, code) for name, code in codes.items() if code >= 0x80)
            for asked, codes in zip(self.packet.subscriptions, self._codes, strict=True)
            if _refused(codes) and _granting(codes)
        ]

    def answer(self, level: int) -> bytes:
        """All have answered: what the client is told."""
        if isinstance(self.packet, Subscribe):
            codes = tuple(_subscribed(each, level) for each in self._codes)
            return encode(SubAck(self.packet.packet_id, codes), level)
        codes = tuple(_unsubscribed(each) for each in self._codes) if level == 5 else ()
        return encode(UnsubAck(self.packet.packet_id, codes), level)


class Subscribing:
    """What one client has asked for and has not been answered."""

    __slots__ = ("_requests", "_split", "kept")

    def __init__(self, split: Split) -> None:
        self._split = split
        self.kept = KeptSession()
        """Its session's, once it is let in."""
        self._requests: dict[int, Request] = {}
        """By packet identifier; a client uses one for one packet at a time."""

    def subscribe(self, frame: bytes) -> None:
        packet = decode(frame, self._split.level)
        assert isinstance(packet, Subscribe)
        matching, move = self._split.brokers.matching, self._split.brokers.move
        if move is not None and move.is_under_way:
            for each in packet.subscriptions:
                _, matched = split_shared(each.topic_filter)
                for name in move.gained(each.topic_filter):
                    self._split.part(name).is_quiet_on(matched)
                if matched == each.topic_filter:
                    move.note_subscriber(self.kept, matched)
        self._ask(Request(packet, [matching(e.topic_filter) for e in packet.subscriptions]), frame)

    def unsubscribe(self, frame: bytes) -> None:
        """Who has no session of the client has no subscription either."""
        packet = decode(frame, self._split.level)
        assert isinstance(packet, Unsubscribe)
        split = self._split
        places = [
            [name for name in split.brokers.matching(each) if split.has_part(name)]
            for each in packet.topic_filters
        ]
        self._ask(Request(packet, places), frame)

    def _ask(self, request: Request, frame: bytes) -> None:
        self._requests[request.packet.packet_id] = request
        for name in request.brokers:
            part = frame if request.is_whole else encode(request.part(name), self._split.level)
            self._split.part(name).send(part)
        self._answer_if_all(request)

    def answered(self, part: Part, packet_id: int, frame: bytes) -> None:
        """A SUBACK or UNSUBACK of a broker."""
        request = self._requests.get(packet_id)
        if request is None or not request.awaits(part.name):
            return
        packet = decode(frame, self._split.level)
        assert isinstance(packet, SubAck | UnsubAck)
        if request.undoing.pop(part.name, None) is None:
            request.answered(part.name, packet.reason_codes)
        self._answer_if_all(request, frame if request.is_whole else b"")

    def cannot(self, part: Part, packet_id: int, *, was_sent: bool = False) -> None:
        """A broker is away, or does not want this client; it may have got what `was_sent`."""
        request = self._requests.get(packet_id)
        if request is None or not request.awaits(part.name):
            return
        v5 = self._split.level == 5
        if (undone := request.undoing.pop(part.name, None)) is not None:
            self._unwanted(part.name).update(dict.fromkeys(undone.topic_filters))
        elif part.state is PartState.REFUSED:
            no = ReasonCode.NOT_AUTHORIZED if v5 else ReasonCode.UNSPECIFIED_ERROR
            if isinstance(request.packet, Unsubscribe):
                no = ReasonCode.NO_SUBSCRIPTION_EXISTED
            request.refused(part.name, no)
        else:
            request.is_away(part.name)
            if was_sent:
                request.unsure.add(part.name)
        self._answer_if_all(request)

    def is_too_large(self, part: Part, packet_id: int) -> None:
        """A broker has said that it takes no packets as long as this one."""
        request = self._requests.get(packet_id)
        if request is None or not request.awaits(part.name):
            return
        if request.undoing.pop(part.name, None) is None:
            request.refused(part.name, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        self._answer_if_all(request)

    def _answer_if_all(self, request: Request, whole: bytes = b"") -> None:
        """Tell the client; `whole` is the broker's own answer where there was but one to ask."""
        packet_id, level = request.packet.packet_id, self._split.level
        if request.waits or self._requests.get(packet_id) is not request:
            return
        if not request.settled:
            if self._ask_who_is_back(request):
                return
            request.settled = True
            self._tell(request.in_dispute())
            request.undoing = request.undo()
            for name, packet in list(request.undoing.items()):
                self._split.part(name).send(encode(packet, level))
                self._split.part(name).flush()
        if request.undoing or self._requests.get(packet_id) is not request:
            return
        del self._requests[packet_id]
        self._remember(request)
        self._split.answer(whole or request.answer(level))

    def _tell(self, refused: Sequence[tuple[str, str, int]]) -> None:
        """One line for a SUBSCRIBE, however many filters it has."""
        if not refused:
            return
        self._split.brokers.counters["subscriptions_refused"] += len(refused)
        topic_filter, broker, code = refused[0]
        self._split.host.log(
            "warning",
            "one of several brokers refuses a subscription",
            client_id=self._split.client_id,
            filter=topic_filter,
            broker=broker,
            code=f"0x{code:02X}",
            filters=len(refused),
        )

    def _ask_who_is_back(self, request: Request) -> bool:
        """Those that were away and are not any more: nobody tells them later."""
        parts = [self._split.part(name) for name in request.brokers if request.was_away(name)]
        back = [part for part in parts if part.state is not PartState.AWAY]
        request.waits.update(part.name for part in back)
        for part in back:
            part.send(encode(request.part(part.name), self._split.level))
            part.flush()
        return bool(back)

    def _untold(self, name: str) -> dict[str, None]:
        return self.kept.untold.setdefault(name, {})

    def _unwanted(self, name: str) -> dict[str, None]:
        return self.kept.unwanted.setdefault(name, {})

    def _remember(self, request: Request) -> None:
        packet = request.packet
        for name in request.brokers:
            wanted = self.kept.wanted.setdefault(name, {})
            untold, unwanted = self._untold(name), self._unwanted(name)
            if isinstance(packet, Subscribe):
                identifiers = packet.properties.subscription_identifiers
                for each, is_untold in request.granted(name):
                    wanted[each.topic_filter] = Wanted(each, identifiers[0] if identifiers else 0)
                    if not is_untold:
                        self.kept.asked.get(name, set()).discard(each.topic_filter)
                    unwanted.pop(each.topic_filter, None)
                    if is_untold:
                        untold[each.topic_filter] = None
                if name in request.unsure and request.was_away(name):
                    for topic_filter in request.refused_filters(name):
                        (untold if topic_filter in wanted else unwanted)[topic_filter] = None
            else:
                for topic_filter in request.ended(name):
                    if wanted.pop(topic_filter, None) is not None and request.was_away(name):
                        unwanted[topic_filter] = None
                    untold.pop(topic_filter, None)
        self._split.kept_changed()

    def requests(self) -> list[Request]:
        """What is not answered."""
        return list(self._requests.values())

    def over(self) -> None:
        for request in self._requests.values():
            if isinstance(request.packet, Subscribe):
                for name in request.brokers:  # which may have granted it
                    filters = (each.topic_filter for each in request.packet.subscriptions)
                    self.kept.asked.setdefault(name, set()).update(filters)
        self._requests.clear()


def _refused(codes: dict[str, int]) -> list[int]:
    return [code for code in codes.values() if code >= 0x80]


def _granting(codes: dict[str, int]) -> list[str]:
    return [name for name, code in codes.items() if 0 <= code < 0x80]


def _subscribed(codes: dict[str, int], level: int) -> ReasonCode:
    if refused := _refused(codes):
        return ReasonCode(refused[0])
    granted = [code for code in codes.values() if code != _AWAY]
    if granted:
        return ReasonCode(min(granted))
    return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if level == 5 else ReasonCode.UNSPECIFIED_ERROR


def _unsubscribed(codes: dict[str, int]) -> ReasonCode:
    if refused := _refused(codes):
        return ReasonCode(refused[0])
    there = any(code in (ReasonCode.SUCCESS, _AWAY) for code in codes.values())
    return ReasonCode.SUCCESS if there else ReasonCode.NO_SUBSCRIPTION_EXISTED
