"""A hundred runs of hostile clients and brokers; `python -m fuzz.fuzz_split` does more."""

from __future__ import annotations

import pytest

from fuzz.fuzz_split import run


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_hostile_clients_and_brokers(first: int) -> None:
    for seed in range(first, first + 25):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
