"""Overlapping: can two filters match a common topic name, and which names do both match.

The names that two filters have in common are again those of one filter, or there are none.  Level
by level, with the longer form of each filter (see `isthmus.mqtt.filters.covering`):

* ``+`` and any level have that level in common, equal literals themselves, others nothing;
* if neither is open at its end both have the same number of levels; if one is, the other has no
  fewer, and is the end of what they have in common; if both are, so is that;
* except that a first level ``+`` and a literal that starts with ``$`` have nothing in common
  [MQTT-4.7.2-1].

Filters are trusted to be valid, and ``$share/NAME/`` to have been split off.
"""

from __future__ import annotations

from isthmus.mqtt.filters.covering import normal_form, split_open

__all__ = ["common", "overlap"]


def overlap(a: str, b: str) -> bool:
    """Whether there is a topic name that both filters match."""
    return common(a, b) is not None


def common(a: str, b: str) -> str | None:
    """The filter, in normal form, of all names that both match; None if there are none."""
    if a == b:
        return normal_form(a)
    ours, our_open = split_open(a)
    theirs, their_open = split_open(b)
    if len(ours) > len(theirs):
        ours, our_open, theirs, their_open = theirs, their_open, ours, our_open
    if len(ours) < len(theirs) and not our_open:
        return None
    first = {ours[0], theirs[0]}
    if "+" in first and any(level.startswith("$") for level in first):
        return None
    levels = theirs
    for place, level in enumerate(ours):
        if levels[place] == "+":
            levels[place] = level
        elif level not in ("+", levels[place]):
            return None
    is_open = our_open and their_open
    return normal_form("/".join((*levels, "#") if is_open else levels))
