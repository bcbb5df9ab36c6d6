"""When a measurement is over: all arrived, no more comes, or enough waited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.bench.load.expected import QUIET_S, Arrivals, Report, Totals, fan_out
from isthmus.bench.load.plan import plan_clients
from isthmus.bench.scenario import load_scenario
from isthmus.errors import LoadFailed

SENDS = Report(sent=10, received=50, sending=True, sent_by_topic=(10, 0))
DONE = Report(sent=10, received=50, sending=False, sent_by_topic=(10, 0))
TAKES = Report(sent=0, received=50, sending=False, sent_by_topic=(0, 0))


def arrivals(drain_s: float = 10.0) -> Arrivals:
    """Topic 0 has ten subscribers and topic 1 three; w0 publishes."""
    return Arrivals([10, 3], ["w0", "w1"], drain_s)


def test_fan_out_is_of_the_plan() -> None:
    plan = plan_clients(load_scenario("B"), ["w0", "w1"], "l0")
    assert fan_out(plan) == (10, 10, 10, 10, 10, 5)
    assert fan_out(plan, "t") == (10, 10, 10, 10, 10, 0)
    assert fan_out(plan, "l") == (0, 0, 0, 0, 0, 5)


def test_complete_once_nobody_sends_and_all_has_arrived() -> None:
    seen = arrivals()
    seen.report("w0", SENDS, 1.0)
    seen.report("w1", TAKES, 1.0)
    assert seen.ending(1.0) is None, "somebody sends"
    assert seen.totals == Totals(sent=10, received=100, expected=100, held=0)
    seen.report("w0", DONE, 1.5)
    assert seen.ending(1.5) is None, "w1 may have more since"
    seen.report("w1", TAKES, 1.6)
    assert seen.ending(1.6) is None, "w0 may have more since"
    seen.report("w0", DONE, 2.0)
    assert seen.ending(2.0) == "complete"


def test_duplicates_do_not_end_it_while_they_come() -> None:
    seen = arrivals()
    for step in range(5):
        now_s = 1.0 + step / 10
        seen.report("w0", DONE, now_s)
        seen.report("w1", replace(TAKES, received=50 + step), now_s)
        assert seen.ending(now_s) is None


def test_quiet_when_nothing_more_comes() -> None:
    seen = arrivals()
    lossy = replace(TAKES, received=40)
    seen.report("w0", DONE, 1.0)
    seen.report("w1", lossy, 1.0)
    for now_s in (1.5, 1.9):
        seen.report("w0", DONE, now_s)
        seen.report("w1", lossy, now_s)
        assert seen.ending(now_s) is None
    assert seen.ending(1.0 + QUIET_S) == "quiet"
    assert seen.totals.missing == 10


def test_on_long_lines_quiet_takes_longer() -> None:
    seen = Arrivals([10], ["w0"], 10.0, quiet_s=3.0)
    for now_s in (1.0, 2.0, 3.9):
        seen.report("w0", Report(sent=10, received=50, sending=False, sent_by_topic=(10,)), now_s)
        assert seen.ending(now_s) is None
    assert seen.ending(4.0) == "quiet"


def test_silence_of_one_process_is_not_quiet() -> None:
    seen = arrivals()
    seen.report("w1", replace(TAKES, received=40), 1.0)
    for now_s in (1.0, 2.0, 3.0):
        seen.report("w0", DONE, now_s)
    assert seen.ending(3.0) is None


def test_drained_when_it_never_gets_quiet() -> None:
    seen = arrivals(drain_s=3.0)
    for step in range(31):
        now_s = 1.0 + step / 10
        seen.report("w0", replace(DONE, received=step), now_s)
        seen.report("w1", replace(TAKES, received=0), now_s)
        assert seen.ending(now_s - 0.01) is None
    assert seen.ending(4.0) == "drained"


def test_held_publishers_are_remembered() -> None:
    seen = arrivals()
    seen.report("w0", replace(SENDS, held=4), 1.0)
    seen.report("w1", replace(TAKES, held=3), 1.0)
    seen.report("w0", SENDS, 1.5)
    assert (seen.totals.held, seen.most_held) == (3, 7)


GOOD = {"is": "progress", "sent": 1, "received": 2, "held": 0, "sending": True}


def test_a_report_is_read() -> None:
    message = GOOD | {"sent_by_topic": [1, 0]}
    assert Report.read(message, "w0", 2) == Report(1, 2, 0, True, (1, 0))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"sent_by_topic": [1]},
        {"sent_by_topic": [1, "x"]},
        {"sent_by_topic": [1, 0], "sent": 1.5},
    ],
)
def test_a_report_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LoadFailed, match="w0"):
        Report.read(GOOD | wrong, "w0", 2)
