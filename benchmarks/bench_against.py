"""Nodes of this tree against those of a commit, both running at the same time.

    python benchmarks/bench_against.py COMMIT [--rounds 10] [--quick] [--out FILE]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import gc
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import parser_of, run
from benchmarks.fabric.crossing import clocks_of
from benchmarks.fabric.population import load_site, probe
from benchmarks.fabric.sites import running_site
from benchmarks.relay.load import HERE, Load, clients_of, loopback
from benchmarks.relay.processes import cpu_ns, machine_busy_ns, running_broker, running_node
from benchmarks.relay.report import conclude, machine_facts
from benchmarks.relay.saturation import ClosedLoop, saturate
from benchmarks.relay.statistics import Run, Slice, Target, pool
from benchmarks.relay.verdict import Figure, Figures, doubts_of

from isthmus.errors import LoadError

__all__ = ["Pair", "main", "turns_of"]

ROOT = Path(__file__).resolve().parents[1]
TREES = ("before", "after")
KINDS = ("relay", "sf", "pf")
WITHIN = 0.03
PAGE = "against.md"
STARTS = 4
"""Of each tree in a round."""

Environments = Mapping[str, Mapping[str, str]]
"""What the nodes of each tree find themselves with."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both trees in one round."""

    before: Run
    after: Run

    def ratio(self, read: Callable[[Run], float]) -> float:
        return read(self.after) / read(self.before)

    @property
    def quiet(self) -> bool:
        return self.before.quiet_slices > 0 and self.after.quiet_slices > 0


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has found, by kind, and how long the nodes took to listen."""

    pairs: Mapping[str, Pair]
    start_s: Mapping[str, float]

    def line(self) -> str:
        found = "; ".join(
            f"{kind} rate {pair.ratio(_rate):.3f}, node CPU {pair.ratio(_cpu('node')):.3f}, broker "
            f"CPU {pair.ratio(_cpu('broker')):.3f}"
            for kind, pair in self.pairs.items()
        )
        return f"{found}; start {self.start_s['after'] / self.start_s['before']:.3f}"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a target was missed."""
    options = _options(arguments)
    rounds = options.rounds or (3 if options.quick else 10)
    closed = replace(ClosedLoop(), warmup_s=0.2, slices=2, slice_s=0.3, patience=2)
    return run(
        "against",
        140,
        lambda console: _bench(options, rounds, closed, console),
        check=options.check,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("against", __doc__.splitlines()[0], "about 3 minutes", PAGE)
    parser.add_argument("before", metavar="COMMIT", help="whose nodes this tree's are held against")
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace, rounds: int, closed: ClosedLoop, console: Console) -> bool:
    before = options.before
    machine = machine_facts(console)
    began = time.perf_counter()
    with _source_of(before) as folder:
        environments = {"before": _finds(folder / "src"), "after": _finds(ROOT / "src")}
        gc.disable()  # a collection in the generator would be taken for a delay of the path
        found: list[Round] = []
        for number in range(rounds):
            found.append(_round(environments, closed, number))
            console.print(f"round {number + 1} of {rounds}: {found[-1].line()}", soft_wrap=True)
    figures = _figures(found)
    trees = {"before": _commit(before), "after": _commit("HEAD")}
    pairs = [pair for each in found for pair in each.pairs.values()]
    parts = {
        "machine": machine,
        **trees,
        "doubts": doubts_of([run for pair in pairs for run in (pair.before, pair.after)]),
        "tables": [
            {
                "caption": f"{rounds} rounds, with the nodes of both commits at the same time.",
                "headings": ["nodes", "commit"],
                "rows": [[tree, name] for tree, name in trees.items()],
            }
        ],
        "took_s": round(time.perf_counter() - began, 1),
        "rounds": [
            {
                "start_s": each.start_s,
                **{kind: asdict(pair) for kind, pair in each.pairs.items()},
            }
            for each in found
        ],
    }
    return conclude(console, options.out, parts, figures, _targets(figures), page=options.page)


# ---- the two trees -----------------------------------------------------------------------


@contextmanager
def _source_of(commit: str) -> Iterator[Path]:
    done = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        raise LoadError(f"git archive {commit}: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="isthmus-against-") as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def _finds(source: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(source)}


def _commit(name: str) -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty" if name == "HEAD" else name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or name


# ---- rounds ------------------------------------------------------------------------------


def turns_of(number: int) -> tuple[str, ...]:
    """Whose turn it is in round `number`, from 0: there and back, twice."""
    there = TREES if number % 2 == 0 else TREES[::-1]
    return (*there, *there[::-1]) * 2


def _round(environments: Environments, closed: ClosedLoop, number: int) -> Round:
    turns = turns_of(number)
    pairs = {"relay": _relay(environments, closed, turns)}
    for algorithm in ("sf", "pf"):
        pairs[algorithm] = _fabric(algorithm, environments, closed, turns)
    return Round(pairs, _starts(environments, turns))


def _relay(environments: Environments, closed: ClosedLoop, turns: Sequence[str]) -> Pair:
    slices: dict[str, list[Slice]] = {tree: [] for tree in TREES}
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker())
        nodes = {
            tree: stack.enter_context(running_node(broker.port, "", environments[tree]))
            for tree in turns[:2]
        }
        for tree in turns:
            node = nodes[tree]

            def clocks(pid: int = node.pid) -> Mapping[str, int]:
                return {
                    "broker": cpu_ns(broker.pid),
                    "node": cpu_ns(pid),
                    "generator": time.process_time_ns(),
                    "machine": machine_busy_ns(),
                }

            with Load(clients_of(), {HERE: loopback(node.port)}) as load:
                slices[tree] += saturate(load, closed, clocks)
    return Pair(*(pool(slices[tree]) for tree in TREES))


def _fabric(
    algorithm: str, environments: Environments, closed: ClosedLoop, turns: Sequence[str]
) -> Pair:
    slices: dict[str, list[Slice]] = {tree: [] for tree in TREES}
    with ExitStack() as stack:
        sites = {
            tree: stack.enter_context(running_site(algorithm, environments[tree]))
            for tree in turns[:2]
        }
        for tree in turns:
            with load_site(sites[tree], across=True) as load:
                probe(sites[tree])
                slices[tree] += saturate(load, closed, clocks_of(sites[tree]))
    return Pair(*(pool(slices[tree]) for tree in TREES))


def _starts(environments: Environments, turns: Sequence[str]) -> dict[str, float]:
    """The shortest time until each listens."""
    took: dict[str, list[float]] = {tree: [] for tree in TREES}
    with running_broker() as broker:
        for tree in turns[: 2 * STARTS]:
            with running_node(broker.port, "", environments[tree]) as node:
                took[tree].append(node.start_s)
    return {tree: min(times) for tree, times in took.items()}


# ---- figures -----------------------------------------------------------------------------


def _rate(found: Run) -> float:
    return found.rate


def _cpu(part: str) -> Callable[[Run], float]:
    """CPU per delivered message of all processes of that part: nodes, or brokers."""
    return lambda found: sum(
        us for name, us in found.cpu_us_per_delivered.items() if name.endswith(part)
    )


def _figures(rounds: Sequence[Round]) -> dict[str, Figure]:
    figures = Figures(rounds)
    for kind in KINDS:
        for name, read in (
            ("rate", _rate),
            ("node CPU", _cpu("node")),
            ("broker CPU", _cpu("broker")),
        ):
            figures.add(
                f"{kind}: {name}, after / before",
                "x",
                lambda one, kind=kind: one.pairs[kind].quiet,  # type: ignore[misc]
                lambda one, kind=kind, read=read: one.pairs[kind].ratio(read),  # type: ignore[misc]
            )
    figures.add(
        "start, after / before",
        "x",
        lambda _: True,
        lambda one: one.start_s["after"] / one.start_s["before"],
    )
    return figures.found


def _targets(figures: Mapping[str, Figure]) -> list[Target]:
    def target(name: str, bound: float, *, at_least: bool = False) -> Target:
        found = figures[f"{name}, after / before"].spread
        note = f"quartiles {found.q1:.3f} to {found.q3:.3f}"
        return Target(name, "x", found.median, bound, at_least=at_least, note=note)

    targets = []
    for kind in KINDS:
        targets.append(target(f"{kind}: rate", 1 - WITHIN, at_least=True))
        targets.append(target(f"{kind}: node CPU", 1 + WITHIN))
    return [*targets, target("start", 1 + WITHIN)]


if __name__ == "__main__":
    raise SystemExit(main())
