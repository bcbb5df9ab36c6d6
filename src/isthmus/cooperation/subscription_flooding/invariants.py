"""What holds of SF in a fabric at rest, computed from scratch: covering pair by pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from isthmus.cooperation.api import AtRest
from isthmus.mqtt.filters.covering import covers, normal_form

if TYPE_CHECKING:
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

    Wanted is what the local clients of every node on this side want, as their nodes know it.
    """
    for name, neighbors in sorted(fabric.links.items()):
        for other, session in sorted(neighbors.items()):
            here = cast("SubscriptionFlooding", fabric.algorithms[name])
            there = cast("SubscriptionFlooding", fabric.algorithms[other])
            expected = largest(
                each for side in fabric.side(name, other) for each in fabric.local_filters[side]
            )
            announced = set(here.announced_to(session))
            received = set(there.received_from(fabric.links[other][name]))
            assert announced == expected == received, (
                f"inter-subscriptions of {name} on {other}: the definition gives "
                f"{sorted(expected)}, {name} means {sorted(announced)}, "
                f"{other} has {sorted(received)}"
            )
