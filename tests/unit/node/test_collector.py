"""Full collections of cyclic garbage look only at what came since the last one."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from isthmus.node import collector


class Thing:
    """An object that the collector looks at."""


def test_survivors_are_not_looked_at_again() -> None:
    assert collector._freeze_survivors not in gc.callbacks
    thresholds = gc.get_threshold()
    try:
        collector.keep_collections_short()
        collector.keep_collections_short()
        assert gc.callbacks.count(collector._freeze_survivors) == 1
        things = [Thing() for _ in range(1_000)]
        assert any(each is things[7] for each in gc.get_objects())
        gc.collect()
        assert not any(each is things[7] for each in gc.get_objects())
        gc.collect(0)
        later = Thing()
        assert any(each is later for each in gc.get_objects())
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collector._freeze_survivors)
        gc.unfreeze()


def test_a_full_collection_never_has_much_to_look_at() -> None:
    """What a client can make the node keep, for example retained messages, comes in small parts."""
    thresholds = gc.get_threshold()
    looked_at: list[int] = []

    def count(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(len(gc.get_objects()))

    try:
        collector.keep_collections_short()
        gc.callbacks.append(count)
        kept = [Thing() for _ in range(50_000)]
        assert len(kept) == 50_000
        assert len(looked_at) >= 3
        assert max(looked_at) <= 20_000
    finally:
        gc.callbacks.remove(count)
        gc.callbacks.remove(collector._freeze_survivors)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
