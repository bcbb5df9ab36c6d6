"""The figures that the documentation shows of a reproduction, drawn from one small JSON file.

    python -m isthmus.reproduce.ildm.figures FOLDER

draws ``FOLDER/ildm-*.png`` anew from ``FOLDER/ildm.json``, which ``isthmus reproduce ildm --docs``
wrote: what it ran on, and the bars of each figure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.bench.report.plots import Bar, limit_bars
from isthmus.reproduce.docs_files import draw_figures, keep_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Bars", "draw", "write_figures"]

NAME: Final = "ildm.json"


@dataclass(frozen=True, slots=True)
class Bars:
    """One figure."""

    bars: tuple[Bar, ...]
    legend: Mapping[str, str]


def write_figures(folder: Path, setup: Mapping[str, str], figures: Mapping[str, Bars]) -> None:
    """Keep what is to be drawn in `folder`, and draw it."""
    keep_figures(folder / NAME, setup, {name: asdict(each) for name, each in figures.items()})
    draw(folder)


def draw(folder: Path) -> list[Path]:
    """The pictures of the JSON file in `folder`, beside it."""
    return draw_figures(folder / NAME, _drawn)


def _drawn(figure: Mapping[str, Any]) -> Figure:
    return limit_bars([Bar(**bar) for bar in figure["bars"]], figure["legend"])


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1])):
        print(path)
