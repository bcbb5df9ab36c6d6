"""The seats that a node has in the lists of a Skip Graph, and whom it knows there.

A *seat* is one key in one list: the node's place among all whose membership vectors have the first
`level` digits in common with its own.  All keys of a node are in the same lists, as they share its
vector, so a node has seats on all levels up to the first list in which it knows nobody else: there
it is alone with its own keys, and nothing more can follow (`tables.linked`).

This room holds state and answers questions of it; what follows from that is for `lists` and
`joining`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from isthmus.cooperation.skipgraph.keys import Key
from isthmus.cooperation.skipgraph.messages import Contact
from isthmus.cooperation.skipgraph.tables import NodeTable, Side
from isthmus.cooperation.skipgraph.vectors import digits_of, vector_of

__all__ = ["Seat", "Seats", "is_beside", "opposite"]

SUSPECTED_S: Final = 20.0
"""How long a node that is gone is not believed to be there because others say so."""
AVOIDED_S: Final = 3.0
"""How long a virtual node is not, that has said that it is absent."""
MAX_SUSPECTED: Final = 10_000


def opposite(side: Side) -> Side:
    return Side.LEFT if side is Side.RIGHT else Side.RIGHT


def is_beside(key: Key, side: Side, other: Key) -> bool:
    """Whether `other` stands on that side of `key`."""
    return other > key if side is Side.RIGHT else other < key


@dataclass(slots=True, eq=False)
class Seat:
    """One key in one list."""

    key: Key
    level: int
    joined: bool = False
    """Whether its right neighbor is known, or that there is none: others may stand before it."""
    leaving: bool = False
    left: bool = False
    """It has left its list; other seats of its key may not have."""
    neighbors: dict[Side, Contact] = field(default_factory=dict)
    """As agreed with them."""
    wanted: dict[Side, Contact] = field(default_factory=dict)
    """Who are nearer, as it seems, and are asked."""
    told_by: dict[Side, str] = field(default_factory=dict)
    """Which node has told of who is wanted: it need not be told."""
    calm: set[Side] = field(default_factory=set)
    """Where who is wanted is about to join, or this seat is: no lists meet there."""
    tries: int = 0
    """In vain, since something was agreed on."""
    claims: int = 0
    """Since the timer was set."""
    walked: Side | None = None
    """Where the last walk went."""

    @property
    def ready(self) -> bool:
        """Whether somebody may have it as its right neighbor: what is beyond is not lost then."""
        return self.joined and Side.RIGHT not in self.wanted

    def is_nearer(self, side: Side, contact: Contact, than: Contact | None) -> bool:
        """On that side, than somebody else there."""
        if not is_beside(self.key, side, contact.key):
            return False
        return than is None or is_beside(contact.key, side, than.key)


class Seats:
    """Of one node, and the table that follows from them."""

    def __init__(self, node_id: str, address: str, base: int, now: Callable[[], float]) -> None:
        self.node_id = node_id
        self.address = address
        self.base = base
        self.vector = vector_of(node_id, base)
        self.table = NodeTable(node_id, self.vector)
        self.changed: set[Key] = set()
        """Keys whose tables have changed since it was emptied."""
        self._by_key: dict[Key, list[Seat]] = {}
        """At index i the seat of level i."""
        self._keys: list[Key] = []
        self._now = now
        self._suspected: dict[str, float] = {}
        self._avoided: dict[tuple[Contact, int], float] = {}
        self._foreign = [0] * (digits_of(base) + 1)
        """By level: how often other nodes stand beside a seat."""
        self._shown: set[Key] = set()
        """Keys in the table."""
        self._digits: dict[str, int] = {}

    # ---- seats ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Seat]:
        return (seat for key in self._keys for seat in self._by_key[key])

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._keys)

    def of(self, key: Key) -> list[Seat]:
        return self._by_key.get(key, [])

    def get(self, key: Key, level: int) -> Seat | None:
        seats = self._by_key.get(key, [])
        return seats[level] if level < len(seats) else None

    def add(self, key: Key) -> Seat:
        """On the next level."""
        if key not in self._by_key:
            self._keys.insert(bisect_left(self._keys, key), key)
            self._by_key[key] = []
        seats = self._by_key[key]
        seats.append(Seat(key, len(seats)))
        return seats[-1]

    def drop(self, seat: Seat) -> None:
        """The highest one of a key."""
        assert self._by_key[seat.key].pop() is seat
        for side in Side:
            self.place(seat, side, None)

    def remove(self, key: Key) -> None:
        del self._by_key[key]
        self._keys.remove(key)
        if key in self._shown:
            self._shown.discard(key)
            self.table.remove(key)
            self.changed.add(key)

    def place(self, seat: Seat, side: Side, contact: Contact | None) -> None:
        """Who stands beside a seat, from now on."""
        before = seat.neighbors.pop(side, None)
        if contact is not None:
            seat.neighbors[side] = contact
        for each, sign in ((before, -1), (contact, 1)):
            if each is not None and each.node != self.node_id:
                self._foreign[seat.level] += sign
        if contact != before and seat.key in self._shown:
            self._show(seat, side)

    def enter(self, seat: Seat) -> None:
        """It has joined its list; with that of level 0 its key is in the table."""
        seat.joined = True
        if seat.level == 0 and seat.key not in self._shown:
            self._shown.add(seat.key)
            self.table.add(seat.key)
            self.changed.add(seat.key)
            for each in self.of(seat.key):
                for side in Side:
                    self._show(each, side)

    def _show(self, seat: Seat, side: Side) -> None:
        contact = seat.neighbors.get(side)
        entry = contact.neighbor if contact is not None else None
        self.table[seat.key].set(side, seat.level, entry)
        self.changed.add(seat.key)

    @property
    def height(self) -> int:
        """The level of the first list in which no other node is known."""
        most = max((level for level, count in enumerate(self._foreign) if count), default=-1)
        return min(most + 1, len(self._foreign) - 1)

    # ---- others --------------------------------------------------------------------------

    def contact(self, key: Key) -> Contact:
        """Of a key of this node."""
        return Contact(key, self.node_id, self.address)

    def common(self, node: str) -> int:
        """The highest level whose list that node is in, too."""
        if node == self.node_id:
            return digits_of(self.base)
        if node not in self._digits:
            if len(self._digits) >= MAX_SUSPECTED:
                self._digits.clear()
            self._digits[node] = self.vector.common_digits(vector_of(node, self.base))
        return self._digits[node]

    def others(self) -> list[Contact]:
        """All of other nodes that stand beside a seat, each once."""
        found = dict.fromkeys(each for seat in self for each in seat.neighbors.values())
        return [each for each in found if each.node != self.node_id]

    def known(self, level: int) -> list[Contact]:
        """All that belong to a list, as far as is known here, and are not suspected."""
        own = [
            self.contact(key)
            for key in self._keys
            if (seat := self.get(key, level)) is not None and seat.joined and not seat.leaving
        ]
        return own + [
            each
            for each in self.others()
            if self.common(each.node) >= level and not self.is_doubtful(each, level)
        ]

    def nearest(self, seat: Seat, side: Side) -> Contact | None:
        """Of those known in its list."""
        beside = [each for each in self.known(seat.level) if is_beside(seat.key, side, each.key)]
        pick = min if side is Side.RIGHT else max
        return pick(beside, key=lambda each: each.key, default=None)

    # ---- doubts --------------------------------------------------------------------------

    def suspect(self, node: str) -> None:
        if len(self._suspected) >= MAX_SUSPECTED:
            self.forgive()
        if len(self._suspected) < MAX_SUSPECTED:
            self._suspected[node] = self._now() + SUSPECTED_S

    def trust(self, node: str) -> None:
        self._suspected.pop(node, None)

    def avoid(self, contact: Contact, level: int) -> None:
        if len(self._avoided) < MAX_SUSPECTED:
            self._avoided[contact, level] = self._now() + AVOIDED_S

    def welcome(self, contact: Contact, level: int) -> None:
        """It says itself that it is there."""
        self._avoided.pop((contact, level), None)

    def is_doubtful(self, contact: Contact, level: int) -> bool:
        now_s = self._now()
        until_s = self._suspected.get(contact.node, 0.0)
        return now_s < max(until_s, self._avoided.get((contact, level), 0.0))

    def forgive(self) -> None:
        """Whose time is over."""
        now_s = self._now()
        self._suspected = {node: at for node, at in self._suspected.items() if at > now_s}
        self._avoided = {each: at for each, at in self._avoided.items() if at > now_s}
