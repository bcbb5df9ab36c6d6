"""``isthmus geo …``; what it does is in :mod:`isthmus.cooperation.geo`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.geo_moves import merge, split
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.cooperation.geo import Area, CellSet, Shape

__all__ = ["geo"]

DEFAULT_DIGITS = 12
DEFAULT_LIMIT = 1000

geo = typer.Typer(
    no_args_is_help=True,
    help="Topics with a place, d1/d2/…/dk/rest: the cell of a position, the filters of an area.",
)


AreaOption = Annotated[
    str | None,
    typer.Option("--area", metavar="W,S,E,N", help="What is divided, in degrees; the Earth."),
]
PlaneOption = Annotated[
    str | None,
    typer.Option("--plane", metavar="W,S,E,N", help="The same in x and y instead of degrees."),
]
Digits = Annotated[int, typer.Option("--digits", metavar="K", help="How many digits topics have.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@geo.command(
    context_settings={"ignore_unknown_options": True},  # -33.9 is a latitude
    epilog="Examples: `isthmus geo cell 35.68 139.76 --digits 4`, `isthmus geo cell 1/3/1/0`, "
    "`isthmus geo cell 12.5 3 --plane 0,0,64,64 --digits 5` (x and y).",
)
def cell(
    place: Annotated[
        list[str],
        typer.Argument(metavar="LAT LON | CELL", help="A position (in a plane X Y), or a cell."),
    ],
    *,
    digits: Digits = DEFAULT_DIGITS,
    area: AreaOption = None,
    plane: PlaneOption = None,
    as_json: AsJson = False,
) -> None:
    """The cell of a position, or where a cell lies: its topics, bounds, size, neighbors."""
    from isthmus.cooperation.geo import check_cell, parent

    where = _area(area, plane)
    _checked_digits(digits)
    pair = "X Y" if where.is_plane else "LAT LON"
    for each in place:
        if each.startswith("--"):
            raise typer.BadParameter(f"no such option: {each}")
    try:
        if len(place) == 2:
            hint = pair
            y_or_x, other = (_number(each, hint) for each in place)
            found = where.cell((y_or_x, other), digits)
        elif len(place) == 1:
            hint = "CELL"
            found = check_cell(place[0])
        else:
            raise typer.BadParameter(f"give {pair} or one CELL, not {len(place)} values")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
    bounds, (width, height) = where.bounds(found), where.size(found)
    neighbors = where.neighbors(found)
    if as_json:
        answer = {
            "cell": found,
            "bounds": bounds._asdict(),
            "center": where.center(found),
            "size": [width, height],
            "parent": parent(found),
            "neighbors": neighbors,
        }
        typer.echo(json.dumps(answer, indent=2))
        return
    x, y = ("x", "y") if where.is_plane else ("longitude", "latitude")
    first, second = where.center(found)
    lines = [
        ("cell", found),
        ("filter", f"{found}/#"),
        (y, f"{bounds.south} to {bounds.north}"),
        (x, f"{bounds.west} to {bounds.east}"),
        ("center", f"{first} {second}"),
        ("size", f"{_length(width, where)} by {_length(height, where)}"),
        ("parent", parent(found) or "the whole area"),
        *neighbors.items(),
    ]
    for name, value in lines:
        typer.echo(f"{name:<12}{value}")


@geo.command(
    epilog="Examples: `isthmus geo filters --circle 35.68,139.76,10000`, "
    "`isthmus geo filters --geojson city.json --digits 16 --precision 14 --rest +/temperature`. "
    "No two of the filters match the same topic, so no message comes twice.",
)
def filters(
    *,
    rectangle: Annotated[
        str | None,
        typer.Option(metavar="S,W,N,E", help="Two corners (in a plane X,Y,X,Y)."),
    ] = None,
    circle: Annotated[
        str | None,
        typer.Option(metavar="LAT,LON,METERS", help="Center and radius (in a plane X,Y,RADIUS)."),
    ] = None,
    geojson: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A polygon, or several.")
    ] = None,
    digits: Digits = DEFAULT_DIGITS,
    precision: Annotated[
        int | None,
        typer.Option(metavar="P", help="How many digits the smallest cells have; --digits."),
    ] = None,
    rest: Annotated[
        str, typer.Option(metavar="FILTER", help="Of what stands after the digits.")
    ] = "#",
    area: AreaOption = None,
    plane: PlaneOption = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Refuse to give more filters than that.")
    ] = DEFAULT_LIMIT,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png|svg", help="Also draw the cells and the shape there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The fewest topic filters for a rectangle, a circle or a polygon."""
    from isthmus.cooperation.geo import number_of_filters, smallest_filters
    from isthmus.cooperation.geo.covering import check_rest

    where = _area(area, plane)
    shape, hint = _shape(where, rectangle, circle, geojson)
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{plot} is neither .png nor .svg", param_hint="--plot")
    if plot is not None and find_spec("matplotlib") is None:
        raise IsthmusError("matplotlib not installed; pip install 'isthmus[bench]'")
    precise = _checked_digits(digits, precision)
    try:
        check_rest(rest)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rest") from None
    try:
        cells = shape.cells(where, precise)
        number = number_of_filters(cells)
        found = smallest_filters(cells, digits, rest) if number <= limit else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None
    if number > limit:
        raise typer.BadParameter(
            f"{number} filters at precision {precise}; {limit} at most; "
            f"{_fitting(where, shape, precise, limit)}",
            param_hint="--limit",
        )
    if plot is not None:
        from isthmus.cli.geo_plot import draw

        draw(where, shape, cells, plot)
    if as_json:
        answer = {
            "digits": digits,
            "precision": precise,
            "cells": len(cells),
            "filters": found,
        }
        typer.echo(json.dumps(answer, indent=2))
        return
    for each in found:
        typer.echo(each)


def _checked_digits(digits: int, precision: int | None = None) -> int:
    """The precision."""
    from isthmus.cooperation.geo.zorder import check_digits

    hint = "--digits"
    try:
        check_digits(digits)
        hint = "--precision"
        return check_digits(digits if precision is None else precision, "precision", digits)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _fitting(area: Area, shape: Shape, precision: int, limit: int) -> str:
    """Which precision would do."""
    best = _Fit(0, 0)
    for fewer in range(1, precision):
        number = _count(shape, area, fewer)
        if number is None or number > 4 * limit:
            break
        if number <= limit:
            best = _Fit(fewer, number)
    if not best.precision:
        return "no precision gives so few"
    return f"precision {best.precision} gives {best.number} (--precision {best.precision})"


@dataclass(frozen=True, slots=True)
class _Fit:
    precision: int
    number: int


def _count(shape: Shape, area: Area, precision: int) -> int | None:
    from isthmus.cooperation.geo import number_of_filters

    try:
        cells: CellSet = shape.cells(area, precision)
    except ValueError:
        return None
    return number_of_filters(cells)


def _area(area: str | None, plane: str | None) -> Area:
    from isthmus.cooperation.geo import WORLD, Area

    if area is not None and plane is not None:
        raise typer.BadParameter("give --area or --plane, not both")
    if area is None and plane is None:
        return WORLD
    hint, text = ("--area", area) if area is not None else ("--plane", plane)
    try:
        west, south, east, north = _numbers(text or "", ("W", "S", "E", "N"))
        return Area(west, south, east, north, is_plane=plane is not None)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _shape(
    area: Area, rectangle: str | None, circle: str | None, geojson: Path | None
) -> tuple[Shape, str]:
    """The one that is asked for, and the option that says so."""
    from isthmus.cooperation.geo import Circle, Polygons, Rectangle

    given = {"--rectangle": rectangle, "--circle": circle, "--geojson": geojson}
    hints = [hint for hint, value in given.items() if value is not None]
    if len(hints) != 1:
        raise typer.BadParameter(
            f"give exactly one of {', '.join(given)}, not {' and '.join(hints) or 'none'}"
        )
    (hint,) = hints
    try:
        if rectangle is not None:
            corners = ("X", "Y", "X", "Y") if area.is_plane else ("S", "W", "N", "E")
            a, b, c, d = _numbers(rectangle, corners)
            return Rectangle((a, b), (c, d)), hint
        if circle is not None:
            names = ("X", "Y", "RADIUS") if area.is_plane else ("LAT", "LON", "METERS")
            a, b, radius = _numbers(circle, names)
            return Circle((a, b), radius), hint
        assert geojson is not None
        try:
            return Polygons.from_geojson(geojson.read_bytes()), hint
        except OSError as error:
            raise ValueError(str(error.strerror)) from None
    except ValueError as error:
        problem = str(error) if geojson is None else f"{geojson}: {error}"
        raise typer.BadParameter(problem, param_hint=hint) from None


def _numbers(text: str, names: tuple[str, ...]) -> list[float]:
    parts = text.split(",")
    if len(parts) != len(names):
        raise ValueError(f"{text!r}: {len(parts)} numbers; {','.join(names)} is expected")
    return [_number(part, name) for part, name in zip(parts, names, strict=True)]


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{what}: {text!r} is not a number") from None


def _length(length: float, area: Area) -> str:
    if area.is_plane:
        return f"{length:.6g}"
    return f"{length / 1000:.4g} km" if length >= 1000 else f"{length:.4g} m"


geo.command()(split)
geo.command()(merge)
