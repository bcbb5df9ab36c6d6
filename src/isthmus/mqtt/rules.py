"""The rules of MQTT that a packet can break, each with its place in the specification.

One table: what is wrong, the statement (``MQTT-3.3.1-2``) or section (``3.8.3.1``) of
MQTT 3.1.1 and of MQTT 5, and MQTT 5's reason code.  Where MQTT 5 does not say which kind
of error a violation is, a bit pattern that cannot be read is malformed (0x81) and a value
that reads but is not allowed is a Protocol Error (0x82), by the definitions in section 1.2.

The codec's inner functions only say which rule is broken, as a `RemoteProtocolError`.
Whose fault that is, is decided at the two doors: `decode` lets it through, `encode` turns
it into a `LocalProtocolError`.
"""

from __future__ import annotations

from enum import Enum, unique

from isthmus.errors import MalformedPacket, RemoteProtocolError

__all__ = ["Rule"]

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
QUOTA_EXCEEDED = 0x97


@unique
class Rule(Enum):
    """A rule: (problem, section in 3.1.1, section in 5, reason code)."""

    # Framing and data representation
    PACKET_TYPE = ("no such packet type in this version", "2.2.1", "2.1.2", MALFORMED)
    FLAGS = ("reserved header flags are wrong", "MQTT-2.2.2-2", "MQTT-2.1.3-1", MALFORMED)
    VARIABLE_BYTE_INTEGER = ("length of more than four bytes", "2.2.3", "1.5.5", MALFORMED)
    FRAME_LENGTH = ("Remaining Length does not fit the frame", "2.2.3", "2.1.4", MALFORMED)
    TRUNCATED = ("a field runs past the end", "2.2.3", "2.1.4", MALFORMED)
    TRAILING_BYTES = ("bytes follow the last field", "2.2.3", "2.1.4", MALFORMED)
    UTF8 = ("text is not well-formed UTF-8", "MQTT-1.5.3-1", "MQTT-1.5.4-1", MALFORMED)
    NULL_CHARACTER = ("text contains U+0000", "MQTT-1.5.3-2", "MQTT-1.5.4-2", MALFORMED)
    FIELD_TOO_LONG = ("field is longer than 65535 bytes", "1.5.3", "1.5.4", MALFORMED)
    INTEGER_RANGE = ("number does not fit its field", "1.5.2", "1.5.2", PROTOCOL_ERROR)
    PACKET_TOO_LONG = ("packet is longer than 268435455 bytes", "2.2.3", "2.1.4", 0x95)
    PACKET_ID = ("Packet Identifier is 0", "MQTT-2.3.1-1", "MQTT-2.2.1-3", PROTOCOL_ERROR)
    PACKET_ID_AT_QOS_0 = (
        "Packet Identifier at QoS 0", "MQTT-2.3.1-5", "MQTT-2.2.1-2", PROTOCOL_ERROR,
    )  # fmt: skip

    # What a reader's own limits forbid
    PROPERTY_BYTES = ("more bytes of properties than are taken", "", "4.13", QUOTA_EXCEEDED)
    FILTERS = ("more topic filters in a packet than are taken", "4.8", "4.13", QUOTA_EXCEEDED)

    # CONNECT and CONNACK
    NOT_CONNECT = ("first packet is not CONNECT", "MQTT-3.1.0-1", "MQTT-3.1.0-1", PROTOCOL_ERROR)
    PROTOCOL_NAME = ("protocol name is not MQTT", "MQTT-3.1.2-1", "MQTT-3.1.2-1", 0x84)
    PROTOCOL_LEVEL = (
        "protocol level differs from the connection's", "3.1.2.2", "3.1.2.2", PROTOCOL_ERROR,
    )  # fmt: skip
    CONNECT_RESERVED = ("reserved Connect Flag is 1", "MQTT-3.1.2-3", "MQTT-3.1.2-3", MALFORMED)
    WILL_QOS_WITHOUT_WILL = (
        "Will QoS without Will Flag", "MQTT-3.1.2-13", "MQTT-3.1.2-11", MALFORMED,
    )  # fmt: skip
    WILL_QOS = ("Will QoS is 3", "MQTT-3.1.2-14", "MQTT-3.1.2-12", MALFORMED)
    WILL_RETAIN_WITHOUT_WILL = (
        "Will Retain without Will Flag", "MQTT-3.1.2-15", "MQTT-3.1.2-13", MALFORMED,
    )  # fmt: skip
    PASSWORD_WITHOUT_USERNAME = (
        "Password without User Name", "MQTT-3.1.2-22", "3.1.2.9", MALFORMED,
    )  # fmt: skip
    CONNACK_RESERVED = (
        "reserved Connect Acknowledge Flags are not 0", "3.2.2.1", "MQTT-3.2.2-1", MALFORMED,
    )  # fmt: skip
    SESSION_PRESENT = (
        "Session Present in a refusal", "MQTT-3.2.2-4", "MQTT-3.2.2-6", PROTOCOL_ERROR,
    )  # fmt: skip

    # PUBLISH
    DUP_AT_QOS_0 = ("DUP at QoS 0", "MQTT-3.3.1-2", "MQTT-3.3.1-2", MALFORMED)
    QOS = ("QoS is 3", "MQTT-3.3.1-4", "MQTT-3.3.1-4", MALFORMED)
    NO_TOPIC = ("neither Topic Name nor Topic Alias", "MQTT-4.7.3-1", "3.3.2.1", PROTOCOL_ERROR)
    SUBSCRIPTION_IDENTIFIER_FROM_CLIENT = (
        "Subscription Identifier in a client's PUBLISH", "", "MQTT-3.3.4-6", PROTOCOL_ERROR,
    )  # fmt: skip

    # SUBSCRIBE, UNSUBSCRIBE and their answers
    SUBSCRIBE_EMPTY = ("no Topic Filter", "MQTT-3.8.3-3", "MQTT-3.8.3-2", PROTOCOL_ERROR)
    UNSUBSCRIBE_EMPTY = ("no Topic Filter", "MQTT-3.10.3-2", "MQTT-3.10.3-2", PROTOCOL_ERROR)
    SUBACK_EMPTY = ("no Reason Code", "MQTT-3.8.4-5", "MQTT-3.9.3-1", PROTOCOL_ERROR)
    UNSUBACK_EMPTY = ("no Reason Code", "3.11.3", "MQTT-3.11.3-1", PROTOCOL_ERROR)
    SUBSCRIPTION_RESERVED = (
        "reserved Subscription Options are not 0", "MQTT-3-8.3-4", "MQTT-3.8.3-5", MALFORMED,
    )  # fmt: skip  # "3-8.3-4" is how MQTT 3.1.1 prints it
    SUBSCRIPTION_QOS = ("subscribed QoS is 3", "MQTT-3-8.3-4", "3.8.3.1", PROTOCOL_ERROR)
    RETAIN_HANDLING = ("Retain Handling is 3", "", "3.8.3.1", PROTOCOL_ERROR)
    NO_LOCAL_SHARED = (
        "No Local on a Shared Subscription", "", "MQTT-3.8.3-4", PROTOCOL_ERROR,
    )  # fmt: skip

    # Properties and what else came with MQTT 5
    PROPERTY_NOT_ALLOWED = ("property is not allowed here", "", "2.2.2.2", MALFORMED)
    RESPONSE_TOPIC = ("Response Topic is not a Topic Name", "", "MQTT-3.3.2-14", PROTOCOL_ERROR)
    AUTHENTICATION_DATA = (
        "Authentication Data without Authentication Method", "", "3.1.2.11.10", PROTOCOL_ERROR,
    )  # fmt: skip
    AUTHENTICATION_METHOD = (
        "AUTH without Authentication Method", "", "3.15.2.2.2", PROTOCOL_ERROR,
    )  # fmt: skip
    NEEDS_VERSION_5 = ("only MQTT 5 has this", "1.2", "1.2", PROTOCOL_ERROR)

    def __init__(self, problem: str, section_v3: str, section_v5: str, reason_code: int) -> None:
        self.problem = problem
        self.section_v3 = section_v3
        self.section_v5 = section_v5
        self.reason_code = reason_code

    def section(self, level: int) -> str:
        """Where the specification of that protocol level says so."""
        return self.section_v5 if level == 5 else self.section_v3

    def broken(self, level: int, detail: str = "") -> RemoteProtocolError:
        """The error to raise; `detail` names the field and what stood in it."""
        message = f"{self.problem}: {detail}" if detail else self.problem
        if self.reason_code == MALFORMED:
            return MalformedPacket(message, section=self.section(level))
        return RemoteProtocolError(
            message, section=self.section(level), reason_code=self.reason_code
        )
