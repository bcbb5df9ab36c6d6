"""The shaping process between real sockets: what it keeps back, carries and ends, and for whom."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from isthmus.bench.rig import shaping
from isthmus.bench.rig.lines import Lines, Shape, Shapes
from isthmus.bench.rig.shaping_main import order, start_shaping
from isthmus.config.addresses import Address
from isthmus.errors import ShapingFailed
from isthmus.exchange.link.hello import Hello, write_connect
from isthmus.mqtt.encoding import encode
from isthmus.processes.children import end
from isthmus.processes.ports import free_port

pytestmark = pytest.mark.alone

TIMEOUT_S = 20.0

Ends = tuple[socket.socket, socket.socket]
Connect = Callable[[Shape], Ends]


class Nodes:
    """Listeners of some nodes, each behind its proxy."""

    def __init__(self, shapes: Shapes, names: str, folder: Path) -> None:
        self._exit = ExitStack()
        self._listeners: dict[str, socket.socket] = {}
        for name in names:
            listener = self._exit.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(TIMEOUT_S)
            self._listeners[name] = listener
        listening = {
            name: Address("127.0.0.1", listener.getsockname()[1])
            for name, listener in self._listeners.items()
        }
        self._folder = folder
        self._process, self._proxies = start_shaping(shapes, listening, folder)
        self._exit.callback(end, self._process, 1.0)

    def order(self, what: Literal["cut", "heal"], *ways: tuple[str, str]) -> None:
        order(self._process, self._folder, what, ways)

    def close(self) -> None:
        self._exit.close()

    def dial(self, node: str, caller: str = "", lane: int = 0) -> Ends:
        """Both ends of a connection to `node`; with `caller`, the greeting has arrived."""
        where = self._proxies[node]
        near = socket.create_connection((where.host, where.port), TIMEOUT_S)
        far = self._listeners[node].accept()[0]
        for each in (near, far):
            self._exit.enter_context(each)
            each.settimeout(TIMEOUT_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if caller:
            said = greeting(caller, lane)
            near.sendall(said)
            assert received(far, len(said)) == said
        return near, far


Start = Callable[[Shapes, str], Nodes]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(shapes, names)`: the proxies of some nodes."""
    with ExitStack() as stack:

        def make(shapes: Shapes, names: str) -> Nodes:
            made = Nodes(shapes, names, tmp_path)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def connect(start: Start) -> Connect:
    """`connect(shape)`: both ends of a connection through a proxy, of somebody that is no node."""
    return lambda shape: start(Shapes(shape), "x").dial("x")


def greeting(caller: str, lane: int = 0) -> bytes:
    return encode(write_connect(Hello(caller, "1f", "sf", lane, 8), 30, b""), 5)


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


def test_nothing_passes_a_line_that_is_cut_until_it_is_whole(start: Start) -> None:
    """a ══ c is cut, first in one direction; b ══ c is not."""
    nodes = start(Shapes(Shape(0.001)), "abc")
    near, far = nodes.dial("c", "a")
    other, far_of_b = nodes.dial("c", "b")
    nodes.order("cut", ("a", "c"))
    near.sendall(b"held")
    far.sendall(b"back")
    other.sendall(b"b")
    assert received(near, 4) == b"back"
    assert received(far_of_b, 1) == b"b"
    nodes.order("cut", ("a", "c"), ("c", "a"))
    nodes.order("heal", ("a", "c"))  # one of the two cuts of that direction
    far.sendall(b"too")
    far.close()
    calling, called = nodes.dial("c")  # who it is is not known yet
    calling.sendall(greeting("a"))
    for silent in (near, called):
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent.recv(1)
        silent.settimeout(TIMEOUT_S)
    nodes.order("heal", ("a", "c"), ("c", "a"))
    assert received(near) == b"too"
    assert received(called, len(greeting("a"))) == greeting("a")


def test_an_order_that_nobody_takes(start: Start, tmp_path: Path) -> None:
    process, _ = start_shaping(Shapes(), {"x": Address("127.0.0.1", 1)}, tmp_path)
    end(process, 0)
    with pytest.raises(ShapingFailed, match="takes no orders"):
        order(process, tmp_path, "cut", [("x", "y")])


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.15])
def test_each_direction_has_the_delay(connect: Connect, delay_s: float) -> None:
    near, far = connect(Shape(delay_s))
    taken_s: list[float] = []
    for sender, receiver in ((near, far), (far, near)) * 4:
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
    process, where = start_shaping(Shapes(Shape(0.01)), {"x": nobody}, tmp_path)
    try:
        for _ in range(2):  # and the proxy goes on
            with socket.create_connection((where["x"].host, where["x"].port), TIMEOUT_S) as near:
                assert received(near) == b""
    finally:
        end(process, 1.0)


def test_a_process_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    broken = Address("127.0.0.1", 99_999)
    with pytest.raises(ShapingFailed, match="ValueError"):
        start_shaping(Shapes(), {"x": broken}, tmp_path)


# ---- each pair of nodes its own line -----------------------------------------------------------


def one_way_s(sender: socket.socket, receiver: socket.socket) -> float:
    sent_s = time.monotonic()
    sender.sendall(b"one way")
    assert received(receiver, 7) == b"one way"
    return time.monotonic() - sent_s


def all_received_s(*transfers: tuple[Ends, int]) -> float:
    """How long it takes until all have come: so many bytes, from one socket to another."""
    begun_s = time.monotonic()
    threads = [
        threading.Thread(target=sender.sendall, args=(bytes(count),))
        for (sender, _), count in transfers
    ]
    threads += [
        threading.Thread(target=received, args=(receiver, count))
        for (_, receiver), count in transfers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)
    return time.monotonic() - begun_s


def nothing_yet(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(TIMEOUT_S)
    return False


def test_two_callers_of_a_node_have_their_own_delays_and_rates(start: Start) -> None:
    nodes = start(
        Shapes(
            Shape(),
            {
                ("a", "c"): Shape(0.03),
                ("c", "a"): Shape(0.06),
                ("b", "c"): Shape(0.4, 500_000),
                ("c", "b"): Shape(0.0, 500_000),
            },
        ),
        "abc",
    )
    (a, a_at_c), (b, b_at_c) = nodes.dial("c", "a"), nodes.dial("c", "b")
    for _ in range(3):
        assert one_way_s(a, a_at_c) >= 0.03
        assert one_way_s(a_at_c, a) >= 0.06
    b.sendall(b"sent first")
    one_way_s(a, a_at_c)
    assert nothing_yet(b_at_c), "what came on the short line was sent later"
    assert received(b_at_c, 10) == b"sent first"
    assert all_received_s(((b_at_c, b), 100_000)) >= 0.2


def test_it_is_the_same_line_whoever_of_the_two_dials(start: Start) -> None:
    nodes = start(Shapes(Shape(), {("a", "b"): Shape(0.05, 1_000_000)}), "ab")
    a, a_at_b = nodes.dial("b", "a")
    b, b_at_a = nodes.dial("a", "b")
    assert one_way_s(a, a_at_b) >= 0.05
    assert one_way_s(b_at_a, b) >= 0.05
    # From a to b on both connections: together they have the one line.
    assert all_received_s(((a, a_at_b), 100_000), ((b_at_a, b), 100_000)) >= 0.05 + 0.2


def test_lanes_share_the_line_and_another_pair_has_its_own(start: Start) -> None:
    nodes = start(Shapes(Shape(0.01, 1_000_000)), "abc")
    lanes = [nodes.dial("c", "a", lane) for lane in range(4)]
    other = nodes.dial("c", "b")
    begun_s = time.monotonic()
    threads = [threading.Thread(target=all_received_s, args=((lane, 250_000),)) for lane in lanes]
    for thread in threads:
        thread.start()
    one_way_s(*other)
    assert any(thread.is_alive() for thread in threads), "b waits for none of a's million bytes"
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert time.monotonic() - begun_s >= 1.0
    for near, far in lanes:
        assert one_way_s(near, far) >= 0.01


def test_a_lane_whose_receiver_does_not_read_is_bounded_and_the_others_go_on(start: Start) -> None:
    nodes = start(Shapes(Shape(0.001, 20_000_000)), "ab")
    stuck, unread = nodes.dial("b", "a", 0)
    other = nodes.dial("b", "a", 1)
    sent = sent_until_held(stuck)
    assert sent < 64 * 1024 * 1024
    all_received_s((other, 100_000))
    stuck.settimeout(TIMEOUT_S)
    stuck.shutdown(socket.SHUT_WR)
    assert len(received(unread)) == sent


@pytest.mark.parametrize("caller", ["", "a"])
@pytest.mark.parametrize("closing", ["near", "far"])
def test_closing_one_side_closes_the_other(start: Start, caller: str, closing: str) -> None:
    near, far = start(Shapes(Shape(0.01)), "ab").dial("b", caller)
    one, other = (near, far) if closing == "near" else (far, near)
    one.close()
    assert received(other) == b""
    other.close()


def test_who_says_nothing_of_himself_has_the_default_and_a_line_to_himself(start: Start) -> None:
    nodes = start(Shapes(Shape(0.05, 1_000_000), {("a", "b"): Shape(), ("b", "a"): Shape()}), "ab")
    stranger, known = nodes.dial("b", "nobody"), nodes.dial("b", "a")
    silent = nodes.dial("b")
    assert one_way_s(*stranger) >= 0.05
    assert one_way_s(*silent[::-1]) >= 0.05  # the node that was called speaks first
    assert one_way_s(*silent) >= 0.05
    stranger[0].sendall(bytes(300_000))
    assert one_way_s(*silent) >= 0.05
    one_way_s(*known)
    assert received(stranger[1], 300_000) == bytes(300_000)


async def _half_a_greeting(said: bytes) -> tuple[bytes, bytes]:
    """What the node gets of `said`, and of what follows, from a caller that stops in between."""
    got = asyncio.Queue[bytes]()

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.put_nowait(await reader.readexactly(len(said)))
        got.put_nowait(await reader.read())
        writer.close()

    server = await asyncio.start_server(node, "127.0.0.1", 0)
    target = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    proxy = await shaping.listen(Lines(Shapes(), "ab"), "b", target)
    async with server, proxy:
        _, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname())
        writer.write(said)
        first = await asyncio.wait_for(got.get(), TIMEOUT_S)
        writer.write(b"the rest")
        writer.write_eof()
        rest = await asyncio.wait_for(got.get(), TIMEOUT_S)
        writer.close()
        return first, rest


def test_a_greeting_that_is_never_finished_is_let_through_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shaping, "GREETING_S", 0.05)
    half = greeting("a")[:20]
    assert asyncio.run(_half_a_greeting(half)) == (half, b"the rest")
