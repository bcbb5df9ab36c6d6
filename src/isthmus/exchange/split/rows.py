"""Rows of packets that are alike: what is done for each of many is done by C.

A row is given by the boundaries of its packets, which `scan` gives as a `range` where they are all
equally long.  A long one of these is looked at column by column, a short one packet by packet,
which is faster then.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final

from isthmus.mqtt.publish_layout import PUBACK

__all__ = ["puback_ids", "publish_ids"]

_LONG: Final = 16
_COLUMNS_EACH: Final = 4
"""So many columns are looked at in the time that a packet takes."""
_HIGH: Final = int(sys.byteorder == "little")
"""Where in a number of two bytes, as this machine has them, the high one is."""


def publish_ids(
    data: bytes,
    offsets: Sequence[int],
    at: int,
    stop: int,
    beginning: bytes,
    *,
    plain: bool = False,
) -> list[int]:
    """The identifiers of the PUBLISHes from `at` on, to `stop` at most, that begin alike.

    `beginning` ends before the identifier.  After it is no property, if they are to be `plain`.
    """
    to_id, startswith = len(beginning), data.startswith
    if (
        isinstance(offsets, range)
        and stop - at >= max(_LONG, to_id // _COLUMNS_EACH)
        and _are_alike(data, offsets, at, stop, beginning, plain=plain)
    ):
        return _ids(data, offsets, at, stop, to_id)
    ids: list[int] = []
    append = ids.append
    for start in offsets[at:stop]:
        pos = start + to_id
        if not startswith(beginning, start) or (plain and data[pos + 2]):
            break
        append(data[pos] << 8 | data[pos + 1])
    return ids


def puback_ids(data: bytes, offsets: Sequence[int], at: int) -> list[int] | None:
    """The identifiers of a long row of PUBACKs, if there is nothing else up to its end."""
    stop = len(offsets) - 1
    if not isinstance(offsets, range) or offsets.step != 4 or stop - at < _LONG:
        return None
    if data[offsets[at] : offsets[stop] : 4].count(PUBACK) != stop - at:
        return None
    return _ids(data, offsets, at, stop, 2)


def _are_alike(
    data: bytes, offsets: range, at: int, stop: int, beginning: bytes, *, plain: bool
) -> bool:
    start, end, step = offsets[at], offsets[stop], offsets.step
    for column, byte in enumerate(beginning, start):
        if data[column:end:step].count(byte) != stop - at:
            return False
    return not plain or data[start + len(beginning) + 2 : end : step].count(0) == stop - at


def _ids(data: bytes, offsets: range, at: int, stop: int, to_id: int) -> list[int]:
    begin, end, step = offsets[at] + to_id, offsets[stop], offsets.step
    pairs = bytearray(2 * (stop - at))
    pairs[_HIGH::2] = data[begin:end:step]
    pairs[1 - _HIGH :: 2] = data[begin + 1 : end : step]
    return array("H", pairs).tolist()
