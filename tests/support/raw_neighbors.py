"""A neighbor made by hand: greets a node as another node would, and then says what a test wants.

It speaks the wire format of docs/reference/link-wire-format.md over a `RawClient`; only its
topology guard is the real one, since a link must be agreed on before an algorithm may use it.
"""

from __future__ import annotations

import time
from typing import Self

from isthmus.exchange.link.hello import Hello, write_connect
from isthmus.exchange.link.life import LinkState
from isthmus.mqtt.packets import ConnAck, Disconnect, Packet, PingReq, PingResp, Publish
from support.raw import RawClient
from support.watched_guard import WatchedGuard

__all__ = ["RawNeighbor"]

TOPOLOGY = "$isthmus/topology"


class RawNeighbor:
    """One lane to the node that listens for links on `port`."""

    def __init__(
        self, port: int, hello: Hello, *, nonce: bytes = b"", patience_s: float = 10
    ) -> None:
        self.raw = RawClient(port)
        self.hello = hello
        self.node_id = ""
        self._patience_s = patience_s
        self._pauses = False
        self._guard = WatchedGuard(hello.node_id, hello.incarnation, self)
        self.raw.send(write_connect(hello, 3, nonce))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def answer(self) -> ConnAck:
        """The node's answer to the greeting."""
        answer = self.raw.receive()
        assert isinstance(answer, ConnAck), answer
        return answer

    def greeted(self) -> Self:
        """Until the greeting is over and the node has taken the link."""
        answer = self.answer()
        assert answer.reason_code == 0, answer
        self.node_id = dict(answer.properties.user_properties)["node"]
        self._guard.link_up(self.node_id)
        return self

    def active(self) -> Self:
        """Until both ends have opened the link for the algorithm."""
        self.greeted()
        while self._guard.state(self.node_id) is not LinkState.ACTIVE:
            self.receive()
        return self

    def receive(self) -> Packet | None:
        """The next packet that is not about keeping the link up; None at the end of the stream."""
        deadline_s = time.monotonic() + self._patience_s
        while True:
            # Each read has a deadline, but pings come for ever.
            assert time.monotonic() < deadline_s, "only pings"
            packet = self.raw.receive()
            if self._pauses:
                self._pauses = False
                self._guard.pause_over()
            if isinstance(packet, PingReq):
                self.raw.send(PingResp())
            elif isinstance(packet, Publish) and packet.topic == TOPOLOGY:
                self._guard.message_arrived(self.node_id, packet.payload)
                if self._guard.state(self.node_id) is LinkState.ACTIVE:
                    return packet
            elif not isinstance(packet, PingResp):
                return packet

    def closed_with(self) -> int | None:
        """The reason code of the DISCONNECT with which the node ends the link; None without one."""
        reason = None
        while (packet := self.receive()) is not None:
            if isinstance(packet, Disconnect):
                reason = int(packet.reason_code)
        return reason

    # ---- what the guard wants done ---------------------------------------------------------

    def send(self, neighbor: str, payload: bytes) -> None:
        self.raw.send(Publish(TOPOLOGY, payload))

    def activate(self, neighbor: str) -> None:
        pass

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        pass

    def pause(self, pause_s: float) -> None:
        self._pauses = True

    def topology_changed(self) -> None:
        pass
