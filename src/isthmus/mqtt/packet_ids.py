"""Packet identifiers: 1 to 65,535, in turn, none that is in use [MQTT-2.2.1-3] [MQTT-2.2.1-4]."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

__all__ = ["IDENTIFIERS", "free_packet_id"]

IDENTIFIERS: Final = 65_535


def free_packet_id(
    last: int, used: Container[int], also_used: Container[int] = (), identifiers: int = IDENTIFIERS
) -> int:
    """The next identifier after `last` that is not in use; one at least must be free."""
    packet_id = last % identifiers + 1
    while packet_id in used or packet_id in also_used:
        packet_id = packet_id % identifiers + 1
    return packet_id
