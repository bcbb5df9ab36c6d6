"""Who calls: told by the greeting of a link, whatever else may come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.rig.shaping import GREETING_BYTES, NOBODY, caller
from isthmus.exchange.link.hello import Hello, write_connect
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect

GREETING = encode(write_connect(Hello("north.1", "1f", "sf"), 30, b""), 5)
WITH_SECRET = encode(write_connect(Hello("north.1", "1f", "sf"), 30, bytes(16)), 5)
TLS = bytes.fromhex("16030100f8010000f403031a")


@pytest.mark.parametrize("greeting", [GREETING, WITH_SECRET])
def test_a_greeting_in_any_pieces_names_the_node(greeting: bytes) -> None:
    assert caller(b"") is None
    for cut in range(1, len(greeting)):
        assert caller(greeting[:cut]) is None
    assert caller(greeting) == caller(greeting + b"what follows") == "north.1"


@pytest.mark.parametrize(
    "said",
    [
        TLS,
        b"GET / HTTP/1.1\r\n",
        encode(Connect(client_id="a client"), 5),
        encode(Connect(client_id="a client", protocol_level=4), 4),
        b"\x10\xff\xff\xff\xff\x01",  # no length
        b"\x10\xff\xff\xff\x7f",  # a length that is too long, told before it has come
        b"\x10\x04abcd",
        GREETING[:5] + b"x" + GREETING[6:],
    ],
)
def test_what_is_no_greeting_is_nobody_at_once(said: bytes) -> None:
    assert caller(said) == NOBODY


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_judged_or_short(noise: bytes, connect: bool) -> None:
    said = (b"\x10" if connect else b"") + noise
    assert caller(said) is not None or len(said) < GREETING_BYTES


def test_the_longest_that_is_waited_for() -> None:
    long = GREETING_BYTES - 3
    assert caller(b"\x10" + bytes([long & 0x7F | 0x80, long >> 7])) is None
    long += 1
    assert caller(b"\x10" + bytes([long & 0x7F | 0x80, long >> 7])) == NOBODY
