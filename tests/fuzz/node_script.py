"""Random operations for the node: what clients, their broker and the far neighbor do.

An *episode* is a list of operations with a few clients in it, drawn from a seed.  Packets come from
pools that are made anew now and then: valid ones of every type a client may send, at all protocol
levels, valid ones with a mutation that knows the structure (`fuzz_decoder`), and packets that are a
server's.  Streams are cut anywhere.  The broker accepts, refuses, answers late or never, closes,
and refuses messages.  At the end every client id is used once more with a clean start, so that
nothing may be left over.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fuzz.fuzz_decoder import MUTATIONS, body_of, some_packet, some_properties
from fuzz.node_rig import Operation
from isthmus.errors import ProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.primitives import PacketType, write_variable_byte_integer
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

__all__ = ["Script"]

LEVELS: Final = (3, 4, 4, 5, 5, 5)
TOPICS: Final = ("a", "a/b", "a/b/c", "sensor/1", "é/ü", "$SYS/x", "x" * 130)
FILTERS: Final = ("a", "a/+", "#", "+/b", "a/b/#", "$share/g/a/#", "sensor/+")
IDS: Final = ("one", "two", "three", "")
PAYLOADS: Final = (b"", b"\0", b"p", b"payload", bytes(300))
POOL: Final = 3_000
RENEW: Final = 2_000
"""Episodes after which the pools are made anew."""


class Script:
    """Draws episodes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"node {seed}")
        self._valid: dict[int, list[bytes]] = {}
        self._bad: dict[int, list[bytes]] = {}
        self._from_broker: dict[int, list[bytes]] = {}
        self._renew()
        self._number = 0

    def episode(self) -> list[Operation]:
        self._number += 1
        if self._number % RENEW == 0:
            self._renew()
        rng = self.rng
        streams = [self._client(number) for number in range(rng.choice((1, 2, 3, 4)))]
        operations: list[Operation] = []
        whims = ("congest", "relieve", "slow", "quick")
        while streams:
            stream = rng.choice(streams)
            taken = rng.randint(1, 3)
            operations += stream[:taken]
            del stream[:taken]
            streams = [each for each in streams if each]
            if rng.random() < 0.02:
                operations.append((rng.choice(whims), 0, b""))
        return operations

    # ---- packets --------------------------------------------------------------------------

    def _renew(self) -> None:
        for level in (3, 4, 5):
            self._valid[level] = [self._good(level) for _ in range(POOL)]
            self._bad[level] = [self._mutated(level) for _ in range(POOL // 3)]
            self._from_broker[level] = [self._server_packet(level) for _ in range(POOL // 10)]

    def _good(self, level: int) -> bytes:
        while True:
            try:
                return encode(self._packet(level), level)
            except ProtocolError:
                continue  # what this level has no place for

    def _packet(self, level: int) -> Packet:
        rng = self.rng
        drawn = rng.random()
        packet_id = rng.randint(1, 5)
        if drawn < 0.6:
            return self._publish(level)
        if drawn < 0.75:
            return PubRel(packet_id, *self._reason(level, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        if drawn < 0.80:
            return rng.choice((PubAck, PubRec, PubComp))(packet_id)
        if drawn < 0.86:
            asked = tuple(
                Subscription(each, rng.randint(0, 2))
                for each in rng.sample(FILTERS, rng.randint(1, 3))
            )
            return Subscribe(packet_id, asked)
        if drawn < 0.90:
            return Unsubscribe(packet_id, tuple(rng.sample(FILTERS, rng.randint(1, 3))))
        if drawn < 0.905:
            code = rng.choice((ReasonCode.SUCCESS, ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
            return Disconnect(code if level == 5 else ReasonCode.SUCCESS)
        if drawn < 0.91 and level == 5:
            return Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="m"))
        while True:
            packet = some_packet(rng, 4 if level == 3 else level)
            if not isinstance(packet, Connect | ConnAck | SubAck | UnsubAck | PingResp | Publish):
                return packet

    def _reason(self, level: int, code: ReasonCode) -> tuple[ReasonCode, Properties]:
        rng = self.rng
        if level != 5 or rng.random() < 0.5:
            return ReasonCode.SUCCESS, NO_PROPERTIES
        named = Properties(reason_string="why") if rng.random() < 0.3 else NO_PROPERTIES
        return rng.choice((ReasonCode.SUCCESS, code)), named

    def _publish(self, level: int) -> Publish:
        rng = self.rng
        qos = rng.choice((0, 0, 1, 2, 2))
        properties = NO_PROPERTIES
        topic = rng.choice(TOPICS)
        if level == 5 and rng.random() < 0.3:
            drawn = some_properties(rng, PacketType.PUBLISH, 5)
            properties = replace(drawn, subscription_identifiers=(), topic_alias=None)
        if level == 5 and rng.random() < 0.04:
            properties = Properties(topic_alias=rng.randint(1, 3))
            topic = rng.choice((topic, ""))
        return Publish(
            topic,
            rng.choice(PAYLOADS),
            qos=qos,
            retain=rng.random() < 0.15,
            dup=qos > 0 and rng.random() < 0.3,
            packet_id=rng.randint(1, 5) if qos else 0,
            properties=properties,
        )

    def _mutated(self, level: int) -> bytes:
        rng = self.rng
        frame = rng.choice(self._valid[level])
        body = bytearray(body_of(frame))
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice(MUTATIONS)(rng, body, body_of(rng.choice(self._valid[level])))
        first = frame[0] if rng.random() < 0.9 else rng.randrange(256)
        if rng.random() < 0.05:  # a Remaining Length that does not fit, or is none
            return bytes((first,)) + rng.randbytes(rng.randint(0, 5)) + body
        return bytes((first,)) + write_variable_byte_integer(len(body), 5, "length") + body

    def _connect(self, level: int) -> bytes:
        rng = self.rng
        will = None
        if rng.random() < 0.4:
            will = Will(rng.choice(TOPICS), rng.choice(PAYLOADS), rng.randint(0, 2), False)
        client_id = rng.choice(IDS)
        clean = rng.random() < 0.5 or (level < 5 and not client_id)
        properties = NO_PROPERTIES
        if level == 5 and rng.random() < 0.5:
            properties = Properties(session_expiry_interval=rng.choice((0, 1000)))
        username = rng.choice((None, "user"))
        password = rng.choice((None, b"wrong")) if username else None
        return encode(
            Connect(
                client_id or ("none" if level < 4 else ""),
                clean_start=clean,
                will=will,
                username=username,
                password=password,
                properties=properties,
                protocol_level=level,
            ),
            level,
        )

    def _first_packet(self, level: int) -> bytes:
        rng = self.rng
        drawn = rng.random()
        connect = self._connect(level)
        if drawn < 0.92:
            return connect
        if drawn < 0.97:
            body = bytearray(body_of(connect))
            rng.choice(MUTATIONS)(rng, body, body_of(rng.choice(self._valid[level])))
            return connect[:1] + write_variable_byte_integer(len(body), 5, "length") + body
        return rng.choice((rng.choice(self._valid[level]), rng.randbytes(20)))

    # ---- the broker's ---------------------------------------------------------------------

    def _server_packet(self, level: int) -> bytes:
        rng = self.rng
        packet_id = rng.randint(1, 5)
        drawn = rng.random()
        packet: Packet
        if drawn < 0.3:
            packet = PubAck(packet_id, *self._reason(level, ReasonCode.NOT_AUTHORIZED))
        elif drawn < 0.6:
            packet = PubRec(packet_id, *self._reason(level, ReasonCode.QUOTA_EXCEEDED))
        elif drawn < 0.8:
            packet = PubComp(packet_id)
        else:
            packet = Publish(rng.choice(TOPICS), rng.choice(PAYLOADS))
        return encode(packet, level)

    def _connack(self, level: int) -> bytes:
        rng = self.rng
        if rng.random() < 0.12:
            refused = ReasonCode.BAD_USER_NAME_OR_PASSWORD
            code = refused if level == 5 else ConnectReturnCode.NOT_AUTHORIZED
            return encode(ConnAck(False, code), level)
        properties = NO_PROPERTIES
        if level == 5 and rng.random() < 0.7:
            properties = Properties(
                topic_alias_maximum=rng.choice((None, 2, 10, 10, 10, 10)),
                maximum_packet_size=100 if rng.random() < 0.05 else None,
                retain_available=False if rng.random() < 0.2 else None,
                maximum_qos=rng.randint(0, 1) if rng.random() < 0.2 else None,
            )
        code = ReasonCode.SUCCESS if level == 5 else ConnectReturnCode.ACCEPTED
        return encode(ConnAck(level != 3 and rng.random() < 0.5, code, properties), level)

    # ---- one client -----------------------------------------------------------------------

    def _client(self, number: int) -> list[Operation]:
        rng = self.rng
        level = rng.choice(LEVELS)
        first = self._first_packet(level)
        packets = [rng.choice(self._valid[level]) for _ in range(rng.choice((1, 5, 20, 60, 120)))]
        if rng.random() < 0.25:
            packets.insert(rng.randint(0, len(packets)), rng.choice(self._bad[level]))
        stream = b"".join((first, *packets))
        cuts = self._cuts(len(stream))
        if rng.random() < 0.5:
            cuts = sorted({*cuts, len(first)})
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        operations: list[Operation] = [("open", number, b"")]
        operations += [("data", number, piece) for piece in pieces if piece]
        if rng.random() < 0.5:
            operations.append(("lost", number, b""))
        self._answer(operations, number, level, len(first))
        return operations

    def _cuts(self, length: int) -> list[int]:
        rng = self.rng
        if length < 60 and rng.random() < 0.2:
            return list(range(1, length))
        pieces = rng.choice((0, 1, 2, 5, 20))
        return sorted({rng.randint(1, max(1, length - 1)) for _ in range(pieces)})

    def _answer(
        self, operations: list[Operation], number: int, level: int, connect_bytes: int
    ) -> None:
        """Put the broker's doings between the client's."""
        rng = self.rng
        at, sent = 1, 0
        while at < len(operations) and sent < connect_bytes:
            sent += len(operations[at][2])
            at += 1
        at = min(len(operations), at + rng.choice((0, 0, 0, 1, 5)))
        if rng.random() < 0.03:
            operations.insert(at, ("broker-fails", number, b""))
            return
        operations.insert(at, ("broker-up", number, b""))
        at = min(len(operations), at + rng.choice((1, 1, 1, 2, 6)))
        answers: list[bytes] = []
        if level == 5 and rng.random() < 0.1:
            challenge = Properties(authentication_method="m")
            answers.append(encode(Auth(ReasonCode.CONTINUE_AUTHENTICATION, challenge), 5))
        if rng.random() < 0.96:
            answers.append(self._connack(level))
        for _ in range(rng.choice((0, 1, 3, 10))):
            answers.append(rng.choice(self._from_broker[level]))
        if rng.random() < 0.02:
            answers.append(b"\x30\xff\xff\xff\xff\xff")
        for answer in answers:
            cut = rng.randint(0, len(answer)) if rng.random() < 0.2 else 0
            for piece in (answer[:cut], answer[cut:]):
                if piece:
                    operations.insert(at, ("broker-data", number, piece))
                    at = min(len(operations), at + rng.choice((1, 1, 2, 3)))
        if rng.random() < 0.3:
            operations.insert(rng.randint(at, len(operations)), ("broker-close", number, b""))

    @staticmethod
    def farewell(client_ids: Iterable[str]) -> list[Operation]:
        """Every client id once more, for good."""
        operations: list[Operation] = []
        for number, client_id in enumerate(sorted(client_ids), 1_000):
            connect = encode(Connect(client_id, clean_start=True, protocol_level=4), 4)
            accepted = encode(ConnAck(False, ConnectReturnCode.ACCEPTED), 4)
            operations += [
                ("open", number, b""),
                ("data", number, connect),
                ("broker-up", number, b""),
                ("broker-data", number, accepted),
                ("data", number, encode(Disconnect(), 4)),
                ("lost", number, b""),
            ]
        return operations
