"""Which QoS 2 messages of a client are on their way and not released, so that none goes twice.

The memory belongs to the client's session, that is to its client id, and not to a connection: while
a client takes its id over from a connection that still stands, both look at the same one, and a
message that is sent again on the new connection is recognized ([MQTT-4.3.3-10]).

An identifier is free again after PUBREL ([MQTT-4.3.3-12]), after the broker's PUBREC with a reason
of 0x80 or more ([MQTT-4.3.3-9]), and after a PUBACK, with which some brokers answer QoS 2.

Clean start ends the memory.  A CONNACK that says that there is no session may be wrong (ActiveMQ
and amqtt say so although they resume it): the identifiers become *doubtful*, and only a PUBLISH
that is marked as sent again is then taken for a repetition.

Invariant: `doubtful` is a part of the set.
"""

from __future__ import annotations

__all__ = ["Unreleased"]


class Unreleased(set[int]):
    """Packet identifiers of one session."""

    __slots__ = ("doubtful", "unconfirmed")

    def __init__(self) -> None:
        super().__init__()
        self.doubtful: set[int] = set()
        self.unconfirmed: dict[int, object] = {}
        """What the fabric is to confirm and has not, or refuses (`confirming`)."""

    def is_repetition(self, packet_id: int, *, dup: bool) -> bool:
        """Whether a PUBLISH of this identifier was passed on before; it is noted in any case."""
        if packet_id in self:
            if dup or packet_id not in self.doubtful:
                return True
            self.doubtful.discard(packet_id)
        else:
            self.add(packet_id)
        return False

    def release(self, packet_id: int) -> None:
        self.discard(packet_id)
        self.unconfirmed.pop(packet_id, None)
        self.doubtful.discard(packet_id)
