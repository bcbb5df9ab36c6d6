"""``isthmus geo split|merge``; what they do is in :mod:`isthmus.fabric.geo_moves`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.config.addresses import Address
from isthmus.errors import AdminError

__all__ = ["merge", "split"]

DEFAULT_ADMIN = "127.0.0.1:9883"
TIMEOUT_S = 120.0

Cell = Annotated[str, typer.Argument(metavar="CELL", help="Of the gateway's table, like 1/0.")]
Node = Annotated[
    list[Path] | None,
    typer.Option(metavar="NODE.toml", help="A gateway's file; once for each before the brokers."),
]
Admin = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help=f"A gateway's admin address [{DEFAULT_ADMIN}]."),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="For each of the steps.")
]
NoCopy = Annotated[
    bool,
    typer.Option("--no-copy", help="Leave what is retained: another gateway has moved it already."),
]


def split(
    cell: Cell,
    brokers: Annotated[
        list[str],
        typer.Argument(metavar="A B C D", help="Who gets its quarters 0, 1, 2 and 3."),
    ],
    *,
    node: Node = None,
    admin: Admin = None,
    timeout_s: Timeout = TIMEOUT_S,
    no_copy: NoCopy = False,
) -> None:
    """Have four brokers take over the quarters of a broker's cell, while clients use it.

    What is retained, subscribed and kept for clients that are away moves with it; for a moment what
    is published there waits.  Name all gateways that stand before these brokers.
    """
    if len(brokers) != 4:
        raise typer.BadParameter(f"{len(brokers)} brokers for four quarters", param_hint="A B C D")
    _change({"split": cell, "brokers": brokers}, node, admin, timeout_s, copies=not no_copy)


def merge(
    cell: Cell,
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Who gets all of it.")],
    *,
    node: Node = None,
    admin: Admin = None,
    timeout_s: Timeout = TIMEOUT_S,
    no_copy: NoCopy = False,
) -> None:
    """Have one broker take over all that lies in a cell; also if it is one broker's already."""
    _change({"merge": cell, "broker": broker}, node, admin, timeout_s, copies=not no_copy)


def _change(
    request: dict[str, Any],
    node: list[Path] | None,
    admin: list[str] | None,
    timeout_s: float,
    *,
    copies: bool,
) -> None:
    from isthmus.fabric.geo_moves import change_cells

    addresses = _addresses(node or [], admin or [])
    answer = change_cells(
        addresses,
        request,
        timeout_s=timeout_s,
        progress=lambda line: typer.echo(line, err=True),
        copies=copies,
    )
    move, algorithm = answer["move"] or {}, answer["algorithm"]
    typer.echo(
        f"done: {move.get('retained_copied', 0)} retained messages copied, "
        f"{move.get('subscriptions', 0)} subscriptions taken along, "
        f"{move.get('sessions_away', 0)} of clients that are away"
    )
    if left := move.get("sessions_not_moved"):
        typer.echo(
            "these are away, and get nothing of what is published there until they are back: "
            + ", ".join(left)
        )
    typer.echo("\nThe gateway's file should say from now on:\n\n[cooperation.cells]")
    for broker, cells in algorithm["cells"].items():
        typer.echo(f"{broker} = {json.dumps(cells)}")


def _addresses(nodes: list[Path], admins: list[str]) -> list[Address]:
    from isthmus.config.files import load_node_config

    found = []
    for file in nodes:
        address = load_node_config(file).listen.admin
        if address is None:
            raise AdminError(f"{file} has no [listen] admin, so its node cannot be asked")
        found.append(address)
    for text in admins or ([] if nodes else [DEFAULT_ADMIN]):
        try:
            found.append(Address.parse(text))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--admin") from None
    return found
