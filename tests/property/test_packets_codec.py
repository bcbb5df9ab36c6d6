"""The codec under any packet: round trips, truncations, mutations, and the relay's check."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.errors import ProtocolError, RemoteProtocolError
from isthmus.mqtt.decoding import connect_level, decode, decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
from isthmus.mqtt.primitives import PacketType, Reader, write_variable_byte_integer
from isthmus.mqtt.properties import (
    NO_PROPERTIES,
    WILL,
    Kind,
    Properties,
    PropertySpec,
    allowed_properties,
    read_properties,
)
from isthmus.mqtt.publish_properties import check_publish_properties
from isthmus.mqtt.reason_codes import REASON_CODES, ConnectReturnCode, ReasonCode

levels = st.sampled_from((4, 5))
qos = st.integers(0, 2)
packet_ids = st.integers(1, 0xFFFF)
binary = st.binary(max_size=40)
# Every character that UTF-8 can carry but U+0000.
texts = st.text(st.characters(min_codepoint=1, codec="utf-8"), max_size=12)
topics = st.text(
    st.characters(min_codepoint=1, codec="utf-8", exclude_characters="+#"),
    min_size=1,
    max_size=12,
)
filters = st.one_of(
    topics.filter(lambda topic: not topic.startswith("$share")),
    st.sampled_from(("#", "+", "a/+/b", "+/#", "/", "$SYS/#", "$share/group/+/a")),
)


def values_of(spec: PropertySpec) -> st.SearchStrategy[Any]:
    match spec.kind:
        case Kind.BINARY:
            return binary
        case Kind.TEXT:
            return texts
        case Kind.TOPIC_NAME:
            return topics
        case Kind.TEXT_PAIR:
            return st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
        case Kind.BOOLEAN:
            return st.booleans()
        case _:
            return st.integers(spec.minimum, spec.maximum)


def properties_of(carrier: int) -> st.SearchStrategy[Properties]:
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for spec in allowed_properties(carrier).values():
        values = values_of(spec)
        if spec.name == "subscription_identifiers":
            most = 3 if carrier == PacketType.PUBLISH else 1
            values = st.lists(values, max_size=most).map(tuple)
        optional[spec.name] = values
    some = st.fixed_dictionaries({}, optional=optional)
    every = st.fixed_dictionaries(optional)
    return st.one_of(some, every).map(lambda chosen: Properties(**chosen))


def at(level: int, carrier: int) -> st.SearchStrategy[Properties]:
    return properties_of(carrier) if level == 5 else st.just(NO_PROPERTIES)


def codes_of(packet_type: PacketType, level: int) -> st.SearchStrategy[ReasonCode]:
    if level == 5:
        return st.sampled_from(sorted(REASON_CODES[packet_type].codes)).map(ReasonCode)
    if packet_type is PacketType.SUBACK:
        return st.sampled_from((0, 1, 2, 0x80)).map(ReasonCode)
    return st.just(ReasonCode.SUCCESS)


@st.composite
def connects(draw: st.DrawFn, level: int) -> Connect:
    properties = draw(at(level, PacketType.CONNECT))
    if properties.authentication_method is None and properties.authentication_data is not None:
        properties = NO_PROPERTIES
    wills = st.builds(Will, topics, binary, qos, st.booleans(), at(level, WILL))
    username = draw(st.none() | texts)
    may_have_password = level == 5 or username is not None
    return Connect(
        client_id=draw(texts),
        clean_start=draw(st.booleans()),
        keep_alive=draw(st.integers(0, 0xFFFF)),
        username=username,
        password=draw(st.none() | binary) if may_have_password else None,
        will=draw(st.none() | wills),
        properties=properties,
        protocol_level=level,
    )


@st.composite
def connacks(draw: st.DrawFn, level: int) -> ConnAck:
    code: ReasonCode | ConnectReturnCode
    if level == 5:
        code = draw(codes_of(PacketType.CONNACK, level))
    else:
        code = draw(st.sampled_from(ConnectReturnCode))
    present = draw(st.booleans()) and code == 0
    return ConnAck(present, code, draw(at(level, PacketType.CONNACK)))


@st.composite
def publishes(draw: st.DrawFn, level: int) -> Publish:
    at_qos = draw(qos)
    properties = draw(at(level, PacketType.PUBLISH))
    names = topics if properties.topic_alias is None else topics | st.just("")
    return Publish(
        topic=draw(names),
        payload=draw(st.binary(max_size=200)),
        qos=at_qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) and at_qos > 0,
        packet_id=draw(packet_ids) if at_qos else 0,
        properties=properties,
    )


@st.composite
def subscriptions(draw: st.DrawFn, level: int) -> Subscription:
    topic_filter = draw(filters)
    if level != 5:
        return Subscription(topic_filter, draw(qos))
    no_local = draw(st.booleans()) and not topic_filter.startswith("$share/")
    return Subscription(topic_filter, draw(qos), no_local, draw(st.booleans()), draw(qos))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    properties = draw(properties_of(PacketType.AUTH))
    if properties.authentication_method is None:
        return Auth()
    return Auth(draw(codes_of(PacketType.AUTH, 5)), properties)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=1, max_size=4).map(tuple)


def packets_at(level: int) -> st.SearchStrategy[Packet]:
    T = PacketType
    choices: list[st.SearchStrategy[Packet]] = [
        connects(level),
        connacks(level),
        publishes(level),
        st.builds(Subscribe, packet_ids, some(subscriptions(level)), at(level, T.SUBSCRIBE)),
        st.builds(SubAck, packet_ids, some(codes_of(T.SUBACK, level)), at(level, T.SUBACK)),
        st.builds(Unsubscribe, packet_ids, some(filters), at(level, T.UNSUBSCRIBE)),
        st.builds(Disconnect, codes_of(T.DISCONNECT, level), at(level, T.DISCONNECT)),
        st.just(PingReq()),
        st.just(PingResp()),
    ]
    acknowledgments: list[tuple[type[PubAck | PubRec | PubRel | PubComp], PacketType]] = [
        (PubAck, T.PUBACK),
        (PubRec, T.PUBREC),
        (PubRel, T.PUBREL),
        (PubComp, T.PUBCOMP),
    ]
    for kind, packet_type in acknowledgments:
        outcome = codes_of(packet_type, level)
        choices.append(st.builds(kind, packet_ids, outcome, at(level, packet_type)))
    if level == 5:
        choices.append(auths())
        unsubacks = some(codes_of(T.UNSUBACK, 5))
        choices.append(st.builds(UnsubAck, packet_ids, unsubacks, properties_of(T.UNSUBACK)))
    else:
        choices.append(st.builds(UnsubAck, packet_ids))
    return st.one_of(choices)


any_packet = levels.flatmap(lambda level: st.tuples(st.just(level), packets_at(level)))


@given(any_packet)
@settings(max_examples=600, deadline=None)
def test_every_packet_round_trips(case: tuple[int, Packet]) -> None:
    level, packet = case
    frame = encode(packet, level)
    assert decode(frame, level) == packet
    assert decode(memoryview(frame), level) == packet
    if isinstance(packet, Connect):
        assert decode_connect(bytearray(frame)) == packet
        assert connect_level(frame) == level


@given(any_packet)
@settings(max_examples=150, deadline=None)
def test_every_truncation_is_refused(case: tuple[int, Packet]) -> None:
    level, packet = case
    frame = encode(packet, level)
    for end in range(len(frame)):
        try:
            decode(frame[:end], level)
        except RemoteProtocolError:
            continue
        raise AssertionError(f"{end} of {len(frame)} bytes decode: {frame.hex()}")


@given(any_packet, st.data())
@settings(max_examples=150, deadline=None)
def test_every_shortened_body_is_decoded_or_refused(
    case: tuple[int, Packet], data: st.DataObject
) -> None:
    """As above, but with a Remaining Length that fits what is left."""
    level, packet = case
    frame = encode(packet, level)
    reader = Reader(frame, 1, len(frame), level)
    reader.variable_byte_integer()
    body = reader.rest()
    end = data.draw(st.integers(0, len(body)))
    shortened = frame[:1] + write_variable_byte_integer(end, level, "length") + body[:end]
    check_decodes_or_refuses(shortened, level)


@given(any_packet, st.data())
@settings(max_examples=600, deadline=None)
def test_every_mutated_byte_is_decoded_or_refused(
    case: tuple[int, Packet], data: st.DataObject
) -> None:
    level, packet = case
    frame = bytearray(encode(packet, level))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check_decodes_or_refuses(bytes(frame), level)


@given(st.binary(max_size=60), levels)
@settings(deadline=None)
def test_any_bytes_are_decoded_or_refused(frame: bytes, level: int) -> None:
    check_decodes_or_refuses(frame, level)


def check_decodes_or_refuses(frame: bytes, level: int) -> None:
    try:
        packet = decode(frame, level)
    except RemoteProtocolError as refusal:
        error = refusal
    else:
        own_level = packet.protocol_level if isinstance(packet, Connect) else level
        assert decode(encode(packet, own_level), own_level) == packet
        return
    assert error.reason_code >= 0x81
    assert error.section


def outcome_of_reading(block: bytes) -> tuple[int, int, str]:
    wire = write_variable_byte_integer(len(block), 5, "length") + block
    try:
        properties = read_properties(Reader(wire, 0, len(wire), 5), PacketType.PUBLISH)
    except ProtocolError as error:
        return 0, error.reason_code, error.section
    return properties.topic_alias or 0, 0, ""


def outcome_of_checking(block: bytes) -> tuple[int, int, str]:
    try:
        return check_publish_properties(block, 0, len(block), from_client=False), 0, ""
    except ProtocolError as error:
        return 0, error.reason_code, error.section


@given(publishes(5), st.data())
@settings(max_examples=400, deadline=None)
def test_the_relay_agrees_with_the_decoder(packet: Publish, data: st.DataObject) -> None:
    frame = encode(Publish("t", properties=packet.properties), 5)
    reader = Reader(frame, 1, len(frame), 5)
    reader.variable_byte_integer()
    reader.text()
    reader.variable_byte_integer()
    block = bytearray(reader.rest())
    assert outcome_of_checking(bytes(block)) == outcome_of_reading(bytes(block))
    assert outcome_of_checking(bytes(block))[0] == (packet.properties.topic_alias or 0)
    if block:
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
        assert outcome_of_checking(bytes(block)) == outcome_of_reading(bytes(block))


@given(st.binary(max_size=30))
@example(b"\x23\x00\x01\x23\x00\x00")
@settings(deadline=None)
def test_the_relay_agrees_with_the_decoder_on_any_bytes(block: bytes) -> None:
    assert outcome_of_checking(block) == outcome_of_reading(block)
