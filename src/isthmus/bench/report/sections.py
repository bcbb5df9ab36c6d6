"""The parts of a report, each made from results and from the tables of the indexes.

Whoever writes a report chooses among them, as :mod:`isthmus.reproduce.ildm.report` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isthmus.bench.limit.file import MeasuredTrial
from isthmus.bench.report import plots
from isthmus.bench.report.page import PageSection, figure, folded, paragraph, table
from isthmus.bench.report.results import IndexTables, Result, milliseconds, rows_of_run
from isthmus.pipeline.count.tables import UNDER_LIMIT

__all__ = [
    "bottleneck_section",
    "cpu_section",
    "key_section",
    "limits_bars",
    "limits_section",
    "loss_section",
    "search_points",
    "search_section",
    "seconds_section",
]

ALGORITHMS: Mapping[str, str] = {"": "bare broker", "pf": "PF", "sf": "SF"}
Searches = Mapping[str, Sequence[plots.Point]]


def limits_section(
    title: str,
    text: str,
    results: Sequence[Result],
    *,
    row: Callable[[Result], str] | None = None,
    series: Callable[[Result], str] = lambda result: result.algorithm,
    legend: Mapping[str, str] = ALGORITHMS,
) -> PageSection | None:
    """Bars of ingress, egress and latency (ILDM Fig. 11 and 12), and the figures as a table."""
    if not results:
        return None
    row = row or (lambda result: result.name)
    drawn = plots.limit_bars(*limits_bars(results, row=row, series=series, legend=legend))
    body = [paragraph(text)] if text else []
    body.append(figure(plots.svg(drawn, title), title + "; values are those of the table below."))
    body.append(_table(_LIMITS, results))
    return PageSection(title, "\n".join(body))


def limits_bars(
    results: Sequence[Result],
    *,
    row: Callable[[Result], str],
    series: Callable[[Result], str],
    legend: Mapping[str, str],
) -> tuple[tuple[plots.Bar, ...], dict[str, str]]:
    """What :func:`isthmus.bench.report.plots.limit_bars` draws: the bars and their legend."""
    bars = tuple(
        plots.Bar(
            row(result),
            series(result),
            result.ingress,
            result.egress,
            result.latency_mean_ms,
            result.latency_p50_ms,
            result.latency_p99_ms,
            result.is_lower_bound,
        )
        for result in results
    )
    used = {bar.series for bar in bars}
    return bars, {key: legend.get(key, key) for key in [*legend, *used] if key in used}


def loss_section(results: Sequence[Result]) -> PageSection:
    """Loss, duplicates and order at each result's interval."""
    text = (
        "Of the messages that t-clients sent within the window: how many deliveries the fan-out "
        "makes of them, how many of those never came, came twice, or came after a later one of "
        "the same publisher."
    )
    return PageSection("Loss at the limit", paragraph(text) + _table(_LOSSES, results))


def bottleneck_section(results: Sequence[Result]) -> PageSection:
    """What gave way first, and how sure one can be."""
    text = (
        "What kept the next smaller interval from being under the limit. Where that was not the "
        "brokers, their own limit is at least what was found. The error is by how much the true "
        "limit can be larger. Cores and throttling are those of the run at the limit; throttled is "
        "how long a CPU quota kept the server waiting, summed over the machine's cores."
    )
    return PageSection("Who was the bottleneck", paragraph(text) + _table(_BOTTLENECKS, results))


def cpu_section(results: Sequence[Result], cores: int) -> PageSection | None:
    """Cores in use by brokers, nodes, load tool and everything else."""
    rows = [(result.name, _shares(result)) for result in results if result.cpu is not None]
    if not rows:
        return None
    legend = {
        "broker": "brokers",
        "node": "nodes",
        "load": "load tool",
        "other": "everything else on the machine",
    }
    drawn = plots.cpu_bars(rows, cores=cores, legend=legend)
    caption = "Average over the run at the limit. Everything else includes the watch itself."
    return PageSection("CPU", figure(plots.svg(drawn, "cores in use"), caption))


def seconds_section(results: Sequence[Result], tables: IndexTables) -> PageSection | None:
    """Throughput per second of each run (ILDM §5.2)."""
    runs = {
        result.name: [
            (row["second"], row["in_window"], row["ingress"] * result.sp_ratio, row["egress"])
            for row in sorted(
                rows_of_run(tables, "per_second", result.run), key=lambda row: int(row["second"])
            )
        ]
        for result in results
    }
    if not any(runs.values()):
        return None
    drawn = plots.seconds_lines(runs)
    caption = "Dashed: ingress times sp-ratio, what should come out. Blue: egress."
    return PageSection("Per second", figure(plots.svg(drawn, "throughput per second"), caption))


def search_section(searches: Searches) -> PageSection | None:
    """Every measurement of every search."""
    if not searches:
        return None
    drawn = plots.search_points(searches)
    caption = (
        f"Dots are under the limit, crosses are not. Dashed: the {UNDER_LIMIT} of Definition 1. A "
        "cross above it did not count for another reason: publishers were held back, or messages "
        "piled up."
    )
    return PageSection(
        "The search", figure(plots.svg(drawn, "measurements of the search"), caption)
    )


def search_points(
    measurements: Sequence[MeasuredTrial], publishers: int, sp_ratio: float
) -> list[plots.Point]:
    """The measurements of a search, as points."""
    return [
        plots.Point(
            publishers * 1e9 / each.trial.interval_ns * sp_ratio,
            each.outcome.ratio,
            each.outcome.satisfies,
        )
        for each in measurements
    ]


def key_section(title: str, values: Mapping[str, str]) -> PageSection:
    """Names and values."""
    return PageSection(title, table(("", ""), list(values.items())))


def _shares(result: Result) -> dict[str, float]:
    cpu = result.cpu
    assert cpu is not None
    ours = cpu.brokers + cpu.nodes + cpu.load
    other = 0.0 if cpu.machine is None else max(0.0, cpu.machine - ours)
    return {"broker": cpu.brokers, "node": cpu.nodes, "load": cpu.load, "other": other}


def _shown(value: float | None, how: str) -> str | None:
    return None if value is None else how.format(value)


def _at_least(result: Result, value: float) -> str:
    return ("≥ " if result.is_lower_bound else "") + f"{value:,.0f}"


def _cores(result: Result, of: str) -> str | None:
    return None if result.cpu is None else _shown(getattr(result.cpu, of), "{:.2f}")


_Columns = Mapping[str, Callable[[Result], object]]

_LIMITS: _Columns = {
    "system": lambda result: result.name,
    "interval": lambda result: _shown(result.interval_ms, "{:.4g} ms"),
    "ingress /s": lambda result: _at_least(result, result.ingress),
    "egress /s": lambda result: _at_least(result, result.egress),
    "ratio (Def. 1)": lambda result: _shown(result.limit_ratio, "{:.4f}"),
    "latency mean": lambda result: milliseconds(result.latency_mean_ms),
    "50 %": lambda result: milliseconds(result.latency_p50_ms),
    "99 %": lambda result: milliseconds(result.latency_p99_ms),
    "max": lambda result: milliseconds(result.latency_max_ms),
    "messages timed": lambda result: result.latency_count,
}
_LOSSES: _Columns = {
    "system": lambda result: result.name,
    "expected": lambda result: result.expected,
    "lost": lambda result: result.lost,
    "loss rate": lambda result: _shown(result.loss_rate, "{:.6f}"),
    "duplicates": lambda result: result.duplicates,
    "out of order": lambda result: result.order_violations,
    "l-clients: lost": lambda result: f"{result.latency_lost:,} of {result.latency_expected:,}",
}
_BOTTLENECKS: _Columns = {
    "system": lambda result: result.name,
    "gave way first": lambda result: result.limited_by or "nobody watched",
    "so the limit is": lambda result: "at least" if result.is_lower_bound else "the brokers' own",
    "error": lambda result: _shown(result.error, "{:.1%}"),
    "measurements": lambda result: result.measurements,
    "cores, busiest server": lambda result: _cores(result, "busiest_server"),
    "throttled, s/s": lambda result: _cores(result, "throttled_share"),
    "cores, load tool": lambda result: _cores(result, "load"),
    "notes": lambda result: folded(list(dict.fromkeys(result.notes))),
}


def _table(columns: _Columns, results: Sequence[Result]) -> str:
    return table(list(columns), [[show(each) for show in columns.values()] for each in results])
