"""How long the measurements take, and which of them are made when time is short.

Every experiment is measured in the first round; only ``--quick`` leaves out the last of them on a
machine so slow that it would not be quick.  Later rounds repeat it, with other clients over other
lines, as often as its setting asks for and the budget allows; the four contenders of a setting are
measured in the same rounds, or none of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from isthmus.reproduce.overlays.experiments import PAYLOADS, Experiment, Parameters, Setting

__all__ = ["END_S", "QUICK_BUDGET_S", "Budget", "forecast_s", "schedule"]

AROUND_S: Final = 5.0
"""Of a measurement beyond its duration: brokers, nodes, convergence, clients, the end."""
REPAIR_S: Final = 1.0
DRAIN_S: Final[Mapping[tuple[int, bool], float]] = {
    (PAYLOADS[2], False): 6.0,
    (PAYLOADS[1], True): 8.0,
    (PAYLOADS[2], True): 15.0,
}
"""By payload and stress: until saturated lines have carried what they hold, roughly."""
END_S: Final = 40.0
"""For the indexes and the report, on a machine that keeps the pace."""
QUICK_BUDGET_S: Final = 530.0
"""For ``--quick``.  Where others use the machine the end, which is all work and no waiting, takes
longer by far more than measurements do: so much is left of ten minutes."""


def forecast_s(parameters: Parameters, setting: Setting) -> float:
    """One measurement, roughly."""
    drain_s = DRAIN_S.get((setting.payload_bytes, setting.stress), 0.0)
    repair_s = REPAIR_S if setting.repairs else 0.0
    return AROUND_S + parameters.duration_s + drain_s + repair_s


def schedule(chosen: Sequence[Experiment]) -> Iterator[tuple[int, list[Experiment]]]:
    """Round by round, the experiments of one setting after those of another."""
    rounds = max((each.setting.repetitions for each in chosen), default=0)
    for number in range(1, rounds + 1):
        for setting, some in groupby(chosen, key=lambda each: each.setting):
            if number <= setting.repetitions:
                yield number, list(some)


class Budget:
    """The time that there is, and how long measurements take on this machine."""

    def __init__(
        self, parameters: Parameters, budget_s: float | None, limit_s: float | None = None
    ) -> None:
        """`budget_s` is for all rounds, `limit_s` for the first; None: as long as it takes."""
        self._parameters = parameters
        self._budget_s = budget_s
        self._limit_s = limit_s
        self._forecast_s = self._took_s = 0.0

    def took(self, setting: Setting, took_s: float) -> None:
        """A measurement was made."""
        self._forecast_s += forecast_s(self._parameters, setting)
        self._took_s += took_s

    def cost_s(self, some: Iterable[Experiment]) -> float:
        """How long it takes to measure these once, judged by those before."""
        return self._pace * sum(forecast_s(self._parameters, each.setting) for each in some)

    @property
    def _pace(self) -> float:
        return self._took_s / self._forecast_s if self._forecast_s else 1.0

    @property
    def _end_s(self) -> float:
        return END_S * max(1.0, self._pace)

    def affords(self, number: int, some: Iterable[Experiment], spent_s: float) -> bool:
        """Whether there is time for these in round `number`."""
        until_s = self._limit_s if number == 1 else self._budget_s
        return until_s is None or spent_s + self.cost_s(some) + self._end_s <= until_s

    def rest_s(self, left: Iterable[tuple[int, Sequence[Experiment]]], spent_s: float) -> float:
        """How long the rest will take: all of it, or what the budget has left of it."""
        planned = list(left)
        all_s = self.cost_s(each for _, some in planned for each in some) + self._end_s
        if self._budget_s is None:
            return all_s
        first_s = self.cost_s(each for number, some in planned if number == 1 for each in some)
        return min(all_s, max(first_s + self._end_s, self._budget_s - spent_s))
