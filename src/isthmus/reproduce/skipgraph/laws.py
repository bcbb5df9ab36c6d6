"""Table 3.1: do path length and storage grow as the thesis says, and who can suspend (§3.2.2)?

A law with O(…) says nothing about any one size; what is judged is how the simulated figures grow
from the smallest to the largest:

* *logarithmic*: a straight line over log₂ explains `STRAIGHT` of the variance;
* *independent*: the largest figure is at most `SAME` times the least;
* *as n^(1/d)*: the exponent of the fitted power is within `EXPONENT` of 1/d;
* *proportional* to a law: figure by law is the same everywhere, up to a factor of `PROPORTIONAL`;
* Scribe's storage is only bounded by its law, as ways that meet are stored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from typing import Any, Final

from isthmus.reproduce.claims import Claim
from isthmus.reproduce.skipgraph.statements import (
    SAME,
    fitted,
    holds,
    not_measured,
    over,
    plain,
    same,
)

__all__ = ["SOURCE", "storage_law", "table_3_1"]

SOURCE: Final = "§3.2.2, Table 3.1"
STRAIGHT: Final = 0.99
EXPONENT: Final = 0.1
PROPORTIONAL: Final = 1.5

Row = Mapping[str, Any]


def storage_law(row: Row) -> float:
    """Table 3.1's storage cost without the O, logarithms in base 2."""
    each = row["topics"] / row["nodes"]
    publishers, subscribers = row["publishers"] * each, row["subscribers"] * each
    if row["method"] == "proposed":
        return float((publishers + subscribers) * log2(row["nodes"]))
    if row["method"] == "can-mc":
        return float((publishers + subscribers) * row["dimensions"] + row["dimensions"])
    return float(publishers + subscribers * log2(row["nodes"]))


def table_3_1(rows: Sequence[Row]) -> Iterator[Claim]:
    """All statements of the table."""
    if not rows:
        yield not_measured(SOURCE, "growth of path length and storage, ability to suspend", "")
        return
    yield from _suspending(rows)
    for method, dimensions in dict.fromkeys((row["method"], row["dimensions"]) for row in rows):
        some = [row for row in rows if (row["method"], row["dimensions"]) == (method, dimensions)]
        name = f"CAN-MC, d = {dimensions}" if dimensions else method.capitalize()
        yield from _path_length(name, some)
        yield _storage(name, some)


def _suspending(rows: Sequence[Row]) -> Iterator[Claim]:
    for method in dict.fromkeys(row["method"] for row in rows):
        # One publisher alone in its CAN has nobody to send to.
        idle = [
            float(row["idle_messages"])
            for row in rows
            if row["method"] == method and row["publishers"] > 1
        ]
        able = method == "proposed"
        statement = "messages of a publish that nobody subscribes to"
        so = max(idle) == 0 if able else min(idle) > 0
        yield Claim(
            SOURCE,
            f"{'CAN-MC' if method == 'can-mc' else method.capitalize()}: {statement}",
            "0: suspended" if able else "more than 0",
            plain(over(idle), 2),
            holds(so),
        )


def _members(row: Row) -> int:
    return int(row["publishers"] + row["subscribers"])


def _path_length(name: str, some: Sequence[Row]) -> Iterator[Claim]:
    largest = max(row["nodes"] for row in some)
    by_size = sorted((row for row in some if row["nodes"] == largest), key=_members)
    usual = _members(min(some, key=lambda row: int(row["nodes"])))
    by_nodes = sorted(
        (row for row in some if _members(row) == usual), key=lambda row: int(row["nodes"])
    )
    method = some[0]["method"]
    if method in ("scribe", "bayeux"):
        yield _logarithmic(f"{name}: path length over the number of nodes", by_nodes, "nodes")
        yield _independent(
            f"{name}: path length, topics of 10 to {_members(by_size[-1]):,}", by_size
        )
        return
    if method == "can-mc":
        yield _power(f"{name}: path length over the size of the topic", by_size)
    else:
        yield _logarithmic(f"{name}: path length over the size of the topic", by_size, "members")
    nodes = f"{by_nodes[0]['nodes']:,} to {by_nodes[-1]['nodes']:,} nodes"
    yield _independent(f"{name}: path length, {nodes}", by_nodes)


def _logarithmic(statement: str, rows: Sequence[Row], of: str) -> Claim:
    xs = [log2(_members(row) if of == "members" else row["nodes"]) for row in rows]
    fit = fitted(xs, [row["hops"] for row in rows])
    ours = f"{fit.slope:.2f} hops for each doubling; a line explains {fit.explained:.4f}"
    return Claim(
        SOURCE,
        f"{statement}: logarithmic (a line explains {STRAIGHT:.0%})",
        "O(log N)" if of == "nodes" else "O(log(pub + sub))",
        ours,
        holds(fit.slope > 0 and fit.explained >= STRAIGHT),
    )


def _power(statement: str, rows: Sequence[Row]) -> Claim:
    dimensions = rows[0]["dimensions"]
    fit = fitted([log2(_members(row)) for row in rows], [log2(row["hops"]) for row in rows])
    return Claim(
        SOURCE,
        f"{statement}: a power of it (exponent to {EXPONENT})",
        f"O(d (pub + sub)^(1/d)): exponent {1 / dimensions:.2f}",
        f"exponent {fit.slope:.3f}",
        holds(abs(fit.slope - 1 / dimensions) <= EXPONENT),
    )


def _independent(statement: str, rows: Sequence[Row]) -> Claim:
    hops = [float(row["hops"]) for row in rows]
    return Claim(
        SOURCE,
        f"{statement}: the same (to {SAME - 1:.0%})",
        "independent",
        plain(over(hops), 2),
        holds(same(hops)),
    )


def _storage(name: str, some: Sequence[Row]) -> Claim:
    shares = [row["entries"] / storage_law(row) for row in some]
    law = {
        "proposed": "O((pub + sub)/N · M log N)",
        "can-mc": "O((pub + sub)/N · M d + d)",
    }.get(some[0]["method"], "O(pub/N · M + sub/N · M log N)")
    entries = plain(over(float(row["entries"]) for row in some), 1)
    ours = f"{entries} entries, {plain(over(shares), 2)} of the law"
    if some[0]["method"] == "scribe":
        statement = f"{name}: storage, at most the law"
        return Claim(SOURCE, statement, law, ours, holds(max(shares) <= 1))
    statement = f"{name}: storage, proportional to the law (to a factor of {PROPORTIONAL:g})"
    return Claim(SOURCE, statement, law, ours, holds(same(shares, PROPORTIONAL)))
