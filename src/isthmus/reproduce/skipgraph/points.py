"""Points of the thesis's parameter space: each is one run of the log.

A point says what is simulated: the experiment, the method, the size of the network and what the
experiment has besides.  Its labels, and nothing else, tell the jobs what a run was.

Everything that is drawn is a function of the seed and of words that say what it is for
(`seed_of`): two methods that are to be compared on the same topics use the same words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np

from isthmus.sim.bulk.levels import Ints
from isthmus.simulate.tallies import Counted, Tally

__all__ = ["EXPERIMENTS", "Experiment", "Method", "Point", "drawn_members", "of_point", "seed_of"]

Experiment = Literal[
    "messages", "paths", "load", "tables", "shares", "depths", "assignment", "growth"
]
Method = Literal[
    "proposed", "scribe", "bayeux", "can-mc", "mrf", "sfb", "intensive", "extensive", "approximate"
]

EXPERIMENTS: Final[dict[Experiment, str]] = {
    "messages": "messages associated with publishing (section 3.4.1)",
    "paths": "length of forwarding paths (section 3.4.2)",
    "load": "forwarding against sending and receiving (section 3.4.3)",
    "tables": "size of routing tables (section 3.4.4)",
    "shares": "who has the entries (section 3.4.4)",
    "depths": "depth of multicast trees (section 4.1.3)",
    "assignment": "client assignment (section 4.2)",
    "growth": "growth laws of four methods (section 3.2.2)",
}
"""What each is about, in the order of the report."""

_LETTERS: Final = {
    "nodes": "n",
    "publishers": "p",
    "subscribers": "s",
    "topics": "t",
    "dimensions": "d",
    "pattern": "",
}


@dataclass(frozen=True, slots=True)
class Point:
    experiment: Experiment
    method: Method
    nodes: int
    """Of the network; brokers, for client assignment."""
    publishers: int = 0
    """Of each topic."""
    subscribers: int = 0
    """Of each topic; of all topics, for client assignment."""
    topics: int = 0
    """Of the network; of each node, for the size of tables."""
    dimensions: int = 0
    """Of CAN."""
    pattern: str = ""
    """Of Table 3.2."""

    @property
    def run(self) -> str:
        """Its name in the log, like ``paths-scribe-n100000-p10-s990-alpha``."""
        words: list[str] = [self.experiment, self.method]
        for name, letter in _LETTERS.items():
            value = getattr(self, name)
            if value or (name == "subscribers" and self.publishers):
                words.append(f"{letter}{value}")
        return "-".join(words)

    def labels(self, seed: int) -> dict[str, str]:
        """For the log."""
        own = {field.name: str(getattr(self, field.name)) for field in fields(self)}
        return {**own, "seed": str(seed)}


def seed_of(seed: int, *words: object) -> int:
    """A seed of its own for what the words say."""
    text = "/".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def drawn_members(seed: int, nodes: int, count: int) -> Ints:
    """So many different nodes, in any order."""
    rng = np.random.default_rng(seed)
    if count * 20 < nodes:
        # Far fewer than there are: draw until they are different.
        drawn = rng.integers(0, nodes, count + count // 2 + 64)
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)[:count]]
        if len(chosen) == count:
            return chosen.astype(np.int32)
    return rng.permutation(nodes)[:count].astype(np.int32)


def of_point(point: Point, part: int, tally: Tally) -> Counted:
    """The tally as one of the point's run."""
    return Counted(point.run, part, tally)
