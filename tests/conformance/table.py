"""Measures the whole matrix and writes docs/reference/brokers.md from it.

    PYTHONPATH=tests python -m conformance.table

Nothing on that page is written by hand but the introduction below; it takes a few minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.catalog import SCENARIOS
from conformance.matrix import FRAGILE, Cell, Outcome, all_cells, run_cells
from conformance.observation import Seen, differences
from conformance.sites import private_site, shared_site
from conformance.variants import add, variants_of
from isthmus.brokers import broker_class, create, names
from isthmus.brokers.artifacts import Artifact

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "brokers.md"

_INTRODUCTION = """\
# Brokers behind a node

A node relays what its broker does, faults included.  This page shows what the brokers that
Isthmus is tested with do, and it is measured: `PYTHONPATH=tests python -m conformance.table` runs
every scenario of `tests/conformance` with each client library (paho-mqtt, gmqtt, and raw
connections for what a library hides) directly at the broker and through a node in front of it,
and writes the page.

- ✓ what the standard demands was seen, directly and through the node alike;
- ✗ the broker itself does otherwise, by departing from the standard or by granting less than was
  asked for, and through the node exactly the same was seen; it is listed below the table;
- + the broker itself departs from the standard, and through the node it does not: packets sent
  before the CONNACK, which a node keeps back until then; it is listed too;
- = the standard leaves the matter to the broker; both sides saw the same;
- **≠** the node made a difference;
- an empty field: not for this version of MQTT.
"""


def _broker_version(name: str) -> str:
    if name == "embedded":
        return f"amqtt {version('amqtt')}"
    module = import_module(broker_class(name).__module__)
    artifact = getattr(module, "ARTIFACT", None)
    if isinstance(artifact, Artifact):
        return artifact.version
    package = {"rabbitmq": "rabbitmq-server"}.get(name, name)
    query = ["dpkg-query", "--show", "--showformat=${Version}", package]
    shown = subprocess.run(query, capture_output=True, text=True, check=True)
    return f"{shown.stdout} (Debian)"


def _run(name: str, folder: Path) -> dict[Cell, Outcome]:
    cells = [cell for cell in all_cells() if cell.broker == name]
    if name in FRAGILE:
        return run_cells(name, cells, partial(private_site, name, folder))
    with create(name) as broker:
        return run_cells(name, cells, partial(shared_site, broker, folder))


def _mark(outcomes: Iterable[Outcome]) -> str:
    found = list(outcomes)
    if not found:
        return ""
    if any(not each.agrees or each.error for each in found):
        return "**≠**"
    if any(each.direct.departure for each in found):
        return "+" if all(each.mended for each in found) else "✗"
    return "✓" if any(each.direct.allowed for each in found) else "="


def _title(name: str) -> str:
    return name.replace("-", " ")


def _columns() -> list[tuple[str, int]]:
    return [(name, level) for name in names() for level in broker_class(name).protocol_levels]


def _table(outcomes: Mapping[Cell, Outcome]) -> list[str]:
    columns = _columns()
    heads = [f"{name} {'5' if level == 5 else '3.1.1'}" for name, level in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    group = ""
    for scenario in sorted(SCENARIOS.values(), key=lambda each: _groups().index(each.group)):
        if scenario.group != group:
            group = scenario.group
            lines.append(f"| **{group}** |" + " |" * len(columns))
        marks = [
            _mark(
                each
                for cell, each in outcomes.items()
                if (cell.name, cell.broker, cell.level) == (scenario.name, name, level)
            )
            for name, level in columns
        ]
        lines.append(f"| {_title(scenario.name)} | {' | '.join(marks)} |")
    return lines


def _groups() -> list[str]:
    return list(dict.fromkeys(each.group for each in SCENARIOS.values()))


def _departures(outcomes: Mapping[Cell, Outcome]) -> list[str]:
    lines: list[str] = []
    for name, level in _columns():
        found: dict[tuple[str, str], list[str]] = {}
        for cell, outcome in outcomes.items():
            if (cell.broker, cell.level) == (name, level) and outcome.direct.departure:
                key = (cell.name, outcome.direct.departure)
                found.setdefault(key, []).append(cell.library)
        version_name = "5" if level == 5 else "3.1.1"
        lines += ["", f"### {name}, MQTT {version_name}", ""]
        order = list(SCENARIOS)
        lines += [
            f"- {_title(scenario)} ({', '.join(sorted(libraries))}): {_escaped(departure)}"
            for (scenario, departure), libraries in sorted(
                found.items(), key=lambda item: order.index(item[0][0])
            )
        ] or ["None seen."]
    return lines


def _varied(outcomes: Mapping[Cell, Outcome]) -> list[str]:
    usual: dict[tuple[str, int, str], list[Seen]] = {}
    for cell, each in outcomes.items():
        usual.setdefault((cell.broker, cell.level, cell.name), []).append(each.direct.seen)
    return [
        f"- {broker} {'5' if level == 5 else '3.1.1'}, {_title(name)}: "
        + _escaped(min((differences(variant, each) for each in seen), key=len))
        for (broker, level, name), seen in usual.items()
        for variant in variants_of(broker, level, name)
        if variant not in seen
    ]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("[", "\\[").replace("]", "\\]")


def render(outcomes: Mapping[Cell, Outcome]) -> str:
    """The page."""
    versions = [f"| {name} | {_broker_version(name)} |" for name in names()]
    return "\n".join(
        [
            _INTRODUCTION,
            "Versions:",
            "",
            "| broker | version |",
            "|---|---|",
            *versions,
            "",
            f"Cells: {len(outcomes)}; the node made a difference in "
            f"{sum(not each.agrees for each in outcomes.values())}.",
            "",
            "## Every scenario",
            "",
            *_table(outcomes),
            "",
            "## What the brokers themselves do otherwise",
            "",
            "What was seen, and what the standard demands; the same directly and through the node "
            "where the table has no +.",
            *_departures(outcomes),
            "",
            "## Beyond the scenarios",
            "",
            "- moquette cuts off now and then who subscribes while a retained message is deleted: "
            "1 to 5 of 400, directly "
            "(`PYTHONPATH=tests python -m conformance.moquette_retained`).",
            "",
            "## What varies",
            "",
            "Where the two sides differed, or a client found no answer to its CONNECT, the broker "
            "was asked again directly until nothing new came, and the node each time had to show "
            "one of the broker's variants. What brokers were seen to do directly, in this or an "
            "earlier measurement, beside what they do most often:",
            "",
            *(_varied(outcomes) or ["Nothing."]),
            "",
        ]
    )


def main() -> int:
    """Measure and write; 1 if the node made a difference."""
    outcomes: dict[Cell, Outcome] = {}
    for name in names():
        with TemporaryDirectory(prefix="isthmus-conformance-") as folder:
            outcomes.update(_run(name, Path(folder)))
        print(f"{name}: {sum(cell.broker == name for cell in outcomes)} cells", file=sys.stderr)
    for cell, outcome in outcomes.items():
        seen = [each.seen for each, _ in outcome.variants]
        if len(seen) > 1:
            add({(cell.broker, cell.level, cell.name): seen})
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(outcomes))
    differing = [each for each in outcomes.values() if not each.agrees or each.error]
    for each in differing:
        print(f"{each.cell}: {each.error or each.difference}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
