"""The conformance suite of cooperation algorithms.

    from isthmus.sim import check_algorithm

    def test_my_algorithm() -> None:
        check_algorithm(MyAlgorithm)

Every scenario runs on several topologies and seeds, then come random schedules.  What is asked:

* each matching subscriber gets each message, once; nobody else gets it;
* one publisher's messages on one topic arrive in order;
* what nobody wants any more leaves nothing behind;
* a link that closes a ring neither doubles nor circulates messages;
* after a broken connection, a partition, a crash, a restart, or neighbors that were added and
  removed, all of this holds again; in a tree, QoS 1 and 2 have survived what did not outlast the
  hold time;
* retained messages and wills reach everybody they concern.

A failure is an `AlgorithmFailed`, an `AssertionError`, with the scenario, topology, seed and trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from isthmus.exchange.link.links import LinkSettings
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.generating import generate, has_all_links
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.run import run_schedule
from isthmus.sim.scenarios import SCENARIOS, Stage
from isthmus.sim.schedule import PROFILES

__all__ = ["MESHES", "TOPOLOGIES", "AlgorithmFailed", "check_algorithm", "check_scenario"]

TOPOLOGIES: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "pair": (2, ((0, 1),)),
    "line": (4, ((0, 1), (1, 2), (3, 2))),
    "star": (5, ((0, 1), (0, 2), (3, 0), (4, 0))),
    "ildm": (5, ((0, 1), (1, 2), (1, 3), (2, 4))),
    "ring": (4, ((0, 1), (1, 2), (2, 3), (3, 0))),
    "mesh": (4, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))),
}
"""Name → number of nodes and who dials whom; `ildm` is the tree of ILDM Fig. 6 and 7."""
MESHES = ("pair", "mesh")
"""Those with a link between any two nodes, for algorithms that need that."""


class AlgorithmFailed(AssertionError):
    """An algorithm does not do what `check_algorithm` asks."""


def _stage(
    factory: AlgorithmFactory,
    topology: str,
    seed: int,
    options: Mapping[str, object],
    settle_s: float | None,
    *,
    trace: bool = False,
) -> Stage:
    """One subscriber and one publisher at every node, at rest."""
    count, links = TOPOLOGIES[topology]
    fabric = SimFabric(
        seed=seed,
        algorithm=factory,
        options=options,
        link=LinkSettings(lanes=1 + seed % 2, hold_s=60.0),
        settle_s=settle_s,
        trace=trace,
    )
    nodes = [fabric.node(f"I{number}") for number in range(1, count + 1)]
    for a, b in links:
        fabric.link(nodes[a], nodes[b])
    subscribers = [node.client(f"subscriber-{node.name}") for node in nodes]
    publishers = [node.client(f"publisher-{node.name}") for node in nodes]
    fabric.settle()
    check_at_rest(fabric)
    survives = len(links) == count - 1 or getattr(factory, "survives_changes", False)
    return Stage(fabric, nodes, subscribers, publishers, survives=survives)


def _trace(scenario: str, made: Callable[[], Stage]) -> str:
    """The end of a failing one's trace, run once more."""
    stage = None
    try:
        stage = made()
        SCENARIOS[scenario](stage)
    except Exception:  # noqa: BLE001  (the failure is known already)
        if stage is None:
            return "(none: something was wrong before it began)"
        return "\n".join(stage.fabric.trace.lines[-60:])
    return "(it passes when run again: the algorithm depends on something besides its port)"


def check_algorithm(
    factory: AlgorithmFactory,
    *,
    seeds: Iterable[int] = range(3),
    schedules: int = 40,
    options: Mapping[str, object] | None = None,
    topologies: Iterable[str] | None = None,
    settle_s: float | None = None,
) -> None:
    """Raise `AlgorithmFailed` unless `factory`'s algorithms do what every algorithm must.

    An algorithm that needs a `full_mesh` is tried on `MESHES` and in schedules in which there is a
    link between any two nodes, others on all of `TOPOLOGIES`; those of the topology ``any`` in
    every second schedule with all links, or in most (`mostly_full_mesh`).

    `settle_s` is for algorithms that talk without end: how long to wait for them to settle,
    instead of waiting until nothing happens.
    """
    mesh = getattr(factory, "full_mesh", False)
    names = tuple(topologies or (MESHES if mesh else TOPOLOGIES))
    for seed in seeds:
        for topology in names:
            for scenario in SCENARIOS:
                check_scenario(
                    factory, scenario, topology, seed=seed, options=options, settle_s=settle_s
                )
    for seed in range(schedules):
        profile = PROFILES[seed % len(PROFILES)]
        schedule = generate(seed, profile, mesh=has_all_links(factory, seed))
        try:
            run_schedule(schedule, factory, options=options, settle_s=settle_s)
        except AssertionError as error:
            raise AlgorithmFailed(f"{_name(factory)}: random schedule: {error}") from error


def check_scenario(
    factory: AlgorithmFactory,
    scenario: str,
    topology: str,
    *,
    seed: int = 0,
    options: Mapping[str, object] | None = None,
    settle_s: float | None = None,
) -> None:
    """One scenario of `check_algorithm`; a failure is run again for its trace."""
    stage = partial(_stage, factory, topology, seed, options or {}, settle_s)
    try:
        SCENARIOS[scenario](stage())
    except Exception as error:  # whatever an algorithm raises is a finding
        text = str(error) if isinstance(error, AssertionError) else repr(error)
        raise AlgorithmFailed(
            f"{_name(factory)}: {scenario} on {topology}, seed {seed}: {text}\n"
            f"({SCENARIOS[scenario].__doc__})\nthe end of its trace:\n"
            f"{_trace(scenario, partial(stage, trace=True))}"
        ) from error


def _name(factory: AlgorithmFactory) -> str:
    return str(getattr(factory, "name", factory))
