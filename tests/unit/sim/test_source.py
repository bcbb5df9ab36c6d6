"""`source = "broker"`: messages are taken from the broker, whoever has brought them there.

a ── h ── b        s is a client of a's or b's node, d connects to the broker itself
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from isthmus.exchange.broker.source import LET_GO_S, PROOF_S
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.packets import Publish, Will
from isthmus.node.metrics import exposition
from isthmus.sim import SimFabric
from isthmus.sim.client import SimClient
from isthmus.sim.node import SimNode

LEVELS = pytest.mark.parametrize("level", [5, 4])
LEARNED_S = 2.0
"""Until it is known that a broker of 3.1.1 has nothing retained on a topic."""


def line(
    *, level: int = 5, algorithm: str = "sf", state_dir: bool = True, hold_s: float = 60.0
) -> tuple[SimFabric, SimNode, SimNode, SimNode]:
    link = LinkSettings(qos=2, hold_s=hold_s)
    fabric = SimFabric(seed=1, algorithm=algorithm, link=link, from_broker=True)
    a, h, b = (fabric.node(name, broker_level=level, state_dir=state_dir) for name in "ahb")
    fabric.link(a, h)
    fabric.link(h, b)
    return fabric, a, h, b


def subscriber(node: SimNode, *filters: str) -> SimClient:
    client = node.client(f"s-{node.name}", clean_start=False, session_expiry_s=10_000)
    client.subscribe(*filters or ("#",))
    return client


@dataclass(frozen=True)
class Told:
    """What a node's status says of what it takes from its broker."""

    source: dict[str, Any]
    ready: bool = True

    def status(self) -> dict[str, Any]:
        return {"broker": {"source": self.source}}


def is_echoing(node: SimNode) -> bool:
    """As `/api/status` and the metrics say, which agree."""
    source = node.host.own.source if node.host is not None else None
    assert source is not None
    said = source.status()
    text, _ = exposition(Told(said), "text/plain")
    assert f"isthmus_source_echoing {float(said['echoing'])}" in text.decode().splitlines()
    return bool(said["echoing"])


def rest(fabric: SimFabric) -> None:
    fabric.settle()
    fabric.run(LEARNED_S)
    fabric.settle()


@LEVELS
@pytest.mark.parametrize("algorithm", ["sf", "pf", "tree", "topic-tree", "skipgraph"])
def test_each_message_comes_once_whoever_published_it(algorithm: str, level: int) -> None:
    fabric, a, h, b = line(level=level, algorithm=algorithm)
    if algorithm in ("topic-tree", "skipgraph"):
        fabric.link(a, b)
    subscribers = [subscriber(node, "t/#") for node in (a, h, b)]
    through, direct = a.client("p"), b.client("d", direct=True)
    fabric.settle()
    for qos in (0, 1, 2):
        for publisher in (through, direct):
            for number in range(3):
                payload = f"{publisher.client_id} {qos} {number}".encode()
                publisher.publish(f"t/{qos}", payload, qos=qos)
    rest(fabric)
    for each in subscribers:
        assert len(each.received) == len(set(each.payloads())) == 18
        for name in "pd":
            for qos in (0, 1, 2):
                got = [e.payload for e in each.received if e.topic == f"t/{qos}"]
                mine = [e for e in got if e.startswith(name.encode())]
                assert mine == [f"{name} {qos} {n}".encode() for n in range(3)]
                assert {e.qos for e in each.received if e.topic == f"t/{qos}"} == {qos}


def test_only_what_neighbors_want_is_taken() -> None:
    fabric, a, _, b = line()
    at_b = subscriber(b, "t/1", "t/+/x", "+/2/x")
    direct = a.client("d", direct=True)
    fabric.settle()
    source = a.host.own.source if a.host is not None else None
    assert source is not None
    assert set(source.subscriptions.filters) == {"t/1", "+/+/x"}, "none of them overlap"
    direct.publish("u", b"nobody's")
    direct.publish("t/2/x", b"once")
    rest(fabric)
    assert at_b.payloads() == [b"once"]
    assert a.exchange.counters["taken_from_broker"] == 1
    at_b.unsubscribe(*at_b.wanted)
    fabric.settle()
    assert not source.subscriptions.filters


@LEVELS
def test_filters_that_change_lose_and_double_nothing(level: int) -> None:
    fabric, a, _, b = line(level=level)
    a.broker.doubles = True
    a.broker.delay_s = 0.05
    at_b = subscriber(b, "t/1")
    direct = a.client("d", direct=True)
    rest(fabric)
    wanted = ["t/#", "+/1", "#", "t/+"]
    for number in range(60):
        direct.publish("t/1", b"%d" % number, qos=number % 3)
        if number % 15 == 7:
            at_b.subscribe(wanted[number // 15])
        fabric.run(0.01)
    rest(fabric)
    got = [int(each) for each in at_b.payloads()]
    assert sorted(got) == list(range(60))


def test_direct_subscribers_get_what_interest_names() -> None:
    fabric = SimFabric(seed=1, from_broker=True)
    a, b = fabric.node("a"), fabric.node("b", interest=("t/#",))
    fabric.link(a, b)
    unseen = b.client("u", direct=True)
    unseen.subscribe("#")
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("t/1", b"named", qos=1)
    publisher.publish("v", b"not named", qos=1)
    fabric.settle()
    assert unseen.payloads() == [b"named"]


@LEVELS
def test_wills_come_from_the_broker_and_once(level: int) -> None:
    fabric, a, _, b = line(level=level)
    at_b = subscriber(b)
    clients = [
        a.client(name, will=Will(f"w/{name}", name.encode(), qos=1), direct=name == "d")
        for name in "pd"
    ]
    fabric.settle()
    for client in clients:
        client.vanish()
    rest(fabric)
    assert sorted(at_b.payloads()) == [b"d", b"p"]
    assert a.exchange.counters["wills_sent"] == 0


def test_a_broker_that_echoes_although_asked_not_to_is_told_and_harmless() -> None:
    fabric, a, h, b = line()
    fabric.trace.on = True
    a.broker.echoes = b.broker.echoes = True
    at_a, at_b = subscriber(a), subscriber(b)
    publishers = [a.client("p"), b.client("q")]
    rest(fabric)
    for number in range(20):
        for publisher in publishers:
            publisher.publish("t", f"{publisher.client_id}{number % 3}".encode(), qos=number % 3)
    rest(fabric)
    assert len(at_a.received) == len(at_b.received) == 40
    assert a.exchange.counters["echoes_swallowed"] >= 20
    assert "although asked not to" in fabric.trace.text()
    assert [is_echoing(node) for node in (a, h, b)] == [True, False, True]
    fabric.run(2 * PROOF_S)
    publishers[0].publish("t", b"later", qos=0)
    publishers[1].publish("t", b"later", qos=0)
    rest(fabric)
    assert at_a.payloads().count(b"later") == at_b.payloads().count(b"later") == 2


def test_one_that_keeps_to_no_local_is_not_watched_for_long() -> None:
    fabric, a, _, _ = line()
    fabric.settle()
    source = a.host.own.source if a.host is not None else None
    assert source is not None
    assert source.echoes.on
    fabric.run(2 * PROOF_S)
    assert not source.echoes.on


def test_a_filter_that_the_broker_refuses_is_told() -> None:
    fabric, a, _, b = line()
    fabric.trace.on = True
    a.broker.refuses_filters.add("secret/#")
    at_b = subscriber(b, "secret/#", "t")
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"all the same", qos=1)
    rest(fabric)
    assert at_b.payloads() == [b"all the same"]
    assert a.exchange.counters["source_filters_refused"] == 1
    source = a.host.own.source if a.host is not None else None
    assert source is not None
    assert source.status()["refused"] == {"secret/#": 0x87}
    assert "filter=secret/#" in fabric.trace.text()


# ---- retained --------------------------------------------------------------------------------


@LEVELS
def test_what_was_retained_before_the_first_start_is_everywhere(level: int) -> None:
    fabric = SimFabric(seed=1, from_broker=True)
    a, b = (fabric.node(name, broker_level=level) for name in "ab")
    a.broker.retained["t/old"] = Publish("t/old", b"from before", qos=1, retain=True)
    fabric.link(a, b)
    fabric.settle()
    early = subscriber(b, "t/#")
    rest(fabric)
    assert early.payloads() == [b"from before"]
    late = b.client("late")
    late.subscribe("t/old")
    rest(fabric)
    assert [(each.payload, each.retain) for each in late.received] == [(b"from before", True)]
    assert early.payloads() == [b"from before"]


@LEVELS
def test_what_the_fabric_knows_wins_over_what_was_there_before(level: int) -> None:
    fabric = SimFabric(seed=1, from_broker=True)
    a, b, c = (fabric.node(name, broker_level=level) for name in "abc")
    for node, payload in ((a, b"a's"), (b, b"b's")):
        node.broker.retained["t"] = Publish("t", payload, qos=1, retain=True)
    fabric.link(b, c)
    at_c = subscriber(c, "t")
    rest(fabric)
    publisher = b.client("p")
    fabric.settle()
    publisher.publish("t", b"newer", qos=1, retain=True)
    rest(fabric)
    assert at_c.payloads() == [b"b's", b"newer"]
    fabric.link(a, b)
    rest(fabric)
    subscriber(a, "t")
    rest(fabric)
    kept = {node.name: node.broker.retained["t"].payload for node in (a, b, c)}
    assert kept == dict.fromkeys("abc", b"newer")


@LEVELS
@pytest.mark.parametrize("direct", [True, False])
def test_live_retained_messages_come_once_and_stay(level: int, direct: bool) -> None:
    fabric, a, _, b = line(level=level)
    at_b = subscriber(b, "r/#", "t")
    publisher = a.client("p", direct=direct)
    fabric.settle()
    publisher.publish("t", b"live", qos=1)
    for number in range(3):
        publisher.publish("r/1", b"%d" % number, qos=1, retain=True)
        rest(fabric)
    assert (at_b.payloads("t"), at_b.payloads("r/1")) == ([b"live"], [b"0", b"1", b"2"])
    assert {each.broker.retained["r/1"].payload for each in (a, b)} == {b"2"}
    assert "t" not in b.broker.retained
    publisher.publish("r/1", b"", qos=1, retain=True)
    rest(fabric)
    assert not b.broker.retained
    assert at_b.payloads("r/1") == [b"0", b"1", b"2", b""]


# ---- faults ----------------------------------------------------------------------------------


@LEVELS
def test_what_the_broker_gets_while_the_node_is_away_is_not_lost(level: int) -> None:
    fabric, a, _, b = line(level=level)
    at_b = subscriber(b)
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"before", qos=1)
    rest(fabric)
    fabric.crash(a)
    for number in range(10):
        direct.publish("t", b"%d" % number, qos=1 + number % 2)
    fabric.run(3.0)
    fabric.restart(a)
    rest(fabric)
    assert sorted(at_b.payloads()) == sorted([b"before", *(b"%d" % n for n in range(10))])


@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_what_comes_in_one_piece_with_connack_is_taken(level: int, qos: int) -> None:
    fabric, a, _, b = line(level=level)
    a.broker.greets_at_once = True
    at_b = subscriber(b)
    direct = a.client("d", direct=True)
    fabric.settle()
    fabric.crash(a)
    for number in range(10):
        direct.publish("t", b"%d" % number, qos=qos)
    fabric.run(3.0)
    fabric.restart(a)
    rest(fabric)
    assert at_b.payloads() == [b"%d" % number for number in range(10)]
    assert not any(session.flight for session in a.broker.sessions.values())


@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_acknowledged_that_the_others_do_not_have(level: int, qos: int) -> None:
    fabric, a, h, b = line(level=level)
    at_b = subscriber(b)
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"known", qos=qos)
    rest(fabric)
    h.broker.delay_s = b.broker.delay_s = 1.0
    for number in range(5):
        direct.publish("t", b"%d" % number, qos=qos)
    fabric.run(0.5)
    fabric.crash(a)
    fabric.run(1.0)
    fabric.restart(a)
    rest(fabric)
    assert set(at_b.payloads()) == {b"known", *(b"%d" % n for n in range(5))}


@LEVELS
def test_a_session_that_breaks_repeats_nothing(level: int) -> None:
    fabric, a, _, b = line(level=level)
    at_b = subscriber(b)
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"known", qos=1)
    rest(fabric)
    a.broker.poison.add("poison")
    b.broker.delay_s = 0.3
    publisher = b.client("q")
    fabric.settle()
    subscriber(a, "poison")
    fabric.settle()
    for number in range(30):
        direct.publish("t", b"%d" % number, qos=1 + number % 2)
        if number % 10 == 5:
            publisher.publish("poison", b"!", qos=1)  # a's broker closes the node's session
        fabric.run(0.05)
    rest(fabric)
    got = [each for each in at_b.payloads("t") if each != b"known"]
    assert sorted(got) == sorted(b"%d" % number for number in range(30))


def test_a_neighbor_that_is_away_stops_nobody_else() -> None:
    fabric, a, h, b = line(hold_s=600.0)
    at_h, at_b = subscriber(h), subscriber(b)
    direct = a.client("d", direct=True)
    fabric.settle()
    fabric.crash(h, silent=False)
    fabric.run(3.0)
    for number in range(50):
        direct.publish("t", b"%d" % number, qos=1)
    fabric.run(2 * LET_GO_S)
    assert a.exchange.counters["source_let_go"] == 50
    session = a.broker.sessions["isthmus-a-source"]
    assert not session.flight, "the broker goes on"
    fabric.restart(h)
    rest(fabric)
    for each in (at_h, at_b):
        assert each.payloads() == [b"%d" % number for number in range(50)]


def test_two_nodes_before_one_broker_take_nothing_and_say_so() -> None:
    fabric = SimFabric(seed=1, from_broker=True)
    a = fabric.node("a")
    b = fabric.node("b", broker=a.broker)
    c = fabric.node("c")
    fabric.link(a, c)
    at_c, at_a = subscriber(c), subscriber(a)
    at_b = b.client("s-b")
    at_b.subscribe("#")
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"b is of no fabric of ours", qos=1)
    rest(fabric)
    assert at_c.payloads() == [b"b is of no fabric of ours"]
    fabric.link(b, c)
    rest(fabric)
    assert all(
        node.host is not None
        and node.host.own.source is not None
        and "the same broker" in node.host.own.source.problem
        for node in (a, b)
    )
    direct.publish("t", b"1", qos=1)
    rest(fabric)
    assert (at_c.payloads()[1:], at_a.payloads().count(b"1")) == ([], 1)
    fabric.unlink(b, c)
    fabric.run(90.0)
    direct.publish("t", b"2", qos=1)
    rest(fabric)
    assert at_c.payloads()[1:] == [b"2"]


def test_without_a_state_dir_the_session_ends_with_the_node() -> None:
    fabric, a, _, b = line(state_dir=False)
    subscriber(b)
    fabric.settle()
    assert a.broker.sessions["isthmus-a-source"].expiry_s == 0


@pytest.mark.parametrize("qos", [1, 2])
@LEVELS
def test_a_session_that_is_new_repeats_nothing_and_so_nothing_is_taken_for_it(
    level: int, qos: int
) -> None:
    fabric, a, h, b = line(level=level, state_dir=False)
    at_b = subscriber(b, "t")
    direct = a.client("d", direct=True)
    fabric.settle()
    direct.publish("t", b"known")
    rest(fabric)
    fabric.partition([a], [h])
    direct.publish("t", b"on", qos=qos)  # and it is not acknowledged yet
    fabric.run(0.1)
    session = a.broker.sessions["isthmus-a-source"]
    connection = session.connection
    assert connection is not None
    assert len(session.flight) == 1
    a.broker.ended(session, clean=False)
    connection.close()
    fabric.run(0.5)
    direct.publish("t", b"on", qos=qos)
    fabric.heal()
    rest(fabric)
    assert at_b.payloads() == [b"known", b"on", b"on"]


def test_a_topic_that_is_no_text_ends_no_session_while_filters_change() -> None:
    fabric, a, _, b = line()
    subscriber(b, "t/1")
    fabric.settle()
    source = a.host.own.source if a.host is not None else None
    assert source is not None
    sessions = source.injector.sessions
    source.want(["t/#"], ["t/1"])
    assert source.subscriptions.changing
    source.frames(b"\x30\x06\x00\x02\xff\xfe\x00x", (0, 8))
    assert a.exchange.counters["source_bad"] == 1
    fabric.settle()
    assert source.injector.sessions == sessions


@LEVELS
@pytest.mark.parametrize("closes", [True, False])
def test_who_wants_what_the_broker_refuses_takes_nothing_from_others(
    closes: bool, level: int
) -> None:
    fabric, a, _, b = line(level=level)
    (a.broker.closes_on if closes else a.broker.refuses_filters).update(("#", "$isthmus/source"))
    at_b, others = subscriber(b, "t", "u/+"), b.client("o")
    direct, publisher = a.client("d", direct=True), b.client("q")
    subscriber(a, "v")
    fabric.settle()
    others.subscribe("#")
    for number in range(10):
        direct.publish("t", b"%d" % number, qos=1)
        publisher.publish("v", b"%d" % number, qos=1)
        fabric.run(2.0)
    rest(fabric)
    assert at_b.payloads("t") == [b"%d" % number for number in range(10)]
    source = a.host.own.source if a.host is not None else None
    assert source is not None
    assert set(source.subscriptions.refused) == {"#", "$isthmus/source"}
    sessions = source.injector.sessions
    publisher.publish("v", b"last", qos=2)
    direct.publish("u/1", b"last", qos=2)
    rest(fabric)
    assert at_b.payloads("u/1") == [b"last"]
    assert source.injector.sessions == sessions


@LEVELS
def test_what_a_crash_made_a_node_forget_is_not_found_as_new(level: int) -> None:
    fabric, a, h, b = line(level=level)
    at_b, publisher = subscriber(b, "r/#"), a.client("p")
    at_a = subscriber(a, "r/#")
    direct = h.client("d", direct=True)
    fabric.settle()
    publisher.publish("r/1", b"before", retain=True)
    direct.publish("r/2", b"before", retain=True)
    rest(fabric)
    publisher.publish("r/1", b"now", retain=True)
    fabric.run(0.05)
    fabric.crash(h, silent=False)
    direct.publish("r/2", b"past the node", retain=True)
    fabric.run(0.5)
    fabric.restart(h)
    rest(fabric)
    fabric.run(20.0)
    rest(fabric)
    for each in (at_a, at_b):
        assert each.payloads("r/1") == [b"before", b"now"]
        assert each.payloads("r/2") == [b"before", b"past the node"]
