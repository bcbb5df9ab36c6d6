"""Framing under any chunking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unit.mqtt.test_framing import frames_of


def encode_length(value: int) -> bytes:
    out = bytearray()
    while True:
        value, byte = divmod(value, 128)
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


frame = st.builds(
    lambda head, body: bytes([head]) + encode_length(len(body)) + body,
    st.integers(0, 255),
    st.binary(max_size=20) | st.binary(min_size=120, max_size=140) | st.just(bytes(20_000)),
)
repeated = st.builds(lambda one, times: [one] * times, frame, st.integers(1, 40))
stream = st.lists(st.lists(frame, max_size=6) | repeated, max_size=4).map(
    lambda groups: [one for group in groups for one in group]
)


@given(stream, st.lists(st.integers(1, 5000), max_size=50), st.binary(max_size=1))
def test_any_chunking_gives_the_same_frames(
    frames: list[bytes], sizes: list[int], rest: bytes
) -> None:
    data = b"".join(frames) + rest
    chunks = []
    pos = 0
    for size in sizes:
        chunks.append(data[pos : pos + size])
        pos += size
    chunks.append(data[pos:])
    assert frames_of(chunk for chunk in chunks if chunk) == (frames, rest)
