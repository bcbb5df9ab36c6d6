"""What every benchmark's command line has in common."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import DOCS
from rich.console import Console

from isthmus.errors import IsthmusError, LoadError

__all__ = ["parser_of", "run"]

RESULTS = Path(__file__).parent / "results"


def parser_of(
    name: str, description: str, quick: str, page: str | None = None, *, loops: bool = True
) -> argparse.ArgumentParser:
    """The options that all benchmarks have; `quick` says how long that takes.

    `page` is where the documentation shows the figures; `loops` of load are closed ones.
    """
    parser = argparse.ArgumentParser(prog=f"bench_{name}", description=description)
    parser.add_argument("--rounds", type=_rounds, help="at least 3; default 5, with --quick 3")
    parser.add_argument("--quick", action="store_true", help=f"{quick}, for a first look")
    out = RESULTS / f"{name}.json"
    parser.add_argument("--out", type=Path, default=out, help="JSON file to write")
    if page is not None:
        parser.add_argument(
            "--docs",
            dest="page",
            action="store_const",
            const=DOCS / page,
            help=f"also write the tables of {page}",
        )
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    if loops:
        parser.add_argument("--window", type=int, help="outstanding messages in the closed loop")
        parser.add_argument("--batch", type=int, help="messages per send in the closed loop")
    return parser


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 3:
        raise argparse.ArgumentTypeError("must be at least 3")
    return rounds


def run(name: str, width: int, bench: Callable[[Console], bool], *, check: bool) -> int:
    """Run `bench`, which tells whether all targets were met; the process's exit code."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else width)
    signal.signal(signal.SIGTERM, _interrupt)  # so that everything started is stopped too
    try:
        met = bench(console)
    except (LoadError, IsthmusError, OSError) as error:
        console.print(f"bench-{name} failed: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; nothing was written")
        return 130
    return 0 if met or not check else 1


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
