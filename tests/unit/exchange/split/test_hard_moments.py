"""Two things at once: what happens to a part while it is being opened, restored or held."""

from __future__ import annotations

from isthmus.mqtt.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
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
