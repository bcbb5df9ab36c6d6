"""Figures are well-formed SVG with what they should show; no value makes them fail."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from isthmus.bench.report.plots import (
    COLORS,
    Bar,
    Point,
    color,
    cpu_bars,
    limit_bars,
    search_points,
    seconds_lines,
    short,
    svg,
)

BARS = [
    Bar("single", "", 2_200.0, 22_000.0, 3.0, 2.0, 9.0),
    Bar("A", "pf", 2_000.0, 20_000.0, 8.0, 7.0, 25.0, at_least=True),
    Bar("A", "sf", 1_990.0, 19_900.0, None, None, None),
]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def test_every_bar_carries_its_value() -> None:
    figure = limit_bars(BARS, {"": "bare", "pf": "PF", "sf": "SF"})
    shown = texts(figure)
    assert {"22 k", "≥ 20 k", "19.9 k", "2.2 k", "≥ 2 k", "mean 3", "mean 8", "none"} <= set(shown)
    assert {"single", "A", "bare", "PF", "SF", "messages/s"} <= set(shown)


@pytest.mark.parametrize(
    "figure",
    [
        limit_bars(BARS, {"": "bare"}),
        limit_bars([Bar("x", "", 0.0, 0.0, None, None, None)], {}),
        limit_bars([Bar("x", "", 0.0, 0.0, 1.0, 1.0, 1.0)], {}),
        cpu_bars(
            [("A", {"broker": 0.1, "load": 3.0})], cores=2, legend={"broker": "b", "load": "l"}
        ),
        search_points({"A": [Point(10.0, 9.9, True), Point(20.0, 9.9, False)], "B": []}),
        seconds_lines({"A": [(0, False, 0.0, 0.0), (1, True, 5.0, 4.0)], "B": []}),
        search_points({str(number): [Point(1.0, 1.0, True)] for number in range(9)}),
    ],
)
def test_svg_is_well_formed_and_says_what_it_is(figure: Figure) -> None:
    text = svg(figure, 'a "figure" & <more>')
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.get("aria-label") == 'a "figure" & <more>'
    assert "<metadata" not in text
    assert "NaN" not in text


def test_the_same_figure_is_the_same_text_and_its_ids_are_its_own() -> None:
    def ids(text: str) -> set[str]:
        return set(re.findall(r'(?:url\(|href=")#([pmh][0-9a-f]{10})\b', text))

    def drawn(name: str) -> str:
        return svg(limit_bars(BARS, {"": "bare"}), name)

    assert drawn("one") == drawn("one")
    assert ids(drawn("one"))
    assert not ids(drawn("one")) & ids(drawn("other"))


def test_settings_of_matplotlib_are_left_alone() -> None:
    before = dict(mpl.rcParams)
    svg(limit_bars(BARS, {}), "x")
    assert dict(mpl.rcParams) == before


def test_short_numbers() -> None:
    assert [short(value) for value in (1_234_000, 12_345, 999, 1_000, 0.1234, 0)] == [
        "1.23 M",
        "12.3 k",
        "999",
        "1 k",
        "0.123",
        "0",
    ]


def test_plug_ins_have_a_color_too() -> None:
    assert color("sf") == COLORS["sf"]
    assert color("somebody's") not in (COLORS["sf"], COLORS["pf"], COLORS[""])
