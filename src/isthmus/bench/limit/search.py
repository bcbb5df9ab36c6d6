"""The limit search: the shortest interval at which the performance is under the limit.

No I/O and no clock: :class:`LimitSearch` says which interval to measure next and is told what came
out, so it is tested against made-up systems and continues from a file of past measurements
(:mod:`isthmus.bench.limit.file`).

* Steps 1 and 2 double the interval until Definition 1 is satisfied: ``x`` satisfies it, ``x/2``
  does not.  From a first interval that satisfies it already, the same ``x`` is found by halving.
* Steps 3 to 5 divide the segment from ``x/2`` to ``x`` into 20 and take the shortest interval that
  satisfies it; the next shorter one gives at most 1.05 times the throughput.
* `guided` looks for the same answer in the grids of all doublings at once, for those who know
  roughly where it is: from a first interval within 10 % of it, 2 to 6 measurements.  It is the same
  answer wherever a longer interval is never worse.

All these intervals are one series of *points*: 0 is the first interval, 20 twice as long, -20 half
as long, and the others divide each doubling evenly.

Departure from the paper, for noisy machines: a *doubtful* failure is measured again, once, and
satisfies Definition 1 if it does so then, because what disturbs a measurement makes it worse.
Intervals are whole nanoseconds, so the bound of 1.05 is exact to 1 ns.

Source: ILDM §5.3, Definition 1 and steps 1-5.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, Literal

from isthmus.errors import LimitError
from isthmus.pipeline.count.tables import UNDER_LIMIT

__all__ = ["GRID", "Found", "LimitSearch", "SearchEnd", "SearchOptions", "Trial", "TrialOutcome"]

GRID: Final = 20
"""Parts that step 3 divides the segment into."""

NARROW: Final = 0.97
"""A ratio from here up to that of Definition 1 is a narrow failure."""
SHOWN: Final = 0.95
"""Less than this share of an egress that was carried before is a doubtful failure."""

OF_THE_BROKERS: Final = frozenset({"brokers", "nothing", ""})
"""What `limited_by` says where no other bottleneck was seen; see isthmus.bench.watch.bottleneck."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search; part of what a file of measurements belongs to."""

    first_interval_ns: int
    guided: bool = False
    """Go where the last measurement points, instead of by steps."""
    min_interval_ns: int = 50_000
    max_interval_ns: int = 60_000_000_000

    def __post_init__(self) -> None:
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


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement to be made."""

    number: int
    """Counted from 0 through the whole search."""
    interval_ns: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
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


SearchEnd = Literal["found", "beyond", "none"]


@dataclass(frozen=True, slots=True)
class Found:
    """How a search ended.

    * ``found``: `interval_ns` satisfies Definition 1, `smaller_interval_ns` does not.
    * ``beyond``: even the shortest interval allowed satisfies it; the limit lies higher.
    * ``none``: not even the longest interval allowed satisfies it.
    """

    verdict: SearchEnd
    interval_ns: int | None
    outcome: TrialOutcome | None
    smaller_interval_ns: int | None
    smaller: TrialOutcome | None
    limited_by: str
    """What bounded the measurement at `smaller_interval_ns` (`none`: at the longest interval)."""
    is_lower_bound: bool
    """The brokers can do at least this much: something else gave way first, or the search ended."""
    measurements: int
    notes: tuple[str, ...]


_Steps = Generator[Trial, TrialOutcome, Found]


class LimitSearch:
    """Steps 1 to 5, one measurement at a time."""

    def __init__(self, options: SearchOptions) -> None:
        self.options = options
        self._outcomes: dict[int, list[TrialOutcome]] = {}
        """By point."""
        self._count = 0
        self._found: Found | None = None
        self._lowest, self._highest = self._ends()
        self._steps = self._guided() if options.guided else self._steps_1_to_5()
        self._next: Trial | None = next(self._steps)

    def next(self) -> Trial | None:
        """What to measure now; None when the search is over."""
        return self._next

    def record(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Tell what came out of `trial`, which must be the one that `next` gave."""
        if trial != self._next:
            raise LimitError(f"expected {self._next or 'no trial'}, got {trial}")
        self._count += 1
        try:
            self._next = self._steps.send(outcome)
        except StopIteration as end:
            self._next, self._found = None, end.value

    @property
    def limit(self) -> Found | None:
        """How it ended; None while it goes on."""
        return self._found

    # ---- two ways ---------------------------------------------------------------------------

    def _steps_1_to_5(self) -> _Steps:
        x = 0
        if (yield from self._satisfies(x)):
            while x > self._lowest and (yield from self._satisfies(x - GRID)):
                x -= GRID
            if x == self._lowest:
                return self._beyond()
        else:
            while x < self._highest:
                x += GRID
                if (yield from self._satisfies(x)):
                    break
            else:
                return self._none()
        shortest = x
        for point in range(x - 1, x - GRID, -1):
            if (yield from self._satisfies(point)):
                shortest = point
        return self._limit(shortest)

    def _guided(self) -> _Steps:
        """Between `low`, over the limit, and `high`, under it.

        Over the limit egress is what the brokers can do, so the ratio of Definition 1 tells how
        much longer the interval should be.  Under it the way is down, by steps that double.
        """
        low, high = self._lowest - 1, self._highest + 1
        at, step = 0, 1
        last: bool | None = None
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            under = yield from self._satisfies(at)
            step, last = (2 * step if under is last else 1), under
            if under:
                high, at = at, at - step
            else:
                low, at = at, max(self._pointed_to(at), at + step)
        if high > self._highest:
            return self._none()
        return self._beyond() if high == self._lowest else self._limit(high)

    def _pointed_to(self, point: int) -> int:
        """Where the limit should be, by a measurement over it."""
        ratio = max(0.1, self._outcomes[point][-1].ratio)
        enough_ns = self._interval(point) * UNDER_LIMIT / ratio
        while self._interval(point) < enough_ns:
            point += 1
        return point

    # ---- single points ----------------------------------------------------------------------

    def _interval(self, point: int) -> int:
        """Step 3: the ends of a doubling, and the 19 intervals between, in whole nanoseconds."""
        power, within = divmod(point, GRID)
        half, x = self._doubled(power), self._doubled(power + 1)
        return half + (x - half) * within // GRID

    def _doubled(self, power: int) -> int:
        first = self.options.first_interval_ns
        return first << power if power >= 0 else first >> -power

    def _ends(self) -> tuple[int, int]:
        """The points of the shortest and of the longest doubling that is allowed."""
        lowest = highest = 0
        while self._doubled(lowest - 1) >= self.options.min_interval_ns:
            lowest -= 1
        while self._doubled(highest + 1) <= self.options.max_interval_ns:
            highest += 1
        return GRID * lowest, GRID * highest

    def _satisfies(self, point: int) -> Generator[Trial, TrialOutcome, bool]:
        """Whether Definition 1 is satisfied there; measures until that is decided."""
        outcomes = self._outcomes.setdefault(point, [])
        while (decided := self._decided(outcomes)) is None:
            outcomes.append((yield Trial(self._count, self._interval(point))))
        return decided

    def _decided(self, outcomes: list[TrialOutcome]) -> bool | None:
        """None while it is open: nothing was measured, or one failure, which is doubtful.

        Doubtful is a failure that is narrow, or in which less came out than was shown possible.
        """
        if any(each.satisfies for each in outcomes):
            return True
        if len(outcomes) == 1:
            made = [each for several in self._outcomes.values() for each in several]
            shown = max((each.egress for each in made if each.satisfies), default=0.0)
            doubtful = outcomes[0].is_narrow or outcomes[0].egress < SHOWN * shown
            return None if doubtful else False
        return False if outcomes else None

    # ---- how it ends ------------------------------------------------------------------------

    def _limit(self, shortest: int) -> Found:
        notes = []
        worse = [
            point
            for point, outcomes in self._outcomes.items()
            if point > shortest and not any(each.satisfies for each in outcomes)
        ]
        if worse:
            notes.append(
                f"{len(worse)} longer intervals of the grid did not satisfy Definition 1, up to "
                f"{self._interval(max(worse)) / 1e6:g} ms: the measurements are noisy; longer ones "
                "would help"
            )
        interval_ns, smaller_ns = self._interval(shortest), self._interval(shortest - 1)
        failing = self._outcomes[shortest - 1]
        # One measurement in which the brokers gave way by themselves shows that they do.
        smaller = next((each for each in failing if each.is_of_the_brokers), failing[0])
        if not smaller.is_of_the_brokers:
            notes.append(
                f"at {smaller_ns / 1e6:g} ms the {smaller.limited_by} gave way before the "
                "brokers: their limit is at least what was found"
            )
        return Found(
            "found",
            interval_ns,
            self._best(shortest),
            smaller_ns,
            smaller,
            smaller.limited_by,
            not smaller.is_of_the_brokers,
            self._count,
            tuple(notes),
        )

    def _beyond(self) -> Found:
        x = self._interval(self._lowest)
        note = (
            f"the limit is beyond what was asked: {x / 1e6:g} ms satisfies Definition 1, and half "
            f"of it is shorter than {self.options.min_interval_ns / 1e6:g} ms"
        )
        best = self._best(self._lowest)
        return Found("beyond", x, best, None, None, "", True, self._count, (note,))

    def _none(self) -> Found:
        longest, failing = self._interval(self._highest), self._outcomes[self._highest][0]
        note = (
            f"the limit is beyond what was asked: not even {longest / 1e6:g} ms satisfies "
            f"Definition 1, and twice as much is longer than "
            f"{self.options.max_interval_ns / 1e6:g} ms"
        )
        return Found(
            "none", None, None, longest, failing, failing.limited_by, False, self._count, (note,)
        )

    def _best(self, point: int) -> TrialOutcome:
        """The measurement that satisfied Definition 1."""
        return next(each for each in self._outcomes[point] if each.satisfies)
