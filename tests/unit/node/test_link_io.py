"""What comes on a link is dealt with in slices, in order, and before the end of the connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.links import Links
from isthmus.exchange.turns import Turns
from isthmus.node.link_io import LEAST_PIECE_BYTES, PIECE_BYTES, LinkChannel, dial
from support.hosts import HandHost
from support.virtual_loop import Protocols, VirtualLoop, run_virtually


class Wire:
    """A transport that only remembers whether it reads."""

    def __init__(self) -> None:
        self.reading = True
        self.closed = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None


class Listener:
    """Stands for `Links`: what came, and how it ended."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.ends: list[str] = []

    def received(self, _: Connection, data: bytes) -> None:
        assert not self.ends
        self.pieces += 1
        self.data += data

    def lost(self, _: Connection, cause: str) -> None:
        self.ends.append(cause)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def channel(listener: Listener) -> LinkChannel:
    """A channel whose slices are over after one piece."""
    clock_s = iter(range(1_000_000))
    host = HandHost()
    host.clock = lambda: next(clock_s)
    made = LinkChannel(cast(Links, listener), Turns(host), lambda _: cast(Connection, object()))
    made.connection_made(cast(Any, Wire()))
    return made


def run_turns(channel: LinkChannel, count: int = 1) -> None:
    for _ in range(count):
        channel._turns._serve()


def run_all_turns(channel: LinkChannel) -> None:
    while len(channel._turns):
        channel._turns._serve()


MUCH = bytes(range(256)) * (4 * PIECE_BYTES // 256)


def test_a_large_read_takes_several_turns(channel: LinkChannel, listener: Listener) -> None:
    channel.data_received(MUCH)
    assert listener.pieces == 1
    assert not cast(Wire, channel.wire).reading
    run_turns(channel)
    assert listener.pieces == 2
    run_all_turns(channel)
    assert listener.data == MUCH
    assert cast(Wire, channel.wire).reading
    channel.data_received(b"more")
    assert listener.data == MUCH + b"more"


def test_pieces_that_take_long_are_followed_by_smaller_ones(
    channel: LinkChannel, listener: Listener
) -> None:
    channel.data_received(MUCH)
    run_all_turns(channel)
    assert listener.data == MUCH
    slow = listener.pieces
    assert slow > 4 * PIECE_BYTES // LEAST_PIECE_BYTES // 2
    cast(HandHost, channel.host).clock = lambda: 0.0
    channel.data_received(4 * MUCH)
    assert listener.data == 5 * MUCH
    assert listener.pieces - slow < 20  # as large as at first, after a few


def test_the_end_comes_last(channel: LinkChannel, listener: Listener) -> None:
    channel.data_received(MUCH)
    channel.connection_lost(None)
    assert listener.ends == []
    run_all_turns(channel)
    assert listener.data == MUCH
    assert listener.ends == ["end of stream"]


def test_what_was_closed_here_is_not_read_on(channel: LinkChannel, listener: Listener) -> None:
    channel.data_received(MUCH)
    channel.close()
    channel.connection_lost(None)
    assert listener.ends == ["end of stream"]
    run_turns(channel, 5)
    assert listener.pieces == 1
    assert listener.ends == ["end of stream"]


def test_the_exchange_may_hold_reading_for_longer(
    channel: LinkChannel, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so while it is given a piece, before the slice is over."""
    received = listener.received

    def rests(connection: Connection, data: bytes) -> None:
        if not listener.pieces:
            channel.hold_reading()
        received(connection, data)

    monkeypatch.setattr(listener, "received", rests)
    channel.data_received(MUCH)
    run_all_turns(channel)
    assert listener.data == MUCH
    assert not cast(Wire, channel.wire).reading
    channel.release_reading()
    assert cast(Wire, channel.wire).reading


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ConnectionRefusedError("refused"), "refused"),
        (OSError(), "OSError"),
        (UnicodeError("label empty or too long"), "label empty or too long"),
        (None, "no answer within 5 s"),
    ],
)
def test_whoever_cannot_be_dialed_is_told_of_once(
    listener: Listener, fault: Exception | None, told: str
) -> None:
    failures: list[str] = []

    async def refuse(_make: Protocols, _wanted: dict[str, Any]) -> None:
        if fault is not None:
            raise fault
        await asyncio.Event().wait()

    async def main(loop: VirtualLoop) -> None:
        loop.dial = refuse
        await dial(
            cast(Links, listener),
            Turns(HandHost()),
            "a..b:7",
            None,
            opened=lambda _: pytest.fail("it was not opened"),
            failed=failures.append,
        )

    run_virtually(main)
    assert failures == [told]
