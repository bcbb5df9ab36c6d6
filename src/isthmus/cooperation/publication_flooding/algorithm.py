"""PF, publication flooding: every message goes to every broker (ILDM §3.1).

A PUBLISH goes to all neighbors but the one it came from, and to the local broker if a neighbor
sent it.  In a tree of nodes each broker thus gets each message once.  There is no state beyond the
list of neighbors, so adding and removing one is all there is to §4.4.

A neighbor counts until its session is closed, also while its link is down: the node queues for it.

Departure from the paper: topics that start with ``$`` stay where they are.  They belong to one
server [MQTT-4.7.2-1], and ``$isthmus/`` is the links' own.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.errors import RemoteProtocolError

__all__ = ["PublicationFlooding"]


class PublicationFlooding(CooperationAlgorithm):
    """Every PUBLISH to every neighbor and every broker, once."""

    name = "pf"
    obeys_rules = True  # there is nothing to tell

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._neighbors: dict[SessionInfo, None] = {}  # in order of establishment

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        return Route() if topic.startswith("$") else self._everywhere(arrived_on)

    def route_of_all(self, arrived_on: SessionInfo) -> Route:
        return self._everywhere(arrived_on)

    def _everywhere(self, arrived_on: SessionInfo) -> Route:
        others = tuple(neighbor for neighbor in self._neighbors if neighbor is not arrived_on)
        return Route(others, to_local_broker=arrived_on.kind is SessionKind.NEIGHBOR)

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is SessionKind.NEIGHBOR:
            raise RemoteProtocolError(
                f"neighbor {session.name} sends {message.type.name}; publication flooding has no "
                "control packets"
            )
        return True

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR and session not in self._neighbors:
            self._neighbors[session] = None
            self.port.routes_changed()

    def on_session_closed(self, session: SessionInfo) -> None:
        if session in self._neighbors:
            del self._neighbors[session]
            self.port.routes_changed()

    def status(self) -> dict[str, object]:
        return {"neighbors": [neighbor.name for neighbor in self._neighbors]}
