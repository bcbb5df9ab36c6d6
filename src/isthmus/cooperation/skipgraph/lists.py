"""The lists of a Skip Graph: how nodes agree on who stands beside whom.

Each list is doubly linked.  Whoever wants to stand beside somebody *claims* it, and whoever is
claimed compares: who is nearer than the neighbor on that side takes its place, and the one that
stood there is told of it; who is farther away is told who stands between.  So both go on from
there, and nobody is forgotten: a list is sorted in the end, however it was before, as long as
everybody knows anybody ("linearization").  Joining, repair after a crash and the merging of parts
that were apart are all the same.

    u joins between p and q      u ──claim right──▶ q    u is nearer than p
                                 u ◀──────ok─────── q ──hint u──▶ p
                                 p ──claim right──▶ u ──ok──▶ p

**The right neighbor is what counts**, as in the DDLL of Abe and Yoshida: nobody is made a right
neighbor before its own one is known (`Seat.ready`).  So who goes along right neighbors passes all
that were passed before, while others join.  *Known limit*: where somebody leaves beside one that is
about to join, a right neighbor may be wrong until it is checked.

    u leaves between p and q     u ──bye, then q──▶ p ──done──▶ u ──bye, then p──▶ q

p, who must not leave meanwhile, has q as its right neighbor from then on.  Who wants to leave
beside somebody who does waits for it, the left one being first.  Who has left stays in its node's
table for a moment (`Maintenance`): somebody who was displaced may not have noticed yet.

*Not as in DDLL*: no message speaks for a third node, so that no sequence numbers are needed: what
one node says of itself arrives in order, and nothing that is said of another is taken for more than
a hint.  (DDLL's numbers cannot be compared after a restart, nor between parts that were apart, and
whoever lies about them locks others out.)  The exception is a bye: the next one is believed at
once, and asked with the next check.

**Checks**: every few seconds a node tells each neighbor which of its seats it takes to stand beside
which of the neighbor's.  It is answered only where that is not so.

**Lists that meet**, as after a partition, have met at one level, and may have to at the next,
between two who have not noticed: of a, x, y, b it is x and y who become neighbors, and a and b who
belong to the same next list.  So x, unless y or x is one that just joins, looks itself (`joining`)
and tells those before it, up to the first with another digit, to do so (*stir*).
"""

from __future__ import annotations

from typing import Final, Protocol

from isthmus.cooperation.skipgraph.keys import Key
from isthmus.cooperation.skipgraph.messages import (
    Absent,
    Bye,
    Check,
    Claim,
    Contact,
    Done,
    GraphMessage,
    Hint,
    Ok,
    Stir,
)
from isthmus.cooperation.skipgraph.seats import Seat, Seats, is_beside, opposite
from isthmus.cooperation.skipgraph.tables import Side
from isthmus.errors import RemoteProtocolError

__all__ = ["ListActions", "Lists", "check_list"]

CLAIM_S: Final = 1.0
"""How long an answer is awaited at first; twice as long each time."""
CLAIM_TRIES: Final = 3
LEAVE_TRIES: Final = 5
MOST_DOUBLINGS: Final = 5
BURST: Final = 16
"""Claims of one seat before it waits for its timer: a ring of hints is no storm."""


class ListActions(Protocol):
    """What is to be done; none of it calls back."""

    def send(self, node: str, address: str, message: GraphMessage) -> None: ...

    def wait(self, seat: Seat, delay_s: float) -> None:
        """Call `Lists.timer` then, and not before."""
        ...

    def rest(self, seat: Seat) -> None:
        """Nothing is awaited any more."""
        ...

    def address_of(self, node: str) -> str: ...

    def seek(self, seat: Seat, side: Side) -> None:
        """Nobody is known there: search, or walk."""
        ...

    def doubt(self, key: Key, level: int, side: Side) -> None:
        """Look for who stands there, in a moment."""
        ...

    def alarm(self) -> None:
        """Something is not as it was agreed on: look at more than this seat."""
        ...


def check_list(seats: Seats, level: int, node: str) -> None:
    """Nobody speaks of lists that it is not in."""
    if seats.common(node) < level:
        raise RemoteProtocolError(
            f"{node} speaks of a list of level {level}; it has {seats.common(node)} digits in "
            f"common with {seats.node_id}"
        )


def _check_side(key: Key, side: Side, other: Key, node: str) -> None:
    if not is_beside(key, side, other):
        raise RemoteProtocolError(f"{node} says {side.value} of what is not on that side")


class Lists:
    """The pointers of one node."""

    def __init__(self, seats: Seats, actions: ListActions) -> None:
        self._seats = seats
        self._do = actions

    # ---- claims --------------------------------------------------------------------------

    def want(
        self,
        seat: Seat,
        side: Side,
        contact: Contact,
        *,
        told_by: str = "",
        is_told: bool = False,
        calm: bool = False,
    ) -> None:
        """It was heard that somebody stands there: ask it, if it is nearer than who is known.

        Who is told of this seat will ask, and is asked only if it does not.
        """
        seats, level = self._seats, seat.level
        if seat.leaving or seats.is_doubtful(contact, level):
            return
        if contact.node == seats.node_id:
            own = seats.get(contact.key, level)
            if own is None or own.leaving:
                return
        known = seat.neighbors.get(side), seat.wanted.get(side)
        if all(seat.is_nearer(side, contact, each) for each in known):
            seat.wanted[side] = contact
            seat.told_by[side] = told_by
            (seat.calm.add if calm or self._joins(seat) else seat.calm.discard)(side)
            seat.tries = 0
            if is_told:
                self._do.wait(seat, CLAIM_S)
            else:
                self._claim(seat, side)

    def _joins(self, seat: Seat) -> bool:
        """Whether it brings nobody with it."""
        return not seat.joined or self._seats.height == 0

    def _claim(self, seat: Seat, side: Side) -> None:
        if side is Side.LEFT and not seat.ready:
            return  # when it is
        contact = seat.wanted[side]
        seat.claims += 1
        if seat.claims <= BURST:
            claim = Claim(seat.level, side, seat.key, contact.key, self._joins(seat))
            self._do.send(contact.node, contact.address, claim)
        self._do.wait(seat, CLAIM_S * 2 ** min(seat.tries, MOST_DOUBLINGS))

    def claims(self, seat: Seat) -> list[tuple[Contact, Claim]]:
        """What is to be checked of a seat."""
        if not seat.joined or seat.leaving:
            return []
        return [
            (each, Claim(seat.level, side, seat.key, each.key))
            for side, each in seat.neighbors.items()
        ]

    def claimed(self, sender: str, claim: Claim, *, quiet: bool = False) -> None:
        """With `quiet` it is answered only if it is not so."""
        seats, level, side = self._seats, claim.level, claim.side
        check_list(seats, level, sender)
        _check_side(claim.of, side, claim.to, sender)
        contact = Contact(claim.of, sender, self._do.address_of(sender))
        seats.welcome(contact, level)
        seat = seats.get(claim.to, level)
        if seat is None or seat.leaving:
            beyond = seat.neighbors.get(side) if seat is not None else None
            self._answer(contact, Absent(level, side, claim.to, claim.of, beyond))
            return
        mine = opposite(side)
        current = seat.neighbors.get(mine)
        if current is None and mine is Side.RIGHT:
            current = seat.wanted.get(mine)  # who is asked may have agreed
        if current is not None and current != contact:
            if not seat.is_nearer(mine, contact, current):
                self._answer(contact, Hint(level, side, claim.to, claim.of, current))
                return
            if mine is Side.RIGHT:  # it must know first who is beyond it
                hint = Hint(level, mine, claim.to, claim.of, current)
                self._answer(contact, hint)
                self.want(seat, mine, contact, calm=claim.joins)
                return
        if mine is Side.LEFT and not seat.ready and current != contact:
            self.want(seat, mine, contact)  # as soon as it is ready
            return
        calm = claim.joins or self._joins(seat)
        self._settle(seat, mine, contact, calm=calm)
        if current is not None and current != contact:
            self._answer(current, Hint(level, side, claim.to, current.key, contact, calm))
        if not quiet:
            before = current if current != contact else None
            self._answer(contact, Ok(level, side, claim.to, claim.of, before))

    def checked(self, sender: str, check: Check) -> None:
        for claim in check.claims:
            self.claimed(sender, claim, quiet=True)

    def _answer(self, contact: Contact, message: GraphMessage) -> None:
        self._do.send(contact.node, contact.address, message)

    def agreed(self, sender: str, ok: Ok) -> None:
        seat, contact = self._spoken_of(sender, ok)
        mine = opposite(ok.side)
        if ok.before is not None:
            self._check_contact(sender, ok.level, mine, ok.to, ok.before)
        if seat is None or seat.leaving or seat.wanted.get(ok.side) != contact:
            return
        before = seat.neighbors.get(ok.side)
        self._settle(seat, ok.side, contact, calm=ok.side in seat.calm)
        if before is not None and before.node != seat.told_by.get(ok.side):
            self._answer(before, Hint(seat.level, mine, seat.key, before.key, contact))
        if ok.before is not None:
            self.want(seat, mine, ok.before, is_told=True, calm=ok.side in seat.calm)

    def _settle(self, seat: Seat, side: Side, contact: Contact, *, calm: bool) -> None:
        if not calm and seat.neighbors.get(side) != contact:
            self._do.doubt(seat.key, seat.level + 1, side)
            self._stir(seat, side)
        self._seats.place(seat, side, contact)
        wanted = seat.wanted.get(side)
        if wanted is not None and not seat.is_nearer(side, wanted, contact):
            del seat.wanted[side]
        seat.tries = 0
        if side is Side.RIGHT:
            self._seats.enter(seat)
        self._go_on(seat)

    def enter(self, seat: Seat) -> None:
        """Nobody is on its right."""
        self._seats.enter(seat)
        self._go_on(seat)

    def _go_on(self, seat: Seat) -> None:
        """Something that was awaited has happened, or will not."""
        if Side.LEFT in seat.wanted and seat.ready:
            self._claim(seat, Side.LEFT)
        elif not seat.wanted and seat.joined:
            self._do.rest(seat)

    def _stir(self, seat: Seat, side: Side) -> None:
        before = seat.neighbors.get(opposite(side))
        if before is not None:
            self._answer(before, Stir(seat.level, side, seat.key, before.key))

    def stirred(self, sender: str, stir: Stir) -> None:
        check_list(self._seats, stir.level, sender)
        _check_side(stir.to, stir.side, stir.of, sender)
        seat = self._seats.get(stir.to, stir.level)
        if seat is None or not seat.joined:
            return
        if self._seats.common(sender) > stir.level:
            self._stir(seat, stir.side)
        else:
            self._do.doubt(stir.to, stir.level + 1, stir.side)

    def hinted(self, sender: str, hint: Hint) -> None:
        check_list(self._seats, hint.level, sender)
        self._check_contact(sender, hint.level, hint.side, hint.to, hint.contact)
        seat = self._seats.get(hint.to, hint.level)
        if seat is None:
            return
        if not seat.leaving:
            self.want(seat, hint.side, hint.contact, told_by=sender, calm=hint.joins)
        elif hint.side is Side.RIGHT:
            left = seat.neighbors.get(Side.LEFT)
            if left is not None:  # it has heard of who leaves, and may have to know
                self._answer(left, Hint(seat.level, hint.side, seat.key, left.key, hint.contact))
        elif (
            not seat.left
            and not self._seats.is_doubtful(hint.contact, seat.level)
            and seat.is_nearer(hint.side, hint.contact, seat.neighbors.get(hint.side))
        ):
            self._seats.place(seat, hint.side, hint.contact)
            self._say_bye(seat)

    def _check_contact(
        self, sender: str, level: int, side: Side, key: Key, contact: Contact
    ) -> None:
        """Also of others one may say only what can be."""
        if self._seats.common(contact.node) < level:
            raise RemoteProtocolError(
                f"{sender} says that {contact.node} is in a list that it cannot be in"
            )
        _check_side(key, side, contact.key, sender)

    def _spoken_of(self, sender: str, message: Ok | Absent | Bye) -> tuple[Seat | None, Contact]:
        """The seat, and who says that it stands beside it, or does not."""
        check_list(self._seats, message.level, sender)
        _check_side(message.to, message.side, message.of, sender)
        contact = Contact(message.of, sender, self._do.address_of(sender))
        return self._seats.get(message.to, message.level), contact

    def pair(self) -> None:
        """Keys of this node need nobody to find each other."""
        before: dict[int, Seat] = {}
        for seat in self._seats:
            if seat.joined and not seat.leaving:
                last = before.get(seat.level)
                if last is not None:
                    self.want(last, Side.RIGHT, self._seats.contact(seat.key))
                before[seat.level] = seat

    # ---- who is not there ----------------------------------------------------------------

    def absent(self, sender: str, message: Absent) -> None:
        seat, contact = self._spoken_of(sender, message)
        beyond, side = message.contact, message.side
        if beyond is not None:
            self._check_contact(sender, message.level, side, message.to, beyond)
        if seat is None:
            return
        self._seats.avoid(contact, seat.level)
        if seat.leaving:
            if seat.neighbors.get(side) == contact and not seat.left:
                self._seats.place(seat, side, beyond)
                self._say_bye(seat)
            return
        self._lose(seat, side, contact)
        if beyond is not None:
            self.want(seat, side, beyond)
        self.repair(seat, side)

    def _lose(self, seat: Seat, side: Side, contact: Contact) -> None:
        if seat.wanted.get(side) == contact:
            del seat.wanted[side]
            self._go_on(seat)
        if seat.neighbors.get(side) == contact:
            self._seats.place(seat, side, None)
            self._do.alarm()

    def repair(self, seat: Seat, side: Side) -> None:
        """If nobody is known on that side: from what is known of other levels and keys."""
        if seat.leaving or side in seat.neighbors or side in seat.wanted:
            return
        if not seat.joined:
            self._do.wait(seat, CLAIM_S)
            return
        nearest = self._seats.nearest(seat, side)
        if nearest is not None:
            self.want(seat, side, nearest)
        else:
            self._do.seek(seat, side)

    def gone(self, node: str) -> None:
        """A node is not there any more."""
        lost = [
            (seat, side, contact)
            for seat in self._seats
            for side in Side
            for contact in (seat.neighbors.get(side), seat.wanted.get(side))
            if contact is not None and contact.node == node
        ]
        for seat, side, contact in lost:
            self._lose(seat, side, contact)
        for seat, side, _ in lost:
            if not seat.leaving:
                self.repair(seat, side)
            elif not seat.left:
                self._seats.place(seat, side, self._seats.nearest(seat, side))
                self._say_bye(seat)

    # ---- leaving -------------------------------------------------------------------------

    def leave(self, seat: Seat) -> None:
        seat.leaving = True
        if Side.LEFT in seat.wanted and Side.LEFT not in seat.neighbors:
            self._seats.place(seat, Side.LEFT, seat.wanted[Side.LEFT])  # it may have agreed
        seat.wanted.clear()
        seat.tries = seat.claims = 0
        if seat.joined:
            self._say_bye(seat)
        else:
            self._part(seat)

    def _say_bye(self, seat: Seat) -> None:
        left, right = seat.neighbors.get(Side.LEFT), seat.neighbors.get(Side.RIGHT)
        if left is None:
            self._part(seat)
            return
        seat.claims += 1
        if seat.claims <= BURST:
            self._answer(left, Bye(seat.level, Side.RIGHT, seat.key, left.key, right))
        self._do.wait(seat, CLAIM_S * 2 ** min(seat.tries, MOST_DOUBLINGS))

    def done(self, sender: str, message: Done) -> None:
        check_list(self._seats, message.level, sender)
        seat = self._seats.get(message.to, message.level)
        if seat is not None and seat.leaving and not seat.left:
            left = seat.neighbors.get(Side.LEFT)
            if left is not None and (left.key, left.node) == (message.of, sender):
                self._part(seat)

    def _part(self, seat: Seat) -> None:
        seat.left = True
        right = seat.neighbors.get(Side.RIGHT)
        if right is not None:
            left = seat.neighbors.get(Side.LEFT)
            self._answer(right, Bye(seat.level, Side.LEFT, seat.key, right.key, left))
        self._do.rest(seat)

    def bye(self, sender: str, message: Bye) -> None:
        seat, contact = self._spoken_of(sender, message)
        following, side, level = message.contact, message.side, message.level
        if following is not None:
            self._check_contact(sender, level, side, message.to, following)
        if seat is not None:
            if side is Side.RIGHT and seat.leaving and not seat.left:
                return  # it comes again, or somebody else's turn it is then
            self._seats.avoid(contact, level)
            if seat.wanted.get(side) == contact:
                del seat.wanted[side]
                self._go_on(seat)
            self._step_aside(seat, side, contact, following)
            between = seat.neighbors.get(side)
            if (
                side is Side.RIGHT
                and between is not None
                and is_beside(between.key, Side.RIGHT, contact.key)
            ):
                self._answer(contact, Hint(level, Side.LEFT, seat.key, contact.key, between))
                return
        if side is Side.RIGHT:
            self._answer(contact, Done(level, message.to, message.of))

    def _step_aside(
        self, seat: Seat, side: Side, leaver: Contact, following: Contact | None
    ) -> None:
        """Who followed the leaver follows this seat, unless somebody stands there."""
        current = seat.neighbors.get(side)
        doubtful = following is not None and self._seats.is_doubtful(following, seat.level)
        if current == leaver:
            self._seats.place(seat, side, None if doubtful else following)
            if seat.leaving:
                if not seat.left:
                    self._say_bye(seat)
            elif doubtful:
                self.repair(seat, side)
        elif following is not None and not seat.leaving:
            if current is None or seat.is_nearer(side, following, current):
                self.want(seat, side, following)
            elif current != following and side is Side.LEFT:
                # Who has come between may not know who is beyond it.
                hint = Hint(seat.level, side, seat.key, current.key, following)
                self._answer(current, hint)

    # ---- time ----------------------------------------------------------------------------

    def timer(self, seat: Seat) -> bool:
        """Whether it is in its list, or about to be; if not, it must begin anew."""
        seat.claims = 0
        seat.tries += 1
        if seat.leaving:
            if seat.tries > LEAVE_TRIES:
                self._part(seat)
            elif not seat.left:
                self._say_bye(seat)
            return True
        for side, contact in list(seat.wanted.items()):
            if seat.wanted.get(side) != contact:
                continue
            if seat.tries <= CLAIM_TRIES:
                self._claim(seat, side)
            else:
                self._seats.avoid(contact, seat.level)
                self._lose(seat, side, contact)
                self.repair(seat, side)
        return seat.joined or Side.RIGHT in seat.wanted
