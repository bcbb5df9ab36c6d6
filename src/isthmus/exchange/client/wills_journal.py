"""What has to be kept of wills over a restart: a file that is appended to, a slice at a time.

Its form is that of `isthmus.exchange.kept_records`.  Each will has a number of its own:

    W  number, delay, will    the will of a connection that stands; the delay is in milliseconds
    E  now, (number, end)*    what became of wills: when one that waits is due, or that it is over

`now` and `end` are milliseconds of a clock that does not survive the node, so every life begins
with a file of its own.  A will is armed, may wait, and is over, in this order only: records count
whatever their order, and may come twice.  Each `E` does, because without it a will would be sent
that nobody should see: a flipped bit costs one will and sends none.

Invariants: a will is encoded when it is written, once for each file; no slice is much longer than
`SLICE_BYTES`; what waits to be written is not more than what is remembered and what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from isthmus.errors import IsthmusError, RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.client.client import Client, ClientWill
from isthmus.mqtt.decoding import decode_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, Will

__all__ = ["NAME", "SLICE_BYTES", "VERSION", "WillsJournal", "read_journal"]

SLICE_BYTES: Final = 256 << 10

NAME: Final = "wills"
VERSION: Final = 3
_WILL, _ENDS = b"W", b"E"
_END_BYTES: Final = 16
_OVER: Final = (1 << 64) - 1


class WillsJournal:
    """What is remembered, and what of it is not written yet."""

    def __init__(self, salt: int) -> None:
        """`salt` is to be anything that clients cannot foretell."""
        self._salt = salt
        self._kept: dict[int, tuple[Client, ClientWill]] = {}
        self._changed: dict[int, None] = {}
        self._written: set[int] = set()
        """Those that are in the file, or will be when it is whole."""

    def changed(self, client: Client, will: ClientWill) -> None:
        """It is new, or waits from now on."""
        self._kept[will.number] = client, will
        self._changed[will.number] = None

    def over(self, number: int) -> None:
        del self._kept[number]
        if number in self._written:
            self._changed[number] = None
        else:
            self._changed.pop(number, None)

    def drain(self, now_s: float) -> bytes:
        """The next slice of what has to be appended; empty if nothing has."""
        slice_ = _Slice(self._salt)
        for number in list(islice(self._changed, SLICE_BYTES // _END_BYTES)):
            if slice_.size >= SLICE_BYTES:
                break
            del self._changed[number]
            kept = self._kept.get(number)
            if kept is None:
                self._written.discard(number)
                slice_.end(number, _OVER)
                continue
            slice_.add(*kept, written=number in self._written)
            self._written.add(number)
        return slice_.bytes(now_s)

    def rewriting(self, now_s: float) -> Iterator[bytes]:
        """A new file, in slices; what `drain` returns meanwhile is to be appended to it as well.

        Everything counts as written from now on.
        """
        numbers = list(self._kept)
        self._written = set(numbers)
        self._changed.clear()
        return self._slices(numbers, now_s)

    def _slices(self, numbers: list[int], now_s: float) -> Iterator[bytes]:
        yield kept_records.header(NAME, VERSION, self._salt)
        slice_ = _Slice(self._salt)
        for number in numbers:
            kept = self._kept.get(number)
            if kept is None:
                continue  # it is over: `drain` says so
            slice_.add(*kept)
            if slice_.size >= SLICE_BYTES:
                yield slice_.bytes(now_s)
                slice_ = _Slice(self._salt)
        yield slice_.bytes(now_s)


class _Slice:
    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._wills: list[bytes] = []
        self._ends = bytearray()
        self.size = 0

    def add(self, client: Client, kept: ClientWill, *, written: bool = False) -> None:
        """In the only format that has a place for all of a will: a CONNECT."""
        if not written:
            frame = encode(Connect(client_id=client.name, will=kept.will), 5)
            delay_s = client.will_delay_s(kept.will) if kept.due_s is None else 0
            body = _WILL + kept.number.to_bytes(8) + _ms(delay_s).to_bytes(8) + frame
            self._wills.append(kept_records.record(body, self._salt))
            self.size += len(body)
        if kept.due_s is not None:
            self.end(kept.number, _ms(kept.due_s))

    def end(self, number: int, end: int) -> None:
        self._ends += number.to_bytes(8) + end.to_bytes(8)
        self.size += _END_BYTES

    def bytes(self, now_s: float) -> bytes:
        if not self.size:
            return b""
        ends = kept_records.record(_ENDS + _ms(now_s).to_bytes(8) + self._ends, self._salt)
        return b"".join((ends, *self._wills, ends))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def read_journal(journal: bytes) -> list[tuple[str, Will, float]]:
    """Client id, will and what is left of its delay, of those that were not over.

    What is damaged is left out; whoever keeps the file has told.  Raises `IsthmusError` if this is
    not what a journal says.
    """
    wills: dict[int, tuple[str, Will, float]] = {}
    ends: dict[int, int] = {}
    now_ms = 0
    for record in kept_records.read(journal).records:
        if record[:1] == _WILL:
            wills[int.from_bytes(record[1:9])] = _read_will(record)
        elif record[:1] == _ENDS and len(record) % _END_BYTES == 9:
            now_ms = max(now_ms, int.from_bytes(record[1:9]))
            for at in range(9, len(record), _END_BYTES):
                number = int.from_bytes(record[at : at + 8])
                end = int.from_bytes(record[at + 8 : at + 16])
                ends[number] = max(end, ends.get(number, 0))
        else:
            raise IsthmusError(f"the kept wills are damaged: a record of kind {record[:1]!r}")
    found: list[tuple[str, Will, float]] = []
    for number, (client_id, will, delay_s) in wills.items():
        if number not in ends:
            found.append((client_id, will, delay_s))
        elif ends[number] != _OVER:
            found.append((client_id, will, max(0, ends[number] - now_ms) / 1000))
    return found


def _read_will(record: bytes) -> tuple[str, Will, float]:
    try:
        connect = decode_connect(record[17:])
    except RemoteProtocolError as error:
        raise IsthmusError(f"the kept wills are damaged: {error}") from error
    if connect.will is None:
        raise IsthmusError("the kept wills are damaged: one of them is empty")
    return connect.client_id, connect.will, int.from_bytes(record[9:17]) / 1000
