"""A picture of cells and the shape that they are for; needs matplotlib."""

from __future__ import annotations

from math import asin, atan2, cos, degrees, pi, radians, sin
from pathlib import Path

import matplotlib as mpl
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patches import Rectangle as Box

from isthmus.cooperation.geo import Area, CellSet, Circle, Polygons, Rectangle, Shape
from isthmus.cooperation.geo.area import EARTH_RADIUS_M

__all__ = ["draw"]

Line = list[tuple[float, float]]


def draw(area: Area, shape: Shape, cells: CellSet, file: Path) -> None:
    """Draw the largest cells that make up `cells`, and the border of the shape."""
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.add_subplot()
    boxes: list[Patch] = []
    for prefix in cells.prefixes():
        west, south, east, north = (
            area.bounds(prefix) if prefix else (area.west, area.south, area.east, area.north)
        )
        boxes.append(Box((west, south), east - west, north - south))
    axes.add_collection(
        PatchCollection(boxes, facecolor="#9ecae1", edgecolor="#3182bd", linewidth=0.4)
    )
    for line in _border(area, shape):
        axes.plot([x for x, _ in line], [y for _, y in line], color="#d62728", linewidth=1.2)
    axes.autoscale_view()
    axes.set_aspect(
        "equal" if area.is_plane else 1 / max(cos(radians(_middle(axes.get_ylim()))), 0.1)
    )
    axes.set_xlabel("x" if area.is_plane else "longitude")
    axes.set_ylabel("y" if area.is_plane else "latitude")
    axes.set_title(f"{len(cells)} cells with {cells.precision} digits")
    with mpl.rc_context({"svg.hashsalt": "isthmus"}):
        figure.savefig(file, dpi=100)


def _middle(limits: tuple[float, float]) -> float:
    return (max(limits[0], -90) + min(limits[1], 90)) / 2


def _border(area: Area, shape: Shape) -> list[Line]:
    if isinstance(shape, Polygons):
        return [list(ring) for ring in shape.rings()]
    if isinstance(shape, Rectangle):
        west, south = area.check(shape.south_west)
        east, north = area.check(shape.north_east)
        spans = [(west, east)] if west <= east else [(west, area.east), (area.west, east)]
        return [[(w, south), (e, south), (e, north), (w, north), (w, south)] for w, e in spans]
    assert isinstance(shape, Circle)
    x, y = area.check(shape.center)
    turns = [2 * pi * step / 360 for step in range(361)]
    if area.is_plane:
        return [[(x + shape.radius * cos(t), y + shape.radius * sin(t)) for t in turns]]
    points = [_away(x, y, shape.radius / EARTH_RADIUS_M, turn) for turn in turns]
    lines: list[Line] = [[]]
    for point in points:
        if lines[-1] and abs(point[0] - lines[-1][-1][0]) > 180:  # over the date line
            lines.append([])
        lines[-1].append(point)
    return lines


def _away(longitude: float, latitude: float, angle: float, bearing: float) -> tuple[float, float]:
    """The point so far away in that direction."""
    here = radians(latitude)
    there = asin(sin(here) * cos(angle) + cos(here) * sin(angle) * cos(bearing))
    turned = atan2(sin(bearing) * sin(angle) * cos(here), cos(angle) - sin(here) * sin(there))
    return (longitude + degrees(turned) + 180) % 360 - 180, degrees(there)
