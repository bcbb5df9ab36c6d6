"""A node's status as tables on a terminal, for ``isthmus status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isthmus.fabric.view import fabric_tables, printable

__all__ = ["status_tables"]


def status_tables(status: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a table per section, and one per list of things (clients) inside a section.

    What a newer node adds is shown too: nothing here depends on the names, but for the fabric.
    """
    console = console or Console()
    for section, content in status.items():
        if section == "fabric" and isinstance(content, Mapping):
            fabric_tables(status, console)
            continue
        values = content if isinstance(content, Mapping) else {section: content}
        lists = {name: value for name, value in values.items() if _is_listing(value)}
        table = _table(section, show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in values.items():
            if name not in lists:
                table.add_row(str(name), _cell(value, grouped=name != "pid"))
        if table.row_count:
            console.print(table)
        for name, rows in lists.items():
            console.print(_listing(f"{section}: {name}", rows))


def _table(title: str, *, show_header: bool) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", show_header=show_header)


def _is_listing(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _listing(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(title, show_header=True)
    columns = dict.fromkeys(n for row in rows for n, value in row.items() if value is not None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    return table


def _cell(value: object, *, grouped: bool = True) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and grouped:
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_cell(inner)}" for name, inner in value.items())
    return escape(printable(value))
