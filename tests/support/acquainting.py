"""An algorithm whose nodes tell each other of their neighbors, and dial whom they hear of.

    configured:  n1 ── n2 ── n3        in the end:  n1 ── n2 ── n3,  n1 ── n3

Whoever dials knows of the other only what it advertises.  Messages go to all neighbors, one hop.
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
from isthmus.mqtt.packets import Publish

__all__ = ["Acquainting"]

TOPIC = "$isthmus/acquainting"


class Acquainting(CooperationAlgorithm):
    name = "acquainting"
    topology = "any"

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._neighbors: dict[str, SessionInfo] = {}
        self._dialed: set[str] = set()

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        if arrived_on.kind is SessionKind.NEIGHBOR:
            return Route(to_local_broker=True)
        return Route(tuple(self._neighbors.values()))

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            return
        for other in self._neighbors.values():
            self._tell(other, session)
            self._tell(session, other)
        self._neighbors[session.name] = session
        self.port.routes_changed()

    def on_session_closed(self, session: SessionInfo) -> None:
        if self._neighbors.get(session.name) is session:
            del self._neighbors[session.name]
            self.port.routes_changed()

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is SessionKind.NEIGHBOR and isinstance(message.packet, Publish):
            name, _, address = message.packet.payload.decode().partition(" ")
            known = self._neighbors.keys() | self._dialed
            # The one of the lower id dials, so that there is one link.
            if self.port.node_id < name and not {name, address} & known:
                self._dialed.add(address)
                self.port.create_session(address)
        return True

    def status(self) -> dict[str, object]:
        return {"dialed": sorted(self._dialed)}

    def _tell(self, session: SessionInfo, about: SessionInfo) -> None:
        payload = f"{about.name} {about.advertised}".encode()
        self.port.send_message(session, self.port.create_mqtt_message(Publish(TOPIC, payload)))
