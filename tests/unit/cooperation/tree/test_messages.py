from __future__ import annotations

import json

import pytest

from isthmus.cooperation.tree.messages import (
    MAX_NODES,
    MAX_NUMBER,
    MAX_TOPICS,
    Adopt,
    Advertise,
    Answer,
    Echo,
    Explore,
    Hello,
    TreeMessage,
    Waiting,
    Want,
    Wave,
    encode,
    is_later,
    next_number,
    parse,
)
from isthmus.errors import RemoteProtocolError

WAVE = Wave(7, 110, "192.0.2.9:1890", "a", 3)


@pytest.mark.parametrize(
    "message",
    [
        Hello(0, b"", 1),
        Hello(7, WAVE.label, 2**40),
        Answer(9),
        Explore(WAVE, 12_000),
        Echo(WAVE, ("b", "c")),
        Waiting(WAVE),
        Adopt(WAVE, ("a", "b", "c")),
        Advertise(WAVE.label, ("t/a", "\u00fc"), ()),
        Want(b"", (), ("t/a",)),
    ],
)
def test_what_is_encoded_is_parsed(message: TreeMessage) -> None:
    assert parse(encode(message)) == message


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        "hello",
        ["hello", 1, "00", 1, ""],
        ["hello", -1, "", 1, ""],
        ["hello", True, "", 1, ""],
        ["hello", 2**32, "", 1, ""],
        ["hello", 1, "x", 1, ""],
        ["answer"],
        ["answer", "1"],
        ["explore", [1, 2, "a:1", "a"], 1],
        ["explore", [0, 2, "a:1", "a", 1], 1],
        ["explore", [1, 2, "a:1", "", 1], 1],
        ["explore", [1, 2, "a:1", "a" * 300, 1], 1],
        ["explore", [1, 2, "a:1", "a", 1], 1.5],
        ["explore", [1, 2, "a:1", "a", 1], 2**60],
        ["echo", [1, 2, "a:1", "a", 1], "abc"],
        ["echo", [1, 2, "a:1", "a", 1], []],
        ["adopt", [1, 2, "a:1", "a", 1], ["a", 3]],
        ["advertise", "", ["a/+"], []],
        ["advertise", "", [""], []],
        ["advertise", "", [3], []],
        ["advertise", "", "abc", []],
        ["want", "00", [], []],
        ["want", "", []],
        ["waiting", 3],
        ["explore", [1, 2, "a b", "a", 1], 0],
        ["explore", [1, 2, "a:1", "a\n", 1], 0],
        ["echo", [1, 2, "a:1", "a", 1], ["\ud800"]],
        ["hello", 1, "", 1, "a/b"],
    ],
)
def test_what_nobody_says_is_refused(said: object) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(json.dumps(said).encode())


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[" * 100_000, b"nul", b'["answer", 1'])
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(payload)


@pytest.mark.parametrize(
    "said",
    [
        ["adopt", [1, 2, "a:1", "a", 1], ["a"] * (MAX_NODES + 1)],
        ["advertise", "", ["t"] * (MAX_TOPICS + 1), []],
        ["want", "", [], ["t"] * (MAX_TOPICS + 1)],
        [0] * 300_000,
    ],
)
def test_what_is_too_much_is_refused(said: object) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(json.dumps(said).encode())


def test_the_longest_list_of_nodes_can_be_told() -> None:
    nodes = tuple(f"{number:064}" for number in range(MAX_NODES))
    message = Echo(wave(), nodes)
    assert parse(encode(message)) == message


@pytest.mark.parametrize(
    ("later", "earlier"),
    [(2, 1), (1, MAX_NUMBER), (5, MAX_NUMBER - 5), (1, 0), (MAX_NUMBER, 0), (2**31, 1)],
)
def test_numbers_go_round(later: int, earlier: int) -> None:
    assert is_later(later, earlier)
    assert not is_later(earlier, later)


def test_there_is_always_a_next_number() -> None:
    for number in (0, 1, 7, MAX_NUMBER - 1, MAX_NUMBER):
        assert is_later(next_number(number), number)
        assert 1 <= next_number(number) <= MAX_NUMBER


def wave(**changes: object) -> Wave:
    said = {"number": 7, "capability": 110, "address": "192.0.2.9:1890", "root": "m", "nonce": 3}
    return Wave(**(said | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"number": 8}, {"capability": 500}),
        ({"capability": 111}, {"address": "192.0.2.1:1", "root": "a"}),
        # Of the lowest address, as a number; then of the lowest port, then of the lowest id.
        ({"address": "192.0.2.9:1890", "root": "z"}, {"address": "192.0.2.10:1", "root": "a"}),
        ({"address": "192.0.2.9:2", "root": "z"}, {"address": "192.0.2.9:10", "root": "a"}),
        ({"root": "a"}, {"root": "b"}),
        ({"address": "[::1]:1", "root": "z"}, {"address": "host:1", "root": "a"}),
        ({"address": "a.example:9", "root": "z"}, {"address": "b.example:1", "root": "a"}),
        # A root that was restarted.
        ({"nonce": 4}, {"nonce": 3}),
    ],
)
def test_later_waves_and_better_roots_win(
    better: dict[str, object], worse: dict[str, object]
) -> None:
    assert wave(**better).beats(wave(**worse))
    assert not wave(**worse).beats(wave(**better))


def test_a_wave_does_not_beat_itself() -> None:
    assert not wave().beats(wave())


def test_labels_tell_waves_apart() -> None:
    labels = {wave().label, wave(number=8).label, wave(nonce=4).label}
    assert len(labels) == 3
    assert {len(label) for label in labels} == {8}
