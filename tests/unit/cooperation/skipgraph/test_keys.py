"""Keys, their order, and ranges as labels."""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import MAX_LABEL_BYTES as OF_LINKS
from isthmus.cooperation.skipgraph.keys import (
    MAX_LABEL_BYTES,
    Key,
    KeyRange,
    Kind,
    default_key,
    key_from,
    key_of,
    label_of,
    publishers_of,
    range_from,
    subscribers_of,
)
from isthmus.errors import RemoteProtocolError

LONG = "/".join(["x" * 500] * 128)


def test_subscribers_stand_before_publishers_and_topics_apart() -> None:
    keys = [
        key_of(topic, kind, node)
        for topic in ("a", "a/b", "b")
        for kind in (Kind.SUBSCRIBER, Kind.PUBLISHER)
        for node in ("n1", "n2", "n3")
    ]
    ordered = sorted(keys)
    assert [(key.topic, key.kind) for key in ordered] == [(key.topic, key.kind) for key in keys]
    assert {key for key in keys if key in subscribers_of("a")} == set(keys[:3])
    assert {key for key in keys if key in publishers_of("a")} == set(keys[3:6])
    assert default_key("n1") < ordered[0]


def test_labels_fit_whatever_the_topic() -> None:
    assert MAX_LABEL_BYTES <= OF_LINKS
    low, high = sorted([key_of(LONG, Kind.SUBSCRIBER, "a"), key_of(LONG, Kind.SUBSCRIBER, "b")])
    keys = KeyRange(low, high, with_low=False)
    assert len(label_of(keys, LONG)) == 25
    assert range_from(label_of(keys, LONG), LONG) == keys
    name = LONG.replace("x" * 500, "+")
    low, high = sorted([key_of(name, Kind.SUBSCRIBER, "a"), key_of(name, Kind.SUBSCRIBER, "b")])
    label = label_of(KeyRange(low, high), LONG)
    assert len(label) == MAX_LABEL_BYTES
    assert range_from(label, LONG) == KeyRange(low, high)


def test_all_subscribers_are_one_byte() -> None:
    assert label_of(subscribers_of("t"), "t") == b"\0"
    assert range_from(b"\0", "t") == subscribers_of("t")
    assert len(label_of(publishers_of("t"), "t")) == 1


@pytest.mark.parametrize("name", ["#", "a/#", "a/+/c", "+/+/+", "a/b/c/#", "+/b/#"])
def test_filters_of_the_topic(name: str) -> None:
    label = label_of(subscribers_of(name), "a/b/c")
    assert len(label) <= 3
    assert range_from(label, "a/b/c") == subscribers_of(name)


def test_what_no_label_can_say() -> None:
    across = KeyRange(subscribers_of("a").low, subscribers_of("b").high, with_high=False)
    for keys in (
        across,
        subscribers_of("other"),
        KeyRange(default_key("n"), default_key("n")),
        KeyRange(Key("a", Kind.SUBSCRIBER, b"short"), Key("a", Kind.SUBSCRIBER, b"x" * 12)),
    ):
        with pytest.raises(ValueError, match=r"label|bound"):
            label_of(keys, "a")


@pytest.mark.parametrize(
    "label",
    [
        b"",
        b"\x80",
        b"\0x",
        b"\x01",
        b"\x01" + b"x" * 11,
        b"\x04",
        b"\x04" + b"x" * 13,
        b"\x20",
        b"\x20\xff",
        b"\x20\x02\x00",
        b"\x20\x01\x02",
        b"\x60\x00",
        b"\x60\x04\x00",
    ],
)
def test_bad_labels_are_the_neighbors_fault(label: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        range_from(label, "$t")


@pytest.mark.parametrize(
    "data", [b"", b"t", b"t\0", b"t\0\x01short", b"t\0\x03" + b"x" * 12, b"\xff\0\x01" + b"x" * 12]
)
def test_bad_keys_are_the_neighbors_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        key_from(data)
