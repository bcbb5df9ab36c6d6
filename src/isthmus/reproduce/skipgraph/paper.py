"""What chapters 3.4 and 4 of the thesis say, and whether it is so here; Table 3.1 is in `laws`.

Where the thesis has a word and no number ("approximately", "linear"), the statement says which
number stands for it.  Its figures are pictures: where the text prints no number of one, there is
none to compare with, and the report shows ours alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import atanh, comb, log2, sqrt, tanh
from typing import Any, Final

from isthmus.reproduce.claims import Claim, Range
from isthmus.reproduce.skipgraph.laws import table_3_1
from isthmus.reproduce.skipgraph.statements import (
    SAME,
    fitted,
    holds,
    not_measured,
    over,
    plain,
    same,
    within,
)
from isthmus.simulate.assignment import Place, peak

__all__ = ["COEFFICIENTS", "Figures", "compare", "fisher_interval", "h_mrf", "h_sfb"]

NODES: Final = 100_000
COEFFICIENTS: Final[Mapping[tuple[str, str], tuple[float, float, float]]] = {
    ("publisher", "proposed"): (1.0, 1.0, 1.0),
    ("publisher", "scribe"): (0.1310, -0.1290, 0.3742),
    ("subscriber", "proposed"): (0.5483, 0.5426, 0.5540),
    ("subscriber", "scribe"): (-0.0045, -0.0126, 0.0037),
}
"""Table 3.3: coefficient and its interval of 99 %."""
SMALL: Final = ("delta", "epsilon", "zeta")
SCRIBE_HOPS: Final = 16
PEAK: Final = 1_440_695
"""s_t of the largest T_d for S = 2·10⁷ (§4.2.2)."""
DIGIT: Final = (0.05, 0.2)
"""*Smaller by approximately one digit*: a tenth, to a factor of two."""
CLOSE: Final = 1.25
"""*No significant difference*: lengths of the same share of pairs differ by a quarter at most."""
LINEAR: Final = 0.99
NEARLY_LINEAR: Final = 0.95
NORMAL_99: Final = 2.5758293035489004

Rows = Sequence[Mapping[str, Any]]
Figures = Mapping[str, Rows]


def compare(figures: Figures) -> list[Claim]:
    """Every statement; by name also those for which there is no figure."""
    return [
        *table_3_1(figures.get("table3.1", ())),
        *_messages(figures),
        *_paths(figures),
        *_load(figures),
        *_storage(figures),
        *_depths(figures),
        *_assignment(figures),
    ]


def fisher_interval(coefficient: float, count: int) -> tuple[float, float]:
    """Between which values it lies with 99 %, by Fisher's transformation."""
    middle, half = atanh(coefficient), NORMAL_99 / sqrt(count - 3)
    return tanh(middle - half), tanh(middle + half)


def h_sfb(nodes: int) -> float:
    """Average hops of SFB on ideal vectors (§4.1.3)."""
    return log2(nodes) / 2


def h_mrf(nodes: int) -> float:
    """Of MRF."""
    return log2(nodes) - 1 + 1 / nodes


def _one(rows: Rows, **wanted: object) -> Mapping[str, Any] | None:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found[0] if found else None


# ---- §3.4.1 ------------------------------------------------------------------------------


def _messages(figures: Figures) -> Iterator[Claim]:
    rows = figures.get("fig3.7", ())
    for publishers in (10, 100):
        for subscribers in (1000, 100, 10):
            wanted = {"nodes": NODES, "publishers": publishers, "subscribers": subscribers}
            one = _one(rows, method="proposed", **wanted)
            other = _one(rows, method="scribe", **wanted)
            statement = (
                f"messages, proposed / Scribe, {publishers} publishers, {subscribers:,} "
                "subscribers: one digit less (0.05 to 0.2)"
            )
            if one is None or other is None:
                yield not_measured("§3.4.1, Fig. 3.7", statement, "about 0.1")
                continue
            ratio = Range(
                one["messages"] / other["messages"],
                one["least"] / other["most"],
                one["most"] / other["least"],
            )
            verdict = within(ratio, *DIGIT)
            yield Claim("§3.4.1, Fig. 3.7", statement, "about 0.1", plain(ratio), verdict)
    none = figures.get("fig3.8", ())
    for method, paper in (("proposed", "0"), ("scribe", "> 0")):
        sent = [float(row["messages"]) for row in none if row["method"] == method]
        statement = f"messages without a subscriber, {method.capitalize()}"
        if not sent:
            yield not_measured("§3.4.1, Fig. 3.8", statement, paper)
            continue
        so = max(sent) == 0 if method == "proposed" else min(sent) > 0
        shown = ", ".join(f"{each:,.0f}" for each in sent)
        yield Claim("§3.4.1, Fig. 3.8", statement, paper, shown, holds(so))


# ---- §3.4.2 ------------------------------------------------------------------------------


def _paths(figures: Figures) -> Iterator[Claim]:
    ours, scribe = figures.get("fig3.9", ()), figures.get("fig3.10", ())
    at_thesis = {row["pattern"]: row["hops"] for row in ours if row["nodes"] == NODES}
    scribe_there = {row["pattern"]: row["hops"] for row in scribe if row["nodes"] == NODES}
    small = [(f"{name}: ", [at_thesis.get(name)], [scribe_there.get(name)]) for name in SMALL]
    for name, (mine,), (its,) in small:
        statement = f"{name}path length among 100,000 nodes, proposed"
        yield _judged("§3.4.2, Fig. 3.9", statement, "< 4", mine, lambda hops: hops < 4)
        statement = f"{name}path length among 100,000 nodes, Scribe (to one hop)"
        yield _judged(
            "§3.4.2, Fig. 3.10",
            statement,
            str(SCRIBE_HOPS),
            its,
            lambda hops: abs(hops - SCRIBE_HOPS) <= 1,
        )
        ratio = its / mine if mine and its else None
        statement = f"{name}Scribe / proposed: more than four times"
        yield _judged("§3.4.2", statement, "> 4", ratio, lambda times: times > 4)
    for pattern in dict.fromkeys(row["pattern"] for row in ours):
        hops = [row["hops"] for row in ours if row["pattern"] == pattern]
        sizes = sorted(row["nodes"] for row in ours)
        yield Claim(
            "§3.4.2, Fig. 3.9",
            f"{pattern}: proposed, {sizes[0]:,} to {sizes[-1]:,} nodes: not affected "
            f"(to {SAME - 1:.0%})",
            "the same",
            plain(over(hops)),
            holds(same(hops)),
        )
    for nodes in sorted({row["nodes"] for row in scribe}):
        hops = [row["hops"] for row in scribe if row["nodes"] == nodes]
        yield Claim(
            "§3.4.2, Fig. 3.10",
            f"Scribe, {nodes:,} nodes: not affected by the size of topics (to {SAME - 1:.0%})",
            "the same",
            plain(over(hops)),
            holds(same(hops)),
        )
    yield from _alpha(figures, at_thesis, scribe_there)


def _judged(
    source: str, statement: str, paper: str, value: float | None, so: Callable[[float], bool]
) -> Claim:
    if value is None:
        return not_measured(source, statement, paper)
    return Claim(source, statement, paper, f"{value:.3f}", holds(so(value)))


def _alpha(
    figures: Figures, ours: Mapping[str, float], scribe: Mapping[str, float]
) -> Iterator[Claim]:
    statement = "path lengths of proposed and Scribe: most similar in pattern"
    if len(ours) > 1 and ours.keys() == scribe.keys():
        ratios = {name: ours[name] / scribe[name] for name in ours}
        nearest = min(ratios, key=lambda name: abs(log2(ratios[name])))
        shown = f"{nearest} ({ratios[nearest]:.2f})"
        yield Claim("§3.4.2", statement, "alpha", shown, holds(nearest == "alpha"))
    else:
        yield not_measured("§3.4.2", statement, "alpha")
    rows = [row for row in figures.get("fig3.11", ()) if row["nodes"] == NODES]
    statement = (
        "alpha: CDF of path length, no significant difference (lengths at 10, 50 and 90 % of pairs "
        f"differ by {CLOSE - 1:.0%} at most)"
    )
    if not rows:
        yield not_measured("§3.4.2, Fig. 3.11", statement, "close")
        return
    lengths = {
        method: [
            min(row["value"] for row in rows if row["method"] == method and row["share"] >= share)
            for share in (0.1, 0.5, 0.9)
        ]
        for method in ("proposed", "scribe")
    }
    times = [its / mine for mine, its in zip(*lengths.values(), strict=True)]
    shown = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in lengths.items())
    so = all(1 / CLOSE <= each <= CLOSE for each in times)
    yield Claim("§3.4.2, Fig. 3.11", statement, "close", shown, holds(so))


# ---- §3.4.3 ------------------------------------------------------------------------------


def _load(figures: Figures) -> Iterator[Claim]:
    rows = figures.get("table3.3", ())
    whole = [row for row in rows if row["nodes"] in (100, 100_000)]
    for (role, method), (value, least, most) in COEFFICIENTS.items():
        done = "sending" if role == "publisher" else "receiving"
        statement = f"{method.capitalize()}: correlation of {done} and forwarding, in the interval"
        paper = f"{value} ({least} to {most})" if least < most else f"{value}"
        some = [row for row in whole if (row["role"], row["method"]) == (role, method)]
        if not some:
            yield not_measured("§3.4.3, Table 3.3", statement, paper)
            continue
        found = over(row["coefficient"] for row in some)
        # A coefficient of 1 is one but for the last digits of the quotient.
        verdict = within(found, least - 1e-9, most + 1e-9)
        shown = f"{plain(found, 4)}, {len(some)} networks"
        yield Claim("§3.4.3, Table 3.3", statement, paper, shown, verdict)
    for method, paper in (("proposed", "2"), ("scribe", "> 1000")):
        statement = f"{method.capitalize()}: most forwards of a subscriber for a received message"
        some = [row for row in rows if (row["role"], row["method"]) == ("subscriber", method)]
        if not some or (method == "scribe" and some[0]["nodes"] != 100_000):
            yield not_measured("§3.4.3", statement, paper)
            continue
        found = over(row["most"] for row in some)
        verdict = within(found, 2, 2) if method == "proposed" else within(found, 1000)
        yield Claim("§3.4.3", statement, paper, plain(found, 0), verdict)


# ---- §3.4.4 ------------------------------------------------------------------------------


def _storage(figures: Figures) -> Iterator[Claim]:
    rows = figures.get("fig3.14", ())
    source = "§3.4.4, Fig. 3.14"
    for nodes in sorted({row["nodes"] for row in rows}):
        for method in ("proposed", "scribe"):
            for key, words in (("entries", ""), ("distinct", ", without redundancy")):
                some = [row for row in rows if (row["nodes"], row["method"]) == (nodes, method)]
                if len(some) < 3 or any(row[key] is None for row in some):
                    continue
                fit = fitted([row["topics"] for row in some], [row[key] for row in some])
                yield Claim(
                    source,
                    f"{method.capitalize()}, {nodes:,} nodes: entries over topics of a node"
                    f"{words}: linear (a line explains {LINEAR:.0%})",
                    "linear",
                    f"{fit.slope:.1f} for each topic; explains {fit.explained:.4f}",
                    holds(fit.explained >= LINEAR),
                )
        pairs = [
            (row["entries"], other["entries"])
            for row in rows
            if row["nodes"] == nodes and row["method"] == "proposed"
            if (other := _one(rows, nodes=nodes, topics=row["topics"], method="scribe"))
        ]
        ratios = over(mine / its for mine, its in pairs)
        statement = f"entries, proposed / Scribe, {nodes:,} nodes: larger"
        yield Claim(source, statement, "> 1", plain(ratios, 2), within(ratios, 1))
    if not rows:
        yield not_measured(source, "size of routing tables: linear, larger than Scribe's", "")
    yield from _shares(figures.get("fig3.15", ()))


def _shares(rows: Rows) -> Iterator[Claim]:
    source = "§3.4.4, Fig. 3.15"
    statement = f"Proposed: CDF of entries, linear (a line explains {NEARLY_LINEAR:.0%})"
    mine = [row for row in rows if row["method"] == "proposed"]
    if not mine:
        yield not_measured(source, statement, "linear")
        return
    fit = fitted([row["normalized"] for row in mine], [row["share"] for row in mine])
    so = fit.explained >= NEARLY_LINEAR
    yield Claim(source, statement, "linear", f"explains {fit.explained:.3f}", holds(so))
    explained = {}
    for method in ("proposed", "scribe"):
        some = [row for row in rows if row["method"] == method]
        line = fitted([row["topics"] for row in some], [row["value"] for row in some])
        explained[method] = line.explained
    yield Claim(
        source,
        "entries follow the topics that a node subscribes to (a line explains more than half): "
        "proposed, not Scribe",
        "yes, no",
        f"explains {explained['proposed']:.3f}, {explained['scribe']:.3f}",
        holds(explained["proposed"] > 0.5 >= explained["scribe"]),
    )


# ---- chapter 4 ---------------------------------------------------------------------------


def _depths(figures: Figures) -> Iterator[Claim]:
    rows = figures.get("fig4.5", ())
    largest = 131_072
    for method, peaks in (("sfb", {8, 9}), ("mrf", {17})):
        some = {
            row["depth"]: row["count"]
            for row in rows
            if (row["nodes"], row["method"]) == (largest, method)
        }
        statement = f"{method.upper()}: the depth that most of {largest:,} nodes have"
        paper = " and ".join(map(str, sorted(peaks)))
        if not some:
            yield not_measured("§4.1.3, Fig. 4.5", statement, paper)
            continue
        found = {depth for depth, count in some.items() if count == max(some.values())}
        shown = " and ".join(map(str, sorted(found)))
        yield Claim("§4.1.3, Fig. 4.5", statement, paper, shown, holds(found == peaks))
        tree = (
            {depth: comb(17, depth) for depth in range(18)}
            if method == "sfb"
            else {0: 1, **{depth: 2 ** (depth - 1) for depth in range(1, 18)}}
        )
        statement = f"{method.upper()}: nodes at each depth, exactly"
        law = "binomial" if method == "sfb" else "powers of 2"
        off = sum(abs(some.get(depth, 0) - count) for depth, count in tree.items())
        yield Claim("§4.1.3, Fig. 4.5", statement, law, f"{off:,} nodes off", holds(not off))
    means = figures.get("fig4.6", ())
    for method, formula, words in (
        ("sfb", h_sfb, "log₂ N/2"),
        ("mrf", h_mrf, "log₂ N - 1 + 1/N"),
    ):
        some_rows = [row for row in means if row["method"] == method]
        off_by = [abs(row["hops"] - formula(row["nodes"])) for row in some_rows]
        statement = f"{method.upper()}: average hops, exactly (to 10⁻⁹)"
        if not off_by:
            yield not_measured("§4.1.3, Fig. 4.6", statement, words)
            continue
        shown = f"{max(off_by):.1e} off at the most, {len(off_by)} sizes"
        yield Claim("§4.1.3, Fig. 4.6", statement, words, shown, holds(max(off_by) < 1e-9))


def _assignment(figures: Figures) -> Iterator[Claim]:
    rows = figures.get("fig4.9", ())
    source = "§4.2.2, Fig. 4.9"
    totals = sorted({row["subscribers"] for row in rows})
    if not rows or rows[0]["nodes"] != 10_000:
        yield not_measured(source, "s_t of the largest T_d, S = 2·10⁷", f"{PEAK:,}")
        return
    place = Place(10_000, totals[-1], 1.0, 0.01)
    highest = peak(place)
    of_largest = [row for row in rows if row["subscribers"] == totals[-1] and row["size"] >= 10_000]
    top = max(of_largest, key=lambda row: float(row["approximate"]))
    near = [row["size"] for row in of_largest]
    beside = near.index(top["size"])
    drawn = near[max(0, beside - 1)], near[min(len(near) - 1, beside + 1)]
    so = highest is not None and round(highest) == PEAK and drawn[0] < PEAK < drawn[1]
    shown = f"{highest or 0:,.0f}; of the sizes drawn, {top['size']:,}"
    yield Claim(source, "s_t of the largest T_d, S = 2·10⁷", f"{PEAK:,}", shown, holds(so))
    by_total = {
        total: {row["size"]: row["approximate"] for row in rows if row["subscribers"] == total}
        for total in totals
    }
    rising = [
        by_total[more][size] >= by_total[less][size] - 1e-6
        for less, more in pairwise(totals)
        for size in by_total[less].keys() & by_total[more].keys()
    ]
    statement = "T_d becomes larger as S does, for topics of the same size"
    yield Claim(source, statement, "yes", f"{sum(rising)} of {len(rising)}", holds(all(rising)))
    for way in ("intensive", "extensive"):
        later = max(row[f"{way}_simulated"] - row[way] for row in rows)
        least = min(row[f"{way}_simulated"] - row[way] for row in rows)
        statement = f"{way} assignment, simulated against the formula: at most that (to t_p)"
        shown = f"{least:+.2f} to {later:+.2f} ms"
        yield Claim("§4.2.2", statement, "at most", shown, holds(later <= 0.01 + 1e-9))
