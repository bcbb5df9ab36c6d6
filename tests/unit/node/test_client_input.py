"""The parts that bound what clients send: counted bytes, slices, topic aliases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest

from isthmus.config.files import Limits
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.node import turns as turns_module
from isthmus.node.client_checks import MAX_ALIAS_BYTES, TopicAliases
from isthmus.node.pending import Pending, address_group
from isthmus.node.turns import SHORT_SLICE_S, SLICE_S, Turns

LIMITS = Limits(packet_bytes=1000, pending_bytes=200_000, pending_bytes_per_address=100_000)


@dataclass(eq=False)
class Holder:
    address: str
    pending: Pending | None = None
    pending_bytes: int = 0
    ended: str = ""

    def end_for_pending(self, error: RemoteProtocolError) -> None:
        assert self.pending is not None
        assert error.reason_code == ReasonCode.QUOTA_EXCEEDED
        self.ended = str(error)
        self.pending.count(self, 0)


def holders(*addresses: str) -> tuple[Pending, list[Holder]]:
    clients: dict[Holder, None] = {Holder(address): None for address in addresses}
    pending = Pending(LIMITS, clients)
    for each in clients:
        each.pending = pending
    return pending, list(clients)


def test_the_largest_of_an_address_has_to_go() -> None:
    pending, (small, large, other) = holders("a", "a", "b")
    pending.count(other, 90_000)
    pending.count(large, 80_000)
    pending.count(small, 15_000)
    pending.count(small, 25_000)
    assert "of a exceed limits.pending_bytes_per_address" in large.ended
    assert not small.ended
    assert not other.ended
    assert pending.total == 115_000


def test_the_largest_of_all_has_to_go() -> None:
    pending, clients = holders("a", "b", "c")
    for client, size in zip(clients, (90_000, 95_000, 20_000), strict=True):
        pending.count(client, size)
    assert [bool(client.ended) for client in clients] == [False, True, False]
    for client in clients:
        pending.count(client, 0)
    assert pending.total == 0


@pytest.mark.parametrize(
    ("peername", "group"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("/run/socket", "/run/socket"),
        (None, "None"),
    ],
)
def test_who_shares_a_bound(peername: object, group: str) -> None:
    assert address_group(peername) == group


def test_who_waits_is_served_in_turn() -> None:
    served: list[str] = []

    class Busy:
        def __init__(self, name: str, turns: Turns, left: int) -> None:
            self.name, self.turns, self.left = name, turns, left

        def go_on(self, ends_s: float) -> None:
            served.append(self.name)
            self.left -= 1
            if self.left:
                self.turns.wait(self)

    async def run() -> None:
        turns = Turns(asyncio.get_running_loop())
        for name, left in (("a", 3), ("b", 1), ("c", 2)):
            turns.wait(Busy(name, turns, left))
        while turns:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0)

    asyncio.run(run())
    assert served == ["a", "b", "c", "a", "c", "a"]


def test_what_comes_in_one_turn_shares_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients, each with a little less input than a slice, do not add up."""
    clock_s = 100.0
    soon: list[Callable[[], None]] = []

    class Loop:
        def call_soon(self, callback: Callable[[], None]) -> None:
            soon.append(callback)

    class Client:
        def go_on(self, ends_s: float) -> None:
            pass

    monkeypatch.setattr(turns_module, "perf_counter", lambda: clock_s)
    turns = Turns(cast(asyncio.AbstractEventLoop, Loop()))
    assert turns.slice_ends_s() == clock_s + SLICE_S
    assert not turns.used_up()
    clock_s += 0.8 * SLICE_S
    assert turns.slice_ends_s() == pytest.approx(clock_s + 0.2 * SLICE_S)
    clock_s += SLICE_S
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    assert turns.used_up()
    soon.pop()()
    assert not soon
    assert not turns.used_up()
    assert turns.slice_ends_s() == clock_s + SLICE_S
    soon.pop()()
    turns.wait(Client())
    assert turns.used_up()
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    soon.pop()()
    assert turns.used_up()  # who waited has just been served
    assert turns.slice_ends_s() == clock_s + SHORT_SLICE_S
    clock_s += 2 * SLICE_S
    assert turns.slice_ends_s() == clock_s + SLICE_S


def test_short_slices_need_not_notice_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small reads, one after the other: nothing is scheduled for them."""
    clock_s = 100.0
    soon: list[Callable[[], None]] = []

    class Loop:
        def call_soon(self, callback: Callable[[], None]) -> None:
            soon.append(callback)

    monkeypatch.setattr(turns_module, "perf_counter", lambda: clock_s)
    turns = Turns(cast(asyncio.AbstractEventLoop, Loop()))
    turns.slice_ends_s()
    soon.pop()()
    for _ in range(100):
        clock_s += 0.0005
        assert turns.slice_ends_s() == clock_s + SLICE_S
    assert not soon


def test_topic_aliases_are_bounded() -> None:
    aliases = TopicAliases()
    aliases.maximum = 100
    topic = b"x" * 60_000
    for alias in range(1, 1 + MAX_ALIAS_BYTES // len(topic)):
        aliases.topic(alias, topic)
        aliases.topic(alias, topic)  # again: nothing more is kept
    with pytest.raises(RemoteProtocolError) as caught:
        aliases.topic(99, topic)
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED
