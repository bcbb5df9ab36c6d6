"""Messages at QoS 1 and 2 that have passed this node already.

Links suppress repetitions on one way (`lane`).  When the tree changes under load, or a node in
between crashes, a message can come again on another way or in another life of the neighbour.  So
the node where it enters numbers it, and every node remembers the last `WINDOW` numbers of each
origin and incarnation and takes each only once.
"""

from __future__ import annotations

__all__ = ["SeenMessages"]

WINDOW = 4_096
MAX_ORIGINS = 512


class SeenMessages:
    """Bounded: the oldest numbers of an origin, and the origins silent longest, are forgotten."""

    __slots__ = ("_origins",)

    def __init__(self) -> None:
        self._origins: dict[tuple[str, str], dict[int, None]] = {}

    def is_new(self, origin: str, number: str) -> bool:
        """Whether this is the first time; `number` is ``<incarnation>.<hexadecimal count>``."""
        incarnation, _, count = number.partition(".")
        key = (origin, incarnation)
        numbers = self._origins.pop(key, None)
        if numbers is None:
            numbers = {}
            if len(self._origins) >= MAX_ORIGINS:
                del self._origins[next(iter(self._origins))]
        self._origins[key] = numbers
        value = int(count, 16)
        if value in numbers:
            return False
        numbers[value] = None
        if len(numbers) > WINDOW:
            del numbers[next(iter(numbers))]
        return True
