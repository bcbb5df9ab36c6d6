"""`isthmus geo`: what it prints, and what it refuses with what and where."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.cooperation.geo import WORLD, Area, Circle, smallest_filters

SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]]}


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["geo", *map(str, arguments)])
    code = caught.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The error, without its box and line ends."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", captured.err))


def test_the_cell_of_a_position(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cell", 35.68, 139.76, "--digits", 4) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["cell"] == "1/3/1/0"
    assert lines["filter"] == "1/3/1/0/#"
    assert lines["latitude"] == "33.75 to 45.0"
    assert lines["size"] == "1934 km by 1251 km"
    assert lines["south-west"] == "1/3/0/3"


def test_the_other_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cell", "1/0/3", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bounds"] == {"west": 45.0, "south": 45.0, "east": 90.0, "north": 67.5}
    assert answer["center"] == [56.25, 67.5]
    assert answer["parent"] == "1/0"
    assert answer["neighbors"] == WORLD.neighbors("1/0/3")


def test_south_and_west_are_negative(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cell", "-33.9", "-18.4", "--digits", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["cell"] == WORLD.cell((-33.9, -18.4), 3)


def test_a_plane(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cell", 12.5, 3, "--plane", "0,0,64,64", "--digits", 5) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["cell"] == Area.plane(0, 0, 64, 64).cell((12.5, 3), 5)
    assert lines["size"] == "2 by 2"
    assert lines["x"] == "12.0 to 14.0"


def test_filters_of_a_circle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("filters", "--circle", "35.68,139.76,10000", "--rest", "+/t", "--digits", 14,
               "--precision", 12) == 0  # fmt: skip
    expected = smallest_filters(Circle((35.68, 139.76), 10_000).cells(WORLD, 12), 14, "+/t")
    assert capsys.readouterr().out.splitlines() == [*expected]


def test_filters_of_a_rectangle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("filters", "--rectangle=-10,170,10,-170", "--digits", 4, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "digits": 4,
        "precision": 4,
        "cells": 4,
        "filters": ["0/2/2/2/#", "1/3/3/3/#", "2/0/0/0/#", "3/1/1/1/#"],
    }


@pytest.mark.parametrize("kind", ["png", "svg"])
@pytest.mark.parametrize("plane", [True, False])
def test_filters_of_geojson_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, plane: bool
) -> None:
    file, picture = tmp_path / "square.json", tmp_path / f"square.{kind}"
    file.write_text(json.dumps(SQUARE))
    where = ("--plane", "0,0,8,8") if plane else ("--area", "0,0,8,8")
    assert run("filters", "--geojson", file, *where, "--digits", 3, "--plot", picture) == 0
    assert capsys.readouterr().out == "2/#\n"
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize("shape", ["--circle=89,179,300000", "--rectangle=-10,170,10,-170"])
def test_a_picture_over_the_date_line(tmp_path: Path, shape: str) -> None:
    picture = tmp_path / "there.svg"
    assert run("filters", shape, "--digits", 5, "--plot", picture) == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["cell", "1/4/0"], "CELL: cell '1/4/0': digit 2 is '4'; each is 0, 1, 2 or 3"),
        (["cell", "91", "0"], "LAT LON: latitude 91.0 is outside the area, -90.0 to 90.0"),
        (["cell", "a", "0"], "LAT LON: LAT LON: 'a' is not a number"),
        (["cell", "nan", "0"], "LAT LON: latitude nan is not a finite number"),
        (["cell", "1", "2", "3"], "give LAT LON or one CELL, not 3 values"),
        (["cell", "1", "2", "--digit", "4"], "no such option: --digit"),
        (["cell", "1", "2", "--digits", "25"], "--digits: digits: 25 is not allowed; 1 to 24 is"),
        (["cell", "1", "2", "--area", "1,2,3"], "--area: '1,2,3': 3 numbers; W,S,E,N is expected"),
        (["cell", "1", "2", "--area", "0,0,1,1", "--plane", "0,0,1,1"], "--area or --plane"),
        (["filters"], "exactly one of --rectangle, --circle, --geojson, not none"),
        (
            ["filters", "--rectangle", "0,0,1,1", "--circle", "1,2,3"],
            "exactly one of --rectangle, --circle, --geojson, not --rectangle and --circle",
        ),
        (["filters", "--circle", "1,2,x"], "--circle: METERS: 'x' is not a number"),
        (["filters", "--circle", "1,2,-3"], "--circle: radius of the circle: -3.0 is not"),
        (["filters", "--rectangle", "2,0,1,1"], "--rectangle: rectangle: its southern latitude"),
        (["filters", "--circle", "1,2,3", "--rest", "a/#/b"], "--rest: rest 'a/#/b': topic filter"),
        (
            ["filters", "--circle", "1,2,3", "--digits", "5", "--precision", "6"],
            "--precision: precision: 6 is not allowed; 1 to 5 is",
        ),
        (["filters", "--circle", "1,2,3", "--plot", "a.gif"], "--plot: a.gif is neither .png nor"),
        (
            ["filters", "--circle", "35.68,139.76,10000", "--digits", "20"],
            "--limit: 3418 filters at precision 20; 1000 at most; precision 18 gives 855 "
            "(--precision 18)",
        ),
        (
            ["filters", "--circle", "90,0,100000", "--digits", "24", "--limit", "1"],
            "--circle: precision 24 is too fine for this circle",
        ),
        (["filters", "--geojson", "/nowhere.json"], "--geojson: /nowhere.json: No such file"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    what: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(*arguments) == 2
    assert what in said(capsys)


def test_geojson_that_is_none_names_file_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    file = tmp_path / "p.json"
    file.write_text('{"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [0, 0]]]}')
    assert run("filters", "--geojson", file) == 2
    assert f"{file}: coordinates[0]: 3 positions" in said(capsys)
    file.write_text(
        '{"type": "Polygon", "coordinates": [[[0, 0], [4, 4], [4, 0], [0, 4], [0, 0]]]}'
    )
    assert run("filters", "--geojson", file) == 2
    assert "the polygon crosses itself: coordinates[0][0] to [1]" in said(capsys)


def test_no_precision_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("filters", "--circle", "0,0,1000", "--limit", "1") == 2
    assert "4 filters at precision 12; 1 at most; precision 1 gives 1" in said(capsys)
