"""The lists of a Skip Graph while an epoch lasts: keys come and go, and no key is ever skipped.

In an *epoch* (`standing`) the nodes are known, all of them run and are linked with each other, and
what they say to each other arrives, once and in order.  So nothing has to be repaired here: if a
node or a link is lost the epoch is over, and the lists of the next one are built anew.  What is
left is that keys come and go at the same time, side by side, and that is exact in every level:

- every node's default key is in all its lists from the beginning, since who is there is known.  So
  each list has a first key that never leaves, and each key has somebody to its left;
- **an entry to the right is owned by who has it.**  A key is put into a list, or taken out, by the
  key to the left of the place, in one step: it asks along the list who that is (`Go`);
- who has a new entry to the right does nothing else with it until the other end knows: from
  `Inserted` to `Linked`, and from `Left` to `LeftOk`, the entry is *locked*, and whoever asks is
  answered afterwards.  So an entry to the left changes in the order in which the lists do;
- a key that leaves a list is locked until it is out.  Of several side by side that leave, the
  leftmost is out first.

A key joins from level 0 upwards and leaves from the top down, so an entry of a higher level always
names a key that is in the list of level 0, which alone decides who is reached.

    N joins between X and Y              N leaves
    N ─insert──▶ X  (or go, go, …)       N ─remove(Y)─▶ X
    X ─inserted(Y)─▶ N ─linked─▶ X       X ─left─▶ Y ─left-ok─▶ X
    N ─left─▶ Y ─left-ok─▶ N             X ─removed─▶ N

Departure: Aspnes and Shah's joining, which the thesis refers to, is not written down for joins and
leaves at the same time, and repairs what went wrong later.  A key that is skipped meanwhile would
lose messages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, Protocol

from isthmus.cooperation.skipgraph.keys import Key, default_key
from isthmus.cooperation.skipgraph.messages import (
    Go,
    Insert,
    Inserted,
    Left,
    LeftOk,
    Linked,
    ListMessage,
    Remove,
    Removed,
    Status,
)
from isthmus.cooperation.skipgraph.tables import Neighbor, NodeTable, Side, VirtualNode, linked
from isthmus.cooperation.skipgraph.vectors import vector_of
from isthmus.errors import RemoteProtocolError

__all__ = ["ListActions", "Lists"]

MAX_ENTERING: Final = 32
"""Keys of a node that join level 0 at once; those after them begin near those that are there."""
MAX_ASKED: Final = 10_000
"""How many are asked for one place, at most; then somebody sends this node round."""


MAX_LOOKS: Final = 6


class ListActions(Protocol):
    """What is to be done; none of it calls back."""

    def send(self, node: str, message: ListMessage) -> None: ...

    def refuse(self, node: str, error: RemoteProtocolError) -> None:
        """What that node says, perhaps this one for want of better knowledge, makes no sense."""
        ...

    def status_of(self, key: Key) -> Status | None:
        """Of a key of publishers of this node: what is piggy-backed (thesis §3.2.1)."""
        ...

    def entered(self, virtual: VirtualNode, status: Status | None) -> None:
        """It is in level 0; the key to its left said this."""
        ...

    def joined(self, key: Key, status: Status | None) -> None:
        """Its neighbors in level 0 both know it; the one to its right said this."""
        ...

    def left_changed(self, virtual: VirtualNode, status: Status | None) -> None:
        """Somebody else is to the left of it in level 0; who has left from there said this."""
        ...

    def leaves(self, key: Key) -> None:
        """It is about to leave level 0: what happens beside it is not its affair any more."""
        ...

    def left(self, key: Key) -> None:
        """It is in no list any more; it may join again."""
        ...

    def gone(self, key: Key) -> None:
        """It is not to be in any."""
        ...

    def table_changed(self, topic: str) -> None:
        """The table of a key of that topic has."""
        ...


class _Doing(Enum):
    NOTHING = "nothing"
    JOINS = "joins the next list"
    LEAVES = "leaves its last list"


class _Seat:
    """A key of this node."""

    __slots__ = ("asked", "doing", "key", "level", "levels", "looks", "wanted")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.wanted = True
        self.levels = 0
        """In how many lists it is, from level 0 on."""
        self.doing = _Doing.NOTHING
        self.level = 0
        """In which it does that."""
        self.asked = 0
        self.looks = 0
        """How often it was looked since somebody was asked for its place."""

    @property
    def is_usable(self) -> bool:
        """Whether it is in level 0 for good, so that nothing passes it by."""
        return self.levels > 0 and (self.doing is _Doing.NOTHING or self.level > 0)


class Lists:
    """One node's part of them."""

    def __init__(self, here: str, nodes: Collection[str], base: int, actions: ListActions) -> None:
        self._here = here
        self._do = actions
        vectors = {name: vector_of(name, base) for name in nodes}
        mine = vectors[here]
        self._common = {
            name: mine.common_digits(vector) for name, vector in vectors.items() if name != here
        }
        self._height = max(self._common.values(), default=0)
        first = {name: (vector, [default_key(name)]) for name, vector in vectors.items()}
        self.table: NodeTable = linked(first)[here]
        self._default = default_key(here)
        self._in_level = [[self._default] for _ in range(self._height + 1)]
        """This node's keys in the list of each level, in order."""
        self._seats: dict[Key, _Seat] = {}
        self._locked: dict[tuple[Key, int], list[tuple[str, Insert | Remove]]] = {}
        """Entries to the right that wait for their other end, and who waits for them."""
        self._unanswered: dict[tuple[Key, int], int] = {}
        """Of those, which wait for an answer that is given at once; and after how many others."""
        self._asked_for = self._looked = 0
        """How many such answers were waited for, now and when `look` was called."""
        self._leaving: dict[tuple[Key, int], Neighbor] = {}
        """Of those, which wait because a key is taken out: that one."""
        self._entering = 0
        """How many join level 0."""
        self._later: dict[Key, None] = {}
        """Keys that will when others have."""
        self._queue: deque[tuple[str, ListMessage]] = deque()
        self._busy = False

    # ---- what others see -----------------------------------------------------------------

    @property
    def height(self) -> int:
        """The highest level in which this node is not alone."""
        return self._height

    @property
    def keys(self) -> Iterator[Key]:
        """All that are wanted, in lists or not yet, but for the default key."""
        return (key for key, seat in self._seats.items() if seat.wanted)

    @property
    def at_rest(self) -> bool:
        """Whether all keys are in all their lists."""
        done = all(
            seat.wanted and seat.levels > self._height and seat.doing is _Doing.NOTHING
            for seat in self._seats.values()
        )
        return done and not self._locked and not self._queue

    def __contains__(self, key: Key) -> bool:
        """Whether it is wanted, in lists or not yet."""
        seat = self._seats.get(key)
        return seat is not None and seat.wanted

    def is_usable(self, key: Key) -> bool:
        seat = self._seats.get(key)
        return seat is not None and seat.is_usable

    def look(self) -> bool:
        """Whether somebody is mute: has owed an answer since this was asked last.

        Who is asked for a place may have to wait for others itself, so it has `MAX_LOOKS` times as
        long for that.  A key that leaves, and is not let go, harms nobody but those that wait for a
        place beside it, who find that out.
        """
        mute = any(number <= self._looked for number in self._unanswered.values())
        self._looked = self._asked_for
        for seat in self._seats.values():
            if seat.doing is _Doing.JOINS:
                seat.looks += 1
                mute = mute or seat.looks > MAX_LOOKS
        return mute

    # ---- events --------------------------------------------------------------------------

    def add(self, key: Key) -> None:
        """It joins, and again if it is leaving."""
        seat = self._seats.setdefault(key, _Seat(key))
        seat.wanted = True
        self._go_on(seat)
        self._work()

    def remove(self, key: Key) -> None:
        seat = self._seats.get(key)
        if seat is not None:
            seat.wanted = False
            self._go_on(seat)
            self._work()

    def arrived(self, sender: str, message: ListMessage) -> None:
        """Raises `RemoteProtocolError` for what nobody honest says; its link is to be closed.

        If that comes out only later, when it is its turn, `ListActions.refuse` is called.
        """
        if self._common.get(sender, -1) < message.level:
            raise RemoteProtocolError(f"{sender} speaks of a list that it is not in")
        self._queue.append((sender, message))
        self._work()

    def _work(self) -> None:
        """Also what virtual nodes of this node say to each other."""
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                sender, message = self._queue.popleft()
                try:
                    self._handle(sender, message)
                except RemoteProtocolError as error:
                    self._do.refuse(sender, error)
        finally:
            self._busy = False

    def _handle(self, sender: str, message: ListMessage) -> None:
        match message:
            case Insert() | Remove():
                self._asked(sender, message)
            case Go():
                self._sent_on(message)
            case Inserted():
                self._inserted(sender, message)
            case Linked(level, of, to):
                if self._right(to, level) != Neighbor(of, sender):
                    raise RemoteProtocolError(f"{sender} is not beside the key that it speaks of")
                self._unlock(to, level)
            case Left():
                self._new_left(sender, message)
            case LeftOk():
                self._left_knows(sender, message)
            case Removed():
                self._removed(message)

    def _send(self, node: str, message: ListMessage) -> None:
        if node == self._here:
            self._queue.append((node, message))
        else:
            self._do.send(node, message)

    def _set(self, key: Key, side: Side, level: int, neighbor: Neighbor | None) -> None:
        self.table[key].set(side, level, neighbor)
        self._do.table_changed(key.topic)

    def _right(self, key: Key, level: int) -> Neighbor | None:
        row = self.table[key].right if self._levels(key) else []
        return row[level] if level < len(row) else None

    def _levels(self, key: Key) -> int:
        if key == self._default:
            return self._height + 1
        seat = self._seats.get(key)
        return seat.levels if seat is not None else 0

    # ---- keys of this node ---------------------------------------------------------------

    def _go_on(self, seat: _Seat) -> None:
        """With the next list, if there is one."""
        if seat.doing is not _Doing.NOTHING:
            return
        if seat.wanted and seat.levels <= self._height:
            if not seat.levels:
                if self._entering >= MAX_ENTERING:
                    self._later[seat.key] = None
                    return
                self._entering += 1
            seat.doing, seat.level, seat.asked, seat.looks = _Doing.JOINS, seat.levels, 0, 0
            self._send(self._here, self._request(seat))
        elif not seat.wanted and seat.levels:
            level = seat.levels - 1
            if (seat.key, level) in self._locked:
                return  # when it is not any more
            self._locked[seat.key, level] = []
            seat.doing, seat.level, seat.asked = _Doing.LEAVES, level, 0
            if level == 0:
                self._do.leaves(seat.key)
            left = self.table[seat.key].left[level]
            assert left is not None
            self._send(left.node, self._request(seat))
        elif not seat.wanted:
            self._later.pop(seat.key, None)
            del self._seats[seat.key]
            self._do.gone(seat.key)

    def _sent_on(self, go: Go) -> None:
        seat = self._expecting(go.to, go.level)
        seat.asked += 1
        seat.looks = 0
        leads = self._is_in(go.nearer, go.level) and go.nearer.key < go.to
        if not leads or seat.asked > MAX_ASKED:
            raise RemoteProtocolError(f"a way to the place of {go.to.topic!r} that leads nowhere")
        self._send(go.nearer.node, self._request(seat))

    def _request(self, seat: _Seat) -> Insert | Remove:
        key, level = seat.key, seat.level
        if seat.doing is _Doing.JOINS:
            return Insert(level, key)
        status = self._do.status_of(key) if level == 0 else None
        return Remove(level, key, self._right(key, level), status)

    def _inserted(self, sender: str, said: Inserted) -> None:
        seat, level, key = self._expecting(said.to, said.level), said.level, said.to
        right = said.right
        if seat.doing is not _Doing.JOINS or seat.levels != level or not said.of < key:
            raise RemoteProtocolError(f"{sender} puts a key into a list that did not ask for it")
        if right is not None and (not self._is_in(right, level) or not key < right.key):
            raise RemoteProtocolError(f"{sender} puts a key to the left of one that is none")
        if level == 0:
            self.table.add(key)
        seat.levels += 1
        insort(self._in_level[level], key)
        self._set(key, Side.LEFT, level, Neighbor(said.of, sender))
        self._set(key, Side.RIGHT, level, right)
        if level == 0:
            self._do.entered(self.table[key], said.status)
        self._send(sender, Linked(level, key, said.of))
        if right is None:
            self._joined(seat, None)
            self._go_on(seat)
        else:
            self._lock(key, level)
            self._send(right.node, Left(level, key, right.key, None))

    def _joined(self, seat: _Seat, status: Status | None) -> None:
        seat.doing = _Doing.NOTHING
        if seat.level == 0:
            self._do.joined(seat.key, status)
            self._entering -= 1
            while self._later and self._entering < MAX_ENTERING:
                following = next(iter(self._later))
                del self._later[following]
                self._go_on(self._seats[following])

    def _removed(self, said: Removed) -> None:
        seat, level, key = self._expecting(said.to, said.level), said.level, said.to
        if seat.doing is not _Doing.LEAVES:
            raise RemoteProtocolError("a key is taken out of a list that did not ask for it")
        for side in Side:
            self._set(key, side, level, None)
        seat.levels -= 1
        keys = self._in_level[level]
        del keys[bisect_left(keys, key)]
        seat.doing = _Doing.NOTHING
        if level == 0:
            self.table.remove(key)
            self._do.left(key)
        self._unlock(key, level)

    def _expecting(self, key: Key, level: int) -> _Seat:
        seat = self._seats.get(key)
        if seat is None or seat.doing is _Doing.NOTHING or seat.level != level:
            raise RemoteProtocolError(f"an answer about {key.topic!r} that nobody asked for")
        return seat

    def _is_in(self, neighbor: Neighbor, level: int) -> bool:
        return neighbor.node == self._here or self._common.get(neighbor.node, -1) >= level

    # ---- places to the right of keys of this node ----------------------------------------

    def _asked(self, sender: str, request: Insert | Remove) -> None:
        """Somebody, perhaps this node itself, asks to put its key in, or take it out."""
        level, key = request.level, request.of
        own = self._nearest(key, level)
        row = self.table[own].right
        for neighbor in reversed(row[level + 1 :]):
            if neighbor is not None and neighbor.key < key:
                self._send(sender, Go(level, key, neighbor))
                return
        if (own, level) in self._locked:  # who is to the right may not know it yet
            self._locked[own, level].append((sender, request))
            return
        right = row[level] if level < len(row) else None
        if right is not None and right.key < key:
            self._send(sender, Go(level, key, right))
            return
        is_there = right == Neighbor(key, sender)
        if is_there != isinstance(request, Remove):
            raise RemoteProtocolError(f"{sender} puts in or takes out {key.topic!r} twice")
        self._lock(own, level)
        if isinstance(request, Insert):
            self._set(own, Side.RIGHT, level, Neighbor(key, sender))
            self._send(sender, Inserted(level, own, key, right, self._status(own, key, level)))
            return
        beyond = request.right
        if beyond is not None and (not self._is_in(beyond, level) or not key < beyond.key):
            raise RemoteProtocolError(f"{sender} says that its right neighbor is to its left")
        self._set(own, Side.RIGHT, level, beyond)
        if beyond is None:
            self._send(sender, Removed(level, key))
            self._unlock(own, level)
        else:
            self._leaving[own, level] = Neighbor(key, sender)
            same = (beyond.key.topic, beyond.key.kind) == (key.topic, key.kind)
            status = request.status if same else None
            self._send(beyond.node, Left(level, own, beyond.key, status))

    def _nearest(self, key: Key, level: int) -> Key:
        """Of this node's keys in a list the one nearest to the left of `key`."""
        keys = self._in_level[level]
        number = bisect_left(keys, key)
        if not number:
            raise RemoteProtocolError(f"{key.topic!r} belongs to the left of the default key")
        return keys[number - 1]

    def _new_left(self, sender: str, said: Left) -> None:
        level, key = said.level, said.to
        if self._levels(key) <= level or not said.of < key:
            raise RemoteProtocolError(f"{sender} says it is beside a key that is not there")
        self._set(key, Side.LEFT, level, Neighbor(said.of, sender))
        if level == 0:
            self._do.left_changed(self.table[key], said.status)
        self._send(sender, LeftOk(level, key, said.of, self._status(key, said.of, level)))

    def _status(self, key: Key, other: Key, level: int) -> Status | None:
        """What is piggy-backed if both are publishers of one topic."""
        same = level == 0 and (key.topic, key.kind) == (other.topic, other.kind)
        return self._do.status_of(key) if same else None

    def _left_knows(self, sender: str, said: LeftOk) -> None:
        level, key = said.level, said.to
        if self._right(key, level) != Neighbor(said.of, sender):
            raise RemoteProtocolError(f"{sender} is not beside the key that it speaks of")
        leaver = self._leaving.pop((key, level), None)
        if leaver is not None:
            self._send(leaver.node, Removed(level, leaver.key))
        else:
            self._joined(self._expecting(key, level), said.status)
        self._unlock(key, level)

    def _lock(self, key: Key, level: int) -> None:
        """Until somebody has answered, which it does at once."""
        self._locked[key, level] = []
        self._asked_for += 1
        self._unanswered[key, level] = self._asked_for

    def _unlock(self, key: Key, level: int) -> None:
        """Who waited is answered: those beyond the next key are sent there, of others the first.

        The first locks the entry anew, so others would only come back to wait.
        """
        waiting = self._locked.pop((key, level), None)
        if waiting is None:
            raise RemoteProtocolError(f"news of {key.topic!r} that nobody waits for")
        self._unanswered.pop((key, level), None)
        seat = self._seats.get(key)
        if seat is not None:
            self._go_on(seat)
        if self._levels(key) <= level:  # it has left
            self._queue.extend(waiting)
            return
        right = self._right(key, level)
        stay: list[tuple[str, Insert | Remove]] = []
        for sender, request in waiting:
            if right is not None and right.key < request.of:
                self._send(sender, Go(level, request.of, right))
            else:
                stay.append((sender, request))
        while stay and (key, level) not in self._locked:
            self._asked(*stay.pop(0))
        if stay:
            self._locked[key, level] += stay
