"""The broker's half of a client's pair of sessions: what comes from the broker goes to the client.

Only packet boundaries are looked at, so that a packet is written in one piece, and the answers that
the exchange waits for: CONNACK, SUBACK, UNSUBACK.  A packet of more than `WHOLE_PACKET_BYTES` may
go in pieces: no reader takes that with one ``recv``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.errors import ProtocolError, RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import FrameBuffer, frame_length, scan
from isthmus.mqtt.packets import ConnAck
from isthmus.mqtt.primitives import PacketType
from isthmus.node.session import Session, SessionStatus

if TYPE_CHECKING:
    from isthmus.node.relay import ClientSession
    from isthmus.node.runtime import Node

__all__ = ["BrokerSession"]

WHOLE_PACKET_BYTES = 65_536

_SUBACK, _UNSUBACK = 0x90, 0xB0


class BrokerSession(Session):
    """The local broker's connection for one client."""

    __slots__ = ("answered", "buffer", "node", "passing", "topic_alias_maximum")

    def __init__(self, node: Node, client: ClientSession) -> None:
        super().__init__(node.limits.drain_s)
        self.node = node
        self.paired: ClientSession | None = client
        self.buffer = FrameBuffer()
        self.answered = False
        """A CONNACK that accepts the client has come."""
        self.passing = 0
        """Bytes still to come of a packet that is passed on in pieces."""
        self.topic_alias_maximum = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established(transport, self.node.limits.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        client = self.paired
        if client is None or client.status is not SessionStatus.ESTABLISHED:
            return
        node = self.node
        if not node.pacer.armed:
            node.pacer.arm()
        counters = node.counters
        counters.broker_bytes += len(data)
        if self.passing:
            if len(data) <= self.passing:
                self.passing -= len(data)
                client.wire.write(data)
                return
            client.wire.write(data[: self.passing])
            data = data[self.passing :]
            self.passing = 0
        if self.buffer.pending_bytes and not (data := self.buffer.push(data)):
            return
        try:
            offsets = scan(data)
        except RemoteProtocolError as error:
            self.node.broker_misbehaved(client, error)
            client.close()
            return
        if not self.answered:
            self._first_answer(data, offsets[-1])
        whole = offsets[-1]
        counters.broker_packets += len(offsets) - 1
        if client.awaited:
            self._find_answers(data, offsets, client)
        if whole == len(data):
            client.wire.write(data)
            return
        if frame_length(data, whole) > WHOLE_PACKET_BYTES:
            self.passing = frame_length(data, whole) - (len(data) - whole)
            client.wire.write(data)
            return
        if whole:
            client.wire.write(data[:whole])
        self.buffer.keep(data[whole:])

    def _find_answers(self, data: bytes, offsets: Sequence[int], client: ClientSession) -> None:
        """Show the exchange the SUBACKs and UNSUBACKs that the client waits for."""
        for start, stop in pairwise(offsets):
            if data[start] in (_SUBACK, _UNSUBACK):
                client.awaited -= 1
                self._show(client, data[start:stop])

    def _show(self, client: ClientSession, frame: bytes) -> None:
        if client.handle is None:
            return
        try:
            self.node.exchange.broker_packet(client.handle, PacketType(frame[0] >> 4), frame)
        except ProtocolError as error:
            self.node.broker_misbehaved(client, error)

    def _first_answer(self, data: bytes, whole: int) -> None:
        """Read the CONNACK for what it grants; a v5 AUTH may come before it."""
        client = self.paired
        if not whole or client is None or data[0] & 0xF0 != 0x20:
            return
        frame = data[: frame_length(data, 0)]
        try:
            connack = decode(frame, client.protocol_level)
        except ProtocolError as error:
            self.node.broker_misbehaved(client, error)
            return
        self._show(client, frame)
        if isinstance(connack, ConnAck) and connack.reason_code == 0:
            self.answered = True
            self.topic_alias_maximum = connack.properties.topic_alias_maximum or 0
            self.node.client_accepted(client, connack)

    def connection_lost(self, exc: Exception | None) -> None:
        unexpected = self.status is SessionStatus.ESTABLISHED
        self.gone()
        client = self.paired
        if client is not None and client.status is SessionStatus.ESTABLISHED:
            if unexpected and not client.disconnected:
                self.node.broker_lost(client, exc)
            client.close()
        self.paired = None
