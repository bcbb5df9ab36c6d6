"""The wording of configuration mistakes.

`describe` turns one error of the models in :mod:`isthmus.config.files` into a sentence about the
file: what was wrong and what would be right.  A secret that is wrong is never repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = [
    "Loc",
    "Mistakes",
    "Table",
    "describe",
    "dotted",
    "key_of",
    "known_names",
    "raw_table",
    "raw_tables",
    "same_ids",
    "unknown_key",
]

Loc = tuple[str | int, ...]
Table = Mapping[str, Any]
Mistakes = Iterator[tuple[Loc, str]]

RENAMED = {"sessions": "lanes", "server": "node"}
"""Keys of earlier versions, and what they are called now."""


def key_of(data: Any, loc: Loc) -> Loc:
    """Cut what pydantic adds to a location that is not a key of the file."""
    key: Loc = ()
    for part in loc:
        if isinstance(part, int) and isinstance(data, Mapping):
            continue  # the one table that stands for a list
        key += (part,)
        if isinstance(data, Mapping) and part in data:
            data = data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            break
    return key


def dotted(loc: Loc) -> str:
    """``node[1].id`` for the second ``[[node]]`` table, counted from 0 as in TOML tools."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """By what the file calls them."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _section(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model of the table that holds the key `loc`."""
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        field = _fields(model).get(part)
        inner = field.annotation if field else None
        if isinstance(inner, UnionType):  # a table that may be left out
            inner = next(kind for kind in get_args(inner) if kind is not NoneType)
        if get_origin(inner) is tuple:
            inner = get_args(inner)[0]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def _holds_tables(field: FieldInfo | None) -> bool:
    inner = get_args(field.annotation)[:1] if field else ()
    return bool(inner) and isinstance(inner[0], type) and issubclass(inner[0], BaseModel)


def describe(model: type[BaseModel], loc: Loc, item: Mapping[str, Any]) -> str:
    """What was wrong and what would be right, in the words of the file rather than Python's."""
    section = _section(model, loc)
    fields = _fields(section) if section else {}
    name = str(loc[-1]) if loc else ""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(name, list(fields))
    field = fields.get(name)
    example = field.examples[0] if field and field.examples else None
    remedy = f"; for example {name} = {_toml(example)}" if example is not None else ""
    if kind == "missing":
        return f"is required{remedy}" if remedy else f"the table [{dotted(loc)}] is required"
    if kind == "value_error":
        return str(context["error"])
    got = _toml(item["input"])
    if kind == "string_pattern_mismatch":
        return f"{got} must be 1 to 64 letters, digits, dots, underscores or hyphens{remedy}"
    if kind == "tuple_type" and not _holds_tables(field):
        return f"must be a list, not {got}{remedy}"
    if kind in ("model_type", "model_attributes_type", "tuple_type"):
        header = f"[{dotted(loc)}]" if kind != "tuple_type" else f"[[{dotted(loc)}]]"
        if kind == "tuple_type" and isinstance(item["input"], Mapping):
            return f"there may be several, so begin each with {header}, in double brackets"
        return f"must be a table, not {got}; begin it with {header} on a line of its own"
    if kind in ("too_short", "string_too_short") and context["min_length"] == 1:
        if _holds_tables(field):
            return f"there must be at least one; begin it with [[{dotted(loc)}]]"
        return f"must not be empty{remedy}"
    wanted = str(item["msg"]).removeprefix("Input should be ")
    wanted = wanted.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return f"must be {wanted}, not {got}{remedy}"


def unknown_key(name: str, known: list[str]) -> str:
    """Which key was probably meant, or which there are."""
    import difflib

    if RENAMED.get(name) in known:
        return f"is called {RENAMED[name]!r} now; write that instead"
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def known_names(name: str, known: list[str], nobody: str = "none") -> str:
    """Which one was probably meant, and which there are."""
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{meant}; there are {', '.join(dict.fromkeys(known)) or nobody}"


# ---- tables as they were read, of which nothing is known yet ----


def raw_table(data: Table, *keys: str) -> Table:
    for key in keys:
        value = data.get(key)
        data = value if isinstance(value, Mapping) else {}
    return data


def raw_tables(data: Table, key: str) -> list[tuple[int, Table]]:
    """The tables ``[[key]]``, with their places in the file."""
    value = data.get(key)
    found = enumerate(value if isinstance(value, list) else ())
    return [(index, table) for index, table in found if isinstance(table, Mapping)]


def same_ids(key: str, tables: list[tuple[int, Table]], called: str = "id") -> Mistakes:
    first: dict[str, int] = {}
    for index, table in tables:
        name = table.get(called)
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield (
                (key, index, called),
                f'"{name}" is already the {called} of {key}[{first[name]}]; {called}s are unique',
            )


def _toml(value: object) -> str:
    """A value as it would stand in the file, shortened for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    elif isinstance(value, Mapping):
        return "a table"
    elif isinstance(value, list | tuple):
        if not all(isinstance(item, str) for item in value) or not value:
            return "a list"
        text = f"[{', '.join(_toml(item) for item in value)}]"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
