"""Range routing in any Skip Graph: any keys, any vectors, any base, any start."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.skipgraph.forwarding import STRATEGIES
from isthmus.cooperation.skipgraph.keys import (
    MAX_LABEL_BYTES,
    PLACE_BYTES,
    Key,
    KeyRange,
    Kind,
    key_from,
    key_of,
    label_of,
    range_from,
)
from isthmus.cooperation.skipgraph.rendezvous import has_subscribers, is_rendezvous_point
from isthmus.cooperation.skipgraph.tables import NodeTable, Side, linked
from support.skip_graphs import broadcast, drawn_vector, numbered, passed

Seeds = st.integers(0, 2**32)


def drawn(rng: random.Random, most_keys: int) -> dict[str, NodeTable]:
    base = rng.choice([2, 2, 2, 3, 4, 10, 256])
    digits = rng.choice([0, 1, 2, 3, 64])
    nodes = rng.randint(1, 25)
    numbers = rng.sample(range(200), k=rng.randint(nodes, nodes * most_keys))
    return linked(
        {
            f"n{node}": (drawn_vector(rng, base, digits), list(map(numbered, numbers[node::nodes])))
            for node in range(nodes)
        }
    )


def drawn_range(rng: random.Random) -> KeyRange:
    low, high = sorted(rng.choices(range(200), k=2))
    return KeyRange(
        numbered(low), numbered(high), rng.random() < 0.5 or low == high, rng.random() < 0.5
    )


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@settings(max_examples=200, deadline=None)
@given(Seeds, st.sampled_from([1, 1, 4]))
def test_each_node_inside_delivers_exactly_once(name: str, seed: int, most_keys: int) -> None:
    rng = random.Random(seed)
    tables = drawn(rng, most_keys)
    target, start = drawn_range(rng), rng.choice(sorted(tables))
    inside = {node for node, table in tables.items() if table.inside(target)}
    found = passed(tables, start, target, STRATEGIES[name])
    assert found.delivered == dict.fromkeys(inside, 1)
    keys = {virtual.key for table in tables.values() for virtual in table.inside(target)}
    assert found.covered == dict.fromkeys(keys, 1)
    if most_keys == 1:
        assert all(found.received.get(node, 0) == (node != start) for node in inside)
        relays = set(found.received) - inside
        assert all(found.received[node] == 1 for node in relays)


@settings(max_examples=100, deadline=None)
@given(Seeds, st.booleans())
def test_broadcasting_reaches_every_node_inside(seed: int, memory: bool) -> None:
    rng = random.Random(seed)
    tables = drawn(rng, 1)
    target = drawn_range(rng)
    inside = {node for node, table in tables.items() if table.inside(target)}
    if inside:
        start = rng.choice(sorted(inside))
        assert set(broadcast(tables, start, target, memory=memory).hops) == inside


@settings(max_examples=100, deadline=None)
@given(Seeds)
def test_tables_are_the_lists(seed: int) -> None:
    """Neighbors of each level are mutual, share the digits, and stand farther away the higher."""
    rng = random.Random(seed)
    tables = drawn(rng, 3)
    for table in tables.values():
        for virtual in table:
            for side, level, entry in virtual.entries():
                other = tables[entry.node]
                back = Side.RIGHT if side is Side.LEFT else Side.LEFT
                mirrored = other[entry.key].neighbors(back)[level]
                assert mirrored is not None
                assert mirrored.key == virtual.key
                assert other.vector.common_digits(table.vector) >= level
            for row, sign in ((virtual.left, -1), (virtual.right, 1)):
                keys = [entry.key for entry in row if entry is not None]
                assert keys == sorted(keys, reverse=sign < 0)
                assert len(keys) == len(row)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5),
                  st.sampled_from([Kind.SUBSCRIBER, Kind.PUBLISHER]),
                  st.text(min_size=1, max_size=3)),
        min_size=2, max_size=20, unique=True,
    )
)  # fmt: skip
def test_encoded_keys_sort_as_keys_do(drawn_keys: list[tuple[str, Kind, str]]) -> None:
    keys = [key_of(*each) for each in drawn_keys]
    assert sorted(keys) == sorted(keys, key=lambda key: key.encoded)
    assert [key_from(key.encoded) for key in keys] == keys


Levels = st.lists(st.text("ab$", max_size=2), min_size=1, max_size=12)
Places = st.binary(min_size=PLACE_BYTES, max_size=PLACE_BYTES)


@settings(max_examples=200, deadline=None)
@given(Levels, st.randoms(use_true_random=False), Places, Places, st.data())
def test_labels_come_back(
    levels: list[str], rng: random.Random, one: bytes, two: bytes, data: st.DataObject
) -> None:
    topic = "/".join(["x", *levels])
    name = "/".join(["x", *(level if rng.random() < 0.5 else "+" for level in levels)])
    if rng.random() < 0.3:
        name = "/".join([*name.split("/")[: rng.randint(1, len(levels) + 1)], "#"])
    kind = data.draw(st.sampled_from([Kind.SUBSCRIBER, Kind.PUBLISHER]))
    low, high = sorted([one, two])
    keys = KeyRange(
        Key(name, kind, low),
        Key(name, kind, high),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    label = label_of(keys, topic)
    assert len(label) <= MAX_LABEL_BYTES
    assert range_from(label, topic) == keys


@settings(max_examples=200, deadline=None)
@given(Seeds)
def test_the_rendezvous_point_knows_whether_anybody_subscribes(seed: int) -> None:
    rng = random.Random(seed)
    wanted = {topic: rng.choice([0, 0, 1, 3]) for topic in "abc"}
    keys: dict[str, list[Key]] = {f"n{number}": [] for number in range(12)}
    for topic, subscribers in wanted.items():
        names = rng.sample(sorted(keys), k=subscribers + rng.randint(1, 4))
        for number, name in enumerate(names):
            kind = Kind.SUBSCRIBER if number < subscribers else Kind.PUBLISHER
            keys[name].append(key_of(topic, kind, name))
    tables = linked({name: (drawn_vector(rng, 2, 64), own) for name, own in keys.items()})
    for topic, subscribers in wanted.items():
        publishers = sorted(
            (virtual for table in tables.values() for virtual in table
             if virtual.key[:2] == (topic, Kind.PUBLISHER)), key=lambda each: each.key
        )  # fmt: skip
        assert [is_rendezvous_point(each) for each in publishers] == [
            each is publishers[0] for each in publishers
        ]
        assert has_subscribers(publishers[0]) == (subscribers > 0)
