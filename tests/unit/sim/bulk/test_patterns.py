"""The patterns of Table 3.2 at the sizes of the thesis, and what must not change them."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.sim.bulk import patterns
from isthmus.sim.bulk.patterns import PATTERNS, path_lengths, portion, portions
from isthmus.sim.bulk.vectors import common_digits, drawn_vectors, read_backwards


def test_figure_3_9() -> None:
    """Independent of the number of nodes; small topics take fewer than 4 hops."""
    small = path_lengths(list(PATTERNS.values()), 10_000, seed=1)
    large = path_lengths([PATTERNS[name] for name in ("delta", "epsilon", "zeta")], 100_000, seed=2)
    for name in ("delta", "epsilon", "zeta"):
        assert small[name].mean == pytest.approx(large[name].mean, abs=0.1)
        assert large[name].mean < 4
        assert small[name].mean < small["alpha"].mean
    assert large["delta"].pairs == 90_000
    assert small["beta"].pairs == 10 * 500 * 500


def test_portions_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of workers, any portions: the same numbers."""
    some = [PATTERNS["alpha"], PATTERNS["gamma"]]
    whole = path_lengths(some, 12_000, seed=5)
    monkeypatch.setattr(patterns, "PORTION_NODES", 3_000)
    assert list(portions(1000, 12_345)) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    for name, lengths in path_lengths(some, 12_345, seed=5, workers=3).items():
        assert (lengths.hops, lengths.messages) == (whole[name].hops, whole[name].messages)
    backwards = [
        portion(some, part, 5)["alpha"].hops for part in reversed([*portions(1000, 12_000)])
    ]
    assert sum(backwards) == whole["alpha"].hops


def test_by_hops_is_the_same_with_more_to_say() -> None:
    plain = path_lengths([PATTERNS["beta"]], 2_000, seed=3)["beta"]
    told: list[tuple[int, int]] = []
    shown = path_lengths(
        [PATTERNS["beta"]], 2_000, seed=3, by_hops=True, progress=lambda *at: told.append(at)
    )["beta"]
    assert (plain.pairs, plain.hops, plain.messages) == (shown.pairs, shown.hops, shown.messages)
    assert int(shown.at_hops.sum()) == shown.pairs
    assert told[-1] == (2_000, 2_000)


def test_sfb_is_shorter() -> None:
    some = [PATTERNS["alpha"], PATTERNS["delta"]]
    mrf, sfb = path_lengths(some, 5_000, 1), path_lengths(some, 5_000, 1, "sfb")
    for name in mrf:
        assert sfb[name].mean < mrf[name].mean
        assert sfb[name].messages == mrf[name].messages


def test_too_few_nodes() -> None:
    with pytest.raises(ValueError, match="999 nodes are no topic"):
        path_lengths([PATTERNS["alpha"]], 999, seed=1)


@pytest.mark.parametrize("base", [2, 3, 10, 256])
def test_vectors_are_a_function_of_seed_and_node(base: int) -> None:
    whole = drawn_vectors(7, 0, 1000, base)
    parts = [drawn_vectors(7, at, at + 100, base) for at in range(0, 1000, 100)]
    assert (whole == np.concatenate(parts)).all()
    assert (whole != drawn_vectors(8, 0, 1000, base)).any()
    digits = np.bincount((whole % np.uint64(base)).astype(np.int64), minlength=base)
    assert (digits > 0).mean() > 0.9
    assert (read_backwards(read_backwards(whole, base), base) == whole).all()


def test_common_digits() -> None:
    one, two = np.array([0b0110, 5, 7], np.uint64), np.array([0b0010, 5, 6], np.uint64)
    assert common_digits(one, two, 2).tolist() == [2, 64, 0]
