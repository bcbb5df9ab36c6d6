"""MQTT over WebSocket, without a network: a client's bytes in, its session's bytes out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from isthmus.exchange.client.entrance import Entrance
from isthmus.exchange.client.input import ClientInput
from isthmus.exchange.client.life import ClientState
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import Relay
from isthmus.exchange.session import SessionStatus, Wire
from isthmus.exchange.turns import Turns
from isthmus.node.websocket import PIECE_BYTES, WebSocketServerSide
from isthmus.sim.engine import Timer
from support.hosts import HandHost
from support.virtual_loop import MemoryTransport, VirtualLoop, run_virtually, turns

LIMITS = ClientLimits(connect_bytes=4_096, packet_bytes=20_000, buffer_bytes=1_024)
MUCH = bytes(range(256)) * (4 * PIECE_BYTES // 256)


class Inner:
    """The client session that a WebSocket carries."""

    def __init__(self) -> None:
        self.status = SessionStatus.ESTABLISHED
        self.state = ClientState.CONNECT
        self.wire: Wire | None = None
        self.reads: list[bytes] = []
        self.carried = 0
        self.calls: list[str] = []

    @property
    def data(self) -> bytes:
        return b"".join(self.reads)

    def connection_made(self, wire: Wire) -> None:
        self.wire = wire

    def data_received(self, data: bytes) -> None:
        assert "connection_lost" not in self.calls
        self.reads.append(data)

    def carrier_holds(self, size: int) -> None:
        self.carried = size

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")


class OneTurnASecond(HandHost):
    """So that the test can look at what is done in each."""

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        return self.call_later(1.0, callback)


class Door:
    """What of the relay a WebSocket sees."""

    def __init__(self) -> None:
        self.limits = LIMITS
        self.host = OneTurnASecond()
        self.turns = Turns(self.host)
        self.entrance = Entrance()
        self.has_room = True

    def knocked(self, guest: WebSocketServerSide) -> bool:
        if self.has_room:
            self.entrance.enter(guest, 0.0, handshake=True)
        return self.has_room


class Desk:
    """A WebSocket at the node, and a client of the `websockets` library that talks to it."""

    def __init__(self, loop: VirtualLoop, subprotocol: str | None = "mqtt") -> None:
        self.loop = loop
        self.door = Door()
        self.long_slices()
        self.inner = Inner()
        self.sessions = 0
        self.side = WebSocketServerSide(cast(Relay, self.door), self._make)
        self.transport = MemoryTransport(loop, self.side)
        wanted = [Subprotocol(subprotocol)] if subprotocol else None
        self.client = ClientProtocol(parse_uri("ws://127.0.0.1/mqtt"), subprotocols=wanted)

    def _make(self) -> ClientInput:
        self.sessions += 1
        return cast(ClientInput, self.inner)

    def long_slices(self) -> None:
        self.door.host.clock = lambda: math.inf

    def short_slices(self) -> None:
        """Each is over after one piece."""
        self.door.host.clock = lambda: -1.0

    def connect(self) -> None:
        self.side.connection_made(self.transport)
        self.client.send_request(self.client.connect())
        self.send()

    def send(self) -> None:
        """What the client has to say comes in one read."""
        self.side.data_received(self.said())
        self.hear()

    def said(self) -> bytes:
        return b"".join(self.client.data_to_send())

    def sends(self, data: bytes) -> None:
        self.client.send_binary(data)
        self.send()

    def much_comes(self) -> None:
        """`MUCH` in one read, in tiny frames."""
        for at in range(0, len(MUCH), 16):
            self.client.send_binary(MUCH[at : at + 16])
        self.side.data_received(self.said())

    def hear(self) -> None:
        if data := self.transport.taken():
            self.client.receive_data(data)

    def heard(self) -> list[bytes]:
        """What came in binary frames."""
        self.hear()
        frames = [event for event in self.client.events_received() if isinstance(event, Frame)]
        return [bytes(frame.data) for frame in frames if frame.opcode is Opcode.BINARY]

    def said_goodbye(self) -> int | None:
        """With which code the node closes the WebSocket."""
        self.hear()
        received = self.client.close_rcvd
        return None if received is None else received.code

    def next_turn(self) -> None:
        self.door.host.run(1.0)


def with_desk(test: Any, *, connect: bool = True) -> None:
    async def main(loop: VirtualLoop) -> None:
        desk = Desk(loop)
        if connect:
            desk.connect()
            assert desk.sessions == 1
            desk.client.events_received()
        found = test(desk)
        if isinstance(found, Coroutine):
            await found
        desk.transport.abort()
        desk.long_slices()
        while len(desk.door.turns):
            desk.next_turn()
        await turns()
        assert loop.timers == 0  # it leaves nothing behind

    run_virtually(main)


# ---- the handshake -----------------------------------------------------------------------


def test_a_client_that_speaks_mqtt_gets_a_session_and_is_no_guest_any_more() -> None:
    def then(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        assert desk.door.entrance.handshakes == 1
        desk.client.send_request(desk.client.connect())
        desk.send()
        (response,) = desk.client.events_received()
        assert isinstance(response, Response)
        assert response.status_code == 101
        assert desk.client.subprotocol == "mqtt"
        assert desk.inner.wire is desk.side
        assert desk.door.entrance.handshakes == 0

    with_desk(then, connect=False)


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("subprotocol", ["chat", None])
def test_who_does_not_speak_mqtt_is_refused_and_gets_no_session(
    subprotocol: str | None, over_tls: bool
) -> None:
    async def main(loop: VirtualLoop) -> None:
        desk = Desk(loop, subprotocol)
        desk.transport.half_closes = not over_tls
        desk.connect()
        assert desk.sessions == 0
        (response,) = desk.client.events_received()
        assert isinstance(response, Response)
        assert response.status_code == 400
        assert desk.transport.eof == (not over_tls)
        assert desk.transport.ended == "close"
        await turns()
        assert desk.door.entrance.handshakes == 0

    run_virtually(main)


@pytest.mark.parametrize(
    "said", [b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_for_a_websocket_ends_the_connection(said: bytes) -> None:
    def then(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        desk.side.data_received(said)
        assert desk.sessions == 0
        assert desk.transport.ended == "close"

    with_desk(then, connect=False)


def test_without_room_the_connection_is_cut_off_at_once() -> None:
    async def then(desk: Desk) -> None:
        desk.door.has_room = False
        desk.side.connection_made(desk.transport)
        assert desk.transport.ended == "abort"
        assert desk.transport.written == b""
        await turns()
        assert desk.door.entrance.handshakes == 0

    with_desk(then, connect=False)


def test_a_handshake_that_takes_too_long_is_cut_off() -> None:
    async def then(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        desk.client.send_request(desk.client.connect())
        desk.side.data_received(desk.said()[:-2])
        await asyncio.sleep(LIMITS.connect_timeout_s - 0.1)
        assert not desk.transport.is_closing()
        await asyncio.sleep(0.2)
        assert desk.transport.ended == "abort"
        assert desk.door.entrance.handshakes == 0

    with_desk(then, connect=False)


def test_a_handshake_can_be_cut_off_for_somebody_else() -> None:
    def then(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        assert desk.door.entrance.make_room(1_000.0)
        assert desk.transport.ended == "abort"

    with_desk(then, connect=False)


def test_once_it_is_over_the_handshake_times_out_no_more() -> None:
    async def then(desk: Desk) -> None:
        assert desk.loop.timers == 0
        await asyncio.sleep(10 * LIMITS.connect_timeout_s)
        assert not desk.transport.is_closing()

    with_desk(then)


def test_the_first_packet_may_come_with_the_handshake() -> None:
    def then(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        desk.client.send_request(desk.client.connect())
        frame = b"\x82\x85\x00\x00\x00\x00first"
        desk.side.data_received(desk.said() + frame)
        assert desk.inner.data == b"first"

    with_desk(then, connect=False)


# ---- frames ------------------------------------------------------------------------------


def test_packets_may_be_spread_over_frames_in_any_way() -> None:
    def then(desk: Desk) -> None:
        desk.client.send_binary(b"one ")
        desk.client.send_binary(b"tw", fin=False)
        desk.client.send_continuation(b"o thr", fin=False)
        desk.client.send_ping(b"between")
        desk.client.send_continuation(b"ee", fin=True)
        desk.client.send_binary(b"")
        desk.send()
        assert desk.inner.data == b"one two three"
        assert b"" not in desk.inner.reads
        (pong,) = (each for each in desk.client.events_received() if isinstance(each, Frame))
        assert (pong.opcode, pong.data) == (Opcode.PONG, b"between")

    with_desk(then)


def test_bytes_may_come_one_by_one_and_those_of_an_incomplete_frame_are_told() -> None:
    def then(desk: Desk) -> None:
        desk.client.send_binary(b"slowly")
        said = desk.said()
        for at in range(len(said)):
            desk.side.data_received(said[at : at + 1])
            assert desk.inner.carried == (0 if at == len(said) - 1 else desk.inner.carried)
            assert desk.inner.carried <= at + 1
        assert desk.inner.reads == [b"slowly"]
        assert desk.inner.carried == 0
        desk.client.send_binary(b"x" * 1_000)
        desk.side.data_received(desk.said()[:600])
        assert 590 <= desk.inner.carried <= 600

    with_desk(then)


@pytest.mark.parametrize("whole", [True, False])
def test_a_text_frame_is_refused_and_nothing_behind_it_is_taken(whole: bool) -> None:
    def then(desk: Desk) -> None:
        desk.client.send_binary(b"good")
        desk.client.send_text(b"not MQTT", fin=whole)
        if not whole:
            desk.client.send_continuation(b"nor this", fin=True)
        desk.client.send_binary(b"too late")
        desk.send()
        assert desk.inner.data == b"good"
        assert desk.said_goodbye() == 1003
        desk.side.data_received(b"\x82\x84\0\0\0\0late")
        assert desk.inner.data == b"good"

    with_desk(then)


def test_the_first_frame_is_not_much_longer_than_a_connect_may_be() -> None:
    longest = LIMITS.connect_bytes + LIMITS.buffer_bytes

    def fits(desk: Desk) -> None:
        desk.sends(b"x" * longest)
        assert len(desk.inner.data) == longest

    def does_not(desk: Desk) -> None:
        desk.sends(b"x" * (longest + 1))
        assert desk.inner.data == b""
        assert desk.said_goodbye() == 1009

    with_desk(fits)
    with_desk(does_not)


def test_a_frame_after_the_connect_may_hold_the_longest_packet() -> None:
    longest = LIMITS.packet_bytes + LIMITS.buffer_bytes

    def then(desk: Desk) -> None:
        desk.inner.state = ClientState.CONNACK
        desk.sends(b"connect")
        desk.sends(b"x" * longest)
        assert len(desk.inner.data) == 7 + longest
        desk.sends(b"x" * (longest + 1))
        assert len(desk.inner.data) == 7 + longest
        assert desk.said_goodbye() == 1009

    with_desk(then)


def test_while_the_connect_is_not_there_frames_stay_short() -> None:
    def then(desk: Desk) -> None:
        desk.sends(b"half a connect")
        desk.sends(b"x" * (LIMITS.connect_bytes + LIMITS.buffer_bytes + 1))
        assert desk.inner.data == b"half a connect"

    with_desk(then)


def test_a_session_that_is_over_is_given_nothing_more() -> None:
    def then(desk: Desk) -> None:
        desk.inner.status = SessionStatus.TERMINATING
        desk.sends(b"too late")
        assert desk.inner.data == b""

    with_desk(then)


@pytest.mark.parametrize(("waiting", "ended"), [(2, ""), (3, "abort")])
def test_who_pings_and_never_reads_is_cut_off(waiting: int, ended: str) -> None:
    def then(desk: Desk) -> None:
        desk.transport.waiting_bytes = waiting * LIMITS.buffer_bytes
        desk.client.send_ping(b"?")
        desk.send()
        assert desk.transport.ended == ended

    with_desk(then)


# ---- slices ------------------------------------------------------------------------------


def test_a_large_read_takes_several_turns_and_reading_stops_meanwhile() -> None:
    def then(desk: Desk) -> None:
        desk.short_slices()
        desk.much_comes()
        so_far = len(desk.inner.data)
        assert 0 < so_far < PIECE_BYTES
        assert not desk.transport.reading
        desk.next_turn()
        assert so_far < len(desk.inner.data) <= 2 * PIECE_BYTES
        while len(desk.door.turns):
            assert not desk.transport.reading
            desk.next_turn()
        assert desk.inner.data == MUCH
        assert desk.transport.reading

    with_desk(then)


def test_what_comes_while_something_waits_keeps_its_place() -> None:
    def then(desk: Desk) -> None:
        desk.short_slices()
        desk.much_comes()
        desk.client.send_binary(b"behind")
        desk.side.data_received(desk.said())
        while len(desk.door.turns):
            desk.next_turn()
        assert desk.inner.data == MUCH + b"behind"

    with_desk(then)


def test_a_large_read_that_fits_a_slice_is_handled_at_once() -> None:
    def then(desk: Desk) -> None:
        desk.much_comes()
        assert desk.inner.data == MUCH
        assert desk.transport.reading

    with_desk(then)


def test_a_session_that_goes_on_reading_waits_until_what_came_before_is_handled() -> None:
    def then(desk: Desk) -> None:
        desk.short_slices()
        desk.much_comes()
        desk.side.pause_reading()
        desk.side.resume_reading()
        assert not desk.transport.reading
        while len(desk.door.turns):
            desk.next_turn()
        assert desk.transport.reading

    with_desk(then)


def test_a_session_that_does_not_want_to_read_is_not_made_to() -> None:
    def then(desk: Desk) -> None:
        desk.side.pause_reading()
        assert not desk.transport.reading
        desk.side.resume_reading()
        assert desk.transport.reading
        desk.short_slices()
        desk.much_comes()
        desk.side.pause_reading()
        while len(desk.door.turns):
            desk.next_turn()
        assert not desk.transport.reading
        desk.side.resume_reading()
        assert desk.transport.reading

    with_desk(then)


def test_the_end_comes_after_everything_that_was_read() -> None:
    async def then(desk: Desk) -> None:
        desk.short_slices()
        desk.much_comes()
        desk.transport.end_of_stream()
        await turns()
        assert desk.inner.calls == []
        while len(desk.door.turns):
            desk.next_turn()
        assert desk.inner.data == MUCH
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


# ---- the wire ----------------------------------------------------------------------------


def test_each_write_of_the_session_is_one_binary_frame() -> None:
    def then(desk: Desk) -> None:
        desk.side.write(b"one")
        desk.side.write(b"two")
        assert desk.heard() == [b"one", b"two"]

    with_desk(then)


def test_the_sessions_close_says_goodbye_and_ends_with_the_clients() -> None:
    async def then(desk: Desk) -> None:
        desk.side.write(b"last")
        desk.side.close()
        desk.side.write(b"too late")
        assert desk.heard() == [b"last"]
        assert desk.said_goodbye() == 1000
        assert not desk.transport.is_closing()
        desk.side.data_received(desk.said())
        assert desk.transport.ended == "close"
        await turns()
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


def test_a_client_that_does_not_answer_the_close_is_cut_off() -> None:
    async def then(desk: Desk) -> None:
        desk.side.close()
        await asyncio.sleep(LIMITS.drain_s - 0.1)
        assert not desk.transport.is_closing()
        await asyncio.sleep(0.2)
        assert desk.transport.ended == "abort"
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


def test_a_session_may_close_what_its_client_has_closed() -> None:
    async def then(desk: Desk) -> None:
        desk.client.send_close(1000)
        desk.send()
        desk.side.close()
        await turns()
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


def test_the_clients_goodbye_is_answered_and_ends_the_session_once() -> None:
    async def then(desk: Desk) -> None:
        desk.client.send_close(1000)
        desk.send()
        assert desk.said_goodbye() == 1000
        assert desk.transport.ended == "close"
        await turns()
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


def test_the_end_of_the_stream_ends_the_session() -> None:
    async def then(desk: Desk) -> None:
        desk.transport.end_of_stream()
        assert desk.transport.ended == "close"
        await turns()
        assert desk.inner.calls == ["connection_lost"]

    with_desk(then)


def test_the_session_is_told_when_writing_has_to_pause() -> None:
    def then(desk: Desk) -> None:
        desk.side.pause_writing()
        desk.side.resume_writing()
        assert desk.inner.calls == ["pause_writing", "resume_writing"]

    def before(desk: Desk) -> None:
        desk.side.connection_made(desk.transport)
        desk.side.pause_writing()
        desk.side.resume_writing()
        assert desk.inner.calls == []

    with_desk(then)
    with_desk(before, connect=False)


def test_the_rest_of_the_wire_is_the_transports() -> None:
    def then(desk: Desk) -> None:
        desk.side.set_write_buffer_limits(4_321)
        assert desk.transport.high == 4_321
        desk.transport.waiting_bytes = 17
        assert desk.side.get_write_buffer_size() == 17
        assert desk.side.get_extra_info("peername") == ("127.0.0.1", 4711)
        assert not desk.side.is_closing()
        desk.side.abort()
        assert desk.transport.ended == "abort"
        assert desk.side.is_closing()

    with_desk(then)
