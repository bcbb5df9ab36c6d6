"""The form of everything that is kept over a restart: damage costs one record and not the file.

    isthmus-kept <name> <version> <salt> <checksum>\\n     twice, so that one may be damaged
    record  F5 A7, length (4 bytes), checksum (4), body    as many as there are

A record's checksum (CRC-32) covers its length and body and begins with the file's salt.  A body
may contain what a client sent; without knowing the salt nobody can make it contain bytes that pass
for a record when what is around them is damaged.

`scan` reads what can be read: after a damaged place it goes on at the next whole record.  A file
that was being appended to when the machine stopped ends in such a place.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

__all__ = ["Kept", "KeptHeader", "header", "read", "read_header", "record", "scan", "write"]

_MARK: Final = b"\xf5\xa7"
_OVERHEAD: Final = 10
_HEADER: Final = re.compile(
    rb"isthmus-kept ([a-z][a-z0-9-]{0,63}) ([0-9]{1,6}) ([0-9a-f]{8}) ([0-9a-f]{8})\n"
)
_LONGEST_HEADER: Final = 112
MOST_WORK: Final = 4
"""So many times the whole of it is looked at, at most, for what follows a damaged place."""


@dataclass(frozen=True, slots=True)
class KeptHeader:
    """What a file says of itself; `size` is how much of the file that takes."""

    name: str
    version: int
    salt: int
    size: int
    whole: bool
    """Whether both copies are there."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What could be read of a file: `damage` are the places (from, to) that could not."""

    header: KeptHeader | None
    """None if the file is something else, or nothing of its header can be read."""
    records: list[bytes]
    damage: list[tuple[int, int]]

    def is_(self, name: str, version: int) -> bool:
        found = self.header
        return found is not None and (found.name, found.version) == (name, version)


def header(name: str, version: int, salt: int) -> bytes:
    """What a file begins with; `salt` is to be anything that clients cannot foretell."""
    text = f"isthmus-kept {name} {version} {salt:08x} ".encode()
    line = b"%b%08x\n" % (text, zlib.crc32(text))
    if not _HEADER.fullmatch(line):
        raise ValueError(f"{name!r} version {version} cannot be the name of what is kept")
    return line + line


def record(body: bytes, salt: int) -> bytes:
    size = len(body).to_bytes(4)
    checksum = zlib.crc32(body, zlib.crc32(size, salt))
    return b"%b%b%b%b" % (_MARK, size, checksum.to_bytes(4), body)


def write(name: str, version: int, bodies: Iterable[bytes]) -> bytes:
    """A whole file; its salt follows from all of it."""
    kept = list(bodies)
    digest = blake2b(digest_size=4)
    for body in kept:
        digest.update(len(body).to_bytes(4))
        digest.update(body)
    salt = int.from_bytes(digest.digest())
    return header(name, version, salt) + b"".join(record(body, salt) for body in kept)


def read_header(data: bytes) -> KeptHeader | None:
    """What `data` says of itself; None if it is something else or too damaged to tell."""
    first = _one_header(data, 0)
    if first is not None:
        found, end = first
        again = data[end : 2 * end] == data[:end]
        return KeptHeader(*found, size=2 * end, whole=again)
    # The first copy is damaged, and perhaps longer or shorter by what was damaged in it.
    for match in _HEADER.finditer(data[: 2 * _LONGEST_HEADER]):
        second = _one_header(data, match.start())
        if second is not None:
            found, end = second
            return KeptHeader(*found, size=end, whole=False)
    return None


def _one_header(data: bytes, pos: int) -> tuple[tuple[str, int, int], int] | None:
    match = _HEADER.match(data, pos)
    if match is None or zlib.crc32(data[pos : match.start(4)]) != int(match[4], 16):
        return None
    return (match[1].decode(), int(match[2]), int(match[3], 16)), match.end()


def scan(
    data: bytes, found: KeptHeader, *, more: bool = False
) -> Iterator[tuple[int, int, bytes | None]]:
    """Each record of a file in its order: where it begins and ends, and its body.

    A body of None is a place that is damaged.  If `more` of the file follows, what goes on there is
    left out.
    """
    if not found.whole:
        yield 0, found.size, None
    pos = min(found.size, len(data))
    while pos < len(data):
        end = _record_end(data, pos, found.salt)
        if end:
            yield pos, end, data[pos + _OVERHEAD : end]
        elif more and _goes_on(data, pos):
            return
        else:
            end = _next_record(data, pos + 1, found.salt)
            if more and end == len(data):
                return
            yield pos, end, None
        pos = end


def _goes_on(data: bytes, pos: int) -> bool:
    """Whether what begins at `pos` may be a record that is longer than the rest of `data`."""
    size = int.from_bytes(data[pos + 2 : pos + 6])
    return data.startswith(_MARK[: len(data) - pos], pos) and (
        pos + _OVERHEAD > len(data) or pos + _OVERHEAD + size > len(data)
    )


def _record_end(data: bytes, pos: int, salt: int) -> int:
    """Where the record at `pos` ends; 0 if there is no whole one."""
    if not data.startswith(_MARK, pos):
        return 0
    end = pos + _OVERHEAD + int.from_bytes(data[pos + 2 : pos + 6])
    if end > len(data):
        return 0
    checksum = zlib.crc32(data[pos + _OVERHEAD : end], zlib.crc32(data[pos + 2 : pos + 6], salt))
    return end if checksum == int.from_bytes(data[pos + 6 : pos + _OVERHEAD]) else 0


def _next_record(data: bytes, pos: int, salt: int) -> int:
    """Where the next whole one is; the end of `data` if it is not found without too much work.

    What is damaged may be a client's, and made to look like very many records.
    """
    work = MOST_WORK * len(data)
    while work > 0 and (pos := data.find(_MARK, pos)) >= 0:
        if _record_end(data, pos, salt):
            return pos
        end = pos + _OVERHEAD + int.from_bytes(data[pos + 2 : pos + 6])
        work -= end - pos if end <= len(data) else _OVERHEAD
        pos += 1
    return len(data)


def read(data: bytes) -> Kept:
    """All of a file that can be read."""
    found = read_header(data)
    if found is None:
        return Kept(None, [], [(0, len(data))] if data else [])
    records: list[bytes] = []
    damage: list[tuple[int, int]] = []
    for start, end, body in scan(data, found):
        if body is None:
            damage.append((start, end))
        else:
            records.append(body)
    return Kept(found, records, damage)
