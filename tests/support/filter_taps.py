"""A tap before a broker that notes the filters of SUBSCRIBE and UNSUBSCRIBE, as they pass."""

from __future__ import annotations

import socket
import threading
from itertools import pairwise
from types import TracebackType
from typing import Self

from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import Subscribe, Unsubscribe

__all__ = ["FilterTap"]

READ_BYTES = 65_536
_CONNECT = 0x10
_OF_FILTERS = (0x82, 0xA2)


class FilterTap:
    """A context manager; to be dialed at `port` in place of the broker."""

    username: str | None = None
    password: str | None = None

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.subscribed: list[str] = []
        self.unsubscribed: list[str] = []

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for each in list(self._sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it was closed at the other end
            finally:
                each.close()
        for thread in list(self._threads):
            thread.join(5)
            assert not thread.is_alive()

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._broker_port))
            self._sockets += [near, far]
            self._begin(self._pass, near, far, True)
            self._begin(self._pass, far, near, False)

    def _pass(self, source: socket.socket, target: socket.socket, notes: bool) -> None:
        buffer, level = FrameBuffer(), 4
        try:
            while data := source.recv(READ_BYTES):
                if notes and (whole := buffer.push(data)):
                    offsets = scan(whole)
                    for start, stop in pairwise(offsets):
                        level = self._note(whole[start:stop], level)
                    buffer.keep(whole[offsets[-1] :])
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of them has hung up

    def _note(self, frame: bytes, level: int) -> int:
        if frame[0] == _CONNECT:
            return decode_connect(frame).protocol_level
        if frame[0] in _OF_FILTERS:
            packet = decode(frame, level)
            if isinstance(packet, Subscribe):
                self.subscribed += [each.topic_filter for each in packet.subscriptions]
            elif isinstance(packet, Unsubscribe):
                self.unsubscribed += packet.topic_filters
        return level
