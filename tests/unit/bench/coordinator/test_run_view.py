"""What a search says of itself, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.bench.coordinator.run_view import in_words, print_trial
from isthmus.bench.limit.search import Found, Trial, TrialOutcome

UNDER = TrialOutcome("r", True, 1.0, 500.0, 5_000.0, 0.0, True, "nothing")
OVER = replace(UNDER, under_limit=False, ratio=0.9, limited_by="brokers")
FOUND = Found("found", 20_000_000, UNDER, 19_500_000, OVER, "brokers", False, 9, ())


def test_a_limit_that_is_found_has_an_error() -> None:
    assert in_words(FOUND) == (
        "The limit is found after 9 measurements: 500 messages/s in, 5,000/s out, at 20 ms; "
        "less than 2.6% below the true one."
    )


def test_a_lower_bound_has_none() -> None:
    bound = replace(FOUND, limited_by="load tool", is_lower_bound=True)
    assert in_words(bound) == (
        "The limit is found after 9 measurements: at least 500 messages/s in, 5,000/s out, at "
        "20 ms; the load tool gave way, not the brokers."
    )


def test_beyond_nobody_gave_way() -> None:
    beyond = Found("beyond", 50_000, UNDER, None, None, "", True, 9, ())
    assert in_words(beyond) == (
        "The limit is beyond the shortest interval that is tried after 9 measurements: at least "
        "500 messages/s in, 5,000/s out, at 0.05 ms."
    )


def test_none_has_no_figures() -> None:
    none = Found("none", None, None, 60_000_000_000, OVER, "brokers", False, 3, ())
    assert in_words(none) == "No interval in reach is under the limit after 3 measurements."


def test_a_measurement_is_told_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    late = replace(UNDER, kept_pace=False, limited_by="load tool")
    print_trial(Trial(0, 2_000_000), late)
    told = capsys.readouterr().err
    assert told.split()[:3] == ["1", "2.0000", "ms"]
    assert "over the limit, publishers did not keep the interval  (load tool)" in told
