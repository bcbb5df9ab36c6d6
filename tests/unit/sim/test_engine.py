"""The event queue: order, canceling, quiet."""

from __future__ import annotations

import pytest

from isthmus.sim.engine import Engine, NeverQuiet


def test_events_happen_in_order_of_time_then_of_scheduling() -> None:
    engine = Engine(1)
    seen: list[str] = []
    engine.call_later(2.0, lambda: seen.append("c"))
    engine.call_later(1.0, lambda: seen.append("a"))
    engine.call_later(1.0, lambda: seen.append("b"))
    engine.run_until(1.5)
    assert (seen, engine.now_s) == (["a", "b"], 1.5)
    engine.run_until(2.0)
    assert seen == ["a", "b", "c"]


def test_a_canceled_event_does_not_happen() -> None:
    engine = Engine(1)
    seen: list[str] = []
    engine.call_later(1.0, lambda: seen.append("a")).cancel()
    engine.run_until(2.0)
    assert not seen


def test_quiet_is_when_nothing_but_keep_alive_happens() -> None:
    engine = Engine(1)

    def keep_alive() -> None:
        engine.call_later(1.0, keep_alive)

    keep_alive()
    engine.call_later(3.0, engine.activity)
    engine.run_until_quiet(3.5, limit_s=100.0)
    assert engine.now_s == pytest.approx(6.5)


def test_what_never_rests_is_an_error() -> None:
    engine = Engine(1)

    def circulate() -> None:
        engine.activity()
        engine.call_later(0.1, circulate)

    circulate()
    with pytest.raises(NeverQuiet, match="not quiet after 20 simulated seconds"):
        engine.run_until_quiet(1.0, limit_s=20.0)


def test_every_part_has_its_own_random_numbers() -> None:
    one, same, other = Engine(7), Engine(7), Engine(8)
    drawn = one.random_for("a").random()
    assert drawn == same.random_for("a").random()
    assert drawn != one.random_for("b").random()
    assert drawn != other.random_for("a").random()
