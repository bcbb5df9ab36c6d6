"""Streams are taken up where they were left, and what is remembered of them is bounded."""

from __future__ import annotations

from inspect import getclosurevars

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link import streams as module
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.streams import Streams


def link_to(name: str) -> Link:
    info = SessionInfo(1, SessionKind.NEIGHBOR, name)
    return Link(info, "s", qos=1, queue_bytes=1, round_robin=False)


def test_names_are_new_in_every_life() -> None:
    streams = Streams("1f")
    assert [streams.new(), streams.new(), Streams("2f").new()] == ["1f.1", "1f.2", "2f.1"]


def test_a_stream_is_taken_up_by_another_link_to_the_same_neighbor() -> None:
    streams, first, second = Streams("1f"), link_to("b"), link_to("b")
    streams.arrived(first, 0, b"x.1")
    incoming = first.incoming[0]
    assert incoming is not None
    assert incoming.accept(1, 1) == 0
    streams.arrived(second, 0, b"x.1")
    assert second.incoming[0] is incoming
    streams.arrived(second, 0, b"x.2")
    assert second.incoming[0] is not incoming


def test_a_link_that_is_gone_is_not_kept_for_its_streams() -> None:
    streams, first, second = Streams("1f"), link_to("b"), link_to("b")
    for name in (b"x.1", b"x.2"):
        streams.arrived(first, 0, name)
    incoming = first.incoming[0]
    assert incoming is not None
    assert incoming.accept(1, 1) == 0
    assert held_by(streams) == {first}
    streams.left("b")
    assert not held_by(streams)
    streams.arrived(second, 0, b"x.2")
    assert second.incoming[0] is incoming
    assert held_by(streams) == {second}


def held_by(streams: Streams) -> set[Link]:
    """The links to which the streams of neighbor b answer."""
    answers = [incoming.answer for incoming in streams._of["b"].values()]
    return {getclosurevars(each).nonlocals["link"] for each in answers if each is not None}


def test_a_stream_of_another_neighbor_is_another() -> None:
    streams, one, other = Streams("1f"), link_to("b"), link_to("c")
    streams.arrived(one, 0, b"x.1")
    streams.arrived(other, 0, b"x.1")
    assert one.incoming[0] is not other.incoming[0]


def test_a_long_name_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="65 bytes"):
        Streams("1f").arrived(link_to("b"), 0, b"x" * 65)


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 2)
    monkeypatch.setattr(module, "MAX_STREAMS_EACH", 2)
    streams, link = Streams("1f"), link_to("b")
    for name in (b"1", b"2", b"3"):
        streams.arrived(link, 0, name)
    third = link.incoming[0]
    streams.arrived(link, 0, b"3")
    assert link.incoming[0] is third
    for other in ("c", "d"):
        streams.arrived(link_to(other), 0, b"1")
    streams.arrived(link, 0, b"3")
    assert link.incoming[0] is not third
