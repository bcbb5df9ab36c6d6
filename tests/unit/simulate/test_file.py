"""What to simulate: every mistake is told, with its place and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.errors import ConfigError
from isthmus.simulate.file import Simulation, load_simulation, simulation_of

GOOD = """\
[simulation]
nodes = 4
topology = "ring"
duration_s = 5.0

[cooperation]
algorithm = "pf"

[load]
qos = 1

[[cut]]
at_s = 1.0
for_s = 2.0
source = ["n1", "n2"]
target = ["n3"]
one_way = true

[[crash]]
node = "n4"
at_s = 1
for_s = 1
"""


def mistakes(path: Path, text: str) -> list[tuple[int | None, str, str]]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_simulation(path)
    return [(each.line, each.key, each.problem) for each in caught.value.mistakes]


def test_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text(GOOD)
    read = load_simulation(path)
    assert (read.simulation.nodes, read.cut[0].source, read.crash[0].for_s) == (4, ("n1", "n2"), 1)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(path)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"ok: {path} is a simulation of 4 node(s)\n")
    assert 'cooperation.algorithm = "pf"' in shown


@pytest.mark.parametrize(
    ("old", "new", "place", "problem"),
    [
        ("nodes = 4", "nodes = 0", (2, "simulation.nodes"), "greater than or equal to 1, not 0"),
        ("nodes = 4", "node = 4", (2, "simulation.node"), "did you mean 'nodes'?"),
        ('"ring"', '"rings"', (3, "simulation.topology"), "'ring'"),
        ('"ring"', '"ring"\nlinks = 9', (4, "simulation.links"), 'topology = "graph" alone'),
        ('"ring"', '"graph"\nlinks = 7', (4, "simulation.links"), "write 3 to 6"),
        ('"pf"', '"fp"', (7, "cooperation.algorithm"), "known: none, pf, sf"),
        ('"pf"', '"sf"\nx = 1', (8, "cooperation.x"), "no such option"),
        ("qos = 1", "qos = 3", (10, "load.qos"), "must be 0, 1 or 2, not 3"),
        ("qos = 1", "payload_bytes = 31", (10, "load.payload_bytes"), "equal to 32, not 31"),
        ("for_s = 2.0", "for_s = 4.5", (14, "cut[0].for_s"), "ends after the run, which takes 5 s"),
        ('"n3"', '"n5"', (16, "cut[0].target"), '"n5" is no node'),
        ('"n4"', '"m4"', (20, "crash[0].node"), '"m4" is no node'),
        ('"n4"', '"n04"', (20, "crash[0].node"), '"n04" is no node'),
        ('"n4"', '["n4"]', (20, "crash[0].node"), 'must be a string, not ["n4"]'),
        ('["n3"]', "3", (16, "cut[0].target"), "must be a list, not 3"),
        ('["n3"]', '"n3"', (16, "cut[0].target"), 'must be a list, not "n3"'),
        ('["n3"]', '["n3", ["n4"]]', (16, "cut[0].target[1]"), 'must be a string, not ["n4"]'),
        ("nodes = 4", f"nodes = {10**15}", (2, "simulation.nodes"), "equal to 100000, not"),
    ],
)
def test_mistakes_in_a_file(
    tmp_path: Path, old: str, new: str, place: tuple[int, str], problem: str
) -> None:
    found = mistakes(tmp_path / "s.toml", GOOD.replace(old, new, 1))
    assert [(at, of) for at, of, _ in found] == [place]
    assert problem in found[0][2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "0"], "isthmus simulate: --nodes: must be greater than or equal to 1, not 0"),
        (["--duration", "nan"], "isthmus simulate: --duration: must be a finite number"),
        (["--topology", "cube"], "isthmus simulate: --topology: must be 'tree', 'graph'"),
        (["--links", "3"], "isthmus simulate: --links: is for topology"),
        (["--nodes", "2000", "--topology", "mesh"], "isthmus simulate: --nodes: a mesh of 2000"),
        (["--algorithm", "fs"], 'isthmus simulate: --algorithm: "fs" is not known'),
        (["--qos", "3"], "isthmus simulate: --qos: must be 0, 1 or 2, not 3"),
        (["no.toml"], "no.toml: cannot be read: No such file or directory"),
    ],
)
def test_mistakes_in_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_runs_name_and_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--run", "a/b"])
    assert ended.value.code == 2
    assert "--run" in capsys.readouterr().err
    monkeypatch.setattr("isthmus.cli.simulate.NEEDED", ("pyarrow", "not_there"))
    with pytest.raises(SystemExit) as ended:
        main(["simulate"])
    assert ended.value.code == 1
    said = "isthmus: not_there not installed; pip install 'isthmus[pipeline]'\n"
    assert capsys.readouterr().err == said


def test_options_count_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(GOOD)
    values: dict[str, dict[str, Any]] = {"simulation": {"nodes": 6, "seed": None}}
    changed = simulation_of(values, load_simulation(path))
    assert (changed.simulation.nodes, changed.simulation.topology) == (6, "ring")
    with pytest.raises(ConfigError, match=r"cut\[0\].target: \"n3\" is no node"):
        simulation_of({"simulation": {"nodes": 2}}, changed.model_copy(update={"crash": ()}))
    assert simulation_of({}, Simulation()) == Simulation()
