"""The figures that the documentation shows of a reproduction, drawn from one small JSON file.

    python -m isthmus.reproduce.ildm.figures FOLDER

draws ``FOLDER/ildm-*.png`` anew from ``FOLDER/ildm.json``, which ``isthmus reproduce ildm --docs``
wrote: what it ran on, and the bars of each figure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from isthmus.bench.report.plots import Bar, limit_bars

__all__ = ["Bars", "draw", "write_figures"]

NAME: Final = "ildm.json"
DOTS_PER_INCH: Final = 100


@dataclass(frozen=True, slots=True)
class Bars:
    """One figure."""

    bars: tuple[Bar, ...]
    legend: Mapping[str, str]


def write_figures(folder: Path, setup: Mapping[str, str], figures: Mapping[str, Bars]) -> None:
    """Keep what is to be drawn in `folder`, and draw it."""
    drawn = {name: asdict(figure) for name, figure in figures.items()}
    text = json.dumps({"setup": setup, "figures": drawn}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    draw(folder)


def draw(folder: Path) -> list[Path]:
    """The pictures of the JSON file in `folder`, beside it."""
    figures = json.loads((folder / NAME).read_text(encoding="utf-8"))["figures"]
    for name, figure in figures.items():
        drawn = limit_bars([Bar(**bar) for bar in figure["bars"]], figure["legend"])
        drawn.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return [folder / f"{name}.png" for name in figures]


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1])):
        print(path)
