"""From a range to the next hops: MRF, SFB, and what they are compared with (thesis §2.2.5, §4.1).

A physical node that gets a range looks at all its keys at once (*multi-key*).

**No key inside** (`approach`): the one nearest to the range sends it on, as in a search: to the
neighbor farthest away that is not beyond the range.  Nearest is a matter of sides here, as keys
have an order but no distance.  A node with keys on both sides takes the right one, where the
publishers are.  So a range changes sides once at most, from left to right, and comes nearer with
each other hop: it cannot go round in a ring, and no message has to say where it was.

**Keys inside**: the range falls apart at these keys into gaps.  In each of them

    MRF (Fig. 4.3)   the neighbor of the highest level gets all of the gap
    SFB (Fig. 4.2)   the neighbor of the highest level gets what is beyond it, itself included;
                     what is left goes on likewise at lower levels, until nobody is left
    sequential       the neighbor of level 0 gets all of the gap

Subranges for the same node go in one message, which is what *multi-range* means; `messages` does
that.

What always holds (MRF, SFB, sequential): the subranges that leave a node, and its own keys, are
the range that came to it, each key once.  So **each virtual node inside is in exactly one of the
ranges that come to its node**, and a physical node with one key inside gets one message.  That is
every node when a message goes to the subscribers of a topic, or a signal to its publishers.

*Not so in the thesis*: it says (§2.2.5) that a physical node with several keys inside gets a query
once as well.  It gets one for each of its keys at worst.  Say A has the keys 10, 20 and 30, X 15,
Y 25, Z 17 and 27, and A, X, Y, Z the vectors 000, 01, 001, 1: A gives the gap above 10 to X, that
above 20 to Y, and each of them finds Z behind it and cannot know of the other.  What is true once
is `delivers`: with the range that holds the lowest of the node's keys.

The broadcasting variants (§4.1.1) have no subranges; who has had the query before must say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from isthmus.cooperation.skipgraph.keys import KeyRange
from isthmus.cooperation.skipgraph.tables import Neighbor, NodeTable, Side, VirtualNode

__all__ = [
    "STRATEGIES",
    "Hop",
    "Strategy",
    "along",
    "approach",
    "broadcast_with_memory",
    "broadcast_without_memory",
    "delivers",
    "forward",
    "messages",
    "multi_range_forwarding",
    "sequential",
    "split_forward_broadcasting",
]


class Hop(NamedTuple):
    """A virtual node, and the range that it is to take care of."""

    neighbor: Neighbor
    keys: KeyRange


Strategy = Callable[[NodeTable, KeyRange], list[Hop]]
"""Where a range goes that holds keys of this node."""


def forward(table: NodeTable, keys: KeyRange, strategy: Strategy) -> list[Hop]:
    """Where a range goes that came to this node, or that begins here."""
    return strategy(table, keys) if table.inside(keys) else approach(table, keys)


def approach(table: NodeTable, keys: KeyRange) -> list[Hop]:
    """One hop nearer to a range without keys of this node; none if nobody is inside."""
    for side, towards in ((Side.RIGHT, Side.LEFT), (Side.LEFT, Side.RIGHT)):
        beside = table.nearest(keys, side)
        if beside is None:
            continue
        for neighbor in reversed(beside.neighbors(towards)):
            if neighbor is not None and not _is_beyond(neighbor, keys, towards):
                return [Hop(neighbor, keys)]
        return []  # nobody stands between this node and the far end of the range
    return []


def along(virtual: VirtualNode, keys: KeyRange) -> list[Hop]:
    """One hop nearer to a range beside a key, from that key: all between are of its own list."""
    towards = Side.LEFT if keys.is_below(virtual.key) else Side.RIGHT
    for neighbor in reversed(virtual.neighbors(towards)):
        if neighbor is not None and not _is_beyond(neighbor, keys, towards):
            return [Hop(neighbor, keys)]
    return []


def _is_beyond(neighbor: Neighbor, keys: KeyRange, towards: Side) -> bool:
    beyond = keys.is_above if towards is Side.LEFT else keys.is_below
    return beyond(neighbor.key)


def multi_range_forwarding(table: NodeTable, keys: KeyRange) -> list[Hop]:
    """MRF, Fig. 4.3: the range is divided by this node's own keys."""
    hops = []
    for gap in table.gaps(keys):
        delegate = gap.virtual.delegate(gap.keys, gap.side)
        if delegate is not None:
            hops.append(Hop(delegate, gap.keys))
    return hops


def split_forward_broadcasting(table: NodeTable, keys: KeyRange) -> list[Hop]:
    """SFB, Fig. 4.2: the range is divided by the neighbors' keys."""
    hops = []
    for gap in table.gaps(keys):
        rest = gap.keys
        while (delegate := gap.virtual.delegate(rest, gap.side)) is not None:
            if gap.side is Side.LEFT:
                hops.append(Hop(delegate, rest.left_of(delegate.key, with_key=True)))
                rest = rest.right_of(delegate.key)
            else:
                hops.append(Hop(delegate, rest.right_of(delegate.key, with_key=True)))
                rest = rest.left_of(delegate.key)
    return hops


def sequential(table: NodeTable, keys: KeyRange) -> list[Hop]:
    """Along the list of level 0, to both ends of the range."""
    hops = []
    for gap in table.gaps(keys):
        row = gap.virtual.neighbors(gap.side)
        if row and row[0] is not None and row[0].key in gap.keys:
            hops.append(Hop(row[0], gap.keys))
    return hops


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "mrf": multi_range_forwarding,
    "sfb": split_forward_broadcasting,
    "sequential": sequential,
}


def delivers(table: NodeTable, keys: KeyRange, target: KeyRange) -> bool:
    """Whether it is with this range, of all that come here for `target`, that the node delivers."""
    inside = table.inside(target)
    return bool(inside) and inside[0].key in keys


def messages(hops: Iterable[Hop]) -> dict[str, list[Hop]]:
    """One message for each physical node, with all subranges that go there."""
    found: dict[str, list[Hop]] = {}
    for hop in hops:
        found.setdefault(hop.neighbor.node, []).append(hop)
    return found


# ---- broadcasting ------------------------------------------------------------------------


def broadcast_without_memory(table: NodeTable, keys: KeyRange) -> dict[str, Neighbor]:
    """To all neighbors inside the range; who gets it again drops it."""
    return {
        entry.node: entry
        for entry in table.others
        if entry.key in keys and entry.node != table.node
    }


def broadcast_with_memory(
    table: NodeTable, keys: KeyRange, visited: frozenset[str]
) -> tuple[dict[str, Neighbor], frozenset[str]]:
    """To those that the message does not say have been visited; and what it says from here on."""
    found = {
        name: entry
        for name, entry in broadcast_without_memory(table, keys).items()
        if name not in visited
    }
    return found, visited | {table.node} | found.keys()
