"""SF's invariant finds what it is there for."""

from __future__ import annotations

import pytest

from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.cooperation.subscription_flooding.invariants import largest
from isthmus.sim.fabric import SimFabric
from isthmus.sim.invariants import check_algorithms, check_empty


def test_largest_filters() -> None:
    assert largest(["a/b", "a/+", "a/#", "b", "b"]) == {"a/#", "b"}


def test_an_inter_subscription_that_is_missing_or_left_over_is_found() -> None:
    fabric = SimFabric()
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    client = a.client("c")
    fabric.settle()
    client.subscribe("t/#")
    fabric.settle()
    check_algorithms(fabric)
    algorithm = b.algorithm
    assert isinstance(algorithm, SubscriptionFlooding)
    (neighbor,) = algorithm._neighbors.values()
    life = neighbor.received.pop("t/#")
    with pytest.raises(AssertionError, match=r"a on b: .*gives \['t/#'\].* b has \[\]"):
        check_algorithms(fabric)
    neighbor.received["t/#"] = life
    client.unsubscribe("t/#")
    fabric.settle()
    check_empty(fabric)
    neighbor.received["t/#"] = life
    with pytest.raises(AssertionError, match=r"gives \[\].* b has \['t/#'\]"):
        check_empty(fabric)


class Stubborn(SubscriptionFlooding):
    """An algorithm of somebody else's, with an invariant of its own."""

    @classmethod
    def check_at_rest(cls, fabric: object) -> None:
        raise AssertionError("never content")


def test_a_plug_in_brings_its_own() -> None:
    fabric = SimFabric(algorithm=Stubborn)
    fabric.node("a")
    with pytest.raises(AssertionError, match="never content"):
        check_algorithms(fabric)
