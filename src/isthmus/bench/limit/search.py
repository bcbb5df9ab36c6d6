"""The limit search: the shortest interval at which the performance is under the limit.

No I/O and no clock: :class:`LimitSearch` says which interval to measure next and is told what came
out, so it is tested against made-up systems and continues from a file of past measurements
(:mod:`isthmus.bench.limit.file`).

* Steps 1 and 2 double the interval until Definition 1 is satisfied: ``x`` satisfies it, ``x/2``
  does not.  From a first interval that satisfies it already, the same ``x`` is found by halving.
* Steps 3 to 5 divide the segment from ``x/2`` to ``x`` into 20 and take the shortest interval that
  satisfies it; the next shorter one gives at most 1.05 times the throughput.  `bisect` measures at
  most 6 of those 21 intervals instead of all: the same answer wherever a longer interval is never
  worse.
* `guided` looks for the same answer in the grids of all doublings at once, for those who know
  roughly where it is: from a first interval within 10 % of it, 2 to 5 measurements instead of 7.

Departures from the paper, all for noisy machines: step 1 may be measured shorter (`coarse`); where
step 4 then contradicts it about ``x`` or ``x/2``, the longer measurement counts and the search goes
on from there, `corrections` times at most.  With `second_chance`, a doubtful failure is measured
again, because what disturbs a measurement makes it worse.  With `repeats`, an interval is judged by
the majority of its measurements; one that failed though it was not the brokers that gave way is
void, unless that happens `repeats` times, so that 2·repeats - 1 are the most.  Intervals are whole
nanoseconds, so the bound of 1.05 is exact to 1 ns.

Source: ILDM §5.3, Definition 1 and steps 1-5; the footnote for `bisect`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, Literal

from isthmus.errors import LimitError
from isthmus.pipeline.count.tables import UNDER_LIMIT

__all__ = ["GRID", "Found", "LimitSearch", "Outcome", "SearchOptions", "Times", "Trial"]

GRID: Final = 20
"""Parts that step 3 divides the segment into."""

NARROW: Final = 0.97
"""A ratio from here up to that of Definition 1 is a narrow failure."""
SHOWN: Final = 0.95
"""Less than this share of an egress that was carried before is a doubtful failure."""

OF_THE_BROKERS: Final = frozenset({"brokers", "nothing", ""})
"""What `limited_by` says where no other bottleneck was seen; see isthmus.bench.watch.bottleneck."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long a measurement takes, and what of it does not count at each end."""

    duration_s: float
    trim_s: float


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search; part of what a file of measurements belongs to."""

    first_interval_ns: int
    bisect: bool = False
    guided: bool = False
    """Go where the last measurement points, instead of by steps."""
    coarse: Times | None = None
    """How step 1 measures; None: as long as step 4, and what it measured counts there."""
    second_chance: bool = False
    """A doubtful failure counts only if a second measurement fails too."""
    repeats: int = 1
    """Votes on an interval in step 4: the majority of so many decides, so it is odd."""
    min_interval_ns: int = 50_000
    max_interval_ns: int = 60_000_000_000
    corrections: int = 3

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.repeats % 2 == 0:
            raise LimitError(
                f"repeats must be odd, like 1 or 3, so that there is a majority; not {self.repeats}"
            )
        if not 2 * GRID <= self.min_interval_ns <= self.max_interval_ns:
            raise LimitError(
                f"the shortest interval ({self.min_interval_ns} ns) must be {2 * GRID} ns or more "
                f"and not above the longest ({self.max_interval_ns} ns)"
            )
        if not self.min_interval_ns <= self.first_interval_ns <= self.max_interval_ns:
            raise LimitError(
                f"the first interval ({self.first_interval_ns / 1e6:g} ms) must be from "
                f"{self.min_interval_ns / 1e6:g} to {self.max_interval_ns / 1e6:g} ms"
            )
        if self.guided and (self.bisect or self.coarse is not None):
            raise LimitError("a guided search has no step 1 to measure shorter and does not bisect")
        if self.second_chance and self.repeats > 1:
            raise LimitError("give repeats or a second chance: both say when a failure counts")
        if self.corrections < 0:
            raise LimitError(f"corrections must be 0 or more, not {self.corrections}")
        if self.coarse is not None and not 0 <= 2 * self.coarse.trim_s < self.coarse.duration_s:
            raise LimitError(
                f"of {self.coarse.duration_s:g} s in step 1 nothing is left when "
                f"{self.coarse.trim_s:g} s are cut at each end"
            )


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement to be made."""

    number: int
    """Counted from 0 through the whole search."""
    interval_ns: int
    coarse: bool
    repeat: int
    """How many measurements of the same kind went before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a measurement showed; `ratio` is that of Definition 1."""

    run: str
    under_limit: bool
    ratio: float
    ingress: float
    egress: float
    loss_rate: float
    kept_pace: bool
    """Every publisher really sent at the interval asked for."""
    limited_by: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Over the limit by so little that a moment's disturbance of the machine may be why."""
        return self.kept_pace and NARROW <= self.ratio < UNDER_LIMIT

    @property
    def satisfies(self) -> bool:
        """Definition 1, which presupposes that every publisher sends at the same interval."""
        return self.under_limit and self.kept_pace

    @property
    def is_of_the_brokers(self) -> bool:
        """Nothing but the brokers was seen to bound it."""
        return self.limited_by in OF_THE_BROKERS


Verdict = Literal["found", "beyond", "none", "unsettled"]


@dataclass(frozen=True, slots=True)
class Found:
    """How a search ended.

    * ``found``: `interval_ns` satisfies Definition 1, `smaller_interval_ns` does not.
    * ``beyond``: even the shortest interval allowed satisfies it; the limit lies higher.
    * ``none``: not even the longest interval allowed satisfies it.
    * ``unsettled``: short and long measurements contradict each other too often; what is given is
      the shortest interval that a long measurement saw satisfying it, if any.
    """

    verdict: Verdict
    interval_ns: int | None
    outcome: Outcome | None
    smaller_interval_ns: int | None
    smaller: Outcome | None
    limited_by: str
    """What bounded the measurement at `smaller_interval_ns` (`none`: at the longest interval)."""
    is_lower_bound: bool
    """The brokers can do at least this much: something else gave way first, or the search ended."""
    measurements: int
    notes: tuple[str, ...]


Steps = Generator[Trial, Outcome, Found]


class LimitSearch:
    """Steps 1 to 5, one measurement at a time."""

    def __init__(self, options: SearchOptions) -> None:
        self.options = options
        self._outcomes: dict[tuple[int, bool], list[Outcome]] = {}
        self._count = 0
        self._notes: list[str] = []
        self._found: Found | None = None
        self._steps = self._search()
        self._next: Trial | None = next(self._steps)

    def next(self) -> Trial | None:
        """What to measure now; None when the search is over."""
        return self._next

    def record(self, trial: Trial, outcome: Outcome) -> None:
        """Tell what came out of `trial`, which must be the one that `next` gave."""
        if trial != self._next:
            raise LimitError(f"expected {self._next or 'no trial'}, got {trial}")
        self._count += 1
        self._outcomes.setdefault((trial.interval_ns, trial.coarse), []).append(outcome)
        try:
            self._next = self._steps.send(outcome)
        except StopIteration as end:
            self._next, self._found = None, end.value

    @property
    def limit(self) -> Found | None:
        """How it ended; None while it goes on."""
        return self._found

    # ---- the steps ------------------------------------------------------------------------------

    def _search(self) -> Steps:
        if self.options.guided:
            return (yield from self._guided())
        for _ in range(self.options.corrections + 1):
            power = yield from self._steps_1_and_2()
            if power is None:
                return self._none()
            x, half = self._interval(power), self._interval(power - 1)
            if half < self.options.min_interval_ns:
                if (yield from self._satisfies(x)):
                    return self._beyond(x)
            elif (shortest := (yield from self._steps_3_to_5(half, x))) is not None:
                return self._limit(half, x, shortest)
            self._note_contradiction(half, x)
        return self._unsettled()

    def _steps_1_and_2(self) -> Generator[Trial, Outcome, int | None]:
        """The power of two by which to multiply the first interval to have ``x``."""
        power = 0
        if (yield from self._satisfies_roughly(0)):
            while self._interval(power - 1) >= self.options.min_interval_ns and (
                yield from self._satisfies_roughly(power - 1)
            ):
                power -= 1
            return power
        while self._interval(power + 1) <= self.options.max_interval_ns:
            power += 1
            if (yield from self._satisfies_roughly(power)):
                return power
        return None

    def _steps_3_to_5(self, half: int, x: int) -> Generator[Trial, Outcome, int | None]:
        """Which of the grid is the shortest interval; None if an end is not what step 1 said."""
        grid = _grid(half, x)
        if self.options.bisect:
            low, high = 0, GRID
            while high - low > 1:
                middle = (low + high) // 2
                if (yield from self._satisfies(grid[middle])):
                    high = middle
                else:
                    low = middle
            # The neighbors must both have been measured at full length.
            if high == GRID and not (yield from self._satisfies(x)):
                return None
            if low == 0 and (yield from self._satisfies(half)):
                return None
            return high
        satisfying: list[int] = []
        for index in range(GRID, -1, -1):
            if (yield from self._satisfies(grid[index])):
                satisfying.append(index)
            elif index == GRID:
                return None
        return None if satisfying[-1] == 0 else satisfying[-1]

    def _guided(self) -> Steps:
        """Between `low`, over the limit, and `high`, under it, both points of the grids.

        Over the limit egress is what the brokers can do, so the ratio of Definition 1 tells how
        much longer the interval should be.  Under it the way is down, by steps that double.
        """
        lowest, highest = self._ends()
        low, high = lowest - 1, highest + 1
        at, step = 0, 1
        last: bool | None = None
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            under = yield from self._satisfies(self._point(at))
            step, last = (2 * step if under is last else 1), under
            if under:
                high, at = at, at - step
            else:
                low, at = at, max(self._pointed_to(at), at + step)
        if high > highest:
            return self._none()
        if high == lowest:
            return self._beyond(self._point(high))
        power = (high - 1) // GRID
        return self._limit(self._interval(power), self._interval(power + 1), high - GRID * power)

    def _point(self, index: int) -> int:
        """The grids of all doublings as one; 0 is the first interval."""
        power, within = divmod(index, GRID)
        return _grid(self._interval(power), self._interval(power + 1))[within]

    def _ends(self) -> tuple[int, int]:
        lowest = highest = 0
        while self._interval(lowest - 1) >= self.options.min_interval_ns:
            lowest -= 1
        while self._interval(highest + 1) <= self.options.max_interval_ns:
            highest += 1
        return GRID * lowest, GRID * highest

    def _pointed_to(self, index: int) -> int:
        """Where the limit should be, by a measurement over it."""
        interval_ns = self._point(index)
        ratio = max(0.1, self._failing(interval_ns)[-1].ratio)
        enough_ns = interval_ns * UNDER_LIMIT / ratio
        while self._point(index) < enough_ns:
            index += 1
        return index

    # ---- single intervals -----------------------------------------------------------------------

    def _interval(self, power: int) -> int:
        first = self.options.first_interval_ns
        return first << power if power >= 0 else first >> -power

    def _satisfies_roughly(self, power: int) -> Generator[Trial, Outcome, bool]:
        """As step 1 needs it: what a long measurement says if there is one, else a short one."""
        interval_ns = self._interval(power)
        coarse = self.options.coarse is not None and self._majority(interval_ns, False) is None
        return (yield from self._satisfies(interval_ns, coarse=coarse))

    def _satisfies(
        self, interval_ns: int, *, coarse: bool = False
    ) -> Generator[Trial, Outcome, bool]:
        while (majority := self._majority(interval_ns, coarse)) is None:
            repeat = len(self._outcomes.get((interval_ns, coarse), ()))
            yield Trial(self._count, interval_ns, coarse, repeat)
        return majority

    def _majority(self, interval_ns: int, coarse: bool) -> bool | None:
        """Whether the interval satisfies Definition 1; None while that is open."""
        if self.options.second_chance and not coarse:
            return self._second_chance(interval_ns)
        repeats = 1 if coarse else self.options.repeats
        votes = Counter(
            "for" if each.satisfies else "against" if each.is_of_the_brokers else "void"
            for each in self._outcomes.get((interval_ns, coarse), ())
        )
        if votes["for"] > repeats // 2:
            return True
        return False if votes["against"] > repeats // 2 or votes["void"] >= repeats else None

    def _second_chance(self, interval_ns: int) -> bool | None:
        """Other processes make a measurement worse, never better: one that satisfies it counts.

        Doubtful is a failure that is narrow, or in which less came out than was shown possible.
        """
        outcomes = self._outcomes.get((interval_ns, False), ())
        if any(each.satisfies for each in outcomes):
            return True
        long = [each for (_, coarse), made in self._outcomes.items() if not coarse for each in made]
        shown = max((each.egress for each in long if each.satisfies), default=0.0)
        doubtful = [each for each in outcomes if each.is_narrow or each.egress < SHOWN * shown]
        against = 2 * len(outcomes) - len(doubtful)
        return False if against >= 2 else None

    # ---- how it ends ----------------------------------------------------------------------------

    def _limit(self, half: int, x: int, shortest: int) -> Found:
        grid = _grid(half, x)
        failing = self._failing(grid[shortest - 1])
        worse = [at for at in grid[shortest + 1 :] if self._majority(at, False) is False]
        if worse:
            self._notes.append(
                f"{len(worse)} longer intervals of the grid did not satisfy Definition 1, up to "
                f"{max(worse) / 1e6:g} ms: the measurements are noisy; repeats would help"
            )
        # One measurement in which the brokers gave way by themselves shows that they do.
        smaller = next((each for each in failing if each.is_of_the_brokers), failing[0])
        if not smaller.is_of_the_brokers:
            self._notes.append(
                f"at {grid[shortest - 1] / 1e6:g} ms the {smaller.limited_by} gave way before the "
                "brokers: their limit is at least what was found"
            )
        return Found(
            "found",
            grid[shortest],
            self._middle(grid[shortest]),
            grid[shortest - 1],
            smaller,
            smaller.limited_by,
            not smaller.is_of_the_brokers,
            *self._end(),
        )

    def _beyond(self, x: int) -> Found:
        self._notes.append(
            f"the limit is beyond what was asked: {x / 1e6:g} ms satisfies Definition 1, and half "
            f"of it is shorter than {self.options.min_interval_ns / 1e6:g} ms"
        )
        return Found("beyond", x, self._middle(x), None, None, "", True, *self._end())

    def _none(self) -> Found:
        longest = max(at for at, _ in self._outcomes)
        self._notes.append(
            f"the limit is beyond what was asked: not even {longest / 1e6:g} ms satisfies "
            f"Definition 1, and twice as much is longer than "
            f"{self.options.max_interval_ns / 1e6:g} ms"
        )
        failing = self._failing(longest)
        return Found(
            "none", None, None, longest, failing[0], failing[0].limited_by, False, *self._end()
        )

    def _unsettled(self) -> Found:
        best = min(
            (at for at, coarse in self._outcomes if not coarse and self._majority(at, False)),
            default=None,
        )
        self._notes.append(
            f"given up after {self.options.corrections} corrections: measure longer in step 1, or "
            "with more repeats"
        )
        outcome = None if best is None else self._middle(best)
        return Found("unsettled", best, outcome, None, None, "", True, *self._end())

    def _end(self) -> tuple[int, tuple[str, ...]]:
        return self._count, tuple(self._notes)

    def _note_contradiction(self, half: int, x: int) -> None:
        if self._majority(x, False) is False:
            wrong = f"{x / 1e6:g} ms does not satisfy"
        else:
            wrong = f"{half / 1e6:g} ms satisfies"
        self._notes.append(f"measured at full length {wrong} Definition 1, against step 1")

    def _failing(self, interval_ns: int) -> list[Outcome]:
        """The measurements that spoke against the interval, long ones if there are any."""
        for coarse in (False, True):
            outcomes = self._outcomes.get((interval_ns, coarse), ())
            if failing := [each for each in outcomes if not each.satisfies]:
                return failing
        raise AssertionError(f"{interval_ns} ns was never measured as failing")

    def _middle(self, interval_ns: int) -> Outcome:
        """Of the measurements that satisfied Definition 1 the one of median egress."""
        outcomes = [each for each in self._outcomes[interval_ns, False] if each.satisfies]
        return sorted(outcomes, key=lambda each: each.egress)[len(outcomes) // 2]


def _grid(half: int, x: int) -> list[int]:
    """Step 3: both ends of the segment and the 19 intervals between."""
    return [half + (x - half) * index // GRID for index in range(GRID + 1)]
