"""What holds of SF in a fabric at rest, computed from scratch: covering pair by pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from isthmus.cooperation.api import AtRest
from isthmus.mqtt.filters.covering import covers, normal_form

if TYPE_CHECKING:
    from isthmus.cooperation.link_rules import Crossing
    from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding

__all__ = ["check_inter_subscriptions", "largest"]


def largest(filters: Iterable[str]) -> set[str]:
    """Those that no other one covers, in normal form."""
    every = {normal_form(each) for each in filters}
    return {
        each for each in every if not any(other != each and covers(other, each) for other in every)
    }


def check_inter_subscriptions(fabric: AtRest) -> None:
    """SF's definition: on each neighbor, what is wanted on this side of the link; both ends agree.

    Wanted is what the local clients of every node on this side want, as their nodes know it, and
    of that what may cross the links in between, under the names that it gets there.
    """
    for name, neighbors in sorted(fabric.links.items()):
        for other, session in sorted(neighbors.items()):
            here = cast("SubscriptionFlooding", fabric.algorithms[name])
            there = cast("SubscriptionFlooding", fabric.algorithms[other])
            if any(each.crossing for ends in fabric.links.values() for each in ends.values()):
                expected = _announced(fabric, name, other)
            else:
                expected = largest(
                    each for side in fabric.side(name, other) for each in fabric.local_filters[side]
                )
            announced = set(here.announced_to(session))
            back = fabric.links[other][name]
            received = set(there.received_from(back))
            agreed = announced == expected and received == _received(back.crossing, announced)
            assert agreed, (
                f"inter-subscriptions of {name} on {other}: the definition gives "
                f"{sorted(expected)}, {name} means {sorted(announced)}, "
                f"{other} has {sorted(received)}"
            )


def _announced(fabric: AtRest, name: str, other: str) -> set[str]:
    """What `name` announces on `other`, in the names of the wire; the links are a tree."""
    wanted = set(fabric.local_filters[name])
    for further, session in fabric.links[name].items():
        if further != other:
            wanted |= _received(session.crossing, _announced(fabric, further, name))
    crossing = fabric.links[name][other].crossing
    if crossing is None:
        return largest(wanted)
    return largest(part for each in wanted for part in crossing.asks(normal_form(each)))


def _received(crossing: Crossing | None, announced: set[str]) -> set[str]:
    if crossing is None:
        return announced
    return {own for each in announced if (own := crossing.asked(each)) is not None}
