"""The report of ``isthmus reproduce ildm``: the paper's figures 11 and 12, and its statements.

Everything is drawn from results that come from the tables of the Spark job.  With a folder for the
documentation, the figures (:mod:`isthmus.reproduce.ildm.figures`) and the tables as Markdown go
there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from isthmus.bench.experiment import Searched
from isthmus.bench.report import plots, sections
from isthmus.bench.report.page import PageSection, page, paragraph, table
from isthmus.bench.report.results import IndexTables, Result, milliseconds, write_csv, write_json
from isthmus.bench.report.setup import broker_version, machine
from isthmus.bench.scenario import load_scenario
from isthmus.pipeline.count.tables import UNDER_LIMIT
from isthmus.reproduce.claims import Claim
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.figures import Bars, write_figures
from isthmus.reproduce.ildm.paper import noise_of
from isthmus.reproduce.ildm.timing import FULL, QUICK, Timing

__all__ = ["Reproduced", "Settings", "write_report"]

BARE: Final = "single-mosquitto"
LEGEND: Final = {"": "bare Mosquitto", "pf": "PF", "sf": "SF", "mixed": "SF, different brokers"}
HOW: Final = (
    "Five topics with ten publishers and ten subscribers each (t-clients) load the system; one "
    "more topic with its own clients (l-clients) times messages. All publishers send at one "
    "interval, and the limit of performance is the shortest interval at which egress is at least "
    f"{UNDER_LIMIT} of ingress times the subscribers of a message (Definition 1). Figures show "
    "each system at that interval. Every server is a CPU quota on one machine, so absolute numbers "
    "mean little; what counts is how the systems compare."
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    out: Path
    quick: bool = False
    only: tuple[str, ...] = ()
    grid: bool = False
    """Measure all 20 intervals of step 3, as the paper did."""
    docs: Path | None = None
    """A folder for the figures as files and the tables as Markdown."""

    @property
    def timing(self) -> Timing:
        return QUICK if self.quick else FULL


@dataclass(slots=True)
class Reproduced:
    """What came of it."""

    settings: Settings
    experiments: dict[str, Experiment] = field(default_factory=dict)
    """Those that can be made here."""
    searched: dict[str, Searched] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Experiments that could not be made because a broker is not installed, with how to get it."""
    failed: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    tables: IndexTables = field(default_factory=dict)
    took_s: float = 0.0


def write_report(done: Reproduced, claims: Sequence[Claim]) -> None:
    """``report.html``, ``results.csv`` and ``results.json``, and what goes into the docs."""
    out = done.settings.out
    write_csv(done.results, out / "results.csv")
    write_json(
        done.results,
        out / "results.json",
        setup=_setup(done),
        paper=[asdict(claim) for claim in claims],
        left_out=done.left_out,
        failed=done.failed,
        took_s=done.took_s,
    )
    noise = noise_of({result.name: result for result in done.results})
    title = "ILDM reproduced" + (" (quick)" if done.settings.quick else "")
    made = [
        PageSection("The paper and this machine", _verdicts(claims, noise)),
        *_figures(done.results),
        sections.loss_section(done.results),
        sections.bottleneck_section(done.results),
        sections.cpu_section(done.results, os.cpu_count() or 1),
        sections.seconds_section(done.results, done.tables),
        sections.search_section(_searches(done)),
        _not_measured(done),
        sections.key_section("What it ran on", _setup(done)),
    ]
    html = page(title, HOW, [section for section in made if section is not None])
    (out / "report.html").write_text(html, encoding="utf-8")
    if done.settings.docs is not None:
        _write_docs(done.settings.docs, done, claims)


def _verdicts(claims: Sequence[Claim], noise: float) -> str:
    text = (
        "Ranges are what is left open: a limit is at most 5 % above what was found, and limits of "
        f"the same system differ by {noise:.1%} from one time to the next: 5 %, or as much as A-pf "
        "and A-sf, which do the same. Latencies differ if mean and median agree on it by a fifth."
    )
    rows = [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims]
    header = ("ILDM", "statement", "paper", "here", "holds")
    return paragraph(text) + table(header, rows)


def _figures(results: Sequence[Result]) -> list[PageSection | None]:
    singles, patterns, mixed = _groups(results)
    return [
        sections.limits_section(
            "Single brokers (Fig. 11)",
            "Bare brokers, without a node. Of a server's two emulated cores a broker of one thread "
            "(Mosquitto, Aedes, the embedded one) can use one, the others both.",
            singles,
            row=_broker,
            legend={},
        ),
        sections.limits_section(
            "Cooperation (Fig. 12)",
            "Mosquitto behind nodes: A one server; B, C and D five servers in a row, with no, high "
            "and low locality of the clients.",
            patterns,
            row=_pattern,
            legend=LEGEND,
        ),
        sections.limits_section(
            "Different brokers in one fabric (beyond the paper)",
            "The same patterns with another broker at each of the five servers, beside Mosquitto "
            "alone. Every publisher sends at the same interval, so the slowest broker decides.",
            mixed,
            row=_pattern,
            series=_series,
            legend=LEGEND,
        ),
    ]


def _groups(results: Sequence[Result]) -> tuple[list[Result], list[Result], list[Result]]:
    """Of Fig. 11, of Fig. 12, and beyond; the last two with what to compare with."""
    singles = [result for result in results if result.name.startswith("single-")]
    bare = [result for result in results if result.name == BARE]
    patterns = [r for r in results if not r.name.startswith(("single-", "mixed-"))]
    mixed = [result for result in results if result.name.startswith("mixed-")]
    beside = [
        pair
        for result in mixed
        for pair in (*(p for p in patterns if f"mixed-{p.name}" == result.name), result)
    ]
    return singles, [*bare, *patterns] if patterns else [], [*bare, *beside] if mixed else []


def _broker(result: Result) -> str:
    return result.name.removeprefix("single-")


def _pattern(result: Result) -> str:
    return "single" if result.name == BARE else result.scenario


def _series(result: Result) -> str:
    return "mixed" if result.name.startswith("mixed-") else result.algorithm


def _searches(done: Reproduced) -> dict[str, list[plots.Point]]:
    points = {}
    for name, searched in done.searched.items():
        scenario = done.experiments[name].scenario
        publishers = sum(place.publishers for place in scenario.place)
        points[name] = sections.search_points(searched.measurements, publishers, scenario.sp_ratio)
    return points


def _not_measured(done: Reproduced) -> PageSection | None:
    rows = [(name, "a broker is missing", why) for name, why in done.left_out.items()]
    rows += [(name, "failed", why) for name, why in done.failed.items()]
    rows += [
        (name, "no limit found", "; ".join(searched.found.notes))
        for name, searched in done.searched.items()
        if searched.found.outcome is None
    ]
    return PageSection("Not measured", table(("experiment", "", "why"), rows)) if rows else None


def _setup(done: Reproduced) -> dict[str, str]:
    emulation = load_scenario("C").emulation
    full = done.settings.timing.full
    brokers = dict.fromkeys(b for each in done.experiments.values() for b in each.brokers)
    lengths = sorted({r.window_s for r in done.results})
    return {
        **machine(),
        **{f"broker {broker}": broker_version(broker) for broker in brokers},
        "server": (
            f"{emulation.cpu:g} cores for a broker and its node, {emulation.cpu_per_process:g} for "
            f"each process of one thread, in periods of {emulation.period_ms:g} ms"
        ),
        "windows": f"{lengths[0]:g} to {lengths[-1]:g} s (the paper's: 60 s)" if lengths else "",
        "measurements at most": f"{full.duration_s:g} s, {full.trim_s:g} s cut at each end",
        "l-clients": f"a message every {done.settings.timing.latency_interval_s:g} s",
        "made at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "took": f"{done.took_s / 60:.1f} minutes",
    }


def _write_docs(folder: Path, done: Reproduced, claims: Sequence[Claim]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_figures(folder, _setup(done), _bars(done.results))
    text = [
        "<!-- written by `isthmus reproduce ildm --docs` -->",
        markdown(
            ("", "statement", "paper", "here", "holds"),
            [(c.source, c.statement, c.paper, c.ours, c.verdict) for c in claims],
        ),
        markdown(
            ("system", "interval", "ingress /s", "egress /s", "latency", "99 %", "lost", "limit"),
            [
                (
                    r.name,
                    f"{r.interval_ms:.4g} ms",
                    f"{r.ingress:,.0f}",
                    f"{r.egress:,.0f}",
                    milliseconds(r.latency_mean_ms) or "",
                    milliseconds(r.latency_p99_ms) or "",
                    f"{r.lost + r.latency_lost} of {r.expected + r.latency_expected:,}",
                    r.limited_by,
                )
                for r in done.results
            ],
        ),
        markdown(("", ""), list(_setup(done).items())),
    ]
    (folder / "ildm-tables.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


def _bars(results: Sequence[Result]) -> dict[str, Bars]:
    singles, patterns, mixed = _groups(results)
    return {
        name: Bars(*sections.limits_bars(chosen, row=row, series=_series, legend=legend))
        for name, chosen, row, legend in (
            ("ildm-single", singles, _broker, {}),
            ("ildm-patterns", patterns, _pattern, LEGEND),
            ("ildm-mixed", mixed, _pattern, LEGEND),
        )
        if chosen
    }
