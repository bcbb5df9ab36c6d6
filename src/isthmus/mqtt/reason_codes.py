"""Reason codes, and which packet may carry which.

MQTT 5 section 2.4 and the reason code table of each packet; MQTT 3.1.1 sections 3.2.2.3
(Connect Return codes) and 3.9.3 (SUBACK).  `REASON_CODES` is the one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.primitives import PacketType

__all__ = [
    "REASON_CODES",
    "RETURN_CODES_V3",
    "AllowedCodes",
    "ConnectReturnCode",
    "ReasonCode",
    "check_reason_code",
]


class ReasonCode(IntEnum):
    """MQTT 5's reason codes; names of the same value are aliases, as in the specification."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturnCode(IntEnum):
    """What an MQTT 3.1.1 CONNACK says."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


@dataclass(frozen=True, slots=True)
class AllowedCodes:
    """The codes that a packet may carry, and where the specification says so."""

    codes: frozenset[int]
    section: str


def _allowed(section: str, *codes: int) -> AllowedCodes:
    return AllowedCodes(frozenset(codes), section)


_PUBLISH_OUTCOMES = (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_GRANTED_QOS = (0x00, 0x01, 0x02)

REASON_CODES: Final[dict[PacketType, AllowedCodes]] = {
    PacketType.CONNACK: _allowed(
        "MQTT-3.2.2-8",
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95,
        0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ),
    PacketType.PUBACK: _allowed("MQTT-3.4.2-1", *_PUBLISH_OUTCOMES),
    PacketType.PUBREC: _allowed("MQTT-3.5.2-1", *_PUBLISH_OUTCOMES),
    PacketType.PUBREL: _allowed("MQTT-3.6.2-1", 0x00, 0x92),
    PacketType.PUBCOMP: _allowed("MQTT-3.7.2-1", 0x00, 0x92),
    PacketType.SUBACK: _allowed(
        "MQTT-3.9.3-2",
        *_GRANTED_QOS, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
    ),
    PacketType.UNSUBACK: _allowed(
        "MQTT-3.11.3-2", 0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91
    ),
    # 0x8C is missing in the packet's own table but given to DISCONNECT by section 2.4.
    PacketType.DISCONNECT: _allowed(
        "MQTT-3.14.2-1",
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93,
        0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    ),
    PacketType.AUTH: _allowed("MQTT-3.15.2-1", 0x00, 0x18, 0x19),
}  # fmt: skip

RETURN_CODES_V3: Final[dict[PacketType, AllowedCodes]] = {
    PacketType.CONNACK: _allowed("3.2.2.3", *range(6)),
    PacketType.SUBACK: _allowed("MQTT-3.9.3-2", *_GRANTED_QOS, 0x80),
}

_ONLY_SUCCESS = _allowed("1.2", 0x00)  # the packets of MQTT 3.1.1 that have no such field


def check_reason_code(packet_type: PacketType, code: int, level: int) -> None:
    """Raise unless that packet may carry that code at that protocol level."""
    if level == 5:
        allowed = REASON_CODES[packet_type]
    else:
        allowed = RETURN_CODES_V3.get(packet_type, _ONLY_SUCCESS)
    if code not in allowed.codes:
        raise RemoteProtocolError(
            f"0x{code:02X} is not a reason code of {packet_type.name}", section=allowed.section
        )
