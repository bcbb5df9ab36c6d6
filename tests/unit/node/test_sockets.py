"""Sessions on an event loop, and options of their sockets."""

from __future__ import annotations

import os
import socket

import pytest

from isthmus.exchange.session import Session
from isthmus.node.sockets import as_protocol, cannot_listen, probe_when_idle
from support.hosts import HandHost


def keep_alive_of(sock: socket.socket) -> tuple[int, int, int, int]:
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        *(sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp),
    )  # type: ignore[return-value]


class View:
    """A socket as an event loop shows it: without `setsockopt`."""

    def __init__(self, sock: socket.socket) -> None:
        self.fileno = sock.fileno


def test_the_kernel_is_asked_to_find_out_who_vanished() -> None:
    with socket.socket() as sock:
        assert keep_alive_of(sock)[0] == 0
        probe_when_idle(View(sock))
        assert keep_alive_of(sock) == (1, 60, 15, 4)  # still open


def test_a_connection_without_a_socket_or_with_a_closed_one_is_left_alone() -> None:
    probe_when_idle(None)
    sock = socket.socket()
    sock.close()
    probe_when_idle(View(sock))


def test_a_socket_that_takes_no_such_option_stays_open() -> None:
    ours, other = socket.socketpair()
    with ours, other:
        with pytest.raises(OSError, match="not supported"):
            probe_when_idle(ours)
        ours.sendall(b"open")
        assert other.recv(4) == b"open"


def test_a_session_is_its_own_protocol() -> None:
    session = Session(HandHost(), 1.0)  # type: ignore[abstract]
    assert as_protocol(session) is session  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(98, "error while attempting to bind on ('::1', 1): in use"), os.strerror(98)),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("no address"), "no address"),
    ],
)
def test_why_an_address_cannot_be_had_is_said_once(error: OSError, cause: str) -> None:
    problem = cannot_listen("mqtt", "[::1]:1", error)
    assert problem.errno == error.errno
    assert str(problem).endswith(f"[listen] mqtt = [::1]:1: {cause}")
    assert "attempting" not in str(problem)
