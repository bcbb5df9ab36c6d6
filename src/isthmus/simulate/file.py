"""What to simulate: a TOML file (``docs/howto/simulate-a-fabric.md``), or a command's options.

Mistakes are reported as in every other file of ours: all at once, each with file, line, key and
what would be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from isthmus.config.faults import Crash, Cut, fault_contradictions
from isthmus.config.fields import Qos, Seconds, Section
from isthmus.config.files import Cooperation, load_file, located, option_error
from isthmus.config.mistakes import (
    Loc,
    describe,
    dotted,
    key_of,
    known_names,
    raw_table,
)
from isthmus.cooperation.registry import check_options
from isthmus.errors import ConfigError, ConfigMistake
from isthmus.pipeline.log.payload import SIZE

__all__ = ["Simulation", "load_simulation", "node_name", "simulation_of"]

Shape = Literal["tree", "graph", "line", "ring", "star", "mesh", "none"]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

MOST_LINKS: Final = 1_000_000
_OPTIONS: Final = {"duration_s": "--duration", "settle_s": "--settle"}
"""Those that are not called like their keys."""


def node_name(number: int) -> str:
    """Of the node that stands at that place of the shape, counted from 0: `n1`, `n2`, …"""
    return f"n{number + 1}"


class Overview(Section):
    """``[simulation]``: the fabric and how long it is watched."""

    nodes: int = Field(default=10, ge=1, le=100_000, examples=[10])
    topology: Shape = Field(default="tree", examples=["tree"])
    links: int | None = Field(default=None, ge=0, le=MOST_LINKS, examples=[30])
    """How many a ``graph`` has; twice the nodes if not given."""
    seed: int = Field(default=1, ge=0, examples=[1])
    duration_s: Seconds = Field(default=10.0, gt=0, le=86_400, examples=[10.0])
    """Virtual seconds from the first message on."""
    settle_s: Seconds | None = Field(default=None, gt=0, le=86_400, examples=[30.0])
    """How long to wait before and after; none: until nothing happens by itself."""

    @property
    def graph_links(self) -> int:
        most = self.nodes * (self.nodes - 1) // 2
        return min(2 * self.nodes, most) if self.links is None else self.links


class Load(Section):
    """``[load]``: publisher and subscriber `i` are of topic `i` mod `topics`, at random nodes."""

    topics: int = Field(default=10, ge=1, le=10_000_000, examples=[10])
    publishers: int = Field(default=10, ge=0, le=1_000_000, examples=[10])
    subscribers: int = Field(default=10, ge=0, le=1_000_000, examples=[10])
    interval_ms: Seconds = Field(default=1000.0, ge=0.001, le=3_600_000, examples=[1000.0])
    """Between two messages of one publisher."""
    qos: Qos = Field(default=0, examples=[0])
    payload_bytes: int = Field(default=SIZE, ge=SIZE, le=1_048_576, examples=[SIZE])


class Wires(Section):
    """``[network]``: what lies between two nodes."""

    delay_ms: Seconds = Field(default=5.0, ge=0, le=60_000, examples=[5.0])
    """One way."""
    bytes_per_s: Seconds = Field(default=0.0, ge=0, le=1e12, examples=[1e6])
    """0: no limit."""
    discovery: bool = Field(default=False, examples=[True])
    """Whether nodes announce themselves to all others, by datagrams."""
    datagram_loss: Share = Field(default=0.0, examples=[0.3])


class Simulation(Section):
    """The whole file."""

    simulation: Overview = Field(default_factory=Overview)
    cooperation: Cooperation = Field(default_factory=Cooperation)
    load: Load = Field(default_factory=Load)
    network: Wires = Field(default_factory=Wires)
    cut: Annotated[tuple[Cut, ...], Field(strict=False)] = ()
    crash: Annotated[tuple[Crash, ...], Field(strict=False)] = ()


def load_simulation(path: Path) -> Simulation:
    """Read and check a file; raises `ConfigError` with every mistake."""
    read = load_file(path, Simulation, _contradictions)
    try:
        check_options(read.cooperation.algorithm, read.cooperation.options)
    except ValueError as error:
        raise located(option_error(error), path) from None
    return read


def simulation_of(options: Mapping[str, Mapping[str, Any]], base: Simulation) -> Simulation:
    """`base`, with other values for keys of its tables; raises `ConfigError` with every mistake."""
    data = base.model_dump(mode="json")
    given: dict[Loc, str] = {}
    for table, values in options.items():
        for key, value in values.items():
            if value is not None:
                data[table][key] = value
                given[table, key] = _OPTIONS.get(key, "--" + key.replace("_", "-"))
    problems: dict[Loc, str] = {}
    found: Simulation | None = None
    try:
        found = Simulation.model_validate(data)
        check_options(found.cooperation.algorithm, found.cooperation.options)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            loc = key_of(data, item["loc"])
            problems.setdefault(loc, describe(Simulation, loc, item))
    except ValueError as error:
        problems["cooperation",] = str(error)
    for loc, problem in _contradictions(data):
        problems.setdefault(loc, problem)
    if found is None or problems:
        raise ConfigError(
            [
                ConfigMistake("isthmus simulate", given.get(loc, dotted(loc)), problem)
                for loc, problem in problems.items()
            ]
        )
    return found


def _contradictions(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """What is wrong in several keys together."""
    shape = raw_table(data, "simulation")
    nodes, links = shape.get("nodes", 10), shape.get("links")
    if not isinstance(nodes, int) or nodes < 1:
        return
    if isinstance(links, int):
        most = nodes * (nodes - 1) // 2
        if shape.get("topology") != "graph":
            yield ("simulation", "links"), 'is for topology = "graph" alone; leave it out'
        elif not nodes - 1 <= links <= most:
            yield (
                ("simulation", "links"),
                f"{links} links cannot join {nodes} nodes, each pair once; "
                f"write {nodes - 1} to {most}",
            )
    if shape.get("topology") == "mesh" and nodes * (nodes - 1) // 2 > MOST_LINKS:
        yield (
            ("simulation", "nodes"),
            f"a mesh of {nodes} nodes has over {MOST_LINKS:,} links; write fewer nodes",
        )

    def no_node(name: str) -> str:
        return "" if _is_node(name, nodes) else _no_node(name, nodes)

    yield from fault_contradictions(data, no_node, shape.get("duration_s", 10.0))


def _is_node(name: str, nodes: int) -> bool:
    number = name.removeprefix("n")
    return (
        len(number) <= len(str(nodes))
        and number.isascii()
        and number.isdigit()
        and 1 <= int(number) <= nodes
        and name == node_name(int(number) - 1)
    )


def _no_node(name: str, nodes: int) -> str:
    first = [node_name(number) for number in range(min(nodes, 3))]
    more = [f"… {node_name(nodes - 1)}"] if nodes > 3 else []
    return f'"{name}" is no node{known_names(name, first + more)}'
