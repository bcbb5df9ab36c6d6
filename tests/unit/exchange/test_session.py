"""One end of a byte stream: its statuses, when it reads, how it ends."""

from __future__ import annotations

import pytest

from isthmus.exchange.session import Session, SessionStatus, Wire, remote_name
from support.hosts import HandHost, MemoryWire

LINGER_S = 3.0


class Plain(Session):
    """Does nothing of its own."""

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, 1000)

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()


class NotedWire(MemoryWire):
    """Says whether it reads and how it was ended; what is written may stay in its buffer."""

    unwritten = 0
    ended = ""

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    @property
    def reads(self) -> bool:
        return not self._paused

    def close(self) -> None:
        self.closing, self.ended = True, "closed"

    def abort(self) -> None:
        self.closing, self.ended = True, "aborted"


def opened(host: HandHost) -> tuple[Plain, NotedWire]:
    session = Plain(host, LINGER_S)
    assert session.status is SessionStatus.CLOSED
    wire = NotedWire(host, session)
    session.connection_made(wire)
    return session, wire


@pytest.fixture
def host() -> HandHost:
    return HandHost()


def test_the_statuses_of_a_session(host: HandHost) -> None:
    session, wire = opened(host)
    seen = [session.status]
    session.close()
    assert wire.ended == "closed"
    seen.append(session.status)
    session.connection_lost(None)
    seen.append(session.status)
    status = SessionStatus
    assert seen == [status.ESTABLISHED, status.TERMINATING, status.CLOSED]


def test_reading_stops_until_everybody_who_stopped_it_lets_it_go_on(host: HandHost) -> None:
    session, wire = opened(host)
    session.hold_reading()
    session.hold_reading()
    session.release_reading()
    assert not wire.reads
    session.release_reading()
    assert wire.reads


def test_a_wire_that_is_closing_is_left_alone(host: HandHost) -> None:
    """An event loop's transport raises if one wants to read from it then."""
    session, wire = opened(host)
    session.hold_reading()
    wire.closing = True
    session.release_reading()
    assert not wire.reads


def test_who_cannot_write_stops_the_other_from_reading(host: HandHost) -> None:
    one, _ = opened(host)
    other, wire = opened(host)
    one.pair_with(other)
    one.pause_writing()
    assert not wire.reads
    one.resume_writing()
    assert wire.reads
    one.resume_writing()
    assert other.read_holds == 0


def test_who_could_not_write_before_it_was_paired_stops_the_other_too(host: HandHost) -> None:
    one, _ = opened(host)
    other, wire = opened(host)
    one.pause_writing()
    one.pair_with(other)
    assert not wire.reads
    one.resume_writing()
    assert wire.reads


def test_what_is_buffered_is_written_unless_nobody_reads_it(host: HandHost) -> None:
    session, wire = opened(host)
    wire.unwritten = 10
    session.close()
    host.run(LINGER_S - 0.1)
    assert wire.ended == "closed"
    host.run(0.2)
    assert wire.ended == "aborted"


def test_nothing_is_cut_off_after_the_end(host: HandHost) -> None:
    session, wire = opened(host)
    wire.unwritten = 10
    session.close()
    session.connection_lost(None)
    host.run(2 * LINGER_S)
    assert wire.ended == "closed"
    session.close()
    assert session.status is SessionStatus.CLOSED


@pytest.mark.parametrize(
    ("peername", "shown"),
    [
        (("192.0.2.1", 1883), "192.0.2.1:1883"),
        (("2001:db8::1", 1883, 0, 0), "[2001:db8::1]:1883"),
        ("a socket's path", "a socket's path"),
        (None, "None"),
    ],
)
def test_the_other_end_for_people(peername: object, shown: str) -> None:
    assert remote_name(peername) == shown
