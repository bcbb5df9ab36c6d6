"""Full collections of cyclic garbage look only at what came since the last one."""

from __future__ import annotations

import gc

from isthmus.node import collector


class Thing:
    """An object that the collector looks at."""


def test_survivors_are_not_looked_at_again() -> None:
    assert collector._freeze_survivors not in gc.callbacks
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
        gc.callbacks.remove(collector._freeze_survivors)
        gc.unfreeze()
