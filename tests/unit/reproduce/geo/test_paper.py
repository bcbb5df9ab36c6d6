"""Verdicts: what holds where all is as derived, and what would make a statement fail."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from isthmus.reproduce.claims import Claim
from isthmus.reproduce.geo.delay import LATE_S, LOOPBACK, WAYS
from isthmus.reproduce.geo.experiments import CASE_SIZES, CONTENDERS, Point, points
from isthmus.reproduce.geo.model import Parameters
from isthmus.reproduce.geo.paper import Found, compare, predicted_s
from isthmus.reproduce.geo.tables import panels_of, tables_of
from support.made_up_geo import as_derived, as_predicted

DELAYS = {network.name: as_predicted(network) for network in WAYS}
ALL = Found([as_derived(each) for each in points(quick=True)], DELAYS)


def the(claims: Iterable[Claim], *words: str) -> Claim:
    (found,) = [
        each for each in claims if all(word in f"{each.source} {each.statement}" for word in words)
    ]
    return found


def test_all_is_judged_and_nothing_is_without_measurement() -> None:
    empty = compare(Found())
    assert [c.verdict for c in empty[:3]] == ["yes"] * 3
    assert {c.verdict for c in empty[3:]} == {"not measured"}
    judged = compare(ALL)
    assert len(judged) == len(empty)
    assert {c.verdict for c in judged} == {"yes", "no"}


def test_where_the_equations_hold_and_where_not() -> None:
    judged = compare(ALL)
    verdicts = {
        (c.source, of.system, words): c.verdict
        for key, of in CONTENDERS.items()
        if key != "sf"
        for c in judged
        for words in ("PUBLISH", "SUBSCRIBE")
        if c.statement.startswith(f"{of.name}: {words}")
    }
    assert verdicts == {
        ("eq. 1", "system-1", "PUBLISH"): "yes",
        ("eq. 1", "system-1", "SUBSCRIBE"): "yes",
        ("eq. 2", "system-1", "PUBLISH"): "yes",
        ("eq. 2", "system-1", "SUBSCRIBE"): "yes",
        ("eq. 3", "system-2", "PUBLISH"): "yes",
        ("eq. 3", "system-2", "SUBSCRIBE"): "no",
        ("eq. 4", "system-2", "PUBLISH"): "no",
        ("eq. 4", "system-2", "SUBSCRIBE"): "yes",
        ("eq. 5", "proposed", "PUBLISH"): "yes",
        ("eq. 5", "proposed", "SUBSCRIBE"): "no",
        ("eq. 6", "proposed", "PUBLISH"): "no",
        ("eq. 6", "proposed", "SUBSCRIBE"): "yes",
    }
    for key, of in CONTENDERS.items():
        claim = the(judged, f"{of.name}: all four counts")
        assert claim.verdict == ("no" if key == "sf" else "yes")
    assert the(judged, "in the simulator", "packet").verdict == "yes"


@pytest.mark.parametrize(
    ("k", "off", "verdict"), [(4, 0.0, "yes"), (4, 0.0099, "yes"), (4, 0.011, "no")]
)
def test_one_per_cent_decides(k: int, off: float, verdict: str) -> None:
    point = Point("sim", "pf", Parameters(k, 2, 5))
    of = as_derived(point)
    changed = as_derived(point, received_publish=off * of.rates.received_publish)
    claim = the(compare(Found([changed])), "eq. 1", "PUBLISH received")
    assert claim.verdict == verdict


def test_one_packet_too_many_fails() -> None:
    point = Point("live", "geo", Parameters(1, 2, 5))
    wrong = as_derived(point, transmitted_publish=1 / 30 / 4)
    judged = compare(Found([as_derived(Point("live", "pf", Parameters(1, 2, 5))), wrong]))
    claim = the(judged, "live, with real brokers")
    assert (claim.verdict, claim.ours) == ("no", "4 of 8 brokers in 2 runs")


def test_the_cases() -> None:
    judged = compare(ALL)
    assert the(judged, "case A", "one hop", "almost").verdict == "yes"
    assert the(judged, "case B", "one hop", "greatly").verdict == "yes"
    saved = the(judged, "case C", "one hop", "18.9 %")
    assert saved.paper == "18.9%"
    assert saved.ours.startswith("27.1%")
    assert saved.verdict == "no"
    for case in CASE_SIZES:
        assert the(judged, f"case {case}", "fewest").verdict == "yes"


def test_delays_are_judged_by_round_trips() -> None:
    judged = compare(ALL)
    assert the(judged, "III", "first asks").verdict == "yes"
    assert the(judged, "III", "been there").verdict == "no"
    ours = [c for c in judged if "round trips predict" in c.statement]
    assert len(ours) == 12
    assert {c.verdict for c in ours} == {"yes"}
    network = WAYS[2]
    assert network.passes("first") == 4
    for late_s, verdict in ((3 * LATE_S, "yes"), (5 * LATE_S, "no"), (-0.01, "no"), (0.056, "no")):
        delays = DELAYS | {network.name: as_predicted(network, first=late_s)}
        claim = the(compare(Found([], delays)), f"{network.name}, first")
        assert claim.verdict == verdict, late_s


def test_what_is_predicted() -> None:
    loopback = DELAYS[LOOPBACK.name]
    for network in WAYS:
        least_s, most_s = predicted_s(DELAYS[network.name], loopback, "first")
        near_s, far_s = network.gateway_broker_s, network.client_gateway_s
        assert least_s == pytest.approx(0.0006 + 4 * near_s + 2 * far_s, abs=1e-5)
        assert most_s - least_s == pytest.approx(network.passes("first") * LATE_S)
    halfway = next(network for network in WAYS if network.client_gateway_s == 0.014)
    assert [halfway.passes(kind) for kind in ("direct", "open", "first")] == [2, 4, 6]


def test_tables_and_panels_are_there_for_what_was_measured() -> None:
    assert list(tables_of(Found())) == ["tables"]
    assert list(panels_of(Found())) == ["geo-tables"]
    shown = tables_of(ALL)
    assert len(shown["tables"][1]) == 36
    for name, (header, rows) in shown.items():
        assert {len(row) for row in rows} == {len(header)}, name
    assert list(panels_of(ALL)) == ["geo-messages", "geo-tables", "geo-delay"]
