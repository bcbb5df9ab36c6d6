"""Covering: does one filter contain another.

Filter *a* covers filter *b* when every topic name that *b* matches is matched by *a* too.

How it is decided, exactly.  A filter is a list of levels, each a literal or ``+``, and may be open
at its end (``/#``).  ``#`` alone is ``+/#``, since every name has at least one level; and ``/#`` is
``/+/#``, since the empty string is no name.  Apart from these two pairs, different filters match
different names.  There is always a level that no filter mentions; put it in each ``+`` of *b*, and
*b* becomes a name that *a* matches only with a ``+`` in each of those places.  Hence, with the
longer form of each pair,

* *a* covers *b* iff each level of *a* is ``+`` or equals *b*'s, and the lengths fit: the same if
  neither is open, *a* no longer than *b* if *a* is open, never if *b* alone is open;
* except that a first level ``+`` covers no literal that starts with ``$`` [MQTT-4.7.2-1].

That names and filters end at 65,535 bytes is not taken into account; a ``covers`` that is true
stays true with it.  Filters are trusted to be valid, and ``$share/NAME/`` to have been split off.
Sets of filters are in `isthmus.mqtt.filters.covering_set`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["covers", "normal_form", "split_open"]


_SHORTER: Final = {"+/#": "#", "/+/#": "/#"}


def normal_form(topic_filter: str) -> str:
    """The one way to write what `topic_filter` matches: ``#`` for ``+/#``, ``/#`` for ``/+/#``."""
    return _SHORTER.get(topic_filter, topic_filter)


def covers(a: str, b: str) -> bool:
    """Whether every topic name that filter `b` matches is matched by filter `a` too."""
    if a == b:
        return True
    a_levels, a_open = split_open(a)
    b_levels, b_open = split_open(b)
    if a_open:
        if len(a_levels) > len(b_levels):
            return False
    elif b_open or len(a_levels) != len(b_levels):
        return False
    if a_levels[0] == "+" and b_levels[0].startswith("$"):
        return False
    return all(ours in ("+", theirs) for ours, theirs in zip(a_levels, b_levels, strict=False))


def split_open(topic_filter: str) -> tuple[list[str], bool]:
    """The levels without a final ``#``, and whether there was one; of a pair, the longer form."""
    levels = topic_filter.split("/")
    if levels[-1] != "#":
        return levels, False
    levels.pop()
    if levels in ([], [""]):
        levels.append("+")
    return levels, True
