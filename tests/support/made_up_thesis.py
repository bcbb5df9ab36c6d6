"""Figures as the Skip Graph thesis describes its own, made up: every statement of it holds."""

from __future__ import annotations

from math import comb, log2
from typing import Any

from isthmus.reproduce.skipgraph.paper import COEFFICIENTS, h_mrf, h_sfb
from isthmus.reproduce.skipgraph.routing import sizes
from isthmus.sim.bulk.patterns import PATTERNS
from isthmus.simulate.assignment import Place, approximate_difference, extensive_ms, intensive_ms

__all__ = ["Rows", "like_the_thesis"]

Rows = list[dict[str, Any]]


def growth_rows() -> Rows:
    rows: Rows = []
    for nodes, members in [(1_000, 100), (10_000, 100), *((100_000, m) for m in (10, 100, 1000))]:
        publishers, subscribers, topics = members // 10, members * 9 // 10, 2 * nodes // members
        common = {
            "nodes": nodes,
            "publishers": publishers,
            "subscribers": subscribers,
            "topics": topics,
            "missed": None,
        }
        for method, dimensions, hops, entries, idle in (
            ("proposed", 0, 1.3 * log2(members), 4 * log2(nodes), 0.0),
            ("scribe", 0, log2(nodes), log2(nodes), 1.0),
            ("bayeux", 0, log2(nodes), 1.8 * log2(nodes), 1.0),
            ("can-mc", 2, 0.5 * members**0.5, 14.0, 9.0),
            ("can-mc", 3, members ** (1 / 3), 21.0, 9.0),
        ):
            rows.append(
                {
                    **common,
                    "method": method,
                    "dimensions": dimensions,
                    "hops": hops,
                    "longest": 30,
                    "entries": entries,
                    "idle_messages": idle,
                }
            )
    return rows


def message_rows(*, silent: bool) -> Rows:
    return [
        {
            "nodes": 100_000,
            "publishers": publishers,
            "subscribers": subscribers,
            "method": method,
            "rounds": 5,
            "messages": value,
            "least": int(value),
            "most": int(value),
        }
        for publishers in (10, 100)
        for subscribers in ((0,) if silent else (1000, 100, 10))
        for method, value in (
            ("proposed", float(publishers * subscribers)),
            ("scribe", publishers * subscribers * 10.0 if subscribers else float(publishers)),
        )
    ]


def path_rows(hops: dict[str, float], *, growing: bool) -> Rows:
    return [
        {
            "nodes": nodes,
            "publishers": PATTERNS[name].publishers,
            "subscribers": PATTERNS[name].subscribers,
            "pattern": name,
            "hops": value + (log2(nodes / 100_000) if growing else 0.0),
            "longest": 40,
            "pairs": 1000,
        }
        for nodes in (1_000, 10_000, 100_000)
        for name, value in hops.items()
    ]


PROPOSED = {"alpha": 14.0, "beta": 11.0, "gamma": 8.0, "delta": 3.4, "epsilon": 2.9, "zeta": 2.5}


def assignment_rows() -> Rows:
    rows = []
    for total in (10_000_000, 20_000_000):
        place = Place(10_000, total, 1.0, 0.01)
        for size in sizes(total):
            both = {"intensive": intensive_ms(place, size), "extensive": extensive_ms(place, size)}
            rows.append(
                {
                    "nodes": 10_000,
                    "subscribers": total,
                    "size": size,
                    **both,
                    **{f"{way}_simulated": time_ms for way, time_ms in both.items()},
                    "approximate": approximate_difference(place, size),
                }
            )
    return rows


def like_the_thesis() -> dict[str, Rows]:
    """Every figure as the thesis describes it."""
    return {
        "table3.1": growth_rows(),
        "fig3.7": message_rows(silent=False),
        "fig3.8": message_rows(silent=True),
        "fig3.9": path_rows(PROPOSED, growing=False),
        "fig3.10": path_rows(dict.fromkeys(PROPOSED, 16.2), growing=True),
        "fig3.11": [
            {"nodes": 100_000, "method": method, "value": value, "count": 1, "share": share}
            for method, more in (("proposed", 0), ("scribe", 1))
            for value, share in ((8 + more, 0.1), (14 + more, 0.5), (20 + more, 0.9), (30, 1.0))
        ],
        "fig3.12": [
            {"method": method, "given": x, "forwards": x, "nodes": 1}
            for method in ("proposed", "scribe")
            for x in (1, 2, 3)
        ],
        "fig3.13": [
            {"method": method, "given": x, "forwards": 2 * x, "nodes": 5}
            for method in ("proposed", "scribe")
            for x in (1, 2, 3)
        ],
        "table3.3": [
            {
                "method": method,
                "role": role,
                "part": 0,
                "nodes": 100 if role == "publisher" else 100_000,
                "coefficient": value,
                "most": 2.0 if method == "proposed" else 1500.0,
                "once": 0.4,
                "twice": 0.3,
            }
            for (role, method), (value, _, _) in COEFFICIENTS.items()
        ],
        "fig3.14": [
            {
                "nodes": 100_000,
                "topics": topics,
                "method": method,
                "entries": 10.0 + each * topics,
                "distinct": 5.0 + each * topics,
            }
            for topics in (2, 4, 6, 8, 10)
            for method, each in (("proposed", 30.0), ("scribe", 4.0))
        ],
        "fig3.15": [
            {
                "method": method,
                "value": value,
                "count": 1,
                "share": (value + 1) / 100,
                "normalized": value / 99,
                "topics": float(value if method == "proposed" else value * 37 % 100),
            }
            for method in ("proposed", "scribe")
            for value in range(100)
        ],
        "fig4.5": [
            {
                "nodes": 131_072,
                "method": method,
                "depth": depth,
                "count": comb(17, depth) if method == "sfb" else 2 ** max(0, depth - 1),
            }
            for method in ("sfb", "mrf")
            for depth in range(18)
        ],
        "fig4.6": [
            {"nodes": 1 << digits, "method": method, "hops": law(1 << digits)}
            for digits in range(18)
            for method, law in (("sfb", h_sfb), ("mrf", h_mrf))
        ],
        "fig4.9": assignment_rows(),
    }
