"""Which QoS 2 messages of a client are on their way and not released, so that none goes twice.

The memory belongs to the client's session, that is to its client id, and not to a connection: while
a client takes its id over from a connection that still stands, both look at the same one, and a
message that is sent again on the new connection is recognized ([MQTT-4.3.3-10]).

An identifier is free again after PUBREL ([MQTT-4.3.3-12]), after the broker's PUBREC with a reason
of 0x80 or more ([MQTT-4.3.3-9]), and after a PUBACK, with which some brokers answer QoS 2.

Clean start ends the memory.  A CONNACK that says that there is no session may be wrong (ActiveMQ
and amqtt say so although they resume it): the identifiers become *doubtful*, and only a PUBLISH
that is marked as sent again is then taken for a repetition.

Invariants: `doubtful` is a part of the set; what is kept of clients that are away has at most
`MAX_AWAY_IDS` identifiers together, of those who left last.
"""

from __future__ import annotations

from isthmus.mqtt.packets import ConnAck, Connect

__all__ = ["MAX_AWAY_IDS", "Unreleased", "UnreleasedOfSessions"]

MAX_AWAY_IDS = 1_000_000


class Unreleased(set[int]):
    """Packet identifiers of one session."""

    __slots__ = ("connections", "doubtful")

    def __init__(self) -> None:
        super().__init__()
        self.doubtful: set[int] = set()
        self.connections = 0

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
        self.doubtful.discard(packet_id)


class UnreleasedOfSessions:
    """The memories of all sessions, by client id."""

    def __init__(self, max_away_ids: int = MAX_AWAY_IDS) -> None:
        self._sessions: dict[str, Unreleased] = {}
        self._away: dict[str, None] = {}  # the longest away first
        self._away_ids = 0
        self._max_away_ids = max_away_ids

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, client_id: str, connect: Connect, connack: ConnAck) -> Unreleased:
        """The memory of a connection that was accepted; an empty client id has its own."""
        memory = self._sessions.get(client_id)
        if memory is not None and client_id in self._away:
            del self._away[client_id]
            self._away_ids -= len(memory)
        if memory is None or connect.clean_start or not client_id:
            memory = Unreleased()
            if client_id:
                self._sessions[client_id] = memory
        elif not connack.session_present:
            memory.doubtful.update(memory)
        memory.connections += 1
        return memory

    def closed(self, client_id: str, memory: Unreleased) -> None:
        """A connection that had `memory` has ended."""
        memory.connections -= 1
        if memory.connections or self._sessions.get(client_id) is not memory:
            return  # another connection goes on with it, or has begun anew
        if not memory:
            del self._sessions[client_id]
            return
        self._away[client_id] = None
        self._away_ids += len(memory)
        while self._away_ids > self._max_away_ids:
            oldest = next(iter(self._away))
            del self._away[oldest]
            self._away_ids -= len(self._sessions.pop(oldest))
