"""What has to be kept of retained messages over a restart: a file that is appended to.

It begins with a line that names the format; then come records, each with its length and checksum:
a topic with what is remembered of it, a topic that was forgotten, or the clock.  Later ones count.
"""

from __future__ import annotations

import zlib
from typing import Final

from isthmus.errors import IsthmusError, MalformedPacket, RemoteProtocolError
from isthmus.exchange.retained_values import (
    Entry,
    Retained,
    Version,
    read_retained,
    read_version,
    write_retained,
)
from isthmus.mqtt.primitives import Reader

__all__ = ["CLOCK", "FORGET", "JOURNAL_HEADER", "journal_entry", "journal_record", "read_journal"]

JOURNAL_HEADER: Final = b"isthmus-retained 1\n"
CLOCK: Final = b"C"
FORGET: Final = b"F"
_ENTRY, _ENTRY_WITHOUT_BODY = b"E", b"V"


def journal_record(kind: bytes, body: bytes) -> bytes:
    record = kind + body
    return len(record).to_bytes(4) + zlib.crc32(record).to_bytes(4) + record


def journal_entry(topic: bytes, entry: Entry) -> bytes:
    due = (0 if entry.due_ms is None else entry.due_ms + 1).to_bytes(8)
    kind = _ENTRY if entry.payload is not None else _ENTRY_WITHOUT_BODY
    retained = Retained(topic, entry.payload or b"", entry.properties, entry.qos, entry.version)
    return journal_record(kind, due + write_retained(retained))


def read_journal(journal: bytes) -> tuple[list[tuple[bytes, Entry | Version | None]], int]:
    """The records of a journal in their order, and where the last whole one ends.

    A record is a topic with its entry, a topic that was forgotten (None), or no topic and the
    clock.  What follows the first record that is incomplete or whose checksum is wrong is left
    out: a file that was being written when the machine stopped ends like that.  A file that is
    something else, or was written by another version, raises `IsthmusError`.
    """
    if len(journal) < len(JOURNAL_HEADER) and JOURNAL_HEADER.startswith(journal):
        return [], 0
    if not journal.startswith(JOURNAL_HEADER):
        raise IsthmusError("the journal of retained messages is not of a format that we can read")
    records: list[tuple[bytes, Entry | Version | None]] = []
    pos = len(JOURNAL_HEADER)
    while pos + 8 <= len(journal):
        end = pos + 8 + int.from_bytes(journal[pos : pos + 4])
        record = journal[pos + 8 : end]
        checksum = int.from_bytes(journal[pos + 4 : pos + 8])
        if end > len(journal) or not record or zlib.crc32(record) != checksum:
            break
        try:
            records.append(_read_journal_record(record))
        except RemoteProtocolError as error:
            raise IsthmusError(f"the journal of retained messages, byte {pos}: {error}") from error
        pos = end
    return records, pos


def _read_journal_record(record: bytes) -> tuple[bytes, Entry | Version | None]:
    kind = record[:1]
    reader = Reader(record, 1, len(record), 5)
    if kind == FORGET:
        return reader.rest(), None
    if kind == CLOCK:
        version = read_version(reader)
        reader.finish()
        return b"", version
    if kind not in (_ENTRY, _ENTRY_WITHOUT_BODY):
        raise MalformedPacket(f"a record of unknown kind {kind!r}")
    due = reader.four_byte_integer() << 32 | reader.four_byte_integer()
    retained = read_retained(reader)
    reader.finish()
    payload = retained.payload if kind == _ENTRY else None
    due_ms = due - 1 if due else None
    return retained.topic, Entry(
        retained.version, payload, retained.properties, retained.qos, due_ms
    )
