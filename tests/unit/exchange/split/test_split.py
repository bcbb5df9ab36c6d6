"""A client's session with two brokers: who gets what, and what the client is told."""

from __future__ import annotations

import pytest

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
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
    Will,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.split_rig import SplitRig

OK = ReasonCode.SUCCESS
R = ReasonCode


def subscriptions(*filters: str, qos: int = 1) -> tuple[Subscription, ...]:
    return tuple(Subscription(each, qos=qos) for each in filters)


def refusals_told(rig: SplitRig) -> list[dict[str, object]]:
    told = zip(rig.host.logged, rig.host.log_fields, strict=True)
    event = "one of several brokers refuses a subscription"
    return [fields for line, fields in told if line == ("warning", event)]


# ---- coming in ---------------------------------------------------------------------------------


def test_the_first_broker_decides_and_others_are_opened_when_needed() -> None:
    rig = SplitRig()
    client = rig.client()
    assert not rig.dialed["two"]
    one = rig.connects("one")
    granted = Properties(topic_alias_maximum=7, server_keep_alive=20)
    assert one.accepts(properties=granted).client_id == "c"
    assert client.heard() == [ConnAck(False, OK, granted)]
    assert not rig.dialed["two"]
    client.say(Publish("two/x", b"1"))
    two = rig.connects("two")
    greeted = two.accepts()
    assert (greeted.client_id, greeted.clean_start) == ("c", True)
    assert two.heard() == [Publish("two/x", b"1")]
    assert one.heard() == []


def test_a_refusal_of_the_first_is_the_clients() -> None:
    rig = SplitRig()
    client = rig.client(level=4)
    one = rig.connects("one")
    one.greeting()
    one.say(ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED))
    assert client.heard() == [ConnAck(False, ConnectReturnCode.NOT_AUTHORIZED)]
    assert client.closed
    assert not rig.dialed["two"]


def test_another_broker_decides_while_the_first_is_away() -> None:
    rig = SplitRig()
    client = rig.client()
    rig.refuses("one")
    two = rig.connects("two")
    two.accepts()
    assert client.heard() == [ConnAck()]
    client.say(Publish("x", b"1", qos=1, packet_id=1))
    assert client.heard() == [PubAck(1, R.IMPLEMENTATION_SPECIFIC_ERROR)]
    rig.comes_back("one")
    one = rig.connects("one")
    one.accepts()
    client.say(Publish("x", b"2", qos=1, packet_id=2))
    assert one.heard() == [Publish("x", b"2", qos=1, packet_id=2)]


def test_nobody_is_there() -> None:
    rig = SplitRig()
    client = rig.client()
    rig.refuses("one")
    rig.refuses("two")
    assert client.heard() == [ConnAck(False, R.SERVER_UNAVAILABLE)]
    assert client.closed


def test_the_will_is_at_the_broker_of_its_topic() -> None:
    rig = SplitRig()
    client = rig.client(will=Will("two/w", b"gone"))
    one = rig.connects("one")
    assert one.accepts().will is None
    assert client.heard() == []
    two = rig.connects("two")
    assert two.accepts().will == Will("two/w", b"gone")
    assert client.heard() == [ConnAck()]
    client.hangs_up()
    assert two.wire.closing
    assert not any(isinstance(each, Disconnect) for each in two.heard())


def test_a_will_that_its_broker_refuses() -> None:
    rig = SplitRig()
    client = rig.client(will=Will("two/w", b"gone"))
    rig.connects("one").accepts()
    two = rig.connects("two")
    two.greeting()
    two.say(ConnAck(False, R.NOT_AUTHORIZED))
    assert client.heard() == [ConnAck(False, R.NOT_AUTHORIZED)]
    assert client.closed


def test_enhanced_authentication_is_the_firsts() -> None:
    rig = SplitRig()
    method = Properties(authentication_method="m", authentication_data=b"1")
    client = rig.client(properties=method)
    one = rig.connects("one")
    assert one.greeting().properties.authentication_method == "m"
    one.say(Auth(R.CONTINUE_AUTHENTICATION, method))
    assert client.heard() == [Auth(R.CONTINUE_AUTHENTICATION, method)]
    client.say(Auth(R.CONTINUE_AUTHENTICATION, method))
    assert one.heard() == [Auth(R.CONTINUE_AUTHENTICATION, method)]
    one.say(ConnAck())
    client.heard()
    client.say(Publish("two/x", b""))
    assert rig.connects("two").accepts().properties.authentication_method is None


def test_an_assigned_id_is_the_same_everywhere() -> None:
    rig = SplitRig()
    client = rig.client("")
    rig.connects("one").accepts(properties=Properties(assigned_client_identifier="given"))
    client.say(Publish("two/x", b""))
    assert rig.connects("two").accepts().client_id == "given"


# ---- publishing --------------------------------------------------------------------------------


def test_acknowledgments_come_from_the_broker_in_charge() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Publish("two/x", b"a", qos=1, packet_id=1), Publish("x", b"b", qos=2, packet_id=2))
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [Publish("two/x", b"a", qos=1, packet_id=1)]
    assert rig.one.heard() == [Publish("x", b"b", qos=2, packet_id=2)]
    two.say(PubAck(1))
    rig.one.say(PubRec(2))
    assert client.heard() == [PubAck(1), PubRec(2)]
    client.say(PubRel(2))
    assert rig.one.heard() == [PubRel(2)]
    rig.one.say(PubComp(2))
    assert client.heard() == [PubComp(2)]
    two.say(PubAck(9))  # which nobody waits for
    assert client.heard() == []


def test_topic_aliases_are_resolved() -> None:
    rig = SplitRig()
    client = rig.client()
    one = rig.connects("one")
    one.accepts(properties=Properties(topic_alias_maximum=5))
    client.heard()
    alias = Properties(topic_alias=3, content_type="t")
    client.say(Publish("two/x", b"1", properties=alias), Publish("", b"2", properties=alias))
    two = rig.connects("two")
    two.accepts()
    plain = Properties(content_type="t")
    assert two.heard() == [
        Publish("two/x", b"1", properties=plain),
        Publish("two/x", b"2", properties=plain),
    ]


def test_what_a_broker_does_not_take_is_refused() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Publish("two/x", b"1", qos=2, packet_id=1))
    two = rig.connects("two")
    two.accepts(properties=Properties(maximum_qos=1, maximum_packet_size=100))
    assert client.heard() == [PubRec(1, R.IMPLEMENTATION_SPECIFIC_ERROR)]
    client.say(Publish("two/x", b"x" * 200, qos=1, packet_id=2))
    assert client.heard() == [PubAck(2, R.IMPLEMENTATION_SPECIFIC_ERROR)]
    client.say(Publish("two/x", b"x", qos=1, packet_id=3))
    assert two.heard() == [Publish("two/x", b"x", qos=1, packet_id=3)]


def test_a_brokers_receive_maximum_holds_and_pubrel_passes() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(*(Publish("two/x", b"%d" % n, qos=2, packet_id=n) for n in (1, 2, 3)))
    two = rig.connects("two")
    two.accepts(properties=Properties(receive_maximum=1))
    assert two.heard() == [Publish("two/x", b"1", qos=2, packet_id=1)]
    two.say(PubRec(1))
    client.say(PubRel(1))
    assert two.heard() == [PubRel(1)]
    two.say(PubComp(1))
    assert two.heard() == [Publish("two/x", b"2", qos=2, packet_id=2)]
    big = Publish("two/x", b"x" * 1024, qos=1, packet_id=4)
    client.say(big)
    assert client.heard()[-1] == PubAck(4, R.QUOTA_EXCEEDED)


def test_topics_that_no_broker_has() -> None:
    rig = SplitRig(default="", topics={"one": ("one/#",), "two": ("two/#",)})
    client = rig.joined()
    client.say(Publish("x", b"", qos=1, packet_id=1), Publish("x", b""))
    assert client.heard() == [PubAck(1, R.TOPIC_NAME_INVALID)]
    assert rig.exchange.counters["broker_away_dropped"] == 1
    client.say(Subscribe(2, subscriptions("x", "one/1")))
    assert rig.one.heard() == [Subscribe(2, subscriptions("one/1"))]
    rig.one.say(SubAck(2, (R.GRANTED_QOS_1,)))
    codes = (R.IMPLEMENTATION_SPECIFIC_ERROR, R.GRANTED_QOS_1)
    assert client.heard() == [SubAck(2, codes)]
    old = rig.client("old", 4)
    rig.connects("one").accepts(reason_code=ConnectReturnCode.ACCEPTED)
    old.heard()
    old.say(Publish("x", b"", qos=1, packet_id=1))
    assert old.closed
    new = rig.client("w", will=Will("x", b""))
    assert new.heard() == [ConnAck(False, R.TOPIC_NAME_INVALID)]
    assert new.closed


def test_a_client_is_not_read_while_a_broker_is_greeted() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(*(Publish("two/x", b"x" * 700) for _ in range(3)))
    client.say(Publish("x", b"later"))
    assert rig.one.heard() == []
    two = rig.connects("two")
    two.accepts()
    assert len(two.heard()) == 3
    assert rig.one.heard() == [Publish("x", b"later")]


# ---- subscribing -------------------------------------------------------------------------------


def test_each_filter_gets_its_own_code() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Subscribe(5, subscriptions("a", "two/b", "#", "$share/g/two/+", qos=2)))
    two = rig.connects("two")
    two.accepts()
    assert rig.one.heard() == [Subscribe(5, subscriptions("a", "#", qos=2))]
    assert two.heard() == [Subscribe(5, subscriptions("two/b", "#", "$share/g/two/+", qos=2))]
    two.say(SubAck(5, (R.NOT_AUTHORIZED, R.GRANTED_QOS_1, R.GRANTED_QOS_2)))
    assert client.heard() == []
    rig.one.say(SubAck(5, (R.GRANTED_QOS_0, R.GRANTED_QOS_2)))
    expected = (R.GRANTED_QOS_0, R.NOT_AUTHORIZED, R.GRANTED_QOS_1, R.GRANTED_QOS_2)
    assert client.heard() == [SubAck(5, expected)]
    assert refusals_told(rig) == [], "by all that have it"
    assert rig.exchange.counters["subscriptions_refused"] == 0


def test_a_filter_that_one_of_its_brokers_refuses_is_taken_back() -> None:
    rig = SplitRig()
    client = rig.joined(level=4)
    client.say(Subscribe(5, subscriptions("#", "a")))
    two = rig.connects("two")
    two.accepts(reason_code=ConnectReturnCode.ACCEPTED)
    rig.one.heard()
    rig.one.say(SubAck(5, (R.GRANTED_QOS_1, R.GRANTED_QOS_1)))
    two.heard()
    two.say(SubAck(5, (R.UNSPECIFIED_ERROR,)))
    assert rig.one.heard() == [Unsubscribe(5, ("#",))]
    assert client.heard() == []
    rig.one.say(UnsubAck(5))
    assert client.heard() == [SubAck(5, (R.UNSPECIFIED_ERROR, R.GRANTED_QOS_1))]
    assert rig.exchange.counters["subscriptions_refused"] == 1
    told = {"client_id": "c", "filter": "#", "broker": "two", "code": "0x80", "filters": 1}
    assert refusals_told(rig) == [told]


def test_an_identifier_that_is_used_again_too_early() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Subscribe(5, subscriptions("a")), Subscribe(5, subscriptions("two/b")))
    two = rig.connects("two")
    two.accepts()
    rig.one.say(SubAck(5, (R.GRANTED_QOS_1,)))
    assert client.heard() == []
    two.say(SubAck(5, (R.GRANTED_QOS_0,)))
    assert client.heard() == [SubAck(5, (R.GRANTED_QOS_0,))]


def test_one_brokers_answer_is_the_clients() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Subscribe(5, subscriptions("a"), Properties(subscription_identifiers=(9,))))
    answer = SubAck(5, (R.GRANTED_QOS_1,), Properties(reason_string="as you like"))
    rig.one.heard()
    rig.one.say(answer)
    assert client.heard() == [answer]


def test_unsubscribing() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Unsubscribe(4, ("two/x", "a")))
    assert not rig.dialed["two"]
    assert rig.one.heard() == [Unsubscribe(4, ("a",))]
    rig.one.say(UnsubAck(4, (OK,)))
    assert client.heard() == [UnsubAck(4, (R.NO_SUBSCRIPTION_EXISTED, OK))]
    client.say(Subscribe(5, subscriptions("#")))
    two = rig.connects("two")
    two.accepts()
    two.heard(), rig.one.heard()
    two.say(SubAck(5, (R.GRANTED_QOS_1,)))
    rig.one.say(SubAck(5, (R.GRANTED_QOS_1,)))
    client.say(Unsubscribe(6, ("#",)))
    two.say(UnsubAck(6, (R.NO_SUBSCRIPTION_EXISTED,)))
    rig.one.say(UnsubAck(6, (OK,)))
    assert client.heard()[-1] == UnsubAck(6, (OK,))


# ---- receiving ---------------------------------------------------------------------------------


def two_brokers(rig: SplitRig, level: int = 5, **connect: object) -> tuple:  # type: ignore[type-arg]
    client = rig.client("c", level, **connect)
    one = rig.connects("one")
    one.accepts()
    client.heard()
    client.say(Publish("two/x", b""))
    two = rig.connects("two")
    two.accepts()
    two.heard()
    return client, one, two


@pytest.mark.parametrize("level", [4, 5])
def test_identifiers_of_two_brokers(level: int) -> None:
    client, one, two = two_brokers(SplitRig(), level)
    one.say(Publish("a", b"1", qos=1, packet_id=1))
    two.say(Publish("two/a", b"2", qos=2, packet_id=1))
    first, second = client.heard()
    assert first == Publish("a", b"1", qos=1, packet_id=1)
    other = second.packet_id
    assert other != 1
    assert second == Publish("two/a", b"2", qos=2, packet_id=other)
    client.say(PubRec(other), PubAck(1))
    assert two.heard() == [PubRec(1)]
    assert one.heard() == [PubAck(1)]
    two.say(PubRel(1))
    assert client.heard() == [PubRel(other)]
    client.say(PubComp(other))
    assert two.heard() == [PubComp(1)]
    two.say(Publish("two/a", b"3", qos=1, packet_id=1))
    assert client.heard() == [Publish("two/a", b"3", qos=1, packet_id=1)]


def test_the_receive_maximum_holds_over_all_brokers() -> None:
    rig = SplitRig()
    client, one, two = two_brokers(rig, properties=Properties(receive_maximum=1))
    one.say(Publish("a", b"1", qos=1, packet_id=1))
    two.say(Publish("two/a", b"2", qos=1, packet_id=7))
    assert client.heard() == [Publish("a", b"1", qos=1, packet_id=1)]
    client.say(PubAck(1))
    assert client.heard() == [Publish("two/a", b"2", qos=1, packet_id=7)]
    two.say(*(Publish("two/a", b"", qos=1, packet_id=n) for n in (1, 2, 3, 4)))
    assert client.closed
    assert rig.relay.counters.refusals["broker-protocol-error"] == 1


def test_each_broker_is_told_its_share() -> None:
    rig = SplitRig()
    rig.client(properties=Properties(receive_maximum=10, topic_alias_maximum=4))
    one = rig.connects("one")
    assert one.accepts().properties.receive_maximum == 5
    client = rig.client("d", properties=Properties(receive_maximum=10, topic_alias_maximum=4))
    rig.connects("one").accepts()
    client.say(Publish("two/x", b""))
    asked = rig.connects("two").accepts().properties
    assert (asked.receive_maximum, asked.topic_alias_maximum) == (5, None)


def test_a_slow_client_stops_all_brokers() -> None:
    client, one, two = two_brokers(SplitRig())
    client.session.pause_writing()
    one.say(Publish("a", b"1"))
    two.say(Publish("two/a", b"2"))
    assert client.heard() == []
    client.session.resume_writing()
    assert {each.payload for each in client.heard()} == {b"1", b"2"}


def test_a_broker_that_cannot_read_stops_the_client() -> None:
    client, one, two = two_brokers(SplitRig())
    part = two.wire._session
    part.pause_writing()
    client.say(Publish("a", b"1"))
    assert one.heard() == []
    part.resume_writing()
    assert one.heard() == [Publish("a", b"1")]


# ---- being there -------------------------------------------------------------------------------


def test_pings_are_answered_and_brokers_are_pinged() -> None:
    rig = SplitRig()
    client, one, two = two_brokers(rig, keep_alive=10)
    client.say(PingReq())
    assert client.heard() == [PingResp()]
    assert one.heard() == two.heard() == []
    rig.host.run(5.0)
    assert one.heard() == two.heard() == [PingReq()]
    one.say(PingResp())
    two.say(PingResp())
    assert client.heard() == []
    rig.host.run(20.0)
    assert client.heard() == [Disconnect(R.KEEP_ALIVE_TIMEOUT)]
    assert client.closed
    assert one.wire.closing


def test_a_broker_that_hangs_is_away() -> None:
    rig = SplitRig()
    client, one, _ = two_brokers(rig, keep_alive=10)
    for _ in range(4):
        client.say(PingReq())
        rig.host.run(5.0)
        one.say(PingResp())
    rig.host.run()
    assert rig.brokers.is_away("two")
    assert not client.closed
    client.heard()
    client.say(Publish("two/x", b"", qos=1, packet_id=1), Publish("a", b"1"))
    assert client.heard() == [PubAck(1, R.IMPLEMENTATION_SPECIFIC_ERROR)]
    assert one.heard()[-1] == Publish("a", b"1")


def test_disconnect_goes_to_all() -> None:
    client, one, two = two_brokers(SplitRig())
    farewell = Disconnect(R.DISCONNECT_WITH_WILL_MESSAGE)
    client.say(farewell)
    client.hangs_up()
    assert one.heard() == two.heard() == [farewell]
    assert one.wire.closing
    assert two.wire.closing


def test_a_broker_that_stands_and_ends_a_session_ends_the_client() -> None:
    rig = SplitRig()
    client, one, two = two_brokers(rig)
    two.closes()
    rig.host.run(0.2)
    assert not client.closed
    rig.connects("two").say(ConnAck())
    assert client.closed
    assert one.wire.closing
    assert rig.recorder.told == []


def test_a_brokers_disconnect_is_the_clients() -> None:
    rig = SplitRig()
    client, one, two = two_brokers(rig)
    two.say(Disconnect(R.ADMINISTRATIVE_ACTION))
    assert client.heard() == [Disconnect(R.ADMINISTRATIVE_ACTION)]
    assert client.closed
    assert one.wire.closing


def test_bad_bytes_of_a_broker_end_that_client_alone() -> None:
    rig = SplitRig()
    client, _, two = two_brokers(rig)
    other = rig.client("other")
    rig.connects("one").accepts()
    two.wire.feed(b"\x10\x00")
    assert client.closed
    assert not other.closed
    assert rig.relay.counters.refusals["broker-protocol-error"] == 1


def test_a_client_that_hangs_up_before_its_connack_is_heard() -> None:
    rig = SplitRig()
    client = rig.client()
    client.say(Publish("x", b"last", qos=0))
    client.hangs_up()
    one = rig.connects("one")
    one.accepts()
    assert Publish("x", b"last") in one.heard()
    assert one.wire.closing
    assert not rig.relay.clients


def test_who_publishes_and_leaves_at_once() -> None:
    rig = SplitRig()
    client = rig.joined()
    client.say(Publish("two/x", b"1"), Publish("two/x", b"2", qos=1, packet_id=1), Disconnect())
    client.hangs_up()
    two = rig.connects("two")
    two.accepts()
    assert two.heard() == [
        Publish("two/x", b"1"),
        Publish("two/x", b"2", qos=1, packet_id=1),
        Disconnect(),
    ]
    assert two.wire.closing
    again = rig.joined("again")
    again.say(Publish("two/x", b"1"))
    again.hangs_up()
    rig.refuses("two")
    assert not rig.dialed["two"]


def test_nothing_is_held_after_all_have_left() -> None:
    rig = SplitRig()
    client, _, _ = two_brokers(rig)
    client.hangs_up()
    rig.host.run(1.0)
    assert not rig.relay.clients
    assert rig.exchange.kept_sessions is not None
    assert rig.exchange.kept_sessions.connected == 0
    assert len(rig.exchange.kept_sessions) == 0
    assert not rig.dialed["one"]
    assert not rig.dialed["two"]


def test_the_connect_is_that_of_the_client() -> None:
    rig = SplitRig()
    connect = Connect("c", keep_alive=33, username="u", password=b"p", protocol_level=4)
    client = rig.client("c", 4, keep_alive=33, username="u", password=b"p")
    one = rig.connects("one")
    assert one.wire.taken() == encode(connect, 4)
    assert client.heard() == []
