"""The figures of the Overlays paper, from made-up rows."""

from __future__ import annotations

import pytest

from isthmus.reproduce.overlays.experiments import CONTENDERS, Setting, settings
from isthmus.reproduce.overlays.figures import Grid, figures_of, panels_figure
from support.made_up_overlays import LIKE_THE_PAPER, cells_of, grid_of


def test_every_figure_has_every_bar() -> None:
    figures = figures_of(grid_of(cells_of(settings(quick=False), 2, LIKE_THE_PAPER)))
    assert {name: len(figure.panels) for name, figure in figures.items()} == {
        "overlays-delay": 3,
        "overlays-traffic": 6,
        "overlays-payloads": 8,
        "overlays-resources": 4,
    }
    for figure in figures.values():
        for panel in figure.panels:
            assert panel.bars.keys() == CONTENDERS.keys()
            assert all(len(bars) == len(panel.groups) for bars in panel.bars.values())
            assert None not in {value for bars in panel.bars.values() for value in bars}
    fifty = figures["overlays-delay"].panels[1]
    assert fifty.title == "50 % locality"
    assert fifty.groups == ("3", "30", "60")
    assert fifty.bars["capacity"] == ((20.0, 20.0, 20.0),) * 3


def test_what_was_not_measured_is_left_out() -> None:
    rows = grid_of(cells_of([Setting(50, 3)], 1, LIKE_THE_PAPER))
    figures = figures_of([row for row in rows if row["contender"] != "single"])
    assert list(figures) == ["overlays-delay", "overlays-traffic", "overlays-resources"]
    (panel,) = figures["overlays-delay"].panels
    assert panel.bars["single"] == (None,)
    drawn = panels_figure(figures["overlays-delay"])
    assert len(drawn.axes[0].patches) == 3


def test_nodes_and_brokers_are_added_up() -> None:
    grid = Grid(grid_of(cells_of([Setting(50, 3)], 1, LIKE_THE_PAPER)))
    found = grid.spread(Setting(50, 3), "flooding", ["node_cores", "broker_cores"], 2.0)
    assert found == pytest.approx((0.5, 0.5, 0.5))
    assert grid.spread(Setting(0, 3), "flooding", ["delay_ms"], 1.0) is None
