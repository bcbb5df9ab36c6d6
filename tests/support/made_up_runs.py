"""A made-up machine: systems of known capacity, searched and indexed without any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.bench.experiment import Searched
from isthmus.bench.limit.file import LimitFile, find_limit
from isthmus.bench.limit.search import LimitSearch, Trial, TrialOutcome
from isthmus.bench.report.results import IndexTables
from isthmus.reproduce.ildm.experiments import Experiment
from isthmus.reproduce.ildm.search import Begun, limit_path

__all__ = ["CAPACITY", "MadeUp", "losses_rows", "summary_row", "usage_rows"]

CAPACITY: Mapping[str, float] = {
    "single-mosquitto": 22_000.0,
    "single-embedded": 700.0,
    "single-aedes": 9_000.0,
    "single-moquette": 8_000.0,
    "single-ejabberd": 6_000.0,
    "single-hivemq": 7_000.0,
    "single-activemq": 9_500.0,
    "single-rabbitmq": 5_000.0,
    "A-pf": 20_500.0,
    "A-sf": 20_500.0,
    "B-pf": 29_000.0,
    "B-sf": 29_500.0,
    "C-pf": 33_000.0,
    "C-sf": 98_000.0,
    "D-pf": 32_000.0,
    "D-sf": 61_000.0,
    "mixed-C-sf": 22_000.0,
}


def summary_row(run: str, **values: Any) -> dict[str, Any]:
    """A row of the table `summary`; what is not given is that of a good run."""
    row: dict[str, Any] = {
        "run": run,
        "scenario": "single",
        "labels": [("broker", "mosquitto"), ("algorithm", "")],
        "interval_ns": 25_000_000,
        "window_s": 3.0,
        "ingress": 2_000.0,
        "egress": 20_000.0,
        "sp_ratio": 10.0,
        "limit_ratio": 1.0,
        "under_limit": True,
        "expected": 60_000,
        "delivered": 60_000,
        "lost": 0,
        "loss_rate": 0.0,
        "duplicates": 0,
        "order_violations": 0,
        "latency_count": 300,
        "latency_mean_us": 4_000.0,
        "latency_p50_us": 3_000,
        "latency_p99_us": 12_000,
        "latency_p999_us": 15_000,
        "latency_max_us": 16_000,
        "limited_by": "nothing",
        "notes": [],
    }
    return row | values


def usage_rows(run: str, servers: int) -> list[dict[str, Any]]:
    """Rows of the table `usage` for so many servers, one load process and the machine."""

    def row(node: str, process: str, cores: float, throttled: float | None) -> dict[str, Any]:
        return {
            "run": run,
            "node": node,
            "process": process,
            "cpu_cores": cores,
            "cpu_cores_max": cores * 1.1,
            "rss_mean_bytes": 1e7,
            "rss_max_bytes": 10**7,
            "throttled_share": throttled,
        }

    rows = [row("", "machine", 0.5 + 0.2 * servers, None), row("", "load:w0", 0.3, None)]
    for number in range(servers):
        rows.append(row(f"n{number + 1}", "broker", 0.09, 0.3 + number / 100))
        rows.append(row(f"n{number + 1}", "node", 0.05, 0.3 + number / 100))
    return rows


def losses_rows(run: str, lost: int = 0) -> list[dict[str, Any]]:
    """Rows of the table `losses` for one t-client and one l-client that subscribe."""
    return [
        {"run": run, "scope": scope, "name": name, "expected": 100, "lost": lost}
        for scope, name in (
            ("topic", "topic6"),
            ("subscriber", "t-sub-1@n1"),
            ("subscriber", "l-sub-9@n1"),
        )
    ]


class MadeUp:
    """Stands for `search_limit` and for the Spark job; remembers what was measured."""

    def __init__(self, capacity: Mapping[str, float] = CAPACITY) -> None:
        self.capacity = capacity
        self.measured: list[str] = []
        self.rows: dict[str, dict[str, Any]] = {}
        self.usage: list[dict[str, Any]] = []
        self.seconds: list[dict[str, Any]] = []
        self.failing: dict[str, list[Exception]] = {}
        """By experiment, what goes wrong each time that it is tried."""

    def search(
        self,
        out: Path,
        experiment: Experiment,
        begun: Begun,
        *,
        progress: object = None,
        tell: Callable[[Trial, TrialOutcome], None] = lambda trial, outcome: None,
    ) -> Searched:
        """The real search and its file, on a system that answers at once."""
        if self.failing.get(experiment.name):
            raise self.failing[experiment.name].pop(0)
        path = limit_path(out, experiment)
        with LimitFile(path, begun.scenario, experiment.labels, begun.options) as file:

            def measure(trial: Trial) -> TrialOutcome:
                outcome = self._measure(experiment, begun, trial)
                tell(trial, outcome)
                return outcome

            found = find_limit(measure, LimitSearch(begun.options), file)
            return Searched(found, tuple(file.measurements), tuple(file.notes))

    def compute(self, log: Path, out: Path, runs: Sequence[str]) -> IndexTables:
        """The tables as the job would have them."""
        return {
            "summary": [self.rows[run] for run in runs],
            "usage": self.usage,
            "per_second": self.seconds,
            "losses": [row for run in runs for row in losses_rows(run)],
        }

    def _measure(self, experiment: Experiment, begun: Begun, trial: Trial) -> TrialOutcome:
        publishers = sum(place.publishers for place in begun.scenario.place)
        ingress = publishers * 1e9 / trial.interval_ns
        egress = min(ingress * 10, self.capacity[experiment.name])
        run = f"{experiment.name}-{trial.number:03d}"
        self.measured.append(run)
        self.rows[run] = summary_row(
            run,
            scenario=experiment.scenario.name,
            labels=list(experiment.labels.items()),
            interval_ns=trial.interval_ns,
            ingress=ingress,
            egress=egress,
            limit_ratio=egress / (ingress * 10),
            under_limit=egress / (ingress * 10) >= 0.99,
        )
        self.usage += usage_rows(run, len(experiment.brokers))
        self.seconds += [
            {
                "run": run,
                "second": second,
                "in_window": 0 < second < 4,
                "ingress": ingress,
                "egress": egress,
            }
            for second in range(5)
        ]
        row = self.rows[run]
        return TrialOutcome(
            run, row["under_limit"], row["limit_ratio"], ingress, egress, 0.0, True, "brokers"
        )
