"""What the command says and refuses before it begins; the rest is tested with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.reproduce.skipgraph import command
from isthmus.reproduce.skipgraph.command import Settings
from isthmus.reproduce.skipgraph.experiments import FIGURES

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "cli.md"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "skipgraph", *arguments])
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


def test_options_become_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Settings] = []

    def note(settings: Settings) -> int:
        asked.append(settings)
        return 0

    monkeypatch.setattr(command, "run_skipgraph", note)
    assert run(capsys, "--quick", "--only", "fig3.9", "--seed", "7", "--master", "local[1]")[0] == 0
    assert run(capsys)[0] == 0
    out = Path("reproduce-skipgraph")
    assert asked == [
        Settings(out, True, ("fig3.9",), 10_000_000, 7, "local[1]", None),
        Settings(out, up_to=10_000_000),
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--only", "fig3.99"), "there is no 'fig3.99'; there are table3.1, fig3.7"),
        (("--up-to", "12"), "up to 12 nodes: choose one of 100,000, 1,000,000, 10,000,000"),
        (("--up-to", "many"), "Invalid value for '--up-to'"),
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
    section = PAGE.read_text().split("### `isthmus reproduce skipgraph`")[1].split("\n#")[0]
    for option in ("--quick", "--out", "--only", "--up-to", "--seed", "--master", "--docs"):
        assert option in out
        assert f"- `{option}" in section
    for name in FIGURES:
        number = name.removeprefix("fig3.")
        assert name in section or 7 < float(number) < 15
