"""The form of a message on disk, while it waits for a destination that is set apart (`spool`).

    wall clock in ms (8 bytes), length of names (2), names, the message as on a link (`to_link`)

The time is that of its arrival, by which messages are in order, and from which its expiry interval
counts; that goes on while a message is on disk, also over a restart.

The names, between commas, are those of the neighbor that it came from (empty: a client) and of the
neighbors that it was passed on to: who has it already is not sent it again on a detour.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.traffic.message import Message, from_link, to_link

__all__ = ["KeptMessage", "read_kept", "write_kept"]


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """What was read."""

    message: Message
    label: bytes
    """With which it goes on."""
    came_from: str
    passed_to: tuple[str, ...]


def write_kept(message: Message, label: bytes, now_s: float, wall_ms: int) -> bytes:
    came_from = message.came_from.name if message.came_from is not None else ""
    passed = [session.name for session, _ in message.passed_to]
    names = ",".join((came_from, *passed)).encode()
    frame = to_link(message, 0, 0, message.arrived_s, label)
    arrived_ms = max(0, wall_ms - round((now_s - message.arrived_s) * 1000))
    return b"%b%b%b%b" % (arrived_ms.to_bytes(8), len(names).to_bytes(2), names, frame)


def read_kept(body: bytes, now_s: float, wall_ms: int) -> KeptMessage | None:
    """None if it was not written by `write_kept`."""
    try:
        return _read(body, now_s, wall_ms)
    except (RemoteProtocolError, ValueError):
        return None


def _read(body: bytes, now_s: float, wall_ms: int) -> KeptMessage:
    waited_s = max(0, wall_ms - int.from_bytes(body[:8])) / 1000
    end = 10 + int.from_bytes(body[8:10])
    came_from, *passed_to = body[10:end].decode().split(",")
    message, _ = from_link(body[end:], now_s - waited_s)
    message.hops -= 1  # of the link that it has not crossed yet
    label, message.label, message.taken_as = message.label, b"", b""
    return KeptMessage(message, label, came_from, tuple(passed_to))
