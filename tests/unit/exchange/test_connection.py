"""The greeting between two nodes: every way it can go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.connection import Connection, Greeting
from isthmus.exchange.hello import Hello, LinkRefused
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, PingReq
from isthmus.mqtt.properties import Properties

SECRET = b"a secret of the fabric"
A = Hello("a", "1", "sf", 0, 2)
B = Hello("b", "2", "sf")


class FakeChannel:
    peer = "test"

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def buffered_bytes(self) -> int:
        return 0

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


def connection(hello: Hello, *, dialled: bool, secret: bytes = b"") -> Connection:
    numbers = count()
    return Connection(
        FakeChannel(),
        hello,
        dialled=dialled,
        secret=secret,
        now_s=0.0,
        max_packet_bytes=1 << 20,
        token_bytes=lambda size: bytes([next(numbers) + dialled * 100]) * size,
        wake=lambda: None,
    )


def anybody(_: Hello) -> None:
    """Judges nobody."""


def talk(
    dialling: Connection, accepting: Connection, judge: Callable[[Hello], None] = anybody
) -> None:
    """Carry bytes until both are silent; errors end the side they happen on, as in `Links`."""
    dialling.begin(3)
    for _ in range(10):
        for here, there in ((dialling, accepting), (accepting, dialling)):
            here.flush()
            assert isinstance(here.channel, FakeChannel)
            data = here.channel.take()
            if not data or there.state is Greeting.CLOSED:
                continue
            try:
                for frame in there.frames(data, 1.0):
                    there.greet(frame, judge if there is accepting else anybody)
            except LinkRefused as error:
                there.refuse(error)
                if there is dialling:
                    raise


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_two_nodes_that_agree_are_open_and_know_each_other(secret: bytes) -> None:
    a, b = connection(A, dialled=True, secret=secret), connection(B, dialled=False, secret=secret)
    talk(a, b)
    assert a.state is b.state is Greeting.OPEN
    assert a.peer == Hello("b", "2", "sf", 0, 2)
    assert b.peer == A


@pytest.mark.parametrize(
    ("dial_secret", "accept_secret"), [(b"", SECRET), (SECRET, b""), (SECRET, b"another secret")]
)
def test_without_the_same_secret_nobody_gets_in(dial_secret: bytes, accept_secret: bytes) -> None:
    a = connection(A, dialled=True, secret=dial_secret)
    b = connection(B, dialled=False, secret=accept_secret)
    with pytest.raises(LinkRefused) as refused:
        talk(a, b)
    assert refused.value.cause == "authentication"
    assert a.state is not Greeting.OPEN
    assert b.state is not Greeting.OPEN


def test_the_dialling_node_checks_the_accepting_one_too() -> None:
    """Somebody who records and replays what an honest node said does not know the secret."""
    a = connection(A, dialled=True, secret=SECRET)
    honest = connection(B, dialled=False, secret=SECRET)
    impostor = connection(Hello("c", "2", "sf"), dialled=False, secret=b"x" * 20)
    a.begin(3)
    a.flush()
    assert isinstance(a.channel, FakeChannel)
    for frame in impostor.frames(a.channel.take(), 0.0):
        impostor.greet(frame, anybody)
    impostor.flush()
    assert isinstance(impostor.channel, FakeChannel)
    for frame in a.frames(impostor.channel.take(), 0.0):
        a.greet(frame, anybody)
    honest._open()
    honest.flush()
    assert isinstance(honest.channel, FakeChannel)
    (connack,) = a.frames(honest.channel.take(), 0.0)
    with pytest.raises(LinkRefused):
        a.greet(connack, anybody)


def test_the_cause_of_a_refusal_reaches_the_other_node() -> None:
    def judge(hello: Hello) -> None:
        raise LinkRefused("same-id", f"both are called {hello.node_id}")

    a, b = connection(A, dialled=True), connection(B, dialled=False)
    with pytest.raises(LinkRefused) as refused:
        talk(a, b, judge)
    assert (refused.value.cause, refused.value.node_id) == ("same-id", "b")
    assert refused.value.problem == "the other node says: both are called a"


def good_hello(**changes: str) -> tuple[tuple[str, str], ...]:
    given = dict(A.user_properties()) | changes
    return tuple(given.items())


@pytest.mark.parametrize(
    ("client_id", "user_properties", "cause"),
    [
        ("sensor-7", (), "not-a-node"),
        ("$isthmus/a", (), "not-a-node"),
        ("$isthmus/a", good_hello(isthmus="2"), "version"),
        ("$isthmus/other", good_hello(), "bad-hello"),
        ("$isthmus/a", good_hello(lane="2/2"), "bad-hello"),
        ("$isthmus/a", good_hello(lane="x"), "bad-hello"),
        ("$isthmus/a", good_hello(incarnation="!"), "bad-hello"),
        ("$isthmus/a b", good_hello(node="a b"), "bad-hello"),
    ],
)
def test_wrong_hellos_are_refused_by_name(
    client_id: str, user_properties: tuple[tuple[str, str], ...], cause: str
) -> None:
    b = connection(B, dialled=False)
    frame = encode(Connect(client_id, properties=Properties(user_properties=user_properties)), 5)
    with pytest.raises(LinkRefused) as refused:
        b.greet(frame, anybody)
    assert refused.value.cause == cause


def test_anything_else_than_a_greeting_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError):
        connection(B, dialled=False).greet(encode(PingReq(), 5), anybody)


def test_a_long_first_packet_is_not_waited_for() -> None:
    with pytest.raises(RemoteProtocolError):
        list(connection(B, dialled=False).frames(b"\x10\xff\xff\x7f", 0.0))
