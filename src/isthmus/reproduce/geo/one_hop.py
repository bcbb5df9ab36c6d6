"""System 2 of the Geo paper as it is meant there: interest is told to the one broker it concerns.

The paper's equations take it that a broker knows where a topic is published, tells that broker
alone of a subscriber's change, "via one-hop communication", and gets the messages from there.  SF
does not know where topics come from, and tells all.  To measure what the equations describe, this
algorithm reads the cell from the topic, as the paper's topics allow; each node is called as its
cell, with ``-`` for ``/``.  It needs a link between any two nodes of which one listens to
the other.

It is for measuring, not for use: topics have to begin with a cell, filters have no wildcards there,
and what clients want of a cell whose node is not linked is lost.

Source: Geo §IV-B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.mqtt.packets import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["InterestAtItsCell"]


class InterestAtItsCell(CooperationAlgorithm):
    """What is wanted of a cell is told to its node, which sends it there and nowhere else."""

    name = "interest-at-its-cell"
    topology = "any"

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        """`k`: how many digits a cell has."""
        super().__init__(port, {})
        self._k = int(str(options["k"]))
        self._nodes: dict[str, SessionInfo] = {}
        self._wanted: dict[str, dict[SessionInfo, None]] = {}
        """By topic: the neighbors that have asked for it."""
        self._packet_id = 0

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        if arrived_on.kind is SessionKind.NEIGHBOR:
            return Route(to_local_broker=True)
        return Route(tuple(self._wanted.get(topic, ())))

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        for each in removed:
            if (there := self._node_of(each)) is not None:
                self._send(there, Unsubscribe(self._next_id(), (each,)))
        for each in added:
            if (there := self._node_of(each)) is not None:
                self._send(there, Subscribe(self._next_id(), (Subscription(each),)))

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            return True
        match message.packet:
            case Subscribe(packet_id=packet_id, subscriptions=asked):
                topics = [each.topic_filter for each in asked]
                for each in topics:
                    self._wanted.setdefault(each, {})[session] = None
                self._send(session, SubAck(packet_id, (ReasonCode.SUCCESS,) * len(topics)))
                self.port.routes_changed(topics)
            case Unsubscribe(packet_id=packet_id, topic_filters=filters):
                self._forget(session, filters)
                self._send(session, UnsubAck(packet_id, (ReasonCode.SUCCESS,) * len(filters)))
        return True

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self._nodes[session.name] = session
            for each in self.port.local_filters:
                if self._node_of(each) is session:
                    self._send(session, Subscribe(self._next_id(), (Subscription(each),)))

    def on_session_closed(self, session: SessionInfo) -> None:
        if self._nodes.get(session.name) is session:
            del self._nodes[session.name]
            self._forget(session, list(self._wanted))

    def _forget(self, session: SessionInfo, topics: Iterable[str]) -> None:
        for each in topics:
            self._wanted.get(each, {}).pop(session, None)
        self.port.routes_changed(topics)

    def _node_of(self, topic: str) -> SessionInfo | None:
        return self._nodes.get("-".join(topic.split("/")[: self._k]))

    def _send(
        self, session: SessionInfo, packet: Subscribe | Unsubscribe | SubAck | UnsubAck
    ) -> None:
        self.port.send_message(session, self.port.create_mqtt_message(packet))

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id
