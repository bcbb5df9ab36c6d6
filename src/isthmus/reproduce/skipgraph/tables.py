"""Every figure as a table, with the thesis's value beside ours where it prints one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from isthmus.reproduce.skipgraph.laws import storage_law
from isthmus.reproduce.skipgraph.panels import NAMES, PATTERN_LETTERS
from isthmus.reproduce.skipgraph.paper import (
    COEFFICIENTS,
    Figures,
    fisher_interval,
    h_mrf,
    h_sfb,
)

__all__ = ["TITLES", "Shown", "tables_of"]

Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Header and rows."""
Rows = Sequence[Mapping[str, Any]]

TITLES: Final[Mapping[str, str]] = {
    "table3.1": "Table 3.1: growth of path length and storage, ability to suspend",
    "fig3.7": "Fig. 3.7: messages associated with publishing",
    "fig3.8": "Fig. 3.8: messages associated with publishing, no subscriber",
    "fig3.9": "Fig. 3.9: length of the forwarding path, proposed method",
    "fig3.10": "Fig. 3.10: length of the forwarding path, Scribe",
    "fig3.11": "Fig. 3.11: CDF of path length, pattern alpha",
    "fig3.12": "Fig. 3.12: sending and forwarding",
    "fig3.13": "Fig. 3.13: receiving and forwarding",
    "table3.3": "Table 3.3: correlation coefficients",
    "fig3.14": "Fig. 3.14: size of routing tables",
    "fig3.15": "Fig. 3.15: CDF of the size of routing tables",
    "fig4.5": "Fig. 4.5: nodes at each depth",
    "fig4.6": "Fig. 4.6: average number of hops",
    "fig4.9": "Fig. 4.9: intensive and extensive assignment",
}
SHARES: Final = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def tables_of(figures: Figures) -> dict[str, Shown]:
    """Those for which there are rows, in the thesis's order."""
    return {name: _MADE[name](figures[name]) for name in TITLES if figures.get(name)}


def _growth(rows: Rows) -> Shown:
    header = (
        "method",
        "nodes",
        "pub, sub of a topic",
        "topics",
        "mean hops",
        "most",
        "entries of a node",
        "by the thesis's law",
        "messages of a publish without subscriber",
    )
    return header, [
        (
            NAMES[row["method"]] + (f", d = {row['dimensions']}" if row["dimensions"] else ""),
            f"{row['nodes']:,}",
            f"{row['publishers']}, {row['subscribers']}",
            f"{row['topics']:,}",
            f"{row['hops']:.2f}",
            str(row["longest"]),
            f"{row['entries']:.1f}",
            f"{row['entries'] / storage_law(row):.2f}",
            f"{row['idle_messages']:.2f}",
        )
        for row in rows
    ]


def _messages(rows: Rows) -> Shown:
    header = ("nodes", "publishers", "subscribers", "proposed", "Scribe", "ratio", "thesis")
    shown = []
    found = {
        (row["nodes"], row["publishers"], row["subscribers"], row["method"]): row for row in rows
    }
    for nodes, publishers, subscribers in dict.fromkeys(key[:3] for key in found):
        mine, its = (
            found[nodes, publishers, subscribers, method] for method in ("proposed", "scribe")
        )
        thesis = "about 0.1" if subscribers else "0 and more than 0"
        shown.append(
            (
                f"{nodes:,}",
                str(publishers),
                f"{subscribers:,}",
                *(f"{row['messages']:,.1f} ({row['least']:,} to {row['most']:,})"
                  for row in (mine, its)),
                f"{mine['messages'] / its['messages']:.3f}" if its["messages"] else "",
                thesis if nodes == 100_000 else "",
            )
        )  # fmt: skip
    return header, shown


def _paths(rows: Rows, thesis: Callable[[str], str]) -> Shown:
    sizes = sorted({row["nodes"] for row in rows})
    header = ("pattern", "pub, sub", *(f"{size:,} nodes" for size in sizes), "thesis, 100,000")
    found = {(row["pattern"], row["nodes"]): row for row in rows}
    shown = []
    for pattern in PATTERN_LETTERS:
        some = [found.get((pattern, size)) for size in sizes]
        of = next(row for row in some if row is not None)
        shown.append(
            (
                f"{PATTERN_LETTERS[pattern]} ({pattern})",
                f"{of['publishers']}, {of['subscribers']}",
                *("" if row is None else f"{row['hops']:.3f}" for row in some),
                thesis(pattern),
            )
        )
    return header, shown


def _proposed_paths(rows: Rows) -> Shown:
    return _paths(rows, lambda name: "< 4" if name in ("delta", "epsilon", "zeta") else "")


def _scribe_paths(rows: Rows) -> Shown:
    return _paths(rows, lambda name: "16" if name in ("delta", "epsilon", "zeta") else "")


def _cdf(rows: Rows, keys: Sequence[str], value: str) -> Shown:
    header = (*keys, *(f"{share:.0%}" for share in SHARES))
    shown = []
    for group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        some = [row for row in rows if tuple(row[key] for key in keys) == group]
        quantiles = [
            min(float(row[value]) for row in some if row["share"] >= share - 1e-12)
            for share in SHARES
        ]
        words = [f"{each:,}" if isinstance(each, int) else NAMES.get(each, each) for each in group]
        shown.append((*words, *(f"{each:.4g}" for each in quantiles)))
    return header, shown


def _path_cdf(rows: Rows) -> Shown:
    return _cdf(rows, ("nodes", "method"), "value")


def _entry_cdf(rows: Rows) -> Shown:
    return _cdf(rows, ("method",), "normalized")


def _scatter(rows: Rows) -> Shown:
    """Forwards for each message sent or received, by share of nodes."""
    bounds = (0, 1, 2, 10, 100)
    header = ("method", "nodes", *(f"at most {bound}" for bound in bounds), "most")
    shown = []
    for method in dict.fromkeys(row["method"] for row in rows):
        some = [row for row in rows if row["method"] == method]
        count = sum(row["nodes"] for row in some)
        shares = [
            sum(row["nodes"] for row in some if row["forwards"] <= bound * row["given"]) / count
            for bound in bounds
        ]
        most = max(row["forwards"] / row["given"] for row in some)
        shown.append(
            (NAMES[method], f"{count:,}", *(f"{each:.1%}" for each in shares), f"{most:,.0f}")
        )
    return header, shown


def _coefficients(rows: Rows) -> Shown:
    header = ("", "network", "here", "99 %", "thesis", "its 99 %", "forward once", "twice", "most")
    shown = []
    for row in rows:
        value, least, most = COEFFICIENTS[row["role"], row["method"]]
        exact = row["coefficient"] > 1 - 1e-9
        low, high = (1.0, 1.0) if exact else fisher_interval(row["coefficient"], row["nodes"])
        number = "3.12" if row["role"] == "publisher" else "3.13"
        shown.append(
            (
                f"Fig. {number}, {NAMES[row['method']]}",
                str(row["part"] + 1),
                f"{row['coefficient']:.4f}",
                "" if exact else f"{low:.4f} to {high:.4f}",
                f"{value}",
                "" if least == most else f"{least} to {most}",
                f"{row['once']:.1%}",
                f"{row['twice']:.1%}",
                f"{row['most']:,.0f}",
            )
        )
    return header, shown


def _sizes(rows: Rows) -> Shown:
    header = ("nodes", "topics of a node", "method", "entries", "without redundancy")
    return header, [
        (
            f"{row['nodes']:,}",
            str(row["topics"]),
            NAMES[row["method"]],
            f"{row['entries']:.2f}",
            "" if row["distinct"] is None else f"{row['distinct']:.2f}",
        )
        for row in rows
    ]


def _depths(rows: Rows) -> Shown:
    nodes = min({row["nodes"] for row in rows}, key=lambda each: abs(each - 131_072))
    some = {(row["method"], row["depth"]): row["count"] for row in rows if row["nodes"] == nodes}
    header = (f"depth, {nodes:,} nodes", "SFB", "MRF")
    return header, [
        (str(depth), *(f"{some.get((method, depth), 0):,}" for method in ("sfb", "mrf")))
        for depth in range(1 + max(depth for _, depth in some))
    ]


def _hops(rows: Rows) -> Shown:
    header = ("nodes", "SFB", "thesis: log₂ N/2", "MRF", "thesis: log₂ N - 1 + 1/N")
    found = {(row["nodes"], row["method"]): row["hops"] for row in rows}
    return header, [
        (
            f"{nodes:,}",
            f"{found[nodes, 'sfb']:.4f}",
            f"{h_sfb(nodes):.4f}",
            f"{found[nodes, 'mrf']:.4f}",
            f"{h_mrf(nodes):.4f}",
        )
        for nodes in dict.fromkeys(row["nodes"] for row in rows)
    ]


def _assignment(rows: Rows) -> Shown:
    header = ("S", "s_t", "T_i", "T_e", "T_d", "T_d by eq. 4.1-4", "T_d simulated")
    return header, [
        (
            f"{row['subscribers']:,}",
            f"{row['size']:,}",
            f"{row['intensive']:.3f}",
            f"{row['extensive']:.3f}",
            f"{row['intensive'] - row['extensive']:.3f}",
            f"{row['approximate']:.3f}",
            f"{row['intensive_simulated'] - row['extensive_simulated']:.3f}",
        )
        for row in rows
        if round(row["size"]) in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 1_333_521)
    ]


_MADE: Final[Mapping[str, Callable[[Rows], Shown]]] = {
    "table3.1": _growth,
    "fig3.7": _messages,
    "fig3.8": _messages,
    "fig3.9": _proposed_paths,
    "fig3.10": _scribe_paths,
    "fig3.11": _path_cdf,
    "fig3.12": _scatter,
    "fig3.13": _scatter,
    "table3.3": _coefficients,
    "fig3.14": _sizes,
    "fig3.15": _entry_cdf,
    "fig4.5": _depths,
    "fig4.6": _hops,
    "fig4.9": _assignment,
}
