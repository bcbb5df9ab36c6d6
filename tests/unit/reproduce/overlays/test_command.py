"""The whole reproduction on a made-up machine: order, files, resuming, budget, failures."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from isthmus.errors import BrokerFailed, JavaMissing, NodeFailed, ReproduceError
from isthmus.pipeline.spark import java
from isthmus.reproduce.overlays import command
from isthmus.reproduce.overlays.command import Reproduced, Settings, reproduce
from isthmus.reproduce.overlays.experiments import (
    CONTENDERS,
    Experiment,
    Parameters,
    experiments,
)
from isthmus.reproduce.overlays.figures import draw
from isthmus.reproduce.overlays.measuring import Measured, measured_path
from isthmus.reproduce.overlays.report import write_report
from support import made_up_overlays
from support.made_up_overlays import MadeUpOverlays, measured


@pytest.fixture(autouse=True)
def _all_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_broker", lambda broker: None)
    monkeypatch.setattr(command, "no_multicast", lambda discovery: "")


def run(
    made_up: MadeUpOverlays, settings: Settings, *, report: bool = False
) -> tuple[Reproduced, str]:
    """What came of it and what was said; drawing takes longest, so only where it is looked at."""
    console = Console(file=io.StringIO(), width=160)
    done = reproduce(
        settings,
        console=console,
        measure=made_up.measure,
        compute=made_up.compute,
        write=write_report if report else lambda done, claims: None,
    )
    assert isinstance(console.file, io.StringIO)
    return done, console.file.getvalue()


def test_everything_is_measured(tmp_path: Path) -> None:
    made_up = MadeUpOverlays()
    done, said = run(made_up, Settings(tmp_path, minutes=0))
    assert made_up.made == [each.run(1) for each in experiments(quick=False)]
    assert "64 experiments: one round takes about" in said
    assert "one tree after 2.50 s" in said
    assert len(done.measured) == 64


def test_what_was_measured_is_compared_and_written(tmp_path: Path) -> None:
    out, docs = tmp_path / "out", tmp_path / "docs"
    settings = Settings(out, only=("l50-t60-p10000",), minutes=0, docs=docs)
    run(MadeUpOverlays(), settings, report=True)
    html = (out / "report.html").read_text()
    for title in (
        "The paper and this machine",
        "Longer messages (Fig. 8)",
        "Convergence and repair (Table 2)",
    ):
        assert f"<h2>{title}</h2>" in html
    assert "Not measured" not in html
    written = json.loads((out / "results.json").read_text())
    assert len(written["measured"]) == len(written["grid"]) == 4
    assert sorted(path.name for path in docs.iterdir()) == [
        "overlays-payloads.png",
        "overlays-tables.md",
        "overlays.json",
    ]
    before = (docs / "overlays-payloads.png").read_bytes()
    (docs / "overlays-payloads.png").unlink()
    assert docs / "overlays-payloads.png" in draw(docs)
    assert (docs / "overlays-payloads.png").read_bytes() == before
    tables = (docs / "overlays-tables.md").read_text()
    assert "| l50-t60-p10000-single |" in tables
    made_on = json.loads((docs / "overlays.json").read_text())["setup"]
    assert re.fullmatch(r"[0-9a-f]{10}\+?|unknown", made_on["commit"])
    assert {"processor", "load average at the end", "report written at"} <= made_on.keys()
    assert f" Commit {made_on['commit']}, {made_on['processor']}, load average " in tables


def test_rounds_are_repeated_as_often_as_asked_for(tmp_path: Path) -> None:
    made_up = MadeUpOverlays()
    run(made_up, Settings(tmp_path, only=("l50-t3-single", "l0-t3-single")))
    assert made_up.made[:3] == ["l50-t3-single-1", "l0-t3-single-1", "l50-t3-single-2"]
    assert made_up.made.count("l0-t3-single-3") == 1
    assert made_up.made[-1] == "l50-t3-single-10"
    assert len(made_up.made) == 13


def test_a_budget_ends_the_rounds_but_not_the_first(tmp_path: Path) -> None:
    made_up = MadeUpOverlays()
    run(made_up, Settings(tmp_path, only=("l0-t3",), minutes=0))
    assert made_up.made == [
        f"l0-t3-{key}-1" for key in ("flooding", "single", "capacity", "balance")
    ]


def test_quick_leaves_out_what_would_not_be_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(experiment: Experiment, round_number: int) -> Measured:
        return measured(experiment, round_number, took_s=1000.0)

    monkeypatch.setattr(made_up_overlays, "measured", slow)
    made_up = MadeUpOverlays()
    done, said = run(made_up, Settings(tmp_path, quick=True, only=("l50-t3", "l0-t3")))
    assert made_up.made == [f"l50-t3-{key}-1" for key in CONTENDERS]
    assert done.left_out == {"l0-t3": "there was no time for it"}
    assert "l0-t3: left out" in said


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    settings = Settings(tmp_path, only=("l0-t3",))
    interrupted = MadeUpOverlays()
    interrupted.failing["l0-t3-capacity-2"] = [KeyboardInterrupt()]  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, settings)
    assert len(interrupted.made) == 6
    again = MadeUpOverlays()
    done, _ = run(again, settings)
    assert again.made[0] == "l0-t3-capacity-2"
    assert len(done.measured) == 12
    third = MadeUpOverlays()
    assert run(third, settings)[0].measured == done.measured
    assert third.made == []


def test_a_file_that_is_no_measurement_is_named(tmp_path: Path) -> None:
    settings = Settings(tmp_path, only=("l0-t3-single",))
    run(MadeUpOverlays(), settings)
    measured_path(tmp_path, "l0-t3-single-2").write_text("{}")
    with pytest.raises(ReproduceError, match=r"l0-t3-single-2.json: is no measurement"):
        run(MadeUpOverlays(), settings)


def test_a_failure_is_told_and_the_rest_is_made(tmp_path: Path) -> None:
    made_up = MadeUpOverlays()
    made_up.failing["l0-t3-single-1"] = [NodeFailed("n1", "ended with exit code 1")] * 2
    made_up.failing["l0-t3-balance-1"] = [BrokerFailed("mosquitto", "ended with status 1")]
    done, said = run(made_up, Settings(tmp_path, only=("l0-t3",), minutes=0), report=True)
    assert list(done.failed) == ["l0-t3-single-1"]
    assert "once more, as this went wrong: mosquitto: ended with status 1" in said
    assert made_up.made[-1] == "l0-t3-balance-1"
    assert "<h2>Not measured</h2>" in (tmp_path / "report.html").read_text()


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    made_up = MadeUpOverlays()
    made_up.failing["l0-t3-single-1"] = [NodeFailed("n1", "ended with exit code 1")] * 2
    with pytest.raises(ReproduceError, match="nothing could be measured: l0-t3-single-1: node n1"):
        run(made_up, Settings(tmp_path, only=("l0-t3-single",), minutes=0))


def test_a_folder_holds_experiments_of_one_kind(tmp_path: Path) -> None:
    run(MadeUpOverlays(), Settings(tmp_path, only=("l0-t3-single",), minutes=0))
    other = Settings(tmp_path, only=("l0-t3-single",), parameters=Parameters(publishers=5))
    with pytest.raises(ReproduceError, match="holds experiments of another kind"):
        run(MadeUpOverlays(), other)


def test_spark_must_say_what_was_counted(tmp_path: Path) -> None:
    class Wrong(MadeUpOverlays):
        def compute(self, *arguments):  # type: ignore[no-untyped-def]
            tables = super().compute(*arguments)
            return {**tables, "summary": [dict(row, lost=1) for row in tables["summary"]]}

    with pytest.raises(ReproduceError, match="l0-t3-single-1: counted were"):
        run(Wrong(), Settings(tmp_path, only=("l0-t3-single",), minutes=0))


def test_without_java_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise JavaMissing("there is no Java", "install one")

    monkeypatch.setattr(java, "find_java", missing)
    made_up = MadeUpOverlays()
    with pytest.raises(JavaMissing):
        reproduce(Settings(tmp_path / "out"), measure=made_up.measure)
    assert made_up.made == []
    assert not (tmp_path / "out").exists()


def test_without_multicast_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "no_multicast", lambda discovery: "nobody hears")
    done, said = run(MadeUpOverlays(), Settings(tmp_path, only=("l0-t3-single",), minutes=0))
    assert done.notes == ["no multicast here, so nodes were told of each other: nobody hears"]
    assert done.notes[0] in said
