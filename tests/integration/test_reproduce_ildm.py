"""One experiment of the paper from its servers to the report, with nothing left out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from conftest import require_broker
from isthmus.reproduce.ildm import report as ildm_report
from isthmus.reproduce.ildm.command import Settings, reproduce
from isthmus.reproduce.ildm.timing import QUICK, Times, Timing
from support.spark import spark

__all__ = ["spark"]

SHORT = Timing(
    full=Times(1.6, 0.3),
    shortest_s=1.6,
    latency_interval_s=0.05,
    budget_s=None,
    end_s=QUICK.end_s,
)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # the job's own session is this one
def test_pattern_a_is_searched_indexed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_broker("mosquitto")
    monkeypatch.setattr(ildm_report, "QUICK", SHORT)
    settings = Settings(tmp_path / "out", quick=True, only=("A-sf",), docs=tmp_path / "docs")
    said = io.StringIO()
    done = reproduce(settings, console=Console(file=said, width=160))
    assert done.failed == {}, said.getvalue()
    (result,) = done.results
    assert result.name == "A-sf"
    assert result.egress > 0
    assert result.limit_ratio is not None
    assert result.limit_ratio >= 0.99
    assert result.latency_count > 0
    assert result.cpu is not None
    assert result.cpu.nodes > 0
    assert result.cpu.brokers > 0
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["results"][0]["run"] == result.run
    assert "<h2>Cooperation (Fig. 12)</h2>" in (tmp_path / "out" / "report.html").read_text()
    measured = len(done.searched["A-sf"].measurements)
    assert measured == len(done.tables["summary"])

    again = reproduce(settings, console=Console(file=io.StringIO(), width=160))
    assert again.results == done.results
    assert len(again.searched["A-sf"].measurements) == measured
