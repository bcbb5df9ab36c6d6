"""Plain messages go in runs: nothing is lost, doubled, overtaken or miscounted where they end."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import ClassVar

import pytest

from isthmus.cooperation.api import (
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
    Topology,
)
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.exchange.broker.injector import Injector
from isthmus.exchange.client.client_session import RUN_FRAMES, ClientSession
from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.links import Links, LinkSettings
from isthmus.exchange.traffic.plain import PlainMessages
from isthmus.exchange.traffic.traffic import Traffic
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Packet, PingReq, Publish, PubRel
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.publish_layout import publish
from isthmus.sim.client import SimClient, VirtualConnection
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.node import SimNode


class Inspecting(PublicationFlooding):
    name = "inspecting"
    inspects_publishes = True


class Meshed(PublicationFlooding):
    name = "meshed"
    topology: ClassVar[Topology] = "any"


PROPERTIES = Properties(user_properties=(("a", "b"),))


def sends(client: SimClient, packets: list[Packet]) -> None:
    """In one piece, so that the node reads them at once."""
    assert client.connection is not None
    assert client.connection._wire is not None
    client.connection._wire.write(b"".join(encode(packet, client.level) for packet in packets))


MOSTLY = {0: (96, 2, 2), 1: (2, 96, 2)}


def drawn(rng: random.Random, client: SimClient, number: int, mostly: int = 0) -> Publish:
    """Plain mostly, and everything else that a publisher may mix with it on the same topics."""
    qos = rng.choices((0, 1, 2), MOSTLY[mostly])[0]
    has_properties = client.level == 5 and rng.random() < 0.05
    return Publish(
        f"t/{rng.randrange(4)}",
        b"%s %d" % (client.client_id.encode(), number),
        qos,
        retain=qos == mostly and rng.random() < 0.03,
        packet_id=number % 60_000 + 1 if qos else 0,
        properties=PROPERTIES if has_properties else NO_PROPERTIES,
    )


@pytest.mark.parametrize("mostly", [0, 1])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("algorithm", ["pf", "sf", Inspecting, Meshed])
def test_whatever_comes_between_plain_messages_all_arrive_once_and_in_order(
    algorithm: str | AlgorithmFactory, lanes: int, mostly: int
) -> None:
    rng = random.Random(f"{algorithm}{lanes}{mostly}")
    fabric = SimFabric(seed=lanes, algorithm=algorithm, link=LinkSettings(lanes=lanes))
    nodes = a, b, c = [fabric.node(name) for name in "abc"]
    fabric.link(a, b)
    fabric.link(b, c)
    if algorithm is Meshed:
        fabric.link(a, c)
    subscribers = [node.client(f"at-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("t/#", qos=2)
    publishers = [
        node.client(f"p-{node.name}-{level}", level=level) for node in nodes for level in (4, 5)
    ]
    fabric.settle()
    sent: dict[tuple[str, str, int], list[bytes]] = defaultdict(list)
    numbers = count(1)
    for _ in range(3):
        for publisher in publishers:
            packets: list[Packet] = []
            for _ in range(rng.choice((1, 3, 70, 150))):
                message = drawn(rng, publisher, next(numbers), mostly)
                packets.append(message)
                sent[publisher.client_id, message.topic, message.qos].append(message.payload)
                if message.qos == 2:
                    packets.append(PubRel(message.packet_id))
                if rng.random() < 0.02:
                    packets.append(PingReq())
            sends(publisher, packets)
        fabric.run(rng.choice((0.0005, 0.01)))
    fabric.settle()
    for subscriber in subscribers:
        place = {each.payload: at for at, each in enumerate(subscriber.received)}
        assert len(place) == len(subscriber.received), "nothing twice"
        assert place.keys() == {payload for each in sent.values() for payload in each}
        for payloads in sent.values():
            assert sorted(payloads, key=place.__getitem__) == payloads
    total = sum(map(len, sent.values()))
    assert sum(node.exchange.counters["published_to_links"] for node in nodes) == total
    copies = 4 if algorithm is Meshed else 2
    came = [node.exchange.counters["received_from_links"] for node in nodes]
    assert sum(came) == copies * total
    for node in nodes:
        links = list(node.exchange.links)
        assert sum(link.received for link in links) == node.exchange.counters["received_from_links"]
        assert not any(link.dropped for link in links)
    assert sum(link.sent for node in nodes for link in node.exchange.links) == sum(came)


class Written:
    """What nodes write to links and brokers, and what clients get, while it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: dict[tuple[str, ...], bytearray] = defaultdict(bytearray)
        flush_link, flush_broker = Connection.flush, Injector._flush
        receive = VirtualConnection.data_received

        def link(connection: Connection) -> None:
            ends = connection._hello.node_id, connection.other_id(), str(connection.lane)
            self.bytes[ends] += b"".join(connection._out)
            flush_link(connection)

        def broker(injector: Injector) -> None:
            here = injector._own._node_id, injector.key
            self.bytes[here] += b"".join(injector._out)
            flush_broker(injector)

        def client(connection: VirtualConnection, data: bytes) -> None:
            self.bytes[connection._client.client_id,] += data
            receive(connection, data)

        monkeypatch.setattr(VirtualConnection, "data_received", client)
        monkeypatch.setattr(Connection, "flush", link)
        monkeypatch.setattr(Injector, "_flush", broker)


def without_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message at QoS 1 is looked at by itself, on its way out and in."""
    monkeypatch.setattr(Traffic, "may_be_batch", lambda _self, _route: False)
    monkeypatch.setattr(Traffic, "numbered_arrived", lambda _self, _link, _lane, _frames, at: at)
    monkeypatch.setattr(Links, "_acknowledged", lambda _self, _link, _lane, _frames, at: at)


@pytest.mark.parametrize("seed", range(6))
def test_fast_and_slow_path_write_the_same_bytes_and_acknowledge_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a ── b ── c, publishers and subscribers at each; connections break meanwhile."""
    # When a slice is over depends on how often the clock is looked at; here none is.
    monkeypatch.setattr(ClientSession, "_took_time", lambda _self: None)
    with monkeypatch.context() as patch:
        fast = Written(patch)
        fast_came = played(seed)
    with monkeypatch.context() as patch:
        without_fast_path(patch)
        slow = Written(patch)
        slow_came = played(seed)
    assert fast_came == slow_came
    assert fast.bytes.keys() == slow.bytes.keys()
    for where, said in fast.bytes.items():
        assert said == slow.bytes[where], where
    assert sum(map(len, fast.bytes.values())) > 10_000


def played(seed: int) -> tuple[list[list[bytes]], list[dict[str, int]]]:
    """What subscribers got, and what was counted."""
    rng = random.Random(seed)
    algorithm = rng.choice(("pf", "sf", "tree"))
    fabric = SimFabric(
        seed=seed,
        algorithm=algorithm,
        link=LinkSettings(lanes=rng.choice((1, 1, 2))),
        confirm=ConfirmSettings(by_default=seed % 3 == 2, within_s=20.0),
    )
    nodes = a, b, c = [fabric.node(name) for name in "abc"]
    fabric.link(a, b)
    fabric.link(b, c)
    subscribers = [node.client(f"at-{node.name}") for node in nodes]
    for each in subscribers:
        each.subscribe("t/#", qos=1)
    publishers = [node.client(f"p-{node.name}", level=rng.choice((4, 5))) for node in nodes]
    fabric.settle()
    numbers = count(1)
    for _ in range(12):
        for publisher in publishers:
            size = rng.choice((1, 3, 70, 150))
            packets: list[Packet] = []
            for _ in range(size):
                message = drawn(rng, publisher, next(numbers), 1)
                packets.append(message)
                if message.qos == 2:
                    packets.append(PubRel(message.packet_id))
            sends(publisher, packets)
        fabric.run(rng.choice((0.0005, 0.01, 0.3)))
        if rng.random() < 0.3:
            one, other = rng.choice(((a, b), (b, c)))
            fabric.break_connections(one, other)
    fabric.settle()
    return (
        [each.payloads() for each in subscribers],
        [dict(node.exchange.counters) for node in nodes],
    )


@pytest.mark.parametrize("lanes", [1, 2])
def test_of_a_run_a_full_link_takes_what_there_is_room_for(lanes: int) -> None:
    """One that waits for its neighbor takes some, and drops and counts the others."""
    settings = LinkSettings(queue_bytes=65_536, lanes=lanes)
    fabric = SimFabric(seed=1, algorithm="pf", link=settings)
    a, b = (fabric.node(name) for name in "ab")
    fabric.link(a, b)
    at_b = b.client("s")
    at_b.subscribe("t/#")
    publisher = a.client("p")
    fabric.settle()
    link = a.exchange.links.links["b"]
    sends(publisher, [Publish(f"t/{number % 5}", b"%05d" % number * 200) for number in range(300)])
    fabric.settle()
    assert link.sent + link.dropped == 300
    assert 60 * lanes <= link.sent <= 66 * lanes
    assert a.exchange.counters["published_to_links"] == 300
    came = [int(payload[:5]) for payload in at_b.payloads()]
    assert len(came) == link.sent
    assert len(set(came)) == len(came)


def test_a_run_goes_one_way_and_is_not_put_off_for_long() -> None:
    """Two neighbors want a topic each, one both; what alternates goes where it is wanted alone."""
    fabric = SimFabric(seed=1, algorithm="sf")
    a = fabric.node("a")
    others = {name: fabric.node(name) for name in "bcd"}
    clients = {}
    for name, wanted in (("b", "t/1"), ("c", "t/2"), ("d", "t/#")):
        fabric.link(a, others[name])
        clients[name] = others[name].client(f"at-{name}")
        clients[name].subscribe(wanted)
    publisher = a.client("p")
    fabric.settle()
    run, lengths = a.exchange.client_run, list[int]()
    publish = run._publish

    def noted(topics: Sequence[bytes], payloads: Sequence[bytes], route: Route) -> None:
        lengths.append(len(topics))
        publish(topics, payloads, route)

    run._publish = noted
    payloads = [b"%d" % number for number in range(200)]
    sends(publisher, [Publish(f"t/{1 + int(each) % 2}", each) for each in payloads])
    fabric.settle()
    assert clients["b"].payloads() == payloads[::2]
    assert clients["c"].payloads() == payloads[1::2]
    assert clients["d"].payloads() == payloads
    assert [link.sent for link in a.exchange.links] == [100, 100, 200]
    assert set(lengths) == {1}
    lengths.clear()
    sends(publisher, [Publish("t/1", each) for each in payloads])
    fabric.settle()
    assert lengths == [RUN_FRAMES] * 3 + [200 - 3 * RUN_FRAMES]


def neighbors() -> tuple[SimFabric, SimNode, Connection, SimClient, Callable[[int], bytes]]:
    """a ── b: what is known at b, its connection with a, a subscriber, and a's plain messages."""
    fabric = SimFabric(seed=1, algorithm="pf")
    a, b = (fabric.node(name) for name in "ab")
    fabric.link(a, b)
    subscriber, publisher = b.client("s"), a.client("p")
    subscriber.subscribe("t")
    fabric.settle()
    publisher.publish("t", b"known")
    fabric.settle()
    subscriber.received.clear()
    (connection,) = b.exchange.links.links["a"].connections
    assert connection is not None
    return (
        fabric,
        b,
        connection,
        subscriber,
        lambda number: a.exchange.traffic.plain.to_link([b"t"], [b"%d" % number])[0],
    )


def test_a_run_waits_behind_what_takes_long() -> None:
    fabric, b, connection, subscriber, frame = neighbors()
    links = b.exchange.links
    links.received(connection, frame(0))
    links._rest(connection, 1.0)
    links.received(connection, frame(1) + frame(2))
    fabric.run(0.5)
    assert subscriber.payloads() == [b"0"]
    fabric.settle()
    assert subscriber.payloads() == [b"0", b"1", b"2"]


def test_a_node_that_stops_takes_no_run() -> None:
    fabric, b, connection, subscriber, frame = neighbors()
    before = b.exchange.counters["received_from_links"]
    b.exchange.traffic.in_hand.stopping = True
    b.exchange.links.received(connection, frame(0) + frame(1))
    fabric.run(0.5)
    assert subscriber.payloads() == []
    assert b.exchange.counters["received_from_links"] == before


def test_what_is_malformed_within_a_run_ends_it_and_the_link_there() -> None:
    fabric, b, connection, subscriber, frame = neighbors()
    without_marker = frame(9).replace(b"$i", b"$j")
    before = b.exchange.counters["received_from_links"]
    b.exchange.links.received(connection, frame(0) + frame(1) + without_marker + frame(2))
    fabric.run(0.1)
    assert subscriber.payloads() == [b"0", b"1"]
    assert b.exchange.counters["received_from_links"] == before + 2
    assert b.exchange.links.refusals["protocol-error"] == 1


def test_of_two_runs_with_the_same_messages_each_is_taken_once() -> None:
    """Both neighbors were once the first with a message on the topic, so both runs are known."""
    fabric = SimFabric(seed=1, algorithm=Meshed)
    a, b, c = (fabric.node(name) for name in "abc")
    fabric.link(a, b)
    fabric.link(b, c)
    subscriber = b.client("s")
    subscriber.subscribe("t")
    fabric.settle()
    plain = PlainMessages("x", "1f")

    def brings(node: SimNode, numbers: range) -> None:
        rests = [b"%012x%d" % (number, number) for number in numbers]
        frames = plain.to_link([b"t"] * len(rests), rests)
        node.exchange.links.links["b"].send_plain([b"t"] * len(rests), frames)
        fabric.settle()

    brings(a, range(1, 2))
    brings(c, range(2, 3))
    brings(a, range(3, 40))
    brings(c, range(1, 60))
    brings(a, range(30, 60))
    assert subscriber.payloads() == [b"%d" % number for number in range(1, 60)]
    assert b.exchange.counters["received_from_links"] == 1 + 1 + 37 + 59 + 30
    assert b.exchange.counters["repeated"] == 1 + 1 + 37 + 30


SHORT = [b"2\0", b"2\x01\0", b"2\x02\0\x01", b"0\0", b"0\x01\0", b"0\x02\0\x01"]


@pytest.mark.parametrize("raw", SHORT, ids=[each.hex() for each in SHORT])
def test_a_publish_that_is_too_short_ends_its_link_and_nothing_else(raw: bytes) -> None:
    """Also once something is remembered of messages that begin so; what came before it counts."""
    fabric = SimFabric(seed=1, algorithm="pf")
    a, b = (fabric.node(name) for name in "ab")
    fabric.link(a, b)
    subscriber, publisher = b.client("s"), a.client("p")
    subscriber.subscribe("t", qos=1)
    fabric.settle()
    for qos in (0, 1):
        publisher.publish("t", b"known", qos=qos)
    fabric.settle()
    connection = b.exchange.links.links["a"].connections[0]
    assert connection is not None
    b.exchange.links.received(connection, raw)
    assert b.exchange.links.refusals["protocol-error"] == 1
    fabric.settle()
    publisher.publish("t", b"after", qos=1)
    fabric.settle()
    assert subscriber.payloads() == [b"known", b"known", b"after"]


def test_what_follows_a_number_is_not_taken_for_a_part_of_it() -> None:
    """A topic alias after `$i`: messages that begin alike have their numbers elsewhere."""
    fabric = SimFabric(seed=1, algorithm="pf")
    a, b = (fabric.node(name) for name in "ab")
    fabric.link(a, b)
    subscriber, publisher = b.client("s"), a.client("p")
    subscriber.subscribe("t", qos=1)
    fabric.settle()
    publisher.publish("t", b"real", qos=1)
    fabric.settle()
    link = b.exchange.links.links["a"]
    connection, incoming = link.connections[0], link.incoming[0]
    assert connection is not None
    assert incoming is not None
    assert incoming._accepted is not None
    life, next_id = a.exchange.incarnation.encode(), incoming._accepted + 2

    def frame(packet_id: int, count: int, follows: bytes) -> bytes:
        value = b"11:a#%b.%012x" % (life, count)
        block = b"\x26\x00\x02$i" + len(value).to_bytes(2) + value + follows
        return publish(0x32, b"t", packet_id, block, b"made up")

    b.exchange.links.received(connection, frame(next_id, 0x500, b"\x23\x00\x07"))
    b.exchange.links.received(connection, frame(next_id + 1, 0x501, b"abc"))
    assert b.exchange.links.refusals["protocol-error"] == 1
    assert b.exchange.counters["received_from_links"] == 2


def test_an_algorithm_is_asked_once_about_what_a_held_client_publishes() -> None:
    asked: Counter[bytes] = Counter()

    class Asked(PublicationFlooding):
        name = "asked"
        inspects_publishes = True

        def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
            if session.kind is SessionKind.LOCAL_CLIENT and message.type is PacketType.PUBLISH:
                asked[message.data] += 1
            return super().mqtt_message_arrived(session, message)

    fabric = SimFabric(seed=3, algorithm=Asked, link=LinkSettings(queue_bytes=65_536))
    a, b = (fabric.node(name) for name in "ab")
    fabric.link(a, b, delay_s=0.02)
    b.client("s").subscribe("t", qos=1)
    publisher = a.client("p")
    fabric.settle()
    for first in range(1, 1_000, 100):
        messages = range(first, first + 100)
        sends(publisher, [Publish("t", b"%d" % n + bytes(600), 1, packet_id=n) for n in messages])
        fabric.run(0.01)
    fabric.settle()
    assert a.exchange.counters["publishers_held"]
    assert len(asked) == 1_000
    assert set(asked.values()) == {1}
