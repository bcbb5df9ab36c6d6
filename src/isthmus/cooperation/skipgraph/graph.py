"""One node's part of the Skip Graph while an epoch lasts: its lists, its statuses, and ways.

A *way* is where a message goes next: nodes, each with the label that says which range of keys it is
to see to, after the name of the epoch.  How ranges fall apart is `forwarding`'s.

When the table of a key changes, the ways of its group may: `take_changed` says which, and
`generation` tells what was sent before from what is sent after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from isthmus.cooperation.skipgraph.forwarding import STRATEGIES, along, approach
from isthmus.cooperation.skipgraph.forwarding import Hop as RangeHop
from isthmus.cooperation.skipgraph.groups import Groups, groups_of
from isthmus.cooperation.skipgraph.keys import (
    Key,
    KeyRange,
    Kind,
    key_of,
    label_of,
    range_from,
    subscribers_of,
)
from isthmus.cooperation.skipgraph.lists import Lists
from isthmus.cooperation.skipgraph.messages import (
    EPOCH_BYTES,
    AllResumed,
    AreResumed,
    Confirm,
    InEpoch,
    ListMessage,
    Report,
    Signal,
    Status,
    StatusMessage,
)
from isthmus.cooperation.skipgraph.options import SkipGraphOptions
from isthmus.cooperation.skipgraph.suspension import Suspension
from isthmus.cooperation.skipgraph.tables import Side, VirtualNode
from isthmus.errors import RemoteProtocolError

__all__ = ["Graph", "Ways"]

MAX_REMEMBERED: Final = 4_096
FIRST_AGAIN: Final = 4
"""At the how many-th look it is asked again whether all publishers are resumed; then at twice that,
and so on."""
MOST_LOOKS: Final = 240
"""A key goes after so many looks at the latest, though nobody has answered that."""


class Ways(NamedTuple):
    """Of a range that came with a message."""

    hops: tuple[tuple[str, bytes], ...]
    suspended: str
    """The group, if it leads nowhere since nobody subscribes."""
    is_member: bool = True
    """Whether this node has a key in the group."""
    only_passes: bool = False
    """Whether that is not in the range: if this node's clients want it they get it with another
    one, with which older messages may still be on their way."""


@dataclass(slots=True)
class _Asked:
    """Whether all publishers are resumed."""

    number: int
    looks: int = 0


class Graph:
    """Of one node, in one epoch."""

    def __init__(
        self,
        here: str,
        nodes: Collection[str],
        options: SkipGraphOptions,
        epoch: bytes,
        *,
        send: Callable[[str, InEpoch], None],
        refuse: Callable[[str, RemoteProtocolError], None],
    ) -> None:
        self._here = here
        self.epoch = epoch
        self._strategy = STRATEGIES[options.forwarding]
        self._send = send
        self._refuse = refuse
        self.lists = Lists(here, nodes, options.base, self)
        self.suspension = Suspension(
            self.lists.table, self._say_status, self._is_suspended, self._all_resumed
        )
        self._unusable: set[Key] = set()
        """Keys that are to be in the lists, and are not for good."""
        self._initial: set[Key] | None = None
        """Of those that were to be at the beginning, who are not."""
        self._swaps: dict[Key, float] = {}
        """Keys that are not to be there any more, once others have taken their place; and when they
        go: never, while those are not in the lists, or have not heard that publishers are resumed.
        """
        self._unconfirmed: dict[Key, _Asked] = {}
        """Of those that take a place, subscribers of whose publishers that is not known."""
        self._asked = 0
        self.late_topics: set[str] = set()
        """Whose messages go by the tree until their keys are in the lists: that were published on
        before the epoch was settled, or have waited for too long."""
        self.suspension_changed = False
        self._routed: set[str] = set()
        """Groups whose tables a way was found by that is still in use."""
        self._awaiting: dict[str, set[str]] = {}
        """Topics that have no way, by the group whose key is missing."""
        self._changed: set[str] = set()
        self._generations: dict[str, int] = {}
        self._generation = self._oldest = 0
        self._ways: dict[tuple[bytes, str], Ways] = {}

    # ---- which keys ----------------------------------------------------------------------

    @property
    def has_joined(self) -> bool:
        """Whether all that was wanted at the beginning is in the lists."""
        return self._initial is not None and not self._initial

    def want(self, wanted: Set[Key], unwanted: Set[Key]) -> bool:
        """These are to be in the lists, those not; whether some stay until `retire`."""
        if self._initial is None:
            self._initial = set(wanted)
        fresh = {
            key for key in wanted if key.kind is Kind.SUBSCRIBER and not self.lists.is_usable(key)
        }
        for key in sorted(wanted, key=lambda each: each.place):  # side by side they would queue
            self._swaps.pop(key, None)
            self.lists.add(key)
            if not self.lists.is_usable(key):
                self._unusable.add(key)
        leaving = sorted(each for each in unwanted if each in self.lists)
        groups = Groups(key.topic for key in self._unusable - unwanted if leaving)
        subscribers = Groups(key.topic for key in fresh if leaving)  # there may be publishers
        for key in leaving:
            replaced = key.kind is Kind.SUBSCRIBER and subscribers.overlaps(key.topic)
            if replaced or groups.overlaps(key.topic):
                self._swaps.setdefault(key, inf)
            else:
                self._swaps.pop(key, None)
                self.lists.remove(key)
        # Who holds another one's place is waited for like that one, or neither would be there.
        self._unusable -= unwanted - self._swaps.keys()
        self._initial &= self._unusable
        self._confirm_those(wanted, unwanted)
        return bool(self._swaps)

    def _confirm_those(self, wanted: Set[Key], unwanted: Set[Key]) -> None:
        """Subscribers' keys that take the place of such ones: are all publishers resumed?"""
        for key in unwanted:
            self._unconfirmed.pop(key, None)
        if not self._swaps:
            return
        leaving = Groups(key.topic for key in self._swaps if key.kind is Kind.SUBSCRIBER)
        for key in sorted(wanted):
            if key.kind is Kind.SUBSCRIBER and leaving.overlaps(key.topic):
                self._asked += 1
                self._unconfirmed[key] = _Asked(self._asked)
                self._ask(key)

    def _ask(self, key: Key) -> None:
        if self.lists.is_usable(key):
            self.suspension.ask_all(key, self._unconfirmed[key].number)

    def _all_resumed(self, key: Key, number: int) -> None:
        asked = self._unconfirmed.get(key)
        if asked is not None and asked.number == number:
            del self._unconfirmed[key]

    def retire(self, now_s: float, swap_s: float) -> bool:
        """Remove keys whose place was found taken `swap_s` ago; whether some are left.

        Taken it is when those that take it are in the lists, and all their publishers have answered
        that they are resumed, however long that took: who sends by the old place alone is then
        nobody any more.
        """
        self._look_at_unconfirmed()
        unusable = Groups(key.topic for key in self._unusable)
        unconfirmed = Groups(key.topic for key in self._unconfirmed)
        for key, at_s in self._swaps.items():
            waits = key.kind is Kind.SUBSCRIBER and unconfirmed.overlaps(key.topic)
            if waits or unusable.overlaps(key.topic):
                self._swaps[key] = inf
            elif at_s == inf:
                self._swaps[key] = now_s + swap_s
        for key in sorted(key for key, at_s in self._swaps.items() if at_s <= now_s):
            del self._swaps[key]
            self.lists.remove(key)
        return bool(self._swaps)

    def _look_at_unconfirmed(self) -> None:
        """Ask again, less and less often; and not for ever, since somebody may be mute."""
        for key, asked in list(self._unconfirmed.items()):
            if not self.lists.is_usable(key):
                continue
            asked.looks += 1
            if asked.looks >= MOST_LOOKS or not self._swaps:
                del self._unconfirmed[key]
            elif asked.looks >= FIRST_AGAIN and not asked.looks & (asked.looks - 1):
                self._ask(key)

    # ---- what others say -----------------------------------------------------------------

    def arrived(self, sender: str, message: ListMessage | StatusMessage) -> None:
        try:
            if isinstance(message, Signal | Confirm | Report | AreResumed | AllResumed):
                self.suspension.arrived(sender, message)
            else:
                self.lists.arrived(sender, message)
        except RemoteProtocolError as error:
            self._refuse(sender, error)

    def refuse(self, node: str, error: RemoteProtocolError) -> None:
        self._refuse(node, error)

    def send(self, node: str, message: ListMessage) -> None:
        self._send(node, InEpoch(self.epoch, message))

    def _say_status(self, node: str, message: StatusMessage) -> None:
        self._send(node, InEpoch(self.epoch, message))

    def is_silent(self, group: str, source: str) -> None:
        """A message came from there although publishers are suspended."""
        self.suspension.is_silent(key_of(group, Kind.PUBLISHER, self._here), source)

    def confirm(self) -> int:
        return self.suspension.confirm()

    # ---- what the lists tell -------------------------------------------------------------

    def status_of(self, key: Key) -> Status | None:
        return self.suspension.status_of(key)

    def entered(self, virtual: VirtualNode, status: Status | None) -> None:
        if virtual.key.kind is Kind.PUBLISHER:
            self.suspension.entered(virtual, status)

    def joined(self, key: Key, status: Status | None) -> None:
        if key.kind is Kind.PUBLISHER:
            self.suspension.joined(key, status)
            self.suspension_changed = True
        if self._initial:
            self._initial.discard(key)
        self._unusable.discard(key)
        if key in self._unconfirmed:
            self._ask(key)
        self.table_changed(key.topic)
        self._changed |= self._awaiting.pop(key.topic, set())

    def left_changed(self, virtual: VirtualNode, status: Status | None) -> None:
        self.suspension.left_changed(virtual, status)

    def leaves(self, key: Key) -> None:
        self.suspension.leaves(key)

    def left(self, key: Key) -> None:
        self.suspension.left(key)

    def gone(self, key: Key) -> None:
        self.table_changed(key.topic)
        self._awaiting.pop(key.topic, None)
        del self._generations[key.topic]
        self._oldest = self._generation

    def _is_suspended(self, group: str) -> None:
        self.suspension_changed = True
        self.table_changed(group)

    def table_changed(self, topic: str) -> None:
        if topic:
            self._generation += 1
            self._generations[topic] = self._generation
            self._ways.clear()
            if topic in self._routed:
                self._routed.discard(topic)
                self._changed.add(topic)

    def take_changed(self) -> set[str]:
        """Groups, and topics, whose ways may have changed since it was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    # ---- ways ----------------------------------------------------------------------------

    def generation(self, topic: str) -> bytes:
        """Another one whenever the ways of a topic may be others."""
        latest = max(self._generations.get(group, self._oldest) for group in groups_of(topic))
        return latest.to_bytes(6)

    def ways(self, topic: str) -> tuple[tuple[str, bytes], ...] | None:
        """Where a client's message goes; None if this node has not got all its keys for that."""
        hops: list[RangeHop] = []
        for group in groups_of(topic):
            subscriber, publisher = self._own(group)
            if self.lists.is_usable(subscriber):
                hops += self._strategy(self.lists.table, subscribers_of(group))
            elif self.lists.is_usable(publisher):
                if self.suspension.is_resumed(publisher):
                    hops += self._approach(subscribers_of(group))
            else:
                self._awaiting.setdefault(group, set()).add(topic)
                return None
            self._routed.add(group)
        return self._labeled(hops, topic)

    def _own(self, group: str) -> tuple[Key, Key]:
        """The keys that this node has there as a subscriber and as a publisher, if it has."""
        here = self._here
        return key_of(group, Kind.SUBSCRIBER, here), key_of(group, Kind.PUBLISHER, here)

    def _approach(self, keys: KeyRange) -> list[RangeHop]:
        """From this node's key of a publisher; a subscriber beside it may be its own."""
        table = self.lists.table
        inside = {virtual.key for virtual in table.inside(keys)}
        beside = table.nearest(keys, Side.RIGHT)
        if beside is None or not inside:
            return approach(table, keys)
        for neighbor in reversed(beside.left):
            if neighbor is not None and not keys.is_above(neighbor.key):
                own = neighbor.key in inside
                return self._strategy(table, keys) if own else [RangeHop(neighbor, keys)]
        return []

    def is_of_epoch(self, label: bytes) -> bool:
        """Whether it says where a message goes in this graph."""
        return len(label) > EPOCH_BYTES and label.startswith(self.epoch)

    def ways_of_label(self, label: bytes, topic: str) -> Ways:
        """Where a range of this epoch goes on that came here.

        Nowhere if this node is none of the group's any more: before it was out of the lists, all
        that had it in their tables have sent again what was not acknowledged (`lists`).
        """
        if (label, topic) not in self._ways:
            if len(self._ways) >= MAX_REMEMBERED:
                self._ways.clear()
            self._ways[label, topic] = self._find_ways(label, topic)
        return self._ways[label, topic]

    def _find_ways(self, label: bytes, topic: str) -> Ways:
        keys = range_from(label[EPOCH_BYTES:], topic)
        table, group = self.lists.table, keys.low.topic
        self._routed.add(group)
        subscriber, publisher = self._own(group)
        inside = subscriber in keys and subscriber in table
        if inside and (self.lists.is_usable(subscriber) or publisher not in table):
            return Ways(self._labeled(self._strategy(table, keys), topic), "")
        if publisher in table:
            hops = self._approach(keys)
            return Ways(self._labeled(hops, topic), group, only_passes=not inside)
        if subscriber in table:
            hops = along(table[subscriber], keys)
            return Ways(self._labeled(hops, topic), "", only_passes=True)
        return Ways((), "", is_member=False)

    def _labeled(self, hops: list[RangeHop], topic: str) -> tuple[tuple[str, bytes], ...]:
        return tuple((hop.neighbor.node, self.epoch + label_of(hop.keys, topic)) for hop in hops)

    # ---- what people see -----------------------------------------------------------------

    def status(self, most: int) -> dict[str, object]:
        statuses = {
            key.topic: "resumed" if status.resumed else "suspended"
            for key in islice(self.lists.keys, most)
            if (status := self.suspension.status_of(key)) is not None
        }
        return {
            "keys": sum(1 for _ in self.lists.keys),
            "levels": self.lists.height + 1,
            "routing_table": len(self.lists.table.others),
            "publishers": dict(sorted(statuses.items())),
        }
