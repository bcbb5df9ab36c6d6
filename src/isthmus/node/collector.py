"""Python's collector of cyclic garbage, kept from holding the event loop.

A full collection looks at every object there is: 15 ms in a node that has just started, 100 ms in
one with 100,000 filters, at a moment that whoever allocates much can choose.  So what survives a
full collection is *frozen*: the next one looks only at what came since.  Frozen objects are freed
as ever when nothing refers to them any more.

How much came since is bounded by `THRESHOLDS`: a full collection after some 8,000 new objects
takes 3 to 10 ms; after the 85,000 of Python's own thresholds it was 56 ms while retained messages
came.  Together they take no longer, since each looks at what is new only.

What is given up: objects that refer to each other in a ring, lived through a full collection and
are of no use afterwards stay in memory.  A node makes none of those in normal operation: clients
that come and go leave no ring behind, which a test shows.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

__all__ = ["THRESHOLDS", "keep_collections_short"]

THRESHOLDS = (700, 3, 2)
"""Of the three generations: 700 x 4 x 3 objects more than were freed bring a full collection."""


def keep_collections_short() -> None:
    """To be called once, before the node serves anybody; whoever starts it may collect nothing."""
    if _freeze_survivors not in gc.callbacks:
        gc.freeze()  # what was imported is garbage in the least part: a collection costs 15 ms
        gc.collect()  # Python waits for a quarter of what the last one left: of nothing
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_freeze_survivors)
    gc.enable()


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
