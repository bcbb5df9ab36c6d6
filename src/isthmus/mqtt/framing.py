"""Finding packet boundaries in a byte stream, in any chunking, without copying.

A frame is one MQTT control packet: a type-and-flags byte, the remaining length as a variable
byte integer of one to four bytes (§2.1.4 of MQTT 5, §2.2.3 of 3.1.1), and that many bytes.

:func:`scan` is the function of the hot path.  It looks only at the header of each frame and
returns the boundaries; the caller slices what it needs.  Streams of equal packets, which is what
sensors send and what a busy subscriber gets, are recognized without a step per frame.

:class:`FrameBuffer` puts chunks together until frames are whole, in time linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from isthmus.errors import MalformedPacket, PacketTooLarge

__all__ = ["MAX_FRAME_BYTES", "FrameBuffer", "body_offset", "frame_length", "scan"]

MAX_FRAME_BYTES = 5 + 268_435_455
"""The longest frame MQTT can express: a five-byte header and the largest remaining length."""

_UNIFORM_MIN_FRAMES = 8  # below this, testing for equal frames costs more than it saves


def scan(data: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> Sequence[int]:
    """Return the frame boundaries in `data`, which begins at one.

    Frame *i* is ``data[offsets[i]:offsets[i + 1]]``; ``offsets[-1]`` is where the incomplete
    rest begins, ``len(data)`` if there is none.  Raises :class:`MalformedPacket` for a remaining
    length of more than four bytes and :class:`PacketTooLarge` for a frame over the limit, also
    when the rest of it has not arrived.  The error's `offset` says where that frame begins, so
    that the frames before it are not lost.
    """
    end = len(data)
    length = data[1] + 2 if end > 1 else 0x82
    # By induction: the frame at 0 is `length` long; if the length byte at every multiple of
    # `length` says the same, each of them begins a frame.
    if (
        length < 0x82
        and end >= _UNIFORM_MIN_FRAMES * length
        and end % length == 0
        and length <= max_frame_bytes
        and data[1::length].count(length - 2) * length == end
    ):
        return range(0, end + 1, length)
    offsets = [0]
    append = offsets.append
    pos = 0
    while end - pos >= 2:
        length = data[pos + 1]
        if length < 0x80:
            pos += length + 2
        else:
            length = frame_length(data, pos)
            if length == 0:
                break
            pos += length
        if pos > end:
            break
        append(pos)
    start = offsets[-1]
    if max_frame_bytes < MAX_FRAME_BYTES:
        _check_lengths(data, offsets, max_frame_bytes)
        if end - start >= 2 and frame_length(data, start) > max_frame_bytes:
            raise _too_large(frame_length(data, start), max_frame_bytes, start)
    return offsets


def _check_lengths(data: bytes, offsets: Sequence[int], max_frame_bytes: int) -> None:
    # Frames that are whole are bounded by the chunk they arrived in; only a chunk that could hold
    # an oversize one is looked through.
    if offsets[-1] <= max_frame_bytes:
        return
    for start, stop in pairwise(offsets):
        if stop - start > max_frame_bytes:
            raise _too_large(stop - start, max_frame_bytes, start)


def _too_large(length: int, limit: int, offset: int) -> PacketTooLarge:
    error = PacketTooLarge(
        f"a packet of {length} bytes; the limit is {limit}", section="MQTT-3.1.2-24"
    )
    error.offset = offset
    return error


def frame_length(data: bytes | bytearray | memoryview, start: int) -> int:
    """The whole length of the frame at `start`, or 0 if its header is not complete."""
    end = len(data)
    value = 0
    shift = 0
    pos = start + 1
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos - start + value
        shift += 7
        if shift == 28:
            error = MalformedPacket(
                "a remaining length of more than four bytes", section="MQTT-1.5.5-1"
            )
            error.offset = start
            raise error
    return 0


def body_offset(data: bytes | bytearray | memoryview, start: int) -> int:
    """Where the variable header of the whole frame at `start` begins."""
    pos = start + 1
    while data[pos] >= 0x80:
        pos += 1
    return pos + 1


class FrameBuffer:
    """Puts chunks together until there are whole frames.

    `push` returns bytes that begin at a frame boundary and hold at least one whole frame or the
    next bytes needed to know how much is missing, or ``b""`` while that is not so.  What `scan`
    leaves over goes back with `keep`.  No byte is copied more than twice, whatever the chunking
    of a large packet.
    """

    __slots__ = ("_needed", "_parts", "pending_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._needed = 0
        self.pending_bytes = 0

    def push(self, data: bytes) -> bytes:
        if not self._parts:
            return data
        self._parts.append(data)
        self.pending_bytes += len(data)
        if self.pending_bytes < self._needed:
            return b""
        return self.take()

    def keep(self, rest: bytes) -> None:
        """Keep the incomplete frame `rest` until more of it arrives."""
        if not rest:
            return
        length = frame_length(rest, 0)
        self._needed = length if length else len(rest) + 1
        self._parts.append(rest)
        self.pending_bytes = len(rest)

    def take(self) -> bytes:
        """Everything that is kept, which is then forgotten."""
        kept = b"".join(self._parts)
        self._parts.clear()
        self.pending_bytes = 0
        return kept
