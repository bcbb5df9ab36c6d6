"""The whole reproduction on a made-up machine: order, files, resuming, failures."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from isthmus.errors import BrokerFailed, LoadFailed, ReproduceError
from isthmus.reproduce.ildm import command as ildm
from isthmus.reproduce.ildm.command import Reproduced, Settings, reproduce
from isthmus.reproduce.ildm.experiments import experiments
from isthmus.reproduce.ildm.figures import draw
from isthmus.reproduce.ildm.report import write_report
from isthmus.reproduce.ildm.search import begin, limit_path
from isthmus.reproduce.ildm.timing import QUICK
from support.made_up_runs import CAPACITY, MadeUp


@pytest.fixture(autouse=True)
def _all_brokers_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ildm, "missing_brokers", lambda experiment: {})


def run(made_up: MadeUp, settings: Settings, *, report: bool = False) -> tuple[Reproduced, str]:
    """What came of it and what was said; drawing takes longest, so only where it is looked at."""
    console = Console(file=io.StringIO(), width=160)
    done = reproduce(
        settings,
        console=console,
        search=made_up.search,
        compute=made_up.compute,
        write=write_report if report else lambda done, claims: None,
    )
    assert isinstance(console.file, io.StringIO)
    return done, console.file.getvalue()


def test_everything_is_measured_compared_and_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done, said = run(MadeUp(), Settings(out, quick=True, docs=tmp_path / "docs"), report=True)
    found = {result.name: result for result in done.results}
    assert found.keys() == CAPACITY.keys()
    for name, capacity in CAPACITY.items():
        assert capacity / 1.06 <= found[name].egress <= capacity
        error = found[name].error
        assert error is not None
        assert error <= 0.0501
    assert "17 experiments" in said
    html = (out / "report.html").read_text()
    for title in ("Single brokers (Fig. 11)", "Cooperation (Fig. 12)", "Who was the bottleneck"):
        assert f"<h2>{title}</h2>" in html
    assert "Not measured" not in html
    with (out / "results.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(found)
    written = json.loads((out / "results.json").read_text())
    assert {claim["verdict"] for claim in written["paper"]} <= {"yes", "no", "within noise"}
    docs = tmp_path / "docs"
    assert sorted(path.name for path in docs.iterdir()) == [
        "ildm-mixed.png",
        "ildm-patterns.png",
        "ildm-single.png",
        "ildm-tables.md",
        "ildm.json",
    ]
    kept = json.loads((docs / "ildm.json").read_text())
    bars = {bar["row"]: bar for bar in kept["figures"]["ildm-single"]["bars"]}
    assert bars["aedes"]["egress"] == found["single-aedes"].egress
    before = (docs / "ildm-mixed.png").read_bytes()
    (docs / "ildm-mixed.png").unlink()
    assert docs / "ildm-mixed.png" in draw(docs)
    assert (docs / "ildm-mixed.png").read_bytes() == before
    assert "| C-sf |" in (docs / "ildm-tables.md").read_text()


def test_only_what_is_named(tmp_path: Path) -> None:
    done, said = run(MadeUp(), Settings(tmp_path, quick=True, only=("C-sf", "single-mosquitto")))
    assert list(done.searched) == ["single-mosquitto", "C-sf"]
    assert "not measured" in said


def test_a_folder_of_another_kind_is_not_mixed_with_new_ones(tmp_path: Path) -> None:
    run(MadeUp(), Settings(tmp_path, quick=True, only=("A-sf",)))
    with pytest.raises(ReproduceError, match=r"of another kind: kind\.json says"):
        run(MadeUp(), Settings(tmp_path, quick=False, only=("A-sf",)))
    (tmp_path / "kind.json").write_text("{")
    with pytest.raises(ReproduceError, match=r"kind\.json says None"):
        run(MadeUp(), Settings(tmp_path, quick=True, only=("A-sf",)))


def test_what_is_done_is_not_measured_again(tmp_path: Path) -> None:
    machine = MadeUp()
    run(machine, Settings(tmp_path, quick=True, only=("A-sf",)))
    before = len(machine.measured)
    settings = Settings(tmp_path, quick=True, only=("A-pf", "A-sf"))
    done, _ = run(machine, settings)
    assert list(done.searched) == ["A-pf", "A-sf"]
    assert all(name.startswith("A-pf") for name in machine.measured[before:])


def test_an_interrupted_search_goes_on_with_the_lengths_it_began_with(tmp_path: Path) -> None:
    machine = MadeUp()
    settings = Settings(tmp_path, quick=True, only=("A-sf",))
    run(machine, settings)
    path = limit_path(tmp_path, next(e for e in experiments(quick=True) if e.name == "A-sf"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    first = machine.measured.copy()
    machine.measured.clear()
    done, _ = run(machine, settings)
    assert machine.measured == first[3:]
    assert done.searched["A-sf"].found.measurements == len(first)


def test_another_versions_experiment_is_refused_by_name(tmp_path: Path) -> None:
    made = {each.name: each for each in experiments(quick=True)}
    run(MadeUp(), Settings(tmp_path, quick=True, only=("A-sf",)))
    limit_path(tmp_path, made["A-sf"]).rename(limit_path(tmp_path, made["C-sf"]))
    with pytest.raises(ReproduceError, match=r"C-sf\.jsonl is of another C-sf"):
        begin(
            tmp_path,
            made["C-sf"],
            1_000_000,
            QUICK.full,
            latency_interval_s=1.0,
            grid=False,
        )


def test_a_failure_is_told_and_the_rest_is_made(tmp_path: Path) -> None:
    machine = MadeUp()
    machine.failing["A-pf"] = [BrokerFailed("mosquitto", "ended with status 1")] * 2
    settings = Settings(tmp_path, quick=True, only=("A-pf", "A-sf"))
    done, said = run(machine, settings, report=True)
    assert done.failed == {"A-pf": "mosquitto: ended with status 1"}
    assert "A-pf: failed: mosquitto: ended with status 1" in said
    assert "ended with status 1" in (tmp_path / "report.html").read_text()
    assert [result.name for result in done.results] == ["A-sf"]


def test_what_went_wrong_once_is_tried_again(tmp_path: Path) -> None:
    machine = MadeUp()
    machine.failing["A-pf"] = [LoadFailed("w0", "t-sub-96 at n1: the connection was closed")]
    done, said = run(machine, Settings(tmp_path, quick=True, only=("A-pf",)))
    assert done.failed == {}
    assert list(done.searched) == ["A-pf"]
    assert "once more, as this went wrong: load process w0: t-sub-96" in said


def test_a_mistake_of_ours_is_not_swallowed(tmp_path: Path) -> None:
    machine = MadeUp()
    machine.failing["A-pf"] = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        run(machine, Settings(tmp_path, quick=True, only=("A-pf",)))


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    machine = MadeUp()
    machine.failing["A-pf"] = [BrokerFailed("mosquitto", "ended with status 1")] * 2
    with pytest.raises(ReproduceError, match="nothing could be measured: A-pf: mosquitto: ended"):
        run(machine, Settings(tmp_path, quick=True, only=("A-pf",)))


def test_missing_brokers_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(experiment: object) -> dict[str, str]:
        lacks = getattr(experiment, "name", "") == "single-aedes"
        return {"aedes": "aedes: the program node is missing"} if lacks else {}

    monkeypatch.setattr(ildm, "missing_brokers", missing)
    settings = Settings(tmp_path, quick=True, only=("single-aedes", "A-sf"))
    done, said = run(MadeUp(), settings, report=True)
    assert done.left_out == {"single-aedes": "aedes: the program node is missing"}
    assert "left out: single-aedes" in said
    assert "a broker is missing" in (tmp_path / "report.html").read_text()


def test_the_indexes_must_say_what_the_search_saw(tmp_path: Path) -> None:
    class Wrong(MadeUp):
        def compute(self, *arguments):  # type: ignore[no-untyped-def]
            tables = super().compute(*arguments)
            wrong = [dict(row, egress=row["egress"] + 1) for row in tables["summary"]]
            return {**tables, "summary": wrong}

    with pytest.raises(ReproduceError, match="A-sf-000: the search saw"):
        run(Wrong(), Settings(tmp_path, quick=True, only=("A-sf",)))
