"""Pictures of panels with lines, points or bars, kept as one small JSON file and drawn from it.

A method has the same color everywhere (Okabe and Ito's), and each series a marker or a hatching of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isthmus.bench.report.plots import STYLE, short
from isthmus.reproduce.docs_files import draw_figures, keep_figures

__all__ = ["LOOKS", "Panel", "Panels", "Series", "draw_panels", "panels_figure", "write_panels"]

_WIDTH_IN: Final = 10.5
_ROW_IN: Final = 3.3

LOOKS: Final[Mapping[str, tuple[str, str, str]]] = {
    "proposed": ("#0072b2", "o", ""),
    "proposed-2": ("#56b4e9", "o", "///"),
    "scribe": ("#e69f00", "s", ""),
    "scribe-2": ("#b45309", "s", "///"),
    "bayeux": ("#009e73", "^", ""),
    "can-mc-2": ("#cc79a7", "D", ""),
    "can-mc-3": ("#882255", "v", ""),
    "sfb": ("#0072b2", "o", ""),
    "mrf": ("#e69f00", "s", ""),
    "first": ("#0072b2", "o", ""),
    "second": ("#56b4e9", "s", ""),
    "third": ("#009e73", "^", ""),
    "fourth": ("#e69f00", "D", ""),
    "fifth": ("#d55e00", "v", ""),
    "sixth": ("#cc79a7", "P", ""),
    "law": ("#6b7280", "", ""),
    "system-1": ("#e69f00", "s", ""),
    "system-2": ("#0072b2", "o", ""),
    "system-2-sf": ("#56b4e9", "^", "///"),
    "geo": ("#009e73", "D", ""),
    "paper": ("#18181b", "x", ""),
}
"""Color, marker and hatching."""

Kind = Literal["line", "dots", "bar", "curve", "dashes"]
"""With markers; markers alone; bars side by side; without markers; dashed."""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    """In the legend; empty: not in it."""
    look: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Kind = "line"


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    groups: tuple[str, ...] = ()
    """Names of the places of bars."""
    mark_x: float | None = None
    """Where the thesis's own sizes end: a vertical line."""


@dataclass(frozen=True, slots=True)
class Panels:
    """One picture."""

    columns: int
    panels: tuple[Panel, ...]


def write_panels(path: Path, setup: Mapping[str, str], figures: Mapping[str, Panels]) -> None:
    """Keep what is to be drawn in the file `path`, and draw it beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: _shortened(asdict(each)) for name, each in figures.items()}
    keep_figures(path, setup, kept)
    draw_panels(path)


def _shortened(value: Any) -> Any:
    """Five digits of each number; nobody sees more in a picture."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each) for each in value]
    return value


def draw_panels(path: Path) -> list[Path]:
    """The pictures of the JSON file, beside it."""
    return draw_figures(path, _read)


def _read(figure: Mapping[str, Any]) -> Figure:
    panels = tuple(
        Panel(**{**panel, "series": tuple(Series(**each) for each in panel["series"])})
        for panel in figure["panels"]
    )
    return panels_figure(Panels(figure["columns"], panels))


@mpl.rc_context(STYLE)
def panels_figure(panels: Panels) -> Figure:
    """All panels, each with its own legend."""
    columns = min(panels.columns, len(panels.panels))
    rows = math.ceil(len(panels.panels) / columns)
    figure = Figure(figsize=(_WIDTH_IN, 0.2 + _ROW_IN * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[len(panels.panels) :]:
        ax.set_visible(False)
    for ax, panel in zip(axes, panels.panels, strict=False):
        _draw_panel(ax, panel)
    return figure


def _draw_panel(ax: Axes, panel: Panel) -> None:
    bars = [series for series in panel.series if series.kind == "bar"]
    for series in panel.series:
        if series.kind == "bar":
            _bars(ax, series, bars.index(series), len(bars))
        else:
            _line(ax, series)
    if panel.mark_x is not None:
        ax.axvline(panel.mark_x, color="#a1a1aa", linewidth=0.8, linestyle=(0, (1, 2)))
        ax.annotate(
            "thesis ◂  ▸ beyond",
            (panel.mark_x, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=6.5,
            color="#71717a",
        )
    ax.set_title(panel.title, fontsize=9, pad=12 if panel.mark_x is not None else 6)
    ax.set_xlabel(panel.x, fontsize=8)
    ax.set_ylabel(panel.y, fontsize=8)
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
        if bars:
            ax.set_ylim(top=10 * max(value for series in bars for value in series.y))
    elif min((value for series in panel.series for value in series.y), default=0.0) >= 0:
        ax.set_ylim(bottom=0)
        if bars:
            ax.set_ylim(top=1.2 * max(value for series in bars for value in series.y))
    if panel.groups:
        ax.set_xticks(range(len(panel.groups)), panel.groups)
        ax.tick_params(axis="x", length=0)
    else:
        if not panel.log_x and max(value for series in panel.series for value in series.x) > 2:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
    ax.yaxis.set_major_formatter(lambda value, _: short(value))
    ax.grid(axis="y")
    named = [series for series in panel.series if series.name]
    if named:
        ax.legend(frameon=False, fontsize=7, ncols=2 if len(named) > 4 else 1)


def _line(ax: Axes, series: Series) -> None:
    color, marker, _ = LOOKS[series.look]
    style: dict[str, Any] = {"color": color, "label": series.name or "_", "linewidth": 1.3}
    if series.kind == "line":
        style |= {"marker": marker, "markersize": 4}
    elif series.kind == "dots":
        style |= {"marker": marker, "markersize": 2.4, "linestyle": "", "alpha": 0.55}
    elif series.kind == "dashes":
        style |= {"linestyle": (0, (3, 2)), "linewidth": 1.0}
    ax.plot(series.x, series.y, **style)


def _bars(ax: Axes, series: Series, number: int, count: int) -> None:
    color, _, hatch = LOOKS[series.look]
    width = 0.84 / count
    bars = ax.bar(
        [place + (number - (count - 1) / 2) * width for place in series.x],
        series.y,
        width * 0.94,
        color=color,
        hatch=hatch,
        edgecolor="white",
        label=series.name,
    )
    labels = [short(value) for value in series.y]
    ax.bar_label(bars, labels, padding=2, fontsize=6, rotation=90 if count > 3 else 0)
