from __future__ import annotations

import json

import pytest

from isthmus.cooperation.topic_tree import messages
from isthmus.cooperation.topic_tree.messages import (
    MAX_MEMBERS,
    Begin,
    End,
    Keeps,
    News,
    OfOverlay,
    TopicMessage,
    encode,
    in_chunks,
    parse,
)
from isthmus.cooperation.tree.messages import Adopt, Echo, Explore, Wave
from isthmus.errors import RemoteProtocolError

WAVE = Wave(7, 110, "192.0.2.9:1890", "a", 3)
WAVED = [7, 110, "192.0.2.9:1890", "a", 3]


@pytest.mark.parametrize(
    "message",
    [
        Begin(),
        End(),
        News(("a/#", "+/ü"), publish=False, begins=True),
        News(("a",), publish=False, begins=False),
        News(("a/b",), publish=True, begins=True),
        News(("a/b",), publish=True, begins=False),
        Keeps(WAVE.label, (), awaits=True, linked=False),
        Keeps(b"", ("a", "b"), awaits=False, linked=True),
        OfOverlay(("a", "b", "c"), Explore(WAVE, 12)),
        OfOverlay(("a", "b", "c"), Echo(WAVE, ("b",))),
        OfOverlay(("a", "b", "c"), Adopt(WAVE, ("a", "b", "c"))),
    ],
)
def test_what_is_encoded_is_parsed(message: TopicMessage) -> None:
    assert parse(encode(message)) == message


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        ["begin", 1],
        ["want"],
        ["want", "a"],
        ["want", [1]],
        ["want", ["a#"]],
        ["want", [""]],
        ["want", ["$SYS/#"]],
        ["want", ["$share/g/a"]],
        ["want", ["/" * 200]],
        ["want", ["\ud800"]],
        ["publish", ["a/+"]],
        ["publish", ["$x"]],
        ["keeps", "0", [], False, False],
        ["keeps", "00", [1], False, False],
        ["keeps", "00", [], 1, False],
        ["overlay", [], ["explore", WAVED, 1]],
        ["overlay", ["b", "a"], ["explore", WAVED, 1]],
        ["overlay", ["a", "a"], ["explore", WAVED, 1]],
        ["overlay", ["\ud800"], ["explore", WAVED, 1]],
        ["overlay", ["a", "b"], ["hello", 1, "", 1]],
        ["overlay", ["a", "b"], ["explore"]],
        ["overlay", [f"n{each:04}" for each in range(MAX_MEMBERS + 1)], ["explore", WAVED, 1]],
    ],
)
def test_anything_else_is_an_error_of_the_neighbor(said: object) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(json.dumps(said).encode())


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[" * 100_000, b"nonsense"])
def test_so_is_what_is_no_json(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(payload)


def test_filters_come_in_their_normal_form() -> None:
    assert parse(b'["want",["+/#"]]') == News(("#",), publish=False, begins=True)


def test_news_are_cut_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CHUNK_NAMES", 3)
    monkeypatch.setattr(messages, "CHUNK_BYTES", 10)
    chunks = list(in_chunks(["a", "b", "c", "d", "x" * 8, "y" * 30], publish=True, begins=True))
    assert [chunk.names for chunk in chunks] == [
        ("a", "b", "c"),
        ("d", "x" * 8),
        ("y" * 30,),
    ]
    assert not list(in_chunks([], publish=True, begins=True))
