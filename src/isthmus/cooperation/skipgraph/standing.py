"""Who stands in the graph, and since when: epochs.

The graph stands on `tree`: nodes find each other, link with everybody and build one tree over all
of them.  A node is *fit* for the graph if it is linked with everybody in that tree, and neither
keeps something for a node that is away nor, restarted, awaits one.  It tells everybody so, with the
tree's label and a number of its own, the nonce, which is another one whenever it was not fit, or
one of its links was lost, however shortly.  When all nodes of a tree are fit, an **epoch** begins:
its name is a digest of the label and of all nonces, so no two nodes mean different things by it,
and all that was said in another epoch is known as such.  With the first node that is not fit any
more it is over.

So while an epoch lasts nobody comes, goes or loses a word that was said to it; on that `lists`
rests. What somebody says in an epoch that has not begun here yet waits (`early`).

At its beginning each node puts all that its clients want into the lists, and when that is done says
that it is *ready*.  An epoch is **settled**, at a node, when everybody is: from then on messages go
by the graph, and not by the tree over all nodes; not sooner, since subscribers could be missing.

    OPEN ──all are fit──▶ JOINING ──all are ready──▶ SETTLED
      ◀──────────── somebody is not fit any more ─────────┘

A node that lies about being fit harms those who send over it, as it could in any other algorithm.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from hashlib import blake2b
from typing import Final

from isthmus.cooperation.skipgraph.messages import EPOCH_BYTES, Fit, InEpoch

__all__ = ["MAX_EARLY", "Phase", "Standing"]

MAX_EARLY: Final = 20_000
MAX_EARLY_BYTES: Final = 8 << 20
"""Of what one node says in an epoch that has not begun here."""
EARLY_COST: Final = 200
"""Bytes that a message takes beside its text, roughly."""


class Phase(Enum):
    OPEN = "not all nodes are fit for a graph"
    JOINING = "what clients want is put into the lists"
    SETTLED = "messages go by the graph"


class Standing:
    """What one node knows of everybody's standing."""

    def __init__(self, here: str, base: int) -> None:
        self._here = here
        self._base = base
        self._mine = Fit(b"", 0)
        self._fits: dict[str, Fit] = {}
        self._nodes: Set[str] = frozenset()
        self._early: dict[str, list[InEpoch]] = {}
        self._early_bytes: dict[str, int] = {}
        self._unready: set[str] = set()
        self.epoch = b""
        """The name of the epoch; empty: there is none."""

    @property
    def mine(self) -> Fit:
        return self._mine

    @property
    def phase(self) -> Phase:
        if not self.epoch:
            return Phase.OPEN
        return Phase.JOINING if self._unready else Phase.SETTLED

    def stand(self, fit: Fit, nodes: Set[str]) -> bool:
        """How this node stands now; whether the epoch is another one, or over."""
        self._mine, self._nodes = fit, nodes
        return self._look()

    def heard(self, name: str, fit: Fit) -> bool:
        """How another one does; likewise."""
        self._fits[name] = fit
        self._forget_early(name)  # of an epoch that is over
        return self._look()

    def gone(self, name: str) -> bool:
        """A link is lost."""
        self._fits.pop(name, None)
        self._forget_early(name)
        return self._look()

    def _look(self) -> bool:
        before, self.epoch = self.epoch, self._epoch()
        if self.epoch == before:
            return False
        self._unready = set(self._nodes) if self.epoch else set()
        return True

    def _epoch(self) -> bytes:
        if not self._mine.nonce or len(self._nodes) < 2:
            return b""
        digest = blake2b(b"%d " % self._base + self._mine.label, digest_size=EPOCH_BYTES)
        for name in sorted(self._nodes):
            fit = self._mine if name == self._here else self._fits.get(name)
            if fit is None or not fit.nonce or fit.label != self._mine.label:
                return b""
            digest.update(f" {name} {fit.nonce}".encode())
        return digest.digest()

    def is_ready(self, name: str) -> bool:
        """In this epoch; whether it is settled by that."""
        was_joining = self.phase is Phase.JOINING
        self._unready.discard(name)
        return was_joining and self.phase is Phase.SETTLED

    def is_early(self, name: str, said: InEpoch, size: int) -> bool:
        """It may be of an epoch to come, and waits; False if too much does, and is forgotten."""
        waiting = self._early.setdefault(name, [])
        waiting.append(said)
        taken = self._early_bytes.get(name, 0) + size + EARLY_COST
        self._early_bytes[name] = taken
        if len(waiting) > MAX_EARLY or taken > MAX_EARLY_BYTES:
            self._forget_early(name)
            return False
        return True

    def _forget_early(self, name: str) -> None:
        self._early.pop(name, None)
        self._early_bytes.pop(name, None)

    def take_early(self) -> list[tuple[str, InEpoch]]:
        """What was said in the epoch that has begun just now; what was before that is forgotten."""
        taken = []
        for name, waiting in list(self._early.items()):
            last = max(
                (n for n, said in enumerate(waiting) if said.epoch == self.epoch), default=-1
            )
            taken += [(name, said) for said in waiting[: last + 1] if said.epoch == self.epoch]
            del waiting[: last + 1]
            if not waiting:
                self._forget_early(name)  # else all of it counts as long as some of it waits
        return taken
