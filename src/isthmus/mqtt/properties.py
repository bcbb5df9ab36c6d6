"""MQTT 5's 27 properties (section 2.2.2): one table, one value type, reading and writing.

`PROPERTIES` is the only place that knows a property's identifier, data type, range, the
packets that may carry it and whether it may be repeated.  In memory a packet's properties
are one frozen `Properties`; what is absent is None, or an empty tuple where a property may
be repeated.  The order of different properties carries no meaning and is not kept; the
order of User Properties is [MQTT-3.3.2-18].

Property Identifiers are Variable Byte Integers of which none needs a second byte, so one
that has it is refused as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import check_topic_name
from isthmus.mqtt.primitives import (
    MAX_VARIABLE_BYTE_INTEGER,
    PacketType,
    Reader,
    write_binary,
    write_integer,
    write_text,
    write_variable_byte_integer,
)
from isthmus.mqtt.rules import Rule

__all__ = [
    "INTEGER_BYTES",
    "NO_PROPERTIES",
    "PROPERTIES",
    "WILL",
    "Kind",
    "Properties",
    "PropertySpec",
    "allowed_properties",
    "check_response_topic",
    "read_properties",
    "write_properties",
]

WILL: Final = 0
"""The carrier of will properties, beside the packet types, of which none is 0."""


class Kind(Enum):
    """The data type of a property's value."""

    BYTE = auto()
    BOOLEAN = auto()  # a byte that is 0 or 1
    TWO_BYTE_INTEGER = auto()
    FOUR_BYTE_INTEGER = auto()
    VARIABLE_BYTE_INTEGER = auto()
    BINARY = auto()
    TEXT = auto()
    TOPIC_NAME = auto()
    TEXT_PAIR = auto()


INTEGER_BYTES: Final = {
    Kind.BYTE: 1,
    Kind.BOOLEAN: 1,
    Kind.TWO_BYTE_INTEGER: 2,
    Kind.FOUR_BYTE_INTEGER: 4,
}


@dataclass(frozen=True, slots=True)
class PropertySpec:
    """What the specification says about one property."""

    identifier: int
    name: str
    kind: Kind
    section: str
    carriers: frozenset[int]
    minimum: int = 0
    maximum: int = 0xFFFF_FFFF
    repeatable_in: frozenset[int] = frozenset()
    value_section: str = ""
    value_reason_code: int = 0x82

    def repeated(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.name} more than once", section=self.section)

    def check_range(self, value: int) -> None:
        if not self.minimum <= value <= self.maximum:
            raise RemoteProtocolError(
                f"{self.name} is {value}, not {self.minimum} to {self.maximum}",
                section=self.value_section or self.section,
                reason_code=self.value_reason_code,
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Properties:
    """The properties of one packet, or of a will."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None

    def __repr__(self) -> str:
        """Only what is there, and of the authentication data, a secret, not even that."""
        present = (
            (spec.name, getattr(self, spec.name))
            for spec in PROPERTIES
            if spec.name != "authentication_data"
        )
        shown = (
            f"{name}={value!r}" for name, value in present if value is not None and value != ()
        )
        return f"Properties({', '.join(shown)})"


NO_PROPERTIES: Final = Properties()

_CONNECT, _CONNACK, _PUBLISH = PacketType.CONNECT, PacketType.CONNACK, PacketType.PUBLISH
_SUBSCRIBE, _DISCONNECT, _AUTH = PacketType.SUBSCRIBE, PacketType.DISCONNECT, PacketType.AUTH

# The sets of carriers that several properties share.
_EVERYWHERE: Final[frozenset[int]] = frozenset(
    set(PacketType) - {PacketType.PINGREQ, PacketType.PINGRESP} | {WILL}
)
_ANSWERS: Final = _EVERYWHERE - {_CONNECT, _PUBLISH, WILL, _SUBSCRIBE, PacketType.UNSUBSCRIBE}
_CLIENT: Final[frozenset[int]] = frozenset({_CONNECT})
_SERVER: Final[frozenset[int]] = frozenset({_CONNACK})
_BOTH: Final = _CLIENT | _SERVER
_MESSAGE: Final[frozenset[int]] = frozenset({_PUBLISH, WILL})
_ONLY_PUBLISH: Final[frozenset[int]] = frozenset({_PUBLISH})

_BOOLEAN, _VARIABLE = Kind.BOOLEAN, Kind.VARIABLE_BYTE_INTEGER
_U16, _U32 = Kind.TWO_BYTE_INTEGER, Kind.FOUR_BYTE_INTEGER

# fmt: off
PROPERTIES: Final[tuple[PropertySpec, ...]] = (
    PropertySpec(0x01, "payload_format_indicator", Kind.BYTE, "3.3.2.3.2", _MESSAGE, 0, 1),
    PropertySpec(0x02, "message_expiry_interval", _U32, "3.3.2.3.3", _MESSAGE),
    PropertySpec(0x03, "content_type", Kind.TEXT, "3.3.2.3.9", _MESSAGE),
    PropertySpec(0x08, "response_topic", Kind.TOPIC_NAME, "3.3.2.3.5", _MESSAGE),
    PropertySpec(0x09, "correlation_data", Kind.BINARY, "3.3.2.3.6", _MESSAGE),
    PropertySpec(0x0B, "subscription_identifiers", _VARIABLE, "3.8.2.1.2",
                 _ONLY_PUBLISH | {_SUBSCRIBE}, 1, MAX_VARIABLE_BYTE_INTEGER, _ONLY_PUBLISH),
    PropertySpec(0x11, "session_expiry_interval", _U32, "3.1.2.11.2", _BOTH | {_DISCONNECT}),
    PropertySpec(0x12, "assigned_client_identifier", Kind.TEXT, "3.2.2.3.7", _SERVER),
    PropertySpec(0x13, "server_keep_alive", _U16, "3.2.2.3.14", _SERVER, 0, 0xFFFF),
    PropertySpec(0x15, "authentication_method", Kind.TEXT, "3.1.2.11.9", _BOTH | {_AUTH}),
    PropertySpec(0x16, "authentication_data", Kind.BINARY, "3.1.2.11.10", _BOTH | {_AUTH}),
    PropertySpec(0x17, "request_problem_information", _BOOLEAN, "3.1.2.11.7", _CLIENT, 0, 1),
    PropertySpec(0x18, "will_delay_interval", _U32, "3.1.3.2.2", frozenset({WILL})),
    PropertySpec(0x19, "request_response_information", _BOOLEAN, "3.1.2.11.6", _CLIENT, 0, 1),
    PropertySpec(0x1A, "response_information", Kind.TEXT, "3.2.2.3.15", _SERVER),
    PropertySpec(0x1C, "server_reference", Kind.TEXT, "3.2.2.3.16", _SERVER | {_DISCONNECT}),
    PropertySpec(0x1F, "reason_string", Kind.TEXT, "3.2.2.3.9", _ANSWERS),
    PropertySpec(0x21, "receive_maximum", _U16, "3.1.2.11.3", _BOTH, 1, 0xFFFF),
    PropertySpec(0x22, "topic_alias_maximum", _U16, "3.1.2.11.5", _BOTH, 0, 0xFFFF),
    PropertySpec(0x23, "topic_alias", _U16, "3.3.2.3.4", _ONLY_PUBLISH, 1, 0xFFFF,
                 value_section="MQTT-3.3.2-8", value_reason_code=0x94),
    PropertySpec(0x24, "maximum_qos", Kind.BYTE, "3.2.2.3.4", _SERVER, 0, 1),
    PropertySpec(0x25, "retain_available", _BOOLEAN, "3.2.2.3.5", _SERVER, 0, 1),
    PropertySpec(0x26, "user_properties", Kind.TEXT_PAIR, "3.1.2.11.8", _EVERYWHERE,
                 repeatable_in=_EVERYWHERE),
    PropertySpec(0x27, "maximum_packet_size", _U32, "3.1.2.11.4", _BOTH, 1),
    PropertySpec(0x28, "wildcard_subscription_available", _BOOLEAN, "3.2.2.3.11", _SERVER, 0, 1),
    PropertySpec(0x29, "subscription_identifier_available", _BOOLEAN, "3.2.2.3.12", _SERVER, 0, 1),
    PropertySpec(0x2A, "shared_subscription_available", _BOOLEAN, "3.2.2.3.13", _SERVER, 0, 1),
)
# fmt: on


def allowed_properties(carrier: int) -> dict[int, PropertySpec]:
    """The properties that a packet type, or WILL, may carry, by identifier."""
    return {spec.identifier: spec for spec in PROPERTIES if carrier in spec.carriers}


_ALLOWED: Final = {carrier: allowed_properties(carrier) for carrier in _EVERYWHERE}
_USER_PROPERTY: Final = 0x26
_IN_TUPLES: Final = frozenset({"subscription_identifiers", "user_properties"})


def check_response_topic(topic: str) -> None:
    """A Response Topic is a Topic Name without wildcards [MQTT-3.3.2-14]."""
    try:
        check_topic_name(topic)
    except RemoteProtocolError as error:
        raise Rule.RESPONSE_TOPIC.broken(5, error.problem) from None


def read_properties(reader: Reader, carrier: int) -> Properties:
    """Read the Property Length and that many bytes of properties."""
    length = reader.variable_byte_integer()
    if length == 0:
        return NO_PROPERTIES
    if length > reader.limits.property_bytes:
        raise Rule.PROPERTY_BYTES.broken(5, f"{length}, not {reader.limits.property_bytes}")
    if length > reader.remaining:
        raise Rule.TRUNCATED.broken(5, f"Property Length is {length}, {reader.remaining} are left")
    packet_end, reader.end = reader.end, reader.pos + length
    allowed = _ALLOWED[carrier]
    values: dict[str, Any] = {}
    text, pairs = reader.text, []
    while reader.pos < reader.end:
        identifier = reader.byte()
        if identifier == _USER_PROPERTY:  # every carrier may have it, and as many as it likes
            pairs.append((text(), text()))
            continue
        spec = allowed.get(identifier)
        if spec is None:
            raise _not_allowed(identifier, carrier)
        value = _read_value(reader, spec)
        if spec.name in values and carrier not in spec.repeatable_in:
            raise spec.repeated()
        if spec.name in _IN_TUPLES:
            values.setdefault(spec.name, []).append(value)
        else:
            values[spec.name] = value
    reader.end = packet_end
    for name in _IN_TUPLES & values.keys():
        values[name] = tuple(values[name])
    return Properties(**values, user_properties=tuple(pairs))


def _not_allowed(identifier: int, carrier: int) -> RemoteProtocolError:
    where = "a will" if carrier == WILL else PacketType(carrier).name
    return Rule.PROPERTY_NOT_ALLOWED.broken(5, f"identifier 0x{identifier:02X} in {where}")


def _read_value(reader: Reader, spec: PropertySpec) -> object:
    value: int
    match spec.kind:
        case Kind.BYTE | Kind.BOOLEAN:
            value = reader.byte()
        case Kind.TWO_BYTE_INTEGER:
            value = reader.two_byte_integer()
        case Kind.FOUR_BYTE_INTEGER:
            value = reader.four_byte_integer()
        case Kind.VARIABLE_BYTE_INTEGER:
            value = reader.variable_byte_integer()
        case Kind.BINARY:
            return reader.binary()
        case Kind.TEXT:
            return reader.text()
        case Kind.TOPIC_NAME:
            topic = reader.text()
            check_response_topic(topic)
            return topic
        case Kind.TEXT_PAIR:
            return reader.text(), reader.text()
    spec.check_range(value)
    return bool(value) if spec.kind is Kind.BOOLEAN else value


def write_properties(properties: Properties, carrier: int) -> bytes:
    """The Property Length and the properties, in the order of their identifiers."""
    if properties is NO_PROPERTIES or properties == NO_PROPERTIES:
        return b"\x00"
    block = bytearray()
    for spec in PROPERTIES:
        value = getattr(properties, spec.name)
        if value is None or value == ():
            continue
        if carrier not in spec.carriers:
            raise _not_allowed(spec.identifier, carrier)
        values = value if spec.name in _IN_TUPLES else (value,)
        if len(values) > 1 and carrier not in spec.repeatable_in:
            raise spec.repeated()
        for each in values:
            block.append(spec.identifier)
            block += _write_value(each, spec)
    return write_variable_byte_integer(len(block), 5, "Property Length") + block


def _write_value(value: Any, spec: PropertySpec) -> bytes:
    match spec.kind:
        case Kind.BINARY:
            return write_binary(value, 5, spec.name)
        case Kind.TEXT:
            return write_text(value, 5, spec.name)
        case Kind.TOPIC_NAME:
            check_response_topic(value)
            return write_text(value, 5, spec.name)
        case Kind.TEXT_PAIR:
            name, content = value
            return write_text(name, 5, spec.name) + write_text(content, 5, spec.name)
    spec.check_range(value)
    if spec.kind is Kind.VARIABLE_BYTE_INTEGER:
        return write_variable_byte_integer(value, 5, spec.name)
    return write_integer(value, INTEGER_BYTES[spec.kind], 5, spec.name)
