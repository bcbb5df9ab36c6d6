"""From rounds and simulated fabrics to figures, targets and the tables of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from benchmarks.overlay.rounds import FAULTS, T_D_S, Fault, Repaired, Round
from benchmarks.overlay.simulated import Row, summed_up
from benchmarks.relay.statistics import Target, spread
from benchmarks.relay.verdict import Figure

from isthmus.exchange.link.links import LinkSettings

__all__ = [
    "doubts_of",
    "figures_of",
    "leaf_lost",
    "simulated_document",
    "simulated_table",
    "targets_of",
]

BUSY_LOAD: Final = 1.0
CONVERGENCE_S: Final = 2.0
"""Beyond T_d."""
DETECTION_S: Final = 2.0
REPAIR_S: Final = 1.0
PAPER_CONVERGENCE_S: Final = 19.5
PAPER_REPAIR_S: Final = 59.1
LINKS: Final = ("loopback", "shaped")
KILLED: Final = tuple(fault for fault in FAULTS if fault.killed)
STOPPED: Final = Fault("root", killed=False)
STAR: Final = "star of bridges, center killed"
LEAF_LOST: Final = "leaf lost, messages per node"
ROLES: Final = ("root", "inner node", "leaf")

Reading = Callable[[Repaired], float]
OF_A_FAULT: Final[Mapping[str, Reading]] = {
    "detected": lambda it: it.detected_s,
    "repaired, from detection": lambda it: it.from_detection_s,
    "repaired": lambda it: it.repaired_s,
    "longest gap in delivery": lambda it: it.account.gap_s,
    "back in the tree": lambda it: it.rejoined_s,
    "longest gap when it comes back": lambda it: it.account.later_gap_s,
}


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    """Median and spread over the rounds."""
    found: dict[str, Figure] = {}

    def add(name: str, unit: str, values: Sequence[float]) -> None:
        if values:
            found[name] = Figure(unit, len(values), spread(values))

    for links in LINKS:
        seen = [getattr(one, links) for one in rounds]
        add(f"one tree, {links}, from exec", "s", [it.since_exec_s for it in seen])
        add(f"one tree, {links}, from listening", "s", [it.since_listening_s for it in seen])
    for fault in FAULTS:
        for name, read in OF_A_FAULT.items():
            add(f"{fault}: {name}", "s", [read(it) for it in _all(rounds, [fault])])
    star = [one.star for one in rounds if one.star is not None]
    add(f"{STAR}: longest gap in delivery", "s", [it.gap_s for it in star])
    add(f"{STAR}: flowing again", "s", [it.flowing_s for it in star])
    add(f"{STAR}: lost", "messages", [it.lost for it in star])
    add(f"{STAR}: doubled", "messages", [it.doubled for it in star])
    add("gap, star / root killed", "x", list(_ratios(rounds)))
    return found


def _all(rounds: Sequence[Round], faults: Sequence[Fault]) -> list[Repaired]:
    wanted = {str(fault) for fault in faults}
    return [it for one in rounds for name, it in one.repaired.items() if name in wanted]


def _ratios(rounds: Sequence[Round]) -> Iterator[float]:
    for one in rounds:
        tree = one.repaired.get(str(Fault("root")))
        if tree is not None and one.star is not None:
            yield one.star.gap_s / tree.account.gap_s


def targets_of(figures: Mapping[str, Figure], rounds: Sequence[Round]) -> list[Target]:
    """Every figure that was to be reached; of the kills, the slowest kind of victim counts."""
    every = _all(rounds, FAULTS)
    expected = sum(it.account.expected for it in every)
    strikes = f"{len(every)} faults, {expected:,} deliveries expected"
    return [
        *(_convergence(figures, links) for links in LINKS),
        _slowest(figures, "detected", DETECTION_S, "detection after kill -9"),
        _slowest(
            figures, "repaired, from detection", REPAIR_S, "repair after kill -9, from detection"
        ),
        _stopped(figures, "detected", DETECTION_S, "detection of a silent node (SIGSTOP)"),
        _stopped(
            figures,
            "repaired, from detection",
            REPAIR_S,
            "repair after a silent node, from detection",
        ),
        Target("lost, QoS 1", "messages", sum(it.account.lost for it in every), 0.0, note=strikes),
        Target(
            "doubled, QoS 1", "messages", sum(it.account.doubled for it in every), 0.0, note=strikes
        ),
    ]


def _convergence(figures: Mapping[str, Figure], links: str) -> Target:
    seen = figures[f"one tree, {links}, from listening"].spread
    execed = figures[f"one tree, {links}, from exec"].spread
    return Target(
        f"five nodes use one tree, {links}, beyond T_d of {T_D_S:g} s",
        "s",
        max(0.0, execed.median - T_D_S),
        CONVERGENCE_S,
        note=f"{execed.median:.2f} s after exec of the last node, at most {execed.high:.2f}; "
        f"{seen.median:.2f} s after it listens, at most {seen.high:.2f}; "
        f"paper {PAPER_CONVERGENCE_S:g} s",
    )


def _slowest(figures: Mapping[str, Figure], what: str, bound_s: float, name: str) -> Target:
    seen = {fault: figures[f"{fault}: {what}"] for fault in KILLED if f"{fault}: {what}" in figures}
    if not seen:
        return Target(name, "s", None, bound_s)
    worst = max(seen, key=lambda fault: seen[fault].spread.median)
    most_s = max(figure.spread.high for figure in seen.values())
    note = f"slowest median: {worst}; at most {most_s:.2f}"
    if what.startswith("repaired"):
        note += f"; paper {PAPER_REPAIR_S:g} s"
    return Target(name, "s", seen[worst].spread.median, bound_s, note=note)


def _stopped(figures: Mapping[str, Figure], what: str, bound_s: float, name: str) -> Target:
    figure = figures.get(f"{STOPPED}: {what}")
    if figure is None:
        return Target(name, "s", None, bound_s)
    note = ""
    if what == "detected":
        note = f"by pings: silent for `link.dead_after_s`, {LinkSettings().dead_after_s:g} s"
    return Target(name, "s", figure.spread.median, bound_s, note=note)


def doubts_of(load_averages: Sequence[float], cores: int) -> list[str]:
    """What makes the figures doubtful: `load_averages` are from before each round."""
    if max(load_averages) <= BUSY_LOAD:
        return []
    shown = ", ".join(f"{each:.1f}" for each in load_averages)
    return [
        f"Other processes used the {cores} cores as well: the load averages before the rounds "
        f"were {shown}."
    ]


# ---- the simulated fabrics ---------------------------------------------------------------


def simulated_document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry for each shape and size, with medians and spreads over the seeds."""
    found = []
    for (shape, nodes), group in groupby(rows, key=lambda row: (row.shape, row.nodes)):
        same = list(group)
        spreads = {name: asdict(each) for name, each in summed_up(same).items()}
        found.append(
            {
                "shape": shape,
                "nodes": nodes,
                "links": same[0].links,
                "fabrics": len(same),
                "spreads": spreads,
            }
        )
    return found


def simulated_table(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As `benchmarks.pages` shows tables."""
    headings = ["fabric", "links", "convergence", *(f"{role} lost" for role in ROLES), "CPU"]
    rows = []
    for entry in entries:
        spreads = entry["spreads"]
        cells = [f"{entry['shape']} of {entry['nodes']:,}", f"{entry['links']:,}"]
        for what in headings[2:-1]:
            cells.append(_cell(spreads, what))
        cells.append(f"{spreads['convergence, CPU s']['median']:.2f} s")
        rows.append(cells)
    return {
        "caption": "In virtual time, over links of 10 ms: median seconds, in brackets the most of "
        "the fabrics of that size; messages of the tree, and bytes of them, for each node. CPU is "
        "that of the process that simulates all nodes until the first tree is in use.",
        "headings": headings,
        "rows": rows,
    }


def leaf_lost(entries: Sequence[Mapping[str, Any]]) -> str:
    """What a loss costs all, however little it cuts off: for the page of the algorithm."""
    counted = [
        (f"{each['shape']} of {each['nodes']:,}", each["spreads"][LEAF_LOST]["median"])
        for each in entries
        if LEAF_LOST in each["spreads"]
    ]
    return "A leaf that is killed, messages of the tree for each node that is left: " + (
        ", ".join(f"{messages:.1f} in a {fabric}" for fabric, messages in counted) + "."
    )


def _cell(spreads: Mapping[str, Mapping[str, float]], what: str) -> str:
    if f"{what}, s" not in spreads:
        return "none"
    took, messages, size = (
        spreads[f"{what}, {unit}"] for unit in ("s", "messages per node", "bytes per node")
    )
    return (
        f"{took['median']:.2f} s ({took['high']:.2f}), {messages['median']:.1f} messages, "
        f"{size['median']:,.0f} B"
    )
