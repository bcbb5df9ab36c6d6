"""`struct tcp_info` of every length, and what sock_diag answers; bytes laid out by hand."""

from __future__ import annotations

import socket
import struct
from dataclasses import fields
from typing import Any

import pytest

from isthmus.bench.watch import tcp_info
from isthmus.bench.watch.tcp_info import TcpInfo

# Offsets of linux/tcp.h, written down independently of the module.
VALUES = {
    "retransmits": (100, "I", 7),
    "bytes_received": (128, "Q", 2**41),
    "segments_out": (136, "I", 1_000),
    "busy_us": (168, "Q", 5_000_000),
    "rwnd_limited_us": (176, "Q", 3_000_000),
    "sndbuf_limited_us": (184, "Q", 1_000_000),
    "bytes_sent": (200, "Q", 2**42),
    "duplicate_retransmits": (216, "I", 5),
    "receive_window_bytes": (232, "I", 131_072),
}
SIZE = 280  # Linux 6.18


def laid_out(**changed: int) -> bytes:
    data = bytearray(b"\xee" * SIZE)
    for name, (offset, code, value) in VALUES.items():
        struct.pack_into("=" + code, data, offset, changed.get(name, value))
    return bytes(data)


def test_every_field_is_found_where_the_kernel_puts_it() -> None:
    info = tcp_info.decode(laid_out())
    assert {f.name: getattr(info, f.name) for f in fields(TcpInfo)} == {
        name: value for name, (_, _, value) in VALUES.items()
    }


@pytest.mark.parametrize("length", [0, 69, 104, 136, 144, 148, 192, 208, 228, 232, 236, 248])
def test_what_an_older_kernel_does_not_have_is_none(length: int) -> None:
    info = tcp_info.decode(laid_out()[:length])
    for name, (offset, code, value) in VALUES.items():
        there = offset + struct.calcsize("=" + code) <= length
        assert getattr(info, name) == (value if there else None), name


def test_since_subtracts_counters_and_nothing_else() -> None:
    before = tcp_info.decode(laid_out())
    after = tcp_info.decode(
        laid_out(retransmits=9, rwnd_limited_us=3_500_000, receive_window_bytes=0)
    )
    grown = after.since(before)
    assert (grown.retransmits, grown.rwnd_limited_us, grown.segments_out) == (2, 500_000, 0)
    assert grown.receive_window_bytes == 0


def test_since_leaves_unknown_what_is_unknown() -> None:
    old = tcp_info.decode(laid_out()[:104])
    assert old.since(old).rwnd_limited_us is None
    assert old.since(old).retransmits == 0


# ---- sock_diag -----------------------------------------------------------------------------


def answer(family: int, port: int, remote: str, remote_port: int, info: bytes | None) -> bytes:
    packed = socket.inet_pton(family, remote)
    body = struct.pack("=BBBB", family, 1, 0, 0)
    body += struct.pack(">HH", port, remote_port) + bytes(16) + packed.ljust(16, b"\0") + bytes(12)
    body += bytes(20)
    body += struct.pack("=HHI", 8, 5, 0)  # an attribute that nobody asked for
    if info is not None:
        body += struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 2, port, 0) + body


DONE = struct.pack("=IHHIIi", 20, 3, 2, 0, 0, 0)


class Kernel:
    """Stands in for the netlink socket: one list of datagrams per request."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []

    def __call__(self, *_: object) -> Kernel:
        return self

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def send(self, request: bytes) -> None:
        self.requests.append(request)

    def recv(self, _: int) -> bytes:
        pending = self.answers[len(self.requests) - 1]
        return pending.pop(0)


def kernel(monkeypatch: pytest.MonkeyPatch, answers: list[list[bytes]]) -> Kernel:
    stand_in = Kernel(answers)
    monkeypatch.setattr(socket, "socket", stand_in)
    return stand_in


def test_connections_of_both_families_in_several_datagrams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = laid_out()
    v4, v6 = socket.AF_INET, socket.AF_INET6
    asked = kernel(
        monkeypatch,
        [
            [
                answer(v4, 1883, "127.0.0.1", 40_001, info) + answer(v4, 1883, "10.0.0.2", 9, info),
                answer(v4, 1883, "127.0.0.1", 40_002, None) + DONE,
            ],
            [
                answer(v6, 1883, "::ffff:127.0.0.1", 40_003, info),
                answer(v6, 1883, "::1", 40_004, info),
                DONE,
            ],
        ],
    )
    found = tcp_info.of_connections([1883, 1883])
    assert set(found) == {
        (1883, "127.0.0.1:40001"),
        (1883, "10.0.0.2:9"),
        (1883, "127.0.0.1:40003"),
        (1883, "[::1]:40004"),
    }
    assert set(found.values()) == {tcp_info.decode(info)}
    assert len(asked.requests) == 2
    assert struct.unpack_from("=IHH", asked.requests[0]) == (72, 20, 0x301)
    assert struct.unpack_from(">H", asked.requests[0], 24) == (1883,)


def test_a_kernel_that_refuses_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = struct.pack("=IHHIIi", 36, 2, 0, 0, 0, -2) + bytes(16)
    kernel(monkeypatch, [[refusal]])
    with pytest.raises(OSError, match="sock_diag") as caught:
        tcp_info.of_connections([1883])
    assert caught.value.errno == 2


def test_a_system_without_netlink_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_NETLINK")
    with pytest.raises(OSError, match="not supported"):
        tcp_info.of_connections([1883])


def test_read_asks_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked:
        def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
            assert (level, optname) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return laid_out()[:buflen]

    asked: Any = Asked()
    assert tcp_info.read(asked).retransmits == 7
