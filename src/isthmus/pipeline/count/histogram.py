"""Exact histograms of latency in microseconds, for percentiles without a sketch.

While a file is read, :class:`Histograms` counts values of several *series*: an array of counters
for what is between 0 and 262 ms, the rest sorted and counted.  It hands them out by *block*, the
262,144 values that share all but the lowest 18 bits; so files add up block by block, and
:class:`Distribution` looks only into the blocks that hold a percentile.

Memory: the counters take at most 128 MiB (with more than 64 series each has a narrower range);
what is outside takes 16 bytes per distinct value, and about 80 for a moment whenever their number
has doubled; a block handed out has 12 bytes per distinct value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "MOST_SERIES", "Block", "Distribution", "Histograms", "tally"]

Ints = NDArray[np.int64]

_BITS: Final = 18
BLOCK: Final = 1 << _BITS
"""Microseconds in a block."""

_COUNTERS: Final = 1 << 24
_ENTRY: Final = np.dtype([("offset", "<u4"), ("count", "<u8")])
_HALF: Final = 1 << 45
"""Values are between -this and this, which is over a year; so series and value fit 63 bits."""
MOST_SERIES: Final = 1 << 17
"""In one file."""
_FEW: Final = BLOCK // 32
_GATHERED: Final = 1 << 20
_TALLY_SPAN: Final = 1 << 20


def tally(values: Ints) -> tuple[Ints, Ints]:
    """Each distinct value and how often it occurs, in order."""
    if not len(values):
        return values, values
    low = int(values.min())
    if int(values.max()) - low < _TALLY_SPAN:
        counts = np.bincount(values - low).astype(np.int64, copy=False)
        found = np.flatnonzero(counts)
        return found + low, counts[found]
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, counts.astype(np.int64, copy=False)


class Block(NamedTuple):
    """The values of one series that lie in one block."""

    series: int
    block: int
    values: int
    data: bytes


class Histograms:
    """How often each value occurs in each of `series` series."""

    def __init__(self, series: int) -> None:
        if series > MOST_SERIES:
            raise ValueError(f"{series} series of latency in one file; {MOST_SERIES} at most")
        self._width = min(BLOCK, _COUNTERS // max(series, 1))
        self._counters = np.zeros(series * self._width, np.int64)
        self._keys: list[Ints] = []
        self._counts: list[Ints] = []
        self._gathered = 0
        self._compact_at = _GATHERED

    def add(self, series: Ints, values_us: Ints) -> None:
        """Count `values_us[i]` in `series[i]`."""
        if not len(values_us):
            return
        if values_us.min() < 0 or values_us.max() >= self._width:
            inside = (values_us >= 0) & (values_us < self._width)
            outside = ~inside
            self._add_outside((series[outside] * (2 * _HALF)) + (values_us[outside] + _HALF))
            series, values_us = series[inside], values_us[inside]
        np.add.at(self._counters, series * self._width + values_us, 1)

    def blocks(self) -> Iterator[Block]:
        """Everything that was counted; a block may come in two parts."""
        for series in range(len(self._counters) // self._width):
            counters = self._counters[series * self._width : (series + 1) * self._width]
            found = np.flatnonzero(counters)
            if len(found):
                yield _block(series, 0, found, counters[found])
        self._compact()
        keys, counts = self._keys[0], self._counts[0]
        series_of, values_us = keys // (2 * _HALF), keys % (2 * _HALF) - _HALF
        block_of = values_us >> _BITS
        edges = np.flatnonzero(np.diff(series_of) | np.diff(block_of)) + 1
        for part in np.split(np.arange(len(keys)), edges):
            if len(part):
                block = int(block_of[part[0]])
                offsets = values_us[part] - block * BLOCK
                yield _block(int(series_of[part[0]]), block, offsets, counts[part])

    def _add_outside(self, keys: Ints) -> None:
        distinct, counts = tally(keys)
        self._keys.append(distinct)
        self._counts.append(counts)
        self._gathered += len(distinct)
        if self._gathered >= self._compact_at:
            self._compact()

    def _compact(self) -> None:
        none = np.empty(0, np.int64)
        keys = np.concatenate([none, *self._keys])
        self._keys.clear()  # each step lets go of what it no longer needs
        counts = np.concatenate([none, *self._counts])
        self._counts.clear()
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        counts = counts[order]
        del order
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        self._keys = [keys[first]]
        self._counts = [np.add.reduceat(counts, first) if len(first) else counts]
        self._gathered = len(first)
        self._compact_at = max(_GATHERED, 2 * len(first))


def _block(series: int, block: int, offsets: Ints, counts: Ints) -> Block:
    entries = np.empty(len(offsets), _ENTRY)
    entries["offset"] = offsets
    entries["count"] = counts
    return Block(series, block, int(counts.sum()), entries.tobytes())


class Distribution:
    """The values of any number of blocks together: their number, sum, percentiles and maximum."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks: dict[int, list[Block]] = {}
        for block in blocks:
            self._blocks.setdefault(block.block, []).append(block)
        self._merged: dict[int, tuple[Ints, Ints]] = {}
        self.values = sum(block.values for parts in self._blocks.values() for block in parts)

    @property
    def sum_us(self) -> int:
        """Of all values."""
        total = 0
        for number, parts in self._blocks.items():
            for part in parts:
                entries = np.frombuffer(part.data, _ENTRY)
                offsets = entries["offset"].astype(np.int64)
                total += number * BLOCK * part.values
                total += int(offsets @ entries["count"].astype(np.int64))
        return total

    def percentile(self, numerator: int, denominator: int) -> int | None:
        """The nearest rank: the smallest value with at least ceil(q·n) values up to it."""
        rank = -(-self.values * numerator // denominator)
        for number in sorted(self._blocks):
            within = sum(part.values for part in self._blocks[number])
            if rank <= within:
                offsets, cumulated = self._cumulated(number)
                return number * BLOCK + int(offsets[np.searchsorted(cumulated, rank)])
            rank -= within
        return None

    @property
    def max_us(self) -> int | None:
        """The largest value."""
        return self.percentile(1, 1)

    def _cumulated(self, number: int) -> tuple[Ints, Ints]:
        """Offsets in order, and how many of the block's values are up to each."""
        if number not in self._merged:
            parts = [np.frombuffer(part.data, _ENTRY) for part in self._blocks[number]]
            if sum(map(len, parts)) < _FEW:  # as with many topics: no array of the whole block
                entries = np.concatenate(parts)
                entries = entries[np.argsort(entries["offset"], kind="stable")]
                offsets, counts = entries["offset"].astype(np.int64), entries["count"]
            else:
                offsets, counts = np.arange(BLOCK), np.zeros(BLOCK, np.uint64)
                for part in parts:
                    counts[part["offset"]] += part["count"]
            self._merged[number] = offsets, np.cumsum(counts, dtype=np.int64)
        return self._merged[number]
