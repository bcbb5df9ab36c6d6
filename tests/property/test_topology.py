"""Whatever links do, at rest the active ones are a spanning forest and everybody knows it.

The fabric, and what is checked at rest, are in `topology_fabric`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.topology import guard as topology
from isthmus.exchange.topology.messages import (
    CHUNK_BYTES,
    MAX_COUNTER,
    QUIET,
    Announcement,
    GuardHello,
    LinkEntry,
    NodeKey,
    Opening,
    Update,
    encode_hello,
    encode_opening,
    encode_updates,
    parse,
)
from support.topology_fabric import Fabric, Pair, is_forest, pair

FEW = topology.FEW
SHAPES = ("tree", "ring", "grid", "complete", "random")


def links_of(shape: str, names: list[str], rng: random.Random) -> list[Pair]:
    count = len(names)
    numbers: list[tuple[int, int]]
    if shape == "tree":
        numbers = [(i, rng.randrange(i)) for i in range(1, count)]
    elif shape == "ring":
        numbers = [(i, (i + 1) % count) for i in range(count)]
    elif shape == "grid":
        across = [(i, i - 1) for i in range(count) if i % 3]
        numbers = across + [(i, i - 3) for i in range(3, count)]
    else:
        numbers = [(i, k) for i in range(count) for k in range(i)]
        if shape == "random":
            numbers = [ends for ends in numbers if rng.random() < 0.4]
    return sorted({pair(names[i], names[k]) for i, k in numbers if i != k})


def deliver_some(fabric: Fabric, rng: random.Random, patience: int) -> None:
    """Up to `patience` deliveries, with probes over some of the active links between them."""
    names = list(fabric.members)
    for _ in range(rng.randint(0, patience)):
        fabric.step(rng)
        member = fabric.members[rng.choice(names)]
        for neighbor in sorted(member.usable):
            if rng.random() < 0.2:
                member.probe(neighbor)
    fabric.check_always()


def something_happens(fabric: Fabric, links: list[Pair], rng: random.Random) -> None:
    chance = rng.random()
    if chance < 0.1:
        fabric.restart(rng.choice(list(fabric.members)))
    elif chance < 0.17 and fabric.sessions:
        a, b = rng.choice(sorted(fabric.sessions))
        fabric.renew(*rng.choice([(a, b), (b, a)]))
    else:
        ends = rng.choice(links)
        (fabric.link_down if ends in fabric.sessions else fabric.link_up)(*ends)


def run_schedule(shape: str, count: int, events: int, patience: int, seed: int) -> Fabric:
    """Links up in any order, then `events` changes, with deliveries between; then rest."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(count)]
    rng.shuffle(names)
    links = links_of(shape, names, rng)
    fabric = Fabric(names)
    for ends in rng.sample(links, len(links)):
        fabric.link_up(*ends)
        deliver_some(fabric, rng, patience)
    for _ in range(events if links else 0):
        something_happens(fabric, links, rng)
        deliver_some(fabric, rng, patience)
    changes = len(links) + events
    fabric.settle(rng, limit=100 + 20 * changes * (len(links) + 1))
    fabric.check_at_rest()
    return fabric


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.integers(2, 10),
    st.integers(0, 20),
    st.sampled_from([0, 1, 5, 30]),
    st.integers(0, 2**32),
)
def test_any_schedule_ends_in_a_spanning_forest(
    shape: str, count: int, events: int, patience: int, seed: int
) -> None:
    run_schedule(shape, count, events, patience, seed)


def run_seeds(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other one as if the fabrics were large: all that comes in a pause is much."""
    for seed in seeds:
        monkeypatch.setattr(topology, "FEW", seed % 2 * FEW)
        rng = random.Random(-1 - seed)
        arguments = (
            rng.choice(SHAPES),
            rng.randint(2, 10),
            rng.randint(0, 30),
            rng.choice([0, 1, 5, 30]),
        )
        try:
            run_schedule(*arguments, seed)
        except Exception as error:
            error.add_note(f"run_schedule{(*arguments, seed)}")
            raise


def test_hundreds_of_seeded_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    run_seeds(range(300), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_seeded_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    run_seeds(range(300, 10_000), monkeypatch)


# ---- what holds before rest, too ----


def at_rest(shape: str, count: int, rng: random.Random) -> tuple[Fabric, list[Pair]]:
    names = [f"n{number}" for number in range(count)]
    rng.shuffle(names)
    links = links_of(shape, names, rng)
    fabric = Fabric(names)
    for ends in links:
        fabric.link_up(*ends)
    fabric.settle(rng, limit=100_000)
    fabric.check_at_rest()
    return fabric, links


def settle_without_rings(fabric: Fabric, rng: random.Random) -> None:
    names = list(fabric.members)
    while fabric.step(rng):
        active = fabric.active()
        assert is_forest(names, active), f"ring among {sorted(active)}\n" + "\n".join(fabric.trace)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SHAPES[1:]), st.integers(3, 8), st.integers(0, 2**32))
def test_one_change_at_a_time_never_makes_a_ring(shape: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(count)]
    rng.shuffle(names)
    links = links_of(shape, names, rng)
    fabric = Fabric(names)
    for ends in rng.sample(links, len(links)) + (rng.choices(links, k=10) if links else []):
        adding = ends not in fabric.sessions
        before = fabric.active()
        blocks = {name: len(member.blocks) for name, member in fabric.members.items()}
        (fabric.link_up if adding else fabric.link_down)(*ends)
        settle_without_rings(fabric, rng)
        fabric.check_at_rest()
        # Traffic that flows is left alone: nothing is blocked but a new link that closes a ring,
        # and a link that is down by an end that hears of it before it notices.
        assert before - {ends} <= fabric.active()
        for name, member in fabric.members.items():
            for neighbor, ring in member.blocks[blocks[name] :]:
                assert pair(name, neighbor) == ends
                assert bool(ring) == adding


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(SHAPES[1:]), st.integers(3, 8), st.integers(0, 2**32))
def test_links_that_go_down_together_never_make_a_ring(shape: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    fabric, links = at_rest(shape, count, rng)
    for ends in rng.sample(links, rng.randint(0, len(links))):
        fabric.link_down(*ends)
        for _ in range(rng.randint(0, 5)):
            fabric.step(rng)
            assert is_forest(list(fabric.members), fabric.active())
    settle_without_rings(fabric, rng)
    fabric.check_at_rest()


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 8), st.integers(0, 2**32))
def test_the_victim_of_a_race_is_the_greatest_pair(count: int, seed: int) -> None:
    """All links of a ring come up in the same moment: equal births, so the ends decide."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(count)]
    rng.shuffle(names)
    links = links_of("ring", names, rng)
    fabric = Fabric(names)
    for ends in links:
        fabric.link_up(*ends)
    for direction in fabric.waiting():  # the notices, before any message
        fabric.deliver(direction)
    fabric.settle(rng, limit=10_000)
    fabric.check_at_rest()
    births = {ends: fabric.members[ends[0]].guard._links[ends[1]].birth for ends in fabric.sessions}
    victim = max(links, key=lambda ends: (births[ends], ends))
    assert fabric.members[victim[0]].guard.state(victim[1]) is LinkState.BLOCKED


# ---- a neighbor that lies ----


def forged_by(fabric: Fabric, liar: str, rng: random.Random, *, subtle: bool) -> bytes:
    """What the liar says of another node or itself: with numbers that nobody could exceed, or, if
    it is `subtle`, with the next ones.
    """
    known = dict(fabric.members[liar].guard._others)
    about = rng.choice(sorted(known))
    said = known[about]
    if subtle:
        forged = Announcement(about, said.sequence + rng.choice([1, 7, 2**32]), ())
    elif rng.random() < 0.3:
        return encode_hello(GuardHello(f"life-{fabric.members[liar].lives}", MAX_COUNTER))
    else:
        entries = [
            LinkEntry(entry.far_end, MAX_COUNTER, rng.choice([0, 1, MAX_COUNTER]))
            for entry in said.links
        ]
        rng.shuffle(entries)
        links = tuple(entries[: rng.randint(0, len(entries))])
        sequence = rng.choice([MAX_COUNTER, MAX_COUNTER - 1, 2**52])
        forged = Announcement(about, sequence, links)
    (payload,) = encode_updates([forged], [])
    return payload


@settings(max_examples=60, deadline=None)
@example("tree", 8, True, 4435)  # a number leaps while news of smaller ones are gathered
@example("complete", 5, True, 2537486868)
@given(
    st.sampled_from(SHAPES),
    st.integers(3, 8),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_liar_takes_no_link_of_others_down_and_is_forgotten(
    shape: str, count: int, subtle: bool, seed: int
) -> None:
    """A liar on a tree may say what it likes of others; in a ring, no number of its helps it."""
    rng = random.Random(seed)
    fabric, links = at_rest("tree" if subtle else shape, count, rng)
    liar = rng.choice(sorted(fabric.members))
    neighbors = sorted(fabric.members[liar].sessions)
    honest = {ends for ends in fabric.active() if liar not in ends}
    for _ in range(10 if neighbors else 0):
        if fabric.members[liar].guard._others:  # else it was just greeted anew, and knows nobody
            payload = forged_by(fabric, liar, rng, subtle=subtle)
            fabric.put(fabric.members[liar], rng.choice(neighbors), payload)
        for _ in range(rng.randint(0, 20)):
            fabric.step(rng)
            assert honest <= fabric.active(), "\n".join(fabric.trace[-50:])
    for neighbor in neighbors:
        fabric.link_down(liar, neighbor)
    fabric.settle(rng, limit=100_000)
    fabric.check_at_rest()
    for ends in [ends for ends in links if liar not in ends and rng.random() < 0.5]:
        fabric.link_down(*ends)
        fabric.settle(rng, limit=100_000)
        fabric.link_up(*ends)
        fabric.settle(rng, limit=100_000)
        fabric.check_at_rest()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(2, 8), st.integers(0, 3), st.integers(0, 2**32))
def test_numbers_that_are_used_up_do_not_keep_links_down(
    shape: str, count: int, left: int, seed: int
) -> None:
    """Births are all the same at last; the ends of the links decide then."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(count)]
    fabric = Fabric(names)
    for member in fabric.members.values():
        member.guard._clock = MAX_COUNTER - left
    links = links_of(shape, names, rng)
    for ends in rng.sample(links, len(links)) + rng.choices(links or [("", "")], k=8):
        if ends != ("", ""):
            (fabric.link_down if ends in fabric.sessions else fabric.link_up)(*ends)
            fabric.settle(rng, limit=100_000)
            fabric.check_at_rest()


# ---- payloads ----

names_of_nodes = st.text(
    st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=64
).filter(str.isprintable)
keys = st.builds(NodeKey, names_of_nodes, names_of_nodes)
counters = st.integers(1, 2**53 - 1)
entries = st.builds(LinkEntry, keys, counters, st.integers(QUIET, 2**53 - 1))


@st.composite
def announcements(draw: st.DrawFn) -> Announcement:
    links = draw(st.lists(entries, max_size=6, unique_by=lambda entry: entry.far_end.node_id))
    node = draw(keys.filter(lambda key: all(key.node_id != e.far_end.node_id for e in links)))
    return Announcement(node, draw(counters), tuple(links))


@settings(max_examples=100, deadline=None)
@given(st.lists(announcements(), max_size=5), st.lists(keys, max_size=5), st.integers(1, 60))
def test_updates_arrive_as_they_were_sent_in_bounded_pieces(
    nodes: list[Announcement], gone: list[NodeKey], times: int
) -> None:
    payloads = list(encode_updates(nodes * times, gone * times))
    updates = [parse(payload) for payload in payloads]
    assert all(isinstance(update, Update) for update in updates)
    found = [update for update in updates if isinstance(update, Update)]
    assert [node for update in found for node in update.nodes] == nodes * times
    assert [key for update in found for key in update.gone] == gone * times
    assert all(len(payload) < 2 * CHUNK_BYTES for payload in payloads)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.tuples(json_values, json_values).map(repr).map(str.encode))
def test_no_bytes_do_more_than_a_remote_error(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(payload)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**53 - 1), st.data())
def test_an_opening_arrives_as_it_was_sent_or_is_refused(number: int, data: st.DataObject) -> None:
    payload = encode_opening(number)
    assert parse(payload) == Opening(number)
    at = data.draw(st.integers(0, len(payload) - 1))
    try:
        assert isinstance(parse(payload[:at] + data.draw(st.binary(max_size=3))), Opening)
    except RemoteProtocolError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(announcements(), min_size=1, max_size=2))
def test_a_damaged_update_is_parsed_or_refused(
    data: st.DataObject, nodes: list[Announcement]
) -> None:
    (payload,) = encode_updates(nodes, [])
    at = data.draw(st.integers(0, len(payload) - 1))
    damaged = payload[:at] + data.draw(st.binary(max_size=3)) + payload[at + 1 :]
    try:
        assert isinstance(parse(damaged), Update)
    except RemoteProtocolError:
        pass
