"""Verdicts on the Overlays paper's statements: each can be yes, no and within noise."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.reproduce.claims import Claim
from isthmus.reproduce.overlays.experiments import CONTENDERS, Experiment, Setting, settings
from isthmus.reproduce.overlays.measuring import Repaired
from isthmus.reproduce.overlays.paper import Cells, compare, spread
from support.made_up_overlays import LIKE_THE_PAPER, cells_of, measured

ALL = settings(quick=False)
TABLE2 = Experiment(Setting(50, 3), CONTENDERS["single"])


def judged(figures: Any = LIKE_THE_PAPER, rounds: int = 3, times: Any = ()) -> list[Claim]:
    return compare(Cells.of(cells_of(ALL, rounds, figures)), times)


def one(claims: list[Claim], *words: str) -> Claim:
    (found,) = [claim for claim in claims if all(word in claim.statement for word in words)]
    return found


def changed(**figures: Any) -> Any:
    """Like the paper, but for the topic overlays."""

    def made(setting: Setting, contender: str) -> dict[str, Any]:
        found = dict(LIKE_THE_PAPER(setting, contender))
        return found | figures if contender in ("capacity", "balance") else found

    return made


def test_what_is_as_in_the_paper_holds() -> None:
    not_so = [claim for claim in judged() if claim.verdict not in ("yes", "not measured")]
    assert [(claim.statement, claim.ours) for claim in not_so] == []


def test_nothing_measured_is_no_verdict() -> None:
    claims = compare(Cells.of([]), [])
    assert len(claims) > 40
    assert {claim.verdict for claim in claims} == {"not measured"}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"delay_ms": 30.0}, ("50 % locality", "capacity / benchmark", "less than half")),
        ({"delay_ms": 60.0}, ("at 0 % locality", "capacity / single", "decrease")),
        ({"delay_ms": 60.0}, ("100 % locality", "root balance / benchmark")),
        ({"signalling_bytes": 50_000.0}, ("since the start, 60 topics", "capacity against")),
        ({"signalling_bytes": 50_000.0}, ("capacity: linear in topics",)),
        ({"publications": 1}, ("publications between nodes at 100 %", "capacity")),
        ({"publications_bytes": 1e9}, ("capacity / benchmark: less in every setting",)),
        ({"publications_bytes_s": 1e9}, ("bytes of publications", "capacity / single")),
        ({"signalling_bytes": 1.0}, ("few short messages", "capacity / single")),
        ({"signalling_bytes_s": 1e9}, ("capacity: signalling / publications", "10⁵")),
        ({"node_cores": 0.1}, ("stress test", "capacity against", "more")),
        ({"node_cores": 0.4}, ("stress test", "capacity against", "or 10 points")),
        ({"node_cores": 0.4}, ("normal rate", "capacity / benchmark: no relevant")),
        ({"node_rss_bytes": 4e8}, ("memory, stress test", "capacity")),
    ],
)
def test_what_is_not_as_in_the_paper_does_not_hold(
    figures: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert one(judged(), *words).verdict == "yes"
    assert one(judged(changed(**figures)), *words).verdict == "no"


def test_rounds_that_disagree_leave_it_open() -> None:
    rows = cells_of(ALL, 2, LIKE_THE_PAPER)
    for row in rows:
        if row["contender"] == "capacity" and row["round"] == 2:
            row["delay_ms"] = 40.0
    claim = one(
        compare(Cells.of(rows), []), "delay at 50 %", "capacity / benchmark", "less than half"
    )
    assert claim.verdict == "within noise"
    assert claim.ours == "0.6 (0.381 to 0.84), 2 rounds"


def test_one_round_leaves_more_open_than_several() -> None:
    alone, several = spread([0.46]), spread([0.46, 0.46])
    assert alone is not None
    assert several is not None
    assert alone.most > 0.5 > several.most
    assert spread([]) is None


def test_only_rounds_that_both_were_measured_in_count() -> None:
    rows = cells_of([Setting(50, 3)], 2, LIKE_THE_PAPER)
    rows = [row for row in rows if (row["contender"], row["round"]) != ("flooding", 2)]
    cells = Cells.of(rows)
    ratios = cells.ratios([Setting(50, 3)], "single", "flooding", lambda row: row["delay_ms"])
    assert ratios == [0.96]


def test_times_are_judged_by_the_slowest_and_by_their_spread() -> None:
    times = [measured(TABLE2, number) for number in (1, 2, 3)]
    claims = judged(times=times)
    assert one(claims, "convergence time: not more").verdict == "yes"
    assert one(claims, "repair time: not more").ours == (
        "0.20 s on average, 0.20 s at the most, 3 times"
    )
    assert one(claims, "repair time: standard").verdict == "yes"
    slow = measured(TABLE2, 4, repaired=Repaired("n1", "root", 60.0))
    claims = judged(times=[*times, slow])
    assert one(claims, "repair time: not more").verdict == "no"
    assert one(claims, "repair time: standard").verdict == "no"
