"""What a reproduction leaves for the documentation: figures, what they are drawn from, tables.

The figures are drawn from one small JSON file beside them, so that they can be drawn anew without
measuring anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Draw", "draw_figures", "keep_figures", "markdown"]

DOTS_PER_INCH: Final = 100

Draw = Callable[[Mapping[str, Any]], "Figure"]
"""From what the JSON file has of one figure."""


def keep_figures(
    path: Path, setup: Mapping[str, str], figures: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write what is to be drawn, by the pictures' names, and what it was measured on."""
    text = json.dumps({"setup": setup, "figures": figures}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def draw_figures(path: Path, draw: Draw) -> list[Path]:
    """The pictures of the JSON file, beside it."""
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    for name, figure in figures.items():
        picture = path.with_name(f"{name}.png")
        draw(figure).savefig(picture, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return [path.with_name(f"{name}.png") for name in figures]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in x) + " |" for x in lines
    )
