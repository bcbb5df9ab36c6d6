"""Publishers fall silent when nobody subscribes, and begin again when somebody does (§3.2.1).

Of each topic that this node publishes on, and has a key of a publisher for, it knows the *status*:
whether publishers are resumed or suspended, and a version that grows with each change.

- The leftmost publisher, which stands beside the subscribers, is the **rendezvous point**.  It sees
  in its own table whether there is a subscriber (`rendezvous`).  When that changes it has all other
  publishers hear a **signal** of suspension or resumption (Fig. 3.4, 3.5), by a range search over
  the publishers to the right of it.  With SFB it goes to the right only, so the part of the range
  beside each key is dealt with by who owns that entry of the list (`lists`): a publisher that joins
  meanwhile gets the signal, or its neighbor has had it before.
- A publisher that **joins** is told the status by the publisher to its left, with the message that
  puts it into the list; if there is none it is the rendezvous point itself, and sees (Fig. 3.6).
  The one to its right, if any, tells the version.  Who becomes the rendezvous point because the
  one before leaves is told what that one knew, and goes on from there.
- Signals can overtake each other: of two the higher version holds.  So nobody may know a higher one
  than the rendezvous point: one that hears of something that is not so says what is, with a version
  still higher, and who finds that its right neighbor knows a higher one reports it.  Who joins or
  leaves says nothing meanwhile: it looks, or who follows it does, when that is done.

The two **inconsistencies** of the thesis, by signals that are lost with a node: here that ends the
epoch (`standing`), and nobody is suspended then.  They are eliminated all the same, should anybody
have a wrong status for whatever reason:

1. who publishes though nobody subscribes: its message comes to a publisher that is suspended, which
   sends it the signal (`is_silent`);
2. who is suspended though somebody subscribes: who is suspended asks the publisher to its left now
   and then (`confirm`); if that knows something else it reports towards the rendezvous point, which
   sends the signal anew.

Not in the thesis: a subscriber can **ask whether all publishers are resumed** (`ask_all`), which it
has to know before it gives another place up for this one.  The question goes from it to the right,
from each publisher to the next, with what the one before knows; so none stands in the list that it
does not come to, and one that joins behind it hears what its left neighbor knows.  Whoever cannot
vouch for itself, being suspended or about to join or leave, lets the question drop: it is asked
again.  The last one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from isthmus.cooperation.skipgraph.forwarding import split_forward_broadcasting
from isthmus.cooperation.skipgraph.keys import Key, KeyRange, Kind, key_of, subscribers_of
from isthmus.cooperation.skipgraph.messages import (
    AllResumed,
    AreResumed,
    Confirm,
    Report,
    Signal,
    Status,
    StatusMessage,
)
from isthmus.cooperation.skipgraph.rendezvous import has_subscribers, is_rendezvous_point
from isthmus.cooperation.skipgraph.tables import Neighbor, NodeTable, Side, VirtualNode
from isthmus.errors import RemoteProtocolError

__all__ = ["Suspension"]

MAX_VERSION: Final = 2**61
"""Beyond that somebody lies."""


class Suspension:
    """The statuses of one node, in one epoch."""

    def __init__(
        self,
        table: NodeTable,
        send: Callable[[str, StatusMessage], None],
        changed: Callable[[str], None],
        all_resumed: Callable[[Key, int], None],
    ) -> None:
        """`changed` is told of a topic that is suspended or resumed, `all_resumed` of the answer to
        a question: who asked, and its number."""
        self._table = table
        self._send = send
        self._changed = changed
        self._all_resumed = all_resumed
        self._statuses: dict[Key, Status] = {}
        self._passive: set[Key] = set()
        """Keys that are about to join, or to leave."""

    def status_of(self, key: Key) -> Status | None:
        return self._statuses.get(key)

    def is_resumed(self, key: Key) -> bool:
        """Not if nothing is known yet."""
        status = self._statuses.get(key)
        return status is not None and status.resumed

    @property
    def suspended(self) -> Iterator[Key]:
        return (key for key, status in self._statuses.items() if not status.resumed)

    def is_silent(self, key: Key, source: str) -> None:
        """Inconsistency 1: a message came from `source` to a key that is suspended."""
        status = self._statuses.get(key)
        theirs = key_of(key.topic, Kind.PUBLISHER, source)
        if status is not None and not status.resumed and key < theirs:
            self._send(source, Signal(theirs, status, source))

    def confirm(self) -> int:
        """Inconsistency 2: ask the neighbors of keys that are suspended; of how many."""
        asked = 0
        for key in list(self.suspended):
            virtual = self._table[key]
            if not is_rendezvous_point(virtual):
                left = virtual.left[0]
                assert left is not None
                if left.node != self._table.node:
                    asked += 1
                    self._send(left.node, Confirm(key, left.key, self._statuses[key]))
        return asked

    def ask_all(self, subscriber: Key, number: int) -> None:
        """Are all publishers of its topic resumed, now that it is in the list?"""
        self._ask_on(subscriber, None, self._table.node, number)

    def _ask_on(self, key: Key, said: Status | None, asker: str, number: int) -> None:
        """The question has come to one of this node's keys."""
        while key in self._table:
            virtual = self._table[key]
            following: Neighbor | None = None
            if key.kind is Kind.PUBLISHER:
                if not self._vouches(virtual, said):
                    return
                said = self._statuses[key]
            else:
                following = virtual.delegate(subscribers_of(key.topic), Side.RIGHT)
            if following is None and virtual.right:
                following = virtual.right[0]
            if following is None or following.key.topic != key.topic:
                to = key_of(key.topic, Kind.SUBSCRIBER, asker)
                self._answer(asker, AllResumed(to, number))
                return
            if following.node != self._table.node:
                self._send(following.node, AreResumed(following.key, said, asker, number))
                return
            key = following.key

    def _vouches(self, virtual: VirtualNode, said: Status | None) -> bool:
        """Whether a publisher is resumed, and whoever joins beside it will hear that."""
        mine = self._statuses.get(virtual.key)
        if mine is None or virtual.key in self._passive:
            return False
        is_first = is_rendezvous_point(virtual)
        if said is None and not is_first:
            return False  # somebody has come in between
        self._heard(virtual, mine if said is None else said)
        mine = self._statuses[virtual.key]
        if not mine.resumed and said is not None:
            self._report(virtual, max(mine, said))
        return mine.resumed

    def _answer(self, asker: str, answer: AllResumed) -> None:
        if asker == self._table.node:
            self._all_resumed(answer.to, answer.number)
        else:
            self._send(asker, answer)

    # ---- what the lists tell -------------------------------------------------------------

    def entered(self, virtual: VirtualNode, status: Status | None) -> None:
        """A publisher is in the list; the publisher to its left, if any, said this."""
        self._passive.add(virtual.key)
        if is_rendezvous_point(virtual):
            self._statuses[virtual.key] = Status(0, has_subscribers(virtual))
        elif status is None:
            raise RemoteProtocolError("a publisher that knows no status")
        else:
            self._statuses[virtual.key] = status

    def joined(self, key: Key, status: Status | None) -> None:
        """Its right neighbor, if that is a publisher of the topic, said this."""
        self._passive.discard(key)
        virtual, mine = self._table[key], self._statuses[key]
        if is_rendezvous_point(virtual):
            self._heard(virtual, mine)
        if status is None:
            return
        news = status.version > mine.version or status.resumed != mine.resumed
        self._heard(virtual, status)
        if news and not is_rendezvous_point(virtual):
            self._report(virtual, status)

    def left_changed(self, virtual: VirtualNode, status: Status | None) -> None:
        """Whoever is the rendezvous point looks whether there are subscribers.

        Another one that has left from there said this.
        """
        key = virtual.key
        if key not in self._statuses:
            return
        if status is not None and status.version > self._statuses[key].version:
            self._set(key, status)
        if is_rendezvous_point(virtual):
            self._heard(virtual, self._statuses[key])

    def leaves(self, key: Key) -> None:
        self._passive.add(key)

    def left(self, key: Key) -> None:
        self._statuses.pop(key, None)
        self._passive.discard(key)

    # ---- what publishers tell each other -------------------------------------------------

    def arrived(self, sender: str, message: StatusMessage) -> None:
        """Raises `RemoteProtocolError` for what nobody honest says."""
        if isinstance(message, AllResumed):
            self._all_resumed(message.to, message.number)
            return
        key, said = message.to, message.status
        if said is not None and said.version > MAX_VERSION:
            raise RemoteProtocolError(f"{sender} says that there were {said.version:,} changes")
        if isinstance(message, AreResumed):
            self._ask_on(key, said, message.asker, message.number)
            return
        assert said is not None
        mine = self._statuses.get(key)
        if mine is None:
            return  # it has left, and who follows it has the signal from somebody else
        virtual = self._table[key]
        match message:
            case Signal(_, _, end):
                self._heard(virtual, said)
                self._pass_on(virtual, said, end)
            case Confirm(of, _, _):
                if said.resumed == mine.resumed or of.topic != key.topic:
                    return
                if mine.version > said.version:
                    self._send(sender, Signal(of, mine, sender))
                self._report(virtual, max(mine, said))
            case Report():
                self._report(virtual, said)

    def _heard(self, virtual: VirtualNode, said: Status) -> None:
        """The rendezvous point knows better than anybody."""
        mine = self._statuses[virtual.key]
        if is_rendezvous_point(virtual) and virtual.key not in self._passive:
            there_are = has_subscribers(virtual)
            version = max(mine.version, said.version)
            if said.resumed != there_are:
                self._say(virtual, Status(version + 1, there_are))
            else:
                self._set(virtual.key, Status(version, there_are))
        elif said.version > mine.version:
            self._set(virtual.key, said)

    def _say(self, virtual: VirtualNode, status: Status) -> None:
        """The signal of suspension or resumption, to all publishers (Fig. 3.4, 3.5)."""
        self._set(virtual.key, status)
        self._pass_on(virtual, status, "")

    def _pass_on(self, virtual: VirtualNode, status: Status, end: str) -> None:
        topic = virtual.key.topic
        high = key_of(topic, Kind.PUBLISHER, end) if end else Key(topic, Kind.END, b"")
        if not virtual.key < high:
            return
        ends = {high: end}
        keys = KeyRange(virtual.key, high, with_high=False)
        for (key, node), part in split_forward_broadcasting(self._table, keys):
            self._send(node, Signal(key, status, ends[part.high]))
            ends[key] = node

    def _report(self, virtual: VirtualNode, said: Status) -> None:
        """To the rendezvous point, along the publishers; each then knows of that version."""
        key = virtual.key
        version, resumed = max(self._statuses[key].version, said.version), self.is_resumed(key)
        self._statuses[key] = Status(version, resumed)
        if not is_rendezvous_point(virtual):
            left: Neighbor | None = virtual.left[0]
            assert left is not None
            if left.node != self._table.node:
                self._send(left.node, Report(key, left.key, said))
        elif key not in self._passive:  # else it looks soon, or who follows it does
            self._say(virtual, Status(version + 1, has_subscribers(virtual)))

    def _set(self, key: Key, status: Status) -> None:
        before = self._statuses[key]
        self._statuses[key] = status
        if before.resumed != status.resumed:
            self._changed(key.topic)
