"""The command: options, what it goes on with, what fails, and the report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from isthmus.cli.main import main
from isthmus.errors import BrokerFailed, ReproduceError
from isthmus.reproduce.geo import command, measuring
from isthmus.reproduce.geo.command import Settings, reproduce
from isthmus.reproduce.geo.delay import Delays
from isthmus.reproduce.geo.experiments import DelayPoint, Point, choose, delay_points, points
from isthmus.reproduce.geo.figures import NAME, draw
from isthmus.reproduce.geo.measuring import Measured
from support import made_up_geo

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "cli.md"


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "geo", *arguments])
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


def test_options_become_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Settings] = []

    def note(settings: Settings) -> int:
        asked.append(settings)
        return 0

    monkeypatch.setattr(command, "run_geo", note)
    given = ("--quick", "--only", "sim", "--seed", "7", "--broker", "embedded")
    assert run(capsys, *given)[0] == 0
    assert run(capsys)[0] == 0
    out = Path("reproduce-geo")
    assert asked == [Settings(out, True, ("sim",), "embedded", 7, None), Settings(out)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--only", "sim-sf-k9"), "there is no sim-sf-k9; there are delay, live, sim and delay-"),
        (("--broker", "postfix"), "there is no broker postfix; there are mosquitto, "),
        (("--seed", "x"), "Invalid value for '--seed'"),
    ],
)
def test_bad_input_is_told_and_makes_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    problem: str,
) -> None:
    out = tmp_path / "out"
    code, _, err = run(capsys, "--out", str(out), *arguments)
    assert code == (2 if "Invalid" in problem else 1)
    assert problem in " ".join(err.split())
    assert not out.exists()


def test_the_help_and_the_page_have_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    section = PAGE.read_text().split("### `isthmus reproduce geo`")[1].split("\n#")[0]
    for option in ("--quick", "--out", "--only", "--broker", "--seed", "--docs"):
        assert option in out
        assert f"- `{option}" in section


def test_names_are_distinct_and_can_be_chosen() -> None:
    for quick in (True, False):
        known, delays = points(quick=quick), delay_points(quick=quick)
        names = [*(each.name for each in known), *(each.name for each in delays)]
        assert len(names) == len(set(names))
        assert choose(known, delays, ()) == (known, delays)
        assert choose(known, delays, ["delay"]) == ([], delays)
        live, _ = choose(known, delays, ["live", "sim-sf-k2"])
        assert {each.where for each in live} == {"sim", "live"}
        forecasts_s = [*(each.forecast_s for each in known), *(each.forecast_s for each in delays)]
        assert 0 < min(forecasts_s) <= max(forecasts_s) < 120


def all_made_up(settings: Settings) -> command.Reproduced:
    return reproduce(
        settings,
        console=quiet(),
        measure=made_up_geo.measure,
        measure_delay=made_up_geo.measure_delay,
    )


def test_the_report_and_the_docs(tmp_path: Path) -> None:
    docs = tmp_path / "docs" / "geo"
    page = docs.parent / "reproduce-geo.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- geo: begin -->\nold\n<!-- geo: end -->\nafter\n")
    done = all_made_up(Settings(tmp_path / "out", quick=True, broker="embedded", docs=docs))
    assert not done.failed
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(written["measured"]) == len(points(quick=True))
    html = (tmp_path / "out" / "report.html").read_text()
    for title in ("Tables I and II", "Equations and counts", "The delay of a gateway"):
        assert f"<h2>{title}</h2>" in html
    drawn = {path.stem: path.read_bytes() for path in docs.glob("*.png")}
    assert drawn.keys() == {"geo-messages", "geo-tables", "geo-delay"}
    kept = json.loads((docs / NAME).read_text())
    assert kept["setup"]["seed"] == "1"
    assert {path.stem: path.read_bytes() for path in draw(docs)} == drawn
    text = page.read_text()
    assert text.startswith("before\n<!-- geo: begin -->\nOf ")
    assert text.endswith("<!-- geo: end -->\nafter\n")
    assert "\nold\n" not in text
    assert "| Table I |" in text
    assert "## Counted live" in (docs / "geo-tables.md").read_text()


def test_what_is_there_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(tmp_path / "out", quick=True, only=("sim-geo-k1", "sim-pf-k1"))
    first = reproduce(settings, console=quiet())

    def never(*_: object) -> Measured:
        raise AssertionError("measured again")

    again = reproduce(settings, console=quiet(), measure=never)
    assert again.measured == first.measured
    assert [each.different for each in again.measured] == [0, 0]
    broken = tmp_path / "out" / "measured" / "sim-pf-k1.json"
    broken.write_text("{}")
    with pytest.raises(ReproduceError, match="is no measurement"):
        reproduce(settings, console=quiet())
    with pytest.raises(ReproduceError, match="another kind"):
        reproduce(Settings(tmp_path / "out", only=("sim-geo-k1",)), console=quiet())


def test_delays_are_kept_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = delay_points(quick=True)[2]
    monkeypatch.setattr(
        measuring, "measure_delays", lambda network, times, _: made_up_geo.as_predicted(network)
    )
    assert measuring.read_delays(tmp_path, point) is None
    kept = measuring.measure_delay(tmp_path, point, "mosquitto")
    assert measuring.read_delays(tmp_path, point) == kept


def test_one_that_fails_is_told_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fails_live(out: Path, point: Point, seed: int, broker: str) -> Measured:
        tried.append(point.name)
        if point.where == "live":
            raise BrokerFailed(broker, "does not start", "")
        return made_up_geo.measure(out, point, seed, broker)

    def fails(out: Path, point: DelayPoint, broker: str) -> Delays:
        raise BrokerFailed(broker, "does not start", "")

    settings = Settings(tmp_path / "out", quick=True, broker="embedded")
    done = reproduce(settings, console=quiet(), measure=fails_live, measure_delay=fails)
    assert len(done.failed) == 6
    assert tried.count("live-geo-k1") == 2  # a broker gets a second chance
    assert "Not measured" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(ReproduceError, match="nothing could be measured"):
        reproduce(
            Settings(tmp_path / "other", quick=True, only=("live",), broker="embedded"),
            console=quiet(),
            measure=fails_live,
        )
