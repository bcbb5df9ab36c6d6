"""Announcements as bytes: whatever does not fit exactly is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cooperation.api import MAX_ANNOUNCEMENT_BYTES
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.discovery.datagrams import (
    MAX_DATAGRAM_BYTES,
    Announcement,
    discovery_key,
    read,
    write,
)

KEY = discovery_key(b"k" * 32)
SAID = Announcement("edge-1", "18f", "sf", "edge-1.example:7883", 1_700_000_000_000, b"data")


@pytest.mark.parametrize("key", [b"", KEY])
@pytest.mark.parametrize("address", ["", "127.0.0.1:7883", "[2001:db8::1%eth0]:1"])
@pytest.mark.parametrize("data", [b"", b"\0", bytes(MAX_ANNOUNCEMENT_BYTES)])
def test_what_is_written_is_read(key: bytes, address: str, data: bytes) -> None:
    said = replace(SAID, address=address, data=data)
    assert read(write(said, key), key) == said


def test_the_longest_fits_into_a_datagram() -> None:
    longest = Announcement(
        "n" * 64,
        "f" * 32,
        "a" * 64,
        "h" * 240 + ":65535",
        2**63,
        bytes(MAX_ANNOUNCEMENT_BYTES),
    )
    assert len(write(longest, KEY)) <= MAX_DATAGRAM_BYTES
    assert read(write(longest, KEY), KEY) == longest
    with pytest.raises(ValueError, match="701 bytes; 700 fit"):
        write(replace(SAID, data=bytes(MAX_ANNOUNCEMENT_BYTES + 1)), KEY)


@pytest.mark.parametrize(
    ("made_with", "read_with"), [(b"", KEY), (KEY, b""), (discovery_key(b"x"), KEY)]
)
def test_who_does_not_know_the_secret_says_nothing(made_with: bytes, read_with: bytes) -> None:
    assert read(write(SAID, made_with), read_with) is None


def test_every_change_is_noticed() -> None:
    datagram = write(SAID, KEY)
    for at in range(5, len(datagram)):
        changed = datagram[:at] + bytes((datagram[at] ^ 1,)) + datagram[at + 1 :]
        assert read(changed, KEY) is None
    for length in range(5, len(datagram)):
        assert read(datagram[:length], KEY) is None


def test_every_truncation_without_a_secret_is_refused_or_shorter_data() -> None:
    datagram = write(SAID, b"")
    for length in range(len(datagram)):
        try:
            found = read(datagram[:length], b"")
        except RemoteProtocolError:
            continue
        assert found is None or found == replace(SAID, data=SAID.data[: len(found.data)])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (b"", "not an announcement"),
        (b"isth", "version none"),
        (b"isth\x02" + bytes(40), "version 02"),
        (b"HTTP/1.1", "not an announcement"),
        (write(SAID, b"") + bytes(2_000), "not an announcement"),
        (write(replace(SAID, node_id="ü"), b""), "node id"),
        (write(replace(SAID, incarnation="xyz"), b""), "incarnation"),
        (write(replace(SAID, algorithm=""), b""), "algorithm"),
        (write(replace(SAID, address="nowhere"), b""), "address"),
        (write(SAID, b"") + bytes(MAX_ANNOUNCEMENT_BYTES), "of 704 bytes"),
    ],
)
def test_what_is_wrong_is_named(wrong: bytes, told: str) -> None:
    with pytest.raises(RemoteProtocolError, match=told):
        read(wrong, b"")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(rest: bytes) -> None:
    for datagram in (rest, b"isth\x01" + bytes(32) + rest):
        try:
            read(datagram, b"")
        except RemoteProtocolError:
            pass
