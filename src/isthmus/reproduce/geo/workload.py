"""What clients do within a window of the measurement: the model's assumptions, drawn by lot once.

4^k cells with N_P publishers and N_S listeners each.  Every listener listens to one publisher:
p·N_S of a cell to publishers of *other* cells, no two of them to the same one, the rest to
publishers of their own.  In a window of T_S every publisher sends once in every T_P, and every
listener changes once to another publisher, the remote ones to another remote one: it unsubscribes,
then subscribes.

    window   | changes of some | all publish | changes of others | all publish | …

One step follows the other when the fabric is at rest, so that every count is exact: nobody gets
what was sent before it listened, and no two changes meet on their way.

Cells are counted in Z-order from 0; cell 27 of k = 3 is ``1/2/3``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from isthmus.reproduce.geo.model import Parameters

__all__ = ["Change", "Listener", "Publication", "Topic", "Workload", "prefix"]


def prefix(cell: int, k: int) -> str:
    """How topics of a cell begin, without the last ``/``."""
    return "/".join(str(cell >> 2 * digit & 3) for digit in reversed(range(k)))


class Topic(NamedTuple):
    """What one publisher publishes on."""

    cell: int
    publisher: int

    def text(self, k: int) -> str:
        return f"{prefix(self.cell, k)}/p{self.publisher}"


class Listener(NamedTuple):
    """One subscriber, and what it listens to before and after its change."""

    cell: int
    number: int
    before: Topic
    after: Topic


class Change(NamedTuple):
    """A listener turns to another publisher."""

    listener: Listener


class Publication(NamedTuple):
    """A publisher sends a message."""

    topic: Topic


@dataclass(frozen=True)
class Workload:
    """All of it, for one seed.

    `of.subscribe_every_s` is a multiple of `of.publish_every_s`, p·N_S is whole, and there are two
    publishers at least in each cell, so that one can change.
    """

    of: Parameters
    seed: int = 1

    def __post_init__(self) -> None:
        of = self.of
        if of.publishers < 2 or of.k < 1:
            raise ValueError("to change between publishers takes two of them, and two cells")
        if self.remote_listeners != of.remote * of.subscribers:
            raise ValueError(f"{of.remote:g} of {of.subscribers} listeners is no whole number")
        if self.rounds * of.publish_every_s != of.subscribe_every_s:
            raise ValueError("T_S is no multiple of T_P")
        if 2 * self.remote_listeners > (of.areas - 1) * of.publishers:
            raise ValueError("too few publishers elsewhere for listeners to have one each")

    @property
    def window_s(self) -> float:
        """T_S"""
        return self.of.subscribe_every_s

    @property
    def rounds(self) -> int:
        """How often everybody publishes."""
        return round(self.of.subscribe_every_s / self.of.publish_every_s)

    @property
    def remote_listeners(self) -> int:
        """p·N_S"""
        return round(self.of.remote * self.of.subscribers)

    @property
    def topics(self) -> Iterator[Topic]:
        for cell in range(self.of.areas):
            for publisher in range(self.of.publishers):
                yield Topic(cell, publisher)

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        rng = random.Random(f"{self.seed}/{self.of}")
        return tuple(each for cell in range(self.of.areas) for each in self._of_cell(cell, rng))

    def _of_cell(self, cell: int, rng: random.Random) -> Iterator[Listener]:
        of, remote = self.of, self.remote_listeners
        for number in range(of.subscribers - remote):
            one, other = rng.sample(range(of.publishers), 2)
            yield Listener(cell, number, Topic(cell, one), Topic(cell, other))
        drawn = rng.sample(range((of.areas - 1) * of.publishers), 2 * remote)
        topics = [Topic(*divmod(number, of.publishers)) for number in drawn]
        topics = [each._replace(cell=each.cell + (each.cell >= cell)) for each in topics]
        for number in range(remote):
            yield Listener(
                cell, of.subscribers - remote + number, topics[number], topics[remote + number]
            )

    def steps(self) -> Iterator[Change | Publication]:
        """One after the other."""
        for turn in range(self.rounds):
            for index, listener in enumerate(self.listeners):
                if index % self.rounds == turn:
                    yield Change(listener)
            for topic in self.topics:
                yield Publication(topic)
