"""The wording of configuration mistakes, and the mistakes that lie between keys.

`describe` turns one error of the models in :mod:`isthmus.config` into a sentence about the file:
what was wrong and what would be right.  The two ``…_contradictions`` look at the raw tables,
whose values may be of any type, and pass over what the fields themselves already report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from isthmus.addresses import Address, BrokerUrl
from isthmus.config import FabricNode, Limits, Listen

__all__ = ["Loc", "describe", "dotted", "fabric_contradictions", "key_of", "node_contradictions"]

Loc = tuple[str | int, ...]


def key_of(data: Any, loc: Loc) -> Loc:
    """Cut what pydantic adds to a location that is not a key of the file."""
    key: Loc = ()
    for part in loc:
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


def _section(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model of the table that holds the key `loc`."""
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if inner == tuple[FabricNode, ...]:
            inner = FabricNode
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def describe(model: type[BaseModel], loc: Loc, item: Mapping[str, Any]) -> str:
    """What was wrong and what would be right, in the words of the file rather than Python's."""
    section = _section(model, loc)
    fields = section.model_fields if section else {}
    name = str(loc[-1]) if loc else ""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(name, list(fields))
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
    if kind in ("model_type", "model_attributes_type", "tuple_type"):
        header = f"[{dotted(loc)}]" if kind != "tuple_type" else f"[[{dotted(loc)}]]"
        return f"must be a table, not {got}; begin it with {header} on a line of its own"
    wanted = str(item["msg"]).removeprefix("Input should be ")
    wanted = wanted.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return f"must be {wanted}, not {got}{remedy}"


def _unknown_key(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def _toml(value: object) -> str:
    """A value as it would stand in the file, shortened for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    elif isinstance(value, Mapping):
        return "a table"
    elif isinstance(value, list):
        return "a list"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _table(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = data.get(key)
        data = value if isinstance(value, Mapping) else {}
    return data


def _parsed(value: object) -> Address | None:
    try:
        return value if isinstance(value, Address) else Address.parse(str(value))
    except ValueError:
        return None  # already reported by the field itself


def _same_address(places: list[tuple[Loc, object]]) -> Iterator[tuple[Loc, str]]:
    seen: dict[Address, Loc] = {}
    for loc, value in places:
        address = _parsed(value)
        if address is None or address.port == 0:
            continue
        if address in seen:
            first = dotted(seen[address])
            yield loc, f"{address} is already taken by {first}; give each its own port"
        seen.setdefault(address, loc)


def _pending_too_small(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    limits = _table(data, "limits")
    packet = limits.get("packet_bytes", Limits().packet_bytes)
    pending = limits.get("pending_bytes", Limits().pending_bytes)
    if isinstance(packet, int) and isinstance(pending, int) and pending < packet:
        key = "pending_bytes" if "pending_bytes" in limits else "packet_bytes"
        yield (
            ("limits", key),
            f"pending_bytes ({pending}) is smaller than packet_bytes ({packet}), so the longest "
            f"packet could never be received; set pending_bytes to {packet} or more",
        )


def _half_pair(section: Mapping[str, Any], loc: Loc) -> Iterator[tuple[Loc, str]]:
    for one, other in (("cert", "key"), ("key", "cert")):
        if one in section and other not in section:
            yield (*loc, other), f"is required because {dotted((*loc, one))} is set"


def node_contradictions(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    listen, tls = _table(data, "listen"), _table(data, "tls")
    secure = [f"listen.{name}" for name in ("mqtts", "wss") if name in listen]
    if secure and "cert" not in tls and "key" not in tls:
        verb = "is" if len(secure) == 1 else "are"
        why = f"is required because {' and '.join(secure)} {verb} set; for example"
        yield ("tls", "cert"), f'{why} cert = "node.crt"'
        yield ("tls", "key"), f'{why} key = "node.key"'
    yield from _half_pair(tls, ("tls",))
    if tls.get("require_client_cert") is True and "client_ca" not in tls:
        yield (
            ("tls", "client_ca"),
            "is required because tls.require_client_cert is true; name the PEM file of the "
            "authorities whose client certificates are accepted",
        )
    yield from _broker_contradictions(data)
    places = [(("listen", name), value) for name, value in listen.items()]
    default = Listen().mqtt
    if "mqtt" not in listen and default is not None:
        places.insert(0, (("listen", "mqtt"), default))
    yield from _same_address([*places])
    yield from _pending_too_small(data)


def _broker_contradictions(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    broker = _table(data, "broker")
    broker_tls = _table(broker, "tls")
    yield from _half_pair(broker_tls, ("broker", "tls"))
    try:
        url = BrokerUrl.parse(str(broker.get("url")))
    except ValueError:
        return
    if broker_tls and url.scheme != "mqtts":
        yield (
            ("broker", "tls"),
            f"has no effect with {url}; write mqtts://… in broker.url or remove the table",
        )
    for name, value in {"mqtt": Listen().mqtt, **_table(data, "listen")}.items():
        if url.scheme != "embedded" and _parsed(value) == Address(url.host, url.port):
            yield (
                ("broker", "url"),
                f"{url} is this node's own listen.{name}; give the broker and the node "
                "different ports",
            )


def fabric_contradictions(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    tables = data.get("node")
    if tables == []:
        yield ("node",), "a fabric has at least one node; begin each with [[node]]"
    places: list[tuple[Loc, object]] = []
    first: dict[str, int] = {}
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if not isinstance(table, Mapping):
            continue
        identity = table.get("id")
        if isinstance(identity, str):
            if identity in first:
                yield (
                    ("node", index, "id"),
                    f'"{identity}" is already the id of node[{first[identity]}]; ids are unique',
                )
            first.setdefault(identity, index)
        places += [(("node", index, name), table.get(name)) for name in ("mqtt", "ws", "admin")]
    yield from _same_address(places)
    yield from _pending_too_small(data)
