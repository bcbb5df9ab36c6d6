"""One experiment in one round: a fresh fabric, its convergence, the measurement, perhaps a repair.

    OUT/log/                 what every client sent and received, traffic and use of resources
    OUT/measured/RUN.json    how long the fabric took, which tree it built, what it did when killed

Each measurement has brokers and nodes of its own, so that nothing is left over from another one.
The second file is written last: a measurement that has it is whole, and is not made again.

Times of Table 2 (Overlays §6.4), as the paper defines them:

* *convergence*: from the start of the first process until the last node uses the tree over all;
* *repair*: from the kill of a node and its broker until the last of the others uses a tree of them.

A node says how long it has been using its tree, so neither depends on how often it is asked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.coordinator.session import LoadSession
from isthmus.bench.rig.rig import Rig
from isthmus.bench.scenario import Scenario
from isthmus.bench.watch.watch import Watch
from isthmus.errors import AdminError, LoadError, ReproduceError
from isthmus.fabric.admin_client import fetch_status
from isthmus.pipeline.log.run_files import remove_run
from isthmus.reproduce.overlays.experiments import NODES, Experiment, Parameters

__all__ = ["Converged", "Measured", "Repaired", "measure", "measured_path", "read_measured"]

WATCH_EVERY_S: Final = 0.5
DRAIN_S: Final = 15.0
"""How long is waited at most for what saturated lines still hold; what comes later counts as lost.
"""
POLL_S: Final = 0.02
TREE_S: Final = 60.0

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Converged:
    """How the nodes came together."""

    took_s: float
    """From the start of the first process."""
    since_up_s: float
    """From when the last node was up."""
    root: str
    parents: Mapping[str, str]
    """By node; the root has none."""
    announced: int
    """Announcements by multicast that all nodes sent until then."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a kill did."""

    victim: str
    role: str
    """root, inner node or leaf of the tree that there was"""
    took_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one run, what the log does not tell."""

    run: str
    experiment: str
    round: int
    converged: Converged
    rebuilt: bool
    """Whether another tree was in use after the measurement."""
    repaired: Repaired | None
    counted: Mapping[str, float | int | None]
    """What the run's direct count says, to compare with Spark's."""
    load_average: float
    """Of the machine before it began."""
    took_s: float


def measured_path(out: Path, run: str) -> Path:
    """Where a measurement that is whole has its file."""
    return out / "measured" / f"{run}.json"


def read_measured(out: Path, run: str) -> Measured | None:
    """What was measured already; None if it was not, or not to the end."""
    path = measured_path(out, run)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        repaired = found.pop("repaired")
        return Measured(
            **found
            | {
                "converged": Converged(**found["converged"]),
                "repaired": repaired and Repaired(**repaired),
            }
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ReproduceError(f"{path}: is no measurement: {error}; remove it") from None


def measure(
    out: Path,
    parameters: Parameters,
    experiment: Experiment,
    round_number: int,
    scenario: Scenario,
    *,
    progress: Progress | None = None,
) -> Measured:
    """Make one measurement and keep it; raises `IsthmusError` if it could not be made."""
    run, log = experiment.run(round_number), out / "log"
    remove_run(log, run)  # of one that was interrupted after its measurement
    load_average, began_s = os.getloadavg()[0], time.monotonic()
    with Rig(scenario) as rig:
        watch = Watch(rig.watched, rig.admins, rig.throttled_ns, every_s=WATCH_EVERY_S)
        with LoadSession(
            scenario,
            rig.targets,
            log,
            writers=1,
            labels=experiment.labels(parameters, round_number),
            notes=rig.notes,
            watch=watch,
            progress=progress,
            drain_s=DRAIN_S,
        ) as session:
            converged = _converged(rig, began_s)  # now that links which came late are in the tree
            record = session.measure(run)
        after = _trees(rig, NODES)
        rebuilt = {name: tree["parent"] or "" for name, tree in after.items()} != converged.parents
        repaired = None
        if experiment.setting.repairs:
            victim = random.Random(f"{parameters.seed}/{round_number}/victim").choice(NODES)
            repaired = _repaired(rig, victim, converged)
    summary = record.summary
    measured = Measured(
        run=run,
        experiment=experiment.name,
        round=round_number,
        converged=converged,
        rebuilt=rebuilt,
        repaired=repaired,
        counted={
            name: getattr(summary, name) for name in ("ingress", "egress", "expected", "lost")
        },
        load_average=round(load_average, 2),
        took_s=round(time.monotonic() - began_s, 2),
    )
    with _complete(measured_path(out, run)) as path:
        path.write_text(json.dumps(asdict(measured)) + "\n", encoding="utf-8")
    return measured


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    yield unfinished
    unfinished.replace(path)


def _converged(rig: Rig, began_s: float) -> Converged:
    trees = _until_one_tree(rig, NODES)
    used_s = max(tree["used_s"] for tree in trees.values())
    up_s = max(tree["up_s"] for tree in trees.values())
    return Converged(
        took_s=round(used_s - began_s, 3),
        since_up_s=round(max(0.0, used_s - up_s), 3),
        root=next(iter(trees.values()))["root"],
        parents={name: tree["parent"] or "" for name, tree in trees.items()},
        announced=sum(int(tree["announced"]) for tree in trees.values()),
    )


def _repaired(rig: Rig, victim: str, before: Converged) -> Repaired:
    """Kill a node and its broker, and wait for the others."""
    role = "leaf"
    if victim == before.root:
        role = "root"
    elif victim in before.parents.values():
        role = "inner node"
    pids = [pid for each in rig.watched() if each.node == victim for pid in each.pids]
    killed_s = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went with its parent
    trees = _until_one_tree(rig, [name for name in NODES if name != victim])
    used_s = max(tree["used_s"] for tree in trees.values())
    return Repaired(victim, role, round(used_s - killed_s, 3))


def _until_one_tree(rig: Rig, names: Sequence[str]) -> dict[str, Tree]:
    """Until these use one tree that has them and nobody else."""
    deadline_s = time.monotonic() + TREE_S
    while True:
        trees = _trees(rig, names)
        numbers = {(tree["number"], tree["root"]) for tree in trees.values()}
        complete = all(set(tree["nodes"]) == set(names) for tree in trees.values())
        if len(trees) == len(names) and len(numbers) == 1 and complete:
            return trees
        if time.monotonic() > deadline_s:
            raise LoadError(f"{', '.join(names)} use no common tree after {TREE_S:g} s: {trees}")
        time.sleep(POLL_S)


def _trees(rig: Rig, names: Sequence[str]) -> dict[str, Tree]:
    """What each of them that answers says of its tree, and since when it uses it."""
    found: dict[str, Tree] = {}
    for name in names:
        try:
            status = fetch_status(rig.admins[name])
        except AdminError:
            continue
        now_s = time.monotonic()
        tree = status["fabric"]["algorithm"].get("tree")
        if tree:
            up_s = now_s - float(status["node"]["uptime_s"])
            found[name] = {
                **tree,
                "used_s": now_s - float(tree["age_s"]),
                "up_s": up_s,
                "announced": status["fabric"]["discovery"]["announced"],
            }
    return found
