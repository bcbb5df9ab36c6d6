"""Membership vectors of many nodes: the numbers of `cooperation.skipgraph.vectors`, as arrays.

That of node i is a function of the seed and i alone.  So any part of a network can be drawn by
itself, in any order and by any number of workers, and is always the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from isthmus.cooperation.skipgraph.vectors import digits_of

__all__ = ["Vectors", "common_digits", "drawn_vectors", "ideal_vectors", "mixed", "read_backwards"]

Vectors = npt.NDArray[np.uint64]

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def mixed(values: Vectors, seed: int) -> Vectors:
    """64 bits for each value, as good as random (the finalizer of SplitMix64)."""
    start = np.uint64((seed * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & (1 << 64) - 1)
    with np.errstate(over="ignore"):
        found = (values + np.uint64(1)) * _STEP
        found ^= start
        found ^= found >> np.uint64(30)
        found *= _FIRST
        found ^= found >> np.uint64(27)
        found *= _SECOND
        found ^= found >> np.uint64(31)
    return found


def drawn_vectors(seed: int, first: int, end: int, base: int = 2) -> Vectors:
    """Of the nodes `first` to `end` - 1."""
    found = mixed(np.arange(first, end, dtype=np.uint64), seed)
    size: int = base ** digits_of(base)
    return found if size == 1 << 64 else found % np.uint64(size)


def ideal_vectors(first: int, end: int) -> Vectors:
    """In any base: in level i every bⁱ-th node is in the same list (§4.1.3)."""
    return np.arange(first, end, dtype=np.uint64)


def common_digits(one: Vectors, two: Vectors, base: int) -> npt.NDArray[np.int64]:
    """How many first digits each pair has in common."""
    found = np.zeros(np.broadcast(one, two).shape, np.int64)
    same = np.ones(found.shape, bool)
    place = np.uint64(1)
    for _ in range(digits_of(base)):
        same &= one // place % np.uint64(base) == two // place % np.uint64(base)
        if not same.any():
            break
        found += same
        place = place * np.uint64(base) if int(place) * base < 1 << 64 else place
    return found


def read_backwards(vectors: Vectors, base: int) -> Vectors:
    """As a number whose first digit counts most: what is near by numeric id (SkipNet)."""
    rest, found = vectors.copy(), np.zeros_like(vectors)
    for _ in range(digits_of(base)):
        found = found * np.uint64(base) + rest % np.uint64(base)
        rest //= np.uint64(base)
    return found
