"""Announcements are read once, however often they come, and not kept for ever."""

from __future__ import annotations

import pytest

from isthmus.exchange.topology import messages
from isthmus.exchange.topology.messages import (
    Announcement,
    LinkEntry,
    NodeKey,
    Update,
    encode_updates,
    keep_for,
    parse,
)

SIZE = 140
"""Of an announcement below, at least."""


def announcement(number: int) -> Announcement:
    ends = [NodeKey(f"neighbor-{number}-{each}", "incarnation") for each in range(4)]
    links = tuple(LinkEntry(end, number + 1, 0) for end in ends)
    return Announcement(NodeKey(f"node-{number}", "incarnation"), 1, links)


def read(number: int) -> Announcement:
    """As it comes out of an update."""
    (payload,) = encode_updates([announcement(number)], [])
    update = parse(payload)
    assert isinstance(update, Update)
    assert update.nodes == (announcement(number),)
    return update.nodes[0]


def test_what_is_used_is_read_once_and_what_is_not_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_known", messages._Known())
    messages._known.max_bytes = 100 * SIZE
    used, left = read(0), read(1)
    entry = used.links[0]
    for number in range(2, 200):
        read(number)
        if number % 20 == 0:
            assert read(0) is used
    assert read(1) is not left
    again = Announcement(used.node, 2, used.links)
    (payload,) = encode_updates([again], [])
    update = parse(payload)
    assert isinstance(update, Update)
    assert update.nodes[0].node is used.node
    assert update.nodes[0].links[0] is entry


def test_a_process_of_many_nodes_keeps_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_known", messages._Known())
    kept_for_one = messages._known.max_bytes
    keep_for(10_000)
    assert messages._known.max_bytes > 10 * kept_for_one
    keep_for(1)
    assert messages._known.max_bytes == kept_for_one
