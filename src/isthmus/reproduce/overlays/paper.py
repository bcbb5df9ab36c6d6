"""What the Overlays paper found, and whether it holds here.

Each row is a statement of the paper with our figure beside it; the criterion is the paper's own,
as it is written.  Where it gives a word and no number ("negligible", "similar"), the number that
stands for the word here is in the row.

How a figure comes about: in each round the contenders had the same clients over the same lines, so
they are compared within rounds.  A figure is the mean over the rounds; what can be meant lies from
the least to the most of them, and 5 % further for what a round leaves open, 20 % if there was one
round only.  A statement is *yes* or *no* if it is so for all of that, else *within noise*.

Source: Overlays §6.1 to §6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, Final

from isthmus.reproduce.claims import Claim, Holds, Range, at_least
from isthmus.reproduce.overlays.experiments import CONTENDERS, PAYLOADS, TOPICS, Setting
from isthmus.reproduce.overlays.measuring import Measured

__all__ = ["Cells", "compare"]

Cell = Mapping[str, Any]
"""A row of the table `cells`."""
Amount = Callable[[Cell], float]

HALF: Final = 0.5
NOISE: Final = 0.05
NOISE_OF_ONE: Final = 0.20
SIMILAR: Final = 0.20
"""Two figures that differ by no more are similar, in line, without relevant difference."""
POINTS: Final = 0.10
MEMORY_SIMILAR: Final = 0.10
NEGLIGIBLE: Final = 0.05
"""Of the publications' bytes."""
GROWTH: Final[Mapping[int, float]] = {3: 0.30, 60: 15.0}
"""Of signalling against the benchmark, by number of topics."""
STRESS_CPU: Final = 0.22
CONVERGENCE_S: Final = 19.5
CONVERGENCE_DEVIATION_S: Final = 0.02
REPAIR_S: Final = 59.1
REPAIR_DEVIATION_S: Final = 0.01
TOPIC_BASED: Final = ("capacity", "balance")
OTHERS: Final = ("flooding", "single")


@dataclass(frozen=True, slots=True)
class Cells:
    """What was measured, found by setting, contender and round."""

    rows: Mapping[tuple[Setting, str], Mapping[int, Cell]]

    @classmethod
    def of(cls, rows: Iterable[Cell]) -> Cells:
        found: dict[tuple[Setting, str], dict[int, Cell]] = {}
        for row in rows:
            setting = Setting(row["locality"], row["topics"], row["payload_bytes"], row["stress"])
            found.setdefault((setting, row["contender"]), {})[row["round"]] = row
        return cls(found)

    @property
    def settings(self) -> list[Setting]:
        return list(dict.fromkeys(setting for setting, _ in self.rows))

    def ratios(
        self, settings: Iterable[Setting], one: str, other: str, amount: Amount
    ) -> list[float]:
        """`one` as a multiple of `other`, in each round: their sums over all of `settings`.

        Of each round those settings count in which both were measured.
        """
        sums: dict[int, tuple[float, float]] = {}
        for setting in settings:
            these, those = self.rows.get((setting, one), {}), self.rows.get((setting, other), {})
            for number in these.keys() & those.keys():
                above, below = sums.get(number, (0.0, 0.0))
                sums[number] = above + amount(these[number]), below + amount(those[number])
        return [above / below for _, (above, below) in sorted(sums.items()) if below > 0]

    def per_round(self, setting: Setting, contender: str, amount: Amount) -> dict[int, float]:
        """An amount in each round."""
        return {n: amount(row) for n, row in self.rows.get((setting, contender), {}).items()}


def compare(cells: Cells, measured: Sequence[Measured]) -> list[Claim]:
    """Every statement; by name also those for which there is no measurement."""
    return [
        *_delays(cells),
        *_signalling(cells),
        *_publications(cells),
        *_payloads(cells),
        *_resources(cells),
        *_times(measured),
    ]


# ---- ranges and verdicts -----------------------------------------------------------------


def spread(values: Sequence[float], noise_of_one: float = NOISE_OF_ONE) -> Range | None:
    """Over rounds; None without any."""
    if not values:
        return None
    noise = NOISE if len(values) > 1 else noise_of_one
    return Range(mean(values), min(values) / (1 + noise), max(values) * (1 + noise))


def below(value: Range, bound: float) -> Holds:
    """Whether `value` stays below `bound`."""
    if value.most < bound:
        return "yes"
    return "no" if value.least >= bound else "within noise"


def within(value: Range, least: float, most: float) -> Holds:
    """Whether `value` lies between the two."""
    if least <= value.least and value.most <= most:
        return "yes"
    return "no" if value.most < least or value.least > most else "within noise"


def _similar(value: Range, part: float = SIMILAR) -> Holds:
    return within(value, 1 / (1 + part), 1 + part)


def _by(value: Range, growth: float) -> Holds:
    """Whether a multiple is growth by so much, to a fifth of it or 10 points."""
    about = max(SIMILAR * growth, POINTS)
    return within(value, 1 + growth - about, 1 + growth + about)


def _claim(
    source: str,
    statement: str,
    paper: str,
    values: Sequence[float],
    judge: Callable[[Range], Holds],
    *,
    percent: bool = False,
    noise_of_one: float = NOISE_OF_ONE,
) -> Claim:
    found = spread(values, noise_of_one)
    if found is None:
        return Claim(source, statement, paper, "", "not measured")
    rounds = f"{len(values)} round" + ("s" if len(values) > 1 else "")
    shown = _grown(found) if percent else _plain(found)
    return Claim(source, statement, paper, f"{shown}, {rounds}", judge(found))


def _plain(value: Range) -> str:
    return f"{value.measured:.3g} ({value.least:.3g} to {value.most:.3g})"


def _grown(value: Range) -> str:
    """As growth."""
    mean, least, most = (
        f"{round(100 * (each - 1)):+d}%" for each in (value.measured, value.least, value.most)
    )
    return f"{mean} ({least} to {most})"


def _of(name: str) -> Amount:
    return lambda cell: float(cell[name] or 0.0)


def _name(contender: str) -> str:
    return CONTENDERS[contender].name


def _base(cells: Cells, *localities: int) -> list[Setting]:
    """Short messages at the normal rate."""
    return [
        each
        for each in cells.settings
        if each.locality in localities and each == Setting(each.locality, each.topics)
    ]


# ---- §6.1 --------------------------------------------------------------------------------


def _delays(cells: Cells) -> Iterator[Claim]:
    delay = _of("delay_ms")
    for locality in (50, 0):
        base = _base(cells, locality)
        for one in TOPIC_BASED:
            for other in OTHERS:
                yield _claim(
                    "§6.1, Fig. 6",
                    f"delay at {locality} % locality, {_name(one)} / {_name(other)}: "
                    "less than half",
                    f"< {HALF}",
                    cells.ratios(base, one, other, delay),
                    lambda value: below(value, HALF),
                )
    for locality in (50, 0):
        base = _base(cells, locality)
        for one in TOPIC_BASED:
            for other in OTHERS:
                yield _claim(
                    "§6.1, Fig. 6",
                    f"delay at {locality} % locality, {_name(one)} / {_name(other)}: decrease",
                    "< 1",
                    cells.ratios(base, one, other, delay),
                    lambda value: below(value, 1.0),
                )
    both = cells.ratios(_base(cells, 50, 0), *TOPIC_BASED, delay)
    yield _claim("§6.1", "delay, capacity / root balance: similar (a fifth)", "≈ 1", both, _similar)
    yield _claim(
        "§6.1",
        "delay, capacity / root balance: capacity slightly better",
        "< 1",
        both,
        lambda value: below(value, 1.0),
    )
    for one in TOPIC_BASED:
        yield _claim(
            "§6.1, Fig. 6",
            f"delay at 100 % locality, {_name(one)} / benchmark: in line (at most a fifth more)",
            "≈ 1",
            cells.ratios(_base(cells, 100), one, "flooding", delay),
            lambda value: below(value, 1 + SIMILAR),
        )


# ---- §6.2 --------------------------------------------------------------------------------


def _signalling(cells: Cells) -> Iterator[Claim]:
    since_start, steady = _of("signalling_bytes"), _of("signalling_bytes_s")
    for contender in OTHERS:
        yield _claim(
            "§6.2",
            f"{_name(contender)}: signalling / publications in the window, 50 % and 0 %: "
            "negligible (a twentieth)",
            "≈ 0",
            _shares(cells, _base(cells, 50, 0), contender),
            lambda value: below(value, NEGLIGIBLE),
        )
    for contender in OTHERS:
        yield _claim(
            "§6.2",
            f"{_name(contender)}: signalling with {TOPICS[-1]} topics / with {TOPICS[0]}: the same "
            "(a fifth)",
            "1",
            _between(cells, contender, TOPICS[-1], TOPICS[0], since_start),
            _similar,
        )
    for topics, growth in GROWTH.items():
        some = [each for each in _base(cells, 100, 50, 0) if each.topics == topics]
        for one in TOPIC_BASED:
            for what, amount in (("since the start", since_start), ("in the window", steady)):
                yield _claim(
                    "§6.2, Fig. 7",
                    f"signalling {what}, {topics} topics, {_name(one)} against the benchmark "
                    "(to a fifth of that or 10 points)",
                    f"{growth:+.0%}",
                    cells.ratios(some, one, "flooding", amount),
                    lambda value, growth=growth: _by(value, growth),  # type: ignore[misc]
                    percent=True,
                )
    for one in TOPIC_BASED:
        yield _claim(
            "§6.2, Fig. 7",
            f"signalling since the start, {_name(one)}: linear in topics (bytes per topic more, "
            "from 30 to 60 / from 3 to 30; half as much again is linear still)",
            "1",
            _slopes(cells, one, since_start),
            lambda value: within(value, 1 / 1.5, 1.5),
        )


def _shares(cells: Cells, settings: Sequence[Setting], contender: str) -> list[float]:
    """Signalling by publications in the window, round by round, over all of `settings`."""
    sums: dict[int, list[float]] = {}
    for setting in settings:
        for number, row in cells.rows.get((setting, contender), {}).items():
            above, under = sums.setdefault(number, [0.0, 0.0])
            sums[number] = [
                above + float(row["signalling_bytes_s"] or 0.0),
                under + float(row["publications_bytes_s"] or 0.0),
            ]
    return [above / under for above, under in sums.values() if under > 0]


def _between(
    cells: Cells, contender: str, one: int, other: int, amount: Amount, *, stress: bool = False
) -> list[float]:
    """With so many topics, as a multiple of with so many, at 50 % locality."""
    these = cells.per_round(Setting(50, one, stress=stress), contender, amount)
    those = cells.per_round(Setting(50, other, stress=stress), contender, amount)
    return [these[n] / those[n] for n in sorted(these.keys() & those.keys()) if those[n] > 0]


def _slopes(cells: Cells, contender: str, amount: Amount) -> list[float]:
    low, middle, high = (
        cells.per_round(Setting(50, topics), contender, amount) for topics in TOPICS
    )
    found = []
    for number in sorted(low.keys() & middle.keys() & high.keys()):
        first = (middle[number] - low[number]) / (TOPICS[1] - TOPICS[0])
        second = (high[number] - middle[number]) / (TOPICS[2] - TOPICS[1])
        found.append(max(0.0, second) / first if first > 0 else 0.0)
    return found


def _publications(cells: Cells) -> Iterator[Claim]:
    for one in TOPIC_BASED:
        rows = [
            row for each in _base(cells, 100) for row in cells.rows.get((each, one), {}).values()
        ]
        sent = sum(row["publications"] or 0 for row in rows)
        statement = f"publications between nodes at 100 % locality, {_name(one)}"
        yield Claim(
            "§6.2, Fig. 7",
            statement,
            "0",
            f"{sent:,} in {len(rows)} runs" if rows else "",
            "not measured" if not rows else "no" if sent else "yes",
        )
    data = _of("publications_bytes_s")
    for one in TOPIC_BASED:
        for other in OTHERS:
            yield _claim(
                "§6.2, Fig. 7",
                f"bytes of publications, 50 % and 0 %, {_name(one)} / {_name(other)}: fewer",
                "< 1",
                cells.ratios(_base(cells, 50, 0), one, other, data),
                lambda value: below(value, 1.0),
            )
    for one in ("single", *TOPIC_BASED):
        yield _always(cells, one)
    low = [each for each in _base(cells, 50) if each.topics == TOPICS[-1]]
    for one in TOPIC_BASED:
        yield _claim(
            "§6.2",
            f"all traffic since the start, {TOPICS[-1]} topics, few short messages, {_name(one)} / "
            "single overlay: more, because of signalling",
            "> 1",
            cells.ratios(low, one, "single", _total),
            lambda value: at_least(value, 1.0),
        )


def _total(cell: Cell) -> float:
    """Since the nodes were started."""
    return float(cell["signalling_bytes"] or 0) + float(cell["publications_bytes"] or 0)


def _always(cells: Cells, one: str) -> Claim:
    """In every setting; the one in which it is least so decides."""
    found = {
        setting.name: value
        for setting in cells.settings
        if (value := spread(cells.ratios([setting], one, "flooding", _total))) is not None
    }
    statement = f"all traffic since the start, {_name(one)} / benchmark: less in every setting"
    if not found:
        return Claim("§6.2, Fig. 7", statement, "< 1", "", "not measured")
    worst = max(found, key=lambda name: found[name].most)
    shown = f"{_plain(found[worst])} at the most ({worst})"
    return Claim("§6.2, Fig. 7", statement, "< 1", shown, below(found[worst], 1.0))


def _payloads(cells: Cells) -> Iterator[Claim]:
    for one in TOPIC_BASED:
        longest = Setting(50, TOPICS[-1], PAYLOADS[-1])
        yield _claim(
            "§6.2, Fig. 8",
            f"{_name(one)}: signalling / publications in the window with 10⁵ bytes: negligible (a "
            "twentieth)",
            "≈ 0",
            _shares(cells, [longest], one),
            lambda value: below(value, NEGLIGIBLE),
        )
    for payload in PAYLOADS[1:]:
        for one in TOPIC_BASED:
            yield _claim(
                "§6.2, Fig. 8",
                f"all traffic since the start, {payload:,} bytes, {_name(one)} / single overlay: "
                "less",
                "< 1",
                cells.ratios([Setting(50, TOPICS[-1], payload)], one, "single", _total),
                lambda value: below(value, 1.0),
            )


# ---- §6.3 --------------------------------------------------------------------------------


def _cores(cell: Cell) -> float:
    return float(cell["node_cores"] or 0.0) + float(cell["broker_cores"] or 0.0)


def _memory(cell: Cell) -> float:
    return float(cell["node_rss_bytes"] or 0.0) + float(cell["broker_rss_bytes"] or 0.0)


def _resources(cells: Cells) -> Iterator[Claim]:
    normal = _base(cells, 50)
    stress = [
        each for each in cells.settings if each == Setting(50, each.topics, PAYLOADS[0], True)
    ]
    for one in ("single", *TOPIC_BASED):
        yield _claim(
            "§6.3",
            f"CPU at the normal rate, {_name(one)} / benchmark: no relevant difference (a fifth)",
            "≈ 1",
            cells.ratios(normal, one, "flooding", _cores),
            _similar,
        )
    for one in TOPIC_BASED:
        grown = cells.ratios(stress, one, "flooding", _cores)
        against = f"CPU in the stress test, {_name(one)} against the benchmark"
        yield _claim(
            "§6.3, Fig. 9",
            f"{against}: more",
            "more",
            grown,
            lambda value: at_least(value, 1.0),
            percent=True,
        )
        yield _claim(
            "§6.3, Fig. 9",
            f"{against} (to a fifth of that or 10 points)",
            f"{STRESS_CPU:+.0%}",
            grown,
            lambda value: _by(value, STRESS_CPU),
            percent=True,
        )
        yield _claim(
            "§6.3, Fig. 9",
            f"CPU in the stress test, {_name(one)}, {TOPICS[-1]} topics / {TOPICS[0]}: more",
            "> 1",
            _between(cells, one, TOPICS[-1], TOPICS[0], _cores, stress=True),
            lambda value: at_least(value, 1.0),
        )
    for rate, some in (("normal rate", normal), ("stress test", stress)):
        for one in ("single", *TOPIC_BASED):
            yield _claim(
                "§6.3",
                f"memory, {rate}, {_name(one)} / benchmark: no significant increase (a tenth)",
                "≈ 1",
                cells.ratios(some, one, "flooding", _memory),
                lambda value: below(value, 1 + MEMORY_SIMILAR),
                noise_of_one=NOISE,  # it depends little on where clients are
            )


# ---- §6.4 --------------------------------------------------------------------------------


def _times(measured: Sequence[Measured]) -> Iterator[Claim]:
    took = [each.converged.took_s for each in measured]
    repaired = [each.repaired.took_s for each in measured if each.repaired is not None]
    for what, values, paper_s, deviation_s in (
        ("convergence", took, CONVERGENCE_S, CONVERGENCE_DEVIATION_S),
        ("repair", repaired, REPAIR_S, REPAIR_DEVIATION_S),
    ):
        shown, spreads = "", ""
        quick: Holds = "not measured"
        steady: Holds = "not measured"
        if values:
            shown = f"{mean(values):.2f} s on average, {max(values):.2f} s at the most"
            shown += f", {len(values)} times"
            quick = "yes" if max(values) <= paper_s else "no"
        if len(values) > 1:
            spreads = f"{stdev(values):.3f} s"
            steady = "yes" if stdev(values) <= deviation_s else "no"
        at_most = f"{what} time: not more than the paper's average"
        yield Claim("§6.4, Table 2", at_most, f"{paper_s} s", shown, quick)
        robust = f"{what} time: standard deviation not more than the paper's"
        yield Claim("§6.4, Table 2", robust, f"{deviation_s} s", spreads, steady)
