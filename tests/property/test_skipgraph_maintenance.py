"""Nodes that know only their tables keep the lists of a Skip Graph, whatever happens to them.

What is asked at rest: all tables are those that the lists define (`tables.linked`) for the nodes
that are there and the keys they have, and nothing is said any more but what is said in each round.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.skipgraph.keys import Key, Kind, default_key, key_of
from isthmus.cooperation.skipgraph.maintenance import ROUND_S
from isthmus.cooperation.skipgraph.tables import Side
from support.skip_network import KINDS, TOPICS, SkipNetwork, SkipNode

Seeds = st.integers(0, 2**32)
AT_REST = {"Check", "Walk", "Met", "Find", "Found"}
"""What is said in each round: nobody claims anything, or is told of anybody."""

LONGEST_SKIP_S = 3 * ROUND_S

Deed = Callable[[SkipNetwork, random.Random], None]


# ---- what happens ------------------------------------------------------------------------


def _any_node(net: SkipNetwork, rng: random.Random) -> SkipNode:
    return net.nodes[rng.choice(sorted(net.nodes))]


def change_keys(net: SkipNetwork, rng: random.Random) -> None:
    node = _any_node(net, rng)
    own = sorted(key for key in node.keys if key.topic)
    if own and rng.random() < 0.45:
        node.remove(rng.choice(own))
    else:
        node.add(rng.choice(TOPICS), rng.choice(KINDS))


def crash(net: SkipNetwork, rng: random.Random) -> None:
    """Also several at once, so that whole tables are lost."""
    for _ in range(rng.choice([1, 1, 1, 3])):
        if len(net.nodes) > 2:
            net.crash(rng.choice(sorted(net.nodes)))


def leave(net: SkipNetwork, rng: random.Random) -> None:
    if len(net.nodes) > 2:
        net.leave(rng.choice(sorted(net.nodes)))


def restart(net: SkipNetwork, rng: random.Random) -> None:
    """One that runs, or that crashed before: it comes back empty."""
    name = f"n{rng.randrange(20)}"
    others = sorted(set(net.nodes) - {name})
    net.restart(name, rng.choice(others))


def lose_link(net: SkipNetwork, rng: random.Random) -> None:
    if net.links:
        net.lose(*rng.choice(sorted(map(sorted, net.links))))


def cut_or_heal(net: SkipNetwork, rng: random.Random) -> None:
    if net.cuts and rng.random() < 0.6:
        net.heal()
    else:
        names = [f"n{number}" for number in range(20)]
        one = [name for name in names if rng.random() < 0.5]
        net.cut(one, [name for name in names if name not in one])


DEEDS: dict[str, list[Deed]] = {
    "keys": [change_keys],
    "links": [change_keys, lose_link],
    "crashes": [change_keys, crash, restart, leave],
    "partitions": [change_keys, cut_or_heal],
    "everything": [change_keys, change_keys, crash, restart, leave, lose_link, cut_or_heal],
}


def check_at_rest(net: SkipNetwork) -> None:
    net.settle(within_s=1_500.0)
    net.run(60.0)
    assert net.differences() == []
    net.sent.clear()
    net.run(30.0)
    assert net.differences() == []
    assert set(net.sent) <= AT_REST
    assert not net.accused


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DEEDS))
@settings(max_examples=12, deadline=None)
@given(Seeds)
def test_at_rest_the_tables_are_those_of_the_lists(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    base, delay_s = rng.choice([2, 2, 2, 3, 16]), rng.choice([0.002, 0.02, 0.2])
    net = SkipNetwork(seed, base=base, delay_s=delay_s)
    for number in range(rng.randint(2, 20)):
        net.start(f"n{number}", *([f"n{rng.randrange(number)}"] if number else []))
        net.run(rng.choice([0.0, 0.0, 0.3, 2.0]))
    for _ in range(rng.randint(5, 40)):
        rng.choice(DEEDS[kind])(net, rng)
        net.run(rng.choice([0.0, 0.0, 0.001, 0.05, 0.5, 5.0, 20.0]))
    net.heal()
    net.run(20.0)
    net.introduce()
    check_at_rest(net)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(Seeds)
def test_who_goes_along_right_neighbors_passes_all_that_have_joined(seed: int) -> None:
    """While keys come and go and nobody crashes; or until it is checked, at worst."""
    rng = random.Random(seed)
    net = SkipNetwork(seed, delay_s=0.2)
    net.grow(6)
    joined = {default_key(name) for name in net.nodes}
    """Keys that nobody may skip: they have been passed once, and do not leave."""

    since_s: dict[Key, float] = {}

    def look() -> None:
        right: dict[Key, Key | None] = {}
        for node in net.nodes.values():
            for virtual in node.graph.table:
                beside = virtual.right[0] if virtual.right else None
                right[virtual.key] = beside.key if beside else None
        passed = set()
        key: Key | None = min(right)
        while key is not None and key in right:
            passed.add(key)
            following = right[key]
            assert following is None or following > key
            key = following
        for key in joined - passed:
            assert net.now_s - since_s.setdefault(key, net.now_s) < LONGEST_SKIP_S
        for key in passed:
            since_s.pop(key, None)
        joined.update(key for node in net.nodes.values() for key in node.keys & passed)

    for _ in range(25):
        node = _any_node(net, rng)
        own = sorted(key for key in node.keys if key.topic)
        if own and rng.random() < 0.5:
            key = rng.choice(own)
            joined.discard(key)
            since_s.pop(key, None)
            node.remove(key)
        else:
            topic, kind = rng.choice(TOPICS), rng.choice(KINDS)
            if node.graph.has_left(key_of(topic, kind, node.name)):  # who is back joins anew
                node.add(topic, kind)
        net.after_each = look
        net.run(rng.choice([0.0, 0.1, 0.4, 3.0]))
        net.after_each = lambda: None
    check_at_rest(net)


# ---- what it costs -----------------------------------------------------------------------


def _rate(net: SkipNetwork, seconds: float) -> float:
    """Messages in a second, of all nodes together."""
    net.sent.clear()
    net.run(seconds)
    return sum(net.sent.values()) / seconds


@pytest.mark.slow
def test_a_join_takes_some_messages_for_each_level(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for count in (10, 30, 100):
        net = SkipNetwork(1, delay_s=0.002)
        net.grow(count)
        net.run(100.0)
        idle = _rate(net, 40.0)
        for kind, begin in (("node", _node_joins), ("key", _key_joins)):
            messages = 0.0
            for number in range(10):
                net.sent.clear()
                begin(net, number)
                net.run(2.0)
                took_s = 2.0 + net.settle(60.0, step_s=1.0)
                messages += sum(net.sent.values()) - took_s * idle
                net.run(10.0)
            told.append(f"{count} nodes: {messages / 10:.0f} messages for a {kind} that joins")
            assert messages / 10 < 30 * (log2(count) + 2)
        told.append(f"{count} nodes: {idle / count:.2f} messages a second and node at rest")
        assert idle / count < 1 + log2(count)
    with capsys.disabled():
        print("", *told, sep="\n")


def _node_joins(net: SkipNetwork, number: int) -> None:
    net.start(f"m{number}", f"n{net.rng.randrange(10)}")


def _key_joins(net: SkipNetwork, number: int) -> None:
    net.nodes[f"n{number}"].add("t", Kind.PUBLISHER)


# ---- what liars do -----------------------------------------------------------------------


class Liar:
    """A node that is linked with all, and says what it likes."""

    def __init__(self, net: SkipNetwork, seed: int) -> None:
        self.net = net
        self.rng = random.Random(seed)
        self.heard: list[list[object]] = []
        net.lie("liar", self.hears)

    def hears(self, sender: str, data: bytes) -> None:
        self.heard.append(json.loads(data))

    def say(self, said: object) -> None:
        for name in self.net.nodes:
            link = self.net.links.get(frozenset((name, "liar")))
            if link is not None and link.up:
                self.net.send("liar", name, json.dumps(said).encode())

    def contact(self) -> object:
        rng = self.rng
        name = rng.choice(["liar", "ghost", f"n{rng.randrange(8)}", f"g{rng.randrange(99)}"])
        return rng.choice([None, [name, f"{name}:1", *self.key()], [name, "", "", 0], [name], 5])

    def key(self) -> list[object]:
        return self.rng.choice([["", 0], [self.rng.choice(TOPICS), self.rng.choice([1, 2, 3])]])

    def nonsense(self) -> object:
        rng = self.rng
        where = [rng.choice([0, 0, 0, 1, 2, 9, 64, -1, 10**9, "x"]), rng.choice([0, 1, 2])]
        place = [*where, self.key(), self.key()]
        hops = rng.choice([0, 5, 1024, 1025])
        return rng.choice(
            [
                ["claim", *place, rng.randrange(5)],
                ["ok", *place, self.contact()],
                ["hint", *place, self.contact(), 0],
                ["absent", *place, self.contact()],
                ["check", [[*place, 0]] * rng.choice([1, 3, 101])],
                ["bye", *place, self.contact()],
                ["done", where[0], self.key(), self.key()],
                ["find", self.contact(), self.contact(), self.contact(), hops],
                ["found", self.key(), self.contact(), self.contact()],
                ["walk", *where, self.key(), self.contact(), hops],
                ["met", *where, self.key(), self.key()],
                ["stir", *place],
                rng.choice([[], {}, None, "x", ["claim"], [[["claim"]]]]),
            ]
        )


@pytest.mark.parametrize("seed", range(8))
def test_a_liar_loses_its_own_links_only_and_leaves_nothing_behind(seed: int) -> None:
    net = SkipNetwork(seed)
    net.grow(8, keys=1)
    liar = Liar(net, seed)
    for _ in range(60):
        for name in net.nodes:
            net.dial("liar", name)
        net.run(0.2)
        if liar.heard and liar.rng.random() < 0.3:
            liar.say(liar.rng.choice(liar.heard))
        else:
            liar.say(liar.nonsense())
        net.run(0.1)
        net.banned.clear()
    assert net.accused["liar"] > 0
    assert set(net.accused) == {"liar"}
    net.crash("liar")
    net.run(30.0)
    check_at_rest_of(net)


def check_at_rest_of(net: SkipNetwork) -> None:
    """Without what the liar is accused of."""
    net.accused.pop("liar", None)
    check_at_rest(net)


def test_a_member_that_joins_and_says_nothing_more_is_left_out_when_it_goes() -> None:
    net = SkipNetwork(3)
    net.grow(8, keys=1)
    liar = Liar(net, 3)
    for name in net.nodes:
        net.dial("liar", name)
    net.run(1.0)
    for level in (0, 1):
        for side in (0, 1):
            liar.say(["claim", level, side, ["", 0], ["", 0], 0])
    net.run(60.0)
    honest = set(net.accused)
    assert honest <= {"liar"}
    net.crash("liar")
    net.run(10.0)
    check_at_rest_of(net)


def test_who_is_not_in_a_list_does_not_speak_of_it() -> None:
    """Of keys nobody can lie: those of others cannot even be said."""
    net = SkipNetwork(1)
    net.grow(2)
    net.lie("liar", lambda _sender, _data: None)
    net.dial("liar", "n0")
    net.run(1.0)
    before = net.nodes["n0"].graph.table.keys
    side = 1 if default_key("liar") < default_key("n0") else 0
    net.send("liar", "n0", json.dumps(["claim", 60, side, ["", 0], ["", 0], 0]).encode())
    net.run(1.0)
    assert net.accused == {"liar": 1}
    assert net.nodes["n0"].graph.table.keys == before
    beside = net.nodes["n0"].graph.table[default_key("n0")]
    assert all(entry.node == "n1" for _, _, entry in beside.entries())
    assert all(side in Side for side, _, _ in beside.entries())
