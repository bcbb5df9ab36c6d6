"""What the data plane remembers of the algorithm's decisions: the forwarding table.

One table per place a message can come from: all local clients together, and each neighbor; of what
comes with labels, one for each label.  A hit costs one dictionary access and means that the topic
was found valid before; a miss checks it and asks the algorithm.  `Port.routes_changed` drops what
it touches, and all tables of labels.  Bounded by bytes, the neighbors' tables together: a table
ages (`aged`), so who invents topics costs misses but no memory.

Devices have a topic each, and a fabric has millions.  Where the algorithm says that all topics go
the same way (`CooperationAlgorithm.route_of_all`), an ordinary topic needs no entry once there are
a few: it is looked at, to be valid, and that is all.  That holds until anything changes; while
messages wait on any topic (`is_pending`), each is asked for by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from isthmus.cooperation.api import CooperationAlgorithm, Hop, Route, SessionInfo
from isthmus.cooperation.link_rules import Crossing
from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.exchange.traffic.aged import ENTRY_BYTES, Aged
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.filters.topics import MAX_TOPIC_BYTES, check_topic_name, matches

__all__ = ["FEW", "MAX_BYTES", "RouteTable", "Routes", "decode_topic", "is_ordinary"]

MAX_BYTES: Final = 2**24
"""Of one table, or of all neighbors' tables together: some 90,000 topics of twenty bytes."""
FEW: Final = 4_096
"""So many topics have an entry also where all go the same way: a hit is cheaper than a look."""
MAX_SAME: Final = 4_096
MAX_LABELS = 256
_TOPIC_NAME_INVALID = 0x90
MAX_COMPARISONS = 2_000  # more than that, and asking anew is cheaper than looking through


is_ordinary: Final = re.compile(rb"[ -\"%-*,-~][ -\"$-*,-~]*").fullmatch
"""Whether a topic needs no closer look: printable ASCII, no wildcard, and no ``$`` at first."""


class RouteTable(Aged[bytes, Route]):
    """Topic bytes → route; a missing topic is asked for."""

    __slots__ = ("_alike", "_ask", "_ask_alike", "_asked", "_same", "max_levels")

    def __init__(
        self,
        ask: Callable[[str], Route],
        ask_alike: Callable[[], Route | None] = lambda: None,
    ) -> None:
        """`ask_alike` tells the route of all topics, if that is the same one."""
        super().__init__(MAX_BYTES)
        self._ask = ask
        self._ask_alike = ask_alike
        self._asked = False
        self._alike: Route | None = None
        self._same: dict[Route, Route] = {}
        """Equal routes are one object: so many of their own take long to throw away."""
        self.max_levels = MAX_TOPIC_BYTES + 1
        """Of a topic; what has more is its sender's fault."""

    def __missing__(self, topic: bytes) -> Route:
        """Raises `RemoteProtocolError` for bytes that are no topic name."""
        alike = self._alike if self._asked else self.alike()
        if (
            alike is not None
            and is_ordinary(topic) is not None
            and topic.count(b"/") < self.max_levels
        ):
            if len(self) < FEW:
                self.keep(topic, alike, ENTRY_BYTES + len(topic))
            return alike
        size = ENTRY_BYTES + len(topic)
        route = self.recall(topic, size)
        if route is not None:
            return route
        name = decode_topic(topic)
        if name.count("/") >= self.max_levels:
            raise RemoteProtocolError(
                f"a topic name of more than {self.max_levels} levels",
                section="4.7.3",
                reason_code=_TOPIC_NAME_INVALID,
            )
        route = self._ask(name)
        if len(self._same) >= MAX_SAME:
            self._same.clear()
        route = self._same.setdefault(route, route)
        self.keep(topic, route, size)
        return route

    def alike(self) -> Route | None:
        """The route of every ordinary topic, if it is the same one."""
        if not self._asked:
            self._asked = True
            route = self._ask_alike()
            if self._asked:  # nothing has changed meanwhile
                self._alike = route
        return self._alike

    def ask_each(self) -> None:
        """What was said of all topics holds no longer; what was of one does."""
        self._asked, self._alike = False, None

    def forget(self) -> None:
        super().forget()
        self._same = {}

    def drop(self, filters: Iterable[str] | None) -> None:
        """Forget the topics that `filters` match; everything without."""
        self.ask_each()
        total = self.total
        if not total:
            return
        if filters is not None:
            wild = []
            for topic_filter in filters:
                if "+" in topic_filter or topic_filter.endswith("#"):
                    wild.append(topic_filter)
                else:
                    self.remove(topic_filter.encode())
            if len(wild) * total <= MAX_COMPARISONS:
                for topic in list(self.every_key()) if wild else ():
                    name = topic.decode()
                    if any(matches(topic_filter, name) for topic_filter in wild):
                        self.remove(topic)
                return
        self.forget()


class Routes:
    """Where messages go: the tables of all places that they can come from."""

    def __init__(self, any_client: SessionInfo) -> None:
        """`any_client` stands for every local client: a route does not depend on which."""
        self.algorithm: CooperationAlgorithm
        self.is_pending: Callable[[bytes], bool] = lambda _topic: False
        """Whether messages wait on a topic, so that others must wait behind them."""
        self.any_pending: Callable[[], bool] = lambda: False
        """Whether messages wait on any topic at all."""
        self.ruled: dict[SessionInfo, Crossing] = {}
        """Neighbors to which not everything may cross."""
        self.before_asking: Callable[[], None] = lambda: None
        """Is called before the algorithm is asked where a client's message goes."""
        self._any_client = any_client
        self.of_clients = RouteTable(self._ask_for_client, self._alike_for_clients)
        self._of_links: dict[SessionInfo, RouteTable] = {}
        self._of_labels: dict[Hop, RouteTable] = {}

    def _ask_for_client(self, topic: str) -> Route:
        self.before_asking()
        return self._ask(topic, self._any_client)

    def _alike_for_clients(self) -> Route | None:
        self.before_asking()
        return self._alike(self._any_client)

    def _alike(self, arrived_on: SessionInfo) -> Route | None:
        """The route of all topics, if they have the same one and none needs a closer look."""
        if self.any_pending():
            return None
        route = self.algorithm.route_of_all(arrived_on)
        if route is None or route.pending:
            return None
        return None if any(session in self.ruled for session in route.neighbors) else route

    def _ask(self, topic: str, arrived_on: SessionInfo, label: bytes = b"") -> Route:
        if topic.startswith("$"):
            return Route()  # about the broker itself, and never anybody else's
        route = self._answer(topic, arrived_on, label, retain=False)
        return replace(route, pending=True) if self.is_pending(topic.encode()) else route

    def _answer(self, topic: str, arrived_on: SessionInfo, label: bytes, *, retain: bool) -> Route:
        route = self.algorithm.route(topic, arrived_on, label, retain=retain)
        most = self.algorithm.max_label_bytes
        if route.labels and max(map(len, route.labels)) > most:
            raise ValueError(
                f"{type(self.algorithm).__name__}.route gives a label of "
                f"{max(map(len, route.labels))} bytes; its max_label_bytes is {most}"
            )
        if self.ruled and any(session in self.ruled for session in route.neighbors):
            route = self._across(topic.encode(), route)
        return route

    def rule(self, session: SessionInfo, crossing: Crossing | None) -> None:
        """What may cross to a neighbor from now on; then nothing that is remembered holds."""
        if crossing is not None:
            self.ruled[session] = crossing
        else:
            self.ruled.pop(session, None)

    def _across(self, topic: bytes, route: Route) -> Route:
        """Without those neighbors to which a message on `topic` may not cross."""
        ruled = self.ruled
        kept = [
            place
            for place, session in enumerate(route.neighbors)
            if (crossing := ruled.get(session)) is None or crossing.leaves(topic) is not None
        ]
        return replace(
            route,
            neighbors=tuple(route.neighbors[place] for place in kept),
            labels=tuple(route.labels[place] for place in kept) if route.labels else (),
        )

    def reaches(self, node_id: str) -> bool | None:
        return self.algorithm.reaches(node_id)

    def of(self, message: Message, source: SessionInfo | None) -> Route:
        """Where `message` goes from `source`; None is a local client."""
        if message.retain:
            route = self.present(message, source)
            return replace(route, pending=True) if self.is_pending(message.topic) else route
        if message.label and source is not None:
            return self._with_label(source, message.label)[message.topic]
        return (self.of_clients if source is None else self._from(source))[message.topic]

    def present(self, message: Message, source: SessionInfo | None) -> Route:
        """What the algorithm says now, whatever was remembered."""
        return self._answer(
            decode_topic(message.topic),
            source or self._any_client,
            message.label,
            retain=message.retain,
        )

    def _with_label(self, session: SessionInfo, label: bytes) -> RouteTable:
        table = self._of_labels.get((session, label))
        if table is None:
            if len(self._of_labels) >= MAX_LABELS:
                self._of_labels.clear()
            table = self._of_labels[session, label] = RouteTable(
                lambda topic: self._ask(topic, session, label)
            )
            for each in self._of_labels.values():
                each.most_bytes = MAX_BYTES // len(self._of_labels)
        return table

    def _from(self, session: SessionInfo) -> RouteTable:
        table = self._of_links.get(session)
        if table is None:
            table = RouteTable(
                lambda topic: self._ask(topic, session), lambda: self._alike(session)
            )
            self._of_links[session] = table
            for each in self._of_links.values():
                each.most_bytes = MAX_BYTES // len(self._of_links)
        return table

    def is_alike(self, session: SessionInfo, route: Route) -> bool:
        """Whether every ordinary topic from there, without a label, has this very route."""
        return self._from(session).alike() is route

    def ask_each(self) -> None:
        """Messages wait on a topic that may have had no entry: ask for each by itself."""
        for table in self._without_labels():
            table.ask_each()

    def _without_labels(self) -> Iterator[RouteTable]:
        yield self.of_clients
        yield from self._of_links.values()

    def drop(self, filters: list[str] | None) -> None:
        """Forget the topics that `filters` match; everything without."""
        self._of_labels.clear()
        for table in self._without_labels():
            table.drop(filters)

    def forget(self, session: SessionInfo) -> None:
        """No message comes from there, or goes there, any more."""
        self.ruled.pop(session, None)
        self._of_links.pop(session, None)
        for hop in [hop for hop in self._of_labels if hop[0] is session]:
            del self._of_labels[hop]


def decode_topic(raw: bytes) -> str:
    """The topic name in `raw`, checked; raises the error that its sender earns."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(
            f"a topic name that is not UTF-8 (byte {error.start})", section="MQTT-1.5.4-1"
        ) from None
    if "\0" in topic:
        raise MalformedPacket("U+0000 in a topic name", section="MQTT-1.5.4-2")
    check_topic_name(topic)
    return topic
