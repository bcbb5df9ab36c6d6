"""The journal of wills: what is written when, in which pieces, and what is left of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from isthmus.errors import IsthmusError
from isthmus.exchange import journal, kept_records
from isthmus.exchange.client.client import Client
from isthmus.exchange.client.wills import WRITE_S, DueWill, Wills
from isthmus.exchange.client.wills_journal import NAME, SLICE_BYTES
from isthmus.exchange.host import Host
from isthmus.mqtt.packets import Will
from isthmus.mqtt.properties import Properties

SALT = 12345


class Node:
    """One life of a node: a clock, timers that are run by hand, and the file."""

    keeps_state = True
    waiting_bytes = 0

    def __init__(self, file: bytes | None = None) -> None:
        self.now_s = 100.0
        self.file = bytearray(file) if file is not None else None
        self.new = bytearray()
        self.rewrites = self.appended = 0
        self.written: list[int] = []
        """The length of everything that was written."""
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.clients: dict[int, Client] = {}
        self.due: list[DueWill] = []
        self.wills = Wills(cast(Host, self), self.due.append)
        self.wills.start(Client)

    def token_bytes(self, size: int) -> bytes:
        return SALT.to_bytes(size)

    def load_state(self, name: str, version: int) -> bytes | None:
        assert name == NAME
        return None if self.file is None else bytes(self.file)

    def log(self, level: str, event: str, **fields: object) -> None:
        raise IsthmusError(f"{event}: {fields}")

    def now(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        timer = (self.now_s + delay_s, call)
        if delay_s <= WRITE_S:  # the others are those of wills
            self.timers.append(timer)

        class Timer:
            def cancel(_) -> None:
                if timer in self.timers:
                    self.timers.remove(timer)

        return Timer()

    def append_state(self, name: str, more: bytes) -> None:
        assert self.file is not None
        self.written.append(len(more))
        self.appended += len(more)
        self.file += more

    def rewrite_state(self, name: str) -> Any:
        self.new = bytearray()
        self.rewrites += 1
        return self

    def write(self, piece: bytes) -> None:
        self.written.append(len(piece))
        self.new += piece

    def commit(self) -> None:
        self.file = self.new

    def turn(self) -> bool:
        """Run the next timer; False if there is none."""
        if not self.timers:
            return False
        timer = min(self.timers, key=lambda each: each[0])
        self.timers.remove(timer)
        self.now_s = max(self.now_s, timer[0])
        timer[1]()
        return True

    def settle(self) -> list[int]:
        """Let everything be written; how long the pieces were."""
        self.written.clear()
        while self.turn():
            pass
        return self.written

    # ---- clients ---------------------------------------------------------------------------

    def connect(self, session: int, client_id: str, *, size: int = 1, delay_s: int = 0) -> None:
        properties = Properties(will_delay_interval=delay_s)
        client = self.clients[session] = Client(client_id, 1000)
        self.wills.arm(client, Will(f"w/{client_id}", b"x" * size, 1, False, properties))

    def leave(self, session: int) -> None:
        self.wills.discard(self.clients.pop(session))

    def lose(self, session: int) -> None:
        self.wills.lost(self.clients.pop(session))

    def left(self) -> set[str]:
        """Whose wills the next life sends or waits with."""
        return left(self.kept())

    def kept(self) -> bytes:
        assert self.file is not None
        return bytes(self.file)


def left(file: bytes) -> set[str]:
    wills = Node(file).wills
    due = {each.client_id for each in wills._restored.values()}
    return due | {each.client_id for each in wills._waiting.values()}


def test_one_client_that_comes_or_goes_costs_its_own_will() -> None:
    """However many there are: here 300 with 65,000 bytes each, as the limits allow."""
    node = Node()
    for number in range(300):
        node.connect(number, f"standing {number}", size=65_000)
    pieces = node.settle()
    assert sum(pieces) > 300 * 65_000
    assert max(pieces) < SLICE_BYTES + 70_000, "written in slices"
    for number in range(1000, 1010):
        node.connect(number, "one")
        assert sum(node.settle()) < 500
        node.leave(number)
        assert sum(node.settle()) < 500
    assert len(node.left()) == 300
    for number in range(300):
        node.leave(number)
    assert sum(node.settle()) < 300 * 50
    assert node.left() == set()


def test_what_comes_and_goes_between_two_writes_is_not_written() -> None:
    node = Node()
    node.connect(1, "stays")
    node.settle()
    node.connect(2, "passing", size=60_000)
    node.leave(2)
    assert node.settle() == []


def test_what_waits_goes_on_with_what_was_left_of_its_delay() -> None:
    node = Node()
    node.connect(1, "waits", delay_s=60)
    node.settle()
    node.lose(1)
    node.settle()
    node.now_s += 40
    node.connect(2, "later")
    node.settle()
    again = Node(node.kept()).wills
    assert [each.client_id for each in again._restored.values()] == ["later"]
    (waiting,) = again._waiting.values()
    assert waiting.will is not None
    assert waiting.will.due_s == 100 + 18, "60 s, less 40 and twice the second before it is written"


def test_a_journal_that_grows_is_rewritten_beside_what_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "REWRITE_BYTES", 1000)
    node = Node()
    rng = random.Random(1)
    standing: set[int] = set()
    waiting: set[int] = set()
    longest = 0
    for number in range(1000):
        if standing and rng.random() < 0.5:
            gone = rng.choice(sorted(standing))
            standing.remove(gone)
            if rng.random() < 0.8:
                node.leave(gone)
            else:
                node.lose(gone)
                waiting.add(gone)
        else:
            node.connect(number, str(number), size=rng.choice([1, 300, 3000]), delay_s=10**6)
            standing.add(number)
        for _ in range(rng.randrange(3)):
            node.turn()
        longest = max(longest, len(node.file or b""))
        if number % 100 == 99:
            node.settle()
            assert node.left() == {str(each) for each in standing | waiting}
    assert node.rewrites > 5
    assert longest < node.appended, "it does not grow for ever"


def test_what_was_lost_is_written_anew() -> None:
    node = Node()
    node.connect(1, "first")
    node.settle()
    node.connect(2, "second")
    node.file = bytearray(b"a disk that was full")
    node.wills.state_lost()
    node.settle()
    assert node.left() == {"first", "second"}


def test_a_life_does_not_continue_the_journal_of_another() -> None:
    before = Node()
    before.connect(1, "of before", delay_s=50)
    before.settle()
    node = Node(before.kept())
    node.now_s = 0.5  # the clock has begun anew
    assert node.left() == {"of before"}
    node.connect(1, "of now")
    node.settle()
    node.leave(1)
    node.settle()
    assert node.left() == {"of before"}


def test_a_flipped_bit_costs_one_will_and_sends_none() -> None:
    node = Node()
    for number in range(5):
        node.connect(number, f"stays {number}")
    node.settle()
    for number in range(10, 15):
        node.connect(number, f"goes {number}")
    node.settle()
    for number in range(10, 15):
        node.leave(number)
    node.settle()
    whole = node.kept()
    stays = {f"stays {number}" for number in range(5)}
    assert left(whole) == stays
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        found = left(bytes(damaged))
        assert found <= stays, (bit, found - stays)
        assert len(found) >= 4, bit


def test_any_end_may_be_missing() -> None:
    """The machine stopped while it was appended to."""
    node = Node()
    node.connect(1, "stays")
    node.settle()
    size = len(node.kept())
    node.connect(2, "comes")
    node.settle()
    whole = node.kept()
    for end in range(size, len(whole)):
        assert left(whole[:end]) in ({"stays"}, {"stays", "comes"})


@pytest.mark.parametrize("body", [b"", b"X", b"E\0", b"W" + bytes(16) + b"\x10\x00"])
def test_a_whole_record_that_makes_no_sense_is_told(body: bytes) -> None:
    with pytest.raises(IsthmusError, match="wills"):
        left(kept_records.write("wills", 3, [body]))


def test_a_second_crash_before_the_wills_of_the_last_life_are_sent_costs_none() -> None:
    first = Node()
    first.connect(1, "old")
    first.settle()
    assert first.file is not None
    second = Node(bytes(first.file))
    second.connect(2, "new")
    second.connect(3, "polite")
    second.leave(3)
    second.settle()  # only what is written within a second: nothing is sent yet
    assert second.due == []
    assert second.file is not None
    third = Node(bytes(second.file))
    assert {each.client_id for each in third.wills._restored.values()} == {"old", "new"}
    third.wills._send_restored()
    third.settle()
    assert [each.client_id for each in third.due] == ["old", "new"]
    assert third.file is not None
    assert Node(bytes(third.file)).wills._restored == {}
