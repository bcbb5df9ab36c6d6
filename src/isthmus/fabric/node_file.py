"""Writing a node's file, as its operator would, for the nodes of a fabric."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.config.files import FabricConfig, FabricNode

__all__ = ["node_file", "toml"]


def node_file(
    node: FabricNode,
    listen: Mapping[str, Address],
    url: BrokerUrl,
    fabric: FabricConfig,
    *,
    peers: Sequence[Address] = (),
    advertise: Address | None = None,
    state_dir: Path | None = None,
    login: tuple[str, str | None] | None = None,
) -> str:
    """The file of one `node` of `fabric`.

    `advertise` is where other nodes dial it, if not where it listens.  `login` is what a broker
    that the fabric started asks for; of any other, the fabric's file says.
    """
    tables: dict[str, Mapping[str, object]] = {
        "node": {
            "id": node.id,
            **({"advertise": str(advertise)} if advertise else {}),
            **({"state_dir": state_dir} if state_dir else {}),
        },
        "listen": {name: str(address) for name, address in listen.items()},
        "broker": {
            "url": str(url),
            **({"source": node.source} if node.source != "clients" else {}),
            **_login(node, login),
        },
        "link": _set_values(fabric.link),
        **({"discovery": _discovery(fabric)} if fabric.discovery.is_on else {}),
        "cooperation": {
            "algorithm": fabric.cooperation.algorithm,
            **fabric.cooperation.model_dump(exclude_unset=True),
        },
        "limits": fabric.limits.model_dump(),
        "log": fabric.log.model_dump(),
    }
    lines = [line for name, table in tables.items() for line in _table(f"[{name}]", table)]
    for topic_filter in node.interest:
        lines += _table("[[interest]]", {"filter": topic_filter})
    for address in peers:
        lines += _table("[[peer]]", {"address": str(address)})
    return "\n".join(lines)


def _discovery(fabric: FabricConfig) -> dict[str, object]:
    table = fabric.discovery.of_nodes()
    return {
        "group": str(table.group),
        "interface": table.interface,
        "ttl": table.ttl,
        "every_s": table.every_s,
    }


def _login(node: FabricNode, login: tuple[str, str | None] | None) -> dict[str, object]:
    if login is not None:
        values: dict[str, object] = {"username": login[0], "password": login[1]}
    else:
        values = {
            "username": node.username,
            "password": node.password,
            "password_file": node.password_file,
        }
    return {name: value for name, value in values.items() if value is not None}


def _set_values(section: BaseModel) -> dict[str, object]:
    """The keys that have a value; paths as they are, for `toml` to make absolute."""
    values: dict[str, object] = {}
    for name in type(section).model_fields:
        value: object = getattr(section, name)
        if isinstance(value, BaseModel):
            value = _set_values(value)
        if value is not None and value != {}:
            values[name] = value
    return values


def _table(header: str, table: Mapping[str, object]) -> list[str]:
    return [header, *(f"{_key(name)} = {toml(value)}" for name, value in table.items()), ""]


def _key(name: str) -> str:
    return toml(name)


def toml(value: object) -> str:
    """A value as it stands in a file, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(str(k))} = {toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Path):
        return toml(str(value.absolute()))
    if isinstance(value, str):
        # A JSON string is a TOML one, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)  # numbers, also inf and nan; dates and times
