"""A linked neighbor that lies harms nobody else, and nothing of it is left when it has gone.

Any two of a, b and c are linked, and the liar is beside a, or beside all of them.  What is asked:
messages of everybody reach everybody, once, while the liar is there and after it has gone, also
when something ordinary happens: a link is cut, a node comes.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from isthmus.cooperation.registry import load
from isthmus.cooperation.topic_tree.algorithm import TopicTree
from isthmus.cooperation.topic_tree.overlays import MAX_OVERLAYS
from isthmus.mqtt.filters.covering_set import Steps
from isthmus.mqtt.filters.index import FilterIndex
from support.liars import LIAR, Liar, LyingFabric

TREES = ("tree", "routed-tree", "topic-tree", "skipgraph")
TOPICS = "$isthmus/topics"
LAST = 2**32 - 1
BEST = 2**48
ROUNDS = 40
RUNS = 12

trees = pytest.mark.parametrize("algorithm", TREES)


def best_wave(number: int, nonce: int = 7) -> list[object]:
    return [number, BEST, "1.1.1.1:1", LIAR, nonce]


def an_ordinary_day(fabric: LyingFabric) -> None:
    """Links are cut, one after the other, and a node comes: that is repaired."""
    assert fabric.lacking() == []
    for a, b in ("ab", "bc", "ac"):
        fabric.cut(a, b)
        assert fabric.lacking(20) == [], f"{a} and {b} are cut"
        fabric.heal()
        fabric.run(15)
    newcomer = fabric.node("d")
    fabric.link(newcomer, fabric.nodes["b"], delay_s=0.002)
    fabric.run(5)
    fabric.add_clients("d")
    assert fabric.lacking(20) == [], "a node comes"


# ---- nonsense --------------------------------------------------------------------------------


class Nonsense:
    """What a program gone wrong might say, some of it nearly right."""

    def __init__(self, seed: int, liar: Liar) -> None:
        self.rng = random.Random(seed)
        self.liar = liar

    def number(self) -> object:
        return self.rng.choice((0, 1, 2, 5, -1, 1.5, True, None, "3", LAST, LAST + 1, 2**63))

    def capability(self) -> object:
        extremes = (0, 100, BEST, BEST + 1, -1, 1e308, float("nan"), float("inf"), None)
        return self.rng.choice(extremes)

    def name(self) -> object:
        return self.rng.choice(("a", "b", LIAR, "zz", "", "\ud800", "\0", "x" * 300, None, 5))

    def names(self) -> list[object]:
        return [self.name() for _ in range(self.rng.randrange(5))]

    def topics(self) -> list[object]:
        some = ("t/1", "t/#", "+", "", "$x", "a" * 70_000, 5, "t/\0")
        return [self.rng.choice(some) for _ in range(self.rng.randrange(5))]

    def label(self) -> object:
        return self.rng.choice(("", "00" * 8, "00" * 16, "zz", "0" * 7))

    def wave(self) -> list[object]:
        """Often one that others have begun, perhaps with something else in it."""
        rng = self.rng
        waves: list[list[Any]] = [
            said[1] for _, said in self.liar.heard if said[0] in ("explore", "adopt")
        ]
        address = rng.choice(("a:7883", "", "1.1.1.1:1", "[::1]:99999999999", ":::"))
        if not waves or rng.random() < 0.5:
            return [self.number(), self.capability(), address, self.name(), rng.getrandbits(32)]
        wave = list(rng.choice(waves))
        if rng.random() < 0.5:
            wave[rng.randrange(5)] = rng.choice((self.number(), self.capability(), self.name()))
        return wave

    def of_tree(self) -> object:
        kinds: list[object] = [
            ["hello", self.number(), self.label(), self.number(), self.name()],
            ["answer", self.number()],
            ["explore", self.wave(), self.capability()],
            ["echo", self.wave(), self.names()],
            ["adopt", self.wave(), self.names()],
            ["advertise", self.label(), self.topics(), self.topics()],
            ["want", self.label(), self.topics(), self.topics()],
            self.rng.choice(([], {}, 5, "x", ["hello"], [["hello"]], None)),
        ]
        return self.rng.choice(kinds)

    def of_topics(self) -> object:
        members = sorted({str(each) for each in (*self.names(), LIAR, self.rng.choice("abc"))})
        news = self.rng.choice(("want", "unwant", "publish", "unpublish"))
        kinds: list[object] = [
            ["begin"],
            ["end"],
            [news, self.topics()],
            ["keeps", self.label(), self.names(), self.rng.choice((True, False, 1)), True],
            ["overlay", members, self.of_tree()],
        ]
        return self.rng.choice(kinds)


@trees
@pytest.mark.parametrize("seed", range(RUNS))
def test_nonsense_harms_no_other_and_nothing_of_it_is_left(algorithm: str, seed: int) -> None:
    rng = random.Random(seed)
    fabric = LyingFabric(algorithm, beside=rng.choice(("a", "ab", "abc")), seed=seed)
    liar = fabric.let_in()
    nonsense = Nonsense(seed, liar)
    for _ in range(ROUNDS):
        for neighbor in list(liar.sessions):
            if algorithm == "topic-tree" and rng.random() < 0.6:
                liar.say(neighbor, nonsense.of_topics(), TOPICS)
            else:
                liar.say(neighbor, nonsense.of_tree())
        fabric.run(rng.choice((0.0, 0.001, 0.02, 0.3, 1.0)))
    assert fabric.trace.accusations
    assert not fabric.honest_accused()
    fabric.drive_out()
    assert fabric.lacking() == []


# ---- waves that come to no end ---------------------------------------------------------------


@trees
def test_who_never_answers_keeps_nobody_out(algorithm: str) -> None:
    fabric = LyingFabric(algorithm)
    fabric.let_in()
    an_ordinary_day(fabric)


@trees
def test_who_never_answers_and_was_there_first_keeps_nobody_apart(algorithm: str) -> None:
    fabric = LyingFabric(algorithm, links=(), beside="abc")
    fabric.let_in()
    for a, b in ("ab", "bc", "ac"):
        fabric.link(fabric.nodes[a], fabric.nodes[b], delay_s=0.002)
    fabric.run(15)
    assert fabric.lacking(20) == []


@trees
def test_the_best_root_that_never_ends_its_wave_stops_no_repair(algorithm: str) -> None:
    fabric = LyingFabric(algorithm)
    liar = fabric.let_in()
    liar.say("a", ["explore", best_wave(1_000), 0])
    fabric.run(10)
    an_ordinary_day(fabric)


@trees
def test_the_best_root_that_begins_again_and_again_stops_no_repair(algorithm: str) -> None:
    fabric = LyingFabric(algorithm)
    liar = fabric.let_in()
    fabric.cut("a", "b")
    for number in range(600):
        liar.say("a", ["explore", best_wave(1_000 + number), 0])
        fabric.run(0.1)
    assert fabric.lacking(10) == []


@trees
@pytest.mark.parametrize("kind", ["hello", "explore", "echo"])
def test_the_last_number_is_forgotten_with_who_said_it(algorithm: str, kind: str) -> None:
    fabric = LyingFabric(algorithm)
    liar = fabric.let_in()
    wave = best_wave(LAST)
    said = {
        "hello": ["hello", LAST, "", 1, ""],
        "explore": ["explore", wave, 0],
        "echo": ["echo", wave, [LIAR]],
    }
    liar.say("a", said[kind])
    fabric.run(5)
    fabric.drive_out()
    an_ordinary_day(fabric)


# ---- too much --------------------------------------------------------------------------------


@trees
def test_too_many_nodes_below_end_the_link_of_who_says_so(algorithm: str) -> None:
    fabric = LyingFabric(algorithm, links=(("a", "b"), ("b", "c")), beside="c")
    liar = fabric.let_in()
    names = [LIAR, *(f"x{index}" for index in range(19_999))]

    def answers(neighbor: str, said: list[Any]) -> None:
        if said[0] == "explore":
            liar.say(neighbor, ["echo", said[1], names])

    liar.answers = answers
    liar.say("c", ["hello", 0, "", 1, ""])
    fabric.run(10)
    assert fabric.lacking() == []
    assert not fabric.honest_accused()


def test_all_is_told_anew_without_end_and_takes_no_more_room() -> None:
    fabric = LyingFabric("topic-tree")
    liar = fabric.let_in()
    for turn in range(20):
        liar.say("a", ["begin"], TOPICS)
        for part in range(10):
            names = [f"{turn}/{part}/{index}" for index in range(500)]
            liar.say("a", ["want", names], TOPICS)
        fabric.run(1)
    attacked = fabric.nodes["a"].algorithm
    assert isinstance(attacked, TopicTree)
    assert sum(len(each.filters) for each in attacked.membership._retired) <= 10_000


def test_overlays_of_invented_nodes_leave_their_place_to_others() -> None:
    fabric = LyingFabric("topic-tree", "abcd", beside="abcd")
    liar = fabric.let_in()
    for name in "abcd":
        for index in range(MAX_OVERLAYS + 10):
            members = sorted((name, LIAR, f"zz{index}"))
            inner = ["explore", best_wave(5, index), 0]
            liar.say(name, ["overlay", members, inner], TOPICS)
    fabric.run(1)
    assert fabric.lacking() == []
    fabric.drive_out()
    fabric.run(20)
    assert fabric.lacking() == []
    for name in "abcd":
        node = fabric.nodes[name].algorithm
        assert isinstance(node, TopicTree)
        assert [overlay.members for overlay in node.overlays] == [("a", "b", "c", "d")]


# ---- clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["routed-tree", "topic-tree"])
def test_filters_that_are_made_to_take_long_hold_no_turn(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client wants is looked through for hundreds of topics at once."""
    steps = 0
    match_within = FilterIndex.match_within

    def counted(self: FilterIndex[Any], topic: str, may: Steps) -> list[Any] | None:
        nonlocal steps
        before = may.left
        found = match_within(self, topic, may)
        steps += before - may.left
        return found

    longest = 0
    timer = load(algorithm).on_timer

    def on_timer(self: Any, key: Any) -> None:
        nonlocal longest, steps
        steps = 0
        timer(self, key)
        longest = max(longest, steps)

    monkeypatch.setattr(FilterIndex, "match_within", counted)
    monkeypatch.setattr(load(algorithm), "on_timer", on_timer)
    fabric = LyingFabric(algorithm)
    client = fabric.nodes["a"].client("hostile")
    fabric.run(1)
    filters = ["/".join(levels) for levels in product("+x", repeat=11)]
    for part in range(4):
        client.subscribe(*filters[part::4])
    for number in range(300):
        fabric.publishers["a"].publish("x/" * 10 + str(number), b"", qos=1)
    fabric.run(2)
    client.subscribe("+/other")
    fabric.run(2)
    fabric.cut("a", "b")
    assert fabric.lacking(20) == []
    assert 0 < longest <= 100_000
