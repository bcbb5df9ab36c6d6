"""Brokers that go and come back, and sessions that outlive connections."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.exchange.split.identifiers import Identifiers
from isthmus.exchange.split.kept import SLICE_BYTES, KeptSession, KeptSessions, Wanted
from isthmus.mqtt.packets import (
    ConnAck,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.sim.fabric import SimFabric
from support.split_rig import RigBroker, RigClient, SplitRig

R = ReasonCode
FOR_EVER = Properties(session_expiry_interval=0xFFFF_FFFF)
ID_9 = Properties(subscription_identifiers=(9,))


def with_two(rig: SplitRig, level: int = 5, **connect: object) -> tuple[RigClient, RigBroker]:
    """A client that has subscribed to all, at both brokers."""
    client = rig.joined("c", level, **connect)
    asked = Subscribe(1, (Subscription("#", qos=1),), ID_9 if level == 5 else Properties())
    client.say(asked)
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [asked]
    assert rig.one.heard() == [asked]
    for broker in (two, rig.one):
        broker.say(SubAck(1, (R.GRANTED_QOS_1,)))
    assert client.heard()[-1] == SubAck(1, (R.GRANTED_QOS_1,))
    return client, two


# ---- a broker goes -----------------------------------------------------------------------------


def test_a_broker_that_goes_takes_its_topics_alone() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    rig.goes("two", two)
    assert not client.closed
    assert rig.recorder.told == [("down", "two")]
    client.say(
        Publish("two/x", b"", qos=1, packet_id=3),
        Publish("two/x", b"", qos=2, packet_id=4),
        Publish("two/x", b""),
        Publish("x", b"1", qos=1, packet_id=5),
    )
    refused = R.IMPLEMENTATION_SPECIFIC_ERROR
    assert client.heard() == [PubAck(3, refused), PubRec(4, refused)]
    assert rig.one.heard() == [Publish("x", b"1", qos=1, packet_id=5)]
    assert rig.exchange.counters["broker_away_dropped"] == 1
    assert rig.exchange.counters["broker_away_refused"] == 2
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [Subscribe(65_535, (Subscription("#", qos=1),), ID_9)]
    assert rig.recorder.told == [("down", "two"), ("up", "two")]
    client.say(Publish("two/x", b"2"))
    assert two.heard() == []
    two.say(SubAck(65_535, (R.GRANTED_QOS_1,)))
    assert two.heard() == [Publish("two/x", b"2")]
    two.say(Publish("two/x", b"3"))
    assert client.heard() == [Publish("two/x", b"3")]


def test_what_was_under_way_is_refused_or_ends_the_connection() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    client.say(Publish("two/x", b"", qos=1, packet_id=3), Publish("two/x", b"", qos=2, packet_id=4))
    rig.goes("two", two)
    refused = R.IMPLEMENTATION_SPECIFIC_ERROR
    assert client.heard() == [PubAck(3, refused), PubRec(4, refused)]
    rig = SplitRig()
    client, two = with_two(rig, 4)
    client.say(Publish("two/x", b"", qos=1, packet_id=3))
    rig.goes("two", two)
    assert client.heard() == []
    assert client.closed


def test_mqtt_3_1_1_is_held_within_bounds() -> None:
    rig = SplitRig()
    client, two = with_two(rig, 4)
    rig.goes("two", two)
    client.say(Publish("two/x", b"1", qos=1, packet_id=3), Publish("two/x", b"0"))
    assert client.heard() == []
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    two.heard()
    two.say(SubAck(65_535, (R.GRANTED_QOS_1,)))
    assert two.heard() == [Publish("two/x", b"1", qos=1, packet_id=3)]
    two.say(PubAck(3))
    assert client.heard() == [PubAck(3)]
    rig.goes("two", two)
    client.say(*(Publish("two/x", b"x" * 600, qos=1, packet_id=n) for n in (4, 5)))
    assert client.closed
    assert rig.relay.counters.refusals["publish-not-taken"] == 1


def test_a_release_waits_for_the_broker() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    client.say(Publish("two/x", b"", qos=2, packet_id=4))
    two.say(PubRec(4))
    client.heard()
    rig.goes("two", two)
    client.say(PubRel(4))
    assert client.heard() == []
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    two.heard()
    two.say(SubAck(65_535, (R.GRANTED_QOS_1,)))
    assert two.heard() == [PubRel(4)]
    two.say(PubComp(4, R.PACKET_IDENTIFIER_NOT_FOUND))
    assert client.heard() == [PubComp(4, R.PACKET_IDENTIFIER_NOT_FOUND)]


def test_subscriptions_while_a_broker_is_away() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"), Subscription("two/x"))))
    assert rig.one.heard() == [Subscribe(2, (Subscription("+/+"),))]
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)))
    expected = SubAck(2, (R.GRANTED_QOS_0, R.IMPLEMENTATION_SPECIFIC_ERROR))
    assert client.heard() == [expected]
    client.say(Unsubscribe(3, ("#",)))
    rig.one.heard()
    rig.one.say(UnsubAck(3, (R.SUCCESS,)))
    assert client.heard() == [UnsubAck(3, (R.SUCCESS,))]
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [Subscribe(65_535, (Subscription("+/+"),))]
    two.say(SubAck(65_535, (R.NOT_AUTHORIZED,)))
    assert rig.exchange.counters["subscriptions_not_restored"] == 1
    assert not client.closed


def test_a_session_that_the_broker_kept_is_told_what_changed() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"),)), Unsubscribe(3, ("#",)))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)), UnsubAck(3, (R.SUCCESS,)))
    client.heard()
    rig.comes_back("two")
    two = rig.connects("two")
    assert two.accepts(session_present=True).clean_start is False
    assert two.heard() == [
        Subscribe(65_535, (Subscription("+/+"),)),
        Unsubscribe(65_534, ("#",)),
    ]


def test_messages_that_the_broker_has_forgotten() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    two.say(Publish("two/a", b"1", qos=1, packet_id=1), Publish("two/a", b"2", qos=2, packet_id=2))
    assert len(client.heard()) == 2
    rig.goes("two", two)
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    assert client.heard() == [PubRel(2)]
    two.heard()
    two.say(SubAck(65_535, (R.GRANTED_QOS_1,)))
    two.say(Publish("two/a", b"3", qos=1, packet_id=1))
    (third,) = client.heard()
    assert isinstance(third, Publish)
    assert third.packet_id not in (1, 2)  # which the client may still answer
    client.say(PubAck(1), PubComp(2))
    assert two.heard() == []
    client.say(PubAck(third.packet_id))
    assert two.heard() == [PubAck(1)]


def test_a_broker_that_says_that_it_goes() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    two.say(Disconnect(R.SERVER_SHUTTING_DOWN))
    assert rig.brokers.is_away("two")
    assert not client.closed
    assert client.heard() == []


def test_a_broker_that_refuses_one_client() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Publish("two/x", b"", qos=1, packet_id=1))
    two = rig.connects("two")
    two.greeting()
    two.say(ConnAck(False, R.NOT_AUTHORIZED))
    two.closes()
    assert client.heard() == [PubAck(1, R.NOT_AUTHORIZED)]
    client.say(Subscribe(2, (Subscription("two/#"), Subscription("a"))))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)))
    assert client.heard() == [SubAck(2, (R.NOT_AUTHORIZED, R.GRANTED_QOS_0))]
    assert not client.closed


def test_a_broker_that_does_not_answer_connect() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Publish("two/x", b"", qos=1, packet_id=1))
    rig.connects("two")
    rig.host.run(5.0)
    assert rig.brokers.is_away("two")
    assert client.heard() == [PubAck(1, R.IMPLEMENTATION_SPECIFIC_ERROR)]


def test_many_clients_come_back_a_slice_at_a_time() -> None:
    rig = SplitRig()
    for number in range(60):
        client = rig.client(f"c{number}")
        rig.connects("one").accepts()
        client.say(Publish("two/x", b""))
        broker = rig.connects("two")
        broker.accepts()
        broker.closes()
    rig.goes("two")
    assert rig.recorder.told == [("down", "two")]
    rig.host.run(0.5)
    question = rig.connects("two")
    question.wire.feed(b"\x20\x02\x00\x00")
    rig.host.run()
    assert len(rig.dialed["two"]) == 60


# ---- sessions ----------------------------------------------------------------------------------


def test_a_session_is_resumed_where_it_is() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER, clean_start=False)
    two.say(Publish("two/a", b"1", qos=2, packet_id=5))
    rig.one.say(Publish("a", b"2", qos=2, packet_id=5))
    first, second = client.heard()
    assert isinstance(second, Publish)
    client.hangs_up()
    client = rig.client(properties=FOR_EVER, clean_start=False)
    rig.connects("one").accepts(session_present=True)
    assert client.heard() == []
    two = rig.connects("two")
    assert two.accepts(session_present=True).clean_start is False
    assert client.heard() == [ConnAck(True)]
    two.say(Publish("two/a", b"1", qos=2, dup=True, packet_id=5))
    (again,) = client.heard()
    assert isinstance(again, Publish)
    assert again.packet_id == first.packet_id  # type: ignore[union-attr]


def test_a_broker_that_has_lost_its_part_is_given_it_back() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER, clean_start=False)
    client.say(Disconnect())
    client.hangs_up()
    client = rig.client(properties=FOR_EVER, clean_start=False)
    rig.connects("one").accepts(session_present=True)
    two = rig.connects("two")
    two.accepts(session_present=False)
    assert client.heard() == [ConnAck(True)]
    assert two.heard() == [Subscribe(65_535, (Subscription("#", qos=1),), ID_9)]


@pytest.mark.parametrize(("lasts", "level"), [(False, 4), (True, 4), (False, 5), (True, 5)])
def test_a_session_that_ended_with_the_connection_is_not_resumed(lasts: bool, level: int) -> None:
    """HiveMQ, killed and started again, has it, and knows none of its subscriptions."""
    rig = SplitRig()
    until = FOR_EVER if lasts and level == 5 else Properties()
    _, two = with_two(rig, level, properties=until, clean_start=not lasts)
    rig.goes("two", two)
    rig.comes_back("two")
    two = rig.connects("two")
    assert two.accepts(session_present=lasts).clean_start is not lasts
    assert bool(two.heard()) is not lasts


def test_a_session_that_nobody_has_is_not_given_back() -> None:
    rig = SplitRig()
    client, _ = with_two(rig, properties=FOR_EVER, clean_start=False)
    client.hangs_up()
    client = rig.client(properties=FOR_EVER, clean_start=False)
    one = rig.connects("one")
    one.accepts(session_present=False)
    two = rig.connects("two")
    two.accepts(session_present=False)
    assert client.heard() == [ConnAck(False)]
    assert one.heard() == two.heard() == []


def test_of_whom_nothing_is_known_all_are_asked() -> None:
    rig = SplitRig()
    client = rig.client("stranger", level=4, clean_start=False)
    rig.connects("one").accepts()
    two = rig.connects("two")
    assert two.accepts(session_present=True).clean_start is False
    assert client.heard() == [ConnAck(True)]


def test_clean_start_ends_the_session_everywhere() -> None:
    rig = SplitRig()
    client, _ = with_two(rig, properties=FOR_EVER, clean_start=False)
    client.hangs_up()
    client = rig.client(clean_start=True)
    rig.connects("one").accepts()
    assert rig.connects("two").accepts().clean_start is True
    assert client.heard() == [ConnAck(False)]


def test_an_expiry_of_0_at_the_end_forgets_the_session() -> None:
    rig = SplitRig()
    client, _ = with_two(rig, properties=FOR_EVER)
    kept = rig.exchange.kept_sessions
    assert kept is not None
    client.say(Disconnect(properties=Properties(session_expiry_interval=0)))
    client.hangs_up()
    assert len(kept) == 0


def test_a_client_id_is_taken_over() -> None:
    rig = SplitRig()
    older, two = with_two(rig)
    newer = rig.client()
    assert not older.closed
    rig.connects("one").accepts()
    assert newer.heard() == [ConnAck()]
    assert older.heard() == [Disconnect(R.SESSION_TAKEN_OVER)]
    assert older.closed
    assert two.wire.closing
    assert not newer.closed


def test_kept_sessions_survive_a_restart() -> None:
    fabric = SimFabric()
    host = fabric.node("a").host
    assert host is not None
    before = KeptSessions(host)
    session = KeptSession({"one": None, "gone": None})
    wanted = Wanted(Subscription("a/#", 2, True, True, 1), 7)
    session.wanted["one"] = {"a/#": wanted}
    before._sessions["c"] = before._sessions["d"] = session
    for name in ("c", "d"):
        before.changed(name)
    fabric.run(1.0)
    del before._sessions["d"]
    before.changed("d")
    before.stop()
    after = KeptSessions(host)
    after.load(("one", "two"))
    found = after.of("c")
    assert found is not None
    assert found.brokers == {"one": None}
    assert found.wanted == {"one": {"a/#": wanted}}
    assert after.of("d") is None


def test_kept_sessions_are_written_a_slice_at_a_time() -> None:
    fabric = SimFabric()
    host = fabric.node("a").host
    assert host is not None
    kept = KeptSessions(host)
    for number in range(3_000):
        session = KeptSession({"one": None, "two": None})
        filters = (f"f/{number}/{each}" for each in range(5))
        session.wanted["one"] = {each: Wanted(Subscription(each)) for each in filters}
        kept._sessions[f"c{number}"] = session
    assert max(map(len, kept._all())) < 2 * SLICE_BYTES
    kept.changed("c7")
    fabric.run(1.0)
    after = KeptSessions(host)
    after.load(("one", "two"))
    assert len(after) == 3_000


def test_identifiers_that_are_all_taken() -> None:
    identifiers = Identifiers()
    for theirs in range(1, 65_536):
        identifiers.give("one", theirs, 1)
    assert identifiers.give("two", 1, 1) == 0
    identifiers.done(77)
    assert identifiers.give("two", 1, 1) == 77


# ---- the algorithm -----------------------------------------------------------------------------


class Geographer(CooperationAlgorithm):
    """Brings a table of its own."""

    name = "geographer"
    table = "two"

    def broker_of(self, topic: str) -> str | None:
        return None if topic.startswith("$") else self.table

    def brokers_of(self, topic_filter: str) -> Sequence[str] | None:
        return (self.table, self.table)


def test_the_algorithm_decides_where_topics_live() -> None:
    rig = SplitRig(Geographer)
    client = rig.joined()
    client.say(Publish("x", b""), Subscribe(1, (Subscription("y"),)))
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [Publish("x", b""), Subscribe(1, (Subscription("y"),))]
    assert isinstance(rig.exchange.algorithm, Geographer)
    rig.exchange.algorithm.table = "one"
    client.say(Publish("x", b"1"))
    assert two.heard() == [Publish("x", b"1")]
    rig.exchange.routes_changed(["+"])
    client.say(Publish("x", b"2"))
    assert rig.one.heard() == [Publish("x", b"2")]
    assert rig.exchange.broker_names == ("one", "two")


def test_a_broker_may_be_waited_for_in_mqtt_5_too() -> None:
    """As far as `buffer_bytes` goes; what is under way when it goes is refused as otherwise."""
    rig = SplitRig()
    rig.brokers.holding = frozenset(("two",))
    client, two = with_two(rig)
    rig.goes("two", two)
    first, second = (Publish("two/x", bytes(300), 1 + n, packet_id=3 + n) for n in range(2))
    more = [Publish("two/x", bytes(300), 1, packet_id=10 + n) for n in range(3)]
    client.say(first, second, *more, Publish("two/x", b"0"))
    assert client.heard() == [PubAck(11, R.QUOTA_EXCEEDED), PubAck(12, R.QUOTA_EXCEEDED)]
    assert rig.exchange.counters["broker_away_dropped"] == 1
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts()
    two.heard()
    two.say(SubAck(65_535, (R.SUCCESS,)))
    assert two.heard() == [first, second, more[0]]
    two.say(PubAck(3), PubAck(10))
    assert client.heard() == [PubAck(3), PubAck(10)]
