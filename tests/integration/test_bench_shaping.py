"""The shaping process between real sockets: what it keeps back, carries and ends."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.bench.rig.shaping import Shape
from isthmus.bench.rig.shaping_main import start_shaping
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.processes.children import end
from isthmus.processes.ports import free_port

TIMEOUT_S = 20.0

Connect = Callable[[Shape], tuple[socket.socket, socket.socket]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """`connect(shape)`: both ends of a connection through a proxy."""
    processes: list[subprocess.Popen[bytes]] = []
    sockets: list[socket.socket] = []

    def make(shape: Shape) -> tuple[socket.socket, socket.socket]:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)
        target = Address("127.0.0.1", listener.getsockname()[1])
        log = tmp_path / f"{len(processes)}.log"
        process, (where,) = start_shaping(shape, [target], log)
        processes.append(process)
        near = socket.create_connection((where.host, where.port), TIMEOUT_S)
        sockets.append(near)
        listener.settimeout(TIMEOUT_S)
        far = listener.accept()[0]
        sockets.append(far)
        for each in (near, far):
            each.settimeout(TIMEOUT_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far

    yield make
    for each in sockets:
        each.close()
    for process in processes:
        end(process, 1.0)


def received(sock: socket.socket, count: int | None = None) -> bytes:
    """`count` bytes, or all until the end of file."""
    data = bytearray()
    while count is None or len(data) < count:
        chunk = sock.recv(65_536 if count is None else count - len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def sent_until_held(sock: socket.socket) -> int:
    """How many bytes it takes until it has taken none for half a second."""
    sock.settimeout(0.5)
    sent = 0
    while True:
        try:
            sent += sock.send(bytes(65_536))
        except TimeoutError:
            return sent


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.15])
def test_each_direction_has_the_delay(connect: Connect, delay_s: float) -> None:
    near, far = connect(Shape(delay_s))
    taken_s: list[float] = []
    for sender, receiver in ((near, far), (far, near)) * 10:
        sent_s = time.monotonic()
        sender.sendall(b"one way")
        assert received(receiver, 7) == b"one way"
        taken_s.append(time.monotonic() - sent_s)
    assert min(taken_s) >= delay_s
    assert min(taken_s) < delay_s + 0.1  # the quickest; the rest depends on who else is busy


def test_bytes_take_their_time_on_a_narrow_line(connect: Connect) -> None:
    near, far = connect(Shape(0.01, bytes_per_s=1_000_000))
    sent_s = time.monotonic()
    near.sendall(bytes(300_000))
    received(far, 300_000)
    assert time.monotonic() - sent_s >= 0.31


def test_both_directions_carry_megabytes_unchanged(connect: Connect) -> None:
    near, far = connect(Shape(0.002))
    sent = {name: random.Random(name).randbytes(8_000_000) for name in ("near", "far")}
    got: dict[str, str] = {}

    def send(name: str, sock: socket.socket) -> None:
        sock.sendall(sent[name])
        sock.shutdown(socket.SHUT_WR)

    def receive(name: str, sock: socket.socket) -> None:
        got[name] = hashlib.sha256(received(sock)).hexdigest()

    threads = [
        threading.Thread(target=send, args=("near", near)),
        threading.Thread(target=send, args=("far", far)),
        threading.Thread(target=receive, args=("near", far)),
        threading.Thread(target=receive, args=("far", near)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert got == {name: hashlib.sha256(data).hexdigest() for name, data in sent.items()}


def test_one_direction_can_end_while_the_other_goes_on(connect: Connect) -> None:
    near, far = connect(Shape(0.02))
    near.sendall(b"question")
    near.shutdown(socket.SHUT_WR)
    assert received(far) == b"question"
    far.sendall(b"answer")
    far.shutdown(socket.SHUT_WR)
    assert received(near) == b"answer"


def test_nothing_is_lost_when_the_sender_closes_at_once(connect: Connect) -> None:
    near, far = connect(Shape(0.1))
    near.sendall(bytes(500_000))
    near.close()
    assert len(received(far)) == 500_000


def test_a_reset_ends_the_other_side_after_what_was_sent(connect: Connect) -> None:
    near, far = connect(Shape(0.1))
    near.sendall(b"last words")
    assert received(far, 10) == b"last words"  # it has reached the proxy
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    near.close()
    assert received(far) == b""


def test_a_receiver_that_does_not_read_holds_the_sender_back(connect: Connect) -> None:
    near, far = connect(Shape(0.001, bytes_per_s=10_000_000))
    sent = sent_until_held(near)
    assert sent < 64 * 1024 * 1024  # the queue of the line and what kernels keep; then it stops
    near.settimeout(TIMEOUT_S)
    near.shutdown(socket.SHUT_WR)
    assert len(received(far)) == sent


def test_nobody_at_the_far_end_closes_the_near_one(tmp_path: Path) -> None:
    nobody = Address("127.0.0.1", free_port())
    process, (where,) = start_shaping(Shape(0.01), [nobody], tmp_path / "log")
    try:
        for _ in range(2):  # and the proxy goes on
            with socket.create_connection((where.host, where.port), TIMEOUT_S) as near:
                assert received(near) == b""
    finally:
        end(process, 1.0)


def test_a_process_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    broken = Address("127.0.0.1", 99_999)
    with pytest.raises(ShapingFailed, match="ValueError"):
        start_shaping(Shape(), [broken], tmp_path / "log")
