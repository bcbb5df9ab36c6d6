"""What a link does with messages that the neighbor does not take."""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.life import LinkEvent
from isthmus.exchange.link.link import MAX_CONTROL_BYTES, Link, Room
from isthmus.exchange.traffic.message import (
    Fate,
    Message,
    plain_tail,
    plain_to_link,
    publish_bytes,
)
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.publish_layout import PUBACK
from support.held import Held
from unit.exchange.link.test_connection import A, FakeChannel, connection


class Desk:
    """A link that is up and active, and what is too large for it."""

    def __init__(self, packet_bytes: int) -> None:
        info = SessionInfo(1, SessionKind.NEIGHBOR, "b")
        self.link = Link(info, "s", qos=1, queue_bytes=1 << 20, round_robin=False)
        self.found: list[tuple[bytes, int]] = []
        self.done: list[bytes] = []
        self.link.found_too_large = lambda topic, size: self.found.append((topic, size))
        self.come_up(packet_bytes)

    def come_up(self, packet_bytes: int) -> None:
        self.link.prepare("a", "1", 1, "t")
        self.link.takes(packet_bytes)
        self.link.connections[0] = connection(A, dialed=True)
        self.link.happens(LinkEvent.COMPLETE)
        self.link.happens(LinkEvent.AGREED)

    def send(self, size: int, qos: int) -> None:
        topic = b"%d" % size
        message = Message(topic, b"x" * size, qos=qos)
        held = Held(message, lambda: self.done.append(topic), "this node")
        self.link.send(message, 0.0, held)
        held.acknowledged_by("this node")

    def written(self) -> bytes:
        sent = self.link.connections[0]
        assert sent is not None
        sent.flush()
        assert isinstance(sent.channel, FakeChannel)
        return sent.channel.take()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("properties", [Properties(), Properties(content_type="text")])
@pytest.mark.parametrize("size", [0, 100, 119, 120, 121, 16_380, 16_400, 100_000])
def test_the_size_of_a_message_is_that_of_a_clients_packet(
    size: int, properties: Properties, qos: int
) -> None:
    level = 5 if properties.content_type else 4
    packet = Publish("t/1", b"x" * size, qos, packet_id=7 if qos else 0, properties=properties)
    block = b"\x03\x00\x04text" if properties.content_type else b""
    message = Message(b"t/1", b"x" * size, qos=qos, properties=block)
    assert publish_bytes(message) == len(encode(packet, level))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_too_large_is_told_and_done_with_but_not_sent(qos: int) -> None:
    desk = Desk(publish_bytes(Message(b"1000", b"x" * 1000, qos=qos)))
    desk.send(1000, qos)
    assert b"x" * 1000 in desk.written()
    desk.send(1001, qos)
    assert desk.written() == b""
    assert desk.done[-1] == b"1001"
    assert [topic for topic, _ in desk.found] == [b"1001"]


def test_a_plain_message_too_large_is_not_sent() -> None:
    desk = Desk(1_000)
    for size in (900, 990, 2_000):
        desk.link.send_plain([b"t"], [plain_to_link(b"t", plain_tail("a" * 60), b"x" * size)])
        assert bool(desk.written()) == (size < 2_000)
    assert desk.found == [(b"t", 2_006)]


def test_of_a_run_only_what_is_too_large_is_left_out() -> None:
    desk = Desk(1_000)
    sizes = (10, 2_000, 20, 1_500, 900)
    frames = [plain_to_link(b"t", plain_tail("a"), b"x" * size) for size in sizes]
    desk.link.send_plain([b"t"] * 5, frames)
    assert desk.written() == frames[0] + frames[2] + frames[4]
    assert (desk.link.sent, desk.link.dropped, len(desk.found)) == (3, 0, 2)


@pytest.mark.parametrize("event", [LinkEvent.RING, LinkEvent.LOST])
def test_a_link_that_does_not_carry_messages_drops_a_run_and_counts_it(event: LinkEvent) -> None:
    desk = Desk(10_000)
    desk.link.happens(event)
    desk.link.send_plain([b"t"] * 3, [plain_to_link(b"t", plain_tail("a"), b"x")] * 3)
    assert desk.written() == b""
    assert (desk.link.sent, desk.link.dropped) == (0, 3)


def test_a_neighbor_that_comes_back_taking_less_is_not_sent_what_waited_for_it() -> None:
    desk = Desk(10_000)
    desk.send(5_000, 1)
    desk.send(100, 1)
    assert b"x" * 5_000 in desk.written()
    desk.link.disconnect()
    desk.link.happens(LinkEvent.LOST)
    desk.send(6_000, 1)
    desk.come_up(1_000)
    desk.link.transmit(0, 0.0)
    again = desk.written()
    assert b"x" * 100 in again
    assert b"x" * 101 not in again
    assert desk.done == [b"5000", b"6000"]
    assert desk.link.unacked() == 1


def test_control_packets_are_taken_by_every_neighbor_up_to_a_mebibyte() -> None:
    desk = Desk(1_000)
    assert desk.link.send_control(b"c" * MAX_CONTROL_BYTES)
    assert len(desk.written()) == MAX_CONTROL_BYTES
    assert desk.link.send_control(b"c" * (MAX_CONTROL_BYTES + 1))
    assert desk.written() == b""
    assert desk.found == [(b"$isthmus/retained", MAX_CONTROL_BYTES + 1)]


# ---- room ----------------------------------------------------------------------------------


def test_who_waits_for_acknowledgments_goes_on_when_a_tenth_of_the_queue_is_free() -> None:
    desk = Desk(1 << 28)
    link, gone_on = desk.link, []
    link.queue_bytes = 10_000
    for _ in range(9):
        desk.send(1_000, 1)
    assert not link.has_room(Room.UNACKNOWLEDGED)
    assert link.has_room(Room.UNTAKEN)
    link.when_room(Room.UNACKNOWLEDGED, lambda: gone_on.append("publisher"))
    for packet_id in range(1, 10):
        assert bool(gone_on) == (link.unacked_bytes() <= 9_000)
        link.acknowledged(0, 0x40, packet_id, 0.0)
    assert gone_on == ["publisher"]
    assert not link.waits_for_room(Room.UNACKNOWLEDGED)


def test_who_publishes_retained_messages_at_qos_0_goes_on_when_a_mark_is_answered() -> None:
    desk = Desk(1 << 28)
    link, gone_on = desk.link, []
    while link.has_room(Room.UNTAKEN):
        link.send(Message(b"t", bytes(1_000), retain=True), 0.0, None)
    link.when_room(Room.UNTAKEN, lambda: gone_on.append("publisher"))
    link.look_for_room()
    assert gone_on == []
    connection = link.connections[0]
    assert connection is not None
    connection.pongs += 1
    link.look_for_room()
    assert gone_on == ["publisher"]


def test_who_waits_for_what_is_unwritten_is_not_called_for_other_room() -> None:
    desk = Desk(1 << 28)
    link, gone_on = desk.link, []
    connection = link.connections[0]
    assert connection is not None
    connection.send(bytes(2 << 20))
    assert not link.has_room(Room.UNWRITTEN)
    link.when_room(Room.UNWRITTEN, lambda: gone_on.append("comparison"))
    link.look_for_room()
    assert gone_on == []
    connection.flush()
    link.look_for_room()
    assert gone_on == ["comparison"]


def test_when_a_link_is_given_up_nobody_waits_for_it() -> None:
    desk = Desk(1 << 28)
    gone_on: list[Room] = []
    for room in Room:
        desk.link.when_room(room, lambda room=room: gone_on.append(room))  # type: ignore[misc]
    desk.link.give_up()
    assert gone_on == list(Room)


TAKEN = b"+o#1.1"


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", b"+o", b"+o#1", b"*o#1.1", b"+o#1.1\n", b"+o~zz#1.1", b"\n".join([TAKEN] * 201)],
)
def test_what_names_no_message_ends_the_link(payload: bytes) -> None:
    """More than a packet may name, too: each is looked for on every lane."""
    with pytest.raises(RemoteProtocolError):
        Desk(1_000).link.settled(payload)


def test_what_was_not_taken_is_not_settled_by_a_word() -> None:
    desk = Desk(1_000)
    message = Message(b"t", b"x", qos=1, origin="o", number="1.1", confirm=True)
    held = Held(message, lambda: desk.done.append(b"t"), "this node")
    desk.link.send(message, 0.0, held)
    held.acknowledged_by("this node")
    desk.link.settled(b"\n".join([TAKEN] * 200))
    assert desk.done == []
    desk.link.acknowledged(0, PUBACK, 1, 0.0, Fate.TAKEN)
    assert desk.done == []
    assert desk.link.unacked() == 1
    desk.link.settled(b"-o#1.2\n-p#1.1\n-o~00#1.1")
    assert desk.done == []
    desk.link.settled(TAKEN)
    assert desk.done == [b"t"]
    assert (message.fate, desk.link.unacked_bytes()) == (Fate.SAFE, 0)
