"""Puts the recorded figures into the documentation: ``python -m isthmus.sim.figures [--check]``.

`make soak` and `make fuzz-node` write small JSON files beside the simulator's page; what that page
and geo's say of them stands between two marks and is written from them, by nobody's hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["DOCS", "main", "with_figures"]

DOCS = Path(__file__).parents[3] / "docs" / "explanation"
PAGES = ("exact-simulator.md", "geo.md")


def with_figures(page: str, folder: Path) -> str:
    """`page` with what the records in `folder` say; a mark without a record stays as it is."""
    kinds = ("", "-trees", "-stars", "-confirm", "-brokers", "-rules", "-source", "-geo")
    soaks = dict.fromkeys([f"soak{kind}" for kind in kinds], _soak)
    for name, describe in (soaks | {"fuzz-node": _fuzz}).items():
        record = folder / f"{name}.json"
        if record.exists():
            text = describe(json.loads(record.read_text()))
            page = re.sub(
                rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
                lambda found, text=text: f"{found[1]}{text}\n{found[2]}",  # type: ignore[misc]
                page,
                flags=re.DOTALL,
            )
    return page


def _origin(record: dict[str, Any]) -> str:
    return (
        f"commit {record['commit']}, {record['date'][:10]}, {record['machine']}, "
        f"{record['seconds'] / 60:.0f} minutes"
    )


def _soak(record: dict[str, Any]) -> str:
    lines = [
        f"The last long run ({_origin(record)}; seeds {record['seeds'][0]} to "
        f"{record['seeds'][1]}):",
        "",
        "| algorithm | schedules | failures | messages | deliveries | simulated hours |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in record["algorithms"].items():
        lines.append(
            f"| {name} | {run['schedules']:,} | {run['failures']:,} | {run['messages']:,} | "
            f"{run['deliveries']:,} | {run['simulated_s'] / 3600:.0f} |"
        )
    for name, run in record["algorithms"].items():
        if checked := run.get("checked"):
            shown = ", ".join(f"{what} {count:,}" for what, count in checked.items())
            lines += ["", f"Checked at the ends of {name}'s schedules: {shown}."]
    first = next(iter(record["algorithms"].values()))
    shown = ", ".join(f"{name} {count:,}" for name, count in sorted(first["actions"].items()))
    profiles = ", ".join(f"{name} {count:,}" for name, count in sorted(first["profiles"].items()))
    if profiles:
        lines += ["", f"Schedules by profile: {profiles}."]
    return "\n".join([*lines, "", f"Actions by kind: {shown}."])


def _fuzz(record: dict[str, Any]) -> str:
    return (
        f"The last long run ({_origin(record)}, seed {record['seed']}): "
        f"{record['packets']:,} packets in {record['episodes']:,} episodes, "
        f"{record['messages_relayed']:,} messages relayed, "
        f"{record['messages_to_the_fabric']:,} to the fabric, "
        f"{record['failures']} failures, {record['packets_per_s']:,} packets a second."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m isthmus.sim.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether it is up to date")
    given = parser.parse_args(arguments)
    stale = False
    for page in (DOCS / name for name in PAGES):
        before = page.read_text()
        after = with_figures(before, DOCS)
        stale = stale or before != after
        if not given.check:
            page.write_text(after)
    return int(given.check and stale)


if __name__ == "__main__":
    sys.exit(main())
