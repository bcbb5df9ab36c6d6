"""A node's part in a Skip Graph that lives: keys come and go, nodes crash, links are lost.

Events go in, messages and timers come out; there is no other I/O.  What is kept are the tables of
`tables`: at rest, when nothing happens any more and everybody can reach everybody, they are those
that `tables.linked` defines, whatever happened before.

    seats      who stands beside each key in each list, as far as it is known
    lists      two who stand side by side agree on it: claim, hint, bye
    joining    who stands beside a key that comes: search in level 0, walks in those above
    here       which seats there are to be, and what is done every `ROUND_S`:

- each neighbor is told what the node takes for agreed on (a check);
- one seat is looked up as if it came anew, more of them after something has gone wrong;
- one node that was once linked, there or not, is asked where the default key belongs: if it is in
  another graph, as after a partition, the two become one from there.

Every node has its default key as long as it runs, so that others can join over it.  A node that
knows nobody is a graph by itself, which becomes one with that of the first node it is linked to.

Bounds: `MAX_KEYS` of a node, `MAX_MET` nodes that are remembered; each seat has one search and one
claim on each side under way, with pauses that double, and none sends more than a few at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Final, Protocol

from isthmus.cooperation.skipgraph.joining import Joining
from isthmus.cooperation.skipgraph.keys import Key, default_key, key_of
from isthmus.cooperation.skipgraph.lists import Lists
from isthmus.cooperation.skipgraph.messages import (
    MAX_CLAIMS,
    Absent,
    Bye,
    Check,
    Claim,
    Done,
    Find,
    Found,
    GraphMessage,
    Hint,
    Met,
    Ok,
    Stir,
    Walk,
)
from isthmus.cooperation.skipgraph.seats import Seat, Seats
from isthmus.cooperation.skipgraph.tables import NodeTable, Side

__all__ = ["MAX_KEYS", "ROUND_S", "Maintenance", "MaintenanceActions"]

MAX_KEYS: Final = 10_000
ROUND_S: Final = 5.0
MAX_MET: Final = 64
LOOKS: Final = 8
"""At seats, in a round after something has gone wrong; else one."""
WARY_ROUNDS: Final = 4
"""For how many rounds."""
GRACE_S: Final = 2.0
"""How long who has left is still in the table, for what is under way to it."""
DOUBT_S: Final = 1.0
"""Until who is in doubt is looked at, `LOOKS` at once."""
MAX_DOUBTS: Final = 1_000
LONGEST_PAUSE: Final = 256
"""Rounds until a node is asked again; at first one, then twice as many."""
MAX_CHECK_CHARACTERS: Final = 65_535
"""Of the topics in one check, or one claim."""

_ROUND: Final = "round"
_DOUBTS: Final = "doubts"
_LEFT: Final = "left"


class MaintenanceActions(Protocol):
    """What is to be done; none of it calls back."""

    def send(self, node: str, address: str, message: GraphMessage) -> None:
        """Over the link with that node, which is to be made if there is none.

        What is sent while a link is up arrives in order, or the link is lost.  Otherwise it may be
        forgotten; then `Maintenance.gone` follows if the node cannot be reached.
        """
        ...

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        """Call `Maintenance.timer(key)` then; a timer of the same key is replaced."""
        ...

    def cancel_timer(self, key: Hashable) -> None: ...

    def changed(self, keys: Collection[Key]) -> None:
        """The tables of these keys have; some of them may have come, or be gone."""
        ...

    def now(self) -> float: ...

    def random(self) -> float:
        """From 0 to below 1."""
        ...


class _Met:
    """A node that there was a link with; it may be in another graph now, or come back to one."""

    __slots__ = ("address", "pause", "rounds")

    def __init__(self, address: str) -> None:
        self.address = address
        self.rounds = 1
        """Until it is asked."""
        self.pause = 1


class Maintenance:
    """One node.  It is told of its links, and of what comes on them."""

    def __init__(
        self, node_id: str, address: str, actions: MaintenanceActions, *, base: int = 2
    ) -> None:
        self._do = actions
        self._seats = Seats(node_id, address, base, actions.now)
        self._lists = Lists(self._seats, self)
        self._joining = Joining(self._seats, self._lists, self)
        self._default = default_key(node_id)
        self._up: dict[str, str] = {}
        """Nodes whose links are up, and where they can be dialed."""
        self._met: dict[str, _Met] = {}
        self._again: set[Key] = set()
        """Keys that are to come back once they have left."""
        self._leaving: set[Key] = set()
        self._leaves_soon: set[Key] = set()
        """Of those, who have left all lists."""
        self._to_itself: deque[GraphMessage] = deque()
        self._doubts: dict[tuple[Key, int, Side], None] = {}
        self._wary = 0
        self._looked = 0
        self._height = 0
        self._touched: set[Key] = set()
        """Keys whose seats something has happened to."""

    # ---- what others see -----------------------------------------------------------------

    @property
    def node_id(self) -> str:
        return self._seats.node_id

    @property
    def table(self) -> NodeTable:
        """At all times the same object."""
        return self._seats.table

    @property
    def neighbors(self) -> dict[str, str]:
        """Nodes that stand beside this one in some list, and where they can be dialed."""
        return {each.node: each.address for each in self._seats.others()}

    @property
    def acquainted(self) -> frozenset[str]:
        """Nodes that it would find again: neighbors, and others that there were links with."""
        return frozenset((*self.neighbors, *self._met))

    def has_left(self, key: Key) -> bool:
        """Whether nothing of a key is here any more."""
        return key not in self._seats

    # ---- events --------------------------------------------------------------------------

    def start(self) -> None:
        self._do.set_timer(ROUND_S * self._do.random(), _ROUND)
        self._add(self._default)
        self._finish()

    def stop(self) -> None:
        """Leave, with all keys."""
        self._do.cancel_timer(_ROUND)
        self._do.cancel_timer(_DOUBTS)
        for key in self._seats.keys:
            self._remove(key)
        self._finish()

    def add(self, key: Key) -> None:
        """It joins, in a moment; `changed` tells."""
        if key != key_of(key.topic, key.kind, self.node_id):
            raise ValueError(f"{key} is not a key of {self.node_id}")
        if key not in self._seats and len(self._seats.keys) >= MAX_KEYS:
            raise ValueError(f"{self.node_id} has {MAX_KEYS:,} keys, which is the limit")
        self._add(key)
        self._finish()

    def _add(self, key: Key) -> None:
        if key in self._leaving:
            self._again.add(key)
        elif key not in self._seats:
            self._joining.join(self._seats.add(key))

    def remove(self, key: Key) -> None:
        """It leaves, in a moment."""
        if key == self._default:
            raise ValueError("the default key stays as long as the node runs")
        self._remove(key)
        self._finish()

    def _remove(self, key: Key) -> None:
        self._again.discard(key)
        if key in self._seats and key not in self._leaving:
            self._leaving.add(key)
            for seat in self._seats.of(key):
                self._lists.leave(seat)

    def link_up(self, node: str, address: str) -> None:
        """A link can be used, for the first time or again."""
        self._seats.trust(node)
        self._up[node] = address
        self._remember(node, address)
        if node in self.neighbors:
            self._check([node])
        elif not self.neighbors:
            seat = self._seats.get(self._default, 0)
            if seat is not None and not seat.leaving and not seat.wanted:
                self._joining.ask_somebody(seat, node)
        self._finish()

    def link_down(self, node: str) -> None:
        """It may come back, or `gone` follows."""
        self._up.pop(node, None)

    def gone(self, node: str) -> None:
        """It cannot be reached, or is not to be: its link is closed, or could not be made."""
        self._seats.suspect(node)
        address = self.neighbors.get(node) or self._up.pop(node, None)
        if address is not None:
            self._remember(node, address)
        self._lists.gone(node)
        self._finish()

    def arrived(self, sender: str, message: GraphMessage) -> None:
        """Raises `RemoteProtocolError` for what nobody honest says; its link is to be closed."""
        self._seats.trust(sender)
        try:
            self._handle(sender, message)
        finally:
            self._finish()

    def timer(self, key: Hashable) -> None:
        if key == _ROUND:
            self._round()
        elif key == _DOUBTS:
            self._clear_doubts()
        elif isinstance(key, tuple) and key[0] == _LEFT:
            self._forget(key[1])
        elif isinstance(key, tuple):
            seat = self._seats.get(key[1], key[2])
            if seat is not None and not self._lists.timer(seat):
                self._joining.join(seat)
        self._finish()

    def _handle(self, sender: str, message: GraphMessage) -> None:
        match message:
            case Claim():
                self._lists.claimed(sender, message)
            case Check():
                self._lists.checked(sender, message)
            case Ok():
                self._lists.agreed(sender, message)
            case Hint():
                self._lists.hinted(sender, message)
            case Absent():
                self._lists.absent(sender, message)
            case Bye():
                self._lists.bye(sender, message)
            case Done():
                self._lists.done(sender, message)
            case Find():
                self._joining.find(sender, message)
            case Found():
                self._joining.found(sender, message)
            case Walk():
                self._joining.walk(sender, message)
            case Met():
                self._joining.met(sender, message)
            case Stir():
                self._lists.stirred(sender, message)

    # ---- after each event ----------------------------------------------------------------

    def _finish(self) -> None:
        """Virtual nodes of this node talk to each other, seats come and go, changes are told."""
        while True:
            while self._to_itself:
                self._handle(self.node_id, self._to_itself.popleft())
            self._fit()
            if not self._to_itself and not self._touched:
                break
        if self._seats.changed:
            changed = frozenset(self._seats.changed)
            self._seats.changed.clear()
            self._do.changed(changed)

    def _fit(self) -> None:
        """Seats up to the level where the node is alone."""
        for key in sorted(self._leaving - self._leaves_soon):
            if all(seat.left for seat in self._seats.of(key)):
                self._leaves_soon.add(key)
                self._do.set_timer(GRACE_S, (_LEFT, key))
        height = self._seats.height
        keys = self._touched if height == self._height else self._seats.keys
        self._height, self._touched = height, set()
        for key in sorted(keys):
            seats = self._seats.of(key)
            if not seats or key in self._leaving:
                continue
            while len(seats) - 1 > height:
                self.rest(seats[-1])
                self._seats.drop(seats[-1])
            if len(seats) - 1 < height and seats[-1].joined and not seats[-1].wanted:
                self._joining.join(self._seats.add(key))

    def _forget(self, key: Key) -> None:
        for seat in self._seats.of(key):
            self.rest(seat)
            for side in Side:
                self._seats.place(seat, side, None)
        self._seats.remove(key)
        self._leaving.discard(key)
        self._leaves_soon.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._add(key)

    # ---- rounds --------------------------------------------------------------------------

    def _round(self) -> None:
        self._do.set_timer(ROUND_S * (0.75 + 0.5 * self._do.random()), _ROUND)
        self._seats.forgive()
        self._lists.pair()
        self._check()
        self._look()
        self._ask_one()

    def _check(self, nodes: Collection[str] | None = None) -> None:
        """Tell these neighbors, or all, what was agreed on with them."""
        said: dict[str, list[Claim]] = {}
        addresses = {}
        for seat in self._seats:
            for contact, claim in self._lists.claims(seat):
                if nodes is None or contact.node in nodes:
                    said.setdefault(contact.node, []).append(claim)
                    addresses[contact.node] = contact.address
        for node, claims in said.items():
            part: list[Claim] = []
            room = MAX_CHECK_CHARACTERS
            for claim in claims:
                length = len(claim.of.topic) + len(claim.to.topic)
                if part and (len(part) == MAX_CLAIMS or length > room):
                    self.send(node, addresses[node], Check(tuple(part)))
                    part, room = [], MAX_CHECK_CHARACTERS
                part.append(claim)
                room -= length
            self.send(node, addresses[node], Check(tuple(part)))

    def _look(self) -> None:
        """At the next seats, in turn."""
        seats = [seat for seat in self._seats if seat.joined and not seat.leaving]
        self._wary = max(self._wary - 1, 0)
        for _ in range(min(LOOKS if self._wary else 1, len(seats))):
            self._looked += 1
            seat = seats[self._looked // 2 % len(seats)]
            side = Side.RIGHT if self._looked % 2 else Side.LEFT
            self._joining.look(seat, side)

    def _clear_doubts(self) -> None:
        for key, level, side in list(self._doubts)[:LOOKS]:
            del self._doubts[key, level, side]
            seat = self._seats.get(key, level)
            if seat is not None and seat.joined and not seat.leaving:
                self._joining.look(seat, side)
        if self._doubts:
            self._do.set_timer(DOUBT_S, _DOUBTS)

    def _remember(self, node: str, address: str) -> None:
        """Something has happened to it: ask it soon."""
        self._met.pop(node, None)
        if len(self._met) >= MAX_MET:
            del self._met[max(self._met, key=lambda each: self._met[each].pause)]
        self._met[node] = _Met(address)

    def _ask_one(self) -> None:
        """Of those whose turn it is; neighbors are in this graph."""
        seat = self._seats.get(self._default, 0)
        if seat is None or seat.leaving:
            return
        known = self.neighbors
        for met in self._met.values():
            met.rounds -= 1
        for node, met in self._met.items():
            if met.rounds <= 0 and node not in known:
                met.pause = min(2 * met.pause, LONGEST_PAUSE)
                met.rounds = met.pause
                self._joining.ask_somebody(seat, node, met.address)
                return

    # ---- for lists and joining -----------------------------------------------------------

    def send(self, node: str, address: str, message: GraphMessage) -> None:
        if node == self.node_id:
            self._to_itself.append(message)
        else:
            self._do.send(node, address or self._up.get(node, ""), message)

    def wait(self, seat: Seat, delay_s: float) -> None:
        self._touched.add(seat.key)
        self._do.set_timer(delay_s, ("seat", seat.key, seat.level))

    def rest(self, seat: Seat) -> None:
        self._touched.add(seat.key)
        self._do.cancel_timer(("seat", seat.key, seat.level))

    def address_of(self, node: str) -> str:
        return self._seats.address if node == self.node_id else self._up.get(node, "")

    def linked(self) -> Sequence[str]:
        return [*self._up]

    def seek(self, seat: Seat, side: Side) -> None:
        self._joining.look(seat, side)

    def doubt(self, key: Key, level: int, side: Side) -> None:
        if not self._doubts:
            self._do.set_timer(DOUBT_S, _DOUBTS)
        if len(self._doubts) < MAX_DOUBTS:
            self._doubts[key, level, side] = None

    def alarm(self) -> None:
        self._wary = WARY_ROUNDS

    def random(self) -> float:
        return self._do.random()
