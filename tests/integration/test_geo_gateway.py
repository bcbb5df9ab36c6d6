"""Gateways of `geo` in front of four brokers of four makes, seen by paho-mqtt and gmqtt.

    clients ── west ┬── mosquitto  0, 3/0 ──┬ east ── clients
                    ├── ejabberd   1, 3/1 ──┤
                    ├── hivemq     2, 3/2 ──┤
                    └── activemq   3/3 ─────┘

In MQTT 5 three of them, since ActiveMQ does not speak it; `hivemq` then has 3/3, too.
What the brokers do otherwise themselves is in docs/reference/brokers.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from isthmus.brokers import create
from isthmus.mqtt.packets import Subscription, Will
from support.gateways import (
    ARRIVE_S,
    CELLS,
    Crowd,
    Key,
    Site,
    before,
    gateway,
    matching,
    started,
    until_away,
)
from support.waiting import wait_for

FOUR = ("mosquitto", "ejabberd", "hivemq", "activemq")
OTHERS = ("rabbitmq", "moquette", "aedes", "embedded")
WILD = ("#", "+/#", "+/+/#", "+/1/#", "1/#", "1/+/#", "+/+/+/t", "3/+/#", "0/#")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Site]]:
    """Two gateways for each version of MQTT, before the same brokers."""
    folder = tmp_path_factory.mktemp("gateways")
    with ExitStack() as stack:
        brokers = started(stack, FOUR)
        three = {name: broker for name, broker in brokers.items() if 5 in broker.protocol_levels}
        yield {
            4: before(stack, brokers, folder / "4", ("west", "east")),
            5: before(stack, three, folder / "5", ("west5", "east5")),
        }


BOTH = pytest.mark.parametrize("level", [4, 5])


# ---- what is published reaches who wants it ----------------------------------------------------


def check_every_combination(ports: Sequence[int], crowd: Crowd) -> None:
    """Publishers at each of `ports`, subscribers to each cell and wildcard at each: once."""
    with ThreadPoolExecutor(8) as pool:
        wanted = [(port, each, 2) for port in ports for each in WILD]
        wanted += [(port, crowd.topic(cell, "#"), 2) for port in ports for cell in CELLS]
        wanted += [(port, "#", qos) for port in ports for qos in (0, 1)]
        subscribers = list(
            pool.map(lambda one: crowd.subscriber(one[0], one[1], qos=one[2]), wanted)
        )
        # Those of "#" at QoS 2 publish as well: what they publish comes back to them once.
        publishers = {
            port: subscriber
            for (port, each, qos), subscriber in zip(wanted, subscribers, strict=True)
            if (each, qos) == ("#", 2)
        }
        sent: list[Key] = []
        for kind, levels in (("message", (0, 1, 2)), ("end", (2,))):
            batch = [
                (crowd.topic(cell), f"{kind} {qos} from {port}", qos)
                for port in ports
                for qos in levels
                for cell in CELLS
            ]

            def publish(port: int, batch: Sequence[Key] = batch) -> None:
                for topic, payload, qos in batch:
                    if payload.endswith(f" {port}"):
                        assert publishers[port].publish(topic, payload.encode(), qos=qos)

            list(pool.map(publish, ports))
            sent += batch
        for (port, each, qos), subscriber in zip(wanted, subscribers, strict=True):
            expected = matching([each], sent, qos if crowd.keeps_qos else 0)
            assert len(expected) >= 4 * len(ports)
            got = crowd.until(subscriber, expected)
            assert got == expected, (port, each, qos, got - expected)


@pytest.mark.parametrize(
    ("library", "level", "gateways"),
    [
        ("paho", 4, 1),
        ("paho", 5, 1),
        pytest.param("gmqtt", 4, 1, marks=pytest.mark.slow),
        pytest.param("gmqtt", 5, 1, marks=pytest.mark.slow),
        *((library, level, 2) for library in ("paho", "gmqtt") for level in (4, 5)),
    ],
)
def test_every_combination_of_cells(
    sites: dict[int, Site], library: str, level: int, gateways: int
) -> None:
    site = sites[level]
    with site.crowd(library, level) as crowd:
        check_every_combination(site.ports[:gateways], crowd)


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [1, 2])
def test_every_combination_of_cells_at_four_other_makes(tmp_path: Path, gateways: int) -> None:
    """RabbitMQ grants no QoS 2, amqtt sends at the QoS of the subscription: QoS is left out."""
    with ExitStack() as stack:
        site = before(stack, started(stack, OTHERS), tmp_path, ("west", "east")[:gateways])
        with site.crowd("paho", 4) as crowd:
            crowd.keeps_qos = False
            check_every_combination(site.ports, crowd)


@BOTH
def test_overlapping_subscriptions_give_what_the_broker_gives(
    sites: dict[int, Site], level: int
) -> None:
    """As often as at the broker itself, which may send one message for each subscription."""
    site = sites[level]
    with site.crowd("paho", level) as crowd:
        cells = {site.in_charge(cell): cell for cell in CELLS}
        filters = ("#", *(crowd.topic(cell, "#") for cell in cells.values()), "+/+/#")
        direct = {
            name: crowd.subscriber(broker.port, *filters, qos=1)
            for name, broker in site.brokers.items()
        }
        there = crowd.subscriber(site.ports[0], *filters, qos=1)
        publisher = crowd.connected(site.ports[1])
        sent = [(crowd.topic(cell), "m", 1) for cell in cells.values()]
        sent += [(crowd.topic(cell), "end", 1) for cell in cells.values()]
        for topic, payload, qos in sent:
            publisher.publish(topic, payload.encode(), qos=qos)
        crowd.until(there, sent)
        for name, cell in cells.items():
            crowd.until(direct[name], [key for key in sent if key[0] == crowd.topic(cell)])

        def agree() -> bool:
            """ActiveMQ keeps no order between two subscriptions of a client."""
            return crowd.seen(there) == sum(map(crowd.seen, direct.values()), Counter[Key]())

        wait_for(agree, 10, "as many as at the brokers")


@pytest.fixture(scope="module")
def alike(sites: dict[int, Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Gateways before four brokers that have shared subscriptions; messages wait for `other`."""
    with ExitStack() as stack:
        brokers = {"mosquitto": create("mosquitto"), "other": create("mosquitto")}
        for each in brokers.values():
            stack.enter_context(each)
        brokers |= {f"old {name}": sites[5].brokers[name] for name in ("mosquitto", "hivemq")}
        brokers = {name.replace(" ", "-"): each for name, each in brokers.items()}
        folder = tmp_path_factory.mktemp("alike")
        yield before(stack, brokers, folder, ("north", "south"), holding=("other",))


def test_a_group_shares_what_comes_from_every_broker(alike: Site) -> None:
    """Each message to one member, whichever broker it is of and whichever gateway they are at."""
    with alike.crowd("paho", 5) as crowd:
        members = [crowd.connected(port) for port in alike.ports * 2]
        for each in members:
            assert each.subscribe([Subscription("$share/g/#", 1)]) == (1,)
        everything = crowd.subscriber(alike.ports[0], "#", qos=1)
        publisher = crowd.connected(alike.ports[1])
        sent: list[Key] = []
        for turn in range(2):  # the second shows that no more came of the first
            batch = [(crowd.topic(cell), f"{turn} {at}", 1) for cell in CELLS for at in range(6)]
            for topic, payload, qos in batch:
                assert publisher.publish(topic, payload.encode(), qos=qos)
            sent += batch
            crowd.until(everything, batch)

            def shared() -> Counter[Key]:
                return sum(map(crowd.seen, members), Counter[Key]())

            wait_for(lambda: shared().keys() >= set(sent), ARRIVE_S, "the group to have all")  # noqa: B023
        assert shared() == Counter(sent)
        assert crowd.seen(everything) == Counter(sent)
        for name in alike.brokers:
            its = {crowd.topic(cell) for cell in CELLS if alike.in_charge(cell) == name}
            assert sum(any(key[0] in its for key in crowd.seen(each)) for each in members) > 1, name


def test_a_broker_that_is_away_can_be_waited_for(alike: Site) -> None:
    """With ``away = "hold"`` messages of MQTT 5 are neither refused nor lost."""
    with alike.crowd("paho", 5) as crowd:
        client = crowd.teller(alike.ports[0])
        assert client.subscribe([Subscription("#", 2)]) == (2,)
        its = next(cell for cell in CELLS if alike.in_charge(cell) == "other")
        others = next(cell for cell in CELLS if alike.in_charge(cell) != "other")
        assert client.code_of(crowd.topic(its), b"before", 1) == 0
        alike.brokers["other"].kill()
        try:
            until_away(alike.gateways[0], "other")
            held = [client.say(crowd.topic(its), b"held", qos) for qos in (1, 2)]
            assert client.code_of(crowd.topic(others), b"meanwhile", 1) == 0
            assert not any(map(client.has_answer, held))
        finally:
            alike.brokers["other"].start()
        assert [client.code_for(each) for each in held] == [0, 0]
        assert client.code_of(crowd.topic(its), b"after", 2) == 0
        expected = Counter(
            [
                (crowd.topic(its), "before", 1),
                (crowd.topic(others), "meanwhile", 1),
                *((crowd.topic(its), "held", qos) for qos in (1, 2)),
                (crowd.topic(its), "after", 2),
            ]
        )
        assert crowd.until(client, expected) == expected


# ---- retained messages, wills, sessions --------------------------------------------------------


@BOTH
def test_retained_messages_live_at_the_broker_in_charge(sites: dict[int, Site], level: int) -> None:
    site = sites[level]
    west, east = site.ports
    with site.crowd("paho", level) as crowd:
        publisher = crowd.connected(west)
        kept = [(crowd.topic(cell), f"kept {at % 3}", at % 3) for at, cell in enumerate(CELLS)]
        for topic, payload, qos in kept:
            publisher.publish(topic, b"older", qos=1, retain=True)
            publisher.publish(topic, payload.encode(), qos=qos, retain=True)
        for port in (west, east):
            filters = (*WILD, *(crowd.topic(cell) for cell in CELLS))
            for each in filters:
                expected = matching([each], kept)

                def newcomer(port: int = port, each: str = each) -> bool:
                    client = crowd.subscriber(port, each)
                    client.wait_messages(len(expected), 2)  # noqa: B023
                    time.sleep(0.02)
                    seen = crowd.seen(client)
                    flags = {each.retain for each in crowd.received(client)}
                    client.disconnect()
                    return seen == expected and flags == {True}  # noqa: B023

                wait_for(newcomer, ARRIVE_S, f"what is retained, by {each}")
        for topic, _, _ in kept:
            publisher.publish(topic, b"", qos=1, retain=True)

        def is_empty() -> bool:
            client = crowd.subscriber(east, "#")
            publisher.publish(crowd.topic("0/0", "end"), b"end", qos=2)
            crowd.until(client, [(crowd.topic("0/0", "end"), "end", 2)])
            seen = len(crowd.seen(client))
            client.disconnect()
            return seen == 1

        wait_for(is_empty, ARRIVE_S, "what was retained to be gone")


@BOTH
def test_wills_are_published_by_the_broker_in_charge(sites: dict[int, Site], level: int) -> None:
    site = sites[level]
    with site.crowd("paho", level) as crowd:
        listeners = [crowd.subscriber(port, "#") for port in site.ports]
        wills = [(crowd.topic(cell), f"will {at % 3}", at % 3) for at, cell in enumerate(CELLS)]
        mortals = [
            crowd.connected(site.ports[at % 2], will=Will(topic, payload.encode(), qos))
            for at, (topic, payload, qos) in enumerate(wills)
        ]
        polite = crowd.connected(site.ports[0], will=Will(crowd.topic("1/1"), b"never", 1))
        polite.disconnect()
        for mortal in mortals:
            mortal.drop()
        ends = [(crowd.topic(cell, "end"), "end", 2) for cell in CELLS]
        for listener in listeners:
            crowd.until(listener, wills)
        publisher = crowd.connected(site.ports[0])
        for topic, payload, qos in ends:
            publisher.publish(topic, payload.encode(), qos=qos)
        for listener in listeners:
            assert crowd.until(listener, ends) == Counter([*wills, *ends])


@BOTH
@pytest.mark.parametrize("library", ["paho", "gmqtt"])
def test_a_session_outlives_the_connection_at_every_broker(
    sites: dict[int, Site], library: str, level: int
) -> None:
    """It is at the brokers: the other gateway resumes it, too."""
    site = sites[level]
    west, east = site.ports
    # ActiveMQ says that there is no session, and has it: the others' word is the client's.
    with site.crowd(library, level) as crowd:
        publisher = crowd.connected(east)
        client = crowd.connected(west, "lasting", clean=False)
        filters = ("+/1/#", "0/0/#", "0/2/#", crowd.topic("2/2"), crowd.topic("3/3"))
        assert client.subscribe([Subscription(each, 2) for each in filters]) == (2,) * len(filters)
        for turn, port in enumerate((west, east, west)):
            for cell in ("0/3", "1/0", "2/0", "3/3") * 2:  # first what it owes the brokers
                assert client.publish(crowd.topic(cell, "nobody's"), b"", qos=1)
            if turn % 2:
                client.drop()
            else:
                client.disconnect()
            sent = [
                (crowd.topic(cell), f"{qos} of turn {turn}", qos)
                for cell in CELLS
                for qos in (1, 2)
            ]
            for topic, payload, qos in sent:
                publisher.publish(topic, payload.encode(), qos=qos)
            client = crowd.client(port, "lasting", clean=False)
            answer = client.connect()
            assert (answer.code, answer.session_present) == (0, True)
            more = [(crowd.topic(cell), f"live of turn {turn}", 2) for cell in CELLS]
            for topic, payload, qos in more:
                publisher.publish(topic, payload.encode(), qos=qos)
            expected = matching(filters, [*sent, *more])
            assert crowd.until(client, expected) == expected
        last = crowd.client(east, "lasting")  # a clean one ends it at all brokers
        client.disconnect()
        assert not last.connect().session_present
        last.disconnect()
        again = crowd.client(west, "lasting", clean=False)
        assert not again.connect().session_present


# ---- topics outside the notation ---------------------------------------------------------------

UNKNOWN = 0x92
"""paho sends PUBREL although PUBREC refused the message, and is told that nobody knows of it."""
OUTSIDE = ("0", "4/1/{}", "x/{}", "00/1/{}", "/0/1/{}", "0/-1/{}", "0//{}")


def test_topics_outside_the_notation_are_nobodys(sites: dict[int, Site]) -> None:
    with sites[5].crowd("paho", 5) as crowd:
        client = crowd.teller(sites[5].ports[0])
        filters = [each.format(crowd.run) for each in OUTSIDE]
        codes = client.subscribe([Subscription(each, 1) for each in (*filters, "#", "0/1")])
        assert codes == (0x83,) * len(filters) + (1, 1)
        for qos, code in ((1, 0x90), (2, UNKNOWN)):
            assert [client.code_of(each, b"m", qos) for each in filters] == [code] * len(filters)
        assert client.code_of(crowd.topic("0/1"), b"m", 1) == 0
        assert crowd.until(client, [(crowd.topic("0/1"), "m", 1)]).total() == 1
    with sites[4].crowd("paho", 4) as crowd:  # which has no such answer
        old = crowd.subscriber(sites[4].ports[0], crowd.topic("0/1"))
        assert old.subscribe([Subscription("x/y", 1)]) == (0x80,)
        old.publish(crowd.topic("x"), b"m", qos=0)
        old.publish(crowd.topic("0/1"), b"m", qos=1)
        crowd.until(old, [(crowd.topic("0/1"), "m", 1)])
        old.publish(crowd.topic("x"), b"m", qos=1)
        assert old.wait_lost() == "closed"


def test_topics_outside_the_notation_live_at_other(sites: dict[int, Site], tmp_path: Path) -> None:
    brokers = sites[5].brokers
    with (
        gateway(tmp_path, brokers, "other", cooperation={"other": "ejabberd"}) as node,
        sites[5].crowd("paho", 5) as crowd,
    ):
        client = crowd.teller(node.port)
        everything = crowd.subscriber(node.port, "#")
        direct = {name: crowd.subscriber(each.port, "#") for name, each in brokers.items()}
        sent = [(each.format(f"{crowd.run}/o"), "m", 2) for each in OUTSIDE if "{}" in each]
        sent += [(crowd.topic("1/1"), "m", 2)]  # ejabberd's, too
        inside = [(crowd.topic(cell), "end", 2) for cell in ("0/0", "1/2", "2/2")]
        for topic, payload, qos in [*sent, *inside]:
            assert client.code_of(topic, payload.encode(), qos) == 0
        assert crowd.until(everything, [*sent, *inside]) == Counter([*sent, *inside])
        for name, listener in direct.items():
            mine = [key for key in inside if sites[5].in_charge(key[0][:3]) == name]
            mine += sent if name == "ejabberd" else []
            assert crowd.until(listener, mine) == Counter(mine)


def test_a_broker_that_does_not_speak_mqtt_5_refuses_its_cells_alone(
    sites: dict[int, Site],
) -> None:
    site = sites[4]  # with ActiveMQ
    with site.crowd("paho", 5) as crowd:
        client = crowd.teller(site.ports[0])
        filters = ("0/#", "1/#", "2/#", "3/3/#", "#")
        codes = client.subscribe([Subscription(each, 1) for each in filters])
        assert codes == (1, 1, 1, 0x87, 0x87)
        assert client.code_of(crowd.topic("3/3"), b"m", 1) == 0x87
        sent = [(crowd.topic(cell), "m", 1) for cell in ("0/0", "1/1", "2/2")]
        for topic, payload, qos in sent:
            assert client.code_of(topic, payload.encode(), qos) == 0
        assert crowd.until(client, sent) == Counter(sent)


# ---- a broker that is away ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mosquitto", "ejabberd", "hivemq"])
def test_a_broker_that_is_killed_takes_its_cells_alone(sites: dict[int, Site], name: str) -> None:
    site = sites[5]
    with site.crowd("paho", 5) as crowd:
        west, east = site.gateways
        clients = [crowd.subscriber(node.port, "#") for node in site.gateways]
        mine = crowd.subscriber(west.port, *(crowd.topic(cell, "+") for cell in CELLS))
        teller = crowd.teller(east.port)
        its = [cell for cell in CELLS if site.in_charge(cell) == name]
        assert 4 < len(its) < 8

        def publish(payload: str, qos: int) -> dict[int, list[str]]:
            """The cells by the answer."""
            found: dict[int, list[str]] = {}
            for cell in CELLS:
                code = teller.code_of(crowd.topic(cell), payload.encode(), qos)
                found.setdefault(code, []).append(cell)
            return found

        assert publish("before", 2) == {0: list(CELLS)}
        before_ = [(crowd.topic(cell), "before", 2) for cell in CELLS]
        for client in (*clients, mine):
            crowd.until(client, before_)
        site.brokers[name].kill()
        try:
            for node in site.gateways:
                until_away(node, name)
                assert not node.is_ready()
            others = [cell for cell in CELLS if cell not in its]
            for qos, code in ((1, 0x83), (2, UNKNOWN)):
                assert publish(f"meanwhile {qos}", qos) == {0: others, code: its}
            # Of a filter that others have too it is told later; one of its own it cannot take.
            late = crowd.connected(west.port)
            codes = late.subscribe([Subscription("#", 2), Subscription(crowd.topic(its[0]), 2)])
            assert codes == (2, 0x83)
        finally:
            site.brokers[name].start()
        meanwhile = [
            (crowd.topic(cell), f"meanwhile {qos}", qos) for qos in (1, 2) for cell in others
        ]
        for node in site.gateways:
            node.wait_until(node.is_ready)

        def restored() -> bool:
            """Sessions come back one after the other, and their subscriptions with them."""
            probe = (crowd.topic(its[0], "probe"), str(time.monotonic_ns()), 1)
            teller.code_of(probe[0], probe[1].encode(), 1)
            time.sleep(0.1)
            return all(probe in crowd.seen(each) for each in (*clients, mine, late))

        wait_for(restored, ARRIVE_S, "subscriptions to be restored")
        assert publish("after", 2) == {0: list(CELLS)}
        after = [(crowd.topic(cell), "after", 2) for cell in CELLS]
        for client, expected in (
            (clients[0], [*before_, *meanwhile, *after]),
            (clients[1], [*before_, *meanwhile, *after]),
            (mine, [*before_, *meanwhile, *after]),
            (late, after),
        ):
            got = crowd.until(client, after)
            assert Counter({k: n for k, n in got.items() if "probe" not in k[0]}) == Counter(
                expected
            )


def test_what_is_for_a_broker_that_is_away_is_held_in_mqtt_311(sites: dict[int, Site]) -> None:
    site = sites[4]
    with site.crowd("paho", 4) as crowd:
        listener = crowd.subscriber(site.ports[0], "#")
        publisher = crowd.connected(site.ports[0])
        site.brokers["activemq"].kill()
        try:
            until_away(site.gateways[0], "activemq")
            assert publisher.publish(crowd.topic("0/0"), b"others go on", qos=1)
            with ThreadPoolExecutor(1) as pool:
                held = pool.submit(publisher.publish, crowd.topic("3/3"), b"held", qos=1)
                time.sleep(0.3)
                assert not held.done()
                site.brokers["activemq"].start()
                assert held.result()
        finally:
            if not site.brokers["activemq"].running:
                site.brokers["activemq"].start()
        for node in site.gateways:
            node.wait_until(node.is_ready)

        def hears() -> bool:
            publisher.publish(crowd.topic("3/3", "probe"), b"p", qos=1)
            return (crowd.topic("3/3", "probe"), "p", 1) in crowd.seen(listener)

        wait_for(hears, ARRIVE_S, "the subscription to be restored", every_s=0.1)
        assert crowd.seen(listener)[crowd.topic("0/0"), "others go on", 1] == 1
