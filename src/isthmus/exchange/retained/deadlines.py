"""Topics by when they are due: expiry of messages, end of tombstones.

Every topic stands here once, under the time that its entry has now, so nothing that is out of date
has to be looked for.  Only times under which nothing stands any more are left in the heap, and
swept out of it when they are more than the others.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

__all__ = ["Deadlines"]


class Deadlines:
    """Add and discard in constant time but for the heap's logarithm."""

    def __init__(self) -> None:
        self._topics: dict[int, bytes | dict[bytes, None]] = {}
        """A topic that is alone with its time, which most are, needs no dictionary."""
        self._heap: list[int] = []

    def __len__(self) -> int:
        """Of the heap, for tests."""
        return len(self._heap)

    def add(self, due_ms: int, topic: bytes) -> None:
        there = self._topics.get(due_ms)
        if there is None:
            self._topics[due_ms] = topic
            heappush(self._heap, due_ms)
            if len(self._heap) > 2 * len(self._topics) + 64:
                self._heap = list(self._topics)
                heapify(self._heap)
        elif isinstance(there, dict):
            there[topic] = None
        elif there != topic:
            self._topics[due_ms] = {there: None, topic: None}

    def discard(self, due_ms: int, topic: bytes) -> None:
        there = self._topics.get(due_ms)
        if isinstance(there, dict):
            there.pop(topic, None)
            if not there:
                del self._topics[due_ms]
        elif there == topic:
            del self._topics[due_ms]

    def first(self) -> tuple[int, bytes] | None:
        """What is due first."""
        while self._heap:
            due_ms = self._heap[0]
            there = self._topics.get(due_ms)
            if isinstance(there, dict):
                # The last that came, because what is taken from a dictionary's front leaves gaps.
                return due_ms, next(reversed(there))
            if there is not None:
                return due_ms, there
            heappop(self._heap)
        return None
