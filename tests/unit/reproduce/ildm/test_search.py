"""What counts beyond Definition 1, and what is warmed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.bench import experiment as bench_experiment
from isthmus.bench.limit.trial import piles_up
from isthmus.pipeline.count.direct import RunSummary
from isthmus.reproduce.ildm import search
from isthmus.reproduce.ildm.experiments import Experiment, experiments
from isthmus.reproduce.ildm.search import Begun, begin, search_experiment
from isthmus.reproduce.ildm.timing import QUICK
from support.made_up_runs import summary_row

ALL = {each.name: each for each in experiments(quick=True)}


def summary(mean_us: float | None) -> RunSummary:
    row = summary_row("r", latency_mean_us=mean_us, window_s=4.0)
    return RunSummary(**{**row, "labels": dict(row["labels"]), "notes": ()})


def test_messages_that_wait_for_longer_and_longer_do_not_count() -> None:
    assert piles_up(summary(None)) is None
    assert piles_up(summary(400_000.0)) is None
    said = piles_up(summary(1_200_000.0))
    assert said == "messages pile up: those of l-clients took 1.20 s on average, in a window of 4 s"


def begun(tmp_path: Path, experiment: Experiment, *, grid: bool = False) -> Begun:
    return begin(tmp_path, experiment, 40_000_000, QUICK.full, latency_interval_s=0.05, grid=grid)


def test_how_a_search_is_begun(tmp_path: Path) -> None:
    made = begun(tmp_path, ALL["C-sf"])
    assert made.options.guided
    assert made.scenario.latency is not None
    assert made.scenario.latency.interval_s == 0.05
    assert made.scenario.scenario.duration_s == QUICK.full.duration_s
    assert not begun(tmp_path, ALL["C-sf"], grid=True).options.guided


@pytest.mark.parametrize(
    ("name", "warmed"), [("single-mosquitto", False), ("single-hivemq", True), ("mixed-C-sf", True)]
)
def test_brokers_that_compile_as_they_run_are_warmed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, warmed: bool
) -> None:
    asked: dict[str, object] = {}

    def limit_of(*arguments: object, **options: object) -> str:
        asked.update(options, scenario=arguments[2])
        return "searched"

    monkeypatch.setattr(search, "limit_of", limit_of)
    assert search_experiment(tmp_path, ALL[name], begun(tmp_path, ALL[name])) == "searched"  # type: ignore[comparison-overlap]
    assert asked["prefix"] == name
    warm_up = asked["warm_up"]
    assert isinstance(warm_up, bench_experiment.WarmUp) is warmed
    if isinstance(warm_up, bench_experiment.WarmUp):
        assert warm_up.interval_ns == 10_000_000
