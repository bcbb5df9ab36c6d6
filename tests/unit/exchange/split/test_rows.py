"""Packets in a row come out as they do one by one: what goes on unchanged goes in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from isthmus.exchange.split.identifiers import Identifiers
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from support.split_rig import RigBroker, RigClient, SplitRig, packets_in

WORDS = ("one/", "two/", "two/long" + 200 * "-", "x/")


class Pair:
    """A client with two brokers; everything it and they say in a row, or packet by packet."""

    def __init__(self, level: int, *, rows: bool, bounds: int) -> None:
        self.rows = rows
        self.level = level
        self.rig = SplitRig()
        most = Properties(receive_maximum=bounds) if bounds and level == 5 else NO_PROPERTIES
        self.client: RigClient = self.rig.client(level=level, properties=most)
        self.one: RigBroker = self.rig.connects("one")
        self.one.accepts(properties=most)
        self.client.heard()
        self.client.say(Subscribe(1, (Subscription("#", 2),)))
        self.two: RigBroker = self.rig.connects("two")
        self.two.accepts(properties=most)
        for broker in (self.one, self.two):
            broker.say(SubAck(1, (2,)))  # type: ignore[arg-type]
        self.heard()

    def say(self, who: str, packets: list[Packet]) -> None:
        wire = getattr(self, who).wire
        frames = [encode(each, self.level) for each in packets]
        for data in [b"".join(frames)] if self.rows else frames:
            wire.feed(data)
            self.rig.host.run()

    def heard(self) -> dict[str, bytes]:
        self.rig.host.run()
        return {who: getattr(self, who).wire.taken() for who in ("client", "one", "two")}


def drawn(rng: Random, owed: list[Packet], ids: list[int], level: int) -> list[Packet]:
    """Messages of every QoS, and some of the answers that are owed, in their order."""
    packets: list[Packet] = []
    for _ in range(rng.randrange(1, 12)):
        if owed and rng.random() < 0.5:
            packets.append(owed.pop(0))
            continue
        qos = rng.choices((0, 1, 2), (4, 4, 1))[0]
        packet_id = ids.pop(0) if qos and ids else 0
        topic = rng.choice(WORDS) + rng.choice("ab")
        some = Properties(message_expiry_interval=9) if level == 5 and rng.random() < 0.2 else None
        packets.append(
            Publish(
                topic,
                bytes(rng.randrange(3)),
                qos if packet_id else 0,
                retain=rng.random() < 0.2,
                packet_id=packet_id,
                properties=some or NO_PROPERTIES,
            )
        )
    return packets


def answers(heard: list[Packet]) -> list[Packet]:
    """What whoever has heard that says to it."""
    found: list[Packet] = []
    for each in heard:
        if isinstance(each, Publish) and each.qos:
            found.append((PubAck, PubRec)[each.qos - 1](each.packet_id))
        elif isinstance(each, PubRec):
            found.append(PubRel(each.packet_id))
        elif isinstance(each, PubRel):
            found.append(PubComp(each.packet_id))
    return found


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("seed", range(40))
def test_a_row_is_what_its_packets_are_one_by_one(seed: int, level: int) -> None:
    rng = Random(seed)
    bounds = rng.choice((0, 0, 4))
    row, single = (Pair(level, rows=each, bounds=bounds) for each in (True, False))
    owed: dict[str, list[Packet]] = {"client": [], "one": [], "two": []}
    # Both brokers count from 1, so many of their identifiers are the same.
    ids = {who: list(range(1, 400)) for who in owed}
    for _ in range(30):
        who = rng.choice(tuple(owed))
        if bounds:  # a broker keeps to its share
            ids[who] = ids[who][:1] if who != "client" else ids[who]
        packets = drawn(rng, owed[who], ids[who], level)
        for pair in (row, single):
            pair.say(who, packets)
        heard = row.heard()
        assert heard == single.heard()
        for each, data in heard.items():
            owed[each] += answers(packets_in(data, level))
    assert not row.client.closed
    assert row.rig.relay.counters.refusals == single.rig.relay.counters.refusals


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("seed", range(20))
def test_a_long_row_is_what_its_packets_are_one_by_one(seed: int, level: int) -> None:
    """Of messages that are equally long, so that a row is looked at as a whole, and one is odd."""
    rng = Random(seed)
    pair_of = [Pair(level, rows=each, bounds=0) for each in (True, False)]
    row, single = pair_of
    owed: dict[str, list[Packet]] = {"client": [], "one": [], "two": []}
    next_id = dict.fromkeys(owed, 1)
    for _ in range(12):
        who = rng.choice(tuple(owed))
        count = rng.randrange(8, 60)
        odd = rng.randrange(-count, count)
        packets: list[Packet] = []
        for at in range(count):
            topic = ("two/a", "one/a")[(at == odd) ^ (who != "two")]
            qos = 2 if at == odd and rng.random() < 0.3 else 1
            packets.append(Publish(topic, b"mm", qos, packet_id=next_id[who]))
            if at != odd or rng.random() < 0.8:  # or the next has the same identifier
                next_id[who] += 1
        if owed[who] and rng.random() < 0.6:
            packets, owed[who] = owed[who], []
            if rng.random() < 0.3:
                packets.insert(rng.randrange(len(packets)), packets[0])  # answered twice
        for pair in pair_of:
            pair.say(who, packets)
        heard = row.heard()
        assert heard == single.heard()
        for each, data in heard.items():
            owed[each] += answers(packets_in(data, level))
    assert row.rig.relay.counters.refusals == single.rig.relay.counters.refusals


@pytest.mark.parametrize("seed", range(30))
def test_identifiers_of_a_row_are_as_if_taken_and_answered_one_by_one(seed: int) -> None:
    rng = Random(seed)
    rows, singles = Identifiers(), Identifiers()
    for _ in range(30):
        broker = rng.choice(("one", "two"))
        some = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 9))]
        if rng.random() < 0.5:
            some = list(dict.fromkeys(some))
        if rng.random() < 0.2:
            assert rows.give(broker, some[0], 1) == singles.give(broker, some[0], 1)
        elif rng.random() < 0.5:
            taken = 0
            while taken < len(some) and singles.take(broker, some[taken], 1):
                taken += 1
            assert rows.take_row(broker, some, 1) == taken
        elif unchanged := [each for each in rows.deliveries.values() if not each.theirs]:
            like = rng.choice(unchanged)
            theirs = [each for each, of in rows.deliveries.items() if of is like]
            some = rng.choice((some, theirs, [*theirs, theirs[0]]))
            right = len(set(some)) == len(some) and set(some) <= set(theirs)
            assert rows.row_answered(some, like) == right
            assert not right or all(singles.answered(each, like) for each in some)
        assert (rows.deliveries, rows.open) == (singles.deliveries, singles.open)
        assert rows.open == set(rows.deliveries)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("count", [2, 40])
def test_what_the_client_has_had_does_not_come_in_a_row_with_the_next(qos: int, count: int) -> None:
    """Retained messages of a topic that has moved, behind live ones."""
    pair = Pair(4, rows=True, bounds=0)
    (split,) = pair.rig.brokers.splits
    part = split.part_at("two")
    assert part is not None
    part.is_quiet_on("two/#")
    said = [
        Publish("two/a", b"m", qos, retain=number % 2 == 1, packet_id=number + 1 if qos else 0)
        for number in range(count)
    ]
    pair.say("two", [*said])
    heard = packets_in(pair.heard()["client"], 4)
    assert heard == [each for each in said if not each.retain]


def said(
    sender: RigBroker | RigClient, rig: SplitRig, packets: Sequence[Packet], *, rows: bool
) -> None:
    frames = [encode(packet, 5) for packet in packets]
    for data in [b"".join(frames)] if rows else frames:
        sender.wire.feed(data)
        rig.host.run()


@pytest.mark.parametrize("rows", [True, False])
def test_a_row_keeps_to_what_the_broker_takes_when_other_packets_are_under_way(rows: bool) -> None:
    """SUBSCRIBEs that are not answered count with the messages, and may be more than these."""
    most = Properties(receive_maximum=3)
    rig = SplitRig()
    client, one = rig.client(level=5, properties=most), rig.connects("one")
    one.accepts(properties=most)
    client.heard()
    messages = [Publish("one/a", b"%d" % number, 1, packet_id=number) for number in range(1, 30)]
    said(client, rig, messages[:3], rows=rows)
    for number in (100, 101):
        said(client, rig, [Subscribe(number, (Subscription(f"one/{number}", 1),))], rows=rows)
    said(client, rig, messages[3:], rows=rows)
    got = packets_in(one.wire.taken(), 5)
    assert sum(isinstance(packet, Publish) for packet in got) == 3


@pytest.mark.parametrize("rows", [True, False])
def test_a_row_keeps_to_what_the_client_takes_when_more_is_open(rows: bool) -> None:
    """PUBRELs of an earlier life are passed on whatever its maximum."""
    rig = SplitRig()
    client = rig.client(level=5, properties=Properties(receive_maximum=3))
    one = rig.connects("one")
    one.accepts()
    client.heard()
    said(one, rig, [PubRel(200 + number) for number in range(6)], rows=rows)
    client.wire.taken()
    messages = [Publish("one/a", b"%d" % number, 1, packet_id=number + 1) for number in range(20)]
    said(one, rig, messages, rows=rows)
    got = packets_in(client.wire.taken(), 5)
    assert not any(isinstance(packet, Publish) for packet in got)
