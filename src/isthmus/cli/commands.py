"""The commands of ``isthmus``, one function each; what they do is in the modules they call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from isthmus import __version__
from isthmus.cli.assignment import assignment
from isthmus.cli.bench import bench, reproduce
from isthmus.cli.geo import geo
from isthmus.cli.simulate import simulate

if TYPE_CHECKING:
    from pydantic import BaseModel

    from isthmus.config.addresses import Address
    from isthmus.config.files import Cooperation

__all__ = ["app"]

DEFAULT_ADMIN = "127.0.0.1:9883"


class _TwoWords(TyperGroup):
    """Also knows commands of two words, beside one that has the first of them as its name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        both = " ".join(args[:2])
        if both in self.commands:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="isthmus",
    cls=_TwoWords,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Joins MQTT brokers of any make into one fabric.\n\n"
        "A node stands between clients and a broker that is left as it is. "
        "Try it: `isthmus up` shows three nodes that find each other, their brokers, sensors and "
        "subscribers on this machine."
    ),
    epilog="Exit codes: 0 as asked; 1 a failure while running; 2 wrong configuration or usage.",
)

peers = typer.Typer(no_args_is_help=True, help="Show or change a running node's neighbors.")
app.add_typer(peers, name="peers")
app.add_typer(bench, name="bench")
app.add_typer(geo, name="geo")
app.add_typer(reproduce, name="reproduce")
app.command()(simulate)
app.command("simulate assignment")(assignment)

NodeFile = Annotated[
    Path | None,
    typer.Argument(metavar="NODE.toml", help="Ask the node that runs with this file."),
]
Admin = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help=f"The node's admin address [{DEFAULT_ADMIN}]."),
]
AsJson = Annotated[bool, typer.Option("--json", help="The raw answer, as JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isthmus {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit."),
    ] = False,
) -> None:
    """Options that come before any command."""


@app.command()
def node(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's file.")],
) -> None:
    """Run one node until SIGTERM or Ctrl-C."""
    from isthmus.cli.main import run_node

    raise typer.Exit(run_node(file))


@app.command()
def up(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FABRIC.toml", help="The fabric's or scenario's file; none: the demo."
        ),
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.1, help="End by itself after this time."),
    ] = None,
) -> None:
    """Start nodes and brokers on this machine; with no file, the demo with live sensors."""
    if file is None:
        from isthmus.demo.run import run_demo

        raise typer.Exit(run_demo(for_s))
    from isthmus.config.files import is_scenario_file, load_fabric_config
    from isthmus.fabric.processes import run_fabric

    if is_scenario_file(file):
        from isthmus.bench.scenario import load_scenario

        scenario = load_scenario(file, all_started=True)
        typer.echo(
            f"The fabric of scenario {scenario.name!r} alone: its load, delays and faults are for "
            "`isthmus bench run` and `isthmus simulate`."
        )
        raise typer.Exit(run_fabric(scenario.fabric, for_s))
    config = load_fabric_config(file)
    _check_algorithm(file, config.cooperation)
    raise typer.Exit(run_fabric(config, for_s))


@app.command()
def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.toml", help="A node's, fabric's, scenario's or simulation's file."
        ),
    ],
) -> None:
    """Say what is wrong in a file and where; if nothing, print the values in effect."""
    from isthmus.config.files import (
        is_fabric_file,
        is_scenario_file,
        is_simulation_file,
        load_fabric_config,
        load_node_config,
    )
    from isthmus.fabric.links import notes

    if is_scenario_file(file):
        from isthmus.bench.scenario import load_scenario

        scenario = load_scenario(file)
        typer.echo(f"ok: {file} is the scenario {scenario.name!r}")
        for note in notes(scenario.fabric, tree=_needs_tree(scenario.cooperation)):
            typer.echo(f"note: {note}")
        typer.echo()
        _print_values(scenario)
    elif is_simulation_file(file):
        from isthmus.simulate.file import load_simulation

        simulation = load_simulation(file)
        typer.echo(f"ok: {file} is a simulation of {simulation.simulation.nodes} node(s)\n")
        _print_values(simulation)
    elif is_fabric_file(file):
        fabric = load_fabric_config(file)
        _check_algorithm(file, fabric.cooperation)
        typer.echo(f"ok: {file} is a fabric of {len(fabric.node)} node(s)")
        for note in notes(fabric, tree=_needs_tree(fabric.cooperation)):
            typer.echo(f"note: {note}")
        typer.echo()
        _print_values(fabric)
    else:
        config = load_node_config(file)
        _check_algorithm(file, config.cooperation, config.broker_names)
        typer.echo(f"ok: {file} is the node {config.node.id!r}\n")
        _print_values(config)


def _needs_tree(cooperation: Cooperation) -> bool:
    from isthmus.cooperation.registry import load

    return load(cooperation.algorithm).topology == "tree"


def _check_algorithm(
    file: Path, cooperation: Cooperation, broker_names: tuple[str, ...] = ()
) -> None:
    """The algorithm's own keys, which the file's model does not know."""
    from isthmus.config.files import located, option_error
    from isthmus.cooperation.registry import check_options

    try:
        check_options(cooperation.algorithm, cooperation.options, broker_names)
    except ValueError as error:
        raise located(option_error(error), file) from None


@app.command()
def status(file: NodeFile = None, admin: Admin = None, as_json: AsJson = False) -> None:
    """What a running node sees: listeners, broker, sessions, links, counters."""
    from isthmus.fabric.admin_client import fetch_status

    answer = fetch_status(_admin_address(file, admin))
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from isthmus.cli.status_view import status_tables

    status_tables(answer)


@peers.command("list")
def peers_list(file: NodeFile = None, admin: Admin = None, as_json: AsJson = False) -> None:
    """Its neighbors: in which state and why, and what to cut where they form a ring."""
    from isthmus.fabric.admin_client import fetch_peers

    answer = fetch_peers(_admin_address(file, admin))
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console

    from isthmus.fabric.view import peers_table

    peers_table(answer, Console())


def _renamed_lanes(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter("is called --lanes now; write that instead")


@peers.command("add")
def peers_add(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The other node's listen.link, HOST:PORT.")
    ],
    file: NodeFile = None,
    admin: Admin = None,
    *,
    lanes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Connections to it (link.lanes).")
    ] = None,
    qos: Annotated[
        int | None, typer.Option(min=0, max=2, help="QoS of the link (link.qos).")
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER", help="What may leave over the link; may be repeated."),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="FILTER", help="What may come over it; may be repeated."),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX/", help="What its topics begin with there.")
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for the link.")
    ] = 5.0,
    sessions: Annotated[str | None, typer.Option(hidden=True, callback=_renamed_lanes)] = None,
) -> None:
    """Link it to one more node, until it is removed or restarted (then its file counts)."""
    from isthmus.fabric.admin_client import add_peer, watch_peer

    where = _admin_address(file, admin)
    rules = {"out": out or None, "in": into or None, "prefix": prefix}
    given = {key: value for key, value in rules.items() if value is not None}
    add_peer(where, address, lanes, qos, given)
    row, answer = watch_peer(where, address, wait_s)
    from isthmus.fabric.view import ring_lines, state_line

    typer.echo(state_line(row) if row else f"{address} was removed meanwhile")
    for line in ring_lines(answer):
        typer.echo(line)
    if row is not None and row["state"] in ("dialing", "down"):
        typer.echo("The node keeps trying; `isthmus peers list` tells how it stands.")


@peers.command("remove")
def peers_remove(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The neighbor's id, or the address it has here.")
    ],
    file: NodeFile = None,
    admin: Admin = None,
) -> None:
    """Cut the link to a neighbor; it is refused until it is added again."""
    from isthmus.fabric.admin_client import remove_peer

    remove_peer(_admin_address(file, admin), name)
    typer.echo(f"{name} is no longer a neighbor")


def _admin_address(file: Path | None, admin: str | None) -> Address:
    from isthmus.config.addresses import Address

    if file is not None and admin is not None:
        raise typer.BadParameter("give a file or --admin, not both")
    if file is None:
        try:
            return Address.parse(admin or DEFAULT_ADMIN)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--admin") from None
    from isthmus.config.files import load_node_config

    address = load_node_config(file).listen.admin
    if address is None or address.port == 0:
        problem = "is not set" if address is None else "lets the system choose the port"
        raise typer.BadParameter(f"[listen] admin in {file} {problem}; use --admin HOST:PORT")
    return address


def _print_values(config: BaseModel) -> None:
    for key, value in _flat(config.model_dump(mode="json", by_alias=True), ""):
        typer.echo(f"{key} = {'(not set)' if value is None else json.dumps(value)}")


def _flat(value: object, key: str) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [pair for name, v in value.items() for pair in _flat(v, f"{key}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [pair for index, v in enumerate(value) for pair in _flat(v, f"{key}[{index}]")]
    return [(key, value)]
