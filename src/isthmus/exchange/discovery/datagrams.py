"""What an announcement looks like on the network: one datagram, signed if there is a secret.

    "isth"   1        tag        stamp    id, incarnation, algorithm, address     data
    4 bytes  version  32 bytes   8 bytes  each with its length in a byte          the rest

The tag is an HMAC-SHA-256 of all that follows it, with a key that is made of the fabric's secret;
without a secret it is zero.  The stamp counts milliseconds of the sender's wall clock, and never
stands still: it is greater in every announcement of a node, unless its clock was set back by far.

Invariant: whatever does not fit exactly is a `RemoteProtocolError` that says what is wrong.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from isthmus.cooperation.api import MAX_ANNOUNCEMENT_BYTES
from isthmus.errors import RemoteProtocolError

__all__ = ["MAX_DATAGRAM_BYTES", "Announcement", "discovery_key", "read", "write"]

MAX_DATAGRAM_BYTES = 1_232
"""What every IPv6 network carries in one piece; on others it is less than they do."""

_HEAD = b"isth\x01"
_TAG_BYTES = 32
_NO_TAG = bytes(_TAG_BYTES)
_FORMS = {
    "node id": re.compile(r"[A-Za-z0-9._-]{1,64}"),
    "incarnation": re.compile(r"[0-9a-f]{1,32}"),
    "algorithm": re.compile(r"[!-~]{1,64}"),
    "address": re.compile(r"(?:(?:[A-Za-z0-9._%-]{1,240}|\[[0-9A-Za-z:.%-]{1,238}\]):[0-9]{1,5})?"),
}


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says to whom it does not know."""

    node_id: str
    incarnation: str
    algorithm: str
    address: str
    """Where it can be dialed; empty if it does not know."""
    stamp: int
    data: bytes = b""


def discovery_key(link_key: bytes) -> bytes:
    """What announcements are signed with; empty without a secret."""
    return hmac.digest(link_key, b"isthmus discovery 1", hashlib.sha256) if link_key else b""


def write(announcement: Announcement, key: bytes) -> bytes:
    """The datagram; `ValueError` if the algorithm's data are too long."""
    if len(announcement.data) > MAX_ANNOUNCEMENT_BYTES:
        raise ValueError(
            f"an announcement of {len(announcement.data)} bytes; {MAX_ANNOUNCEMENT_BYTES} fit"
        )
    said = (
        announcement.node_id,
        announcement.incarnation,
        announcement.algorithm,
        announcement.address,
    )
    texts = b"".join(bytes((len(text),)) + text.encode() for text in said)
    body = announcement.stamp.to_bytes(8) + texts + announcement.data
    return _HEAD + (_tag(body, key) if key else _NO_TAG) + body


def _tag(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)


def read(datagram: bytes, key: bytes) -> Announcement | None:
    """What it says; None if it was not made with `key`."""
    if not datagram.startswith(_HEAD[:4]) or len(datagram) > MAX_DATAGRAM_BYTES:
        raise RemoteProtocolError("not an announcement")
    if datagram[4:5] != _HEAD[4:]:
        raise RemoteProtocolError(f"an announcement of version {datagram[4:5].hex() or 'none'}")
    start = len(_HEAD) + _TAG_BYTES
    tag, body = datagram[len(_HEAD) : start], datagram[start:]
    if not hmac.compare_digest(tag, _tag(body, key) if key else _NO_TAG):
        return None
    pos, said = 8, []
    for what, form in _FORMS.items():
        length = body[pos] if pos < len(body) else 0
        text = body[pos + 1 : pos + 1 + length].decode("ascii", "replace")
        if pos + 1 + length > len(body) or not form.fullmatch(text):
            raise RemoteProtocolError(f"an announcement whose {what} cannot be read")
        said.append(text)
        pos += 1 + length
    if len(body) - pos > MAX_ANNOUNCEMENT_BYTES:
        raise RemoteProtocolError(f"an announcement of {len(body) - pos} bytes")
    node_id, incarnation, algorithm, address = said
    return Announcement(
        node_id, incarnation, algorithm, address, int.from_bytes(body[:8]), body[pos:]
    )
