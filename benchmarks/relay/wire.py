"""The bytes of the load, by hand: MQTT 3.1.1, QoS 0, every PUBLISH equally long.

Because all topics and all payloads have one length, a receiver counts messages by counting
bytes and knows where each frame starts.  `isthmus.mqtt` is not used on purpose: a generator
that shared the node's framing would share its faults too.

A frame of `FRAME_BYTES`::

    0x30 | remaining length | 0x00 0x07 | "relay/N" | t_send_ns:8 seq:4 publisher:2 zeros:18
"""

from __future__ import annotations

import struct

__all__ = [
    "CONNACK_ACCEPTED",
    "DISCONNECT",
    "FRAME_BYTES",
    "PAYLOAD",
    "PAYLOAD_AT",
    "PAYLOAD_BYTES",
    "PUBLISH_QOS0",
    "RECORD",
    "SUBACK_BYTES",
    "connect",
    "publish",
    "subscribe",
    "topic",
]

PUBLISH_QOS0 = 0x30
PAYLOAD_BYTES = 32
PAYLOAD = struct.Struct(">QIH18x")  # t_send_ns, seq (per publisher, from 0), publisher
PAYLOAD_AT = 2 + 2 + len("relay/0")
FRAME_BYTES = PAYLOAD_AT + PAYLOAD_BYTES
RECORD = struct.Struct(f">B{PAYLOAD_AT - 1}xQIH18x")  # a whole frame: first byte, then PAYLOAD

CONNACK_ACCEPTED = b"\x20\x02\x00\x00"
SUBACK_BYTES = 5
DISCONNECT = b"\xe0\x00"

assert PAYLOAD.size == PAYLOAD_BYTES
assert RECORD.size == FRAME_BYTES


def _string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def _packet(first_byte: int, body: bytes) -> bytes:
    if len(body) > 127:  # one byte of remaining length is all the load needs
        raise ValueError(f"a packet body of {len(body)} bytes; the load's packets have at most 127")
    return bytes((first_byte, len(body))) + body


def topic(number: int) -> str:
    """The load's topic `number`; one digit, so that all are equally long."""
    if not 0 <= number <= 9:
        raise ValueError(f"topic number {number}; 0 to 9 keep all topics equally long")
    return f"relay/{number}"


def connect(client_id: str) -> bytes:
    """CONNECT: MQTT 3.1.1, clean session, keep-alive off [MQTT-3.1.2]."""
    return _packet(0x10, _string("MQTT") + b"\x04\x02\x00\x00" + _string(client_id))


def subscribe(topic_filter: str, packet_id: int = 1) -> bytes:
    """SUBSCRIBE to one filter at QoS 0 [MQTT-3.8]."""
    return _packet(0x82, packet_id.to_bytes(2, "big") + _string(topic_filter) + b"\x00")


def publish(topic_name: str, t_send_ns: int, seq: int, publisher: int) -> bytes:
    """One frame of the load."""
    payload = PAYLOAD.pack(t_send_ns, seq, publisher)
    return _packet(PUBLISH_QOS0, _string(topic_name) + payload)
