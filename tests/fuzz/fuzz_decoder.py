"""Fuzz target for the packet decoder.

    python tests/fuzz/fuzz_decoder.py --inputs 2000000 --seed 1

Most inputs are valid packets with a few mutations that know the structure (a byte, a bit, a
length, a property, a piece of another packet), so that they get past the fixed header; the
rest are random bytes.  Two things must hold for each input, at both protocol levels:

* nothing but a `RemoteProtocolError` escapes from `decode`;
* what decodes is encoded again, and that decodes to an equal packet.

It prints how many inputs were tried, accepted and refused, and the seconds taken.  On a
failure it prints the input in hex and exits with 1.  The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.decoding import connect_level, decode
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
from isthmus.mqtt.primitives import PacketType, write_variable_byte_integer
from isthmus.mqtt.properties import (
    NO_PROPERTIES,
    WILL,
    Kind,
    Properties,
    allowed_properties,
    write_properties,
)
from isthmus.mqtt.reason_codes import REASON_CODES, ConnectReturnCode, ReasonCode

__all__ = ["Failure", "Report", "fuzz"]

TEXTS: Final = ("", "a", "a/b", "sensor/1/temp", "é", "\ufeff", "\U0002a6d4", "x" * 130, "$SYS/a")
TOPICS: Final = tuple(text for text in TEXTS if text)
FILTERS: Final = (*TOPICS, "#", "+", "a/+/b", "+/#", "$share/g/a/#")
BINARY: Final = (b"", b"\x00", b"\xff\xfe", b"payload", bytes(140))
NUMBERS: Final = (0, 1, 2, 127, 128, 255, 256, 16_383, 16_384, 65_535, 65_536, 0xFFFF_FFFF)
# Bytes with a meaning: limits, bad UTF-8, wildcards, levels, and every property identifier.
BYTES: Final = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xFF, *b"#+/$",
                *range(0x01, 0x2C))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that broke a promise."""

    frame: bytes
    level: int
    problem: str


@dataclass(slots=True)
class Report:
    """What a run did."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    packets: Counter[str] = field(default_factory=Counter)
    sections: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{self.inputs} inputs in {self.seconds:.1f} s ({rate:.0f} a second): "
            f"{self.accepted} accepted, of {len(self.packets)} packet types; "
            f"{self.refused} refused, for {len(self.sections)} sections of the specification"
        )


# Valid packets


def some_properties(rng: random.Random, carrier: int, level: int) -> Properties:
    if level != 5 or rng.random() < 0.3:
        return NO_PROPERTIES
    specs = list(allowed_properties(carrier).values())
    values: dict[str, Any] = {}
    for spec in rng.sample(specs, rng.randint(0, min(4, len(specs)))):
        match spec.kind:
            case Kind.BINARY:
                values[spec.name] = rng.choice(BINARY)
            case Kind.TEXT:
                values[spec.name] = rng.choice(TEXTS)
            case Kind.TOPIC_NAME:
                values[spec.name] = rng.choice(TOPICS)
            case Kind.TEXT_PAIR:
                pairs = ((rng.choice(TEXTS), rng.choice(TEXTS)) for _ in range(rng.randint(1, 2)))
                values[spec.name] = tuple(pairs)
            case Kind.BOOLEAN:
                values[spec.name] = rng.random() < 0.5
            case Kind.VARIABLE_BYTE_INTEGER:
                values[spec.name] = (rng.choice((1, 127, 128, 16_384, 268_435_455)),)
            case _:
                values[spec.name] = min(max(rng.choice(NUMBERS), spec.minimum), spec.maximum)
    if carrier in (PacketType.CONNECT, PacketType.AUTH) and values:
        values.setdefault("authentication_method", "m")
    return Properties(**values)


def some_code(rng: random.Random, packet_type: PacketType, level: int) -> ReasonCode:
    if level == 5:
        return ReasonCode(rng.choice(sorted(REASON_CODES[packet_type].codes)))
    return ReasonCode.SUCCESS


def some_connect(rng: random.Random, level: int) -> Connect:
    will = None
    if rng.random() < 0.5:
        properties = some_properties(rng, WILL, level)
        payload = rng.choice(BINARY)
        will = Will(rng.choice(TOPICS), payload, rng.randint(0, 2), rng.random() < 0.5, properties)
    username = rng.choice((None, *TEXTS))
    return Connect(
        client_id=rng.choice(TEXTS),
        clean_start=rng.random() < 0.5,
        keep_alive=rng.choice((0, 60, 65_535)),
        username=username,
        password=rng.choice((None, *BINARY)) if username is not None or level == 5 else None,
        will=will,
        properties=some_properties(rng, PacketType.CONNECT, level),
        protocol_level=level,
    )


def some_publish(rng: random.Random, level: int) -> Publish:
    qos = rng.randint(0, 2)
    return Publish(
        topic=rng.choice(TOPICS),
        payload=rng.choice(BINARY),
        qos=qos,
        retain=rng.random() < 0.5,
        dup=qos > 0 and rng.random() < 0.5,
        packet_id=rng.randint(1, 0xFFFF) if qos else 0,
        properties=some_properties(rng, PacketType.PUBLISH, level),
    )


def some_subscribe(rng: random.Random, level: int) -> Subscribe:
    subscriptions = []
    for _ in range(rng.randint(1, 3)):
        topic_filter, qos = rng.choice(FILTERS), rng.randint(0, 2)
        if level == 5:
            no_local = rng.random() < 0.5 and not topic_filter.startswith("$share/")
            handling = rng.randint(0, 2)
            each = Subscription(topic_filter, qos, no_local, rng.random() < 0.5, handling)
        else:
            each = Subscription(topic_filter, qos)
        subscriptions.append(each)
    properties = some_properties(rng, PacketType.SUBSCRIBE, level)
    return Subscribe(rng.randint(1, 0xFFFF), tuple(subscriptions), properties)


def some_packet(rng: random.Random, level: int) -> Packet:
    packet_type = PacketType(rng.randint(1, 15 if level == 5 else 14))
    packet_id = rng.randint(1, 0xFFFF)
    match packet_type:
        case PacketType.CONNECT:
            return some_connect(rng, level)
        case PacketType.PUBLISH:
            return some_publish(rng, level)
        case PacketType.SUBSCRIBE:
            return some_subscribe(rng, level)
        case PacketType.PINGREQ:
            return PingReq()
        case PacketType.PINGRESP:
            return PingResp()
    properties = some_properties(rng, packet_type, level)
    if packet_type is PacketType.UNSUBSCRIBE:
        topic_filters = tuple(rng.choices(FILTERS, k=rng.randint(1, 3)))
        return Unsubscribe(packet_id, topic_filters, properties)
    code = some_code(rng, packet_type, level)
    match packet_type:
        case PacketType.CONNACK:
            v3 = ConnectReturnCode(rng.randint(0, 5))
            reason = code if level == 5 else v3
            return ConnAck(reason == 0 and rng.random() < 0.5, reason, properties)
        case PacketType.SUBACK:
            return SubAck(packet_id, (code,) * rng.randint(1, 3), properties)
        case PacketType.UNSUBACK:
            return UnsubAck(packet_id, (code,) if level == 5 else (), properties)
        case PacketType.DISCONNECT:
            return Disconnect(code, properties)
        case PacketType.AUTH:
            return Auth(code, properties) if properties != NO_PROPERTIES else Auth()
        case PacketType.PUBACK:
            return PubAck(packet_id, code, properties)
        case PacketType.PUBREC:
            return PubRec(packet_id, code, properties)
        case PacketType.PUBREL:
            return PubRel(packet_id, code, properties)
        case _:
            return PubComp(packet_id, code, properties)


# Mutations of a packet's body; the Remaining Length is put right afterwards, mostly.


def flip_bit(rng: random.Random, body: bytearray, _other: bytes) -> None:
    if body:
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)


def set_byte(rng: random.Random, body: bytearray, _other: bytes) -> None:
    if body:
        body[rng.randrange(len(body))] = rng.choice(BYTES)


def shift_length(rng: random.Random, body: bytearray, _other: bytes) -> None:
    """A byte one off: what lengths and counters are sensitive to."""
    if body:
        at = rng.randrange(len(body))
        body[at] = (body[at] + rng.choice((-2, -1, 1, 2))) & 0xFF


def insert(rng: random.Random, body: bytearray, _other: bytes) -> None:
    at = rng.randint(0, len(body))
    body[at:at] = bytes(rng.choices(BYTES, k=rng.randint(1, 4)))


def delete(rng: random.Random, body: bytearray, _other: bytes) -> None:
    at = rng.randint(0, len(body))
    del body[at : at + rng.randint(1, 4)]


def cut_off(rng: random.Random, body: bytearray, _other: bytes) -> None:
    del body[rng.randint(0, len(body)) :]


def repeat(rng: random.Random, body: bytearray, _other: bytes) -> None:
    at = rng.randint(0, len(body))
    end = min(len(body), at + rng.randint(1, 8))
    body[at:at] = body[at:end]


def splice(rng: random.Random, body: bytearray, other: bytes) -> None:
    body[rng.randint(0, len(body)) :] = other[rng.randint(0, len(other)) :]


def insert_properties(rng: random.Random, body: bytearray, _other: bytes) -> None:
    """A right property block, at any place and perhaps of the wrong packet."""
    carrier = rng.choice((WILL, PacketType.PUBLISH, PacketType.CONNECT, PacketType.CONNACK))
    block = write_properties(some_properties(rng, carrier, 5), carrier)
    at = rng.randint(0, len(body))
    body[at : at + rng.randint(0, 1)] = block


MUTATIONS: Final[tuple[Callable[[random.Random, bytearray, bytes], None], ...]] = (
    flip_bit,
    set_byte,
    shift_length,
    insert,
    delete,
    cut_off,
    repeat,
    splice,
    insert_properties,
)


def body_of(frame: bytes) -> bytes:
    at = 1
    while frame[at] >= 0x80:
        at += 1
    return frame[at + 1 :]


def some_input(rng: random.Random, corpus: list[bytes]) -> bytes:
    choice = rng.random()
    if choice < 0.05:
        return rng.randbytes(rng.randint(0, 40))
    if choice < 0.15:  # random, behind a fixed header that fits
        body: bytes | bytearray = rng.randbytes(rng.randint(0, 40))
        first = rng.randrange(256)
    else:
        frame = rng.choice(corpus)
        body = bytearray(body_of(frame))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            rng.choice(MUTATIONS)(rng, body, body_of(rng.choice(corpus)))
        first = frame[0] if rng.random() < 0.95 else rng.randrange(256)
    if rng.random() < 0.03:  # a Remaining Length that does not fit
        return bytes((first,)) + rng.randbytes(rng.randint(0, 5)) + body
    return bytes((first,)) + write_variable_byte_integer(len(body), 5, "length") + body


# The run


def try_input(frame: bytes, level: int, report: Report) -> str | None:
    """What is wrong with the decoder, as this input shows it; None if nothing is."""
    try:
        packet = decode(frame, level)
    except RemoteProtocolError as error:
        report.refused += 1
        report.sections[error.section] += 1
        return None if error.section else f"no section in {error!r}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  whatever it is, finding it is the purpose
        return traceback.format_exc()
    report.accepted += 1
    report.packets[type(packet).__name__] += 1
    try:
        connect_level(frame)
        own_level = packet.protocol_level if isinstance(packet, Connect) else level
        again = decode(encode(packet, own_level), own_level)
    except Exception:  # noqa: BLE001  as above
        return f"accepted as {packet!r}, but then:\n{traceback.format_exc()}"
    return None if again == packet else f"accepted as {packet!r}, comes back as {again!r}"


def fuzz(inputs: int, seed: int, corpus_size: int = 2_000) -> Report:
    """Try `inputs` inputs, or up to the first that fails; renew the corpus as it goes."""
    rng = random.Random(seed)
    report = Report()
    started = time.perf_counter()
    corpus: dict[int, list[bytes]] = {}
    for number in range(inputs):
        if number % (10 * corpus_size) == 0:
            for level in (4, 5):
                packets = (some_packet(rng, level) for _ in range(corpus_size // 2))
                corpus[level] = [encode(packet, level) for packet in packets]
        level = 5 if rng.random() < 0.7 else 4
        # Now and then a packet of the other version.
        frame = some_input(rng, corpus[level if rng.random() < 0.97 else 9 - level])
        report.inputs += 1
        problem = try_input(frame, level, report)
        if problem is not None:
            report.failure = Failure(frame, level, problem)
            break
    report.seconds = time.perf_counter() - started
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the MQTT packet decoder.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = fuzz(arguments.inputs, arguments.seed)
    print(f"seed {arguments.seed}: {report}")
    for name, count in sorted(report.packets.items()):
        print(f"  accepted {name}: {count}")
    if report.failure is None:
        return 0
    failure = report.failure
    print(f"level {failure.level}, input {failure.frame.hex()}\n{failure.problem}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
