"""Membership vectors: which lists a node is in (thesis §2.2.4).

A vector is a sequence of digits in base b.  In level i a node is in the list of those whose first i
digits are its own.  All virtual nodes of a physical node have its vector (§2.2.5).

Here a vector is a whole number with its *first* digit in the lowest place, of as many digits as fit
into 64 bits.  So the bulk simulator holds the same vectors in arrays, and the ideal vector of the
node that stands at place p is p itself (§4.1.3): in level i every bⁱ-th node is in the same list.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

__all__ = [
    "MAX_BASE",
    "MembershipVector",
    "digits_of",
    "ideal_vector",
    "vector_of",
]

MAX_BASE: Final = 256
VALUE_BITS: Final = 64


def digits_of(base: int) -> int:
    """How many digits a vector has."""
    if not 2 <= base <= MAX_BASE:
        raise ValueError(f"a base of {base}; it can be 2 to {MAX_BASE}")
    digits = 1
    while base ** (digits + 1) <= 1 << VALUE_BITS:
        digits += 1
    return digits


@dataclass(frozen=True, slots=True)
class MembershipVector:
    value: int
    base: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.value < self.base ** digits_of(self.base):
            raise ValueError(f"{self.value} has more than {digits_of(self.base)} digits")

    def digit(self, level: int) -> int:
        """The one by which the lists of `level` fall apart into those of the next."""
        place: int = self.base**level
        return self.value // place % self.base

    def prefix(self, level: int) -> int:
        """Its first digits: the list of `level` that the node is in."""
        place: int = self.base**level
        return self.value % place

    def common_digits(self, other: MembershipVector) -> int:
        """The highest level whose list both are in."""
        if self.base != other.base:
            raise ValueError(f"vectors in base {self.base} and {other.base}")
        level, most = 0, digits_of(self.base)
        while level < most and self.digit(level) == other.digit(level):
            level += 1
        return level


def vector_of(node_id: str, base: int = 2) -> MembershipVector:
    """As good as random, and anybody can compute it: nobody can choose the lists it is in."""
    number = int.from_bytes(blake2b(node_id.encode(), digest_size=16).digest(), "little")
    return MembershipVector(number % base ** digits_of(base), base)


def ideal_vector(position: int, base: int = 2) -> MembershipVector:
    """Each list consists of evenly spaced nodes (§4.1.3)."""
    return MembershipVector(position, base)
