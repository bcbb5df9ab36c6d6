"""The paper's figures 6 to 9, drawn from the rows of the table `grid`.

    python -m isthmus.reproduce.overlays.figures FOLDER

draws ``FOLDER/overlays-*.png`` anew from ``FOLDER/overlays.json``, which ``isthmus reproduce
overlays --docs`` wrote.  A bar is the mean over the rounds, the line on it goes from the least of
them to the most.  The contenders stand in the order of the legend, each with a color and a hatching
of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from isthmus.bench.report.plots import STYLE, short
from isthmus.reproduce.docs_files import draw_figures, keep_figures
from isthmus.reproduce.overlays.experiments import CONTENDERS, PAYLOADS, TOPICS, Setting

__all__ = ["Grid", "Panel", "Panels", "draw", "figures_of", "panels_figure", "write_figures"]

NAME: Final = "overlays.json"
LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "flooding": ("#6b7280", ""),
    "single": ("#e69f00", "///"),
    "capacity": ("#0072b2", ""),
    "balance": ("#56b4e9", "..."),
}
"""Color (Okabe and Ito's) and hatching."""
_WIDTH_IN: Final = 10.5
_ROW_IN: Final = 2.5

Spread = tuple[float, float, float]
"""Mean, least and most over the rounds."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars of every contender for each of some groups."""

    title: str
    unit: str
    groups: tuple[str, ...]
    bars: Mapping[str, tuple[Spread | None, ...]]
    """By contender, one for each group; None where nothing was measured."""
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Panels:
    """One figure, so many panels in a row."""

    columns: int
    groups: str
    """What the groups are."""
    panels: tuple[Panel, ...]


class Grid:
    """The rows of the table `grid`, found by setting and contender."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = {
            (
                Setting(row["locality"], row["topics"], row["payload_bytes"], row["stress"]),
                row["contender"],
            ): row
            for row in rows
        }

    def spread(
        self, setting: Setting, contender: str, measures: Sequence[str], scale: float
    ) -> Spread | None:
        """The sum of some measures; that of extremes is an upper bound of the extreme."""
        row = self._rows.get((setting, contender))
        if row is None or any(row[f"{name}_mean"] is None for name in measures):
            return None
        mean, least, most = (
            scale * sum(float(row[f"{name}_{which}"]) for name in measures)
            for which in ("mean", "least", "most")
        )
        return mean, least, most

    def has(self, settings: Sequence[Setting]) -> bool:
        """Whether anything was measured in any of them."""
        return any((setting, key) in self._rows for setting in settings for key in CONTENDERS)


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Panels]:
    """Every figure for which there is a measurement, by the name of its picture."""
    grid = Grid(rows)
    made = {
        "overlays-delay": _delay(grid),
        "overlays-traffic": _traffic(grid),
        "overlays-payloads": _payloads(grid),
        "overlays-resources": _resources(grid),
    }
    return {name: figure for name, figure in made.items() if figure.panels}


def write_figures(folder: Path, setup: Mapping[str, str], figures: Mapping[str, Panels]) -> None:
    """Keep what is to be drawn in `folder`, and draw it."""
    keep_figures(folder / NAME, setup, {name: asdict(each) for name, each in figures.items()})
    draw(folder)


def draw(folder: Path) -> list[Path]:
    """The pictures of the JSON file in `folder`, beside it."""
    return draw_figures(folder / NAME, _read)


def _read(figure: Mapping[str, Any]) -> Figure:
    panels = tuple(Panel(**panel) for panel in figure["panels"])
    return panels_figure(Panels(figure["columns"], figure["groups"], panels))


# ---- what is drawn -----------------------------------------------------------------------


def _panel(
    grid: Grid,
    title: str,
    unit: str,
    settings: Sequence[Setting],
    measures: Sequence[str],
    *,
    group: Callable[[Setting], str],
    scale: float = 1.0,
    logarithmic: bool = False,
) -> Panel:
    return Panel(
        title,
        unit,
        tuple(group(each) for each in settings),
        {
            key: tuple(grid.spread(each, key, measures, scale) for each in settings)
            for key in CONTENDERS
        },
        logarithmic,
    )


def _by_topics(setting: Setting) -> str:
    return str(setting.topics)


def _by_payload(setting: Setting) -> str:
    return f"10{'⁰¹²³⁴⁵⁶'[round(math.log10(setting.payload_bytes))]}"


def _base(grid: Grid, locality: int) -> list[Setting]:
    return [s for topics in TOPICS if grid.has([s := Setting(locality, topics)])]


def _localities(grid: Grid) -> list[tuple[int, list[Setting]]]:
    return [(locality, base) for locality in (100, 50, 0) if (base := _base(grid, locality))]


def _delay(grid: Grid) -> Panels:
    return Panels(
        3,
        "topics",
        tuple(
            _panel(
                grid,
                f"{locality} % locality",
                "mean end-to-end delay, ms",
                base,
                ["delay_ms"],
                group=_by_topics,
            )
            for locality, base in _localities(grid)
        ),
    )


def _traffic(grid: Grid) -> Panels:
    localities = _localities(grid)
    publications = [
        _panel(
            grid,
            f"publications, {locality} % locality",
            "kB/s between nodes",
            base,
            ["publications_bytes_s"],
            group=_by_topics,
            scale=1e-3,
        )
        for locality, base in localities
    ]
    signalling = [
        _panel(
            grid,
            f"signalling, {locality} % locality",
            "kB since the nodes' start",
            base,
            ["signalling_bytes"],
            group=_by_topics,
            scale=1e-3,
        )
        for locality, base in localities
    ]
    return Panels(max(1, len(localities)), "topics", (*publications, *signalling))


def _payloads(grid: Grid) -> Panels:
    panels: list[Panel] = []
    for stress, rate in ((False, "normal rate"), (True, "stress")):
        some = [Setting(50, TOPICS[-1], payload, stress) for payload in PAYLOADS]
        if not grid.has(some[1:]):
            continue
        for title, unit, measure, scale, logarithmic in (
            ("publications", "kB/s between nodes", "publications_bytes_s", 1e-3, True),
            ("signalling", "kB since the nodes' start", "signalling_bytes", 1e-3, False),
            ("delay", "mean, ms", "delay_ms", 1.0, True),
            ("lost", "% of deliveries", "loss_rate", 100.0, False),
        ):
            panels.append(
                _panel(
                    grid,
                    f"{title}, {rate}",
                    unit,
                    some,
                    [measure],
                    group=_by_payload,
                    scale=scale,
                    logarithmic=logarithmic,
                )
            )
    return Panels(4, "bytes of payload (50 % locality, 60 topics)", tuple(panels))


def _resources(grid: Grid) -> Panels:
    panels: list[Panel] = []
    for title, unit, measure, scale in (
        ("CPU", "cores, nodes and brokers", "cores", 1.0),
        ("memory", "MiB, nodes and brokers", "rss_bytes", 1 / 2**20),
    ):
        for stress, rate in ((False, "normal rate"), (True, "stress")):
            some = [
                each for topics in TOPICS if grid.has([each := Setting(50, topics, stress=stress)])
            ]
            if some:
                panels.append(
                    _panel(
                        grid,
                        f"{title}, {rate}",
                        unit,
                        some,
                        [f"node_{measure}", f"broker_{measure}"],
                        group=_by_topics,
                        scale=scale,
                    )
                )
    return Panels(2, "topics (50 % locality)", tuple(panels))


# ---- drawing -----------------------------------------------------------------------------


@mpl.rc_context(STYLE)
def panels_figure(panels: Panels) -> Figure:
    """All panels, and one legend."""
    rows = math.ceil(len(panels.panels) / panels.columns)
    figure = Figure(figsize=(_WIDTH_IN, 0.6 + _ROW_IN * rows), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, panels.columns, squeeze=False).flat)
    for ax in axes[len(panels.panels) :]:
        ax.set_visible(False)
    for ax, panel in zip(axes, panels.panels, strict=False):
        _bars(ax, panel)
    figure.supxlabel(panels.groups, fontsize=9)
    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", label=CONTENDERS[key].name)
        for key, (color, hatch) in LOOKS.items()
    ]
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches), frameon=False)
    return figure


def _bars(ax: Axes, panel: Panel) -> None:
    width = 0.82 / len(LOOKS)
    drawn = [value for bars in panel.bars.values() for value in bars if value is not None]
    most = max((value[2] for value in drawn), default=0.0)
    positive = [value[1] for value in drawn if value[1] > 0]
    logarithmic = panel.logarithmic and bool(positive)
    floor = 0.5 * min(positive) if logarithmic else 0.0
    for number, (key, (color, hatch)) in enumerate(LOOKS.items()):
        some = [(g, v) for g, v in enumerate(panel.bars.get(key, ())) if v is not None]
        if not some:
            continue
        means = [max(mean, floor) for _, (mean, _, _) in some]
        ends = [
            [mean - min(mean, max(least, floor)) for mean, (_, (_, least, _)) in _zip(means, some)],
            [max(0.0, high - mean) for mean, (_, (_, _, high)) in _zip(means, some)],
        ]
        bars = ax.bar(
            [group + (number - (len(LOOKS) - 1) / 2) * width for group, _ in some],
            means,
            width * 0.94,
            color=color,
            hatch=hatch,
            edgecolor="white",
            yerr=ends if any(map(any, ends)) else None,
            error_kw={"ecolor": "#27272a", "elinewidth": 0.9, "capsize": 2},
        )
        labels = [short(mean) for _, (mean, _, _) in some]
        ax.bar_label(bars, labels, padding=2, fontsize=6.5, rotation=90)
    ax.set_title(panel.title, fontsize=9)
    ax.set_ylabel(panel.unit, fontsize=8)
    ax.set_xticks(range(len(panel.groups)), panel.groups)
    ax.tick_params(axis="x", length=0)
    ax.grid(axis="y")
    if logarithmic:
        ax.set_yscale("log")
        ax.set_ylim(floor, most * (most / floor) ** 0.25)
    else:
        ax.set_ylim(0, (most or 1.0) * 1.25)
    ax.yaxis.set_major_formatter(lambda value, _: short(value))


def _zip(
    means: Sequence[float], some: Sequence[tuple[int, Spread]]
) -> Iterator[tuple[float, tuple[int, Spread]]]:
    return zip(means, some, strict=True)


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1])):
        print(path)
