"""A link: all that is between this node and one neighbor, over as many connections as it takes.

Its state is that of `isthmus.exchange.link.life.LINK`.

Which lane a message takes follows from its topic, so that one publisher's messages on one topic
stay in order ([MQTT-4.6.0]); taking them in turn, as ILDM §4.1 does, can be asked for.

A message at QoS 1 or 2 stays with the link until the neighbor has acknowledged it, also while the
link is down but kept; if more than `queue_bytes` gather, publishers are held back while the link
is up, and the neighbor is given up while it is down; unless the link can be set apart
(`set_apart`), then they gather on disk.  A message at QoS 0 is dropped, and counted, when the link
is down or `queue_bytes` wait to be written.

Retained messages at QoS 0 go to every neighbor and cost it much.  Whoever publishes them faster
than a neighbor takes them would fill all buffers on the way, and others' messages would come
seconds late.  So the stream of them has *marks*: a PINGREQ after some, whose answer says that the
neighbor is done with all before it.  With `MAX_MARKS` unanswered, their publishers are held back.

Where not everything may cross the link, or not under the same name (`crossing`), names change as
packets are written: what is kept for the neighbor has this node's names.

So there can be too much of three things (`Room`): who would make more asks `has_room` and, if there
is none, is called when there is (`when_room`), as soon as the neighbor has acknowledged or answered
enough.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from isthmus.cooperation.api import MAX_LABEL_BYTES, LinkTraffic, SessionInfo, SessionStatus
from isthmus.cooperation.link_rules import Crossing
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.lane import Held, Incoming, Outgoing, OutgoingLane, Writes
from isthmus.exchange.link.life import LINK, LinkAction, LinkEvent, LinkState
from isthmus.exchange.link.runs import BATCH_BYTES, Batch, Run
from isthmus.exchange.link.set_apart import LinkApart
from isthmus.exchange.traffic.message import (
    Fate,
    Message,
    from_link,
    plain_renamed,
    publish_bytes,
    to_link,
)
from isthmus.mqtt.publish_layout import PUBCOMP, PUBLISH, acknowledgment
from isthmus.tables import step

__all__ = [
    "MAX_CONTROL_BYTES",
    "SETTLED_AT_ONCE",
    "SETTLED_TOPIC",
    "Link",
    "Room",
    "settled_line",
]

SETTLED_TOPIC = "$isthmus/safe"
_SETTLED = re.compile(
    rb"([+!-])([A-Za-z0-9._-]{1,64})(?:~((?:[0-9a-f]{2}){1,%d}))?#([0-9a-f]{1,32}\.[0-9a-f]{1,32})"
    % MAX_LABEL_BYTES
)
"""What has become of it, its origin, label and number there."""
SETTLED_AT_ONCE = 200
"""Messages in one packet."""
_FATES = {b"+": Fate.SAFE, b"-": Fate.MISSED, b"!": Fate.REFUSED}
_SIGNS = {fate: sign for sign, fate in _FATES.items()}

MAX_CONTROL_BYTES = 1 << 20
"""What every node takes, whatever it says of clients' messages."""
RETAINED_TOPIC = b"$isthmus/retained"
MARK_MESSAGES = 500
MARK_BYTES = 128 << 10
MAX_MARKS = 4
MOST_AROUND = 65_600
"""Bytes of a PUBLISH beside properties and payload: its topic above all."""
MAX_UNWRITTEN_BYTES = 1 << 20
ENOUGH_PART = 0.9
"""Of `queue_bytes` unacknowledged, and publishers who are held go on.  The less of it is to be
acknowledged first, the shorter is their pause; all of them go on at once."""


class Room(Enum):
    """What there can be too much of on a link."""

    UNACKNOWLEDGED = "messages at QoS 1 and 2 that the neighbor has not acknowledged"
    UNTAKEN = "retained messages at QoS 0 that the neighbor is not done with"
    UNWRITTEN = "bytes on the first lane that the network has not taken"


class Link:
    """One neighbor."""

    __slots__ = (
        "_marks",
        "_turn",
        "_unmarked",
        "_unmarked_bytes",
        "_waiting",
        "_write",
        "apart",
        "connections",
        "control_received",
        "control_received_bytes",
        "control_sent",
        "control_sent_bytes",
        "counters",
        "crossing",
        "dropped",
        "found_too_large",
        "incarnation",
        "incoming",
        "info",
        "initiator",
        "joined_s",
        "outgoing",
        "packet_bytes",
        "qos",
        "queue_bytes",
        "received",
        "received_bytes",
        "refused",
        "round_robin",
        "sent",
        "sent_bytes",
        "state",
        "stream",
    )

    def __init__(
        self, info: SessionInfo, stream: str, *, qos: int, queue_bytes: int, round_robin: bool
    ) -> None:
        self.info = info
        self.stream = stream
        self.qos = qos
        self.queue_bytes = queue_bytes
        self.round_robin = round_robin
        self.crossing: Crossing | None = None
        """What may cross it; None: everything, as it is."""
        self._write: Writes = to_link
        self.state = LinkState.DOWN
        self.initiator = ""
        self.incarnation = ""
        self.connections: list[Connection | None] = [None]
        self.outgoing = [OutgoingLane(info.name)]
        self.incoming: list[Incoming | None] = [None]
        self.apart: LinkApart | None = None
        """How it is set apart, if it can be."""
        self._waiting: dict[Room, list[Callable[[], None]]] = {}
        self.counters: Counter[str] = Counter()
        """The node's, as soon as the link is up."""
        self.sent = self.received = self.dropped = 0
        """Messages."""
        self.refused = 0
        """What came although it may not cross."""
        self.sent_bytes = self.received_bytes = 0
        """Of everything: messages, their acknowledgments, control, pings."""
        self.control_sent = self.control_received = 0
        self.control_sent_bytes = self.control_received_bytes = 0
        self.packet_bytes = 1 << 28
        """The longest PUBLISH of a client that the neighbor takes, as it said in its greeting."""
        self.found_too_large: Callable[[bytes, int], None] = lambda _topic, _size: None
        """Is told the topic of a message that is longer, and therefore not sent."""
        self.joined_s = -1.0
        """When its neighbor became one of the algorithm's; negative if it never did."""
        self._turn = 0
        self._marks: deque[tuple[Connection, int]] = deque()
        """Connections and how many of their PINGREQs will have been answered."""
        self._unmarked = self._unmarked_bytes = 0
        """Retained messages at QoS 0 since the last mark."""

    def happens(self, event: LinkEvent) -> tuple[LinkAction, ...]:
        """What is to be done, by the exchange; the algorithm's view of the session follows."""
        before = self.state
        self.state, actions = step(LINK, before, event)
        if self.state.session != before.session:
            established, closed = SessionStatus.ESTABLISHED, SessionStatus.CLOSED
            self.info.status = established if self.state.session else closed
        return actions

    @property
    def lanes(self) -> int:
        return len(self.connections)

    def prepare(self, initiator: str, incarnation: str, lanes: int, new_stream: str) -> None:
        """A new set of connections is being made, perhaps by a neighbor that was restarted."""
        self.initiator = initiator
        self.incarnation = incarnation
        if lanes != self.lanes or not any(map(len, self.outgoing)):
            # Numbers belong to a lane; with other lanes what waits is numbered anew, in order.
            # With nothing to send again there is no number that the neighbor must know.
            waiting = [entry for lane in self.outgoing for entry in lane.take()]
            self.outgoing = [OutgoingLane(self.info.name, self._write) for _ in range(lanes)]
            self.stream = new_stream
            for entry in waiting:
                self.outgoing[self._lane_of(entry.message.topic, lanes)].put(entry)
        self.incoming = [None] * lanes
        self.connections = [None] * lanes
        self._marks.clear()

    def complete(self) -> bool:
        return all(connection is not None for connection in self.connections)

    def _lane_of(self, topic: bytes, lanes: int) -> int:
        if lanes == 1:
            return 0
        if self.round_robin:
            self._turn = (self._turn + 1) % lanes
            return self._turn
        return zlib.crc32(topic) % lanes

    def takes(self, packet_bytes: int) -> None:
        """The neighbor has said, before its connections are used, how long a message may be."""
        before, self.packet_bytes = self.packet_bytes, packet_bytes
        if packet_bytes < before:
            for lane in self.outgoing:
                lane.drop(self._too_large)

    def cross(self, crossing: Crossing | None) -> None:
        """The ends have said, before its connections are used, what may cross."""
        self.crossing = self.info.crossing = crossing
        self._write = to_link if crossing is None else _write_renamed(crossing)
        for lane in self.outgoing:
            lane.write = self._write
            if crossing is not None:
                lane.drop(lambda message: crossing.leaves(message.topic) is None, misses=False)

    # ---- sending -------------------------------------------------------------------------

    def _too_large(self, message: Message) -> bool:
        if len(message.payload) + len(message.properties) + MOST_AROUND < self.packet_bytes:
            return False
        size = publish_bytes(message)
        if self.crossing is not None:
            size += self.crossing.added_bytes
        if size <= self.packet_bytes:
            return False
        self.found_too_large(message.topic, size)
        return True

    def send(
        self,
        message: Message,
        now_s: float,
        in_hand: Held | None,
        label: bytes = b"",
        *,
        again: bool = False,
    ) -> None:
        """Pass `message` on; `in_hand` waits for the neighbor if it is to acknowledge it.

        `again` if it was sent there before, with another label.
        """
        if self.crossing is not None and self.crossing.leaves(message.topic) is None:
            return
        if self._too_large(message):
            message.misses()
            return
        lane = self._lane_of(message.topic, self.lanes)
        qos = self.qos_of(message)
        if qos == 0:
            frame = self._write(message, 0, 0, now_s, label)
            self._send_frame(lane, frame)
            if message.retain:
                self._mark(lane, len(frame))
            return
        if in_hand is not None:
            in_hand.wait_for(self.info.name)
        entry = Outgoing(message, qos, in_hand, label)
        if self.apart is not None and self.apart.takes(entry):
            return
        self.outgoing[lane].put(entry, again=again)
        self.transmit(lane, now_s)

    @property
    def takes_batches(self) -> bool:
        """Whether messages at QoS 1 may go as `Run`s: there is nothing to look at in each."""
        apart = self.apart
        return (
            self.state.up
            and self.crossing is None
            and self.qos > 0
            and self.packet_bytes > MOST_AROUND + BATCH_BYTES
            and (apart is None or apart.lets_pass)
        )

    def send_batch(self, batch: Batch, label: bytes, now_s: float) -> None:
        """The same with messages of local clients that came together."""
        everything = range(len(batch.topics))
        if self.lanes == 1:
            self.outgoing[0].put_run(Run(batch, everything, label))
            self.transmit(0, now_s)
            return
        by_lane: dict[int, list[int]] = {}
        for at in everything:
            by_lane.setdefault(self._lane_of(batch.topics[at], self.lanes), []).append(at)
        for lane, indexes in by_lane.items():
            self.outgoing[lane].put_run(Run(batch, indexes, label))
            self.transmit(lane, now_s)

    @property
    def is_waited_for(self) -> bool:
        """Whether who would send it more than there is room for waits, and it is not given up."""
        return self.state.up or self.apart is not None

    def qos_of(self, message: Message) -> int:
        """At which QoS it crosses the link."""
        return min(message.qos, max(self.qos, message.confirm))

    def put_back(self, entry: Outgoing) -> None:
        """What has waited on disk is the next to be sent."""
        crossing = self.crossing
        if crossing is not None and crossing.leaves(entry.message.topic) is None:
            entry.finish(self.info.name)  # rules have come since, and it is not for the neighbor
        elif entry.qos and not self._too_large(entry.message):
            self.outgoing[self._lane_of(entry.message.topic, self.lanes)].append(entry)
        else:
            entry.message.misses()
            entry.finish(self.info.name)

    def transmit_all(self, now_s: float) -> None:
        for lane in range(self.lanes):
            self.transmit(lane, now_s)
        if self.apart is not None:
            self.apart.refill()

    def send_plain(self, topics: Sequence[bytes], frames: Sequence[bytes]) -> None:
        """Pass on messages at QoS 0 that are in the link's form already, but for their names."""
        if self.crossing is not None:
            topics, frames = _renamed(self.crossing, topics, frames)
        size = sum(map(len, frames))
        connection = self.connections[0]
        if (
            connection is not None
            and self.lanes == 1
            and self.state.carries
            and size <= self.packet_bytes
            and connection.waiting_bytes() + size <= self.queue_bytes
        ):
            connection.send_all(frames, size)
            self.sent += len(frames)
            return
        for topic, frame in zip(topics, frames, strict=True):
            if len(frame) <= self.packet_bytes or not self._too_large(from_link(frame, 0.0)[0]):
                self._send_frame(self._lane_of(topic, self.lanes), frame)

    def _send_frame(self, lane: int, frame: bytes) -> None:
        connection = self.connections[lane]
        if (
            connection is None
            or not self.state.carries
            or connection.waiting_bytes() > self.queue_bytes
        ):
            self.dropped += 1
        else:
            connection.send(frame)
            self.sent += 1

    def _mark(self, lane: int, size: int) -> None:
        """A retained message was sent: now and then ask whether the neighbor is done with it."""
        self._unmarked += 1
        self._unmarked_bytes += size
        if self._unmarked < MARK_MESSAGES and self._unmarked_bytes < MARK_BYTES:
            return
        self._unmarked = self._unmarked_bytes = 0
        connection = self.connections[lane]
        if connection is not None and self.state.carries:
            self._marks.append((connection, connection.ping()))

    def transmit(self, lane: int, now_s: float) -> None:
        connection = self.connections[lane]
        if connection is not None and self.state.carries:
            outgoing = self.outgoing[lane]
            expired = outgoing.expired
            if packets := outgoing.transmit(now_s):
                connection.send_all(packets, sum(map(len, packets)))
                self.sent += len(packets)
            if outgoing.expired != expired:
                self.counters["expired"] += outgoing.expired - expired

    def send_control(self, packet: bytes) -> bool:
        """A control packet; all go by the first lane, so they stay in order."""
        connection = self.connections[0]
        if connection is None or not self.state.up:
            return False
        if len(packet) > MAX_CONTROL_BYTES and len(packet) > self.packet_bytes:
            # A retained message, in the comparison with a neighbor that takes none so long.
            self.found_too_large(RETAINED_TOPIC, len(packet))
            return True
        connection.send(packet)
        self.control_went(packet)
        return True

    def control_went(self, packet: bytes) -> None:
        self.control_sent += 1
        self.control_sent_bytes += len(packet)

    def control_came(self, packet: bytes) -> None:
        self.control_received += 1
        self.control_received_bytes += len(packet)

    def took(self, rtt_s: float) -> None:
        """A PINGREQ was answered; the smoothed time is that of RFC 6298."""
        before_s = self.info.rtt_s
        self.info.rtt_s = rtt_s if not before_s else before_s + (rtt_s - before_s) / 8

    def traffic(self) -> LinkTraffic:
        return LinkTraffic(
            self.sent,
            self.sent_bytes - self.control_sent_bytes,
            self.received,
            self.received_bytes - self.control_received_bytes,
            self.control_sent,
            self.control_sent_bytes,
            self.control_received,
            self.control_received_bytes,
        )

    def answer(self, lane: int, incoming: Incoming, answer: bytes) -> None:
        """Acknowledge what came in the stream `incoming`, if it is the one that runs now."""
        if answer and lane < self.lanes and self.incoming[lane] is incoming:
            connection = self.connections[lane]
            if connection is not None:
                connection.send(answer)
                if answer[0] & 0xF0 == PUBLISH:
                    self.control_went(answer)

    def released(self, lane: int, packet_id: int) -> None:
        """PUBREL came."""
        connection = self.connections[lane]
        if connection is not None:
            connection.send(acknowledgment(PUBCOMP, packet_id))

    def acknowledged(
        self, lane: int, head: int, packet_id: int, now_s: float, reason: int = 0
    ) -> None:
        answer = self.outgoing[lane].acknowledged(head, packet_id, reason)
        connection = self.connections[lane]
        if answer and connection is not None:
            connection.send(answer)
        self._go_on(lane, now_s)

    def all_acknowledged(self, lane: int, packet_ids: Sequence[int], now_s: float) -> None:
        """The same with PUBACKs that say nothing else."""
        self.outgoing[lane].all_acknowledged(packet_ids)
        self._go_on(lane, now_s)

    def _go_on(self, lane: int, now_s: float) -> None:
        self.transmit(lane, now_s)
        if self.apart is not None and self.apart.spool.behind:
            self.apart.refill()
        if self._waiting:
            self.look_for_room()

    def settled(self, payload: bytes) -> None:
        """The neighbor names what it had taken, and what has become of it."""
        lines = payload.split(b"\n", SETTLED_AT_ONCE)
        if len(lines) > SETTLED_AT_ONCE:
            raise RemoteProtocolError(f"more than {SETTLED_AT_ONCE} messages said to be settled")
        for line in lines:
            found = _SETTLED.fullmatch(line)
            if found is None:
                raise RemoteProtocolError(f"{line[:80]!r} names no message that was taken")
            sign, origin, label, number = found.groups(default=b"")
            key = origin.decode(), number.decode(), bytes.fromhex(label.decode())
            for lane in self.outgoing:
                if lane.settled(*key, _FATES[sign]):
                    break
        if self.apart is not None and self.apart.spool.behind:
            self.apart.refill()
        if self._waiting:
            self.look_for_room()

    # ---- room ----------------------------------------------------------------------------

    def has_room(self, room: Room, part: float = 1.0) -> bool:
        """Whether there may be more of it; with `part`, whether no more than that part is there."""
        if room is Room.UNACKNOWLEDGED:
            return self.unacked_bytes() <= self.queue_bytes * part
        if room is Room.UNTAKEN:
            marks = self._marks
            while marks and marks[0][0].pongs >= marks[0][1]:
                marks.popleft()
            return len(marks) < MAX_MARKS
        connection = self.connections[0]
        return connection is None or connection.waiting_bytes() <= MAX_UNWRITTEN_BYTES

    def when_room(self, room: Room, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there is room (again), or the link is given up."""
        self._waiting.setdefault(room, []).append(go_on)

    def waits_for_room(self, room: Room) -> bool:
        return room in self._waiting

    def look_for_room(self) -> None:
        """The neighbor has acknowledged or answered something, or the link is down."""
        for room in list(self._waiting):
            if self.has_room(room, ENOUGH_PART):
                for go_on in self._waiting.pop(room):
                    go_on()

    def unacknowledged(self) -> Iterator[Outgoing]:
        """Messages that the neighbor has not acknowledged, of each lane in order."""
        for lane in self.outgoing:
            yield from lane.unacknowledged()

    def unacked(self) -> int:
        """How many messages the neighbor has not acknowledged."""
        behind = self.apart.spool.behind if self.apart is not None else 0
        return sum(map(len, self.outgoing)) + behind

    def only_in_memory(self) -> int:
        """How many of them are not on disk."""
        if self.apart is None or not self.apart.spool.apart:
            return self.unacked()
        return 0 if self.apart.spool.all_written else self.apart.spool.messages

    def unacked_bytes(self) -> int:
        """What they take in memory."""
        elsewhere = self.apart.memory if self.apart is not None else 0
        return self.lane_bytes() + elsewhere

    def lane_bytes(self) -> int:
        return sum(lane.unacked_bytes for lane in self.outgoing)

    def taken_bytes(self) -> int:
        return sum(lane.taken_bytes for lane in self.outgoing)

    def all_sent(self) -> bool:
        return all(lane.all_sent for lane in self.outgoing)

    # ---- ends ----------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Every connection is gone or going; what is unacknowledged waits for the next."""
        self._marks.clear()
        for index, connection in enumerate(self.connections):
            if connection is not None:
                connection.link = None
                connection.close()
                self.connections[index] = None
        for lane in self.outgoing:
            lane.connection_lost()

    def give_up(self) -> list[Outgoing]:
        """Forget what the neighbor has not acknowledged; it is the caller's to finish."""
        lost = [entry for lane in self.outgoing for entry in lane.take()]
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            for go_on in each:
                go_on()
        return lost


def _renamed(
    crossing: Crossing, topics: Sequence[bytes], frames: Sequence[bytes]
) -> tuple[list[bytes], list[bytes]]:
    """Those that may leave, as they are called there."""
    left: list[bytes] = []
    renamed: list[bytes] = []
    for topic, frame in zip(topics, frames, strict=True):
        name = crossing.leaves(topic)
        if name is not None:
            left.append(topic)
            renamed.append(frame if name == topic else plain_renamed(frame, name))
    return left, renamed


def _write_renamed(crossing: Crossing) -> Writes:
    def write(
        message: Message,
        qos: int,
        packet_id: int,
        now_s: float,
        label: bytes = b"",
        *,
        dup: bool = False,
    ) -> bytes:
        name = crossing.leaves(message.topic)
        assert name is not None  # or it would not be on its way
        return to_link(message, qos, packet_id, now_s, label, dup=dup, topic=name)

    return write


def settled_line(message: Message) -> bytes:
    """By which the neighbor that a message came from is told what has become of it."""
    label = f"~{message.label.hex()}" if message.label else ""
    return _SIGNS[message.fate] + f"{message.origin}{label}#{message.number}".encode()
