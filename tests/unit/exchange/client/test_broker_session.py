"""What comes from the broker goes to the client, whole, and the answers are seen on the way."""

from __future__ import annotations

import pytest

from isthmus.exchange.client.broker_session import WHOLE_PACKET_BYTES
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.relay_rig import RelayRig

ACCEPTED = encode(ConnAck(False, ReasonCode.SUCCESS), 5)
REFUSED = encode(ConnAck(False, ReasonCode.NOT_AUTHORIZED), 5)
HELLO = encode(Connect("c", protocol_level=5), 5)


def publish(payload: bytes, qos: int = 0, packet_id: int = 0, *, retain: bool = False) -> bytes:
    return encode(Publish("t", payload, qos=qos, packet_id=packet_id, retain=retain), 5)


@pytest.fixture
def rig() -> RelayRig:
    return RelayRig()


def test_what_a_client_sends_early_waits_for_the_connack(rig: RelayRig) -> None:
    session, client = rig.open()
    client.feed(HELLO + publish(b"early"))
    broker = rig.broker()
    assert broker.taken() == HELLO
    broker.feed(ACCEPTED[:1])
    assert client.taken() == broker.taken() == b""
    broker.feed(ACCEPTED[1:])
    assert client.taken() == ACCEPTED
    assert broker.taken() == publish(b"early")
    assert session.handle is not None


def test_what_a_refused_client_has_sent_is_nobodys(rig: RelayRig) -> None:
    session, client = rig.open()
    client.feed(HELLO + publish(b"early"))
    broker = rig.broker()
    broker.taken()
    broker.feed(REFUSED)
    assert client.taken() == REFUSED
    assert broker.taken() == b""
    assert session.handle is None
    assert len(rig.exchange.clients) == 0
    broker.feed(b"")
    rig.host.run()
    assert client.closing


def test_a_client_that_hangs_up_early_is_judged_by_its_broker(rig: RelayRig) -> None:
    _, client = rig.open()
    client.feed(HELLO + publish(b"last words"))
    broker = rig.broker()
    broker.taken()
    client.feed(b"")
    rig.host.run()
    assert not broker.closing
    broker.feed(ACCEPTED)
    assert broker.taken() == publish(b"last words")
    rig.host.run()
    assert broker.closing
    assert not rig.relay.clients


def test_a_broker_that_never_answers_an_orphan_is_left(rig: RelayRig) -> None:
    _, client = rig.open()
    client.feed(HELLO)
    broker = rig.broker()
    client.feed(b"")
    rig.host.run(rig.relay.limits.broker_timeout_s + 0.1)
    assert broker.closing
    assert not rig.relay.clients


def test_packets_are_passed_on_whole(rig: RelayRig) -> None:
    _, client, broker = rig.connected()
    one, two = publish(b"one"), publish(b"two")
    broker.feed(one + two[:3])
    assert client.taken() == one
    broker.feed(two[3:])
    assert client.taken() == two


def test_a_very_long_packet_passes_in_pieces_and_nothing_gets_between(rig: RelayRig) -> None:
    session, client, broker = rig.connected()
    long = publish(bytes(WHOLE_PACKET_BYTES))
    broker.feed(long[:1000])
    assert client.taken() == long[:1000]
    session.shut_down()  # it would say DISCONNECT
    assert client.taken() == b""


def test_after_a_very_long_packet_others_follow(rig: RelayRig) -> None:
    _, client, broker = rig.connected()
    long, short = publish(bytes(WHOLE_PACKET_BYTES)), publish(b"x")
    broker.feed(long[:1000])
    broker.feed(long[1000:] + short + short[:2])
    assert client.taken() == long + short
    broker.feed(short[2:])
    assert client.taken() == short


def test_the_exchange_is_shown_the_answer_to_a_subscription(rig: RelayRig) -> None:
    session, client, broker = rig.connected()
    client.feed(encode(Subscribe(7, (Subscription("a/#"),)), 5))
    assert session.awaited == 1
    broker.feed(encode(SubAck(7, (ReasonCode.GRANTED_QOS_0,)), 5))
    assert session.awaited == 0


def test_an_answer_that_comes_twice_hides_no_other(rig: RelayRig) -> None:
    session, client, broker = rig.connected()
    for packet_id, topic_filter in ((1, "a"), (2, "b")):
        client.feed(encode(Subscribe(packet_id, (Subscription(topic_filter),)), 5))
    for packet_id in (1, 1, 9, 2):
        broker.feed(encode(SubAck(packet_id, (ReasonCode.GRANTED_QOS_0,)), 5))
    assert set(rig.exchange.clients.interest.filters) == {"a", "b"}
    assert session.awaited == 0


def test_an_acknowledgment_without_an_identifier_is_the_clients_to_judge(rig: RelayRig) -> None:
    _, client, broker = rig.connected()
    client.feed(publish(b"x", 2, 9, retain=True))
    for answer in (b"\x40\x00", b"\x50\x01\x00", b"\x40\x81\x00\x01"):
        broker.feed(answer)
        assert client.taken() == answer


def test_a_client_that_cannot_be_written_to_holds_its_broker_from_the_start(rig: RelayRig) -> None:
    """A WebSocket's answers to pings can fill it before there is a session with the broker."""
    session, client = rig.open()
    client.feed(HELLO)
    session.pause_writing()
    broker = rig.broker()
    broker.feed(ACCEPTED)
    assert client.taken() == b""
    session.resume_writing()
    rig.host.run()
    assert client.taken() == ACCEPTED
    session.pause_writing()
    broker.feed(publish(b"x"))
    assert client.taken() == b""
    session.resume_writing()
    session.resume_writing()
    rig.host.run()
    assert client.taken() == publish(b"x")
    session.pause_writing()
    broker.feed(publish(b"y"))
    assert client.taken() == b""


@pytest.mark.parametrize(("code", "passed_on"), [(ReasonCode.SUCCESS, 1), (ReasonCode(0x97), 0)])
def test_a_refused_identifier_is_free_again(
    rig: RelayRig, code: ReasonCode, passed_on: int
) -> None:
    session, client, broker = rig.connected()
    client.feed(publish(b"x", 2, 9, retain=True))
    assert len(session.unreleased) == 1
    broker.feed(encode(PubRec(9, code), 5))
    assert len(session.unreleased) == passed_on
    client.feed(encode(PubRel(9), 5))
    assert len(session.unreleased) == 0


def test_what_the_connack_does_not_grant_reaches_the_fabric_if_the_broker_takes_it(
    rig: RelayRig,
) -> None:
    connack = ConnAck(False, ReasonCode.SUCCESS, Properties(retain_available=False))
    session, client, broker = rig.connected(connack=connack)
    client.feed(publish(b"x", 1, 3, retain=True))
    assert list(session.withheld) == [3]
    assert rig.exchange.retention.store.version(b"t") is None
    broker.feed(bytes((0x40, 2, 0, 3)))
    assert not session.withheld
    assert rig.exchange.retention.store.version(b"t") is not None


def test_a_broker_that_sends_no_mqtt_ends_that_pair_alone(rig: RelayRig) -> None:
    _, client, broker = rig.connected("one")
    _, other, _ = rig.connected("other")
    broker.feed(b"\x30\xff\xff\xff\xff\xff")
    rig.host.run()
    assert client.closing
    assert not other.closing
    assert rig.relay.counters.refusals == {"broker-protocol-error": 1}
