"""What messages are called at each node of a simulated fabric whose links have rules.

Computed from the configurations alone, name by name and link by link: nothing is shared with the
nodes, which compute it their way (`isthmus.cooperation.link_rules`).  The links are a tree.
"""

from __future__ import annotations

import random

from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.mqtt.filters.topics import matches
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode

__all__ = ["draw_rules", "has_rules", "name_across", "names_at"]


def has_rules(fabric: SimFabric) -> bool:
    return any(each.rules for node in fabric.nodes.values() for each in node.peers.values())


def names_at(fabric: SimFabric, topic: str, origin: str) -> dict[str, str]:
    """By node that a message on `topic` of `origin` can reach: what it is called there."""
    neighbors: dict[str, list[str]] = {}
    for a, b in fabric.wanted_links():
        neighbors.setdefault(a, []).append(b)
        neighbors.setdefault(b, []).append(a)
    names = {origin: topic}
    left = [origin]
    while left:
        here = left.pop()
        for other in neighbors.get(here, ()):
            name = name_across(fabric.nodes[here], fabric.nodes[other], names[here])
            if other not in names and name is not None:
                names[other] = name
                left.append(other)
    return names


def name_across(here: SimNode, there: SimNode, name: str) -> str | None:
    """What crosses from `here` to `there` as; None if it does not."""
    own, others = _rules(here, there), _rules(there, here)
    if name.startswith("$") or not _may(own.out, name):
        return None
    if own.prefix:
        name = own.prefix + name
    if others.prefix:
        if not name.startswith(others.prefix) or name == others.prefix:
            return None
        name = name[len(others.prefix) :]
    return None if name.startswith("$") or not _may(others.into, name) else name


def _rules(one: SimNode, other: SimNode) -> LinkRules:
    options = one.peers.get(other.address)
    return NO_RULES if options is None else options.rules


def _may(filters: tuple[str, ...] | None, name: str) -> bool:
    return filters is None or any(matches(each, name) for each in filters)


def draw_rules(rng: random.Random) -> LinkRules:
    """For the topics of schedules: often none, or only some."""

    def filters() -> tuple[str, ...] | None:
        if rng.random() < 0.5:
            return None
        some = ("t/#", "u/#", "t/+", "+/a", "r/#", "r/a", "w/#", "#", "u", "t/a/x")
        return tuple(rng.sample(some, rng.randint(1, 4)))

    if rng.random() < 0.3:
        return NO_RULES
    prefix = rng.choice(("", "", "t/", "u/", "s/"))
    return LinkRules(filters(), filters(), prefix)
