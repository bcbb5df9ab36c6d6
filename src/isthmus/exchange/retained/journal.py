"""What has to be kept of retained messages over a restart: a file that is appended to.

Its form is that of `isthmus.exchange.kept_records`.  A record is a topic with what is remembered
of it, a topic that was forgotten, or the clock; later ones count.  Small letters are entries which
the local broker had not acknowledged.
"""

from __future__ import annotations

from typing import Final

from isthmus.errors import MalformedPacket
from isthmus.exchange.retained.values import (
    Retained,
    RetainedEntry,
    Version,
    read_retained,
    read_version,
    write_retained,
)
from isthmus.mqtt.primitives import Reader

__all__ = [
    "CLOCK",
    "FORGET",
    "JOURNAL_NAME",
    "JOURNAL_VERSION",
    "journal_body",
    "read_journal_body",
]

JOURNAL_NAME: Final = "retained"
JOURNAL_VERSION: Final = 2
CLOCK: Final = b"C"
FORGET: Final = b"F"
_ENTRY, _ENTRY_WITHOUT_BODY = b"E", b"V"
_OWED, _OWED_WITHOUT_BODY = b"e", b"v"


def journal_body(topic: bytes, entry: RetainedEntry) -> bytes:
    due = (0 if entry.due_ms is None else entry.due_ms + 1).to_bytes(8)
    if entry.payload is None:
        kind = _OWED_WITHOUT_BODY if entry.owed else _ENTRY_WITHOUT_BODY
    else:
        kind = _OWED if entry.owed else _ENTRY
    retained = Retained(topic, entry.payload or b"", entry.properties, entry.qos, entry.version)
    return kind + due + write_retained(retained)


def read_journal_body(body: bytes) -> tuple[bytes, RetainedEntry | Version | None]:
    """A topic with its entry, a topic that was forgotten (None), or no topic and the clock.

    Raises `RemoteProtocolError` if it is none of these.
    """
    kind = body[:1]
    reader = Reader(body, 1, len(body), 5)
    if kind == FORGET:
        return reader.rest(), None
    if kind == CLOCK:
        version = read_version(reader)
        reader.finish()
        return b"", version
    if kind not in (_ENTRY, _ENTRY_WITHOUT_BODY, _OWED, _OWED_WITHOUT_BODY):
        raise MalformedPacket(f"a record of unknown kind {kind!r}")
    due = reader.four_byte_integer() << 32 | reader.four_byte_integer()
    retained = read_retained(reader)
    reader.finish()
    return retained.topic, RetainedEntry(
        retained.version,
        retained.payload if kind in (_ENTRY, _OWED) else None,
        retained.properties,
        retained.qos,
        due - 1 if due else None,
        owed=kind in (_OWED, _OWED_WITHOUT_BODY),
    )
