"""Pictures: drawn from the small file alone, one for each part of the report."""

from __future__ import annotations

import json
from pathlib import Path

from isthmus.reproduce.skipgraph.figures import NAME, draw, write_figures
from isthmus.reproduce.skipgraph.panels import panels_of
from isthmus.reproduce.skipgraph.report import PICTURES
from support.made_up_thesis import like_the_thesis


def test_every_picture_is_drawn_from_the_file(tmp_path: Path) -> None:
    panels = panels_of(like_the_thesis())
    assert panels.keys() == PICTURES.keys()
    write_figures(tmp_path, {"seed": "1"}, panels)
    drawn = {path.stem: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert drawn.keys() == PICTURES.keys()
    for path in tmp_path.glob("*.png"):
        path.unlink()
    assert {path.stem: path.read_bytes() for path in draw(tmp_path)} == drawn
    kept = json.loads((tmp_path / NAME).read_text())
    assert kept["setup"] == {"seed": "1"}
    bars = kept["figures"]["skipgraph-messages"]["panels"][1]["series"]
    assert [series["y"] for series in bars] == [[100.0], [10.0], [0.0], [0.0]]


def test_what_there_is_no_figure_of_is_not_drawn() -> None:
    figures = like_the_thesis()
    assert list(panels_of({"fig4.9": figures["fig4.9"]})) == ["skipgraph-assignment"]
    assert panels_of({}) == {}
