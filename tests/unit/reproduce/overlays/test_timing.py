"""Which measurement comes when, and how long it takes."""

from __future__ import annotations

from isthmus.reproduce.overlays.experiments import Parameters, Setting, experiments
from isthmus.reproduce.overlays.timing import (
    END_S,
    QUICK_BUDGET_S,
    Budget,
    forecast_s,
    schedule,
)


def test_the_contenders_of_a_setting_follow_each_other() -> None:
    planned = list(schedule(experiments(quick=True)))
    assert all(len(some) == 4 and len({e.setting for e in some}) == 1 for _, some in planned)
    assert [number for number, _ in planned] == sorted(number for number, _ in planned)


def test_one_quick_round_is_within_its_budget() -> None:
    parameters = Parameters()
    took_s = sum(forecast_s(parameters, each.setting) for each in experiments(quick=True))
    assert took_s + END_S < QUICK_BUDGET_S < 600


def test_saturated_lines_take_longer() -> None:
    parameters = Parameters()
    assert forecast_s(parameters, Setting(50, 60, 10**5)) > forecast_s(parameters, Setting(50, 60))


def test_a_slow_machine_makes_everything_dearer() -> None:
    some = experiments(quick=True)[:4]
    budget = Budget(Parameters(), 1000.0)
    before_s = budget.cost_s(some)
    budget.took(some[0].setting, 2 * forecast_s(Parameters(), some[0].setting))
    assert budget.cost_s(some) == 2 * before_s


def test_the_budget_is_for_later_rounds_and_the_limit_for_the_first() -> None:
    some = experiments(quick=True)[:4]
    budget = Budget(Parameters(), 100.0)
    assert budget.affords(1, some, 99.0)
    assert budget.affords(2, some, 0.0)
    assert not budget.affords(2, some, 99.0)
    limited = Budget(Parameters(), 100.0, 200.0)
    assert limited.affords(1, some, 99.0)
    assert not limited.affords(1, some, 199.0)
    assert Budget(Parameters(), None).affords(7, some, 1e9)


def test_what_is_left_is_at_least_the_first_round_and_at_most_the_budget() -> None:
    some = experiments(quick=True)[:4]
    budget = Budget(Parameters(), 500.0)
    first_s = budget.cost_s(some) + END_S
    rounds = [(number, some) for number in range(1, 100)]
    assert budget.rest_s(rounds, 400.0) == 100.0
    assert budget.rest_s(rounds, 600.0) == first_s
    assert budget.rest_s(rounds[:1], 0.0) == first_s
