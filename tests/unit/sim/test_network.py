"""Virtual connections: order, breaking, partitions, and the contract of `Channel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from isthmus.exchange.host import Channel
from isthmus.exchange.link.connection import Connection
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.sim.engine import Engine
from isthmus.sim.network import (
    CONNECT_TIMEOUT_S,
    PIECE_S,
    DatagramSettings,
    Network,
    SimChannel,
    WireSettings,
)
from isthmus.sim.trace import Trace

BOTH_WAYS = [("a", "b"), ("b", "a")]
PACKET = encode(Publish("a", b"payload"), 5)


class End:
    """An endpoint that records what it is told; the connection is only a token."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.lane = 0
        self.channel: SimChannel | None = None
        self.data = b""
        self.chunks = 0
        self.lost_for: list[str] = []
        self.heard: list[tuple[bytes, str]] = []
        self.in_call = False

    def accepted(self, channel: Channel) -> Connection:
        assert isinstance(channel, SimChannel)
        self.channel = channel
        return cast(Connection, self)

    def received(self, connection: Connection, data: bytes) -> None:
        assert not self.in_call
        self.data += data
        self.chunks += 1

    def announced(self, datagram: bytes, remote: str) -> None:
        self.heard.append((datagram, remote))

    def lost(self, connection: Connection, cause: str) -> None:
        assert not self.in_call
        self.lost_for.append(cause)

    def do(self, call: Callable[[], None]) -> None:
        """A call of the exchange's, from within which nothing may be called back."""
        self.in_call = True
        call()
        self.in_call = False


class Pair:
    def __init__(self, seed: int = 1, wire: WireSettings | None = None) -> None:
        self.engine = Engine(seed)
        trace = Trace(self.engine, on=False)
        self.network = Network(self.engine, trace, wire or WireSettings(delay_s=0.1))
        self.a, self.b = End("a"), End("b")
        self.failed: list[str] = []
        self.network.listen(self.b)

    def dial(self) -> None:
        self.network.dial(self.a, "b:1", self.a.accepted, self.failed.append)

    def open(self) -> tuple[SimChannel, SimChannel]:
        self.dial()
        self.engine.run_until(self.engine.now_s + 1.0)
        assert self.a.channel is not None
        assert self.b.channel is not None
        return self.a.channel, self.b.channel

    def run(self, seconds: float) -> None:
        self.engine.run_until(self.engine.now_s + seconds)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_however_they_are_cut(seed: int) -> None:
    pair = Pair(seed)
    here, _ = pair.open()
    for number in range(50):
        here.write(encode(Publish("a", b"%d" % number), 5))
        pair.run(0.01)
    pair.run(1.0)
    assert pair.b.data == b"".join(encode(Publish("a", b"%d" % n), 5) for n in range(50))


def test_some_chunks_are_cut() -> None:
    pair = Pair()
    here, _ = pair.open()
    for _ in range(100):
        here.write(PACKET)
    pair.run(1.0)
    assert pair.b.chunks > 100


def test_bandwidth_delays() -> None:
    pair = Pair(wire=WireSettings(delay_s=0.1, bytes_per_s=len(PACKET)))
    here, _ = pair.open()
    here.write(PACKET)
    here.write(PACKET)
    pair.run(1.5)
    assert pair.b.data == PACKET
    pair.run(1.0)
    assert pair.b.data == PACKET * 2


def test_a_wire_that_changes_changes_connections_that_stand() -> None:
    pair = Pair(wire=WireSettings(delay_s=0.1))
    here, _ = pair.open()
    pair.network.set_wire("a", "b", WireSettings(delay_s=0.5))
    here.write(b"slow")
    pair.run(0.4)
    assert pair.b.data == b""
    pair.network.set_wire("a", "b", WireSettings(delay_s=0.001))
    here.write(b", then fast")
    pair.run(0.05)
    assert pair.b.data == b""  # nothing overtakes what was written before
    pair.run(0.1)
    assert pair.b.data == b"slow, then fast"
    here.write(b"!")
    pair.run(0.002)
    assert pair.b.data == b"slow, then fast!"


def test_what_takes_long_arrives_bit_by_bit() -> None:
    """Else a neighbor that writes all the time would be taken for silent."""
    pair = Pair(wire=WireSettings(delay_s=0.1, bytes_per_s=2_000.0))
    here, _ = pair.open()
    data = PACKET * (20_000 // len(PACKET))
    here.write(data)
    pair.run(0.1)
    for number in range(1, 10):
        pair.run(1.0)
        assert 0 <= 2_000 * number - len(pair.b.data) <= 2_000 * PIECE_S
    pair.run(1.0)
    assert pair.b.data == data


def test_close_delivers_what_was_written_and_tells_both_ends_once() -> None:
    pair = Pair()
    here, there = pair.open()
    here.write(PACKET)
    pair.a.do(here.close)
    there.close()
    pair.run(5.0)
    assert len(pair.a.lost_for) == len(pair.b.lost_for) == 1


def test_close_is_heard_after_the_data() -> None:
    pair = Pair()
    here, _ = pair.open()
    here.write(PACKET)
    pair.a.do(here.close)
    pair.run(1.0)
    assert pair.b.data == PACKET
    assert (pair.a.lost_for, pair.b.lost_for) == (["closed here"], ["closed by the other end"])


def test_abort_drops_what_is_on_its_way() -> None:
    pair = Pair()
    here, _ = pair.open()
    here.write(PACKET)
    pair.a.do(here.abort)
    pair.run(1.0)
    assert pair.b.data == b""
    assert len(pair.b.lost_for) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_break_delivers_a_prefix_at_most(seed: int) -> None:
    pair = Pair(seed)
    here, _ = pair.open()
    here.write(PACKET)
    assert pair.network.break_connections("a", "b") == 1
    here.write(PACKET)
    pair.run(1.0)
    assert PACKET.startswith(pair.b.data)
    assert pair.b.data != PACKET
    assert pair.a.lost_for == pair.b.lost_for == ["connection broken"]


def test_a_partition_stalls_and_nobody_is_told() -> None:
    pair = Pair()
    here, there = pair.open()
    here.write(PACKET)
    pair.network.cut(BOTH_WAYS)
    there.write(PACKET)
    here.write(PACKET)
    pair.run(100.0)
    assert (pair.a.data, pair.b.data, pair.a.lost_for) == (b"", b"", [])
    pair.network.heal()
    pair.run(2.0)
    assert (pair.a.data, pair.b.data) == (PACKET, PACKET * 2)


def test_who_gave_up_during_a_partition_answers_with_a_reset() -> None:
    pair = Pair()
    here, there = pair.open()
    pair.network.cut(BOTH_WAYS)
    there.write(PACKET)
    here.abort()
    pair.run(1.0)
    assert pair.b.lost_for == []
    pair.network.heal()
    pair.run(2.0)
    assert len(pair.b.lost_for) == 1
    assert pair.a.data == b""


def test_dialing_over_a_partition_times_out() -> None:
    pair = Pair()
    pair.network.cut(BOTH_WAYS)
    pair.dial()
    pair.run(CONNECT_TIMEOUT_S + 0.05)
    assert pair.failed == []
    pair.run(0.1)
    assert pair.failed == ["timed out"]


def test_of_two_only_one_hears_the_other() -> None:
    pair = Pair()
    here, there = pair.open()
    pair.network.cut([("a", "b")])
    here.write(PACKET)
    there.write(PACKET)
    pair.run(10.0)
    assert (pair.a.data, pair.b.data) == (PACKET, b"")
    there.close()
    pair.run(1.0)
    assert pair.a.lost_for == ["closed by the other end"]
    pair.network.heal()
    pair.run(2.0)
    assert pair.b.data == b""


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_dialing_takes_both_ways(cut: tuple[str, str]) -> None:
    pair = Pair()
    pair.network.cut([cut])
    pair.dial()
    pair.run(CONNECT_TIMEOUT_S + 0.2)
    assert pair.failed == ["timed out"]
    assert pair.a.data == b""


def test_dialing_where_nobody_listens_is_refused() -> None:
    pair = Pair()
    pair.network.stop_listening("b")
    pair.dial()
    pair.run(1.0)
    assert pair.failed == ["connection refused"]


def test_a_killed_process_is_noticed_and_hears_nothing() -> None:
    pair = Pair()
    _, there = pair.open()
    pair.b.alive = False
    pair.network.endpoint_gone(pair.b, silent=False)
    there.write(PACKET)
    pair.run(1.0)
    assert pair.a.lost_for == ["closed by the other end"]
    assert pair.b.lost_for == []


def test_a_vanished_machine_is_silent_until_it_is_back() -> None:
    pair = Pair()
    here, _ = pair.open()
    pair.b.alive = False
    pair.network.endpoint_gone(pair.b, silent=True)
    here.write(PACKET)
    pair.run(100.0)
    assert pair.a.lost_for == []
    pair.network.off.clear()
    here.write(PACKET)
    pair.run(1.0)
    assert pair.a.lost_for == ["reset by the other end"]


def test_packets_are_counted_by_type() -> None:
    pair = Pair()
    here, _ = pair.open()
    here.write(PACKET + encode(Publish("$isthmus/x", b""), 5) + b"\xc0\x00")
    assert pair.network.counts["a", "b"] == {"PUBLISH": 1, "CONTROL": 1, "PINGREQ": 1}


# ---- datagrams ---------------------------------------------------------------------------


def test_datagrams_reach_everybody_who_listens_and_can_be_reached() -> None:
    pair = Pair()
    pair.network.listen(pair.a)
    pair.network.announce(pair.a, b"x")
    pair.run(1.0)
    assert (pair.a.heard, pair.b.heard) == ([(b"x", "a")], [(b"x", "a")])
    pair.network.cut([("a", "b")])
    pair.network.announce(pair.a, b"y")
    pair.network.announce(pair.b, b"z")
    pair.run(1.0)
    assert pair.a.heard[1:] == [(b"y", "a"), (b"z", "b")]
    assert pair.b.heard[1:] == [(b"z", "b")]


def test_datagrams_are_lost_doubled_and_late() -> None:
    pair = Pair()
    pair.network.datagrams = DatagramSettings(loss=0.3, duplication=0.2, late=0.2)
    sent = [b"%d" % number for number in range(1_000)]
    for each in sent:
        pair.network.announce(pair.a, each)
        pair.run(0.1)
    pair.run(10.0)
    came = [datagram for datagram, _ in pair.b.heard]
    assert 700 < len(came) < 980
    assert 0.2 < 1 - len(set(came)) / 1_000 < 0.35
    assert came != sorted(came, key=sent.index)
