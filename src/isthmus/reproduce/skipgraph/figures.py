"""The pictures of the thesis's figures, drawn from one small JSON file.

    python -m isthmus.reproduce.skipgraph.figures FOLDER

draws ``FOLDER/skipgraph-*.png`` anew from ``FOLDER/skipgraph.json``, which ``isthmus reproduce
skipgraph --docs FOLDER`` wrote.  What is drawn is decided in `panels`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from isthmus.reproduce.panels import Panels, draw_panels, write_panels

__all__ = ["draw", "write_figures"]

NAME: Final = "skipgraph.json"


def write_figures(folder: Path, setup: Mapping[str, str], figures: Mapping[str, Panels]) -> None:
    """Keep what is to be drawn in `folder`, and draw it."""
    write_panels(folder / NAME, setup, figures)


def draw(folder: Path) -> list[Path]:
    """The pictures of the JSON file in `folder`, beside it."""
    return draw_panels(folder / NAME)


def main(arguments: Sequence[str]) -> None:
    """Draw anew."""
    for path in draw(Path(arguments[0])):
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
