"""Statements of the thesis: figures like its own hold, others do not; what is missing is said."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from isthmus.reproduce.claims import Claim, Range
from isthmus.reproduce.skipgraph.experiments import FIGURES
from isthmus.reproduce.skipgraph.paper import COEFFICIENTS, compare, fisher_interval
from isthmus.reproduce.skipgraph.statements import fitted, over, plain, same, within
from isthmus.reproduce.skipgraph.tables import tables_of
from support.made_up_thesis import Rows, like_the_thesis


def one(claims: list[Claim], *words: str) -> Claim:
    (found,) = [
        claim
        for claim in claims
        if all(word in f"{claim.source} {claim.statement}" for word in words)
    ]
    return found


def test_what_is_as_in_the_thesis_holds() -> None:
    figures = like_the_thesis()
    assert figures.keys() == FIGURES.keys()
    claims = compare(figures)
    assert [claim for claim in claims if claim.verdict != "yes"] == []
    assert len(claims) > 55


def test_without_figures_everything_is_named_and_not_measured() -> None:
    claims = compare({})
    assert {claim.verdict for claim in claims} == {"not measured"}
    for source in ("Table 3.1", "Fig. 3.7", "Fig. 3.11", "Table 3.3", "Fig. 3.15", "Fig. 4.9"):
        assert any(source in claim.source for claim in claims)


def change(figure: str, key: str, value: Any, **wanted: Any) -> dict[str, Rows]:
    """The thesis's figures with some rows otherwise."""
    figures = deepcopy(like_the_thesis())
    chosen = [
        row for row in figures[figure] if all(row[name] == each for name, each in wanted.items())
    ]
    assert chosen
    for row in chosen:
        row[key] = value(row[key]) if callable(value) else value
    return figures


def longer(hops: float) -> float:
    return hops * 1.6


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (change("table3.1", "idle_messages", 1.0, method="proposed"), ("Proposed: messages of a",)),
        (change("table3.1", "idle_messages", 0.0, method="scribe"), ("Scribe: messages of a",)),
        (
            change("table3.1", "hops", longer, method="proposed", nodes=100_000, subscribers=90),
            ("Proposed: path length", "1,000 to"),
        ),
        (
            change("table3.1", "hops", longer, method="scribe", nodes=10_000),
            ("Scribe: path length over the number",),
        ),
        (
            change("table3.1", "hops", longer, method="bayeux", subscribers=900),
            ("Bayeux: path length, topics",),
        ),
        (
            change("table3.1", "hops", lambda hops: hops**2, method="can-mc", dimensions=3),
            ("d = 3: path length over the size",),
        ),
        (
            change("table3.1", "entries", longer, method="proposed", nodes=100_000),
            ("Proposed: storage",),
        ),
        (change("table3.1", "entries", 99.0, method="scribe"), ("Scribe: storage",)),
        (
            change("fig3.7", "most", 10**6, method="proposed", publishers=10, subscribers=10),
            ("10 publishers, 10 subscribers",),
        ),
        (change("fig3.8", "messages", 1.0, method="proposed"), ("without a subscriber, Proposed",)),
        (change("fig3.8", "messages", 0.0, method="scribe"), ("without a subscriber, Scribe",)),
        (change("fig3.9", "hops", 4.1, pattern="zeta"), ("zeta: path length", "proposed")),
        (change("fig3.9", "hops", longer, nodes=1_000), ("alpha: proposed, 1,000 to",)),
        (change("fig3.10", "hops", 12.0, pattern="delta"), ("delta: path length", "Scribe")),
        (change("fig3.10", "hops", 12.0, pattern="delta"), ("delta: Scribe / proposed",)),
        (change("fig3.10", "hops", 12.0, pattern="delta"), ("Scribe, 100,000 nodes: not",)),
        (change("fig3.9", "hops", 16.2, pattern="beta"), ("most similar in pattern",)),
        (change("fig3.11", "value", 30, method="scribe"), ("CDF of path length",)),
        (
            change("table3.3", "coefficient", 0.5345, role="subscriber", method="proposed"),
            ("Proposed: correlation of receiving",),
        ),
        (
            change("table3.3", "coefficient", 0.9, role="publisher", method="proposed"),
            ("Proposed: correlation of sending",),
        ),
        (change("table3.3", "most", 3.0, method="proposed"), ("Proposed: most forwards",)),
        (change("table3.3", "most", 900.0, method="scribe"), ("Scribe: most forwards",)),
        (
            change("fig3.14", "entries", 99.0, method="proposed", topics=6),
            ("Proposed, 100,000 nodes", "a node: linear"),
        ),
        (change("fig3.14", "entries", 1.0, method="proposed"), ("proposed / Scribe, 100,000",)),
        (
            change("fig3.15", "normalized", lambda x: x**4, method="proposed"),
            ("CDF of entries",),
        ),
        (
            change("fig3.15", "topics", lambda x: x * 37 % 100, method="proposed"),
            ("entries follow",),
        ),
        (change("fig4.5", "count", 10**6, method="mrf", depth=3), ("MRF: the depth that most",)),
        (change("fig4.5", "count", 1, method="sfb", depth=4), ("SFB: nodes at each",)),
        (change("fig4.6", "hops", 3.0, method="sfb", nodes=128), ("SFB: average hops",)),
        (
            change("fig4.9", "approximate", 99.0, size=100, subscribers=10_000_000),
            ("T_d becomes larger",),
        ),
        (
            change("fig4.9", "extensive_simulated", lambda t: t + 1, size=1000),
            ("extensive assignment, simulated",),
        ),
    ],
)
def test_what_is_not_as_in_the_thesis_does_not_hold(
    figures: dict[str, Rows], words: tuple[str, ...]
) -> None:
    assert one(compare(like_the_thesis()), *words).verdict == "yes"
    assert one(compare(figures), *words).verdict in ("no", "within noise")


def test_networks_that_disagree_leave_it_open() -> None:
    figures = like_the_thesis()
    again = [{**row, "part": 1, "coefficient": 0.3} for row in figures["table3.3"]]
    figures["table3.3"] += again
    claim = one(compare(figures), "Proposed: correlation of receiving")
    assert claim.verdict == "within noise"
    assert claim.ours == "0.4242 (0.3000 to 0.5483), 2 networks"


def test_the_thesis_intervals_are_fishers() -> None:
    """Table 3.3's own intervals follow from its coefficients and the number of nodes."""
    for (role, _), (value, least, most) in COEFFICIENTS.items():
        if least < most:
            found = fisher_interval(value, 100 if role == "publisher" else 100_000)
            assert found == pytest.approx((least, most), abs=2e-4)


def test_every_figure_becomes_a_table() -> None:
    shown = tables_of(like_the_thesis())
    assert list(shown) == list(FIGURES)
    for header, rows in shown.values():
        assert rows
        assert {len(row) for row in rows} == {len(header)}
    header, rows = shown["table3.3"]
    assert rows[0][header.index("thesis")] == "1.0"
    assert [row[header.index("its 99 %")] for row in rows][2] == "0.5426 to 0.554"
    header, rows = shown["fig3.10"]
    assert [row[-1] for row in rows] == ["", "", "", "16", "16", "16"]
    assert tables_of({"fig3.7": []}) == {}


def test_fits_and_ranges() -> None:
    line = fitted([1, 2, 3], [3, 5, 7])
    assert (line.start, line.slope, line.explained) == pytest.approx((1, 2, 1))
    assert fitted([1, 2, 3], [1, 0, 1]).explained == pytest.approx(0)
    assert over([1.0, 3.0]) == Range(2.0, 1.0, 3.0)
    assert plain(over([2.0, 2.0]), 1) == "2.0"
    assert within(Range(2, 1, 3), 1, 3) == "yes"
    assert within(Range(2, 1, 3), 2) == "within noise"
    assert within(Range(2, 1, 3), most=0.5) == "no"
    assert same([1.0, 1.05])
    assert not same([1.0, 1.06])
    assert not same([0.0, 0.0])
