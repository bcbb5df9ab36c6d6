"""A trial: which run it makes, how long it measures, and what it makes of the result."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.bench.coordinator.run_record import COORDINATOR
from isthmus.bench.limit.search import SearchOptions, Trial, TrialOutcome
from isthmus.bench.limit.trial import measuring
from isthmus.bench.scenario import load_scenario
from isthmus.errors import LimitError
from isthmus.pipeline.log.schema import TABLES, file_path

MS = 1_000_000
OPTIONS = SearchOptions(4 * MS)
SCENARIO = load_scenario("single")
SUMMARY: dict[str, Any] = {
    "limit_ratio": 0.995,
    "under_limit": True,
    "ingress": 100.0,
    "egress": 995.0,
    "loss_rate": 0.005,
    "window_s": 60.0,
    "latency_mean_us": 900.0,
    "limited_by": "nothing",
    "notes": ["seen"],
}


class Session:
    def __init__(self, summary: dict[str, Any] | None = None, **record: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.summary = SUMMARY if summary is None else summary
        self.record = {"kept_pace": True, "leftovers": 0, "lost_clients": 0} | record

    def measure(self, run: str, **times: Any) -> Any:
        self.asked.append((run, times))
        return SimpleNamespace(summary=SimpleNamespace(**self.summary), **self.record)


@pytest.fixture
def summary() -> dict[str, Any]:
    return dict(SUMMARY)


def trial(number: int = 7) -> Trial:
    return Trial(number, 3_200_000)


def test_a_measurement_has_the_scenarios_own_length(
    tmp_path: Path, summary: dict[str, Any]
) -> None:
    session = Session(summary | {"limited_by": "brokers"})
    measure = measuring(session, tmp_path, SCENARIO, OPTIONS, prefix="limit")
    assert measure(trial()) == TrialOutcome(
        "limit-007-3200000ns", True, 0.995, 100.0, 995.0, 0.005, True, "brokers", ("seen",)
    )
    assert session.asked == [("limit-007-3200000ns", {"interval_ns": 3_200_000})]


def test_publishers_that_fell_behind(tmp_path: Path, summary: dict[str, Any]) -> None:
    measure = measuring(Session(summary, kept_pace=False), tmp_path, SCENARIO, OPTIONS, prefix="x")
    assert not measure(trial()).satisfies


def test_a_window_in_which_nothing_was_sent(tmp_path: Path, summary: dict[str, Any]) -> None:
    summary |= {"limit_ratio": None, "under_limit": False, "loss_rate": None, "notes": ()}
    outcome = measuring(Session(summary), tmp_path, SCENARIO, OPTIONS, prefix="x")(trial())
    assert (outcome.satisfies, outcome.ratio, outcome.loss_rate) == (False, 0.0, 0.0)
    assert "nothing was sent within the window" in outcome.notes[0]


def test_what_a_killed_search_left_in_the_log(tmp_path: Path, summary: dict[str, Any]) -> None:
    session = Session(summary)
    measure = measuring(session, tmp_path, SCENARIO, OPTIONS, prefix="limit")
    for table in TABLES:
        file = file_path(tmp_path, table, "limit-007-3200000ns", "w0")
        file.parent.mkdir(parents=True)
        if table != "runs":
            file.touch()
    other = file_path(tmp_path, "publishes", "limit-006-3200000ns", "w0")
    other.parent.mkdir()
    other.touch()
    measure(trial())
    assert session.asked[0][0] == "limit-007-3200000ns"
    assert list(tmp_path.rglob("*.parquet")) == [other]  # the run that did not end is gone
    ended = file_path(tmp_path, "runs", "limit-007-3200000ns", COORDINATOR)
    ended.parent.mkdir(parents=True)
    ended.touch()
    measure(trial())
    assert session.asked[1][0] == "limit-007-3200000ns-2"
    assert ended.exists()  # a whole run is kept


def test_what_an_earlier_run_disturbed_is_measured_again_if_it_fails(
    tmp_path: Path, summary: dict[str, Any]
) -> None:
    session = Session(summary)
    measure = measuring(session, tmp_path, SCENARIO, OPTIONS, prefix="x")
    summary["under_limit"] = False
    assert measure(trial(1)).notes == ("seen",)
    assert len(session.asked) == 1
    session.record["leftovers"] = 3
    outcome = measure(trial(2))
    assert "messages of an earlier run arrived in x-002-3200000ns" in outcome.notes[1]
    assert len(session.asked) == 3
    summary["under_limit"] = True
    measure(trial(3))  # disturbed, and under the limit all the same
    assert len(session.asked) == 4


def test_what_piles_up_on_links_is_over_the_limit(tmp_path: Path, summary: dict[str, Any]) -> None:
    measure = measuring(Session(summary), tmp_path, SCENARIO, OPTIONS, prefix="x")
    summary["latency_mean_us"] = 6.1e6
    outcome = measure(trial())
    assert not outcome.under_limit
    assert "took 6.10 s on average, in a window of 60 s" in outcome.notes[1]
    summary["latency_mean_us"] = None  # no l-clients, nothing to go by
    assert measure(trial()).under_limit


def test_a_session_that_lost_clients_is_not_measured_with_again(
    tmp_path: Path, summary: dict[str, Any]
) -> None:
    session = Session(summary, leftovers=3, lost_clients=1)
    summary["under_limit"] = False
    measure = measuring(session, tmp_path, SCENARIO, OPTIONS, prefix="x")
    assert not measure.lost_clients
    measure(trial(1))
    assert measure.lost_clients
    assert len(session.asked) == 1


def test_searches_that_mean_nothing(tmp_path: Path) -> None:
    places = [place.model_copy(update={"subscribers": 0}) for place in SCENARIO.place]
    nobody = SCENARIO.model_copy(update={"place": tuple(places)})
    with pytest.raises(LimitError, match="no t-client subscribes to what t-clients publish"):
        measuring(Session(), tmp_path, nobody, OPTIONS, prefix="x")
    rare, short = SearchOptions(3_000 * MS), SCENARIO.changed(duration_s=3.0, trim_s=0.5)
    with pytest.raises(LimitError, match="is 3 s, longer than the 2 s that are measured"):
        measuring(Session(), tmp_path, short, rare, prefix="x")
    measuring(Session(), tmp_path, SCENARIO, rare, prefix="x")  # of 60 s
