"""On which line of a TOML text a key stands, so that a mistake can be pointed at.

`tomllib` gives values without positions.  This scan reads headers and ``key =`` starts of lines
only; it is used on text that `tomllib` has already accepted, so it need not judge anything.
Keys inside an inline table have the line of the key that holds the table.  Text inside
multi-line strings is passed over.
"""

from __future__ import annotations

import re

__all__ = ["KeyLines"]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"^\s*(\[\[?)\s*({_DOTTED})\s*\]\]?")
_KEY = re.compile(rf"^\s*({_DOTTED})\s*=")
_MULTILINE = re.compile(r'"""|' + r"'''")

Path = tuple[str | int, ...]


class KeyLines:
    """The line of every key and table of one TOML text."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        table: Path = ()
        closing: str | None = None
        for number, line in enumerate(text.splitlines(), 1):
            if closing is not None:
                closing = None if closing in line else closing
                continue
            if header := _HEADER.match(line):
                table = self._table(header[1] == "[[", _parts(header[2]))
                self._add(table, number)
            elif key := _KEY.match(line):
                self._add(table + _parts(key[1]), number)
                closing = _left_open(line[key.end() :])

    def find(self, key: Path) -> int | None:
        """The line of `key`, or of the nearest table that holds it; None if there is none."""
        while key:
            if (line := self._lines.get(key)) is not None:
                return line
            key = key[:-1]
        return None

    def _table(self, is_array: bool, parts: tuple[str, ...]) -> Path:
        """The header's path with the index of every array of tables it goes through."""
        path: Path = ()
        for position, part in enumerate(parts):
            path += (part,)
            if is_array and position == len(parts) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path += (self._counts[path] - 1,)
        return path

    def _add(self, path: Path, number: int) -> None:
        for end in range(1, len(path) + 1):
            self._lines.setdefault(path[:end], number)


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


def _left_open(value: str) -> str | None:
    """The quotes that must still close a multi-line string begun in `value`."""
    opened: str | None = None
    for quotes in _MULTILINE.findall(value):
        if opened is None:
            opened = quotes
        elif quotes == opened:
            opened = None
    return opened
