"""``isthmus bench …`` and ``isthmus reproduce …``; what they do is in the modules they call."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.bench.experiment import Machines
    from isthmus.bench.scenario import Scenario
    from isthmus.config.addresses import Address

__all__ = ["bench", "reproduce"]

NEEDED = ("numpy", "pyarrow", "psutil", "pyspark", "matplotlib", "paho")


class _NeedsExtra(TyperGroup):
    """Says what to install rather than which import failed; help needs nothing."""

    def invoke(self, ctx: Any) -> Any:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing and "--help" not in ctx.args:
            raise IsthmusError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
                "pip install 'isthmus[bench]'"
            )
        return super().invoke(ctx)


bench = typer.Typer(
    cls=_NeedsExtra,
    no_args_is_help=True,
    help="Load brokers and fabrics, compute the indexes by Spark, find the limit.",
    epilog=(
        "Needs `pip install 'isthmus\\[bench]'`; Spark needs a Java, 'isthmus\\[java]' brings one."
    ),
)
reproduce = typer.Typer(
    cls=_NeedsExtra, no_args_is_help=True, help="Run a paper's experiments and compare."
)


@bench.callback()
@reproduce.callback()
def _commands() -> None:
    """There may be only one."""


ScenarioFile = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO", help="A scenario's file, or the name of one that ships: single, A-D."
    ),
]
BrokerKind = Annotated[
    str | None, typer.Option(metavar="KIND", help="Use this broker at every node instead.")
]
Algorithm = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use this cooperation algorithm instead.")
]
Duration = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", min=0.5, help="Load for so long instead."),
]
Trim = Annotated[
    float | None,
    typer.Option("--trim", metavar="SECONDS", min=0, help="Cut so much at each end instead."),
]
Writers = Annotated[
    int, typer.Option(min=1, max=64, help="Load processes for t-clients, at each machine.")
]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="HOST:PORT", help="A machine that shares the load; repeat it."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The secret that agents and coordinator share."),
]


@bench.command()
def scenarios() -> None:
    """The scenarios that ship with Isthmus, and where their files are."""
    from isthmus.bench.scenario import load_scenario, shipped

    for name, file in shipped().items():
        typer.echo(f"{name:8}{load_scenario(file).scenario.description:42}{file}")


@bench.command("run")
def run_command(
    scenario: ScenarioFile,
    *,
    log: Annotated[Path, typer.Option(metavar="DIR", help="The log; runs are added to it.")] = Path(
        "bench-log"
    ),
    run: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of this run; default: scenario and time."),
    ] = None,
    interval_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Interval of every publishing t-client instead.")
    ] = None,
    broker: BrokerKind = None,
    algorithm: Algorithm = None,
    duration_s: Duration = None,
    trim_s: Trim = None,
    writers: Writers = 2,
    agents: Agents = None,
    token_file: TokenFile = None,
) -> None:
    """Start what a scenario asks for, load it once, record every message."""
    from isthmus.bench.experiment import one_run

    wanted = _scenario(
        scenario,
        broker=broker,
        algorithm=algorithm,
        duration_s=duration_s,
        trim_s=trim_s,
        interval_ms=interval_ms,
    )
    raise typer.Exit(
        one_run(
            wanted,
            log,
            run or f"{wanted.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}",
            _machines(writers, agents, token_file),
        )
    )


@bench.command()
def index(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="What `bench run` or `simulate` wrote.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the tables go (LOG/indexes).")
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="NAME", help="Only this run; repeat it.")
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="local[*] or spark://HOST:PORT.")
    ] = "local[*]",
    connect: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark Connect instead: sc://HOST:PORT.")
    ] = None,
) -> None:
    """Throughput, latency, loss, order, CPU and memory of every run in a log, by Spark."""
    from isthmus.pipeline.spark.job import run_job

    run_job(log, out or log / "indexes", master=master, connect=connect, runs=runs)


@bench.command()
def limit(
    scenario: ScenarioFile,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Measurements and log; a search in it goes on (limit-SCENARIO)."
        ),
    ] = None,
    first_interval_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Begin here (the scenario's own).")
    ] = None,
    guided: Annotated[
        bool,
        typer.Option("--guided", help="Go where the last measurement points: fewer of them."),
    ] = False,
    broker: BrokerKind = None,
    algorithm: Algorithm = None,
    duration_s: Duration = None,
    trim_s: Trim = None,
    writers: Writers = 2,
    agents: Agents = None,
    token_file: TokenFile = None,
) -> None:
    """Find the highest load that the brokers carry for good, within 5 % (ILDM 5.3)."""
    from isthmus.bench.experiment import search_limit

    wanted = _scenario(
        scenario,
        broker=broker,
        algorithm=algorithm,
        duration_s=duration_s,
        trim_s=trim_s,
        interval_ms=first_interval_ms,
    )
    raise typer.Exit(
        search_limit(
            wanted,
            out or Path(f"limit-{wanted.name}"),
            guided=guided,
            machines=_machines(writers, agents, token_file),
        )
    )


@bench.command()
def agent(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the coordinator connects.")
    ] = "127.0.0.1:7900",
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="The secret that agents and coordinator share.")
    ] = Path("bench.token"),
) -> None:
    """Share the load of a coordinator on another machine, until Ctrl-C."""
    from isthmus.bench.coordinator.agent import serve

    raise typer.Exit(serve(_addresses([listen])[0], token_file))


@reproduce.command()
def ildm(
    quick: Annotated[
        bool, typer.Option("--quick", help="Short measurements: under 10 minutes on 2 cores.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Report, figures and logs; one that was begun goes on."),
    ] = Path("reproduce-ildm"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this experiment, like C-sf; repeat it."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Measure all 20 intervals of step 3, as in the paper.")
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures, their JSON and tables there."),
    ] = None,
) -> None:
    """ILDM (2019) section 6: single brokers, patterns A-D with PF and SF, mixed brokers."""
    from isthmus.reproduce.ildm.command import Settings, run_ildm

    raise typer.Exit(run_ildm(Settings(out, quick, tuple(only or ()), grid, docs)))


@reproduce.command()
def overlays(
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer settings, short: under 10 minutes on 2 cores."),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Report, figures and logs; one that was begun goes on."),
    ] = Path("reproduce-overlays"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only fig6 to fig9, table2, a setting like l50-t60, or l50-t60-single; repeat it.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Begin no further round after so many (--quick: 9)."),
    ] = None,
    broker: Annotated[
        str, typer.Option(metavar="NAME", help="The broker at all five nodes.")
    ] = "mosquitto",
    publishers: Annotated[int, typer.Option(min=1, max=10_000, help="All together.")] = 20,
    subscribers: Annotated[int, typer.Option(min=1, max=10_000, help="All together.")] = 5,
    rate: Annotated[
        float, typer.Option(min=0.01, max=1000, help="Messages/s of each publisher.")
    ] = 1.0,
    stress_rate: Annotated[
        float, typer.Option(min=0.01, max=1000, help="The same in the stress test.")
    ] = 10.0,
    messages: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Of each publisher at the normal rate (the paper: 500)."
        ),
    ] = 3,
    seed: Annotated[int, typer.Option(help="Of clients, lines and kills.")] = 1,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures, their JSON and tables there."),
    ] = None,
) -> None:
    """Overlays section 6: flooding, single overlay and topic overlays on five brokers."""
    from isthmus.reproduce.overlays.command import Settings, run_overlays
    from isthmus.reproduce.overlays.experiments import Parameters

    parameters = Parameters(
        publishers=publishers,
        subscribers=subscribers,
        rate=rate,
        stress_rate=stress_rate,
        messages=messages,
        broker=broker,
        seed=seed,
    )
    settings = Settings(out, quick, tuple(only or ()), parameters, minutes, docs)
    raise typer.Exit(run_overlays(settings))


@reproduce.command()
def skipgraph(
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A tenth of the nodes, fewer rounds: about a minute."),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Report, figures and log; one that was begun goes on."),
    ] = Path("reproduce-skipgraph"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this: fig3.7 to fig4.9, table3.1, table3.3; repeat it."
        ),
    ] = None,
    up_to: Annotated[
        int,
        typer.Option(
            metavar="NODES",
            help="100000 (the thesis's), 1000000, 10000000 or 100000000; memory is checked first.",
        ),
    ] = 10_000_000,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 1,
    master: Annotated[
        str, typer.Option(metavar="URL", help="local[*], local[1] or spark://HOST:PORT.")
    ] = "local[*]",
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures, their JSON and tables there."),
    ] = None,
) -> None:
    """Skip Graph thesis, chapters 3 and 4: growth laws, messages, paths, load, tables; then beyond.

    Spread over the cores by Spark; the same seed gives the same figures on any number of them.
    """
    from isthmus.reproduce.skipgraph.command import Settings, run_skipgraph

    settings = Settings(out, quick, tuple(only or ()), up_to, seed, master, docs)
    raise typer.Exit(run_skipgraph(settings))


@reproduce.command()
def geo(
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Smaller sizes, fewer repetitions: about two minutes."),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Report and figures; one that was begun goes on."),
    ] = Path("reproduce-geo"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only sim, live or delay, or one like sim-sf-k3; repeat it."
        ),
    ] = None,
    broker: Annotated[
        str, typer.Option(metavar="NAME", help="The make of all brokers.")
    ] = "mosquitto",
    seed: Annotated[int, typer.Option(help="Of who listens to whom.")] = 1,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures, their JSON and tables there."),
    ] = None,
) -> None:
    """Geo sections III and IV: eq. 1-6, Tables I-II, its systems counted, a gateway's delay."""
    from isthmus.reproduce.geo.command import Settings, run_geo

    raise typer.Exit(run_geo(Settings(out, quick, tuple(only or ()), broker, seed, docs)))


def _scenario(name: str, *, interval_ms: float | None, **changes: Any) -> Scenario:
    from isthmus.bench.scenario import load_scenario

    interval_ns = None if interval_ms is None else round(interval_ms * 1e6)
    try:
        return load_scenario(name).changed(interval_ns=interval_ns, **changes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _machines(writers: int, agents: list[str] | None, token_file: Path | None) -> Machines:
    from isthmus.bench.coordinator.agent_hello import read_token
    from isthmus.bench.experiment import Machines

    token = None if token_file is None else read_token(token_file)
    return Machines(writers, tuple(_addresses(agents)), token)


def _addresses(given: list[str] | None) -> list[Address]:
    from isthmus.config.addresses import Address

    try:
        return [Address.parse(text) for text in given or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
