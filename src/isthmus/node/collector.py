"""Python's collector of cyclic garbage, kept from holding the event loop.

A full collection looks at every object there is: 15 ms in a node that has just started, 100 ms in
one with 100,000 filters, at a moment that whoever allocates much can choose.  So what survives a
full collection is *frozen*: the next one looks only at what came since, which takes a few
milliseconds.  Frozen objects are freed as ever when nothing refers to them any more.

What is given up: objects that refer to each other in a ring, lived through a full collection and
are of no use afterwards stay in memory.  A node makes none of those in normal operation: clients
that come and go leave no ring behind, which a test shows.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

__all__ = ["keep_collections_short"]


def keep_collections_short() -> None:
    """To be called once, before the node serves anybody."""
    if _freeze_survivors not in gc.callbacks:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
