"""The forwarding table: what the data plane remembers of the control plane's decisions.

A PUBLISH is looked up by its topic's bytes.  A hit costs one dictionary access and means that the
topic was found valid before; a miss checks the topic ([MQTT-4.7.3-1], [MQTT-3.3.2-2]) and asks
`route`.  The table is bounded: when it is full it is emptied, and fills again with the topics in
use, so a client that invents topics costs misses but no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.errors import MalformedPacket
from isthmus.mqtt.topics import check_topic_name

__all__ = ["ForwardingTable", "decode_topic"]

MAX_TOPICS = 65_536


class ForwardingTable(dict[bytes, Any]):
    """Topic bytes → where its messages go besides the local broker."""

    __slots__ = ("_max_topics", "_route")

    def __init__(self, route: Callable[[str], Any], max_topics: int = MAX_TOPICS) -> None:
        super().__init__()
        self._route = route
        self._max_topics = max_topics

    def __missing__(self, topic: bytes) -> Any:
        targets = self._route(decode_topic(topic))
        if len(self) >= self._max_topics:
            self.clear()
        self[topic] = targets
        return targets


def decode_topic(raw: bytes) -> str:
    """The topic name in `raw`, checked; raises the error that its sender earns."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(
            f"a topic name that is not UTF-8 (byte {error.start})", section="MQTT-1.5.4-1"
        ) from None
    if "\0" in topic:
        raise MalformedPacket("U+0000 in a topic name", section="MQTT-1.5.4-2")
    check_topic_name(topic)
    return topic
