"""A raw MQTT peer for tests: bytes out, packets in, nothing hidden."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Self

from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import ConnAck, Connect, Packet

__all__ = ["RawClient"]


class RawClient:
    """One TCP connection to a broker or a node, with a deadline on every read."""

    def __init__(self, port: int, level: int = 5, *, timeout_s: float = 10) -> None:
        self.level = level
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._received = b""

    def send(self, data: bytes | Packet) -> Self:
        self.socket.sendall(data if isinstance(data, bytes) else encode(data, self.level))
        return self

    def connect(self, client_id: str = "", **fields: Any) -> ConnAck:
        """CONNECT, and the CONNACK that must come."""
        fields = {"clean_start": True, "keep_alive": 60} | fields
        self.send(Connect(client_id=client_id, protocol_level=self.level, **fields))
        answer = self.receive()
        assert isinstance(answer, ConnAck), answer
        return answer

    def receive_frame(self) -> bytes:
        """The next packet's bytes; ``b""`` at the end of the stream."""
        while True:
            length = frame_length(self._received, 0)
            if length and len(self._received) >= length:
                frame, self._received = self._received[:length], self._received[length:]
                return frame
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                assert not self._received, f"the stream ends within a packet: {self._received!r}"
                return b""
            self._received += chunk

    def receive(self) -> Packet | None:
        """The next packet; None at the end of the stream."""
        frame = self.receive_frame()
        return decode(frame, self.level) if frame else None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
