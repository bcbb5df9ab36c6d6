"""Two things at once: what happens to a part while it is being opened, restored or held."""

from __future__ import annotations

import pytest

from isthmus.exchange.split.brokers import LOOK_S, SLICE
from isthmus.exchange.split.identifiers import Identifiers
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    PingReq,
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
from support.split_rig import RigBroker, RigClient, SplitRig

R = ReasonCode
FOR_EVER = Properties(session_expiry_interval=0xFFFF_FFFF)


def with_two(rig: SplitRig, level: int = 5, **connect: object) -> tuple[RigClient, RigBroker]:
    """A client that has subscribed to all, at both brokers."""
    client = rig.joined("c", level, **connect)
    client.say(Subscribe(1, (Subscription("#", qos=2),)))
    two = rig.connects("two")
    two.accepts()
    two.heard()
    rig.one.heard()
    for broker in (two, rig.one):
        broker.say(SubAck(1, (R.GRANTED_QOS_2,)))
    client.heard()
    return client, two


def is_back(rig: SplitRig, **said: object) -> RigBroker:
    rig.comes_back("two")
    two = rig.connects("two")
    two.accepts(**said)
    return two


# ---- subscriptions -----------------------------------------------------------------------------


def test_what_is_not_answered_yet_is_told_again() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"),)), Unsubscribe(3, ("#",)))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)), UnsubAck(3, (R.SUCCESS,)))
    client.heard()
    expected = [Subscribe(65_535, (Subscription("+/+"),)), Unsubscribe(65_534, ("#",))]
    two = is_back(rig, session_present=True)
    assert two.heard() == expected
    rig.goes("two", two)
    two = is_back(rig, session_present=True)
    assert two.heard() == expected
    two.say(SubAck(65_535, (R.GRANTED_QOS_0,)))
    rig.goes("two", two)
    two = is_back(rig, session_present=True)
    assert expected[1] in two.heard()


def test_a_broker_that_dies_while_it_is_given_back_what_it_lost() -> None:
    rig = SplitRig()
    _client, two = with_two(rig, properties=FOR_EVER)
    rig.goes("two", two)
    expected = [Subscribe(65_535, (Subscription("#", qos=2),))]
    two = is_back(rig)
    assert two.heard() == expected
    rig.goes("two", two)
    two = is_back(rig, session_present=True)  # it has one since the CONNECT before
    assert two.heard() == expected


@pytest.mark.parametrize("kept", [True, False])
def test_a_broker_that_is_back_before_the_others_have_answered(kept: bool) -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"),)))
    two = is_back(rig, session_present=kept)
    if not kept:
        two.heard()
        two.say(SubAck(65_535, (R.GRANTED_QOS_2,)))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)))
    assert two.heard() == [Subscribe(2, (Subscription("+/+"),))]
    assert client.heard() == []
    two.say(SubAck(2, (R.GRANTED_QOS_0,)))
    assert client.heard() == [SubAck(2, (R.GRANTED_QOS_0,))]


def test_what_was_told_to_nobody_is_told_to_the_next_connection() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER, clean_start=False)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"),)))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)))
    client.heard()
    client.hangs_up()
    rig.comes_back("two")
    client = rig.client("c", properties=FOR_EVER, clean_start=False)
    rig.connects("one").accepts(session_present=True)
    two = rig.connects("two")
    two.accepts(session_present=True)
    assert two.heard() == [Subscribe(65_535, (Subscription("+/+"),))]


def test_a_filter_that_is_refused_stays_nowhere() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    client.say(Subscribe(2, (Subscription("two/x"), Subscription("+/+"))))
    two.heard()
    rig.one.heard()
    rig.goes("two", two)  # which may have granted both
    rig.one.say(SubAck(2, (R.NOT_AUTHORIZED,)))
    assert client.heard() == [SubAck(2, (R.IMPLEMENTATION_SPECIFIC_ERROR, R.NOT_AUTHORIZED))]
    two = is_back(rig, session_present=True)
    assert two.heard() == [Unsubscribe(65_535, ("two/x", "+/+"))]


# ---- messages ----------------------------------------------------------------------------------


def test_answers_reach_a_broker_that_is_given_back_subscriptions() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    rig.goes("two", two)
    client.say(Subscribe(2, (Subscription("+/+"),)))
    rig.one.heard()
    rig.one.say(SubAck(2, (R.GRANTED_QOS_0,)))
    client.heard()
    two = is_back(rig, session_present=True)
    two.heard()
    two.say(Publish("two/a", b"1", qos=1, packet_id=7))
    two.say(Publish("two/a", b"2", qos=2, packet_id=8))
    assert len(client.heard()) == 2
    client.say(PubAck(7), PubRec(8))
    assert two.heard() == [PubAck(7), PubRec(8)]


def test_what_is_beyond_the_receive_maximum_waits_also_while_subscriptions_are_given_back() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=replace_maximum(1))
    rig.goes("two", two)
    two = is_back(rig)
    two.heard()
    rig.one.say(Publish("a", b"1", qos=1, packet_id=1))
    two.say(Publish("two/a", b"2", qos=1, packet_id=7))
    assert client.heard() == [Publish("a", b"1", qos=1, packet_id=1)]
    client.say(PubAck(1))
    assert client.heard() == [Publish("two/a", b"2", qos=1, packet_id=7)]


def test_what_a_broker_sends_again_is_not_held_behind_itself() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=replace_maximum(2))
    rig.one.say(Publish("a", b"1", qos=1, packet_id=1))
    two.say(Publish("two/a", b"2", qos=2, packet_id=7))
    assert len(client.heard()) == 2
    rig.goes("two", two)
    two = is_back(rig, session_present=True)
    again = Publish("two/a", b"2", qos=2, packet_id=7, dup=True)
    two.say(again)
    assert client.heard() == [again]
    client.say(PubRec(7))
    two.say(PubRel(7))
    assert client.heard() == [PubRel(7)]
    client.say(PubComp(7), PubAck(1))
    assert client.heard() == []


def replace_maximum(most: int) -> Properties:
    return Properties(session_expiry_interval=0xFFFF_FFFF, receive_maximum=most)


def test_what_was_refused_under_way_does_not_stand_in_the_way_of_a_new_message() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=FOR_EVER)
    client.say(Publish("two/x", b"old", qos=2, packet_id=5))
    two.heard()
    rig.goes("two", two)  # its PUBREC is lost
    assert client.heard() == [PubRec(5, R.IMPLEMENTATION_SPECIFIC_ERROR)]
    two = is_back(rig, session_present=True)
    client.say(Publish("two/x", b"new", qos=2, packet_id=5))
    assert two.heard() == [PubRel(5)]  # else it would take the new one for the old one
    two.say(PubComp(5))
    assert two.heard() == [Publish("two/x", b"new", qos=2, packet_id=5)]
    assert client.heard() == []
    two.say(PubRec(5))
    assert client.heard() == [PubRec(5)]


def test_what_a_broker_sends_again_has_the_identifier_that_it_had() -> None:
    """Also where its own has become free meanwhile."""
    identifiers = Identifiers()
    assert identifiers.take("one", 5, 1)
    assert not identifiers.take("two", 5, 2)
    changed = identifiers.give("two", 5, 2)
    assert changed != 5
    identifiers.done(5)
    assert not identifiers.take("two", 5, 2)
    assert identifiers.give("two", 5, 2) == changed
    identifiers.done(changed)
    assert identifiers.take("two", 5, 2)


def test_identifiers_that_nobody_will_answer_any_more_are_free_again() -> None:
    identifiers = Identifiers()
    for _ in range(3):
        assert identifiers.give("two", 1, 1) == 1
        assert identifiers.give("two", 2, 2) == 2
        assert list(identifiers.forget("two")) == [2]
        assert list(identifiers.begin()) == [2]  # the client may have it still
        identifiers.done(2)
        assert not identifiers.deliveries


# ---- who is there ------------------------------------------------------------------------------


def test_a_client_that_does_not_read_makes_no_broker_away() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.session.pause_writing()
    client.say(Publish("two/x", b"", qos=1, packet_id=1))
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [Publish("two/x", b"", qos=1, packet_id=1)]
    rig.host.run(30.0)
    assert not rig.brokers.is_away("two")
    two.say(PubAck(1))
    assert client.heard() == []
    client.session.resume_writing()
    assert client.heard() == [PubAck(1)]


def test_a_broker_that_hangs_while_it_is_given_back_subscriptions_is_away() -> None:
    rig = SplitRig()
    client, two = with_two(rig)
    rig.goes("two", two)
    two = is_back(rig)
    two.heard()
    client.say(Publish("two/x", b"", qos=1, packet_id=3))
    for _ in range(4):
        rig.host.run(30.0)
        rig.one.say()
        rig.one.wire.feed(b"\xd0\x00")
        client.say(PingReq())
    assert R.IMPLEMENTATION_SPECIFIC_ERROR in [
        each.reason_code for each in client.heard() if isinstance(each, PubAck)
    ]


def test_packets_are_no_larger_than_a_broker_takes() -> None:
    rig = SplitRig()
    client = rig.joined("c", properties=FOR_EVER)
    filters = [f"two/{number:034}" for number in range(20)]
    asked = [Subscribe(1 + at, (Subscription(each),)) for at, each in enumerate(filters)]
    client.say(*asked)
    takes = Properties(maximum_packet_size=100)
    two = rig.connects("two")
    two.accepts(properties=takes)
    assert two.heard() == asked
    two.say(*(SubAck(each.packet_id, (R.GRANTED_QOS_0,)) for each in asked))
    client.heard()
    client.say(Subscribe(99, tuple(map(Subscription, filters))))
    assert two.heard() == []
    refused = (R.IMPLEMENTATION_SPECIFIC_ERROR,) * len(filters)
    assert client.heard() == [SubAck(99, refused)]
    client.say(Unsubscribe(98, (*filters, "a")))
    assert client.heard() == []
    rig.one.heard()
    rig.one.say(UnsubAck(98, (R.SUCCESS,)))
    assert client.heard() == [UnsubAck(98, (*refused, R.SUCCESS))]
    rig.goes("two", two)
    two = is_back(rig, properties=takes)
    told = two.heard()
    sizes = [len(encode(each, 5)) for each in told]
    assert max(sizes) <= 100
    assert len(sizes) == 10


def test_of_many_that_ask_for_a_broker_a_slice_at_a_time_is_told() -> None:
    rig = SplitRig()
    told: list[bool] = []
    for _ in range(2 * SLICE + 20):
        rig.brokers.look("two", told.append)
    rig.host.run(LOOK_S)
    _, failed = rig.dialed["two"].popleft()
    failed("connection refused")
    assert len(told) == SLICE
    rig.brokers.look("two", told.append)
    rig.host.run()
    assert told == [False] * (2 * SLICE + 20)
    rig.host.run(LOOK_S)
    rig.refuses("two")
    assert len(told) == 2 * SLICE + 21


def test_who_is_taken_over_takes_nothing_over_itself() -> None:
    rig = SplitRig()
    older = rig.joined()
    older.say(Publish("two/x", b"old", qos=1, packet_id=1))
    newer = rig.client()
    rig.connects("one").accepts()
    assert older.closed
    newer.say(Publish("two/x", b"new", qos=1, packet_id=1))
    slow, fast = rig.dialed["two"]
    rig.dialed["two"].clear()
    two = RigBroker(rig, fast[0])
    two.accepts()
    assert two.heard() == [Publish("two/x", b"new", qos=1, packet_id=1)]
    late = RigBroker(rig, slow[0])
    assert late.heard() == []
    assert late.wire.closing


@pytest.mark.parametrize("is_there", [True, False])
def test_who_leaves_at_once_and_comes_back_is_not_taken_over_by_itself(is_there: bool) -> None:
    rig = SplitRig()
    older = rig.joined()
    older.say(Publish("two/x", b"1", qos=1, packet_id=1))
    older.hangs_up()
    for payload in (b"2", b"3"):
        newer = rig.client()
        rig.connects("one").accepts()
        newer.say(Publish("two/x", payload, qos=1, packet_id=1))
        if payload == b"2":
            newer.hangs_up()
    for payload in (b"1", b"2", b"3"):
        assert len(rig.dialed["two"]) == 1
        if is_there:
            two = rig.connects("two")
            two.accepts()
            assert two.heard() == [Publish("two/x", payload, qos=1, packet_id=1)]
            assert two.wire.closing == (payload != b"3")
        else:
            rig.refuses("two")
    assert not newer.closed
    assert not rig.exchange.kept_sessions.leaving  # type: ignore[union-attr]


def test_a_broker_that_has_forgotten_what_is_not_answered_has_its_share_all_the_same() -> None:
    rig = SplitRig()
    client, two = with_two(rig, properties=replace_maximum(8))
    for broker, topic in ((two, "two/a"), (rig.one, "a")):
        broker.say(*(Publish(topic, b"", qos=1, packet_id=each) for each in range(1, 5)))
    first = [each.packet_id for each in client.heard() if isinstance(each, Publish)]
    assert len(first) == 8
    rig.goes("two", two)
    two = is_back(rig)
    two.heard()
    two.say(SubAck(65_535, (R.GRANTED_QOS_2,)))
    two.say(*(Publish("two/a", b"new", qos=1, packet_id=each) for each in range(1, 5)))
    assert not client.closed
    assert client.heard() == []
    client.say(*map(PubAck, first))
    then = [each for each in client.heard() if isinstance(each, Publish)]
    assert [each.payload for each in then] == [b"new"] * 4
    client.say(*(PubAck(each.packet_id) for each in then))
    assert sorted(each.packet_id for each in two.heard() if isinstance(each, PubAck)) == [
        1,
        2,
        3,
        4,
    ]


def test_after_a_restart_a_client_is_released_of_what_it_may_hold() -> None:
    """Another broker's message had that identifier, and the client has not been told to let go."""
    rig = SplitRig()
    client = rig.client(clean_start=False, properties=FOR_EVER)
    one = rig.connects("one")
    one.accepts(session_present=True)
    two = rig.connects("two")
    two.accepts(session_present=True)
    assert isinstance(client.heard()[0], ConnAck)
    one.say(Publish("x", b"new", 2, packet_id=7))
    assert client.heard() == [PubRel(7), Publish("x", b"new", 2, packet_id=7)]
    client.say(PubComp(7, R.PACKET_IDENTIFIER_NOT_FOUND), PubRec(7))
    assert one.heard() == [PubRec(7)]
    one.say(PubRel(7))
    assert client.heard() == [PubRel(7)]
    client.say(PubComp(7))
    assert one.heard() == [PubComp(7)]
    one.say(Publish("x", b"next", 2, packet_id=7))
    assert client.heard() == [Publish("x", b"next", 2, packet_id=7)]
