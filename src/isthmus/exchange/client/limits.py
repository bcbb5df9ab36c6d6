"""What bounds local clients: memory, and waiting.  Its defaults are those of ``[limits]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClientLimits"]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """See ``[limits]`` in the reference of the configuration."""

    packet_bytes: int = 16_777_216
    connect_bytes: int = 131_072
    property_bytes: int = 32_768
    filters_per_packet: int = 1_024
    topic_levels: int = 128
    clients: int = 8_000
    connect_timeout_s: float = 10.0
    broker_timeout_s: float = 5.0
    buffer_bytes: int = 65_536
    pending_bytes: int = 268_435_456
    pending_bytes_per_address: int = 67_108_864
    drain_s: float = 4.0
