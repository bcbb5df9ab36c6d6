"""The tables of the report and the docs, and what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from isthmus.reproduce.geo.delay import KINDS, LOOPBACK, Delays
from isthmus.reproduce.geo.experiments import CONTENDERS
from isthmus.reproduce.geo.measuring import Measured
from isthmus.reproduce.geo.model import CASES, SYSTEMS, consistent
from isthmus.reproduce.geo.paper import PAPER_MS, QUANTITIES, Found, predicted_s, ratio
from isthmus.reproduce.geo.printed_tables import PRINTED, values
from isthmus.reproduce.panels import Panel, Panels, Series

__all__ = ["TITLES", "panels_of", "tables_of"]

Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Header and rows."""

TITLES: Final = {
    "tables": "Tables I and II: the paper's values and the equations', a second and broker",
    "counted": "Counted in the simulator, a second and the average broker",
    "cases": "Counted with the ratios of cases A, B and C",
    "live": "Counted live",
    "delays": "From SUBSCRIBE until the retained message, ms",
}
LOOKS: Final = {"pf": "system-1", "one-hop": "system-2", "sf": "system-2-sf", "geo": "geo"}


def tables_of(found: Found) -> dict[str, Shown]:
    """Every table for which there is something, by the keys of `TITLES`."""
    sim = [each for each in found.measured if each.where == "sim"]
    made = {
        "tables": _tables(),
        "counted": _counted([each for each in sim if not each.case]),
        "cases": _counted([each for each in sim if each.case]),
        "live": _counted([each for each in found.measured if each.where == "live"]),
        "delays": _delays(found),
    }
    return {name: shown for name, shown in made.items() if shown[1]}


def _tables() -> Shown:
    header = ("table", "case", "system", "", "paper", "equation", "its assumptions kept to")
    rows = [
        (
            value.table,
            value.case,
            SYSTEMS[value.system],
            QUANTITIES[value.name],
            f"{value.paper:,g}",
            f"{value.formula:,.2f}",
            f"{getattr(consistent(value.system, CASES[value.case]), value.name):,.2f}",
        )
        for value in values()
    ]
    return header, rows


def _counted(some: Sequence[Measured]) -> Shown:
    header = (
        "",
        "system",
        "k",
        "N_P, N_S",
        *(f"{words}: counted, equation, ratio" for words in QUANTITIES.values()),
        "UNSUBSCRIBE received",
        "brokers not as derived",
        "took",
    )
    rows = [
        (
            each.name,
            CONTENDERS[each.contender].name + (", z-tree" if each.shape == "z-tree" else ""),
            str(each.of.k),
            f"{each.of.publishers}, {each.of.subscribers}",
            *(_beside(each, name) for name in QUANTITIES),
            f"{each.unsubscribes:.4g}",
            f"{each.different} of {each.of.areas}",
            f"{each.took_s:.1f} s",
        )
        for each in sorted(some, key=_in_order)
    ]
    return header, rows


def _in_order(measured: Measured) -> tuple[object, ...]:
    contenders = list(CONTENDERS)
    return (
        measured.case,
        contenders.index(measured.contender),
        measured.shape,
        measured.of.k,
    )


def _beside(measured: Measured, name: str) -> str:
    """Counted at the average broker, the equation, their ratio; and from the least to the most."""
    value, formula = getattr(measured.rates, name), getattr(measured.printed, name)
    least, most = getattr(measured.least, name), getattr(measured.most, name)
    spread = f" ({least:.3g} to {most:.3g})" if least != most else ""
    return f"{value:.4g}{spread}, {formula:.4g}, {ratio(value, formula):.3f}"


def _delays(found: Found) -> Shown:
    header = ("network", "", "times", "mean", "median", "deviation", "95 %", "predicted", "paper")
    loopback, rows = found.delays.get(LOOPBACK.name), []
    for name, delays in found.delays.items():
        for kind in KINDS:
            predicted = ""
            if delays.network.direct_s and loopback is not None:
                least_s, most_s = predicted_s(delays, loopback, kind)
                predicted = f"{least_s * 1e3:.1f} to {most_s * 1e3:.1f}"
            paper = ""
            if delays.network.gateway_broker_s and not delays.network.client_gateway_s:
                paper = f"{PAPER_MS[not kind.startswith('direct')]}"
            rows.append(
                (
                    name,
                    kind,
                    str(len(delays.series[kind])),
                    f"{delays.mean_s(kind) * 1e3:.2f}",
                    f"{delays.median_s(kind) * 1e3:.2f}",
                    f"{delays.deviation_s(kind) * 1e3:.2f}",
                    f"{delays.p95_s(kind) * 1e3:.2f}",
                    predicted,
                    paper,
                )
            )
    return header, rows


# ---- pictures ----------------------------------------------------------------------------


def panels_of(found: Found) -> dict[str, Panels]:
    """Every picture for which there is something, by its name."""
    made = {
        "geo-messages": Panels(2, tuple(_by_k(found))),
        "geo-tables": Panels(2, tuple(_bars())),
        "geo-delay": Panels(1, tuple(_delay_bars(found))),
    }
    return {name: panels for name, panels in made.items() if panels.panels}


def _by_k(found: Found) -> Iterator[Panel]:
    for name, words in QUANTITIES.items():
        series: list[Series] = []
        live: list[tuple[float, float]] = []
        for contender, of in CONTENDERS.items():
            some = found.by_k(contender)
            if not some or not any(getattr(each.rates, name) for each in some):
                continue
            ks = tuple(float(each.of.k) for each in some)
            look = LOOKS[contender]
            counted = tuple(getattr(each.rates, name) for each in some)
            series.append(Series(of.name, look, ks, counted, "line"))
            formula = tuple(getattr(each.printed, name) for each in some)
            series.append(Series("", look, ks, formula, "dashes"))
            live += [
                (float(each.of.k), getattr(each.rates, name))
                for each in found.by_k(contender, "live")
            ]
        if not series:
            continue
        series.append(Series("dashed: the equation", "law", (), (), "dashes"))
        if live:
            xs, ys = tuple(x for x, _ in live), tuple(y for _, y in live)
            series.append(Series("live", "paper", xs, ys, "dots"))
        yield Panel(f"{words}, a second and broker", "k", "", tuple(series), log_y=True)


def _bars() -> Iterator[Panel]:
    cases = tuple(f"case {case}" for case in PRINTED)
    places = tuple(float(place) for place in range(len(cases)))
    for name, words in QUANTITIES.items():
        looks = {"system-1": "system-1", "system-2": "system-2", "proposed": "geo"}
        series = []
        for system, of in SYSTEMS.items():
            heights = tuple(
                float(getattr(rates, name)) for rates in (PRINTED[case][system] for case in PRINTED)
            )
            series.append(Series(f"{of}, paper", looks[system], places, heights, "bar"))
        width = 0.84 / len(SYSTEMS)
        formulas: list[tuple[float, float]] = []
        for number, system in enumerate(SYSTEMS):
            for place, case in enumerate(PRINTED):
                value = next(
                    v.formula
                    for v in values()
                    if (v.case, v.system, v.name) == (case, system, name)
                )
                if value:
                    formulas.append((place + (number - 1) * width, value))
        marks = tuple(x for x, _ in formulas), tuple(y for _, y in formulas)
        series.append(Series("equation", "paper", *marks, "dots"))
        log_y = name.endswith("publish")
        yield Panel(f"{words}, a second and broker", "", "", tuple(series), False, log_y, cases)


def _delay_bars(found: Found) -> Iterator[Panel]:
    some = list(found.delays.values())
    if not some:
        return
    places = tuple(float(place) for place in range(len(some)))
    looks = ("law", "system-1", "system-2", "geo")
    series = [
        Series(
            kind,
            look,
            places,
            tuple(delays.median_s(kind) * 1e3 for delays in some),
            "bar",
        )
        for kind, look in zip(KINDS, looks, strict=True)
    ]
    series.append(_predictions(found, some))
    names = tuple(f"{delays.network.name}" for delays in some)
    yield Panel(
        "From SUBSCRIBE until the retained message", "", "median, ms", tuple(series), groups=names
    )


def _predictions(found: Found, some: Sequence[Delays]) -> Series:
    loopback, marks, width = found.delays.get(LOOPBACK.name), [], 0.84 / len(KINDS)
    for place, delays in enumerate(some):
        if loopback is None or not delays.network.direct_s:
            continue
        for number, kind in enumerate(KINDS):
            least_s, _ = predicted_s(delays, loopback, kind)
            marks.append((place + (number - (len(KINDS) - 1) / 2) * width, least_s * 1e3))
    return Series(
        "by the round trips",
        "paper",
        tuple(x for x, _ in marks),
        tuple(y for _, y in marks),
        "dots",
    )
