"""A file that is appended to, and written anew beside that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from isthmus.exchange.host import Host
from isthmus.exchange.journal import MAX_WAITING_BYTES, Journal
from support.algorithm_network import FakePort


class Owner:
    """Keeps letters: all of them, and those that are not appended yet."""

    def __init__(self, *, keeps_state: bool = True) -> None:
        self.port = FakePort()
        self.port.keeps_state = keeps_state
        self.letters = b""
        self.fresh = b""
        self.journal = Journal(
            cast("Host", self.port), "letters", drain=self.drain, snapshot=self.snapshot
        )

    def write(self, letters: bytes) -> None:
        self.letters += letters
        self.fresh += letters
        self.journal.changed(1.0)

    def drain(self) -> bytes:
        more, self.fresh = self.fresh[:1], self.fresh[1:]
        return more

    def snapshot(self) -> Iterator[bytes]:
        self.fresh = b""
        yield b"<"
        yield from (bytes((letter,)) for letter in self.letters)

    @property
    def file(self) -> bytes | None:
        return self.port.files.get("letters")


def test_nothing_is_written_before_something_changes() -> None:
    owner = Owner()
    owner.port.files["letters"] = b"of the last life"
    owner.port.advance(100)
    assert owner.file == b"of the last life"
    owner.write(b"a")
    owner.port.advance(1)
    assert owner.file == b"<a"


def test_what_changes_is_appended_after_its_delay() -> None:
    owner = Owner()
    owner.write(b"a")
    owner.port.advance(1)
    owner.write(b"bc")
    owner.port.advance(0.9)
    owner.write(b"d")
    assert owner.file == b"<a"
    owner.port.advance(0.1)
    assert owner.file == b"<abcd"


def test_what_was_read_goes_on_and_is_rewritten_at_the_first_chance() -> None:
    owner = Owner()
    owner.letters = b"a"
    owner.port.files["letters"] = b"<a and much that is over"
    owner.journal.resume()
    owner.journal.changed(1.0)
    owner.port.advance(1)
    assert owner.file == b"<a"


def test_what_changes_during_a_rewrite_is_in_both_files() -> None:
    owner = Owner()
    owner.write(b"a")
    owner.port.advance(1)
    owner.port.waiting_bytes = MAX_WAITING_BYTES + 1
    owner.journal.rewrite()
    owner.port.advance(10)
    owner.write(b"b")
    owner.port.advance(1)
    assert owner.file == b"<ab", "appended to the old one"
    owner.port.waiting_bytes = 0
    owner.port.advance(1)
    assert owner.file is not None
    assert set(owner.file) == set(b"<ab")
    assert owner.port.saved["letters"] == 2


def test_what_was_lost_is_written_anew() -> None:
    owner = Owner()
    owner.write(b"a")
    owner.port.advance(1)
    owner.port.files["letters"] = b"garbage"
    owner.journal.lost()
    owner.port.advance(1)
    assert owner.file == b"<a"


@pytest.mark.parametrize("written", [b"", b"a"])
def test_stopping_writes_all_at_once(written: bytes) -> None:
    owner = Owner()
    owner.write(written)
    owner.port.advance(1)
    owner.write(b"xyz")
    owner.journal.stop()
    assert owner.file == b"<" + written + b"xyz"
    assert owner.port.timers == {}


def test_a_host_that_keeps_nothing_is_asked_for_nothing() -> None:
    owner = Owner(keeps_state=False)
    owner.write(b"a")
    owner.journal.lost()
    owner.journal.stop()
    owner.port.advance(10)
    assert owner.port.files == {}
