"""Topics as blocks of the order of keys: subscribers, then publishers (thesis Fig. 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isthmus.sim.bulk.levels import Ints

__all__ = ["Topics", "equal_topics"]


@dataclass(frozen=True, slots=True)
class Topics:
    """One virtual node for each member of each topic; who does both is a subscriber (§3.2.1)."""

    starts: Ints
    """Of each topic: its first subscriber."""
    ends: Ints
    """After its last subscriber: its first publisher, the rendezvous point, if it has any."""
    stops: Ints
    """After its last publisher."""

    @classmethod
    def of(cls, subscribers: Sequence[int] | Ints, publishers: Sequence[int] | Ints) -> Topics:
        """From how many each topic has."""
        of_both = np.stack([np.asarray(subscribers), np.asarray(publishers)], axis=1)
        if of_both.min(initial=0) < 0 or of_both.sum() >= 1 << 31:
            raise ValueError("a topic has 0 or more members, all of them fewer than 2^31")
        bounds = np.concatenate(([0], of_both.ravel().cumsum())).astype(np.int32)
        return cls(bounds[:-1:2], bounds[1::2], bounds[2::2])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        return int(self.stops[-1]) if len(self) else 0

    @property
    def blocks(self) -> Ints:
        """The topic of each virtual node."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.stops - self.starts)

    def publishers(self) -> tuple[Ints, Ints]:
        """All of them, and the topic of each."""
        counts = self.stops - self.ends
        topics = np.repeat(np.arange(len(self), dtype=np.int32), counts)
        within = np.arange(len(topics), dtype=np.int32) - np.repeat(
            (counts.cumsum() - counts).astype(np.int32), counts
        )
        return self.ends[topics] + within, topics

    def rendezvous_points(self) -> Ints:
        """Of each topic, -1 if it has no publisher."""
        return np.where(self.ends < self.stops, self.ends, np.int32(-1))

    def silent(self) -> npt.NDArray[np.bool_]:
        """Which virtual nodes are publishers that are suspended: those nobody subscribes to.

        It is the state once all signals have come: the rendezvous point has no subscriber beside it
        and tells all publishers of its topic.
        """
        return np.repeat(self.starts == self.ends, self.stops - self.starts)


def equal_topics(count: int, subscribers: int, publishers: int) -> Topics:
    """All of one size; as many as are asked for."""
    starts = np.arange(count, dtype=np.int32) * np.int32(subscribers + publishers)
    ends = starts + np.int32(subscribers)
    return Topics(starts, ends, ends + np.int32(publishers))
