"""The picture of docs/explanation/tree-performance.md, drawn from the JSON file beside it.

python benchmarks/overlay/plot.py docs/explanation/tree-performance.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.bench.report.plots import COLORS, STYLE, short

__all__ = ["draw", "growth"]

DOTS_PER_INCH: Final = 100
LINES: Final = (
    ("graph", "convergence", "convergence", COLORS["sf"], "o", "-"),
    ("graph", "root lost", "repair: root lost", COLORS["failed"], "s", "-"),
    ("graph", "inner node lost", "repair: inner node lost", COLORS["pf"], "^", "-"),
    ("graph", "leaf lost", "repair: leaf lost", COLORS["mixed"], "v", "-"),
    ("mesh", "convergence", "convergence, full mesh", COLORS["sf"], "o", (0, (2, 2))),
    ("mesh", "root lost", "repair: root lost, full mesh", COLORS["failed"], "s", (0, (2, 2))),
)


def draw(record: Path) -> Path:
    """The picture of what `record` says, beside it."""
    entries = json.loads(record.read_text())["simulated"]
    picture = record.with_suffix(".png")
    growth(entries).savefig(picture, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return picture


@mpl.rc_context(STYLE)
def growth(entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Time, and messages for each node, against the number of nodes."""
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax, title, unit, label in (
        (left, "Until all use one tree", "s", "seconds of virtual time (median, least to most)"),
        (right, "Messages of the tree", "messages per node", "messages per node, logarithmic"),
    ):
        _lines(ax, entries, unit)
        ax.set_title(title)
        ax.set_ylabel(label)
        ax.set_xlabel("nodes, logarithmic")
    left.set_ylim(bottom=0)
    right.set_yscale("log")
    right.yaxis.set_major_formatter(lambda value, _: short(value))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _lines(ax: Axes, entries: Sequence[Mapping[str, Any]], unit: str) -> None:
    for shape, what, label, color, marker, dashes in LINES:
        points = [
            (entry["nodes"], entry["spreads"][f"{what}, {unit}"])
            for entry in entries
            if entry["shape"] == shape and f"{what}, {unit}" in entry["spreads"]
        ]
        if not points:
            continue
        sizes = [nodes for nodes, _ in points]
        medians = [each["median"] for _, each in points]
        ax.plot(
            sizes,
            medians,
            color=color,
            marker=marker,
            linestyle=dashes,
            markersize=4.5,
            label=label,
        )
        ax.vlines(
            sizes,
            [each["low"] for _, each in points],
            [each["high"] for _, each in points],
            color=color,
            linewidth=1.0,
        )
    ax.set_xscale("log")
    ticks = sorted({entry["nodes"] for entry in entries})
    ax.set_xticks(ticks, [short(each) for each in ticks])
    ax.minorticks_off()
    ax.grid()


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
