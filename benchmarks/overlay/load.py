"""Clients at QoS 1 that publish every 10 ms, from each place to every other, and their account."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

from isthmus.errors import LoadError
from support.steady_load import LoadPublisher, LoadSubscriber

__all__ = ["Account", "Load", "account", "running_load"]

RATE_PER_S: Final = 100.0
LOOK_S: Final = 0.02
START_S: Final = 30.0
FLOW_S: Final = 90.0
DRAIN_S: Final = 60.0
QUIET_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages of one run."""

    expected: int
    """Deliveries of messages that their publishers had acknowledged."""
    lost: int
    doubled: int
    gap_s: float
    """The longest time without a delivery from one place to another, after the fault."""
    later_gap_s: float
    """The same after what was lost is back."""
    flowing_s: float
    """From the fault until something that was published after it had come from each place to each
    other."""


_serials = count(1)


class Load:
    """A publisher and a subscriber at each place; of another load's messages they see none."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        serial = next(_serials)
        places = {f"{place}-{serial}": port for place, port in ports.items()}
        self.publishers = [
            LoadPublisher(name, port, f"load/{serial}/{name}", RATE_PER_S)
            for name, port in places.items()
        ]
        self.subscribers = [
            LoadSubscriber(name, port, f"load/{serial}/#") for name, port in places.items()
        ]

    def ways(self) -> Iterator[tuple[LoadPublisher, LoadSubscriber]]:
        """From each place to every other."""
        for publisher in self.publishers:
            for subscriber in self.subscribers:
                if publisher.name != subscriber.name:
                    yield publisher, subscriber

    def flows(self, since_s: float) -> bool:
        """Whether something that was published after `since_s` has come on every way."""
        return all(_first(*way, since_s) is not None for way in self.ways())

    async def until_flowing(self, since_s: float) -> None:
        deadline_s = time.monotonic() + FLOW_S
        while not self.flows(since_s):
            if time.monotonic() > deadline_s:
                raise LoadError(f"messages do not flow within {FLOW_S:g} s")
            await asyncio.sleep(LOOK_S)

    async def drain(self) -> None:
        """No more is published; until all has arrived, or nothing has come for a while."""
        for publisher in self.publishers:
            publisher.stopping = True
        arrived, since_s = -1, time.monotonic()
        deadline_s = since_s + DRAIN_S
        while time.monotonic() < min(deadline_s, since_s + QUIET_S):
            await asyncio.sleep(0.1)
            so_far = sum(len(times) for each in self.subscribers for times in each.got.values())
            if so_far != arrived:
                arrived, since_s = so_far, time.monotonic()
            if all(publisher.done for publisher in self.publishers) and self._complete():
                return

    def _complete(self) -> bool:
        return all(
            f"{publisher.name}:{number}" in subscriber.got
            for publisher, subscriber in self.ways()
            for number, sent in enumerate(publisher.sent)
            if sent.acknowledged_s is not None
        )


@asynccontextmanager
async def running_load(ports: Mapping[str, int]) -> AsyncIterator[Load]:
    """Clients at these places, among which messages flow."""
    load = Load(ports)
    tasks = [asyncio.ensure_future(each.run()) for each in load.subscribers]
    try:
        for subscriber in load.subscribers:
            await asyncio.wait_for(subscriber.subscribed.wait(), START_S)
        tasks += [asyncio.ensure_future(each.run()) for each in load.publishers]
        await load.until_flowing(time.monotonic())
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(publisher: LoadPublisher, subscriber: LoadSubscriber, since_s: float) -> float | None:
    """When the first message that was published after `since_s` arrived."""
    for number in range(_number_at(publisher, since_s), len(publisher.sent)):
        times = subscriber.got.get(f"{publisher.name}:{number}")
        if times:
            return times[0]
    return None


def _number_at(publisher: LoadPublisher, since_s: float) -> int:
    """Of the first message after `since_s`; they are in the order of their times."""
    number = len(publisher.sent)
    while number and publisher.sent[number - 1].sent_s > since_s:
        number -= 1
    return number


def account(load: Load, fault_s: float, back_s: float) -> Account:
    """What became of all messages; `back_s` is when what was lost was started again."""
    expected = lost = doubled = 0
    gap_s = later_gap_s = flowing_s = 0.0
    for publisher, subscriber in load.ways():
        arrived: list[float] = []
        for number, sent in enumerate(publisher.sent):
            times = subscriber.got.get(f"{publisher.name}:{number}", [])
            arrived += times[:1]
            if sent.acknowledged_s is None:
                continue
            expected += 1
            lost += not times
            if times and not sent.repeated:  # what a publisher itself repeats may come twice
                doubled += len(times) - 1
        arrived.sort()
        for before_s, after_s in pairwise(arrived):
            if after_s > back_s:
                later_gap_s = max(later_gap_s, after_s - max(before_s, back_s))
            if after_s > fault_s and before_s < back_s:
                gap_s = max(gap_s, after_s - before_s)
        first_s = _first(publisher, subscriber, fault_s)
        flowing_s = max(flowing_s, (first_s or arrived[-1]) - fault_s)
    return Account(
        expected, lost, doubled, round(gap_s, 3), round(later_gap_s, 3), round(flowing_s, 3)
    )
