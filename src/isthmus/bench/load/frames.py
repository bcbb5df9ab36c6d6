"""The bytes of one benchmark PUBLISH, at MQTT 3.1.1, and where its fields stand in them.

All messages of one topic, QoS and payload size are equally long and begin with the same bytes, so a
sender fills in a template and a receiver looks at whole arrays of frames::

    0 ─ head ─▶│ packet id │◀─ payload_at
    type, remaining length, topic (QoS 1 and 2) payload (:mod:`isthmus.pipeline.log.payload`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.pipeline.log.payload import SIZE

__all__ = ["LEVEL", "MAX_FRAME_BYTES", "Template", "template"]

LEVEL: Final = 4
"""MQTT 3.1.1, which every broker speaks."""
MAX_FRAME_BYTES: Final = 16 << 20
"""A longer packet from a broker ends its connection."""


@dataclass(frozen=True, slots=True)
class Template:
    """A PUBLISH with zeros for packet id and payload."""

    frame: bytes
    qos: int
    payload_at: int

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return len(self.frame)

    @property
    def head(self) -> bytes:
        """What stands before the packet id: equal in every message."""
        return self.frame[: self.packet_id_at]

    @property
    def packet_id_at(self) -> int:
        """Where the packet id stands; where the payload does, at QoS 0."""
        return self.payload_at - (2 if self.qos else 0)

    @property
    def payload_bytes(self) -> int:
        return len(self.frame) - self.payload_at


def template(topic: str, qos: int, payload_bytes: int) -> Template:
    """The PUBLISH that the benchmark's clients send to `topic`."""
    if payload_bytes < SIZE:
        raise ValueError(f"a payload of {payload_bytes} bytes; {SIZE} are needed for its fields")
    publish = Publish(topic, bytes(payload_bytes), qos, packet_id=1 if qos else 0)
    frame = bytearray(encode(publish, LEVEL))
    payload_at = len(frame) - payload_bytes
    if qos:
        frame[payload_at - 2 : payload_at] = bytes(2)
    return Template(bytes(frame), qos, payload_at)
