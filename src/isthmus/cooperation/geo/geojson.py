"""Polygons out of GeoJSON (RFC 7946): Polygon, MultiPolygon, and what wraps them.

Positions are ``[longitude, latitude]`` there, or ``[x, y]`` in a plane; what follows is not looked
at.  A ring is closed: its last position is its first.  A polygon over the date line comes in two
parts, as the RFC wants it (section 3.1.9).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from isthmus.cooperation.geo.area import Area
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.polygons import Ring, polygon
from isthmus.cooperation.geo.quadtree import EMPTY, Forest
from isthmus.cooperation.geo.zorder import check_digits

__all__ = ["Polygons"]


@dataclass(frozen=True, slots=True)
class Polygons:
    """One or several polygons, each an outer ring and holes."""

    polygons: tuple[tuple[Ring, ...], ...]

    @classmethod
    def from_geojson(cls, value: str | bytes | dict[str, Any]) -> Polygons:
        """Of a text, or of what it was read into."""
        if isinstance(value, (str, bytes)):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
                ) from None
            except UnicodeDecodeError as error:
                raise ValueError(f"not JSON: byte {error.start} is not UTF-8") from None
            except RecursionError:
                raise ValueError("not GeoJSON: nested too deeply") from None
        return cls(tuple(_polygons(value, "")))

    def rings(self) -> Iterator[Sequence[tuple[float, float]]]:
        """All rings, as longitude and latitude or x and y."""
        for parts in self.polygons:
            for ring in parts:
                yield ring.points

    def cells(self, area: Area, precision: int) -> CellSet:
        """The cells that share area with one of them."""
        check_digits(precision, "precision")
        cells = CellSet(precision, Forest(), EMPTY)
        for parts in self.polygons:
            cells |= polygon(area, parts, precision)
        return cells


def _polygons(value: object, where: str) -> Iterator[tuple[Ring, ...]]:
    at = f"{where}: " if where else ""
    if not isinstance(value, dict):
        raise ValueError(f"{at}an object with a type is expected, not {_shown(value)}")
    inside = f"{where}." if where else ""
    match value.get("type"):
        case "Polygon":
            yield _polygon(_list(value, "coordinates", inside), f"{inside}coordinates")
        case "MultiPolygon":
            for number, each in enumerate(_list(value, "coordinates", inside)):
                place = f"{inside}coordinates[{number}]"
                if not isinstance(each, list):
                    raise ValueError(f"{place}: an array of rings is expected, not {_shown(each)}")
                yield _polygon(each, place)
        case "Feature":
            yield from _polygons(value.get("geometry"), f"{inside}geometry")
        case "FeatureCollection":
            for number, each in enumerate(_list(value, "features", inside)):
                yield from _polygons(each, f"{inside}features[{number}]")
        case other:
            raise ValueError(
                f"{inside}type: {_shown(other)} is not one of Polygon, MultiPolygon, Feature and "
                "FeatureCollection"
            )


def _list(value: dict[str, Any], key: str, inside: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list) or not found:
        what = "is missing" if key not in value else f"{_shown(found)} is no array with members"
        raise ValueError(f"{inside}{key}: {what}")
    return found


def _polygon(value: list[Any], where: str) -> tuple[Ring, ...]:
    if not value:
        raise ValueError(f"{where}: no ring")
    return tuple(_ring(ring, f"{where}[{number}]") for number, ring in enumerate(value))


def _ring(value: object, where: str) -> Ring:
    if not isinstance(value, list):
        raise ValueError(f"{where}: an array of positions is expected, not {_shown(value)}")
    points = tuple(_position(each, f"{where}[{place}]") for place, each in enumerate(value))
    if len(points) < 4:
        raise ValueError(
            f"{where}: {len(points)} positions; a ring has 4 or more, the last the first"
        )
    if points[0] != points[-1]:
        raise ValueError(
            f"{where}[{len(points) - 1}]: the ring is not closed: it ends at {list(points[-1])} "
            f"and began at {list(points[0])}"
        )
    return Ring(points, where)


def _position(value: object, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError(
            f"{where}: a position [longitude, latitude] is expected, not {_shown(value)}"
        )
    for place, number in enumerate(value[:2]):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError(f"{where}[{place}]: a number is expected, not {_shown(number)}")
        if (isinstance(number, int) and abs(number) > 1 << 1000) or not isfinite(number):
            raise ValueError(f"{where}[{place}]: {_shown(number)} is not a finite number")
    return value[0], value[1]


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    shown = repr(value) if isinstance(value, str) else str(json.dumps(value))
    return shown if len(shown) <= 60 else shown[:57] + "..."
