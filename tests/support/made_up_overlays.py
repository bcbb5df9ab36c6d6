"""A made-up evaluation of overlays: measurements and tables without any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isthmus.bench.report.results import IndexTables
from isthmus.reproduce.overlays.experiments import (
    CONTENDERS,
    Experiment,
    Parameters,
    Setting,
)
from isthmus.reproduce.overlays.jobs import KEYS, MEASURES
from isthmus.reproduce.overlays.measuring import Converged, Measured, Repaired, measured_path

__all__ = ["LIKE_THE_PAPER", "MadeUpOverlays", "cell", "cells_of", "grid_of", "measured"]

Figures = Callable[[Setting, str], Mapping[str, Any]]


def like_the_paper(setting: Setting, contender: str) -> dict[str, Any]:
    """Figures with which every statement of the paper holds."""
    topic_based = contender in ("capacity", "balance")
    local = setting.locality == 100
    delay_ms = {"flooding": 50.0, "single": 48.0, "capacity": 20.0, "balance": 22.0}[contender]
    share = {"flooding": 1.0, "single": 0.1, "capacity": 0.03, "balance": 0.03}[contender]
    if topic_based and local:
        share = 0.0
    data = 80.0 * setting.payload_bytes * share * (10 if setting.stress else 1)
    grown = 1 + (15.0 - 0.3) / 57 * (setting.topics - 3) + 0.3 if topic_based else 1.0
    busy = 1.22 * (1 + (setting.topics - 30) / 600) if topic_based and setting.stress else 1.0
    return {
        "delay_ms": 1.0 if local else delay_ms,
        "publications_bytes_s": data,
        "publications_bytes": data * 50,
        "publications": round(data * 50 / setting.payload_bytes),
        "publications_s": data / setting.payload_bytes,
        "signalling_bytes_s": 100.0 * grown,
        "signalling_bytes": 50_000.0 * grown,
        "node_cores": 0.2 * busy,
        "broker_cores": 0.05 * busy,
    }


LIKE_THE_PAPER: Figures = like_the_paper


def cell(setting: Setting, contender: str, round_number: int, **figures: Any) -> dict[str, Any]:
    """A row of the table `cells`; what is not given is that of a good run."""
    experiment = Experiment(setting, CONTENDERS[contender])
    row: dict[str, Any] = {
        "run": experiment.run(round_number),
        "experiment": experiment.name,
        "contender": contender,
        "round": round_number,
        "locality": setting.locality,
        "topics": setting.topics,
        "payload_bytes": setting.payload_bytes,
        "stress": setting.stress,
        "window_s": 3.0,
        "expected": 100,
        "lost": 0,
        "loss_rate": 0.0,
        "duplicates": 0,
        "limited_by": "nothing",
        "delay_ms": 10.0,
        "delay_p99_ms": 30.0,
        "delay_max_ms": 40.0,
        "publications_bytes_s": 1000.0,
        "publications_bytes": 5000.0,
        "publications": 5,
        "publications_s": 1.0,
        "signalling_bytes_s": 100.0,
        "signalling_bytes": 50_000.0,
        "node_cores": 0.2,
        "broker_cores": 0.05,
        "node_rss_bytes": 2.0e8,
        "broker_rss_bytes": 3.0e7,
        "topics_used": 3,
        "member_sets": 3,
    }
    return row | figures


def cells_of(settings: Sequence[Setting], rounds: int, figures: Figures) -> list[dict[str, Any]]:
    """Of every contender in every setting."""
    return [
        cell(setting, contender, number, **figures(setting, contender))
        for number in range(1, rounds + 1)
        for setting in settings
        for contender in CONTENDERS
    ]


def grid_of(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As the Spark job makes `grid` of `cells`."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in cells:
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    found = []
    for key, rows in groups.items():
        made: dict[str, Any] = {**dict(zip(KEYS, key, strict=True)), "rounds": len(rows)}
        for name in MEASURES:
            values = [row[name] for row in rows]
            made |= {
                f"{name}_mean": sum(values) / len(values),
                f"{name}_deviation": None,
                f"{name}_least": min(values),
                f"{name}_most": max(values),
            }
        found.append(made)
    return found


def measured(experiment: Experiment, round_number: int, **changes: Any) -> Measured:
    """A measurement in which all went well."""
    found: dict[str, Any] = {
        "run": experiment.run(round_number),
        "experiment": experiment.name,
        "round": round_number,
        "converged": Converged(2.5, 0.3, "n1", {"n1": "", "n2": "n1"}, 30),
        "rebuilt": False,
        "repaired": Repaired("n2", "leaf", 0.2) if experiment.setting.repairs else None,
        "counted": {"ingress": 20.0, "egress": 30.0, "expected": 100, "lost": 0},
        "load_average": 0.5,
        "took_s": 9.0,
    }
    return Measured(**found | changes)


class MadeUpOverlays:
    """Stands for `measure` and for the Spark jobs."""

    def __init__(self, figures: Figures = LIKE_THE_PAPER) -> None:
        self.figures = figures
        self.made: list[str] = []
        self.failing: dict[str, list[Exception]] = {}
        """What goes wrong with a run, one time after the other."""

    def measure(
        self,
        out: Path,
        parameters: Parameters,
        experiment: Experiment,
        round_number: int,
        scenario: object,
        *,
        progress: object = None,
    ) -> Measured:
        run = experiment.run(round_number)
        if self.failing.get(run):
            raise self.failing[run].pop(0)
        self.made.append(run)
        found = measured(experiment, round_number)
        path = measured_path(out, run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)))
        return found

    def compute(self, log: Path, out: Path, runs: Sequence[str]) -> IndexTables:
        cells = []
        for run in runs:
            name, _, number = run.rpartition("-")
            setting, _, contender = name.rpartition("-")
            made = _setting(setting)
            cells.append(cell(made, contender, int(number), **self.figures(made, contender)))
        counted = {"ingress": 20.0, "egress": 30.0, "expected": 100, "lost": 0}
        summary = [{"run": run, "notes": [], **counted} for run in runs]
        return {"cells": cells, "grid": grid_of(cells), "summary": summary}


def _setting(name: str) -> Setting:
    stress = name.endswith("-stress")
    locality, topics, *payload = name.removesuffix("-stress").split("-")
    size = int(payload[0][1:]) if payload else 1000
    return Setting(int(locality[1:]), int(topics[1:]), size, stress)
