"""The page on simulations: its file is one, its keys are all, its output is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.simulate.file import Simulation, load_simulation

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "simulate-a-fabric.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def masked(text: str) -> str:
    """How much is sent on links changes with every change of what is said on them."""
    return re.sub(
        r"^(set-up|links).*$", lambda line: re.sub(r"[\d,]+", "#", line[0]), text, flags=re.M
    )


def test_its_file_is_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "simulation.toml"
    path.write_text(block("toml"))
    read = load_simulation(path)
    assert (read.cut[0].one_way, read.crash[0].node) == (True, "n4")


def test_it_lists_every_key() -> None:
    rows = re.findall(r"^\| (`[a-z_`., ]+`) \|", PAGE, re.M)
    listed = {name for names in rows for name in re.findall(r"`([\w.]+)`", names)}
    tables = {
        "simulation": "Overview",
        "cooperation": "Cooperation",
        "load": "Load",
        "network": "Wires",
        "cut": "Cut",
        "crash": "Crash",
    }
    assert tables.keys() == Simulation.model_fields.keys()
    from isthmus.simulate import file

    assert listed == {
        f"{table}.{key}"
        for table, kind in tables.items()
        for key in getattr(file, kind).model_fields
    }


def test_its_output_is_what_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"isthmus (simulate .* --log sim-log --run first)\n", PAGE)
    with pytest.raises(SystemExit) as ended:
        main(command.replace("sim-log", str(tmp_path)).split())
    assert ended.value.code == 0
    shown = capsys.readouterr().out.split("took ")[0]
    assert masked(block("text")) == masked(shown)


ONE_FILE = (Path(__file__).parents[3] / "docs" / "howto" / "one-file.md").read_text()


def told(text: str) -> list[str]:
    """What does not change when an algorithm finds other ways."""
    return [line for line in text.splitlines() if re.match("run|published|delivered|note", line)]


def test_the_output_of_the_example_for_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    (command,) = re.findall(r"isthmus (simulate .* --log log --run simulated)\n", ONE_FILE)
    with pytest.raises(SystemExit) as ended:
        main(command.replace("--log log", f"--log {tmp_path}").split())
    assert ended.value.code == 0
    (shown,) = re.findall(r"```text\n(.*?)```", ONE_FILE, re.DOTALL)
    assert told(capsys.readouterr().out) == told(shown)
