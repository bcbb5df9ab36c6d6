"""A subscriber that comes back: it answers everything, and tells what is new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.load.returning import KeptSession
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, SubAck
from isthmus.mqtt.reason_codes import ReasonCode


def publish(packet_id: int, payload: bytes, *, qos: int, dup: bool = False) -> bytes:
    return encode(Publish("t", payload, qos=qos, dup=dup, packet_id=packet_id), 4)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_sent_again_is_answered_and_not_new(qos: int) -> None:
    session = KeptSession()
    answer = encode(PubAck(7) if qos == 1 else PubRec(7), 4)
    first = publish(7, b"one", qos=qos)
    assert session.take(first) == (answer, first)
    session.lost()
    assert session.take(publish(7, b"one", qos=qos, dup=True)) == (answer, b"")
    # Another message with that packet id, and one that nobody had.
    other = publish(7, b"two", qos=qos, dup=True)
    assert session.take(other) == (answer, other)
    new = publish(8, b"three", qos=qos, dup=True)
    assert session.take(new)[1] == new


def test_at_qos_2_an_identifier_that_was_released_is_free() -> None:
    session = KeptSession()
    frame = publish(3, b"same", qos=2, dup=True)
    assert session.take(frame)[1] == frame
    release = encode(PubRel(3), 4)
    assert session.take(release) == (encode(PubComp(3), 4), release)
    assert session.take(frame) == (encode(PubRec(3), 4), frame)


def test_half_a_packet_is_none_when_the_connection_is_another() -> None:
    session = KeptSession()
    frame = publish(1, b"x" * 50, qos=1)
    assert session.take(frame[:20]) == (b"", b"")
    session.lost()
    granted = encode(SubAck(1, (ReasonCode.GRANTED_QOS_1,)), 4)
    assert session.take(granted + frame) == (encode(PubAck(1), 4), granted + frame)


@given(st.lists(st.integers(1, 40)), st.sampled_from([0, 1, 2]))
def test_however_the_bytes_come(sizes: list[int], qos: int) -> None:
    frames = [publish(n + 1 if qos else 0, bytes([n]) * 40, qos=qos) for n in range(12)]
    data, session = b"".join(frames), KeptSession()
    owed = new = b""
    at = 0
    for size in [*sizes, len(data)]:
        answers, whole = session.take(data[at : at + size])
        owed, new, at = owed + answers, new + whole, at + size
    assert new == data
    kind = {0: None, 1: PubAck, 2: PubRec}[qos]
    assert owed == b"".join(encode(kind(n + 1), 4) for n in range(12) if kind is not None)


def test_bad_bytes() -> None:
    with pytest.raises(RemoteProtocolError):
        KeptSession().take(b"\x30\xff\xff\xff\xff\xff")
