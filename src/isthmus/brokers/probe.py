"""Asks an address, with one CONNECT, whether an MQTT broker answers there."""

from __future__ import annotations

import os
import socket

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect

__all__ = ["connect_answer"]

_DISCONNECT = b"\xe0\x00"
_CONNACK = 0x20


def connect_answer(
    host: str,
    port: int,
    *,
    level: int = 4,
    username: str | None = None,
    password: str | None = None,
    timeout_s: float = 2.0,
) -> int | None:
    """CONNACK's return code (v3.1.1) or reason code (v5); None when no CONNACK came."""
    secret = None if password is None else password.encode()
    client_id = f"isthmus{os.urandom(6).hex()}"
    connect = Connect(client_id, True, 30, username, secret, protocol_level=level)
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(encode(connect, level))
            # Type, remaining length (one byte: even v5's is far below 128 or we only need
            # its first bytes), acknowledge flags, code.
            header = answer.read(2)
            if header[0] != _CONNACK:
                return None
            if header[1] & 0x80:
                answer.read(1)
            code = answer.read(2)[1]
            if code == 0:
                connection.sendall(_DISCONNECT)
            return code
    except (OSError, IndexError):  # the latter: it was closed before all of that had come
        return None
