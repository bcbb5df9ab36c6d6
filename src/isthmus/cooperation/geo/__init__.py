"""Topics with a place, ``d1/d2/…/dk/rest``: cells, shapes, filters (Geo paper, section II.A)."""

from isthmus.cooperation.geo.area import WORLD, Area, Bounds, Position
from isthmus.cooperation.geo.cell_set import CellSet
from isthmus.cooperation.geo.covering import number_of_filters, smallest_filters
from isthmus.cooperation.geo.following import Change, Following
from isthmus.cooperation.geo.geojson import Polygons
from isthmus.cooperation.geo.shapes import Circle, Rectangle, Shape
from isthmus.cooperation.geo.zorder import MAX_DIGITS, check_cell, children, parent

__all__ = [
    "MAX_DIGITS",
    "WORLD",
    "Area",
    "Bounds",
    "CellSet",
    "Change",
    "Circle",
    "Following",
    "Polygons",
    "Position",
    "Rectangle",
    "Shape",
    "check_cell",
    "children",
    "number_of_filters",
    "parent",
    "smallest_filters",
]
