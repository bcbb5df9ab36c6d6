"""What a client library hides: single packets, their order, and what the broker answers.

Source: MQTT 3.1.1 and 5; sections at each scenario.
"""

from __future__ import annotations

from conformance.catalog import RAW, scenario
from conformance.observation import Observation, Seen, Stopped
from conformance.stage import Stage
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Auth,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.raw import RawClient

__all__: list[str] = []

ONLY = (RAW,)


def _subscribed(stage: Stage, client: RawClient, topic: str, qos: int) -> str:
    return stage.next_packet(client, Subscribe(1, (Subscription(stage.topic(topic), qos),)))


def _publish(stage: Stage, payload: bytes, qos: int = 0, packet_id: int = 0) -> Publish:
    return Publish(stage.topic("t"), payload, qos=qos, packet_id=packet_id)


def _take(stage: Stage, client: RawClient, kind: type[Publish] = Publish) -> Publish:
    packet = stage.exchange(client)
    if not isinstance(packet, kind):
        raise Stopped(f"instead of a PUBLISH: {stage.describe(packet)}")
    return packet


# ---- the connection ----------------------------------------------------------------------


@scenario("connection", libraries=ONLY)
def ping(stage: Stage) -> Observation:
    client = stage.raw_connected("c")
    answers = tuple(stage.next_packet(client, PingReq()) for _ in range(3))
    return Observation({"answers": answers}, ({"answers": ("PINGRESP",) * 3},))


@scenario("connection", libraries=ONLY)
def connack(stage: Stage) -> Observation:
    """All that the broker says of itself: server keep alive, limits, what is available."""
    client = stage.raw()
    answer = stage.next_packet(client, stage.connect_of(client, "c", keep_alive=60_000))
    return Observation({"answer": answer})


@scenario("connection", libraries=ONLY)
def empty_client_id(stage: Stage) -> Observation:
    """[MQTT-3.1.3-6]: the broker makes one up, and in MQTT 5 tells it."""
    client = stage.raw()
    answer = stage.next_packet(client, stage.connect_of(client, "", client_id=""))
    if stage.level == 4:
        return Observation({"answer": answer}, ({"answer": "CONNACK 0x00"},))
    told = "assigned_client_identifier" in answer
    return Observation(
        {"accepted": answer.startswith("CONNACK 0x00"), "told": told, "answer": answer},
        ({"accepted": True, "told": True, "answer": answer},),
    )


@scenario("connection", libraries=ONLY, levels=(4,))
def empty_client_id_for_a_session_that_lasts(stage: Stage) -> Observation:
    """[MQTT-3.1.3-8]: refused."""
    client = stage.raw()
    connect = stage.connect_of(client, "", client_id="", clean_start=False)
    answers = (stage.next_packet(client, connect), stage.next_packet(client))
    return Observation({"answers": answers}, ({"answers": ("CONNACK 0x02", "closed")},))


@scenario("connection", libraries=ONLY)
def wrong_password(stage: Stage) -> Observation:
    """A broker that lets everybody in accepts it; one that does not says so."""
    client = stage.raw()
    connect = stage.connect_of(client, "c", username="nobody", password=b"wrong")
    return Observation({"answer": stage.next_packet(client, connect)})


@scenario("connection", libraries=ONLY)
def user_name_without_password(stage: Stage) -> Observation:
    client = stage.raw()
    connect = stage.connect_of(client, "c", username="nobody", password=None)
    return Observation({"answer": stage.next_packet(client, connect)})


@scenario("connection", libraries=ONLY, levels=(4,), only_without_5=True)
def mqtt_5_to_a_broker_without_it(stage: Stage) -> Observation:
    """Whatever a broker of 3.1.1 answers: in bytes, since it may be of either version."""
    client = stage.raw(level=5)
    client.send(stage.connect_of(client, "c"))
    try:
        frames = tuple(client.receive_frame().hex() for _ in range(2))
    except TimeoutError:
        frames = ("nothing",)
    return Observation({"bytes": frames}, ({"bytes": ("20020001", "")},))


@scenario("connection", libraries=ONLY, quick=())
def keep_alive_runs_out(stage: Stage) -> Observation:
    """[MQTT-3.1.2-22]: silent for one and a half times the keep alive: closed, with its will."""
    watcher = stage.raw_connected("w")
    _subscribed(stage, watcher, "t", 0)
    client = stage.raw_connected("c", keep_alive=2, will=Will(stage.topic("t"), b"silent"))
    answer = stage.next_packet(client, timeout_s=12)
    will = stage.next_packet(watcher, timeout_s=stage.patience_s)
    ended = answer == "closed" or (stage.level == 5 and answer.startswith("DISCONNECT 0x8d"))
    return Observation(
        {"closed": ended, "end": answer, "will": will},
        ({"closed": True, "end": answer, "will": "PUBLISH t 'silent' qos0"},),
    )


@scenario("connection", libraries=ONLY, early=True)
def everything_in_one_write(stage: Stage) -> Observation:
    """Nothing has to be waited for before the CONNACK (§3.1.4)."""
    client = stage.raw()
    packets = (
        stage.connect_of(client, "c"),
        Subscribe(1, (Subscription(stage.topic("t")),)),
        _publish(stage, b"m"),
        PingReq(),
    )
    first = stage.next_packet(client, b"".join(encode(each, stage.level) for each in packets))
    rest = sorted(stage.next_packet(client) for _ in range(3))
    allowed = ("PINGRESP", "PUBLISH t 'm' qos0", "SUBACK 1 0x00")
    return Observation(
        {"first": first[:12], "rest": tuple(rest)}, ({"first": "CONNACK 0x00", "rest": allowed},)
    )


@scenario("connection", libraries=ONLY, early=True)
def byte_by_byte(stage: Stage) -> Observation:
    client = stage.raw()
    stream = b"".join(
        encode(each, stage.level)
        for each in (
            stage.connect_of(client, "c"),
            Subscribe(1, (Subscription(stage.topic("t")),)),
        )
    )
    for position in range(len(stream) - 1):
        client.send(stream[position : position + 1])
    connack = stage.next_packet(client, stream[-1:])
    suback = stage.next_packet(client)
    message = stage.next_packet(client, _publish(stage, b"m"))
    return Observation(
        {"answers": (connack[:12], suback, message)},
        ({"answers": ("CONNACK 0x00", "SUBACK 1 0x00", "PUBLISH t 'm' qos0")},),
    )


# ---- handshakes --------------------------------------------------------------------------


@scenario("QoS", libraries=ONLY)
def handshake_of_qos_2(stage: Stage) -> Observation:
    """§4.3.3, both halves step by step; a repeated PUBLISH is not delivered twice."""
    subscriber, publisher = stage.raw_connected("s"), stage.raw_connected("p")
    suback = _subscribed(stage, subscriber, "t", 2)
    message = _publish(stage, b"m", 2, 9)
    repeated = Publish(message.topic, b"m", qos=2, packet_id=9, dup=True)
    sent = (
        stage.next_packet(publisher, message),
        stage.next_packet(publisher, repeated),
        stage.next_packet(publisher, PubRel(9)),
    )
    delivered = stage.exchange(subscriber)
    received = [stage.describe(delivered)]
    if isinstance(delivered, Publish):
        received.append(stage.next_packet(subscriber, PubRec(delivered.packet_id)))
        received.append(stage.next_packet(subscriber, PubComp(delivered.packet_id), PingReq()))
    return Observation(
        {"suback": suback, "sent": sent, "received": tuple(received)},
        (
            {
                "suback": "SUBACK 1 0x02",
                "sent": ("PUBREC 0x00", "PUBREC 0x00", "PUBCOMP 0x00"),
                "received": ("PUBLISH t 'm' qos2", "PUBREL 0x00", "PINGRESP"),
            },
        ),
    )


def _lasting(stage: Stage) -> Properties:
    return Properties(session_expiry_interval=60) if stage.level == 5 else NO_PROPERTIES


@scenario("session", libraries=ONLY)
def unacknowledged_is_delivered_again(stage: Stage) -> Observation:
    """[MQTT-4.4.0-1]: in the next connection of the session, with DUP."""
    settings = {"clean_start": False, "properties": _lasting(stage)}
    client = stage.raw_connected("c", **settings)
    _subscribed(stage, client, "t", 1)
    publisher = stage.raw_connected("p")
    puback = stage.next_packet(publisher, _publish(stage, b"m", 1, 5))
    first = _take(stage, client)
    client.close()
    client = stage.raw()
    resumed = stage.next_packet(client, stage.connect_of(client, "c", **settings))
    again = _take(stage, client)
    then = stage.next_packet(client, PubAck(again.packet_id), PingReq())
    return Observation(
        {
            "puback": puback[:6],
            "first": stage.describe(first),
            "session present": "present" in resumed,
            "again": stage.describe(again),
            "same identifier": first.packet_id == again.packet_id,
            "then": then,
        },
        (
            {
                "puback": "PUBACK",
                "first": "PUBLISH t 'm' qos1",
                "session present": True,
                "again": "PUBLISH t 'm' qos1 dup",
                "same identifier": True,
                "then": "PINGRESP",
            },
        ),
    )


# ---- MQTT 5 ------------------------------------------------------------------------------


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def reason_codes(stage: Stage) -> Observation:
    client = stage.raw_connected("c")
    nobody = stage.next_packet(client, _publish(stage, b"m", 1, 3))
    granted = stage.next_packet(
        client,
        Subscribe(4, tuple(Subscription(stage.topic(str(qos)), qos) for qos in (2, 1, 0))),
    )
    removed = stage.next_packet(client, Unsubscribe(5, (stage.topic("1"), stage.topic("never"))))
    seen = {"no subscribers": nobody, "granted": granted, "removed": removed}
    rest = {"granted": "SUBACK 4 0x02 0x01 0x00", "removed": "UNSUBACK 5 0x00 0x11"}
    return Observation(
        seen, tuple({"no subscribers": f"PUBACK {code}", **rest} for code in ("0x10", "0x00"))
    )


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def topic_alias_to_the_broker(stage: Stage) -> Observation:
    """§3.3.2.3.4, as far as the broker's Topic Alias Maximum allows any."""
    subscriber = stage.raw_connected("s")
    _subscribed(stage, subscriber, "#", 0)
    publisher = stage.raw()
    answer = stage.next_packet(publisher, stage.connect_of(publisher, "p"))
    if "topic_alias_maximum" not in answer:
        return Observation({"granted": False})
    alias = Properties(topic_alias=1)
    for topic, payload in (("a", b"1"), ("", b"2"), ("b", b"3"), ("", b"4")):
        name = stage.topic(topic) if topic else ""
        publisher.send(Publish(name, payload, properties=alias))
    # By topic: between two topics no order is promised [MQTT-4.6.0-6].
    came = [stage.next_packet(subscriber) for _ in range(4)]
    messages = tuple(sorted(came, key=lambda each: each.split()[1:2]))
    expected = ("a '1'", "a '2'", "b '3'", "b '4'")
    return Observation(
        {"granted": True, "messages": messages},
        ({"granted": True, "messages": tuple(f"PUBLISH {each} qos0" for each in expected)},),
    )


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def topic_alias_from_the_broker(stage: Stage) -> Observation:
    """It may use those that the client allows, or none; the topic must be clear."""
    allowing = Properties(topic_alias_maximum=5)
    subscriber = stage.raw_connected("s", properties=allowing)
    publisher = stage.raw_connected("p")
    _subscribed(stage, subscriber, "t", 0)
    for payload in (b"1", b"2", b"3"):
        publisher.send(_publish(stage, payload))
    aliases: dict[int, str] = {}
    topics: list[str] = []
    packets: list[str] = []
    for _ in range(3):
        message = _take(stage, subscriber)
        alias = message.properties.topic_alias
        if alias is not None and message.topic:
            aliases[alias] = message.topic
        topics.append(stage.without_prefix(message.topic or aliases.get(alias or 0, "unknown")))
        packets.append(stage.describe(message))
    seen: Seen = {"topics": tuple(topics), "packets": tuple(packets)}
    return Observation(seen, ({"topics": ("t",) * 3, "packets": tuple(packets)},))


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def receive_maximum(stage: Stage) -> Observation:
    """[MQTT-3.3.4-9]: no more unacknowledged messages than the client said."""
    client = stage.raw_connected("c", properties=Properties(receive_maximum=2))
    _subscribed(stage, client, "t", 1)
    publisher = stage.raw_connected("p")
    for number in range(1, 6):
        stage.exchange(publisher, _publish(stage, b"%d" % number, 1, number))
    waiting = [_take(stage, client)]
    while isinstance(packet := stage.exchange(client, timeout_s=0.5), Publish):
        waiting.append(packet)
    at_once = len(waiting)
    messages = [each.payload.decode() for each in waiting]
    while waiting and len(messages) < 5:
        client.send(PubAck(waiting.pop(0).packet_id))
        waiting.append(_take(stage, client))
        messages.append(waiting[-1].payload.decode())
    # Fewer at a time are as good, and depend on the moment.
    return Observation(
        {"within the maximum": at_once <= 2, "messages": tuple(messages)},
        ({"within the maximum": True, "messages": ("1", "2", "3", "4", "5")},),
    )


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def maximum_packet_size(stage: Stage) -> Observation:
    """[MQTT-3.1.2-24]: what is too large for the client is not sent."""
    client = stage.raw_connected("c", properties=Properties(maximum_packet_size=100))
    _subscribed(stage, client, "t", 1)
    publisher = stage.raw_connected("p")
    for number, size in ((1, 200), (2, 3)):
        stage.exchange(publisher, _publish(stage, b"x" * size, 1, number))
    message = stage.next_packet(client)
    return Observation({"message": message}, ({"message": "PUBLISH t 'xxx' qos1"},))


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def authentication_method(stage: Stage) -> Observation:
    """§4.12: a broker that does not know the method refuses with 0x8C."""
    client = stage.raw()
    properties = Properties(authentication_method="ISTHMUS-TEST", authentication_data=b"\x01\x02")
    answer = stage.next_packet(client, stage.connect_of(client, "c", properties=properties))
    return Observation(
        {"answer": answer, "then": stage.next_packet(client, timeout_s=1)},
        ({"answer": "CONNACK 0x8c", "then": "closed"},),
    )


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def authentication_unasked(stage: Stage) -> Observation:
    """[MQTT-4.12.1-1]: AUTH of a client that connected without a method is an error."""
    client = stage.raw_connected("c")
    properties = Properties(authentication_method="ISTHMUS-TEST")
    answer = stage.next_packet(client, Auth(ReasonCode.RE_AUTHENTICATE, properties), timeout_s=2)
    then = stage.next_packet(client, timeout_s=1) if answer.startswith("DISC") else answer
    told = answer.startswith(("DISCONNECT 0x82", "DISCONNECT 0x8c")) or answer == "closed"
    return Observation(
        {"refused": told, "answer": answer, "then": then},
        ({"refused": True, "answer": answer, "then": "closed"},),
    )


@scenario("MQTT 5", libraries=ONLY, levels=(5,))
def session_expiry_changed_at_the_end(stage: Stage) -> Observation:
    """§3.14.2.2.2: DISCONNECT may shorten the session's life to nothing."""
    present: list[bool] = []
    for interval in (None, 0):
        name = f"c{interval}"
        settings = {"clean_start": False, "properties": _lasting(stage)}
        client = stage.raw_connected(name, **settings)
        _subscribed(stage, client, "t", 1)
        ending = Disconnect(properties=Properties(session_expiry_interval=interval))
        stage.exchange(client, ending)
        client.close()
        client = stage.raw()
        present.append(
            "present" in stage.next_packet(client, stage.connect_of(client, name, **settings))
        )
    return Observation({"session present": tuple(present)}, ({"session present": (True, False)},))
