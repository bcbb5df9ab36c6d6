"""The reference pages list every column, in order, with its type."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from isthmus.pipeline.count.partials import REASONS
from isthmus.pipeline.count.tables import INDEXES
from isthmus.pipeline.log.schema import SCHEMA_VERSION, TABLES

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
LOG_SCHEMA = (REFERENCE / "log-schema.md").read_text()
INDEX_PAGE = (REFERENCE / "indexes.md").read_text()


def documented(page: str, table: str) -> list[tuple[str, str]]:
    """Names and types of the columns under the heading of `table`."""
    section = page.split(f"## `{table}`\n")[1].split("\n## ", maxsplit=1)[0]
    rows = re.findall(r"^\| (`[a-z_0-9`, ]+`) \| ([^|]*) \|", section.split("\n\n| table")[0], re.M)
    return [(name, kind) for names, kind in rows for name in re.findall(r"`(\w+)`", names)]


def word(column: pa.Field, *, sized: bool) -> str:
    kind = column.type
    if pa.types.is_map(kind):
        return "map of strings"
    if pa.types.is_list(kind):
        return "list of strings" if pa.types.is_string(kind.value_type) else "list"
    if not sized and pa.types.is_integer(kind):
        kind = "integer"
    shown = {"double": "float", "bool": "boolean"}.get(str(kind), str(kind))
    return shown + (", may be null" if column.nullable else "")


@pytest.mark.parametrize("table", list(TABLES))
def test_the_page_of_the_log_has_every_column(table: str) -> None:
    columns = TABLES[table]  # type: ignore[index]
    assert documented(LOG_SCHEMA, table) == [
        (column.name, word(column, sized=True)) for column in columns
    ]
    assert f"This is schema version {SCHEMA_VERSION}" in LOG_SCHEMA


@pytest.mark.parametrize("table", list(INDEXES))
def test_the_page_of_the_indexes_has_every_column(table: str) -> None:
    columns = INDEXES[table]
    assert documented(INDEX_PAGE, table) == [
        (column.name, word(column, sized=False)) for column in columns
    ]


def test_the_page_of_the_indexes_has_every_reason() -> None:
    for reason in REASONS:
        assert f"`{reason}`" in INDEX_PAGE
