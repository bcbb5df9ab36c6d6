"""What a client may send, beyond what `isthmus.mqtt.decoding` checks, and by how much of it.

The limits are those of ``[limits]``; each has the reason code that MQTT 5 provides for it.  Checks
of a PUBLISH look at its bytes where they lie, because it is passed on as it came.
"""

from __future__ import annotations

from isthmus.errors import MalformedPacket, PacketTooLarge, RemoteProtocolError
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.traffic.routes import decode_topic
from isthmus.mqtt.framing import body_offset, frame_length
from isthmus.mqtt.packets import Connect, Packet, Subscribe, Unsubscribe
from isthmus.mqtt.primitives import ReadLimits
from isthmus.mqtt.publish_layout import QOS
from isthmus.mqtt.publish_properties import check_publish_properties
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.mqtt.rules import Rule

__all__ = [
    "TopicAliases",
    "check_connect_length",
    "check_publish_id",
    "check_publish_properties_at",
    "check_topics",
    "read_limits",
]


def read_limits(limits: ClientLimits) -> ReadLimits:
    """How much of one packet is read."""
    return ReadLimits(limits.property_bytes, limits.filters_per_packet)


def check_connect_length(length: int, limits: ClientLimits) -> None:
    """A CONNECT is what strangers send; `length` is what its header says."""
    limit = min(limits.connect_bytes, limits.packet_bytes)
    if length > limit:
        raise PacketTooLarge(
            f"a CONNECT of {length} bytes; limits.connect_bytes is {limit}", section="MQTT-3.1.4-1"
        )


def check_topics(packet: Packet, limits: ClientLimits) -> None:
    """The levels of a will's topic and of filters."""
    slashes = limits.topic_levels  # one more level than slashes
    if isinstance(packet, Connect):
        if packet.will is not None and packet.will.topic.count("/") >= slashes:
            raise _too_deep("will topic", slashes, ReasonCode.TOPIC_NAME_INVALID)
    elif isinstance(packet, Subscribe):
        if any(each.topic_filter.count("/") >= slashes for each in packet.subscriptions):
            raise _too_deep("topic filter", slashes, ReasonCode.TOPIC_FILTER_INVALID)
    elif isinstance(packet, Unsubscribe) and any(
        each.count("/") >= slashes for each in packet.topic_filters
    ):
        raise _too_deep("topic filter", slashes, ReasonCode.TOPIC_FILTER_INVALID)


def _too_deep(what: str, limit: int, reason_code: ReasonCode) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a {what} of more than {limit} levels", section="4.7.3", reason_code=reason_code
    )


def check_publish_id(data: bytes, head: int, pos: int, stop: int) -> None:
    """The packet identifier at `pos` of a PUBLISH at QoS 1 or 2."""
    if head & QOS == QOS:
        raise MalformedPacket("QoS 3", section="MQTT-3.3.1-4")
    if pos + 2 <= stop and not (data[pos] or data[pos + 1]):
        raise RemoteProtocolError("packet identifier 0", section="MQTT-2.2.1-3")


def check_publish_properties_at(data: bytes, pos: int, stop: int, limit: int) -> int:
    """Check the properties whose length is at `pos`; the topic alias that they set, or 0."""
    length = data[pos]
    start = pos + 1
    if length >= 0x80:
        length = frame_length(data, pos - 1) - 1  # the same variable byte integer
        start = body_offset(data, pos - 1)
        length -= start - pos
    if start + length > stop:
        raise MalformedPacket("properties longer than the packet", section="MQTT 5 §2.2.2.1")
    if length > limit:
        raise Rule.PROPERTY_BYTES.broken(5, f"{length}, not {limit}")
    return check_publish_properties(data, start, start + length)


MAX_ALIAS_BYTES = 1 << 20


class TopicAliases:
    """The aliases that one client has set (MQTT 5 §3.3.2.3.4), `MAX_ALIAS_BYTES` of topics."""

    __slots__ = ("_bytes", "_topics", "maximum")

    def __init__(self) -> None:
        self._topics: dict[int, bytes] = {}
        self._bytes = 0
        self.maximum = 0
        """What the broker's CONNACK grants."""

    def topic(self, alias: int, topic: bytes) -> bytes:
        """The real topic of a PUBLISH with this alias and this topic name, empty or not."""
        if not alias:
            if topic:
                return topic
            raise RemoteProtocolError(
                "an empty topic name without a topic alias", section="MQTT-3.3.2-8"
            )
        if alias > self.maximum:
            raise RemoteProtocolError(
                f"topic alias {alias}; the broker allows {self.maximum}",
                section="MQTT-3.2.2-17",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic:
            decode_topic(topic)  # valid, or it would be remembered for what follows
            self._bytes += len(topic) - len(self._topics.get(alias, b""))
            if self._bytes > MAX_ALIAS_BYTES:
                raise RemoteProtocolError(
                    f"topic aliases for more than {MAX_ALIAS_BYTES} bytes of topic names",
                    section="MQTT 5 §3.3.2.3.4",
                    reason_code=ReasonCode.QUOTA_EXCEEDED,
                )
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise RemoteProtocolError(
                f"topic alias {alias} was never set",
                section="MQTT 5 §3.3.2.3.4",
            )
        return known
