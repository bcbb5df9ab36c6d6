"""How a seat finds its place in its list of a Skip Graph.

**Level 0**: a search (*find*) that begins at any node, and at each goes on to the one known there
that is nearest on the left of the key that is looked for; if nobody is, to the nearest on the
right.  So first it comes nearer from the right, then from the left, and never goes round.  It takes
the nearest on both sides that were seen on the way with it, and who knows nobody better tells the
origin.

**Level i + 1**: a *walk* along the list of level i, to the right, until there is somebody with the
same next digit, and if there is nobody, to the left.  That takes as many hops as the base is, on
the average.  Who finds nobody on either side is alone.

The same is done now and then for a seat that has its place (`Joining.look`): whatever went wrong,
the nearest that belongs to a list is found in the list below it, and so in the end, from the list
of all nodes upwards, all lists are right.

Answers go straight to the origin.  They are hints: it claims whom it is told of, which go on from
there if it is not the nearest (`lists`).  What is lost on the way is asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from isthmus.cooperation.skipgraph.keys import Key
from isthmus.cooperation.skipgraph.lists import Lists, check_list
from isthmus.cooperation.skipgraph.messages import (
    MAX_HOPS,
    Contact,
    Find,
    Found,
    GraphMessage,
    Met,
    Walk,
)
from isthmus.cooperation.skipgraph.seats import Seat, Seats, is_beside
from isthmus.cooperation.skipgraph.tables import Side
from isthmus.errors import RemoteProtocolError

__all__ = ["Joining", "JoiningActions"]

JOIN_S: Final = 2.0
"""How long an answer is awaited at first; twice as long each time."""
MOST_DOUBLINGS: Final = 4


class JoiningActions(Protocol):
    """What is to be done; none of it calls back."""

    def send(self, node: str, address: str, message: GraphMessage) -> None: ...

    def wait(self, seat: Seat, delay_s: float) -> None: ...

    def address_of(self, node: str) -> str: ...

    def linked(self) -> Sequence[str]:
        """Nodes whose links are up."""
        ...

    def random(self) -> float:
        """From 0 to below 1."""
        ...


class Joining:
    """Searches and walks of one node, and those of others that pass it."""

    def __init__(self, seats: Seats, lists: Lists, actions: JoiningActions) -> None:
        self._seats = seats
        self._lists = lists
        self._do = actions

    # ---- beginning -----------------------------------------------------------------------

    def join(self, seat: Seat) -> None:
        """Begin, or begin anew."""
        self._do.wait(seat, JOIN_S * 2 ** min(seat.tries, MOST_DOUBLINGS))
        if seat.level > 0:
            self._walk(seat, Side.RIGHT)
            return
        has_others = any(self._is_in(key) for key in self._seats.keys if key != seat.key)
        if has_others and not seat.tries:
            self._search(Find(self._seats.contact(seat.key), None, None, 0))
        elif not self.ask_somebody(seat):
            if has_others:
                self._search(Find(self._seats.contact(seat.key), None, None, 0))
            else:
                self._lists.enter(seat)

    def look(self, seat: Seat, side: Side) -> None:
        """Whether somebody is nearer than it is known."""
        if seat.level > 0:
            self._walk(seat, side)
        else:
            self.ask_somebody(seat)

    def ask_somebody(self, seat: Seat, node: str = "", address: str = "") -> bool:
        """Where a key belongs, of `node` or of anyone that is known; False if nobody is."""
        if not node:
            known = {each.node: each.address for each in self._seats.others()}
            names = sorted({*known, *self._do.linked()})  # who is linked may be in another graph
            if not names:
                return False
            node = names[int(self._do.random() * len(names))]
            address = known.get(node, "")
        find = Find(self._seats.contact(seat.key), None, None, 0)
        self._do.send(node, address or self._do.address_of(node), find)
        return True

    # ---- search --------------------------------------------------------------------------

    def find(self, sender: str, find: Find) -> None:
        for side, contact in ((Side.LEFT, find.left), (Side.RIGHT, find.right)):
            if contact is not None and not is_beside(find.origin.key, side, contact.key):
                raise RemoteProtocolError(f"{sender} has found on the {side.value} what is not")
        self._search(find)

    def _search(self, find: Find) -> None:
        seats, key = self._seats, find.origin.key
        known = seats.known(0) + [
            each
            for each in (find.left, find.right)
            if each is not None and each.node != seats.node_id
        ]
        left = max((each for each in known if each.key < key), key=_key, default=None)
        right = min((each for each in known if each.key > key), key=_key, default=None)
        onward = left or right
        if onward is None or onward.node == seats.node_id:
            found = Found(key, left, right)
            self._do.send(find.origin.node, find.origin.address, found)
        elif find.hops < MAX_HOPS:
            further = Find(find.origin, left, right, find.hops + 1)
            self._do.send(onward.node, onward.address, further)

    def found(self, sender: str, found: Found) -> None:
        for side, contact in ((Side.LEFT, found.left), (Side.RIGHT, found.right)):
            if contact is not None and not is_beside(found.to, side, contact.key):
                raise RemoteProtocolError(f"{sender} has found on the {side.value} what is not")
        seat = self._seats.get(found.to, 0)
        if seat is None or seat.leaving:
            return
        if found.right is not None:
            self._lists.want(seat, Side.RIGHT, found.right)
            if not seat.joined:
                return  # who stands on the left is told
        elif not seat.joined and found.left is not None:
            self._lists.enter(seat)
        if found.left is not None:
            self._lists.want(seat, Side.LEFT, found.left)

    # ---- walk ----------------------------------------------------------------------------

    def _walk(self, seat: Seat, side: Side) -> None:
        below = self._seats.get(seat.key, seat.level - 1)
        if below is None or not below.joined:
            return
        seat.walked = side
        following = below.neighbors.get(side) or below.wanted.get(side)
        if following is None:
            self._met_nobody(seat, side)
        else:
            origin = self._seats.contact(seat.key)
            walk = Walk(below.level, side, following.key, origin, 1)
            self._do.send(following.node, following.address, walk)

    def walk(self, sender: str, walk: Walk) -> None:
        seats, level, side, origin = self._seats, walk.level, walk.side, walk.origin
        check_list(seats, level, sender)
        check_list(seats, level, origin.node)
        if not is_beside(origin.key, side, walk.to):
            raise RemoteProtocolError(f"{sender} walks to the wrong side")
        seat = seats.get(walk.to, level)
        if seat is None:
            return  # it has left; the origin asks again
        if seats.common(origin.node) > level and not seat.leaving:
            met = Met(level + 1, side, walk.to, origin.key)
            self._do.send(origin.node, origin.address, met)
            return
        following = seat.neighbors.get(side) or seat.wanted.get(side)
        if following is None:
            if not seat.joined:
                return  # it is not known yet; the origin asks again
            nobody = Met(level + 1, side, None, origin.key)
            self._do.send(origin.node, origin.address, nobody)
        elif walk.hops < MAX_HOPS:
            further = Walk(level, side, following.key, origin, walk.hops + 1)
            self._do.send(following.node, following.address, further)

    def met(self, sender: str, met: Met) -> None:
        seat = self._seats.get(met.to, met.level)
        if met.of is not None:
            check_list(self._seats, met.level, sender)
            if not is_beside(met.to, met.side, met.of):
                raise RemoteProtocolError(f"{sender} was met on the wrong side")
        if seat is None or seat.leaving or (not seat.joined and seat.walked is not met.side):
            return
        if met.of is None:
            self._met_nobody(seat, met.side)
            return
        if met.side is Side.LEFT and not seat.joined:
            self._lists.enter(seat)  # there was nobody on the right
        contact = Contact(met.of, sender, self._do.address_of(sender))
        self._lists.want(seat, met.side, contact)

    def _met_nobody(self, seat: Seat, side: Side) -> None:
        if seat.joined:
            return
        if side is Side.RIGHT:
            self._walk(seat, Side.LEFT)
        else:
            self._lists.enter(seat)

    def _is_in(self, key: Key) -> bool:
        seat = self._seats.get(key, 0)
        return seat is not None and seat.joined


def _key(contact: Contact) -> Key:
    return contact.key
