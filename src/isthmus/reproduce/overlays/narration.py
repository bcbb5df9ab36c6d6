"""What the reproduction says on the terminal while it works."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from isthmus.reproduce.narration import clock, table
from isthmus.reproduce.overlays.experiments import Experiment, Parameters
from isthmus.reproduce.overlays.measuring import Measured
from isthmus.reproduce.overlays.timing import END_S, forecast_s, schedule

__all__ = ["measured", "plan"]


def plan(
    console: Console, parameters: Parameters, chosen: Sequence[Experiment], budget_s: float | None
) -> None:
    """What will be made, and how long it will take."""
    shown = table("setting", "of", "contenders", "rounds", "each takes about")
    for setting in dict.fromkeys(each.setting for each in chosen):
        contenders = [each.contender.key for each in chosen if each.setting == setting]
        shown.add_row(
            setting.name,
            ", ".join(setting.figures),
            ", ".join(contenders),
            str(setting.repetitions),
            f"{forecast_s(parameters, setting):.0f} s",
        )
    console.print(shown)
    costs = [
        (number, len(some) * forecast_s(parameters, some[0].setting))
        for number, some in schedule(chosen)
    ]
    one = clock(sum(cost for number, cost in costs if number == 1) + END_S)
    every = clock(sum(cost for _, cost in costs) + END_S)
    said = f"{len(chosen)} experiments: one round takes about {one}, all rounds {every}"
    if budget_s is not None:
        said += f"; further rounds as far as {clock(budget_s)} last"
    console.print(said)


def measured(console: Console, found: Measured, left_s: float) -> None:
    """The end of one measurement, and how long the rest will take."""
    said = [
        f"{found.run}: {found.counted['expected']:,} expected, {found.counted['lost']:,} lost",
        f"one tree after {found.converged.took_s:.2f} s",
    ]
    if found.repaired is not None:
        killed = f"{found.repaired.role} {found.repaired.victim}"
        said.append(f"repaired {found.repaired.took_s:.2f} s after the kill of the {killed}")
    if found.rebuilt:
        said.append("another tree was built meanwhile")
    said.append(f"took {found.took_s:.1f} s; about {clock(left_s)} left")
    console.print(", ".join(said), markup=False, soft_wrap=True)
