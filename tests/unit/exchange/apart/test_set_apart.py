"""Destinations that are set apart, on the virtual clock: who hangs or is away stops nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Fate, Message
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode

SETTINGS = LinkSettings(
    hold_s=20.0, queue_bytes=65_536, apart_bytes=64 << 20, apart_s=600.0, dead_after_s=2.0
)
FOR_EVER = 0xFFFF_FFFF
QOS = {"hub": 1, "good": 2}


class Star:
    """Publisher at `hub`, a subscriber each at `hub`, `good` and `bad`.

    good ── hub ── bad
    """

    def __init__(self, algorithm: str = "sf", settings: LinkSettings = SETTINGS) -> None:
        self.fabric = SimFabric(seed=3, algorithm=algorithm, link=settings)
        self.hub, self.good, self.bad = map(self.fabric.node, ("hub", "good", "bad"))
        for node in (self.good, self.bad):
            self.fabric.link(node, self.hub)
        self.subscribers = {
            node.name: self._subscriber(node) for node in self.fabric.nodes.values()
        }
        self.publishers = [node.client(f"p-{node.name}") for node in (self.hub, self.good)]
        self.fabric.settle()
        self.sent: dict[str, list[bytes]] = {"hub": [], "good": []}

    def _subscriber(self, node: SimNode) -> SimClient:
        client = node.client(f"s-{node.name}", clean_start=False, session_expiry_s=FOR_EVER)
        client.subscribe("t/#")
        return client

    def publish(self, count: int, every_s: float = 0.01, payload: bytes = b"x" * 100) -> None:
        """So many of each publisher, on a topic of its own."""
        for _ in range(count):
            for publisher, (name, sent) in zip(self.publishers, self.sent.items(), strict=True):
                sent.append(b"%b %d %b" % (name.encode(), len(sent), payload))
                publisher.publish(f"t/{name}", sent[-1], qos=QOS[name])
            self.fabric.run(every_s)

    def got(self, node: str) -> dict[str, list[bytes]]:
        payloads = self.subscribers[node].payloads()
        return {name: [p for p in payloads if p.startswith(name.encode())] for name in self.sent}

    def disk(self, node: SimNode) -> int:
        return sum(map(len, node.disk.spools.values()))


def test_a_broker_that_hangs_stops_nobody_and_gets_all_once_in_order() -> None:
    star = Star()
    star.bad.broker.hang(120.0)
    star.publish(1_500)
    assert star.got("good") == star.got("hub") == star.sent
    assert star.disk(star.bad) > 150_000
    assert star.hub.exchange.links.links["bad"].unacked() < 20
    assert not star.fabric.nodes["bad"].exchange.counters["given_up"]
    star.fabric.run(100.0)
    star.fabric.settle()
    assert star.got("bad") == star.sent
    assert star.disk(star.bad) == 0


def test_a_neighbor_that_is_away_for_longer_than_the_hold_time_gets_all() -> None:
    star = Star()
    star.fabric.crash(star.bad)
    star.publish(800, every_s=0.1)
    assert star.got("good") == star.got("hub") == star.sent
    assert star.disk(star.hub) > 150_000
    assert star.hub.exchange.links.links["bad"].unacked_bytes() < SETTINGS.queue_bytes
    star.fabric.restart(star.bad)
    star.fabric.settle()
    assert star.got("bad") == star.sent
    assert star.disk(star.hub) == 0


def test_a_crash_of_who_keeps_it_loses_nothing() -> None:
    star = Star()
    star.fabric.crash(star.bad)
    star.publish(600)
    star.fabric.run(1.0)
    star.fabric.crash(star.hub)
    star.fabric.restart(star.hub)
    star.fabric.settle()
    star.fabric.restart(star.bad)
    star.fabric.settle()
    for sent, got in zip(star.sent.values(), star.got("bad").values(), strict=True):
        assert list(dict.fromkeys(got)) == sent
    assert star.disk(star.hub) == 0


def test_a_crash_of_the_node_before_a_broker_that_hangs_loses_nothing() -> None:
    star = Star()
    star.bad.broker.hang(60.0)
    star.publish(600)
    star.fabric.run(1.0)
    star.fabric.crash(star.bad)
    star.fabric.restart(star.bad)
    star.publish(500)
    star.fabric.run(60.0)
    star.fabric.settle()
    for sent, got in zip(star.sent.values(), star.got("bad").values(), strict=True):
        assert list(dict.fromkeys(got)) == sent
    assert star.disk(star.bad) == 0


@pytest.mark.parametrize(("confirm", "count"), [("local", 12), ("fabric", 12), ("fabric", 40)])
def test_what_waits_for_somebody_beyond_keeps_nothing_on_disk_back(
    confirm: str, count: int
) -> None:
    """h was cut off from b, which leaves unacknowledged what the broker of c does not take.

    h ── b ── c
    """
    fabric = SimFabric(
        seed=3,
        algorithm="sf",
        link=SETTINGS,
        confirm=ConfirmSettings.of("local", {"t/c": confirm}, 600.0, 60.0),
    )
    h, b, c = map(fabric.node, "hbc")
    fabric.link(h, b)
    fabric.link(b, c)
    at_b = b.client("at-b")
    at_b.subscribe("t/b")
    at_c = c.client("at-c", clean_start=False, session_expiry_s=FOR_EVER)
    at_c.subscribe("t/c")
    for_c, for_b = h.client("for-c"), h.client("for-b")
    fabric.settle()
    c.broker.hang(120.0)
    fabric.partition([h], [b, c])
    fabric.run(5.0)
    for number in range(count):
        for_c.publish("t/c", b"%d %b" % (number, b"x" * 500), qos=1)
    fabric.run(0.5)
    for number in range(400):
        for_b.publish("t/b", b"%d %b" % (number, b"x" * 100), qos=1)
    fabric.run(1.0)
    fabric.heal()
    fabric.run(10.0)
    assert len(at_b.payloads()) == 400
    assert at_c.payloads() == []
    fabric.run(120.0)
    fabric.settle()
    assert len(at_c.payloads()) == count
    assert len(for_c.acknowledged) + len(for_c.refused) == count
    assert not h.disk.spools


def test_a_broker_is_set_apart_whatever_the_algorithm() -> None:
    star = Star("tree")
    star.bad.broker.hang(60.0)
    star.publish(1_000)
    assert star.got("good") == star.got("hub") == star.sent
    star.fabric.run(60.0)
    star.fabric.settle()
    assert star.got("bad") == star.sent


@pytest.mark.parametrize("hangs", [True, False])
def test_a_full_disk_holds_who_sends_and_loses_nothing(hangs: bool) -> None:
    star = Star()
    keeper = star.bad if hangs else star.hub
    if hangs:
        star.bad.broker.hang(60.0)
    else:
        star.fabric.crash(star.bad)
    star.publish(500)
    keeper.disk.full = True
    star.publish(1_000)
    assert keeper.exchange.problem == (
        f"no room on disk for what waits, "
        f"{'broker-hub' if hangs else 'link-bad'}: No space left on device"
    )
    for link in keeper.exchange.links:
        assert link.unacked_bytes() < 4 * SETTINGS.queue_bytes
    keeper.disk.full = False
    star.fabric.run(60.0)
    assert not keeper.exchange.problem
    if not hangs:
        star.fabric.restart(star.bad)
    star.fabric.settle()
    assert star.got("bad") == star.got("good") == star.got("hub") == star.sent
    assert not keeper.given_up


def test_a_broker_that_is_gone_for_good_does_not_part_the_fabric_when_its_disk_is_full() -> None:
    settings = replace(SETTINGS, apart_bytes=100_000, apart_s=30.0)
    star = Star(settings=settings)
    star.bad.broker.hang(300.0)
    star.publish(2_000, every_s=0.1)
    assert star.got("good") == star.got("hub") == star.sent
    on_disk = star.disk(star.bad) // 300
    assert sum(each.unwritten_bytes for each in star.bad.exchange.spools) < 2 * 65_536
    star.fabric.run(300.0)
    star.fabric.settle()
    lost = star.bad.exchange.counters["given_up"]
    got = star.got("bad")
    assert sum(map(len, got.values())) == 4_000 - lost
    assert lost > 1_000
    for name, sent in star.sent.items():
        assert got[name][: on_disk // 3] == sent[: on_disk // 3], "what is on disk stays"
        assert got[name] == [each for each in sent if each in set(got[name])]
    assert star.disk(star.bad) == 0


def test_a_full_disk_does_not_keep_back_who_comes_back() -> None:
    star = Star()
    star.fabric.crash(star.bad)
    star.publish(300)
    star.hub.disk.full = True
    star.publish(100)
    star.fabric.restart(star.bad)
    star.fabric.settle()
    assert star.got("bad") == star.sent


def test_what_waited_on_disk_goes_another_way() -> None:
    """The neighbor is reached over one that has not had it.

    hub ── bad, first directly, then over late
    """
    star = Star()
    late = star.fabric.node("late")
    star.fabric.link(late, star.hub)
    star.fabric.settle()
    star.fabric.partition([star.hub], [star.bad])
    star.publish(500)
    assert star.disk(star.hub) > 50_000
    star.fabric.link(star.bad, late)
    star.fabric.run(3 * SETTINGS.hold_s)
    star.fabric.settle()
    assert "bad" not in star.hub.exchange.links.links
    assert star.disk(star.hub) == 0
    assert star.got("bad") == star.got("good") == star.got("hub") == star.sent
    assert star.hub.exchange.counters["rerouted"] > 500


def test_what_is_retained_is_the_newest_after_a_hang() -> None:
    star = Star()
    star.bad.broker.hang(30.0)
    for number in range(300):
        star.publishers[0].publish("t/retained", b"%d" % number, qos=1, retain=True)
        star.fabric.run(0.01)
    assert star.disk(star.bad) > 20_000
    assert len(star.bad.exchange.retention.broker) == 1
    star.fabric.run(30.0)
    star.fabric.settle()
    got = [each for each in star.subscribers["bad"].payloads() if each.isdigit()]
    assert got == [b"%d" % number for number in range(300)]
    assert star.bad.broker.retained["t/retained"].payload == b"299"
    assert len(star.bad.exchange.retention.broker) == 0


def test_nobody_is_set_apart_without_need() -> None:
    star = Star()
    star.publish(500, every_s=0.002)
    assert not any(node.disk.spools for node in star.fabric.nodes.values())
    star.fabric.settle()
    assert star.got("bad") == star.sent


def test_what_is_to_be_confirmed_is_not_when_it_is_on_disk() -> None:
    star = Star()
    fates: list[int] = []
    star.bad.broker.hang(20.0)
    star.publish(300)
    assert star.disk(star.bad) > 20_000
    message = Message(b"t/confirmed", b"confirmed", qos=1, origin="hub", arrived_s=0.0)
    star.hub.exchange.client_publish(message, lambda: lambda: None, fates.append)
    star.fabric.run(5.0)
    assert fates == []
    star.fabric.run(20.0)
    star.fabric.settle()
    assert fates == [Fate.SAFE]
    assert b"confirmed" in star.bad.broker.published
