from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.skipgraph.keys import Kind, default_key, key_of
from isthmus.cooperation.skipgraph.messages import (
    MAX_NEIGHBORS,
    Acquaintances,
    AllResumed,
    AreResumed,
    Confirm,
    Fit,
    Go,
    GraphMessage,
    InEpoch,
    Insert,
    Inserted,
    Left,
    LeftOk,
    Linked,
    Ready,
    Remove,
    Removed,
    Report,
    Signal,
    Status,
    encode,
    parse,
)
from isthmus.cooperation.skipgraph.tables import Neighbor
from isthmus.errors import RemoteProtocolError

EPOCH = b"an epoch"
OF = key_of("a/#", Kind.SUBSCRIBER, "x")
OF_PUBLISHER = key_of("a", Kind.PUBLISHER, "x")
TO = key_of("a", Kind.PUBLISHER, "y")
OTHER = Neighbor(key_of("ä/b", Kind.PUBLISHER, "z"), "z")
STATUS = Status(7, True)

IN_EPOCH = (
    Ready(),
    Insert(3, OF),
    Remove(0, OF, OTHER, STATUS),
    Remove(0, OF, None, None),
    Go(2, TO, OTHER),
    Inserted(0, default_key("x"), TO, OTHER, None),
    Inserted(0, OF_PUBLISHER, TO, None, STATUS),
    Linked(1, OF, TO),
    Left(1, OF, TO, STATUS),
    LeftOk(1, OF, TO, None),
    Removed(4, TO),
    Signal(TO, STATUS, "z"),
    Signal(TO, Status(0, False), ""),
    Confirm(OF_PUBLISHER, TO, STATUS),
    Report(OF_PUBLISHER, TO, STATUS),
    AreResumed(TO, STATUS, "z", 3),
    AreResumed(key_of("a/#", Kind.SUBSCRIBER, "y"), None, "z", 0),
    AllResumed(key_of("a/#", Kind.SUBSCRIBER, "y"), 3),
)
MESSAGES: list[GraphMessage] = [
    Fit(b"a label.", 12),
    Acquaintances((("z", "127.0.0.1:1883"),)),
    *(InEpoch(EPOCH, each) for each in IN_EPOCH),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_what_is_written_is_read(message: GraphMessage) -> None:
    assert parse(encode(message), "x", "y") == message


def test_nobody_can_speak_of_the_key_of_another() -> None:
    """The same bytes from another node name that node's key."""
    said = encode(InEpoch(EPOCH, Insert(0, OF)))
    assert parse(said, "liar", "y") == InEpoch(
        EPOCH, Insert(0, key_of("a/#", Kind.SUBSCRIBER, "liar"))
    )


E = EPOCH.hex()
WRONG: list[object] = [
    [],
    {},
    ["fit", "zz", 1],
    ["fit", "00", -1],
    ["fit", "00", True],
    ["neighbors", [["z", ""]]],
    ["neighbors", [["../z", "a:1"]]],
    ["neighbors", [["z", "a:1"]] * (MAX_NEIGHBORS + 1)],
    ["ready", "00"],
    ["insert", E, 65, ["a", 1]],
    ["insert", E, 0, ["a", 3]],
    ["insert", E, 0, ["", 1]],
    ["insert", E, 0, ["a", 0]],
    ["insert", E, 0, ["a/#/b", 1]],
    ["go", E, 0, ["a", 1], None],
    ["go", E, 0, ["a", 1], ["z\n", "a", 1]],
    ["left", E, 0, ["a", 1], ["a", 1], [1, 1]],
    ["signal", E, ["a", 1], [1, True], ""],
    ["signal", E, ["a", 2], [-1, True], ""],
    ["signal", E, ["a", 2], [1, True], "z z"],
    ["are-resumed", E, ["", 0], None, "z", 1],
    ["are-resumed", E, ["a", 2], [1, True], "z z", 1],
    ["are-resumed", E, ["a", 2], [1, True], "z", -1],
    ["all-resumed", E, ["\ud800", 1], 1],
    ["all-resumed", E, ["", 0], 1],
    ["surprise", E],
]


@pytest.mark.parametrize("said", WRONG, ids=str)
def test_what_cannot_be_is_refused(said: object) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(json.dumps(said).encode(), "x", "y")


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_any_bytes(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(payload, "x", "y")


@settings(max_examples=500)
@given(st.sampled_from(MESSAGES), st.data())
def test_messages_with_something_else_in_them(message: GraphMessage, data: st.DataObject) -> None:
    """They are read, or refused: nothing else is raised."""
    said = json.loads(encode(message))
    place = data.draw(st.integers(0, len(said) - 1))
    anything: st.SearchStrategy[object] = st.one_of(
        st.none(), st.integers(), st.text(max_size=5), st.just([]), st.just([1, 2])
    )
    said[place] = data.draw(anything)
    try:
        parse(json.dumps(said).encode(), "x", "y")
    except RemoteProtocolError:
        pass
