"""What is drawn of the figures' rows: the thesis's axes, with our further sizes on them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from isthmus.reproduce.panels import Panel, Panels, Series
from isthmus.reproduce.skipgraph.paper import Figures, h_mrf, h_sfb

__all__ = ["NAMES", "PATTERN_LETTERS", "panels_of"]

PATTERN_LETTERS: Final = {
    "alpha": "\N{GREEK SMALL LETTER ALPHA}",
    "beta": "\N{GREEK SMALL LETTER BETA}",
    "gamma": "\N{GREEK SMALL LETTER GAMMA}",
    "delta": "\N{GREEK SMALL LETTER DELTA}",
    "epsilon": "\N{GREEK SMALL LETTER EPSILON}",
    "zeta": "\N{GREEK SMALL LETTER ZETA}",
}
NAMES: Final = {"proposed": "proposed", "scribe": "Scribe", "bayeux": "Bayeux", "can-mc": "CAN-MC"}
LOOKS_IN_ORDER: Final = ("first", "second", "third", "fourth", "fifth", "sixth")
THESIS: Final = 100_000
BESIDE: Final = THESIS * 10**0.5
"""Half way to the next size."""
SAMPLE: Final = 1_000
"""Subscribers that Fig. 3.13 shows."""
CURVE_POINTS: Final = 150

Rows = Sequence[Mapping[str, Any]]


def panels_of(figures: Figures) -> dict[str, Panels]:
    """Every picture for which there is a figure, by its name."""
    made = {
        "skipgraph-laws": Panels(3, tuple(_laws(figures.get("table3.1", ())))),
        "skipgraph-messages": Panels(3, tuple(_messages(figures))),
        "skipgraph-paths": Panels(3, tuple(_paths(figures))),
        "skipgraph-load": Panels(2, tuple(_load(figures))),
        "skipgraph-tables": Panels(3, tuple(_tables(figures))),
        "skipgraph-routing": Panels(2, tuple(_routing(figures))),
        "skipgraph-assignment": Panels(2, tuple(_assignment(figures.get("fig4.9", ())))),
    }
    return {name: panels for name, panels in made.items() if panels.panels}


def _line(
    name: str, look: str, points: Sequence[tuple[float, float]], kind: Any = "line"
) -> Series:
    ordered = sorted(points)
    return Series(name, look, tuple(x for x, _ in ordered), tuple(y for _, y in ordered), kind)


def _mark(nodes: Sequence[int]) -> float | None:
    return BESIDE if min(nodes) <= THESIS < max(nodes) else None


# ---- Table 3.1 ---------------------------------------------------------------------------


def _laws(rows: Rows) -> Iterator[Panel]:
    if not rows:
        return
    largest = max(row["nodes"] for row in rows)
    smallest = min(row["nodes"] for row in rows)
    usual = {
        row["publishers"] + row["subscribers"] for row in rows if row["nodes"] == smallest
    }.pop()

    def series(chosen: Rows, x: str, y: str) -> tuple[Series, ...]:
        found = []
        for method, dimensions in dict.fromkeys((r["method"], r["dimensions"]) for r in chosen):
            some = [r for r in chosen if (r["method"], r["dimensions"]) == (method, dimensions)]
            name = NAMES[method] + (f", d = {dimensions}" if dimensions else "")
            look = f"{method}-{dimensions}" if dimensions else method
            points = [
                (float(r["publishers"] + r["subscribers"] if x == "members" else r[x]), float(r[y]))
                for r in some
            ]
            found.append(_line(name, look, points))
        return tuple(found)

    by_size = [row for row in rows if row["nodes"] == largest]
    by_nodes = [row for row in rows if row["publishers"] + row["subscribers"] == usual]
    yield Panel(
        f"Path length, {largest:,} nodes",
        "members of the topic",
        "mean hops",
        series(by_size, "members", "hops"),
        log_x=True,
    )
    yield Panel(
        f"Path length, topics of {usual} members",
        "nodes",
        "mean hops",
        series(by_nodes, "nodes", "hops"),
        log_x=True,
    )
    yield Panel(
        f"Storage, topics of {usual}, 2 of each node",
        "nodes",
        "entries of a node",
        series(by_nodes, "nodes", "entries"),
        log_x=True,
    )


# ---- §3.4 --------------------------------------------------------------------------------


def _messages(figures: Figures) -> Iterator[Panel]:
    rows = figures.get("fig3.7", ())
    if rows:
        nodes = min(row["nodes"] for row in rows)
        counts = sorted({row["subscribers"] for row in rows}, reverse=True)
        yield Panel(
            f"Fig. 3.7: messages, {nodes:,} nodes",
            "subscribers",
            "messages",
            tuple(_message_bars([row for row in rows if row["nodes"] == nodes], counts)),
            log_y=True,
            groups=tuple(f"{count:,}" for count in counts),
        )
    none = figures.get("fig3.8", ())
    if none:
        nodes = min(row["nodes"] for row in none)
        yield Panel(
            "Fig. 3.8: without a subscriber",
            "",
            "messages",
            tuple(_message_bars([row for row in none if row["nodes"] == nodes], [0])),
            groups=("0 subscribers",),
        )
    if len({row["nodes"] for row in rows}) > 1:
        some = [row for row in rows if (row["publishers"], row["subscribers"]) == (10, 100)]
        yield Panel(
            "Beyond: 10 publishers, 100 subscribers",
            "nodes",
            "messages",
            tuple(
                _line(
                    NAMES[method],
                    method,
                    [(r["nodes"], r["messages"]) for r in some if r["method"] == method],
                )
                for method in ("proposed", "scribe")
            ),
            log_x=True,
        )


def _message_bars(rows: Rows, counts: Sequence[int]) -> Iterator[Series]:
    for method in ("scribe", "proposed"):
        for publishers, look in ((100, method), (10, f"{method}-2")):
            values = [
                float(row["messages"])
                for count in counts
                for row in rows
                if (row["method"], row["publishers"], row["subscribers"])
                == (method, publishers, count)
            ]
            name = f"{NAMES[method]}, {publishers} p/t"
            yield Series(name, look, tuple(range(len(values))), tuple(values), "bar")


def _paths(figures: Figures) -> Iterator[Panel]:
    highest = max(
        (row["hops"] for name in ("fig3.9", "fig3.10") for row in figures.get(name, ())),
        default=0.0,
    )
    for name, title in (("fig3.9", "Fig. 3.9: proposed"), ("fig3.10", "Fig. 3.10: Scribe")):
        rows = figures.get(name, ())
        if not rows:
            continue
        series = [
            _line(
                letter,
                look,
                [(row["nodes"], row["hops"]) for row in rows if row["pattern"] == pattern],
            )
            for (pattern, letter), look in zip(PATTERN_LETTERS.items(), LOOKS_IN_ORDER, strict=True)
        ]
        nodes = [row["nodes"] for row in rows]
        # Both on the same scale.
        frame = Series("", "law", (min(nodes),), (highest * 1.15,), "curve")
        yield Panel(title, "nodes", "mean hops", (*series, frame), log_x=True, mark_x=_mark(nodes))
    rows = figures.get("fig3.11", ())
    if rows:
        size = min({row["nodes"] for row in rows}, key=lambda each: abs(each - THESIS))
        yield Panel(
            f"Fig. 3.11: {PATTERN_LETTERS['alpha']}, {size:,} nodes",
            "hops",
            "share of pairs with so many or fewer",
            tuple(
                _line(
                    NAMES[method],
                    method,
                    [
                        (row["value"], row["share"])
                        for row in rows
                        if (row["nodes"], row["method"]) == (size, method)
                    ],
                    "curve",
                )
                for method in ("proposed", "scribe")
            ),
        )


def _normalized(values: Sequence[float]) -> list[float]:
    """§3.4.3."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def _load(figures: Figures) -> Iterator[Panel]:
    for name, title, x in (
        ("fig3.12", "Fig. 3.12: publishers", "sent"),
        ("fig3.13", "Fig. 3.13: 1,000 of the subscribers", "received"),
    ):
        rows = figures.get(name, ())
        if not rows:
            continue
        series = []
        for method in ("scribe", "proposed"):
            some = [row for row in rows if row["method"] == method]
            given = _normalized([row["given"] for row in some])
            forwards = _normalized([row["forwards"] for row in some])
            weights = [row["nodes"] for row in some]
            chosen = list(range(len(some)))
            if sum(weights) > SAMPLE:
                chosen = random.Random(1).choices(chosen, weights, k=SAMPLE)
            points = [(given[index], forwards[index]) for index in chosen]
            series.append(_line(NAMES[method], method, points, "dots"))
        yield Panel(title, f"messages {x}, normalized", "forwards, normalized", tuple(series))


def _tables(figures: Figures) -> Iterator[Panel]:
    rows = figures.get("fig3.14", ())
    for nodes in sorted({row["nodes"] for row in rows})[:2]:
        series = [
            _line(
                NAMES[method] + words,
                f"{method}{look}",
                [
                    (row["topics"], row[key])
                    for row in rows
                    if (row["nodes"], row["method"]) == (nodes, method) and row[key] is not None
                ],
            )
            for method in ("proposed", "scribe")
            for key, words, look in (("entries", "", ""), ("distinct", " w/o redundancy", "-2"))
        ]
        yield Panel(
            f"Fig. 3.14: {nodes:,} nodes",
            "topics of a node",
            "entries of a node",
            tuple(each for each in series if each.x),
        )
    rows = figures.get("fig3.15", ())
    if rows:
        yield Panel(
            "Fig. 3.15: who has the entries",
            "entries, normalized",
            "share of nodes with so many or fewer",
            tuple(
                _line(
                    NAMES[method],
                    method,
                    _thinned([row for row in rows if row["method"] == method]),
                    "curve",
                )
                for method in ("proposed", "scribe")
            ),
        )


def _thinned(rows: Rows) -> list[tuple[float, float]]:
    step = max(1, len(rows) // CURVE_POINTS)
    return [(row["normalized"], row["share"]) for row in [*rows[::step], rows[-1]]]


# ---- chapter 4 ---------------------------------------------------------------------------


def _routing(figures: Figures) -> Iterator[Panel]:
    rows = figures.get("fig4.5", ())
    if rows:
        nodes = min({row["nodes"] for row in rows}, key=lambda each: abs(each - 131_072))
        deepest = max(row["depth"] for row in rows if row["nodes"] == nodes)
        series = []
        for method in ("sfb", "mrf"):
            counts = {
                row["depth"]: float(row["count"])
                for row in rows
                if (row["nodes"], row["method"]) == (nodes, method)
            }
            values = tuple(counts.get(depth, 0.0) for depth in range(deepest + 1))
            series.append(Series(method.upper(), method, tuple(range(deepest + 1)), values, "line"))
        title = f"Fig. 4.5: depth of {nodes:,} nodes"
        yield Panel(title, "hops from the first node", "nodes", tuple(series))
    rows = figures.get("fig4.6", ())
    if rows:
        lines = []
        for method, law in (("mrf", h_mrf), ("sfb", h_sfb)):
            points = [(row["nodes"], row["hops"]) for row in rows if row["method"] == method]
            lines.append(_line(f"{method.upper()}, simulated", method, points, "dots"))
            exact = [(nodes, law(int(nodes))) for nodes, _ in points]
            lines.append(_line(f"{method.upper()}, formula", method, exact, "dashes"))
        nodes_drawn = [row["nodes"] for row in rows]
        yield Panel(
            "Fig. 4.6: average hops",
            "nodes in the range",
            "hops",
            tuple(lines),
            log_x=True,
            mark_x=131_072 * 2**1.5 if max(nodes_drawn) > 131_072 else None,
        )


def _assignment(rows: Rows) -> Iterator[Panel]:
    if not rows:
        return
    totals = sorted({row["subscribers"] for row in rows})
    yield Panel(
        "Fig. 4.9: T_d by equations 4.1 to 4.4",
        "subscribers of the topic (s_t)",
        "T_d, ms; above 0: extensive is faster",
        tuple(
            _line(
                f"S = {total / 1e6:g} million",
                look,
                [(row["size"], row["approximate"]) for row in rows if row["subscribers"] == total],
                "curve",
            )
            for total, look in zip(totals, LOOKS_IN_ORDER, strict=False)
        ),
        log_x=True,
    )
    some = [row for row in rows if row["subscribers"] == totals[-1]]
    simulated = [
        (row["size"], row["intensive_simulated"] - row["extensive_simulated"]) for row in some
    ]
    yield Panel(
        f"T_d for S = {totals[-1] / 1e6:g} million",
        "subscribers of the topic (s_t)",
        "T_d, ms",
        (
            _line("equations", "law", [(r["size"], r["approximate"]) for r in some], "dashes"),
            _line(
                "formulas, rounded up",
                "first",
                [(r["size"], r["intensive"] - r["extensive"]) for r in some],
                "curve",
            ),
            _line("simulated brokers", "fourth", simulated, "dots"),
        ),
        log_x=True,
    )
