"""Puts the recorded kills into their pages: ``PYTHONPATH=tests python -m e2e.kill_table``.

`make kill` writes docs/explanation/kill.json, kill-confirm.json and kill-tree.json; what the pages
of the guarantees and of `tree` say of them stands between two marks and is written from those
files, by no hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "APART_RECORD",
    "CONFIRM_RECORD",
    "PAGE",
    "RECORD",
    "TREE_PAGE",
    "TREE_RECORD",
    "main",
    "with_apart_table",
    "with_confirm_table",
    "with_table",
    "with_tree_table",
]

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
PAGE = DOCS / "guarantees.md"
RECORD = DOCS / "kill.json"
CONFIRM_RECORD = DOCS / "kill-confirm.json"
TREE_PAGE = DOCS / "tree.md"
TREE_RECORD = DOCS / "kill-tree.json"
APART_RECORD = DOCS / "apart.json"
AWAY_RECORD = DOCS / "apart-away.json"
APART_MARKED = re.compile(r"(<!-- apart -->\n).*(<!-- /apart -->)", re.DOTALL)
MARKED = re.compile(r"(<!-- kill -->\n).*(<!-- /kill -->)", re.DOTALL)
CONFIRM_MARKED = re.compile(r"(<!-- kill-confirm -->\n).*(<!-- /kill-confirm -->)", re.DOTALL)


def with_table(page: str, record: dict[str, Any]) -> str:
    """`page` with what `record` says between the marks."""
    return MARKED.sub(lambda found: f"{found[1]}{_described(record)}\n{found[2]}", page)


def with_confirm_table(page: str, record: dict[str, Any]) -> str:
    """The same of what was killed with ``confirm = "fabric"``."""
    return CONFIRM_MARKED.sub(lambda found: f"{found[1]}{_described(record)}\n{found[2]}", page)


def _described(record: dict[str, Any]) -> str:
    plan, machine = record["plan"], record["machine"]
    lines = [
        f"{plan['messages_per_s_and_publisher']:g} messages a second of each publisher at QoS "
        f"{plan['qos']}; a process is started again {plan['restart_after_s']:g} s after its end. "
        f"Commit {record['commit']}, {record['date'][:10]}, {machine['cores']} cores, load "
        f"{machine['load_average'][0]:.0f} when it ended.",
        "",
        "| ended | times | expected | lost | twice | flowing again, s |",
        "|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        lines += [f"| **{_title(run)}** | | | | | |", *_rows(run["faults"])]
    return "\n".join(lines)


def _title(run: dict[str, Any]) -> str:
    how = "SIGTERM" if run["faults"][0]["fault"].startswith("stopped") else "SIGKILL"
    state = "`state_dir`" if run["state_dir"] else "no `state_dir`"
    name = run["algorithm"]
    shown = name.upper() if len(name) == 2 else f"`{name}`"
    confirm = ', `confirm = "fabric"`' if run.get("confirm") == "fabric" else ""
    return f"{shown}, {state}{confirm}, {how}"


def _rows(faults: Iterable[dict[str, Any]]) -> Iterator[str]:
    of_fault: dict[str, list[dict[str, Any]]] = {}
    for each in faults:
        of_fault.setdefault(each["fault"].replace("stopped", "node"), []).append(each)
    for name, found in of_fault.items():
        expected, lost, twice = (
            sum(each[key] for each in found) for key in ("expected", "lost", "duplicated")
        )
        least, most = (bound(each["recovery_s"] for each in found) for bound in (min, max))
        yield (
            f"| {name} | {len(found)} | {expected:,} | {lost:,} | {twice:,} | "
            f"{least:.1f}-{most:.1f} |"
        )


def with_apart_table(page: str, record: dict[str, Any]) -> str:
    """`page` with what `record` says of brokers that hang between the marks."""
    plan, machine = record["plan"], record["machine"]
    lines = [
        f"{plan['messages_per_s_and_publisher']:g} messages a second of each of two publishers at "
        f"QoS {plan['qos']}. Commit {record['commit']}, {record['date'][:10]}, {machine['cores']} "
        f"cores, load {machine['load_average'][0]:.0f} when it ended.",
        "",
        "| algorithm | stopped, s | the others, messages a second: before, meanwhile (slowest) | "
        "on disk at the end | missing, twice, out of order | all there after, s |",
        "|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        before, meanwhile = run["rate_before_per_s"], run["rate_while_stopped_per_s"]
        slowest = min(before, key=lambda name: meanwhile[name] / before[name])
        lines.append(
            f"| `{run['algorithm']}` | {run['stopped_s']:g} | {before[slowest]:g}, "
            f"{meanwhile[slowest]:g} | {run['messages_on_disk']:,} of {run['sent']:,} | "
            f"{run['missing']}, {run['twice']}, {run['out_of_order']} | "
            f"{run['all_there_after_s']:g} |"
        )
    away = json.loads(AWAY_RECORD.read_text())
    # A record from before these were noted is shown without them.
    taken = f"commit {away['commit']}, {away['time'][:10]}, " if "commit" in away else ""
    bound = (
        f" (at most {away['unacknowledged_at_kill']:,}, what was not acknowledged at the kill)"
        if "unacknowledged_at_kill" in away
        else ""
    )
    lines += [
        "",
        f"And `make bench-apart`, a node that is killed while its neighbor, with a `state_dir`, "
        f"publishes on ([apart-away.json](apart-away.json)): away for {away['away_s']:g} s at "
        f"{away['rate_per_s']:,.0f} messages a second ({taken}load "
        f"{away['load_average'][0]:.0f} when it ended), the other neighbor got "
        f"{away['kept_rate']:.0%} of its rate; "
        f"{away['disk_bytes'] / 1e6:.1f} MB were on disk, memory grew from "
        f"{away['memory_before_bytes'] / 1e6:.0f} to {away['memory_most_bytes'] / 1e6:.0f} MB. Of "
        f"{away['sent']:,} messages {away['missing']} were missing, "
        f"{away['twice']} came twice{bound}, "
        f"{away['out_of_order']} out of order; all were there {away['caught_up_after_s']:g} s "
        "after its return.",
    ]
    text = "\n".join(lines)
    return APART_MARKED.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def with_tree_table(page: str, record: dict[str, Any]) -> str:
    """The page of `tree` with what `record` says between the marks."""
    plan, machine = record["plan"], record["machine"]
    lines = [
        f"{plan['nodes']} nodes, at each a publisher of QoS 1 and one of QoS 2 with "
        f"{plan['messages_per_s_and_publisher']:g} messages a second. Commit {record['commit']}, "
        f"{record['date'][:10]}, {machine['cores']} cores, load {machine['load_average'][0]:.0f} "
        "when it ended.",
        "",
        "| killed | times | expected | lost | twice | flowing again, s | slowest message, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        lines.append(f"| **`{run['algorithm']}`** | | | | | | |")
        of_kind: dict[str, list[dict[str, Any]]] = {}
        for each in run["kills"]:
            of_kind.setdefault(f"{each['role']}, {each['links']}", []).append(each)
        for kind, found in sorted(of_kind.items()):
            expected, lost, twice = (
                sum(each[key] for each in found) for key in ("expected", "lost", "doubled")
            )
            flowing_s = sorted(each["flowing_s"] for each in found)
            lines.append(
                f"| {kind} | {len(found)} | {expected:,} | {lost:,} | {twice:,} | "
                f"{flowing_s[0]:.2f}-{flowing_s[-1]:.2f} | "
                f"{max(each['slowest_s'] for each in found):.2f} |"
            )
    text = "\n".join(lines)
    return MARKED.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def main() -> int:
    """Write the pages anew."""
    page = with_table(PAGE.read_text(), json.loads(RECORD.read_text()))
    page = with_confirm_table(page, json.loads(CONFIRM_RECORD.read_text()))
    PAGE.write_text(with_apart_table(page, json.loads(APART_RECORD.read_text())))
    record = json.loads(TREE_RECORD.read_text())
    TREE_PAGE.write_text(with_tree_table(TREE_PAGE.read_text(), record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
