"""The inputs, each as large as the documented limits allow or larger.

An input does not know what the node does about it: refuse it, close the connection or take it.  So
whatever goes wrong with a connection of its own is no failure; what counts is what others notice.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.fabric.neighbor import Neighbor, running_neighbor

from isthmus.exchange.topology.guard import TopologyGuard
from isthmus.exchange.topology.messages import Announcement, LinkEntry, NodeKey, encode_updates
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import Connect, Publish, Subscribe, Subscription, Will
from isthmus.mqtt.primitives import write_variable_byte_integer

__all__ = ["INPUTS", "Input", "Target"]

CHUNK = 1 << 18
MIB = 1 << 20
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where the node under attack listens, and how much of everything is to be sent: 1 is all."""

    port: int
    link_port: int
    ws_port: int
    admin_port: int
    size: float

    def some(self, number: int) -> int:
        return max(1, round(number * self.size))


@dataclass(frozen=True, slots=True)
class Input:
    """One row of the table."""

    name: str
    what: str
    attack: Callable[[Target], None]


# ---- sockets -----------------------------------------------------------------------------


def _open(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def _pour(sock: socket.socket, data: bytes, limit_s: float = PATIENCE_S) -> bool:
    """Send all of it, reading what comes; False if the node ended it."""
    view = memoryview(data)
    ends_s = time.monotonic() + limit_s
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        while view and time.monotonic() < ends_s:
            readable, writable, _ = select.select([sock], [sock], [], 1.0)
            if readable and not sock.recv(CHUNK):
                return False
            if writable:
                view = view[sock.send(view[:CHUNK]) :]
        return not view
    return False


def _read(sock: socket.socket, seconds: float) -> bytes:
    """What comes within that time; ends early with the stream."""
    data = b""
    ends_s = time.monotonic() + seconds
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        while (left_s := ends_s - time.monotonic()) > 0:
            if select.select([sock], [], [], left_s)[0]:
                chunk = sock.recv(CHUNK)
                if not chunk:
                    break
                data += chunk
    return data


def _connected(target: Target, name: str) -> socket.socket:
    sock = _open(target.port)
    sock.sendall(encode(Connect(client_id=name, clean_start=True, keep_alive=0), 5))
    answer = sock.recv(CHUNK)
    if answer[:1] != b"\x20":
        raise ConnectionError("no CONNACK")
    return sock


def _await_frames(sock: socket.socket, head: int, count: int) -> None:
    """Until `count` packets that begin with `head` have come."""
    received = b""
    ends_s = time.monotonic() + PATIENCE_S
    sock.setblocking(False)
    while count and time.monotonic() < ends_s:
        if not select.select([sock], [], [], 1.0)[0]:
            continue
        chunk = sock.recv(CHUNK)
        if not chunk:
            return
        received += chunk
        while (length := frame_length(received, 0)) and len(received) >= length:
            count -= received[0] == head
            received = received[length:]


def _length(data: bytes) -> bytes:
    return write_variable_byte_integer(len(data), 5, "a hostile packet")


def _framed(head: int, body: bytes) -> bytes:
    return bytes([head]) + _length(body) + body


def _user_properties(size: int) -> bytes:
    one = b"\x26\x00\x01a\x00\x01b"
    block = one * (size // len(one))
    return _length(block) + block


# ---- clients -----------------------------------------------------------------------------


def _connect_of(size: int) -> bytes:
    head = b"\x00\x04MQTT\x05\x02\x00\x00"
    return _framed(0x10, head + _user_properties(size) + b"\x00\x05large")


def huge_connect(target: Target) -> None:
    for _ in range(3):
        with _open(target.port) as sock:
            _pour(sock, _connect_of(target.some(16 * MIB - 64)))


def many_connects(target: Target) -> None:
    packet = _connect_of(131_072 - 64)
    for _ in range(target.some(40)):
        with _open(target.port) as sock:
            _pour(sock, packet)
            _read(sock, 0.02)


def huge_subscribe(target: Target) -> None:
    filters = b"\x00\x01a\x00" * target.some(4_000_000)
    with _connected(target, "huge-subscribe") as sock:
        _pour(sock, _framed(0x82, b"\x00\x01\x00" + filters))


def many_filters(target: Target) -> None:
    """As many as one client may have, at most as many per packet as it may send."""
    filters = [f"site/{number}/+/temperature" for number in range(target.some(9_000))]
    _subscribe_and_hang_up(target, "many-filters", filters)


def hard_filters(target: Target) -> None:
    levels = 13 if target.size == 1 else 11
    filters = ["/".join(chosen) + "/#" for chosen in product("+a", repeat=levels)][1:]
    _subscribe_and_hang_up(target, "hard-filters", filters)


def _subscribe_and_hang_up(target: Target, name: str, filters: list[str]) -> None:
    for turn in range(2):
        with _connected(target, f"{name}-{turn}") as sock:
            packets = [
                Subscribe(at // 1000 + 1, tuple(map(Subscription, filters[at : at + 1000])))
                for at in range(0, len(filters), 1000)
            ]
            for packet in packets:
                _pour(sock, encode(packet, 5))
                _await_frames(sock, 0x90, 1)
            _read(sock, 1.0)
        time.sleep(1.0)


def unfinished(target: Target) -> None:
    """Sixteen clients, each with all of a large packet but its end."""
    body = b"\x00\x01a\x00" + bytes(target.some(15 * MIB))
    packet = _framed(0x30, body)[:-1]
    with contextlib.ExitStack() as stack:
        for number in range(16):
            sock = stack.enter_context(_connected(target, f"unfinished-{number}"))
            _pour(sock, packet, 5.0)
        time.sleep(1.0)


def tiny_packets(target: Target) -> None:
    pings = b"\xc0\x00" * target.some(2_000_000)
    publish = encode(Publish("f", b""), 5) * target.some(300_000)
    numbered = b"".join(
        encode(Publish("f", b"", qos=1, packet_id=number), 5) for number in range(1, 60_000)
    )
    for name, data in (("pings", pings), ("publishes", publish), ("numbered", numbered)):
        with _connected(target, f"tiny-{name}") as sock:
            _pour(sock, data, 8.0)


def full_properties(target: Target) -> None:
    topic = b"\x00\x01p"
    within = _framed(0x30, topic + _user_properties(32_000) + b"x")
    beyond = _framed(0x30, topic + _user_properties(target.some(15 * MIB)) + b"x")
    with _connected(target, "properties-within") as sock:
        _pour(sock, within * target.some(200), 8.0)
    with _connected(target, "properties-beyond") as sock:
        _pour(sock, beyond, 8.0)


def deep_topics(target: Target) -> None:
    """Of 128 levels, all different, where filters full of ``+`` stand; then as deep as can be."""
    filters = ["/".join(chosen) + "/x" for chosen in product("+a", repeat=14)]
    filters = [each for each in filters if each.count("+") == 7]
    with _connected(target, "deep-subscriber") as subscriber:
        for at in range(0, len(filters), 1000):
            wanted = tuple(map(Subscription, filters[at : at + 1000]))
            _pour(subscriber, encode(Subscribe(at // 1000 + 1, wanted), 5))
            _await_frames(subscriber, 0x90, 1)
        with _connected(target, "deep-publisher") as sock:
            stem = "a/" * 14
            data = b"".join(
                encode(Publish(f"{stem}{number}", b""), 5) for number in range(target.some(20_000))
            )
            _pour(sock, data, 8.0)
        with _connected(target, "deep-within") as sock:
            data = b"".join(
                encode(Publish("/" * 120 + str(number), b""), 5)
                for number in range(target.some(20_000))
            )
            _pour(sock, data, 8.0)
    for number in range(target.some(20)):
        with _connected(target, f"deep-beyond-{number}") as sock:
            _pour(sock, encode(Publish("/" * 65_000, b""), 5))
            _pour(sock, encode(Subscribe(1, (Subscription("/" * 65_000),)), 5))
            _read(sock, 0.05)


def websocket_fragments(target: Target) -> None:
    """One byte in each frame, and frames without any."""
    with _open(target.ws_port) as sock:
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        sock.sendall(request.encode())
        if b"101" not in sock.recv(4096):
            return
        packet = encode(Connect(client_id="fragments", clean_start=True), 5)
        packet += b"\xc0\x00" * target.some(150_000)
        mask = bytes(4)
        frames = [b"\x02\x81" + mask + packet[:1]]
        frames += [b"\x00\x81" + mask + packet[at : at + 1] for at in range(1, len(packet))]
        _pour(sock, b"".join(frames), 8.0)
        _pour(sock, (b"\x00\x80" + mask) * target.some(200_000), 5.0)


# ---- others ------------------------------------------------------------------------------


def silent_links(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            with contextlib.suppress(OSError):
                stack.enter_context(_open(target.link_port))
        time.sleep(3.0)


def inter_subscriptions(target: Target) -> None:
    """Half of them ordinary, half full of ``+``; then the neighbor leaves."""
    count = target.some(100_000) // 2

    def filters() -> Iterator[str]:
        hard = product("+a", repeat=17)
        for number in range(count):
            yield f"building/{number % 500}/room/{number}/+"
            yield "/".join(next(hard)) + "/x"

    address = f"127.0.0.1:{target.link_port}"
    with running_neighbor("hostile-neighbor", address, filters(), "sf") as one:
        ends_s = time.monotonic() + 60
        while one.announcer.acknowledged < 2 * count and time.monotonic() < ends_s:
            time.sleep(0.05)
            if one.problem:
                raise ConnectionError(one.problem)
    time.sleep(2.0)


def announcements(target: Target) -> None:
    """A neighbor vouches for a line of very many nodes, and goes on changing what it says."""
    sent = threading.Event()

    def flood(neighbor: Neighbor) -> None:
        link = neighbor.exchange.links.links.get("attacked")
        if link is None or not link.state.session:
            neighbor.call_later(0.05, lambda: flood(neighbor))
            return
        guard = neighbor.exchange.guard
        assert isinstance(guard, TopologyGuard)
        guard.message_arrived = lambda *_: None  # type: ignore[method-assign]
        own = guard._own
        keys = [own.node, *(NodeKey(f"fake-{number}", "1") for number in range(1_000))]
        fakes = [
            Announcement(key, 1, tuple(LinkEntry(near, 99, 1) for near in nears))
            for key, *nears in zip(keys[1:-1], keys[:-2], keys[2:], strict=True)
        ]
        last = replace(
            own, sequence=own.sequence + 1, links=(*own.links, LinkEntry(keys[1], 99, 1))
        )
        payloads = [*encode_updates([*fakes, last], [])]
        for number in range(target.some(2_000)):
            last = replace(last, sequence=last.sequence + 1)
            of = fakes[number * 7 % len(fakes)]
            changed = replace(of, sequence=2 + number, links=of.links[: 1 + number % 2])
            payloads += encode_updates([last, changed], [])
        for payload in payloads:
            link.send_control(encode(Publish("$isthmus/topology", payload), 5))
        sent.set()

    address = f"127.0.0.1:{target.link_port}"
    with running_neighbor("hostile-neighbor", address, (), "sf", begin=flood) as one:
        if not sent.wait(PATIENCE_S):
            raise ConnectionError(one.problem or "the flood did not begin")
        ends_s = time.monotonic() + 10.0
        while not one.problem and time.monotonic() < ends_s:
            time.sleep(0.1)
    time.sleep(1.0)


def wills(target: Target) -> None:
    """Many clients, each with a will as large as a CONNECT may be, hang up at the same time."""
    payload = bytes(65_000)
    sockets: list[socket.socket] = []
    for number in range(target.some(400)):
        sock = _open(target.port)
        will = Will(f"wills/{number}", payload, qos=1, retain=True)
        connect = Connect(client_id=f"will-{number}", clean_start=True, keep_alive=0, will=will)
        sock.sendall(encode(connect, 5))
        if sock.recv(CHUNK)[:1] != b"\x20":
            raise ConnectionError("no CONNACK")
        sockets.append(sock)
    linger = struct.pack("ii", 1, 0)
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    for sock in sockets:
        sock.close()
    time.sleep(5.0)


def retained_topics(target: Target) -> None:
    """300,000 retained messages; `bench_hostile` then has the neighbor join anew and compare."""
    with _connected(target, "retained") as sock:
        for start in range(0, target.some(300_000), 1000):
            data = b"".join(
                encode(Publish(f"retained/{number}", b"v", retain=True), 5)
                for number in range(start, start + 1000)
            )
            if not _pour(sock, data, 30.0):
                raise ConnectionError("the node closed the connection")


def slow_admin(target: Target) -> None:
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(_open(target.admin_port)))
        for at in range(30):
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.send(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n"[at : at + 1])
            time.sleep(0.1)


def login_flood(target: Target) -> None:
    """Connections that come and go."""
    packet = encode(Connect(client_id="", clean_start=True), 5)
    linger = struct.pack("ii", 1, 0)
    for _ in range(target.some(3_000)):
        with contextlib.suppress(OSError), _open(target.port) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sock.sendall(packet)


INPUTS = (
    Input("nothing", "only the well-behaved clients", lambda _: time.sleep(4.0)),
    Input("huge CONNECT", "3 of 16 MB of user properties, before any login", huge_connect),
    Input("full CONNECTs", "40 of 128 KiB of user properties", many_connects),
    Input("connections", "3,000 that come and go", login_flood),
    Input("huge SUBSCRIBE", "4 million filters in a packet", huge_subscribe),
    Input("many filters", "9,000 of one client, which hangs up; twice", many_filters),
    Input("hard filters", "8,191 of {+,a}^13/#, and hanging up; twice", hard_filters),
    Input("unfinished packets", "16 clients with 15 MiB each", unfinished),
    Input("tiny packets", "2 million PINGREQ, 360,000 PUBLISH", tiny_packets),
    Input("full properties", "200 PUBLISH with 32 KB, one with 15 MB of them", full_properties),
    Input("deep topics", "40,000 of 15 and 121 levels against 3,432 filters of +", deep_topics),
    Input("WebSocket fragments", "300,000 of one byte, 200,000 of none", websocket_fragments),
    Input("silent links", "256 connections to the link port", silent_links),
    Input("inter-subscriptions", "100,000 of a neighbor, which leaves", inter_subscriptions),
    Input("announcements", "a neighbor vouches for 1,000 nodes, 2,000 times anew", announcements),
    Input("wills", "400 of 65 kB, hanging up together", wills),
    Input("retained topics", "300,000, and comparing them with a neighbor", retained_topics),
    Input("slow admin", "200 connections, a byte every 0.1 s", slow_admin),
)
