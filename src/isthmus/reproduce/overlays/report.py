"""The report of ``isthmus reproduce overlays``: the paper's figures, Table 2, and its statements.

Everything is drawn from the tables of the Spark jobs, but for the times of Table 2, which the nodes
tell.  With a folder for the documentation, the figures and the tables as Markdown go there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

from isthmus.bench.report import plots
from isthmus.bench.report.page import PageSection, figure, folded, page, paragraph, table
from isthmus.bench.report.results import IndexTables
from isthmus.bench.report.sections import key_section
from isthmus.bench.report.setup import broker_version
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.overlays.experiments import (
    CONTENDERS,
    DELAY_MS,
    DELAY_SIGMA_MS,
    MBIT_S,
    ROOT,
    Experiment,
    Parameters,
    lines,
)
from isthmus.reproduce.overlays.figures import figures_of, panels_figure, write_figures
from isthmus.reproduce.overlays.measuring import Measured
from isthmus.reproduce.overlays.paper import (
    CONVERGENCE_DEVIATION_S,
    CONVERGENCE_S,
    REPAIR_DEVIATION_S,
    REPAIR_S,
)
from isthmus.reproduce.overlays.timing import QUICK_BUDGET_S
from isthmus.reproduce.shared_report import lead_of, made_on

__all__ = ["Reproduced", "Settings", "write_report"]

HOW: Final = (
    "Five brokers with a node before each, every two nodes joined by an emulated line of "
    f"{MBIT_S:g} Mbit/s and a delay from N({DELAY_MS:g} ms, {DELAY_SIGMA_MS:g} ms), find each "
    "other and cooperate in four ways: flooding over one tree (the paper's benchmark), routing by "
    "advertisements over that tree (single overlay), and a tree for those whom a topic concerns, "
    "its root chosen by capacity or by root balance. Every measurement has a fresh fabric. In "
    "each round all four have the same clients over the same lines."
)
FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "overlays-delay": (
        "End-to-end delay (Fig. 6)",
        "From just before a message is written to the publisher's socket until it is read from "
        "the subscriber's, of messages sent within the window.",
    ),
    "overlays-traffic": (
        "Traffic between nodes (Fig. 7)",
        "Publications: messages and their acknowledgments on the links, within the window. "
        "Signalling: everything else on the links since the nodes were started: hellos, pings "
        "and answers, the tree's and the overlays' waves, advertisements, what clients want. Not "
        "in it: the greeting of each connection, and announcements by multicast.",
    ),
    "overlays-payloads": (
        "Longer messages (Fig. 8)",
        "20 publishers of 10⁵ bytes at 1 message/s are 16 Mbit/s, more than a line carries: "
        "where all of it goes over one line, that is saturated, messages wait and the delay "
        "grows with the length of the run. What a full queue drops, at QoS 0, is lost.",
    ),
    "overlays-resources": (
        "CPU and memory (Fig. 9)",
        "Of all five nodes and brokers together, within the window. The nodes are asked for "
        "their counters twice a second meanwhile, which is in it.",
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    out: Path
    quick: bool = False
    only: tuple[str, ...] = ()
    parameters: Parameters = field(default_factory=Parameters)
    minutes: float | None = None
    """After which no further round is begun; of ``--quick``, what makes it quick."""
    docs: Path | None = None
    """A folder for the figures as files and the tables as Markdown."""

    @property
    def budget_s(self) -> float | None:
        if self.minutes is not None:
            return 60 * self.minutes
        return QUICK_BUDGET_S if self.quick else None

    @property
    def limit_s(self) -> float | None:
        """For the first round."""
        return QUICK_BUDGET_S if self.quick and self.minutes is None else None


@dataclass(slots=True)
class Reproduced:
    """What came of it."""

    settings: Settings
    chosen: Sequence[Experiment] = ()
    measured: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """By run, why."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By setting, why it was not measured at all."""
    notes: list[str] = field(default_factory=list)
    tables: IndexTables = field(default_factory=dict)
    took_s: float = 0.0


def write_report(done: Reproduced, claims: Sequence[Claim]) -> None:
    """``report.html`` and ``results.json``, and what goes into the docs."""
    out = done.settings.out
    results = {
        "setup": _setup(done),
        "paper": [asdict(claim) for claim in claims],
        "grid": done.tables["grid"],
        "measured": [asdict(each) for each in done.measured],
        "failed": done.failed,
        "left_out": done.left_out,
        "took_s": done.took_s,
    }
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    title = "Overlays reproduced" + (" (quick)" if done.settings.quick else "")
    rows = [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims]
    sections = [
        PageSection(
            "The paper and this machine",
            paragraph(
                "A figure is the mean over the rounds, in brackets what they leave open: from the "
                "least to the most, and 5 % further (20 % after a single round). Numbers for the "
                "paper's words (similar, negligible) are in the statement."
            )
            + table(("Overlays", "statement", "paper", "here", "holds"), rows),
        ),
        *_figure_sections(done.tables["grid"]),
        PageSection("Convergence and repair (Table 2)", table(*_times(done.measured))),
        PageSection("All experiments", table(*_all(done.tables["grid"]))),
        PageSection(
            "Saturated or lossy",
            paragraph(
                "Runs in which something gave way, a message was lost, or another tree was built."
            )
            + table(*_doubtful(done)),
        ),
    ]
    if done.failed:
        sections.append(
            PageSection("Not measured", table(("run", "why"), list(done.failed.items())))
        )
    sections.append(key_section("What it ran on", _setup(done)))
    (out / "report.html").write_text(page(title, HOW, sections), encoding="utf-8")
    if done.settings.docs is not None:
        _write_docs(done.settings.docs, done, claims)


def _figure_sections(grid: Sequence[Mapping[str, Any]]) -> Iterator[PageSection]:
    for name, panels in figures_of(grid).items():
        title, text = FIGURES[name]
        drawn = plots.svg(panels_figure(panels), title)
        caption = "Bars: mean over the rounds; lines: from the least to the most of them."
        yield PageSection(title, paragraph(text) + figure(drawn, caption))


Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Header and rows."""


def _times(measured: Sequence[Measured]) -> Shown:
    header = ("", "times", "average", "deviation", "least", "most", "paper")
    rows = []
    for contender in CONTENDERS:
        some = [each for each in measured if each.experiment.endswith(f"-{contender}")]
        repaired = [each.repaired.took_s for each in some if each.repaired is not None]
        for what, values, paper in (
            (
                "convergence, from the start of the first process",
                [each.converged.took_s for each in some],
                f"{CONVERGENCE_S} ± {CONVERGENCE_DEVIATION_S} s",
            ),
            (
                "convergence, from when the last node was up",
                [each.converged.since_up_s for each in some],
                "",
            ),
            ("repair, from the kill", repaired, f"{REPAIR_S} ± {REPAIR_DEVIATION_S} s"),
        ):
            if values:
                deviation = f"{stdev(values):.3f} s" if len(values) > 1 else ""
                rows.append(
                    (
                        f"{CONTENDERS[contender].name}: {what}",
                        str(len(values)),
                        f"{mean(values):.2f} s",
                        deviation,
                        f"{min(values):.2f} s",
                        f"{max(values):.2f} s",
                        paper,
                    )
                )
    return header, rows


def _all(grid: Sequence[Mapping[str, Any]]) -> Shown:
    header = (
        "experiment",
        "rounds",
        "delay, ms",
        "99 %, ms",
        "publications/s",
        "publications, kB/s",
        "signalling since start, kB",
        "signalling, B/s",
        "cores: nodes, brokers",
        "MiB: nodes, brokers",
        "lost of expected",
        "topics used, member sets",
    )

    def spread(row: Mapping[str, Any], name: str, scale: float = 1.0) -> str:
        middle, least, most = (row[f"{name}_{which}"] for which in ("mean", "least", "most"))
        if middle is None:
            return ""
        if row["rounds"] == 1:
            return f"{middle * scale:.3g}"
        return f"{middle * scale:.3g} ({least * scale:.3g} to {most * scale:.3g})"

    rows = [
        (
            row["experiment"],
            str(row["rounds"]),
            spread(row, "delay_ms"),
            spread(row, "delay_p99_ms"),
            spread(row, "publications_s"),
            spread(row, "publications_bytes_s", 1e-3),
            spread(row, "signalling_bytes", 1e-3),
            spread(row, "signalling_bytes_s"),
            f"{row['node_cores_mean'] or 0:.3f}, {row['broker_cores_mean'] or 0:.3f}",
            f"{(row['node_rss_bytes_mean'] or 0) / 2**20:.0f}, "
            f"{(row['broker_rss_bytes_mean'] or 0) / 2**20:.0f}",
            f"{row['lost_mean'] * row['rounds']:,.0f} of "
            f"{row['expected_mean'] * row['rounds']:,.0f}",
            f"{row['topics_used_mean']:.3g}, {row['member_sets_mean']:.3g}",
        )
        for row in sorted(grid, key=_in_order)
    ]
    return header, rows


def _in_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    contenders = list(CONTENDERS)
    return (
        row["stress"],
        row["payload_bytes"],
        -row["locality"],
        row["topics"],
        contenders.index(row["contender"]),
    )


def _doubtful(done: Reproduced) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    notes = {row["run"]: row["notes"] for row in done.tables["summary"]}
    rebuilt = {each.run for each in done.measured if each.rebuilt}
    rows: list[tuple[object, ...]] = [
        (
            row["run"],
            row["limited_by"],
            f"{row['lost']:,} of {row['expected']:,}",
            row["delay_ms"],
            row["delay_max_ms"],
            "yes" if row["run"] in rebuilt else "",
            folded(list(dict.fromkeys(notes.get(row["run"], ())))),
        )
        for row in done.tables["cells"]
        if row["lost"] or row["limited_by"] not in ("", "nothing") or row["run"] in rebuilt
    ]
    header = ("run", "limited by", "lost", "delay, ms", "longest, ms", "tree rebuilt", "notes")
    return header, rows


def _setup(done: Reproduced) -> dict[str, str]:
    parameters, rounds = done.settings.parameters, [each.round for each in done.measured]
    busy = [each.load_average for each in done.measured]
    announced = [each.converged.announced for each in done.measured] or [0]
    stars = sum(set(e.converged.parents.values()) <= {"", ROOT} for e in done.measured)
    detours = sum(_detours(parameters, each) for each in done.measured)
    return {
        **made_on(),
        f"broker {parameters.broker}": f"{broker_version(parameters.broker)}, at all five nodes",
        "lines": (
            f"{MBIT_S:g} Mbit/s each way, N({DELAY_MS:g} ms, {DELAY_SIGMA_MS:g} ms) one way, "
            f"seed {parameters.seed}"
        ),
        "clients": f"{parameters.publishers} publishers, {parameters.subscribers} subscribers",
        "rate": (
            f"{parameters.rate:g} message/s of each publisher, {parameters.stress_rate:g} in the "
            "stress test, QoS 0"
        ),
        "window": (
            f"{parameters.duration_s - 2 * parameters.trim_s:g} s, after {parameters.trim_s:g} s "
            "that do not count (the paper: 500 messages)"
        ),
        "trees": (
            f"{stars} of {len(done.measured)} are stars around {ROOT}; {detours} times a node's "
            "way to it in the tree is longer than the line between them"
        ),
        "announcements": (
            f"{mean(announced):.0f} by multicast until the tree was there, of all five nodes, "
            "about 100 bytes each"
        ),
        "rounds": f"{max(rounds, default=0)}, {len(done.measured)} measurements",
        "load average before them": f"{min(busy, default=0):.2f} to {max(busy, default=0):.2f}",
        "measurements took": f"{sum(each.took_s for each in done.measured) / 60:.1f} minutes",
        **({"notes": "; ".join(done.notes)} if done.notes else {}),
    }


def _detours(parameters: Parameters, measured: Measured) -> int:
    """Nodes whose way to the root, by the delays of the lines, is longer than the direct one."""
    delays_ms = {
        frozenset(line.between): line.delay_ms or 0.0 for line in lines(parameters, measured.round)
    }
    parents, root = measured.converged.parents, measured.converged.root

    def cost_ms(node: str) -> float:
        parent = parents[node]
        return delays_ms[frozenset((node, parent))] + cost_ms(parent) if parent else 0.0

    return sum(
        cost_ms(node) > delays_ms[frozenset((node, root))] for node in parents if node != root
    )


def _write_docs(folder: Path, done: Reproduced, claims: Sequence[Claim]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    setup = _setup(done)
    write_figures(folder, setup, figures_of(done.tables["grid"]))
    text = [
        "<!-- written by `isthmus reproduce overlays --docs` -->",
        lead_of(claims, setup, f"{len(done.measured)} measurements"),
        markdown(
            ("", "statement", "paper", "here", "holds"),
            [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims],
        ),
        markdown(*_times(done.measured)),
        markdown(*_all(done.tables["grid"])),
        markdown(("", ""), list(setup.items())),
    ]
    (folder / "overlays-tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
