"""SF, subscription flooding: messages go only where somebody wants them (ILDM §3.2, §4.3, §4.4).

A node *inter-subscribes* on a neighbour to what is wanted on its own side of that link: by its
local clients, or by its other neighbours.  A message follows inter-subscriptions backwards.

Definition.  With `local` the filters of local clients and `received[Y]` what neighbour Y has
inter-subscribed here, a node holds on each neighbour X exactly

    announced[X]  =  the largest filters of  local and of received[Y] for all Y ≠ X

and a change of either side is told as the difference, first SUBSCRIBE, then UNSUBSCRIBE, so that no
message falls between.  One `CoverTable` per neighbour keeps the right-hand side.  Covered filters
are not sent (§3.2: only the difference is shared) and are restored when the covering one goes.  The
rule of §3.2.1 and the removal procedure of §4.4 are both this definition after a change.

Why concurrent changes are safe, which the paper's procedure is not.  `announced[X]` is a function
of the present sets, never of the history, and links are FIFO; so once X has heard everything,
`received` at X is `announced[X]` here.  In a tree, what crosses a link towards X depends only on
links further away from X, so from the leaves inwards every set is what the definition gives for the
tree as it is, whatever was added, removed or on its way before, a loop that has been cut included.
While there is a loop, two nodes can keep alive an interest that nobody has; the links notice loops.

A link that comes (back) is brought up to date by the whole of `announced`, between the PUBLISHes
``begin`` and ``end`` on ``$isthmus/sf/sync``; what was not repeated by ``end`` is no longer wanted.
Until then the old set stays, so a short outage loses nothing.  Every SUBSCRIBE and UNSUBSCRIBE is
acknowledged; while many are not, changes wait and merge.

Departures from the paper: what a new link is told follows from the definition, not from what is
inter-subscribed elsewhere (§4.4); QoS is not part of an inter-subscription, a message keeps its own
up to the link's; topics and filters that start with ``$`` belong to one server and stay there.
Retained messages go everywhere (§4.5.2).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Final

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    Port,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.inter_subscriptions import WINDOW, Neighbor, take_batch
from isthmus.cooperation.local_interest import LocalInterest
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.covering import normal_form
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.filter_index import FilterIndex
from isthmus.mqtt.packets import (
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["SYNC_BEGIN", "SYNC_END", "SYNC_TOPIC", "SubscriptionFlooding"]

SYNC_TOPIC: Final = "$isthmus/sf/sync"
SYNC_BEGIN: Final = b"begin"
SYNC_END: Final = b"end"

_LOCAL: Final = SessionInfo(-1, SessionKind.LOCAL_BROKER, "local clients")
"""Stands for all local clients in the index; never leaves this module."""


class SubscriptionFlooding(CooperationAlgorithm):
    """Inter-subscribe to what is wanted on this side; send what the neighbours want."""

    name = "sf"
    synchronises = True
    window: ClassVar[int] = WINDOW
    """How many packets a neighbour may have left unacknowledged."""

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._neighbors: dict[SessionInfo, Neighbor] = {}
        self._index: FilterIndex[SessionInfo] = FilterIndex()
        self._local = LocalInterest(port, self._local_interest_changed)

    # ---- data plane ----

    def route(self, topic: str, arrived_on: SessionInfo, *, retain: bool) -> Route:
        if topic.startswith("$"):
            return Route()
        from_neighbor = arrived_on.kind is SessionKind.NEIGHBOR
        if retain:
            others = tuple(each for each in self._neighbors if each is not arrived_on)
            return Route(others, to_local_broker=from_neighbor)
        matched = self._index.match(topic)
        wanting = tuple(each for each in matched if each is not arrived_on and each is not _LOCAL)
        return Route(wanting, to_local_broker=from_neighbor and _LOCAL in matched)

    # ---- hooks ----

    def mqtt_message_arrived(
        self, session: SessionInfo, packet_type: PacketType, message: bytes
    ) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            self._local.mqtt_message_arrived(session, packet_type, message)
            return True
        match packet_type:
            case PacketType.SUBSCRIBE:
                self._inter_subscribed(session, message)
            case PacketType.UNSUBSCRIBE:
                self._inter_unsubscribed(session, message)
            case PacketType.SUBACK | PacketType.UNSUBACK:
                self._acknowledged(session, message)
            case PacketType.PUBLISH:
                self._control(session, message)
        return True

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            return
        neighbor = self._neighbor(session)
        neighbor.begin()
        self._send(session, Publish(SYNC_TOPIC, SYNC_BEGIN))
        self._tell(session, neighbor)

    def on_tcp_down(self, session: SessionInfo) -> None:
        neighbor = self._neighbors.get(session)
        if neighbor is not None:
            neighbor.established = False
            neighbor.repeated = None  # a synchronisation that was cut off begins anew

    def on_session_closed(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            self._local.on_session_closed(session)
            return
        neighbor = self._neighbors.pop(session, None)
        if neighbor is not None:
            # Backwards: a dictionary that is emptied from its front is slow to find what is left.
            self._wants_changed(session, (), list(reversed(neighbor.received)))
            self.port.routes_changed()  # of retained messages, on every topic

    def on_node_start(self) -> None:
        self._local.on_node_start()

    def on_neighbors_back(self) -> None:
        for session, neighbor in self._neighbors.items():
            self._tell(session, neighbor)

    def on_node_stop(self) -> None:
        self._local.on_node_stop()

    def on_timer(self, key: Hashable) -> None:
        self._local.on_timer(key)

    # ---- what people and tests see ----

    @property
    def local_filters(self) -> tuple[str, ...]:
        """What local clients want."""
        return tuple(self._local.filters)

    def received_from(self, session: SessionInfo) -> tuple[str, ...]:
        """What that neighbour has inter-subscribed here."""
        return tuple(self._neighbors[session].received)

    def announced_to(self, session: SessionInfo) -> tuple[str, ...]:
        """What this node has inter-subscribed there, or will have when the link is up."""
        return self._neighbors[session].table.announced

    def status(self) -> dict[str, object]:
        return {
            "local": self._local.status(),
            "neighbors": {
                session.peer: {
                    "established": neighbor.established,
                    "synchronising": neighbor.ending or neighbor.repeated is not None,
                    "received_filters": len(neighbor.received),
                    "announced_filters": len(neighbor.table.announced),
                    "waiting_filters": len(neighbor.announce) + len(neighbor.withdraw),
                    "unacknowledged_packets": len(neighbor.unacknowledged),
                }
                for session, neighbor in self._neighbors.items()
            },
        }

    # ---- wants ----

    def _local_interest_changed(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        self._wants_changed(_LOCAL, added, removed)

    def _wants_changed(
        self, source: SessionInfo, added: Sequence[str], removed: Sequence[str]
    ) -> None:
        """`source` wants `added`, which it did not, and does not want `removed`, which it did."""
        if not added and not removed:
            return
        for topic_filter in added:
            self._index.add(topic_filter, source)
        for topic_filter in removed:
            self._index.discard(topic_filter, source)
        for session, neighbor in self._neighbors.items():
            if session is not source:
                neighbor.need(added, removed)
                self._tell(session, neighbor)
        self.port.routes_changed((*added, *removed))

    def _neighbor(self, session: SessionInfo) -> Neighbor:
        """The neighbour's record; a new one needs what everybody else wants."""
        neighbor = self._neighbors.get(session)
        if neighbor is None:
            neighbor = Neighbor()
            neighbor.need(self._local.filters, ())
            for other in self._neighbors.values():
                neighbor.need(other.received, ())
            self._neighbors[session] = neighbor
            self.port.routes_changed()  # of retained messages, on every topic
        return neighbor

    # ---- to a neighbour ----

    def _tell(self, session: SessionInfo, neighbor: Neighbor) -> None:
        """Send what the neighbour has not been told, as far as the window allows."""
        if not neighbor.established:
            return  # all of it is told when the link is back
        while neighbor.announce and len(neighbor.unacknowledged) < self.window:
            filters = take_batch(neighbor.announce)
            wanted = tuple(
                Subscription(each, qos=2, no_local=True, retain_as_published=True)
                for each in filters
            )
            self._send(session, Subscribe(neighbor.packet_id(len(filters)), wanted))
        if neighbor.announce:
            return
        # After a crash the neighbour keeps what it knew of us until all others have told us theirs.
        if neighbor.ending and not self.port.awaits_others(session):
            neighbor.ending = False
            self._send(session, Publish(SYNC_TOPIC, SYNC_END))
        while neighbor.withdraw and len(neighbor.unacknowledged) < self.window:
            filters = take_batch(neighbor.withdraw)
            self._send(session, Unsubscribe(neighbor.packet_id(len(filters)), filters))

    def _send(
        self, session: SessionInfo, packet: Publish | Subscribe | Unsubscribe | SubAck | UnsubAck
    ) -> None:
        # False means that the link is down: the next synchronisation makes up for it.
        self.port.send_message(session, self.port.create_mqtt_message(packet))

    # ---- from a neighbour ----

    def _inter_subscribed(self, session: SessionInfo, message: bytes) -> None:
        packet = decode(message, 5)
        assert isinstance(packet, Subscribe)
        neighbor = self._neighbor(session)
        filters = {normal_form(each.topic_filter): None for each in packet.subscriptions}
        for topic_filter in filters:
            if topic_filter.startswith("$"):
                raise RemoteProtocolError(
                    f"neighbour {session.peer} inter-subscribes to {topic_filter[:80]!a}; "
                    "what starts with $ stays on its own server",
                    section="MQTT-4.7.2-1",
                    reason_code=ReasonCode.TOPIC_FILTER_INVALID,
                )
        if neighbor.repeated is not None:
            neighbor.repeated.update(filters)
        added = [each for each in filters if each not in neighbor.received]
        neighbor.received.update(dict.fromkeys(added))
        codes = tuple(ReasonCode(each.qos) for each in packet.subscriptions)
        self._send(session, SubAck(packet.packet_id, codes))
        self._wants_changed(session, added, ())

    def _inter_unsubscribed(self, session: SessionInfo, message: bytes) -> None:
        packet = decode(message, 5)
        assert isinstance(packet, Unsubscribe)
        neighbor = self._neighbor(session)
        removed = []
        codes = []
        for topic_filter in map(normal_form, packet.topic_filters):
            if topic_filter in neighbor.received:
                del neighbor.received[topic_filter]
                removed.append(topic_filter)
                codes.append(ReasonCode.SUCCESS)
            else:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._send(session, UnsubAck(packet.packet_id, tuple(codes)))
        self._wants_changed(session, (), removed)

    def _acknowledged(self, session: SessionInfo, message: bytes) -> None:
        packet = decode(message, 5)
        assert isinstance(packet, SubAck | UnsubAck)
        neighbor = self._neighbor(session)
        if packet.packet_id in neighbor.forgotten:
            return  # of a connection before this one
        filters = neighbor.unacknowledged.pop(packet.packet_id, None)
        if filters != len(packet.reason_codes) or max(packet.reason_codes) >= 0x80:
            raise RemoteProtocolError(
                f"neighbour {session.peer} answers packet {packet.packet_id} of "
                f"{filters or 'no'} filters with reason codes "
                f"{bytes(packet.reason_codes[:16]).hex(' ')}",
                section="MQTT-3.8.4-6",
            )
        self._tell(session, neighbor)

    def _control(self, session: SessionInfo, message: bytes) -> None:
        packet = decode(message, 5)
        assert isinstance(packet, Publish)
        neighbor = self._neighbor(session)
        match packet.topic, packet.payload:
            case (topic, payload) if topic == SYNC_TOPIC and payload == SYNC_BEGIN:
                neighbor.repeated = set()
            case (topic, payload) if (
                topic == SYNC_TOPIC and payload == SYNC_END and neighbor.repeated is not None
            ):
                repeated, neighbor.repeated = neighbor.repeated, None
                stale = [each for each in reversed(neighbor.received) if each not in repeated]
                for topic_filter in stale:
                    del neighbor.received[topic_filter]
                self._wants_changed(session, (), stale)
                self.port.synchronised(session)
            case _:
                raise RemoteProtocolError(
                    f"neighbour {session.peer} sends {packet.payload[:16]!r} on "
                    f"{packet.topic[:80]!a}, which means nothing here",
                    section="4.13",
                )
