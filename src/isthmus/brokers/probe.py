"""Asks an address, with one raw CONNECT, whether an MQTT broker answers there.

The few bytes are written by hand so that nothing else of Isthmus has to work for a broker to
be found alive.  Source: MQTT 3.1.1 and 5, sections 3.1 (CONNECT) and 3.2 (CONNACK).
"""

from __future__ import annotations

import os
import socket

__all__ = ["connect_answer"]

_DISCONNECT = b"\xe0\x00"
_CONNACK = 0x20


def _string(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _connect_packet(
    level: int, client_id: str, username: str | None, password: str | None
) -> bytes:
    flags = 0x02 | (0x80 if username is not None else 0) | (0x40 if password is not None else 0)
    body = _string("MQTT") + bytes((level, flags)) + (30).to_bytes(2, "big")
    if level >= 5:
        body += b"\x00"
    body += _string(client_id)
    if username is not None:
        body += _string(username)
    if password is not None:
        body += _string(password)
    if len(body) > 127:
        raise ValueError("user name and password too long for a probe")
    return b"\x10" + bytes((len(body),)) + body


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("closed before CONNACK")
        data += chunk
    return data


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
    client_id = f"isthmus{os.urandom(6).hex()}"
    packet = _connect_packet(level, client_id, username, password)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(packet)
            # Type, remaining length (one byte: even v5's is far below 128 or we only need
            # its first bytes), acknowledge flags, code.
            header = _read_exactly(connection, 2)
            if header[0] != _CONNACK:
                return None
            if header[1] & 0x80:
                _read_exactly(connection, 1)
            code = _read_exactly(connection, 2)[1]
            if code == 0:
                connection.sendall(_DISCONNECT)
            return code
    except OSError:
        return None
