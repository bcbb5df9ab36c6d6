"""Frame scanning: each case whole, byte by byte, and with bytes left over."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from isthmus.errors import MalformedPacket, PacketTooLarge
from isthmus.mqtt.framing import FrameBuffer, body_offset, frame_length, scan

PINGREQ = b"\xc0\x00"
SHORT = b"\x30\x05\x00\x01tab"
LONG = b"\x30\xc8\x01" + bytes(200)  # 200 = 0x48 + 0x80 * 1


def frames_of(chunks: Iterable[bytes]) -> tuple[list[bytes], bytes]:
    """What a reader that gets `chunks` sees: the frames, and what is left over."""
    buffer = FrameBuffer()
    frames: list[bytes] = []
    for chunk in chunks:
        data = buffer.push(chunk)
        if not data:
            continue
        offsets = scan(data)
        frames += [data[a:b] for a, b in pairwise(offsets)]
        buffer.keep(data[offsets[-1] :])
    return frames, buffer.take()


@pytest.mark.parametrize(
    "frames",
    [[PINGREQ], [SHORT], [LONG], [SHORT] * 60, [LONG] * 3, [PINGREQ, SHORT, LONG, SHORT]],
    ids=["ping", "short", "long", "uniform", "uniform-long", "mixed"],
)
def test_whole_and_byte_by_byte_and_with_bytes_left_over(frames: list[bytes]) -> None:
    data = b"".join(frames)
    assert frames_of([data]) == (frames, b"")
    assert frames_of(bytes([byte]) for byte in data) == (frames, b"")
    for extra in (b"\x30", b"\x30\x80", b"\x30\x05\x00"):
        assert frames_of([data + extra]) == (frames, extra)


def test_equal_length_bytes_at_wrong_places_do_not_pass_as_uniform() -> None:
    # Every seventh byte is 5 here although the frames are of different lengths.
    data = (b"\x30\x05AAAAA" * 40) + b"\x30\x0c" + b"B" * 12
    assert len(data) % 7 == 0
    assert scan(data)[-2:] == [280, 294]


@pytest.mark.parametrize(
    ("length", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_remaining_lengths_at_the_borders(length: int, encoded: bytes) -> None:
    header = b"\x30" + encoded
    assert frame_length(header, 0) == len(header) + length
    assert body_offset(header + b"x", 0) == len(header)
    for cut in range(len(header)):
        assert frame_length(header[:cut], 0) == 0


def test_a_fifth_length_byte_is_malformed_and_says_where() -> None:
    with pytest.raises(MalformedPacket) as caught:
        scan(SHORT + b"\x30\xff\xff\xff\xff")
    assert caught.value.offset == len(SHORT)
    assert caught.value.reason_code == 0x81


@pytest.mark.parametrize("whole", [True, False])
def test_a_frame_over_the_limit_is_refused_when_its_header_is_seen(whole: bool) -> None:
    with pytest.raises(PacketTooLarge) as caught:
        scan(SHORT + (LONG if whole else LONG[:3]), max_frame_bytes=202)
    assert caught.value.offset == len(SHORT)
    assert caught.value.reason_code == 0x95
    assert scan(SHORT + LONG, max_frame_bytes=203)[-1] == len(SHORT + LONG)


def test_the_limit_holds_for_uniform_frames_too() -> None:
    with pytest.raises(PacketTooLarge):
        scan(SHORT * 100, max_frame_bytes=6)


def test_a_large_packet_in_many_chunks_is_joined_once() -> None:
    frame = b"\x30\x80\x80\x40" + bytes(1 << 20)
    chunks = [frame[i : i + 1000] for i in range(0, len(frame), 1000)]
    buffer = FrameBuffer()
    first = buffer.push(chunks[0])
    buffer.keep(first)
    assert all(buffer.push(chunk) == b"" for chunk in chunks[1:-1])
    assert buffer.pending_bytes == len(frame) - len(chunks[-1])
    assert buffer.push(chunks[-1]) == frame
    assert buffer.pending_bytes == 0
