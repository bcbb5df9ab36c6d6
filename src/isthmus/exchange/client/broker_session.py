"""The broker's half of a client's pair of sessions: what comes from the broker goes to the client.

Only packet boundaries are looked at, so that a packet is written in one piece, and the answers that
the exchange waits for: CONNACK, SUBACK, UNSUBACK, and the refusals of QoS 2 messages.  A packet of
more than `WHOLE_PACKET_BYTES` may go in pieces: no reader takes that with one ``recv``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.cooperation.api import ReceivedPacket
from isthmus.errors import ProtocolError, RemoteProtocolError
from isthmus.exchange.session import Session, SessionStatus, Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import FrameBuffer, body_offset, frame_length, scan
from isthmus.mqtt.packets import ConnAck
from isthmus.mqtt.publish_layout import PUBACK, PUBREC, packet_id_at
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.client.client_session import ClientSession
    from isthmus.exchange.client.confirming import Confirming
    from isthmus.exchange.client.relay import Relay

__all__ = ["BrokerSession"]

WHOLE_PACKET_BYTES = 65_536

_ESTABLISHED = SessionStatus.ESTABLISHED  # looked up at every read

_SUBACK, _UNSUBACK = 0x90, 0xB0


class BrokerSession(Session):
    """The local broker's connection for one client."""

    __slots__ = ("answered", "buffer", "passing", "relay")

    def __init__(self, relay: Relay, client: ClientSession) -> None:
        super().__init__(relay.host, relay.limits.drain_s)
        self.relay = relay
        self.paired: ClientSession | None = client
        self.buffer = FrameBuffer()
        self.answered = False
        """A CONNACK that accepts the client has come."""
        self.passing = 0
        """Bytes still to come of a packet that is passed on in pieces."""

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, self.relay.limits.buffer_bytes)
        client = self.paired
        if client is not None and (client.status is _ESTABLISHED or client.orphaned):
            client.broker_connected(self)
        else:
            self.close()

    def failed(self, cause: str) -> None:
        """There is no connection with the broker."""
        self.relay.counters.broker_connect_failures += 1
        client, self.paired = self.paired, None
        if client is None:
            return
        if client.status is _ESTABLISHED:
            client.refuse(ReasonCode.SERVER_UNAVAILABLE, "broker-unavailable", cause)
        elif client.orphaned:
            client.finish()

    def data_received(self, data: bytes) -> None:
        client = self.paired
        if client is None or client.status is not _ESTABLISHED:
            if client is not None and client.orphaned:
                self._answer_orphan(data, client)
            return
        relay = self.relay
        if not relay.pacer.armed:
            relay.pacer.arm()
        counters = relay.counters
        counters.broker_bytes += len(data)
        if self.passing:
            rest, data = data[: self.passing], data[self.passing :]
            self.passing -= len(rest)
            client.wire.write(rest)
            if not self.passing and client.confirming is not None:
                client.confirming.flush()
            if not data:
                return
        if self.buffer.pending_bytes and not (data := self.buffer.push(data)):
            return
        try:
            offsets = scan(data)
        except RemoteProtocolError as error:
            self.relay.broker_misbehaved(client, error)
            if client.handle is not None:
                self.relay.exchange.clients.failed(client.handle, error, by_broker=True)
            client.close()
            return
        counters.broker_packets += len(offsets) - 1
        if client.awaited or client.unreleased:
            self._find_answers(data, offsets, client)
            if client.status is not _ESTABLISHED:
                return
        if client.confirming:
            data, offsets = self._with_confirmed(data, offsets, client.confirming)
        if self.answered:
            if offsets[-1] == len(data):
                client.wire.write(data)
            else:
                self._pass_on(data, offsets[-1], client)
        else:
            connack = self._first_answer(data, offsets[-1], client)
            if client.status is not _ESTABLISHED:
                return
            self._pass_on(data, offsets[-1], client)
            if connack is not None:
                self._settle(connack, client)

    def packets_received(self, data: bytes, packets: int) -> None:
        """So many whole packets: of several brokers, which have counted them."""
        client = self.paired
        if (
            client is None
            or client.status is not _ESTABLISHED
            or not self.answered
            or client.awaited
            or client.unreleased
            or client.confirming
        ):
            self.data_received(data)
            return
        relay = self.relay
        if not relay.pacer.armed:
            relay.pacer.arm()
        relay.counters.broker_bytes += len(data)
        relay.counters.broker_packets += packets
        client.wire.write(data)

    def _pass_on(self, data: bytes, whole: int, client: ClientSession) -> None:
        """Write the whole packets, and what has come of a very long one; keep the rest."""
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
        """Show the exchange the SUBACKs and UNSUBACKs that the client waits for.

        A QoS 2 message that the broker refuses leaves its identifier free [MQTT-4.3.3-9]; so does
        one that it answers with PUBACK, as RabbitMQ does.
        """
        for start, stop in pairwise(offsets):
            head = data[start]
            if head in (_SUBACK, _UNSUBACK):
                self._show(client, data[start:stop])
            elif head in (PUBACK, PUBREC) and stop >= (pos := body_offset(data, start)) + 2:
                client.publish_answered(
                    packet_id_at(data, pos),
                    refused=stop > pos + 2 and data[pos + 2] >= 0x80,
                    final=head == PUBACK,
                )

    def _with_confirmed(
        self, data: bytes, offsets: Sequence[int], confirming: Confirming
    ) -> tuple[bytes, Sequence[int]]:
        """Keep the acknowledgments back of what the fabric has not confirmed yet."""
        told = b"".join([confirming.answer(data[start:stop]) for start, stop in pairwise(offsets)])
        return told + data[offsets[-1] :], (0, len(told))

    def _show(self, client: ClientSession, frame: bytes) -> None:
        if client.handle is None:
            return
        level = client.protocol_level
        try:
            message = ReceivedPacket(frame, level, decode(frame, level))
        except RemoteProtocolError as error:
            # The client gets it as it is and is the one to judge.
            self.relay.broker_misbehaved(client, error)
            return
        pending = client.handle.pending
        before = len(pending)
        try:
            self.relay.exchange.clients.broker_packet(client.handle, message)
        except RemoteProtocolError as error:
            client.fail(error)
        client.awaited -= before - len(pending)  # a broker may answer twice, or unasked

    # ---- the answer to the CONNECT -------------------------------------------------------

    def _first_answer(self, data: bytes, whole: int, client: ClientSession) -> ConnAck | None:
        """The CONNACK, if it has come; a v5 AUTH may come before it.

        If it accepts the client, the exchange knows the client from here on.
        """
        if not whole or data[0] & 0xF0 != 0x20:
            return None
        frame = data[: frame_length(data, 0)]
        try:
            connack = decode(frame, client.protocol_level)
            assert isinstance(connack, ConnAck)
        except ProtocolError as error:
            self.relay.broker_misbehaved(client, error)
            # The client may make something of it all the same: what counts is the code.
            accepts = frame[body_offset(frame, 0) + 1 :][:1] == b"\0"
            connack = ConnAck(
                False, ReasonCode.SUCCESS if accepts else ReasonCode.UNSPECIFIED_ERROR
            )
        if connack.reason_code == 0:
            self.answered = True
            try:
                client.accepted(connack, frame)
            except RemoteProtocolError as error:
                client.fail(error)
        return connack

    def _settle(self, connack: ConnAck, client: ClientSession) -> None:
        """What waited for the CONNACK goes on, or is discarded."""
        if connack.reason_code == 0:
            client.released()
        else:
            client.turned_away()

    def _answer_orphan(self, data: bytes, client: ClientSession) -> None:
        """The client has hung up: of what the broker says only its verdict counts."""
        if self.answered or (self.buffer.pending_bytes and not (data := self.buffer.push(data))):
            return
        try:
            whole = frame_length(data, 0)
        except RemoteProtocolError as error:
            self.relay.broker_misbehaved(client, error)
            client.finish()
            return
        if not whole or whole > len(data):
            self.buffer.keep(data)
            return
        connack = self._first_answer(data, whole, client)
        if connack is None:
            client.finish()  # an AUTH, which nobody answers
        else:
            self._settle(connack, client)

    def connection_lost(self, exc: Exception | None) -> None:
        unexpected = self.status is SessionStatus.ESTABLISHED
        self.gone()
        client, self.paired = self.paired, None
        if client is None:
            return
        if client.status is SessionStatus.ESTABLISHED:
            if unexpected and not client.disconnected:
                self.relay.broker_lost(client, exc)
            client.close()
        elif client.orphaned:
            client.finish()
