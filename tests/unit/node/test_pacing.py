"""Resting is decided by measurement: what each kind of load makes of it, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from isthmus.node.pacing import RestOrNot

REST_S = 0.002
TURN_S = 0.0002

Rates = Callable[[bool, float], tuple[float, float]]
"""Packets, and packets that somebody waits for, per second, when resting or not, at a time."""


@dataclass
class Outcome:
    packets: float
    rested_s: float
    trials: int


def run(
    rates: Rates, for_s: float, *, noise: float = 0.0, decision: RestOrNot | None = None
) -> Outcome:
    """A node under a load, turn by turn."""
    decision = decision or RestOrNot(REST_S)
    dice = random.Random(7)
    now_s = packets = waits = rested_s = 0.0
    trials, was_trying = 0, False
    resting = False
    while now_s < for_s:
        turn_s = TURN_S + (REST_S if resting else 0.0)
        per_s, waits_per_s = rates(resting, now_s)
        wobble = dice.uniform(1 - noise, 1 + noise)
        packets += per_s * turn_s * wobble
        waits += waits_per_s * turn_s * wobble
        now_s += turn_s
        rested_s += turn_s if resting else 0.0
        resting = decision.tick(now_s, int(packets), int(waits))
        trying = bool(decision._trial)
        trials += trying and not was_trying
        was_trying = trying
    return Outcome(packets, rested_s, trials)


def flood(resting: bool, now_s: float) -> tuple[float, float]:
    return 100_000, 0


def closed_loop(resting: bool, now_s: float) -> tuple[float, float]:
    return (60_000, 30_000) if resting else (188_000, 94_000)


def beside_a_flood(resting: bool, now_s: float) -> tuple[float, float]:
    """One client with one message in flight comes while the node rests."""
    if now_s < 5:
        return 100_000, 0
    return 100_000, 400 if resting else 3_000


def trickle(resting: bool, now_s: float) -> tuple[float, float]:
    """Sensors that publish at QoS 1 when they have something, beside a flood."""
    return 100_000, 3_000


def slow(resting: bool, now_s: float) -> tuple[float, float]:
    return 20_000, 0


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("load", [flood, trickle])
def test_a_flood_is_read_with_rests(load: Rates, noise: float) -> None:
    outcome = run(load, 20, noise=noise)
    assert outcome.rested_s > 0.9 * 20


def test_a_flood_at_qos_0_needs_no_trial() -> None:
    assert run(flood, 20).trials == 0


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_closed_loop_is_not_slowed_down(noise: float) -> None:
    for_s = 20
    outcome = run(closed_loop, for_s, noise=noise)
    assert outcome.packets > 0.99 * 188_000 * for_s
    assert outcome.trials >= 3, "it is tried again, for the load may change"


def test_who_waits_beside_a_flood_is_not_starved() -> None:
    assert 4.5 < run(beside_a_flood, 20).rested_s < 5.5


def test_below_the_rate_it_neither_rests_nor_tries() -> None:
    outcome = run(slow, 20)
    assert outcome.rested_s == 0
    assert outcome.trials == 0


def test_a_load_that_changes_is_judged_anew() -> None:
    def changing(resting: bool, now_s: float) -> tuple[float, float]:
        return flood(resting, now_s) if now_s < 20 else closed_loop(resting, now_s)

    decision = RestOrNot(REST_S)
    run(changing, 20, decision=decision)
    assert decision.resting
    closed = run(changing, 24, decision=RestOrNot(REST_S))
    # The flood rests for nearly 20 s; then it takes 2 s at most to be noticed.
    assert 18 < closed.rested_s < 22.2
