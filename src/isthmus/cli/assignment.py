"""``isthmus simulate assignment``; what it does is in :mod:`isthmus.simulate.assignment`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from isthmus.errors import IsthmusError

__all__ = ["assignment"]


def assignment(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="FILE.toml, or FILE.csv with the topics alone; options count first.",
        ),
    ] = None,
    *,
    brokers: Annotated[
        int | None, typer.Option(metavar="N", help="Brokers in one place (m).")
    ] = None,
    subscribers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Subscribers of all topics (S; those of the topics)."),
    ] = None,
    communication_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Between two brokers (t_c; 1).")
    ] = None,
    processing_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="At a broker, for each subscriber (t_p; 0.01)."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="A topic and its subscribers; may be repeated."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also simulate each topic, both ways.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write all topics there.")
    ] = None,
) -> None:
    """Say which topics to assign to few brokers and which to many, so that messages arrive soon.

    The formulas are those of section 4.2 of the Skip Graph thesis.
    """
    if check and find_spec("numpy") is None:
        raise IsthmusError("numpy not installed; pip install 'isthmus[pipeline]'")
    from isthmus.simulate.assignment_command import answer
    from isthmus.simulate.assignment_file import asked

    settings = {
        "brokers": brokers,
        "subscribers": subscribers,
        "communication_ms": communication_ms,
        "processing_ms": processing_ms,
    }
    answer(asked(file, settings, topic or ()), out, check=check)
