"""Set apart, where a node has several brokers, takes from its broker, or has rules for a link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.cooperation.link_rules import LinkRules
from isthmus.exchange.apart.kept_message import read_kept, write_kept
from isthmus.exchange.broker.echoes import ECHO_S
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Message
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode

SETTINGS = LinkSettings(
    hold_s=20.0, queue_bytes=65_536, apart_bytes=64 << 20, apart_s=600.0, dead_after_s=2.0
)
FOR_EVER = 0xFFFF_FFFF
HANGS_S = 60.0


class Pair:
    """A publisher at `a`, a subscriber each at `a` and `b`."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        from_broker: bool = False,
        level: int = 5,
        link: LinkSettings = SETTINGS,
    ) -> None:
        self.fabric = SimFabric(seed=5, link=link, brokers=brokers, from_broker=from_broker)
        self.a, self.b = (self.fabric.node(name, broker_level=level) for name in "ab")
        self.fabric.link(self.a, self.b)
        self.at_a, self.at_b = map(self._subscriber, (self.a, self.b))
        self.publisher = self.a.client("p")
        self.fabric.settle()
        self.sent: dict[str, list[bytes]] = {}

    def _subscriber(self, node: SimNode) -> SimClient:
        client = node.client(f"s-{node.name}", clean_start=False, session_expiry_s=FOR_EVER)
        client.subscribe("t/#", "u/#")
        return client

    def publish(self, count: int, *topics: str) -> None:
        for _ in range(count):
            for topic in topics:
                sent = self.sent.setdefault(topic, [])
                sent.append(b"%b %d %b" % (topic.encode(), len(sent), b"x" * 100))
                self.publisher.publish(topic, sent[-1], qos=1 + len(sent) % 2)
            self.fabric.run(0.01)

    def got(self, client: SimClient) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for each in client.received:
            found.setdefault(each.topic, []).append(each.payload)
        return found

    def rest(self) -> None:
        self.fabric.run(HANGS_S)
        self.fabric.settle()


def files(node: SimNode) -> set[str]:
    return {name.rpartition(".")[0] for name, content in node.disk.spools.items() if content}


def once_in_order(payloads: list[bytes]) -> list[bytes]:
    """What a crash repeats comes twice; of the first time that each came."""
    return list(dict.fromkeys(payloads))


@pytest.mark.parametrize("name", ["one", "two"])
def test_one_of_several_brokers_is_set_apart_alone(name: str) -> None:
    pair = Pair(brokers=2)
    hangs, goes_on = ("t/b", "t/a/x") if name == "one" else ("t/a/x", "t/b")
    pair.b.brokers[name].hang(HANGS_S)
    pair.publish(800, "t/b", "t/a/x")
    assert files(pair.b) == {f"broker-a@{name}"}
    assert pair.got(pair.at_b)[goes_on] == pair.sent[goes_on]
    assert hangs not in pair.got(pair.at_b)
    pair.rest()
    assert pair.got(pair.at_b) == pair.sent
    assert not pair.b.disk.spools


def test_a_life_finds_what_the_one_before_it_has_left_for_each_of_several_brokers() -> None:
    pair = Pair(brokers=2)
    for broker in pair.b.brokers.values():
        broker.hang(HANGS_S)
    pair.publish(600, "t/b", "t/a/x")
    pair.fabric.run(1.0)
    assert files(pair.b) == {"broker-a@one", "broker-a@two"}
    pair.fabric.crash(pair.b)
    pair.fabric.restart(pair.b)
    pair.rest()
    got = pair.got(pair.at_b)
    assert {topic: once_in_order(payloads) for topic, payloads in got.items()} == pair.sent
    assert not pair.b.disk.spools


@pytest.mark.parametrize("level", [5, 4])
def test_with_a_source_a_broker_that_hangs_gets_all_of_it_after_a_crash(level: int) -> None:
    """What the earlier life has left is the source's own: no second session of that name."""
    pair = Pair(from_broker=True, level=level)
    pair.b.broker.hang(HANGS_S)
    pair.publish(600, "t/b")
    pair.fabric.run(1.0)
    assert files(pair.b) == {"broker-source"}
    pair.fabric.crash(pair.b)
    pair.fabric.restart(pair.b)
    pair.rest()
    assert once_in_order(pair.got(pair.at_b)["t/b"]) == pair.sent["t/b"]
    own = pair.b.host.own  # type: ignore[union-attr]
    assert [each.sessions for each in own.injectors.values()] == [1]  # type: ignore[union-attr]
    assert not pair.b.disk.spools


def test_echoes_are_known_after_a_broker_of_3_1_1_has_hung_for_long() -> None:
    """It has what was written before, and sends it back when it goes on."""
    pair = Pair(from_broker=True, level=4)
    pair.publish(20, "t/b")
    pair.b.broker.hang(3 * ECHO_S)
    pair.publish(20, "t/b")
    pair.fabric.run(3 * ECHO_S)
    pair.rest()
    assert pair.got(pair.at_a) == pair.got(pair.at_b) == pair.sent


@pytest.mark.parametrize("level", [5, 4])
def test_what_was_left_by_other_sessions_is_published_by_the_source(level: int) -> None:
    """By another session it would come back, and go to `a` once more."""
    pair = Pair(level=level)
    pair.b.broker.hang(HANGS_S)
    pair.publish(600, "t/b")
    pair.fabric.run(1.0)
    assert files(pair.b) == {"broker-a"}
    pair.fabric.stop(pair.b)
    pair.b.from_broker = True
    pair.fabric.restart(pair.b)
    pair.rest()
    assert once_in_order(pair.got(pair.at_b)["t/b"]) == pair.sent["t/b"]
    assert pair.got(pair.at_a) == pair.sent
    assert not pair.b.disk.spools


def test_what_waits_on_disk_keeps_to_rules_that_the_neighbor_comes_back_with() -> None:
    pair = Pair()
    pair.fabric.crash(pair.b)
    pair.publish(400, "t/b", "u/a")
    pair.fabric.run(1.0)
    assert files(pair.a) == {"link-b"}
    (address,) = pair.a.peers
    options = pair.a.peers[address]
    pair.fabric.crash(pair.a)
    pair.a.peers[address] = replace(options, rules=LinkRules(out=("u/#",)))
    pair.fabric.restart(pair.a)
    pair.fabric.restart(pair.b)
    pair.rest()
    got = pair.got(pair.at_b)
    assert {topic: once_in_order(payloads) for topic, payloads in got.items()} == {
        "u/a": pair.sent["u/a"]
    }
    assert not pair.a.disk.spools
    assert not pair.a.exchange.links.links["b"].unacked()


@pytest.mark.parametrize("module", ["broker", "link"])
def test_what_is_on_disk_and_no_message_is_left_out(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()

    def write(message: Message, label: bytes, now_s: float, wall_ms: int) -> bytes:
        if b" 300 " in message.payload:
            return b"whole, and no message"
        return write_kept(message, label, now_s, wall_ms)

    monkeypatch.setattr(f"isthmus.exchange.{module}.set_apart.write_kept", write)
    if module == "broker":
        pair.b.broker.hang(HANGS_S)
    else:
        pair.fabric.crash(pair.b)
    pair.publish(600, "t/b")
    if module == "link":
        pair.fabric.restart(pair.b)
    pair.rest()
    missing = [each for each in pair.sent["t/b"] if each not in pair.got(pair.at_b)["t/b"]]
    assert missing == [pair.sent["t/b"][300]]
    assert not any(node.disk.spools for node in (pair.a, pair.b))


@pytest.mark.parametrize("body", [b"", b"x", b"\xff" * 10, b"\0" * 8 + b"\0\1\xff", bytes(30)])
def test_no_body_is_more_than_unreadable(body: bytes) -> None:
    assert read_kept(body, 0.0, 0) is None
