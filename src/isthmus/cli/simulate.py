"""``isthmus simulate``; what it does is in :mod:`isthmus.simulate`."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.simulate.plan import Plan

__all__ = ["simulate"]

NEEDED = ("numpy", "pyarrow")
OF_SCENARIOS = ("algorithm", "seed", "duration_s", "interval_ms", "settle_s")
"""The options that change a scenario."""

Options = dict[str, dict[str, Any]]


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.toml",
            help="A simulation's file or a scenario's; options count before it.",
        ),
    ] = None,
    *,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes (10).")] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="tree, graph, line, ring, star, mesh, none (tree)."),
    ] = None,
    links: Annotated[
        int | None, typer.Option(metavar="N", help="Links of a graph (twice the nodes).")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="pf, sf, none or a plug-in's (sf).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of all that is random (1).")
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", help="Publish for so long (10)."),
    ] = None,
    topics: Annotated[int | None, typer.Option(metavar="N", help="Topics (10).")] = None,
    publishers: Annotated[
        int | None, typer.Option(metavar="N", help="Clients that publish, at random nodes (10).")
    ] = None,
    subscribers: Annotated[
        int | None, typer.Option(metavar="N", help="Clients that subscribe, likewise (10).")
    ] = None,
    interval_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Between two messages of a publisher (1000)."),
    ] = None,
    qos: Annotated[int | None, typer.Option(metavar="N", help="0, 1 or 2 (0).")] = None,
    payload_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Of every message (32).")
    ] = None,
    delay_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Of every link, one way (5).")
    ] = None,
    settle_s: Annotated[
        float | None,
        typer.Option(
            "--settle",
            metavar="SECONDS",
            help="Wait so long before and after (until nothing happens).",
        ),
    ] = None,
    log: Annotated[Path, typer.Option(metavar="DIR", help="The log; runs are added to it.")] = Path(
        "sim-log"
    ),
    run: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of this run; default: what it is, and the time."),
    ] = None,
) -> None:
    """Run a fabric of production nodes on a virtual clock and record every message and hop.

    A scenario's file is played as `isthmus bench run` plays it, faults included.
    The same options give the same messages on the same ways.  `isthmus bench index DIR` computes
    every index of the log by Spark.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise IsthmusError(
            f"{' and '.join(missing)} not installed; pip install 'isthmus[pipeline]'"
        )
    from isthmus.pipeline.log.run_files import is_run_name
    from isthmus.simulate.command import run_exact

    if run is not None and not is_run_name(run):
        raise typer.BadParameter(
            f"{run!r}: use letters, digits, '.', '_' and '-', no '.' first", param_hint="--run"
        )
    options: Options = {
        "simulation": {
            "nodes": nodes,
            "topology": topology,
            "links": links,
            "seed": seed,
            "duration_s": duration_s,
            "settle_s": settle_s,
        },
        "cooperation": {"algorithm": algorithm},
        "load": {
            "topics": topics,
            "publishers": publishers,
            "subscribers": subscribers,
            "interval_ms": interval_ms,
            "qos": qos,
            "payload_bytes": payload_bytes,
        },
        "network": {"delay_ms": delay_ms},
    }
    plan = _planned(file, options)
    default = plan.name if _is_scenario(file) else f"{plan.algorithm}-{plan.name}"
    run_exact(plan, log, run or f"{default}-{datetime.now(UTC):%Y%m%dT%H%M%S}")


def _planned(file: Path | None, options: Options) -> Plan:
    from isthmus.simulate.file import Simulation, load_simulation, simulation_of
    from isthmus.simulate.plan import planned, planned_scenario

    if file is None or not _is_scenario(file):
        base = Simulation() if file is None else load_simulation(file)
        return planned(simulation_of(options, base))
    from isthmus.bench.scenario import load_scenario

    given = {
        key: value
        for table in options.values()
        for key, value in table.items()
        if value is not None
    }
    if wrong := [key for key in given if key not in OF_SCENARIOS]:
        raise typer.BadParameter(f"{', '.join(wrong)}: {file} says it; change it there")
    interval_ms = given.get("interval_ms")
    try:
        scenario = load_scenario(file, all_started=True).changed(
            algorithm=given.get("algorithm"),
            duration_s=given.get("duration_s"),
            interval_ns=None if interval_ms is None else round(interval_ms * 1e6),
            seed=given.get("seed"),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return planned_scenario(scenario, given.get("settle_s"))


def _is_scenario(file: Path | None) -> bool:
    """Whether it is a scenario's file, or the name of one that ships."""
    if file is None:
        return False
    from isthmus.bench.scenario import shipped
    from isthmus.config.files import is_scenario_file

    return is_scenario_file(file) if file.exists() or file.suffix else file.name in shipped()
