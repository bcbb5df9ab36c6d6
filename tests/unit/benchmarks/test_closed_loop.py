"""The closed loop's own arithmetic: what is in flight, and acknowledgments in any chunking."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest
from benchmarks.bench_closed_loop import IDS, Publisher

from isthmus.errors import LoadError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import scan
from isthmus.mqtt.packets import Publish


def publishes(sock: socket.socket) -> list[Publish]:
    data = sock.recv(1 << 20)
    offsets = scan(data)
    found = []
    for start, stop in pairwise(offsets):
        packet = decode(data[start:stop], 4)
        assert isinstance(packet, Publish)
        found.append(packet)
    return found


def test_as_many_are_sent_as_are_acknowledged() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        publisher = Publisher(ours, 7, 20)
        publisher.begin()
        first = publishes(theirs)
        assert [p.packet_id for p in first] == list(range(1, 21))
        assert {p.qos for p in first} == {1}
        theirs.sendall(b"\x40\x02\x00\x01\x40\x02")
        assert publisher.turn() == 1
        theirs.sendall(b"\x00\x02\x40\x02\x00\x03")
        assert publisher.turn() == 2
        assert [p.packet_id for p in publishes(theirs)] == [21, 22, 23]


def test_identifiers_go_round() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        publisher = Publisher(ours, 0, 10)
        publisher.begin()
        seen = [p.packet_id for p in publishes(theirs)]
        while len(seen) < IDS + 20:
            for _ in range(10):
                theirs.sendall(b"\x40\x02\x00\x01")
            acknowledged = publisher.turn()
            seen += [p.packet_id for p in publishes(theirs)]
            assert acknowledged > 0
        assert seen[: IDS + 5] == [*range(1, IDS + 1), 1, 2, 3, 4, 5]


def test_what_is_no_acknowledgment_fails_the_run() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        publisher = Publisher(ours, 0, 10)
        theirs.sendall(b"\xe0\x00")
        with pytest.raises(LoadError, match="PUBACK expected"):
            publisher.turn()
