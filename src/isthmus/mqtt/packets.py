"""The fifteen control packets as values, under MQTT's own names.

One set of classes serves MQTT 3.1.1 and 5.  What only MQTT 5 has (properties, most reason
codes, subscription options beyond QoS, AUTH) stays at its default in a 3.1.1 packet, and
`encode` refuses it there.  The values are plain; whether they keep the specification's
rules is checked by `encode`, and of what `decode` returns it is certain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode

__all__ = [
    "FLAGS",
    "PACKET_TYPES",
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Packet",
    "PingReq",
    "PingResp",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Will",
]


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the server publishes when the client is lost (section 3.1.2.5)."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connect:
    """`clean_start` is MQTT 3.1.1's clean session; `keep_alive` is in seconds, 0 for none."""

    client_id: str = ""
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)  # never into a log
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    protocol_level: int = 5


@dataclass(frozen=True, slots=True)
class ConnAck:
    """The reason is a `ConnectReturnCode` at level 4 and a `ReasonCode` at level 5."""

    session_present: bool = False
    reason_code: ReasonCode | ConnectReturnCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Publish:
    """`packet_id` is 0 at QoS 0; `topic` may be empty where a topic alias stands for it."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Acknowledgment:
    """What the four packets that follow a PUBLISH have alike."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubAck(Acknowledgment):
    """The answer to a PUBLISH at QoS 1."""

    __slots__ = ()


class PubRec(Acknowledgment):
    """The first answer to a PUBLISH at QoS 2."""

    __slots__ = ()


class PubRel(Acknowledgment):
    """The publisher's answer to PUBREC."""

    __slots__ = ()


class PubComp(Acknowledgment):
    """The answer to PUBREL, and the end of a QoS 2 delivery."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic filter with its options (MQTT 5 section 3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """At least one subscription."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class SubAck:
    """One reason code for each subscription asked for, in that order."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """At least one topic filter."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class UnsubAck:
    """One reason code for each filter at level 5, none at level 4."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class PingReq:
    """Are you there?"""


@dataclass(frozen=True, slots=True)
class PingResp:
    """I am."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The last packet on a connection; at level 4 only a client sends it."""

    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of enhanced authentication (MQTT 5 section 4.12)."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)

PACKET_TYPES: dict[type[Packet], PacketType] = {
    kind: PacketType[kind.__name__.upper()] for kind in get_args(Packet)
}
FLAGS: dict[PacketType, int] = {
    PacketType.PUBREL: 0b0010,
    PacketType.SUBSCRIBE: 0b0010,
    PacketType.UNSUBSCRIBE: 0b0010,
}
"""Of the fixed header: 0 for every other packet but PUBLISH."""
