"""Eq. 1-6 give Tables I and II; where they contradict each other, and what follows without that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.reproduce.geo.model import (
    CASES,
    SYSTEMS,
    Parameters,
    Rates,
    Reading,
    System,
    consistent,
    printed,
    reduction,
)
from isthmus.reproduce.geo.printed_tables import (
    PRINTED,
    REDUCTION,
    ROUNDING,
    TOTALS,
    Value,
    values,
)

ALL: list[Value] = list(values())


def test_there_are_36_values() -> None:
    assert len(ALL) == 36
    assert len({str(each) for each in ALL}) == 36


@pytest.mark.parametrize("value", ALL, ids=str)
def test_every_value_of_the_tables_is_the_formulas(value: Value) -> None:
    assert value.formula == pytest.approx(value.paper, abs=ROUNDING)
    assert value.agrees


def test_a_value_that_is_wrong_by_more_than_rounding_does_not_agree() -> None:
    value = ALL[0]
    assert not value._replace(paper=value.paper + 0.51).agrees


def test_the_text_adds_up_case_c() -> None:
    for system, total in TOTALS.items():
        assert printed(system, CASES["C"]).total == pytest.approx(total, abs=ROUNDING)
        assert PRINTED["C"][system].total == pytest.approx(total, abs=0.051)
    case_c = [printed(system, CASES["C"]) for system in ("system-2", "proposed")]
    assert reduction(*case_c) == pytest.approx(REDUCTION, abs=0.0005)
    for case in "AB":  # the text says Case 2, which case B would be
        other = [printed(system, CASES[case]) for system in ("system-2", "proposed")]
        assert reduction(*other) != pytest.approx(REDUCTION, abs=0.005)


def between_brokers(rates: Rates, of: Parameters) -> tuple[Rates, Rates]:
    """What a broker has from others and what it has for others, without clients."""
    published, changed = of.publishers / of.publish_every_s, of.subscribers / of.subscribe_every_s
    delivered = of.subscribers / of.publish_every_s
    received = rates.received_publish - published, rates.received_subscribe - changed
    sent = rates.transmitted_publish - delivered, rates.transmitted_subscribe
    return Rates(*received, 0, 0), Rates(*sent, 0, 0)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("reading", ["another", "any"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_consistent_rates_lose_nothing_between_brokers(
    system: System, reading: Reading, k: int
) -> None:
    of = replace(CASES["B"], k=k)
    received, sent = between_brokers(consistent(system, of, reading), of)
    assert received == pytest.approx(sent)


def test_as_printed_system_2_sends_less_than_nothing_to_other_brokers() -> None:
    of = CASES["C"]
    received, sent = between_brokers(printed("system-2", of), of)
    assert received.received_publish == pytest.approx(200)
    assert sent.received_publish < 0
    assert received.received_subscribe == pytest.approx(sent.received_subscribe * 255 / 256)


def test_where_the_readings_differ() -> None:
    of = Parameters(1, 10, 10)
    assert consistent("system-1", of) == printed("system-1", of)
    another, some = consistent("system-2", of), consistent("system-2", of, "any")
    assert another.received_publish == printed("system-2", of).received_publish
    assert some.received_subscribe == pytest.approx(printed("system-2", of).received_subscribe)
    assert another.transmitted_subscribe == printed("system-2", of).transmitted_subscribe
    assert some.transmitted_publish < another.transmitted_publish
    for reading in ("another", "any"):
        gateway = consistent("proposed", of, reading)
        missing = of.remote * of.subscribers / of.areas
        for name, every_s in (("received_subscribe", 30), ("transmitted_publish", 10)):
            formula = getattr(printed("proposed", of), name)
            assert getattr(gateway, name) == pytest.approx(formula + missing / every_s)


def test_with_its_own_assumptions_the_paper_would_have_saved_more() -> None:
    ours = [consistent(system, CASES["C"]) for system in ("system-2", "proposed")]
    assert reduction(*ours) == pytest.approx(0.271, abs=0.0005)
