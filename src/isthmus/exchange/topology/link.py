"""One link as the topology guard at one of its ends keeps it.

What state the link is in follows from what the guard concludes of it, and is the table's
(`isthmus.exchange.link.life`), not the guard's.

The openings follow three rules, which keep the two ends in step (see
`isthmus.exchange.topology.guard`):

1. an end adopts the neighbor's opening if that is greater than any it has used itself, and takes a
   number of its own otherwise;
2. an end whose neighbor closed, or opened with a greater number, closes before it opens again;
3. an end that has opened waits for a neighbor that has not yet, or that is still at a smaller
   number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.topology.messages import (
    LEAP,
    MAX_COUNTER,
    QUIET,
    Announcement,
    GuardHello,
    LinkEntry,
    NodeKey,
    Update,
)

__all__ = ["MAX_NODES", "GuardedLink"]

MAX_NODES = 1_024
"""Announcements that one neighbor may vouch for."""
MAX_ENTRIES = 8 * MAX_NODES
"""Links in them, each counted at either end."""


@dataclass(eq=False, slots=True)
class GuardedLink:
    """Conversation and openings of one link, from `link_up` to `link_down`."""

    neighbor: str
    epoch: int
    far_end: NodeKey | None = None
    """Known from the neighbor's hello on."""
    far_epoch: int = 0
    heard: dict[NodeKey, Announcement] = field(default_factory=dict)
    """What the neighbor vouches for; `vouch` and `withdraw` change it."""
    entries: int = 0
    """The links in it, or more: those in what was replaced since they were last counted."""
    told: dict[NodeKey, int] = field(default_factory=dict)
    """What we vouch for towards the neighbor, with sequence numbers."""
    fresh: bool = True
    """Nothing has been told yet."""
    entered: LinkEntry | None = None
    """The link as it was told last."""
    told_round: int = 0
    """When it was told."""
    quiet: bool = False
    """What this end's opening is, is told to the other end alone."""
    opening: int = 0
    told_opening: int = 0
    """If it is quiet."""
    far_opening: int | None = None
    """None until the neighbor's own announcement of this link came over it."""
    ring: tuple[str, ...] = ()
    """Why it was BLOCKED last, as far as that was told."""
    _used: int = 0
    _active: int = 0

    @property
    def birth(self) -> int:
        return max(self.epoch, self.far_epoch)

    @property
    def entry(self) -> LinkEntry | None:
        if self.far_end is None:
            return None
        return LinkEntry(self.far_end, self.birth, QUIET if self.quiet else self.opening)

    @property
    def to_be_told(self) -> bool:
        """Whether the neighbor does not know what is to be agreed with it."""
        if self.far_end is None:
            return False
        if self.quiet and self.opening != self.told_opening:
            return True
        return self.fresh or self.entry != self.entered

    def greet(self, hello: GuardHello) -> bool:
        """The neighbor begins anew.  Returns whether it must be greeted again.

        A second hello of another life or epoch means that only the neighbor noticed an
        interruption: it has not had our hello since.  The openings' numbers go on counting.
        """
        far_end = NodeKey(self.neighbor, hello.incarnation)
        known = self.far_end, self.far_epoch
        self.far_end, self.far_epoch = far_end, hello.epoch
        again = known[0] is not None and known != (far_end, hello.epoch)
        self.heard.clear()
        self.entries = 0
        self.opening, self.told_opening, self.far_opening = 0, 0, None
        self.quiet, self.fresh = False, True
        if again:
            self.told.clear()
        return again

    def vouch(self, *announcements: Announcement) -> None:
        self.heard.update({announcement.node: announcement for announcement in announcements})

    def withdraw(self, key: NodeKey) -> bool:
        return self.heard.pop(key, None) is not None

    def untold(self, known: Iterable[Announcement]) -> list[Announcement]:
        """Of what is `known`, and to be vouched for, what the neighbor does not know or say."""
        told, heard = self.told.get, self.heard.get
        return [
            best
            for best in known
            if (last := told(key := best.node, 0)) != (sequence := best.sequence)
            and (last > sequence or (said := heard(key)) is None or said.sequence < sequence)
        ]

    def unvouched(self, keys: Iterable[NodeKey]) -> list[NodeKey]:
        """Of `keys`, of whom the neighbor was told, which is not so any more."""
        return [key for key in keys if self.told.pop(key, 0)]

    def check_room(self, update: Update) -> int:
        """How many links are in it; `RemoteProtocolError` if the neighbor vouches for too much."""
        nodes, heard = update.nodes, self.heard
        if len(heard) + len(nodes) > MAX_NODES:
            news = {announcement.node for announcement in nodes}
            if len(heard) + len(news - heard.keys()) > MAX_NODES:
                raise RemoteProtocolError(f"{self.neighbor} announces more than {MAX_NODES} nodes")
        entries = sum([len(announcement.links) for announcement in nodes])
        after = self.entries + entries
        if after > MAX_ENTRIES:
            all_of_them = {**heard, **{each.node: each for each in nodes}}
            after = sum([len(announcement.links) for announcement in all_of_them.values()])
            if after > MAX_ENTRIES:
                raise RemoteProtocolError(
                    f"{self.neighbor} announces more than {MAX_ENTRIES} links"
                )
        self.entries = after
        return entries

    def check(self, announcement: Announcement, here: NodeKey) -> None:
        """Raises `RemoteProtocolError` if the neighbor's opening leaves no greater one to use."""
        self._check(self._opening_in(announcement, here) or 0)

    def _check(self, opening: int) -> None:
        if opening > self._used + LEAP:
            raise RemoteProtocolError(f"{self.neighbor} opens a link as number {opening}")

    def hear(self, announcement: Announcement, here: NodeKey) -> bool:
        """The neighbor's own announcement came over this link; whether it says else of it."""
        before, said = self.far_opening, self._opening_in(announcement, here)
        self.far_opening = before or 0 if said == QUIET else said
        return self.far_opening != before

    def hear_opening(self, opening: int) -> bool:
        """The neighbor's opening came by itself, which counts once it has announced the link."""
        self._check(opening)
        before = self.far_opening
        if before is not None:
            self.far_opening = opening
        return self.far_opening != before

    def _opening_in(self, announcement: Announcement, here: NodeKey) -> int | None:
        for entry in announcement.links:
            if entry.far_end == here and entry.birth == self.birth:
                return entry.opening
        return None

    def close_if_due(self, in_forest: bool) -> None:
        if self.opening and (not in_forest or self._overtaken()):
            self.opening = 0

    def _overtaken(self) -> bool:
        far_opening = self.far_opening or 0
        if self.opening == self._active:
            return far_opening != self.opening
        return far_opening > self.opening

    @property
    def may_open(self) -> bool:
        return self.opening == 0 and self.far_opening is not None and self._used < MAX_COUNTER

    def open(self) -> None:
        far_opening = self.far_opening or 0
        self.opening = far_opening if far_opening > self._used else self._used + 1
        self._used = self.opening

    @property
    def active(self) -> bool:
        """Whether both ends have opened it, as concluded last."""
        return self._active > 0

    def interrupted(self) -> bool:
        """Whether what was ACTIVE is no longer so; tells it once."""
        if not self._active or self._active == self._agreed():
            return False
        self._active = 0
        return True

    def joined(self) -> bool:
        """Whether both ends have opened it now; tells it once."""
        if self._active or not self._agreed():
            return False
        self._active = self._agreed()
        return True

    def _agreed(self) -> int:
        return self.opening if self.opening == self.far_opening else 0
