"""Neighbors, topology and rings as tables on a terminal, for ``isthmus peers`` and ``status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus.fabric.joining import Joined
from isthmus.node.neighbors import neighbors

__all__ = ["fabric_tables", "joined_lines", "peers_table", "printable", "ring_lines", "state_line"]

COLORS = {"active": "green", "blocked": "yellow", "learning": "yellow"}
NUMBERS = ("lanes", "qos", "sent", "dropped", "unacknowledged")
COLUMNS = ("neighbor", "address", "state", *NUMBERS)


def printable(value: object) -> str:
    """What others named themselves must neither style nor drive the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def peers_table(answer: Mapping[str, Any], console: Console) -> None:
    """What ``/api/peers`` says, and what to do about rings."""
    rows = answer.get("peers", [])
    if not rows:
        console.print("No neighbors.")
    else:
        console.print(_peers(rows))
    reasons = [state_line(row) for row in rows if row.get("why")]
    for line in [*reasons, *rule_lines(rows), *ring_lines(answer)]:
        console.print(Text(line), soft_wrap=True)


def _peers(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for key in COLUMNS:
        table.add_column(
            key.replace("unacknowledged", "unacked"),
            justify="right" if key in NUMBERS else "left",
            no_wrap=key == "address",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_cell(key, row.get(key)) for key in COLUMNS))
    return table


def _cell(key: str, value: object) -> Text:
    if value is None or value == "":
        return Text("-")
    if key == "state":
        return Text(str(value), style=COLORS.get(str(value), "red"))
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text(printable(value))


def rule_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What may cross links, of those that not everything may."""
    lines = []
    for row in rows:
        rules = row.get("rules")
        if not rules:
            continue
        name = row.get("neighbor") or row.get("address")
        line = f"Link to {name}: out {_filters(rules['out'])}, in {_filters(rules['in'])}"
        if rules["prefix"]:
            line += f"; topics get the prefix {rules['prefix']} when they leave"
        elif rules["prefix_there"]:
            line += f"; what crosses begins with {rules['prefix_there']} here"
        lines.append(f"{line} (set by {' and '.join(rules['set_by'])}).")
        lines += [
            f"The two ends of it have different rules; what both allow crosses. {difference}"
            for difference in rules["differ"]
        ]
        if row.get("rules_refused"):
            lines.append(
                f"{row['rules_refused']:,} times {name} sent what may not cross; it was dropped."
            )
    return [printable(line) for line in lines]


def _filters(filters: Sequence[str] | None) -> str:
    if filters is None:
        return "everything"
    return ", ".join(filters) or "nothing"


def ring_lines(answer: Mapping[str, Any]) -> list[str]:
    """Which rings there are, and which link to cut."""
    lines = []
    for found in answer.get("rings", []):
        ring = " - ".join([*found["ring"], found["ring"][0]])
        one, other = found["cut"]
        lines.append(
            f"Ring: {ring}. The link {one} - {other} is blocked and stands by; messages pass once "
            f"and do not circulate. To end the ring, cut it: on {one}, `isthmus peers remove "
            f"{other}`."
        )
    return [printable(line) for line in lines]


def state_line(row: Mapping[str, Any]) -> str:
    """One neighbor in one sentence."""
    name = row.get("neighbor") or row.get("address")
    why = f": {row['why']}" if row.get("why") else ""
    return printable(f"{name} is {row['state']}{why}")


def fabric_tables(status: Mapping[str, Any], console: Console) -> None:
    """The ``fabric`` section of a node's status."""
    fabric = status["fabric"]
    console.print("neighbors", style="bold")
    peers_table(neighbors(status), console)
    for node, lives in fabric.get("topology", {}).get("duplicates", {}).items():
        line = f"{len(lives)} nodes of the fabric are called {node}; give each its own id."
        console.print(Text(printable(line)), soft_wrap=True)
    facts = Table(title="fabric", title_justify="left", title_style="bold", show_header=False)
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(fabric):
        facts.add_row(Text(printable(name)), Text(printable(value)))
    console.print(facts)
    paths = fabric.get("topology", {}).get("paths", {})
    if paths:
        console.print(_paths(paths))


def _facts(fabric: Mapping[str, Any]) -> list[tuple[str, object]]:
    algorithm = dict(fabric.get("algorithm", {}))
    retained, wills = fabric.get("retained", {}), fabric.get("wills", {})
    facts: list[tuple[str, object]] = [("algorithm", algorithm.pop("name", "-"))]
    facts += _leaves("", algorithm)
    facts.append(("nodes known", ", ".join(fabric.get("topology", {}).get("nodes", []))))
    facts += _announcements(fabric.get("discovery", {}))
    facts.append(
        ("retained", f"{retained.get('topics', 0):,} topics, {retained.get('bytes', 0):,} bytes")
    )
    facts.append(
        ("wills", f"{wills.get('armed', 0):,} armed, {wills.get('waiting', 0):,} in their delay")
    )
    in_hand = fabric.get("in_hand", {})
    total, alone = in_hand.get("messages", 0), in_hand.get("only_here", 0)
    facts.append(("in hand", f"{total:,} messages of neighbors, {alone:,} of them only here"))
    facts += [
        (f"{row['neighbor']} waits for {row['waits_for']}", f"{row['messages']:,} messages")
        for row in in_hand.get("waiting", [])
    ]
    facts += [
        (name.replace("_", " "), f"{count:,}")
        for name, count in sorted(fabric.get("counters", {}).items())
    ]
    facts += [
        (f"refused: {cause}", f"{count:,}")
        for cause, count in sorted(fabric.get("refusals", {}).items())
    ]
    return facts


def _announcements(discovery: Mapping[str, Any]) -> list[tuple[str, object]]:
    sent, heard = discovery.get("announced", 0), discovery.get("heard", 0)
    ignored = sorted(discovery.get("ignored", {}).items())
    if not (sent or heard or ignored):
        return []
    return [
        ("announcements", f"{sent:,} sent, {heard:,} heard"),
        *((f"announcements ignored: {cause}", f"{count:,}") for cause, count in ignored),
    ]


def _leaves(prefix: str, value: Mapping[str, Any]) -> list[tuple[str, object]]:
    """An algorithm's own facts, of which nothing is known here: one line each."""
    lines: list[tuple[str, object]] = []
    for name, inner in value.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(inner, Mapping):
            lines += _leaves(f"{label} ", inner)
        else:
            lines.append((printable(label), _leaf(inner)))
    return lines


def _leaf(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_leaf(item) for item in value) or "-"
    return str(value)


def _paths(paths: Mapping[str, Sequence[str]]) -> Table:
    table = Table(title="topology", title_justify="left", title_style="bold")
    table.add_column("node")
    table.add_column("hops", justify="right")
    table.add_column("path", overflow="fold")
    for node, path in sorted(paths.items(), key=lambda item: (len(item[1]), item[0])):
        table.add_row(Text(printable(node)), str(len(path) - 1), Text(printable(" - ".join(path))))
    return table


def joined_lines(joined: Joined) -> list[str]:
    """How long nodes took to build a tree, and that tree; nothing if they build none."""
    trees = joined.trees
    roots = [name for name, tree in trees.items() if not tree["parent"]]
    lines = [
        f"The nodes have built a tree, {joined.took_s:.2f} s after the last of them was up "
        "(beside each, its round trip to the root):"
    ]
    for root in roots:
        lines += [f"  {printable(root)}  root", *_below(root, trees, "  ")]
    return lines if roots else []


def _below(parent: str, trees: Mapping[str, Mapping[str, Any]], indent: str) -> Iterator[str]:
    children = [name for name, tree in trees.items() if tree["parent"] == parent]
    for child in children:
        branch, further = ("└─ ", "   ") if child == children[-1] else ("├─ ", "│  ")
        yield f"{indent}{branch}{printable(child)}  {trees[child]['cost_ms']:.1f} ms"
        yield from _below(child, trees, indent + further)
