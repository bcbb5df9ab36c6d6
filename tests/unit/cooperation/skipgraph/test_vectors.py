"""Membership vectors in any base."""

from __future__ import annotations

import pytest

from isthmus.cooperation.skipgraph.vectors import (
    MembershipVector,
    digits_of,
    ideal_vector,
    vector_of,
)


@pytest.mark.parametrize(("base", "digits"), [(2, 64), (3, 40), (4, 32), (10, 19), (256, 8)])
def test_as_many_digits_as_fit_into_64_bits(base: int, digits: int) -> None:
    assert digits_of(base) == digits
    last = MembershipVector(base**digits - 1, base)
    assert [last.digit(level) for level in range(digits)] == [base - 1] * digits
    with pytest.raises(ValueError, match=f"more than {digits} digits"):
        MembershipVector(base**digits, base)


def test_the_first_digit_decides_of_level_1() -> None:
    one, two = MembershipVector(0b0110), MembershipVector(0b1110)
    assert [one.digit(level) for level in range(4)] == [0, 1, 1, 0]
    assert one.common_digits(two) == 3
    assert one.prefix(3) == two.prefix(3) != two.prefix(4)
    assert one.common_digits(one) == 64


def test_ideal_vectors_are_evenly_spaced() -> None:
    in_list = [at for at in range(27) if ideal_vector(at, 3).prefix(2) == 5]
    assert in_list == [5, 14, 23]


def test_a_nodes_vector_is_its_own() -> None:
    vectors = {vector_of(f"n{number}", base) for number in range(100) for base in (2, 5)}
    assert len(vectors) == 200
    assert vector_of("n1") == vector_of("n1")


def test_what_is_no_base() -> None:
    for base in (0, 1, 257):
        with pytest.raises(ValueError, match="it can be 2 to 256"):
            digits_of(base)
    with pytest.raises(ValueError, match="base 2 and 3"):
        MembershipVector(1).common_digits(MembershipVector(1, 3))
