"""The figures of a report, drawn by Matplotlib as SVG.

Every figure follows the same rules: the colors are Okabe and Ito's, which color-blind readers
can tell apart; a cooperation algorithm, or a bare broker, has the same color everywhere; axes
carry units, bars their values; nothing depends on color alone.  No display is needed, and the
settings of Matplotlib are left as they were.

Sources: ILDM Fig. 11 and 12 (what is drawn), Okabe & Ito, "Color Universal Design" (colors).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from isthmus.pipeline.count.tables import UNDER_LIMIT

__all__ = [
    "COLORS",
    "STYLE",
    "Bar",
    "Point",
    "cpu_bars",
    "limit_bars",
    "search_points",
    "seconds_lines",
    "short",
    "svg",
]

COLORS: Final[Mapping[str, str]] = {
    "": "#6b7280",  # a bare broker
    "pf": "#e69f00",
    "sf": "#0072b2",
    "mixed": "#009e73",
    "broker": "#56b4e9",
    "node": "#f0e442",
    "load": "#cc79a7",
    "other": "#d4d4d8",
    "failed": "#d55e00",
}
_OTHERS: Final = ("#cc79a7", "#d55e00", "#56b4e9", "#f0e442")
_INK: Final = "#27272a"
_GRID: Final = "#e4e4e7"
STYLE: Final[Any] = {  # its keys are a type of Matplotlib's own
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#a1a1aa",
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "svg.fonttype": "path",
    "hatch.linewidth": 0.6,
}
_WIDTH_IN: Final = 10.5
_MULTIPLES_IN_A_ROW: Final = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of each panel: a system at its limit."""

    row: str
    """What stands beside it; bars of the same row stand together."""
    series: str
    """Key into `COLORS`."""
    ingress: float
    egress: float
    latency_ms: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    at_least: bool = False
    """The limit is not the brokers' own; drawn hatched."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a search."""

    offered: float
    """Egress that follows from the interval asked for."""
    ratio: float
    """Of Definition 1."""
    under_limit: bool


def color(series: str) -> str:
    """The color of an algorithm; plug-ins' names get one of what is left."""
    return COLORS.get(series) or _OTHERS[sum(series.encode()) % len(_OTHERS)]


def short(value: float) -> str:
    """A number as a label: 1,234,000 is ``1.23 M``, 12,345 ``12.3 k``, 0.123 itself."""
    for step, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= step:
            return f"{value / step:.3g}{unit}"
    return f"{value:.3g}"


@mpl.rc_context(STYLE)
def limit_bars(bars: Sequence[Bar], legend: Mapping[str, str]) -> Figure:
    """Ingress, egress and latency side by side, a row each system (ILDM Fig. 11 and 12)."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    height = 0.9 + 0.3 * len(bars) + 0.12 * len(rows)
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    places = _places(bars)
    _throughput(axes[0], "Ingress throughput", bars, places, [bar.ingress for bar in bars])
    _throughput(axes[1], "Egress throughput", bars, places, [bar.egress for bar in bars])
    _latency(axes[2], bars, places)
    axes[0].set_yticks([_middle(bars, places, row) for row in rows], rows)
    axes[0].invert_yaxis()
    _legend(figure, {name: color(key) for key, name in legend.items()}, bars)
    return figure


@mpl.rc_context(STYLE)
def cpu_bars(
    rows: Sequence[tuple[str, Mapping[str, float]]], *, cores: int, legend: Mapping[str, str]
) -> Figure:
    """Cores in use, stacked by who used them, a row each system."""
    figure = Figure(figsize=(_WIDTH_IN, 1.1 + 0.3 * len(rows)), layout="constrained")
    ax = figure.subplots()
    ends = [0.0] * len(rows)
    for kind in legend:
        widths = [max(0.0, parts.get(kind, 0.0)) for _, parts in rows]
        drawn = ax.barh(range(len(rows)), widths, left=ends, height=0.7, color=color(kind))
        labels = [f"{width:.2f}" if width >= 0.045 * cores else "" for width in widths]
        ax.bar_label(drawn, labels, label_type="center", fontsize=7.5)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    ax.axvline(cores, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(rows)), [row for row, _ in rows])
    ax.invert_yaxis()
    ax.set_xlim(0, max([cores * 1.04, *(end * 1.04 for end in ends)]))
    ax.set_xlabel(f"cores in use on average (dashed: the machine's {cores})")
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    _legend(figure, {name: color(key) for key, name in legend.items()}, ())
    return figure


@mpl.rc_context(STYLE)
def search_points(searches: Mapping[str, Sequence[Point]]) -> Figure:
    """Every measurement of every search: how much of what was asked for came out."""
    figure, axes = _multiples(len(searches), height_in=1.75)
    for ax, (name, points) in zip(axes, searches.items(), strict=True):
        ax.axhline(UNDER_LIMIT, color="#71717a", linewidth=0.8, linestyle=(0, (4, 3)))
        for under, marker, face, edge in (
            (True, "o", COLORS["sf"], COLORS["sf"]),
            (False, "X", "none", COLORS["failed"]),
        ):
            chosen = [point for point in points if point.under_limit is under]
            ax.scatter(
                [point.offered for point in chosen],
                [point.ratio for point in chosen],
                s=26,
                marker=marker,
                facecolors=face,
                edgecolors=edge,
                linewidths=1.0,
                zorder=3,
            )
        offered = [point.offered for point in points] or [0.0, 1.0]
        ratios = [point.ratio for point in points] or [1.0]
        room = 0.12 * (max(offered) - min(offered)) or 0.1 * max(offered)
        ax.set_xlim(min(offered) - room, max(offered) + room)
        ax.set_ylim(min(0.9, min(ratios) - 0.03), max(1.05, max(ratios) + 0.03))
        _small(ax, name)
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
    figure.supxlabel("egress asked for, messages/s", fontsize=9)
    figure.supylabel("egress / (ingress times sp-ratio)", fontsize=9)
    return figure


@mpl.rc_context(STYLE)
def seconds_lines(runs: Mapping[str, Sequence[tuple[int, bool, float, float]]]) -> Figure:
    """Per second of each run: (second, in the window, ingress times sp-ratio, egress)."""
    figure, axes = _multiples(len(runs), height_in=1.6)
    for ax, (name, rows) in zip(axes, runs.items(), strict=True):
        seconds = [row[0] + 0.5 for row in rows]
        inside = [row[0] for row in rows if row[1]]
        if inside:
            ax.axvspan(min(inside), max(inside) + 1, color="#f4f4f5", zorder=0)
        most = 1.12 * max((max(row[2], row[3]) for row in rows), default=1.0)
        asked, got = [row[2] for row in rows], [row[3] for row in rows]
        ax.plot(seconds, asked, color=_INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=3)
        ax.plot(seconds, got, color=COLORS["sf"], linewidth=1.6, marker=".", zorder=2)
        ax.set_ylim(0, most or 1.0)
        _small(ax, name)
    figure.supxlabel("second of the run (shaded: the window that counts)", fontsize=9)
    figure.supylabel("messages/s", fontsize=9)
    return figure


def svg(figure: Figure, description: str) -> str:
    """The figure as an ``<svg>`` element to put into a page; `description` for who cannot see it.

    The salt makes the identifiers in it differ from those of the page's other figures, and equal
    from one time to the next.
    """
    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": description}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, count=1, flags=re.DOTALL)
    safe = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return body.replace("<svg", f'<svg role="img" aria-label="{safe}"', 1)


def _places(bars: Sequence[Bar]) -> list[float]:
    """Where each bar stands: one unit apart, with a gap between rows."""
    places: list[float] = []
    at = 0.0
    for index, bar in enumerate(bars):
        if index:
            at += 1.0 if bar.row == bars[index - 1].row else 1.4
        places.append(at)
    return places


def _middle(bars: Sequence[Bar], places: Sequence[float], row: str) -> float:
    own = [place for bar, place in zip(bars, places, strict=True) if bar.row == row]
    return sum(own) / len(own)


def _throughput(
    ax: Axes, title: str, bars: Sequence[Bar], places: Sequence[float], values: Sequence[float]
) -> None:
    drawn = ax.barh(places, values, height=0.82, color=[color(bar.series) for bar in bars])
    for patch, bar in zip(drawn, bars, strict=True):
        if bar.at_least:
            patch.set_hatch("////")
            patch.set_edgecolor("white")
    labels = [
        ("≥ " if bar.at_least else "") + short(value)
        for bar, value in zip(bars, values, strict=True)
    ]
    ax.bar_label(drawn, labels, padding=3, fontsize=8)
    ax.set_title(title)
    ax.set_xlabel("messages/s")
    ax.set_xlim(0, 1.22 * max([*values, 1e-9]))
    ax.xaxis.set_major_formatter(lambda value, _: short(value))
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)


def _latency(ax: Axes, bars: Sequence[Bar], places: Sequence[float]) -> None:
    """The mean as a dot, on a line from the median to the 99th percentile.

    On a logarithmic axis, as one slow broker would flatten all the others on a linear one.
    """
    ax.set_title("Latency of l-clients")
    ax.set_xlabel("ms, logarithmic (● mean, line: 50 % to 99 %)")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    values: list[float] = []
    for bar, place in zip(bars, places, strict=True):
        if bar.latency_ms is None or bar.latency_ms <= 0:
            ax.annotate(
                "none", (0.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8
            )
            continue
        known = (bar.latency_ms, bar.latency_p50_ms, bar.latency_p99_ms)
        ends = [value for value in known if value]
        values += ends
        ax.plot([min(ends), max(ends)], [place] * 2, color=color(bar.series), linewidth=2.2)
        ax.plot(bar.latency_ms, place, "o", color=color(bar.series), markersize=6.5)
        ax.annotate(
            f"mean {short(bar.latency_ms)}",
            (max(ends), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    if values:
        ax.set_xscale("log")
        decades = math.log10(max(values) / min(values)) + 0.5
        ax.set_xlim(min(values) / 10 ** (0.1 * decades), max(values) * 10 ** (0.45 * decades))
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        ax.xaxis.set_major_formatter(lambda value, _: short(value))
        ax.xaxis.set_minor_formatter(lambda value, _: "")


def _multiples(count: int, *, height_in: float) -> tuple[Figure, list[Axes]]:
    columns = min(_MULTIPLES_IN_A_ROW, max(1, count))
    rows = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(_WIDTH_IN, 0.5 + height_in * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    flat: list[Axes] = list(grid.flat)
    for ax in flat[count:]:
        ax.set_visible(False)
    return figure, flat[:count]


def _small(ax: Axes, name: str) -> None:
    ax.set_title(name, fontsize=9)
    ax.locator_params(nbins=4)
    ax.yaxis.set_major_formatter(lambda value, _: short(value))
    ax.tick_params(labelsize=7.5)
    ax.grid()


def _legend(figure: Figure, named: Mapping[str, str], bars: Sequence[Bar]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color, label=name) for name, color in named.items()]
    if any(bar.at_least for bar in bars):
        patches.append(
            Patch(
                facecolor="#a1a1aa", edgecolor="white", hatch="////", label="≥: not its own limit"
            )
        )
    if len(patches) > 1:
        figure.legend(handles=patches, loc="outside upper right", ncols=len(patches), frameon=False)
