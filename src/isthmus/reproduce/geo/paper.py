"""What the Geo paper says, and whether it holds here.

Three kinds of statements:

* the *equations* give the tables' values and the text's 18.9 %;
* each equation is what is *counted*, for every k, within `TOLERANCE` of the formula.  Counts are
  exact, so what differs is no noise: it is a contradiction in the model, or a system that does
  something else; and what is counted must be, at every broker, what workload and graph say;
* the *text*: which system has less to do in which case, and the delay of a gateway.

Where the paper gives a word and no number ("almost the same", "greatly"), the number that stands
for it here is in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from isthmus.reproduce.claims import Claim, Holds
from isthmus.reproduce.geo.delay import KINDS, LATE_S, LOOPBACK, WAYS, Delays
from isthmus.reproduce.geo.experiments import CONTENDERS, Contender
from isthmus.reproduce.geo.measuring import Measured
from isthmus.reproduce.geo.model import CASES, Rates, printed, reduction
from isthmus.reproduce.geo.printed_tables import PRINTED, REDUCTION, ROUNDING, TOTALS, values

__all__ = ["QUANTITIES", "TOLERANCE", "Found", "compare", "predicted_s"]

TOLERANCE: Final = 0.01
EXACT: Final = 1e-9
SAME: Final = 0.05
"""*Almost the same performance*."""
GREATLY: Final = 0.10
TWICE: Final = (1.9, 2.1)
"""113.0 ms are 1.99 times 56.9 ms."""
PAPER_MS: Final = (56.9, 113.0)

QUANTITIES: Final[Mapping[str, str]] = {
    "received_publish": "PUBLISH received",
    "received_subscribe": "SUBSCRIBE received",
    "transmitted_publish": "PUBLISH transmitted",
    "transmitted_subscribe": "SUBSCRIBE transmitted",
}
EQUATIONS: Final[Mapping[str, tuple[int, int]]] = {
    "system-1": (1, 2),
    "system-2": (3, 4),
    "proposed": (5, 6),
}
"""Of what a broker receives and transmits."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured."""

    measured: Sequence[Measured] = ()
    delays: Mapping[str, Delays] = field(default_factory=dict)
    """By the network's name."""

    def by_k(self, contender: Contender, where: str = "sim") -> list[Measured]:
        """Of one system, in a star, the smallest first."""
        some = [
            each
            for each in self.measured
            if (each.where, each.contender, each.shape, each.case) == (where, contender, "star", "")
        ]
        return sorted(some, key=lambda each: each.of.k)

    def in_case(self, case: str) -> dict[Contender, Measured]:
        return {each.contender: each for each in self.measured if each.case == case}


def compare(found: Found) -> list[Claim]:
    """Every statement; by name also those for which there is no measurement."""
    return [
        *_tables(),
        *_equations(found),
        *_own_assumptions(found),
        *_packet_for_packet(found),
        *_cases(found),
        *_delays(found),
    ]


def _holds(so: bool) -> Holds:
    return "yes" if so else "no"


# ---- the equations and the tables --------------------------------------------------------


def _tables() -> Iterator[Claim]:
    for table in ("I", "II"):
        some = [each for each in values() if each.table == table]
        agree = sum(each.agrees for each in some)
        yield Claim(
            f"Table {table}",
            f"the {len(some)} values are those of the equations, to {ROUNDING:g}",
            f"{len(some)} values",
            f"{agree} of {len(some)}",
            _holds(agree == len(some)),
        )
    than, other = (printed(system, CASES["C"]) for system in TOTALS)
    saved = reduction(than, other)
    yield Claim(
        "IV-D",
        "in case C (the text has Case 2) a broker has 18.9 % less to receive and transmit than in "
        "System 2, by the equations",
        f"{REDUCTION:.1%}: {TOTALS['system-2']} and {TOTALS['proposed']}",
        f"{saved:.1%}: {than.total:.1f} and {other.total:.1f}",
        _holds(abs(saved - REDUCTION) < 0.0005),
    )


# ---- formula and count -------------------------------------------------------------------


def ratio(value: float, formula: float) -> float:
    """How many times the formula's; 1 if both are 0."""
    if formula == 0:
        return 1.0 if value == 0 else float("inf")
    return value / formula


def _equations(found: Found) -> Iterator[Claim]:
    for contender, of in CONTENDERS.items():
        some = found.by_k(contender)
        received, transmitted = EQUATIONS[of.system]
        for name, words in QUANTITIES.items():
            equation = received if name.startswith("received") else transmitted
            statement = f"{of.name}: {words}: count / equation, within {TOLERANCE:.0%} at every k"
            source = f"eq. {equation}"
            if not some:
                yield Claim(source, statement, "the formula", "", "not measured")
                continue
            ratios = [ratio(getattr(m.rates, name), getattr(m.printed, name)) for m in some]
            yield Claim(
                source,
                statement,
                "1",
                _ratios(some, ratios),
                _holds(all(abs(each - 1) <= TOLERANCE for each in ratios)),
            )


def _ratios(some: Sequence[Measured], ratios: Sequence[float]) -> str:
    if len({f"{each:.3f}" for each in ratios}) == 1:
        ks = f"{some[0].of.k} to {some[-1].of.k}" if len(some) > 1 else str(some[0].of.k)
        return f"{ratios[0]:.3f} at k = {ks}"
    return ", ".join(f"k = {m.of.k}: {each:.3f}" for m, each in zip(some, ratios, strict=True))


def _own_assumptions(found: Found) -> Iterator[Claim]:
    for contender, of in CONTENDERS.items():
        some = found.by_k(contender)
        ratios = [
            ratio(one, other)
            for m in some
            for one, other in zip(m.rates, m.consistent, strict=True)
        ]
        ours = f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else ""
        exact = all(abs(each - 1) < EXACT for each in ratios)
        yield Claim(
            "ours",
            f"{of.name}: all four counts are exactly what the paper's assumptions give when they "
            "are kept to throughout",
            "1",
            "1, exactly" if ratios and exact else ours,
            _holds(exact) if some else "not measured",
        )


def _packet_for_packet(found: Found) -> Iterator[Claim]:
    for where, words in (("sim", "in the simulator"), ("live", "live, with real brokers")):
        some = [each for each in found.measured if each.where == where]
        brokers = sum(each.of.areas for each in some)
        different = sum(each.different for each in some)
        yield Claim(
            "ours",
            f"{words}: every broker's four counts are what workload and graph say, packet for "
            "packet",
            "all",
            f"{brokers - different} of {brokers} brokers in {len(some)} runs" if some else "",
            _holds(different == 0) if some else "not measured",
        )


# ---- the text of IV-D --------------------------------------------------------------------

Amount = Callable[[Rates], float]


def _received(rates: Rates) -> float:
    return rates.received_publish + rates.received_subscribe


def _both(rates: Rates) -> float:
    return rates.total


def _transmitted(rates: Rates) -> float:
    return rates.transmitted_publish + rates.transmitted_subscribe


@dataclass(frozen=True, slots=True)
class _Saving:
    """By what share the proposed system has less to do."""

    case: str
    amount: Amount
    statement: str
    holds: Callable[[float], bool]

    @property
    def paper(self) -> str:
        """By the paper's own tables."""
        than, geo = (self.amount(PRINTED[self.case][each]) for each in TOTALS)
        return f"{(than - geo) / than:.1%}"

    def judge(self, found: Found, contender: Contender) -> Claim:
        source, some = f"IV-D, case {self.case}", found.in_case(self.case)
        statement = f"against {CONTENDERS[contender].name}: {self.statement}"
        if not {"geo", contender} <= some.keys():
            return Claim(source, statement, self.paper, "", "not measured")
        than, geo = self.amount(some[contender].rates), self.amount(some["geo"].rates)
        saved = (than - geo) / than
        ours = f"{saved:.1%}: {than:.3g}/s and {geo:.3g}/s"
        return Claim(source, statement, self.paper, ours, _holds(self.holds(saved)))


SAVINGS: Final = (
    _Saving(
        "A",
        _received,
        f"with few subscribers almost as many received (within {SAME:.0%})",
        lambda saved: abs(saved) <= SAME,
    ),
    _Saving(
        "B",
        _received,
        f"with many subscribers greatly fewer received (by {GREATLY:.0%})",
        lambda saved: saved >= GREATLY,
    ),
    _Saving(
        "C",
        _received,
        f"with many subscribers greatly fewer received (by {GREATLY:.0%})",
        lambda saved: saved >= GREATLY,
    ),
    _Saving(
        "C",
        _both,
        "18.9 % fewer received and transmitted (18.4 to 19.4 %)",
        lambda saved: abs(saved - REDUCTION) <= 0.005,
    ),
)


def _cases(found: Found) -> Iterator[Claim]:
    for contender in ("one-hop", "sf"):
        for saving in SAVINGS:
            yield saving.judge(found, contender)
    for case in CASES:
        some = found.in_case(case)
        statement = "the proposed system transmits the fewest messages"
        if some.keys() != CONTENDERS.keys():
            yield Claim(f"IV-D, case {case}", statement, "fewest", "", "not measured")
            continue
        sent = {contender: _transmitted(each.rates) for contender, each in some.items()}
        yield Claim(
            f"IV-D, case {case}",
            statement,
            "fewest",
            ", ".join(f"{CONTENDERS[c].name} {value:.3g}/s" for c, value in sent.items()),
            _holds(all(sent["geo"] < value for c, value in sent.items() if c != "geo")),
        )


# ---- the delay experiment ----------------------------------------------------------------


def predicted_s(delays: Delays, loopback: Delays, kind: str) -> tuple[float, float]:
    """By the number of round trips: the least, and the most that proxies make of it."""
    alone_s = min(loopback.median_s(each) for each in (kind, *_twins(kind)))
    least_s = alone_s + delays.network.round_trips_s(kind)
    return least_s, least_s + delays.network.passes(kind) * LATE_S


def _twins(kind: str) -> tuple[str, ...]:
    return ("direct", "direct again") if kind.startswith("direct") else ()


def _delays(found: Found) -> Iterator[Claim]:
    paper = f"{PAPER_MS[1] / PAPER_MS[0]:.2f}"
    beside_client = found.delays.get(WAYS[2].name)
    for kind, words in (("first", "first asks that broker"), ("open", "has been there before")):
        statement = (
            f"with a gateway beside it a client that {words} waits twice as long for a retained "
            f"message ({TWICE[0]:g} to {TWICE[1]:g} times)"
        )
        if beside_client is None:
            yield Claim("III", statement, paper, "", "not measured")
            continue
        direct_s, with_s = beside_client.median_s("direct"), beside_client.median_s(kind)
        yield Claim(
            "III",
            statement,
            paper,
            f"{with_s / direct_s:.2f}: {_ms(with_s)} and {_ms(direct_s)} ms",
            _holds(TWICE[0] <= with_s / direct_s <= TWICE[1]),
        )
    loopback = found.delays.get(LOOPBACK.name)
    for network in WAYS:
        if not network.direct_s:
            continue
        delays = found.delays.get(network.name)
        for kind in KINDS:
            statement = f"{network.name}, {kind}: the median is what the round trips predict"
            if delays is None or loopback is None:
                yield Claim("ours", statement, "", "", "not measured")
                continue
            least_s, most_s = predicted_s(delays, loopback, kind)
            median_s, noise_s = delays.median_s(kind), max(delays.noise_s, loopback.noise_s)
            yield Claim(
                "ours",
                statement,
                f"{_ms(least_s)} to {_ms(most_s)} ms",
                f"{_ms(median_s)} ms, noise {noise_s * 1e3:.2f} ms",
                _holds(least_s - noise_s <= median_s <= most_s + noise_s),
            )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
