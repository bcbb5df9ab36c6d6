"""The greeting between two nodes: every way it can go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.hello import (
    NONCE_BYTES,
    Hello,
    LinkRefused,
    link_key,
    write_connack,
    write_connect,
)
from isthmus.exchange.link.life import GreetingState
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Auth, ConnAck, Connect, PingReq, Publish
from isthmus.mqtt.properties import Properties

SECRET = b"a secret of the fabric"
A = Hello("a", "1", "sf", 0, 2)
B = Hello("b", "2", "sf")


class FakeChannel:
    remote = "test"

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def hold_reading(self) -> None:
        pass

    def release_reading(self) -> None:
        pass

    def buffered_bytes(self) -> int:
        return 0

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


def connection(hello: Hello, *, dialed: bool, secret: bytes = b"") -> Connection:
    numbers = count()
    return Connection(
        FakeChannel(),
        hello,
        dialed=dialed,
        key=link_key(secret),
        now=lambda: 0.0,
        max_packet_bytes=1 << 20,
        token_bytes=lambda size: bytes([next(numbers) + dialed * 100]) * size,
        wake=lambda _: None,
    )


def anybody(_: Hello) -> None:
    """Judges nobody."""


def talk(
    dialing: Connection, accepting: Connection, judge: Callable[[Hello], None] = anybody
) -> None:
    """Carry bytes until both are silent; errors end the side they happen on, as in `Links`."""
    dialing.begin(3)
    for _ in range(10):
        for here, there in ((dialing, accepting), (accepting, dialing)):
            here.flush()
            assert isinstance(here.channel, FakeChannel)
            data = here.channel.take()
            if not data or there.state is GreetingState.CLOSED:
                continue
            try:
                for frame in there.frames(data, 1.0):
                    if there.greet(frame) and there is accepting:
                        assert there.other is not None
                        judge(there.other)
                        there.accept()
            except LinkRefused as error:
                there.refuse(error)
                if there is dialing:
                    raise


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_two_nodes_that_agree_are_open_and_know_each_other(secret: bytes) -> None:
    a, b = connection(A, dialed=True, secret=secret), connection(B, dialed=False, secret=secret)
    talk(a, b)
    assert a.state is b.state is GreetingState.OPEN
    assert a.other == Hello("b", "2", "sf", 0, 2)
    assert b.other == A


@pytest.mark.parametrize(
    ("dial_secret", "accept_secret"), [(b"", SECRET), (SECRET, b""), (SECRET, b"another secret")]
)
def test_without_the_same_secret_nobody_gets_in(dial_secret: bytes, accept_secret: bytes) -> None:
    a = connection(A, dialed=True, secret=dial_secret)
    b = connection(B, dialed=False, secret=accept_secret)
    with pytest.raises(LinkRefused) as refused:
        talk(a, b)
    assert refused.value.cause == "authentication"
    assert a.state is not GreetingState.OPEN
    assert b.state is not GreetingState.OPEN


def written(connection: Connection) -> bytes:
    connection.flush()
    assert isinstance(connection.channel, FakeChannel)
    return connection.channel.take()


def hears(connection: Connection, data: bytes) -> bool:
    """Whether the other node has proved itself with `data`."""
    proved = [connection.greet(frame) for frame in connection.frames(data, 0.0)]
    return True in proved


def test_the_dialing_node_checks_the_accepting_one_too() -> None:
    """Somebody who does not know the secret cannot end the greeting, whatever was recorded."""
    recorded = connection(B, dialed=False, secret=SECRET)
    other = connection(A, dialed=True, secret=SECRET)
    talk(other, recorded)
    a = connection(A, dialed=True, secret=SECRET)
    a.begin(3)
    impostor = connection(Hello("b", "2", "sf"), dialed=False, secret=b"x" * 20)
    assert not hears(impostor, written(a))
    assert not hears(a, written(impostor))
    impostor.state = GreetingState.JUDGED
    impostor.accept()
    with pytest.raises(LinkRefused) as refused:
        hears(a, written(impostor))
    assert refused.value.cause == "authentication"


def test_who_connects_gets_nothing_that_was_made_with_the_secret() -> None:
    """The dialing side proves itself first: a stranger gets a nonce, and then a refusal."""
    stranger = connection(A, dialed=True, secret=b"a guess")
    stranger.begin(3)
    node = connection(B, dialed=False, secret=SECRET)
    assert not hears(node, written(stranger))
    answer = decode(written(node), 5)
    assert isinstance(answer, Auth)
    assert len(answer.properties.authentication_data or b"") == NONCE_BYTES
    hears(stranger, encode(answer, 5))
    with pytest.raises(LinkRefused) as refused:
        hears(node, written(stranger))
    node.refuse(refused.value)
    last = decode(written(node), 5)
    assert isinstance(last, ConnAck)
    assert last.properties.authentication_data is None


@pytest.mark.parametrize(
    "changed",
    [
        {"node_id": "c"},
        {"incarnation": "3"},
        {"algorithm": "pf"},
        {"lane": 1},
        {"lanes": 3},
        {"keeps_state": True},
        {"max_packet_bytes": 1000},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.parametrize("whose", ["dial", "accept"])
def test_a_proof_holds_for_all_of_both_hellos(whose: str, changed: dict[str, Any]) -> None:
    """Somebody in the middle changes one thing of a hello, and keeps the rest."""
    a, b = connection(A, dialed=True, secret=SECRET), connection(B, dialed=False, secret=SECRET)
    a.begin(3)
    connect = written(a)
    if whose == "dial":
        connect = encode(write_connect(replace(A, **changed), 3, nonce_of(connect)), 5)
    assert not hears(b, connect)
    assert not hears(a, written(b))
    with pytest.raises(LinkRefused) as refused:
        finish_changed(a, b, changed)
    assert refused.value.cause == "authentication"


def finish_changed(a: Connection, b: Connection, changed: dict[str, Any]) -> None:
    assert hears(b, written(a))
    b.accept()
    connack = decode(written(b), 5)
    assert isinstance(connack, ConnAck)
    said = replace(B.for_lane(0, 2), **changed)
    proof = connack.properties.authentication_data or b""
    hears(a, encode(write_connack(said, proof), 5))


def nonce_of(connect: bytes) -> bytes:
    packet = decode(connect, 5)
    assert isinstance(packet, Connect)
    return packet.properties.authentication_data or b""


def test_the_cause_of_a_refusal_reaches_the_other_node() -> None:
    def judge(hello: Hello) -> None:
        raise LinkRefused("same-id", f"both are called {hello.node_id}")

    for secret in (b"", SECRET):
        a = connection(A, dialed=True, secret=secret)
        b = connection(B, dialed=False, secret=secret)
        with pytest.raises(LinkRefused) as refused:
            talk(a, b, judge)
        assert (refused.value.cause, refused.value.node_id) == ("same-id", "b")
        assert refused.value.problem == "the other node says: both are called a"


def test_a_refusal_of_somebody_without_the_secret_is_not_believed() -> None:
    a = connection(A, dialed=True, secret=SECRET)
    a.begin(3)
    impostor = connection(B, dialed=False, secret=b"a guess")
    hears(impostor, written(a))
    hears(a, written(impostor))
    impostor.refuse(LinkRefused("same-id", "there is another one"))
    with pytest.raises(LinkRefused) as refused:
        hears(a, written(impostor))
    assert (refused.value.cause, refused.value.node_id) == ("refused", "")


def test_each_end_learns_what_the_other_takes() -> None:
    a = connection(replace(A, max_packet_bytes=5_000), dialed=True)
    b = connection(replace(B, max_packet_bytes=7_000), dialed=False)
    talk(a, b)
    assert a.other is not None
    assert b.other is not None
    assert (a.other.max_packet_bytes, b.other.max_packet_bytes) == (7_000, 5_000)


def good_hello(**changes: str) -> tuple[tuple[str, str], ...]:
    given = dict(A.user_properties()) | changes
    return tuple(given.items())


@pytest.mark.parametrize(
    ("client_id", "user_properties", "cause"),
    [
        ("sensor-7", (), "not-a-node"),
        ("$isthmus/a", (), "not-a-node"),
        ("$isthmus/a", good_hello(isthmus="1"), "version"),
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
    b = connection(B, dialed=False)
    frame = encode(Connect(client_id, properties=Properties(user_properties=user_properties)), 5)
    with pytest.raises(LinkRefused) as refused:
        b.greet(frame)
    assert refused.value.cause == cause


def test_anything_else_than_a_greeting_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError):
        connection(B, dialed=False).greet(encode(PingReq(), 5))


def test_a_long_first_packet_is_not_waited_for() -> None:
    with pytest.raises(RemoteProtocolError):
        list(connection(B, dialed=False).frames(b"\x10\xff\xff\x7f", 0.0))


def test_messages_may_come_in_one_piece_with_what_opens_the_connection() -> None:
    """Who accepts has a link at once, and much may wait for it."""
    dialing, accepting = (connection(each, dialed=each is A) for each in (A, B))
    dialing.begin(3)
    hears(accepting, written(dialing))
    accepting.accept()
    long = encode(Publish("t", bytes(100_000)), 5)
    frames = dialing.frames(written(accepting) + long, 0.0)
    assert [dialing.greet(frames[0]), *frames[1:]] == [True, long]


def test_the_packet_that_opens_a_connection_is_short_itself() -> None:
    dialing = connection(A, dialed=True)
    dialing.begin(3)
    with pytest.raises(RemoteProtocolError, match="the limit is 8192"):
        dialing.frames(encode(Publish("t", bytes(100_000)), 5), 0.0)
