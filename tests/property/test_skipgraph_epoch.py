"""Keys come and go side by side in one epoch: nobody in the lists is passed by, and all publishers
know whether there are subscribers.

What is asked while it happens: a message reaches every subscriber that was in the lists when it was
published and still wants it; and no publisher is suspended for longer than signals take though
there is a subscriber.  At rest the tables are those that the lists define, and suspension is
complete.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.cooperation.skipgraph.groups import groups_of
from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of
from isthmus.cooperation.skipgraph.messages import Status
from support.skip_network import DELAY_S, SkipNetwork

Seeds = st.integers(0, 2**32)
TOPICS = ("a", "b", "a/b")
GROUPS = tuple(sorted({group for topic in TOPICS for group in groups_of(topic)}))


def _storm(net: SkipNetwork, rng: random.Random, deeds: int, *, publish: bool) -> float:
    """Random deeds; the longest that a publisher was suspended wrongly."""
    longest_s = 0.0
    names = sorted(net.graphs)
    for _ in range(deeds):
        net.run(net.now_s + rng.choice((0.0, 0.0, rng.uniform(0, DELAY_S), 5 * DELAY_S)))
        longest_s = max(longest_s, net.longest_wrong_s())
        name = rng.choice(names)
        drawn = rng.random()
        own = sorted(net.wanted[name])
        if publish and drawn < 0.4:
            net.publish(name, rng.choice(TOPICS))
        elif own and drawn < 0.65:
            net.unwant(name, rng.choice(own))
        elif drawn < 0.8:
            net.want(name, rng.choice(GROUPS), Kind.SUBSCRIBER)
        else:
            for group in groups_of(rng.choice(TOPICS)):
                if key_of(group, Kind.SUBSCRIBER, name) not in net.wanted[name]:
                    net.want(name, group, Kind.PUBLISHER)
    return longest_s


@settings(max_examples=60, deadline=None)
@given(Seeds, st.sampled_from((2, 2, 3, 16)), st.sampled_from(("sfb", "mrf")))
@example(210, 3, "sfb")  # a range comes to a subscriber that is beside it
def test_nobody_in_the_lists_is_passed_by(seed: int, base: int, forwarding: str) -> None:
    rng = random.Random(seed)
    net = SkipNetwork(seed, rng.choice((2, 3, 5, 8, 13)), base=base, forwarding=forwarding)
    _storm(net, rng, 120, publish=True)
    net.run()
    net.check_published()
    net.check_tables()
    net.check_suspension()


@settings(max_examples=40, deadline=None)
@given(Seeds)
def test_nobody_is_suspended_for_long_while_somebody_subscribes(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((3, 5, 9))
    net = SkipNetwork(seed, count)
    longest_s = _storm(net, rng, 150, publish=False)
    # A signal passes each publisher once at most; before it, a report may have had to.
    assert longest_s <= (2 * count + 4) * DELAY_S
    net.run()
    net.check_suspension()


def test_messages_reach_subscribers_at_all() -> None:
    """The tests above would pass if nothing was ever owed to anybody."""
    rng = random.Random(5)
    net = SkipNetwork(5, 8)
    _storm(net, rng, 400, publish=True)
    net.run()
    assert sum(len(each.owed) for each in net.published) > 100
    assert sum(len(each.reached) for each in net.published) > 100
    assert sum(each.comes_again for each in net.published) < len(net.published) / 10


def test_what_joining_costs() -> None:
    """Of a key among n nodes, some messages for each of log n levels."""
    net = SkipNetwork(1, 32)
    for name in net.graphs:
        net.want(name, "a", Kind.SUBSCRIBER)
    net.run()
    net.sent = 0
    net.want("n7", "b", Kind.PUBLISHER)
    net.run()
    assert net.sent <= 12 * (net.graphs["n7"].lists.height + 1)


# ---- suspension, step by step (thesis Fig. 3.4 to 3.6) -----------------------------------


def _publishers(net: SkipNetwork, names: str) -> None:
    for name in names.split():
        net.want(name, "t", Kind.PUBLISHER)
    net.run()


def _resumed(net: SkipNetwork) -> set[bool]:
    return {
        net.graphs[name].suspension.is_resumed(key)
        for name, keys in net.wanted.items()
        for key in keys
        if key.kind is Kind.PUBLISHER
    }


def test_publishers_are_suspended_and_resumed() -> None:
    net = SkipNetwork(3, 6)
    _publishers(net, "n0 n1 n2 n3")
    assert _resumed(net) == {False}
    net.want("n4", "t", Kind.SUBSCRIBER)
    net.run()
    assert _resumed(net) == {True}
    net.want("n5", "t", Kind.PUBLISHER)  # is told when it joins
    net.run()
    assert _resumed(net) == {True}
    net.unwant("n4", key_of("t", Kind.SUBSCRIBER, "n4"))
    net.run()
    assert _resumed(net) == {False}


def test_who_is_both_needs_no_key_of_a_publisher() -> None:
    net = SkipNetwork(3, 3)
    net.want("n0", "t", Kind.SUBSCRIBER)
    net.want("n1", "t", Kind.SUBSCRIBER)
    net.run()
    for group in groups_of("t")[1:]:
        net.want("n0", group, Kind.PUBLISHER)
    net.run()
    assert net.publish("n0", "t")
    net.run()
    assert net.published[0].reached == {"n1"}


def _rendezvous_point(net: SkipNetwork) -> tuple[str, Key]:
    keys = {key: name for name, keys in net.wanted.items() for key in keys}
    first = min(key for key in keys if key.kind is Kind.PUBLISHER)
    return keys[first], first


def _lose(net: SkipNetwork, name: str) -> None:
    """As if the last signal had been lost on the way to this publisher."""
    key = key_of("t", Kind.PUBLISHER, name)
    statuses = net.graphs[name].suspension._statuses
    version, resumed = statuses[key]
    statuses[key] = Status(version - 1, not resumed)


def test_inconsistency_1_a_publisher_goes_on_though_nobody_subscribes() -> None:
    net = SkipNetwork(4, 6)
    _publishers(net, "n0 n1 n2 n3 n4")
    net.want("n5", "t", Kind.SUBSCRIBER)
    net.run()
    net.unwant("n5", key_of("t", Kind.SUBSCRIBER, "n5"))
    net.run()
    point, _ = _rendezvous_point(net)
    wrong = next(name for name in sorted(net.graphs) if name not in (point, "n5"))
    _lose(net, wrong)
    assert _resumed(net) == {True, False}
    (way,) = net.graphs[wrong].ways("t") or ((point, b""),)  # its message comes to a publisher
    net.graphs[way[0]].is_silent("t", wrong)
    net.run()
    assert _resumed(net) == {False}


@pytest.mark.parametrize("seed", range(8))
def test_inconsistency_2_a_publisher_is_suspended_though_somebody_subscribes(seed: int) -> None:
    net = SkipNetwork(seed, 6)
    _publishers(net, "n0 n1 n2 n3 n4")
    net.want("n5", "t", Kind.SUBSCRIBER)
    net.run()
    point, _ = _rendezvous_point(net)
    wrong = sorted(net.graphs.keys() - {point, "n5"})[seed % 4]
    _lose(net, wrong)
    assert _resumed(net) == {True, False}
    assert net.graphs[wrong].confirm() == 1
    net.run()
    assert _resumed(net) == {True}


def _relied_on(seed: int) -> int:
    """How often a publisher was looked at while somebody had the answer that all are resumed."""
    rng = random.Random(seed)
    net = SkipNetwork(seed, rng.choice((4, 6, 9)))
    names = sorted(net.graphs)
    asked: dict[Key, tuple[float, int]] = {}
    """Since when a key is in the lists, and the number of its question."""
    answered: dict[Key, float] = {}

    def all_resumed(key: Key, number: int) -> None:
        since_s, latest = asked[key]
        if number == latest and net.usable_s.get(key) == since_s:
            answered[key] = since_s

    for graph in net.graphs.values():
        graph.suspension._all_resumed = all_resumed
    looks = 0
    for number in range(120):
        end_s = net.now_s + rng.choice((0.0, rng.uniform(0, DELAY_S), 3 * DELAY_S))
        while net.now_s < end_s:
            net.run(min(net.now_s + DELAY_S / 20, end_s))
            for key, since_s in list(answered.items()):
                if net.usable_s.get(key) != since_s:
                    del answered[key]
            for name in names:
                key = key_of("t", Kind.SUBSCRIBER, name)
                since_s = net.usable_s.get(key, -1.0)
                if since_s >= 0 and asked.get(key, (-1.0, 0))[0] != since_s:
                    asked[key] = since_s, number  # at once, when nobody may have heard of it
                    net.graphs[name].suspension.ask_all(key, number)
                publisher = key_of("t", Kind.PUBLISHER, name)
                if answered and net.graphs[name].lists.is_usable(publisher):
                    looks += 1
                    assert net.graphs[name].suspension.is_resumed(publisher), (name, answered)
        name = rng.choice(names)
        subscriber, publisher = (
            key_of("t", kind, name) for kind in (Kind.SUBSCRIBER, Kind.PUBLISHER)
        )
        own = net.wanted[name] & {subscriber, publisher}
        if subscriber in own or (own and rng.random() < 0.3):
            net.unwant(name, own.pop())
        elif not own:
            net.want(name, "t", Kind.SUBSCRIBER if rng.random() < 0.3 else Kind.PUBLISHER)
    net.run()
    net.check_suspension()
    return looks


@settings(max_examples=25, deadline=None)
@given(Seeds)
def test_who_has_the_answer_that_all_are_resumed_can_rely_on_it(seed: int) -> None:
    """From then on no publisher is suspended, whoever comes and goes, while that key stays."""
    _relied_on(seed)


def test_that_answer_is_relied_on_at_all() -> None:
    assert sum(map(_relied_on, range(10))) > 1_000


def test_the_answer_that_all_are_resumed_comes_at_all() -> None:
    """Also when all come and go side by side; it is asked again where somebody is on the way."""
    net = SkipNetwork(5, 9)
    heard: list[tuple[Key, int]] = []
    for graph in net.graphs.values():
        graph.suspension._all_resumed = lambda key, number: heard.append((key, number))
    for number in range(1, 8):
        net.want(f"n{number}", "t", Kind.PUBLISHER if number > 2 else Kind.SUBSCRIBER)
    net.want("n0", "t", Kind.SUBSCRIBER)
    net.run()
    before = net.sent
    subscriber = key_of("t", Kind.SUBSCRIBER, "n0")
    net.graphs["n0"].suspension.ask_all(subscriber, 77)
    net.run()
    assert heard == [(subscriber, 77)]
    assert net.sent - before <= 5 + 2 + 1  # each publisher, subscribers in between, the answer


@settings(max_examples=25, deadline=None)
@given(Seeds)
@example(0)
def test_rendezvous_points_that_come_and_go(seed: int) -> None:
    """Versions go on growing, whoever counts them."""
    rng = random.Random(seed)
    net = SkipNetwork(seed, 7)
    for _ in range(60):
        net.run(net.now_s + rng.uniform(0, 2 * DELAY_S))
        name = rng.choice(sorted(net.graphs))
        kind = rng.choice((Kind.SUBSCRIBER, Kind.PUBLISHER, Kind.PUBLISHER))
        key = key_of("t", kind, name)
        if key in net.wanted[name]:
            net.unwant(name, key)
        else:
            net.want(name, "t", kind)
    net.run()
    net.check_tables()
    net.check_suspension()


def test_nobody_is_sent_round_while_a_key_does_not_know_of_its_place() -> None:
    """
    k(n0) ─ m(n1) ─ n(n2)     m is in the list, and has not heard of it; n asks for its place
    """
    net = SkipNetwork(1, 3)
    net.want("n0", "k", Kind.SUBSCRIBER)
    net.run()
    net.want("n1", "m", Kind.SUBSCRIBER)
    while net.graphs["n0"].lists.table[key_of("k", Kind.SUBSCRIBER, "n0")].right == []:
        net.slow_s["n0", "n1"] = 500 * DELAY_S
        net.run(net.now_s + 0.1)
    net.sent = 0
    net.want("n2", "n", Kind.SUBSCRIBER)
    net.run()
    net.check_tables()
    assert net.sent < 60
