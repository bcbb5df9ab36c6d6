"""Clients whose connection a broker closes on their way in."""

from __future__ import annotations

import socket
import threading

import pytest

from isthmus.bench.coordinator.control import Target
from isthmus.bench.load.connecting import ATTEMPTS, connect_clients
from isthmus.errors import LoadError
from isthmus.pipeline.log.reading import LoggedClient

CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\x00\x01\x00"
SUBSCRIBER = LoggedClient(0, "t-sub-0", "t", "subscriber", 0, "n1", "w0")


class HangingUp:
    """Closes the first `times` connections after their CONNECT, and accepts the others."""

    def __init__(self, times: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.seen: list[bytes] = []
        self._times = times
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> HangingUp:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self._thread.join(20)
        for sock in self._kept:
            sock.close()

    def _serve(self) -> None:
        while len(self.seen) < ATTEMPTS:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.seen.append(sock.recv(1000))
            if len(self.seen) <= self._times:
                sock.close()
                continue
            self._kept.append(sock)
            sock.sendall(CONNACK)
            sock.recv(1000)
            sock.sendall(SUBACK)
            return


def connect(server: HangingUp) -> None:
    host, port = server.listener.getsockname()
    (connected,) = connect_clients(
        [SUBSCRIBER], ["topic1"], {"n1": Target(host, port)}, {"t": 0}, 20.0
    )
    connected.sock.close()


def test_a_client_tries_again_as_somebody_else() -> None:
    with HangingUp(ATTEMPTS - 1) as server:
        connect(server)
    assert len(server.seen) == len(set(server.seen)) == ATTEMPTS


def test_and_gives_up_in_the_end() -> None:
    with (
        HangingUp(ATTEMPTS) as server,
        pytest.raises(LoadError, match=r"t-sub-0 at n1 .* closed before it was accepted"),
    ):
        connect(server)
    assert len(server.seen) == ATTEMPTS
