"""The overlays that a node is in: which there have to be, and when their trees are built.

Topics whose members are the same share an overlay, so signalling grows with the number of distinct
member sets and not with that of topics.  Every node finds out by itself which sets there are: from
the topics that somebody publishes on, and from who wants them.  A set needs a tree if one of its
publishers has two others to send to; with one it sends directly.

A member that misses a tree waits for `merge_s`, in which there may be more news, and longer the
more members come before it in order; then it begins a wave, unless one has come.  If there is still
none after `LATE_S` it begins another, with pauses that double: one of them may not have known of
the overlay when it was asked.  An overlay that no topic has needed, and nobody has spoken of, for
`FORGET_S` is forgotten: each member does so by itself, and what still comes in its tree goes by the
tree over all nodes.

Bounds: `MAX_OVERLAYS`; beyond it no tree is built, and messages are sent directly.  Topics are
looked at in slices, `SLICE` in a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Set
from itertools import islice
from typing import Final

from isthmus.cooperation.api import Port
from isthmus.cooperation.topic_tree.membership import Membership
from isthmus.cooperation.topic_tree.messages import MAX_MEMBERS, OfOverlay
from isthmus.cooperation.topic_tree.overlay import Members, Overlay, OverlayActions, set_of
from isthmus.cooperation.tree.messages import Explore, is_later
from isthmus.errors import RemoteProtocolError

__all__ = ["MAX_OVERLAYS", "Overlays", "members_of"]

MAX_OVERLAYS: Final = 1_024
FORGET_S: Final = 10.0
LATE_S: Final = 5.0
MOST_DOUBLINGS: Final = 4
SLICE: Final = 300
MAX_WAITS: Final = 8
"""How many times `merge_s` a member waits at most before it begins a wave."""

_SLICE: Final = "topics"
_SWEEP: Final = "forget"
_BUILD, _CHOOSE, _LATE = "build", "choose", "late"


def members_of(wanting: Set[str], publishing: Set[str]) -> Members | None:
    """The members of a topic that needs a tree; None if nobody has two others to send to."""
    if len(wanting) < 2 or (len(wanting) == 2 and publishing <= wanting) or not publishing:
        return None
    members = wanting | publishing
    return tuple(sorted(members)) if len(members) <= MAX_MEMBERS else None


class Overlays:
    """All overlays of one node, by member set."""

    def __init__(
        self,
        port: Port,
        membership: Membership,
        actions: OverlayActions,
        *,
        up: Collection[str],
        merge_s: float,
        changed: Callable[[Iterable[str]], None],
    ) -> None:
        """`up` are neighbors whose links are; `changed` is told of topics with another overlay."""
        self._port = port
        self._membership = membership
        self._do = actions
        self._up = up
        self._merge_s = merge_s
        self._changed = changed
        self._by_members: dict[Members, Overlay] = {}
        self._by_number: dict[bytes, Overlay] = {}
        self._members_of: dict[str, Members] = {}
        """Of topics that need a tree, and that this node is a member of."""
        self._topics_of: dict[Members, dict[str, None]] = {}
        self._doubtful: dict[str, None] = {}
        """Topics whose members may have changed."""
        self._nodes: frozenset[str] = frozenset()
        self._sweeping = False
        self._crowded = False
        """An overlay that is needed may be missing, as there were too many."""
        self._highest = 0
        """The highest number of a wave of any overlay that was here.  One that is begun after an
        overlay was forgotten beats all that may still wait for this node's answer."""

    def __iter__(self) -> Iterator[Overlay]:
        return iter(self._by_members.values())

    def of(self, members: Members) -> Overlay | None:
        return self._by_members.get(members)

    def of_topic(self, topic: str) -> Overlay | None:
        members = self._members_of.get(topic)
        return None if members is None else self._by_members.get(members)

    def of_label(self, label: bytes) -> Overlay | None:
        return self._by_number.get(set_of(label))

    def topics_of(self, overlay: Overlay) -> Collection[str]:
        return self._topics_of.get(overlay.members, {})

    def is_label(self, label: bytes) -> bool:
        return bool(set_of(label))

    def roots(self, besides: Overlay) -> int:
        """The paper's R: of how many others this node is the root, or about to be."""
        here = self._port.node_id
        return sum(
            each.building.root == here for each in self if each is not besides and each.needed
        )

    # ---- which there have to be ----------------------------------------------------------

    def nodes_are(self, nodes: frozenset[str]) -> None:
        """Who is in the tree over all nodes: others are members of nothing.

        None, if not all of them are linked with each other: then there are no overlays, since not
        all members would know of each other.
        """
        if nodes != self._nodes:
            self._nodes = nodes
            self.look_at(None)

    def look_at(self, topics: Iterable[str] | None) -> None:
        """The members of these topics may have changed; without, those of all."""
        if topics is None:
            self._doubtful.update(dict.fromkeys(self._membership.topics))
            self._doubtful.update(dict.fromkeys(self._members_of))
        else:
            self._doubtful.update(dict.fromkeys(topics))
        self.work_soon()

    def work_soon(self) -> None:
        """Something may be left of what neighbors have told before."""
        if self._doubtful or self._membership.unfinished:
            self._port.set_timer(0.0, _SLICE)

    def _work(self) -> None:
        self._membership.work(SLICE)
        topics = list(islice(self._doubtful, SLICE))
        changed = [topic for topic in topics if self._judge(topic)]
        for topic in topics:
            del self._doubtful[topic]
        if changed:
            self._changed(changed)
        self.work_soon()

    def _judge(self, topic: str) -> bool:
        """Whether the topic has another overlay now."""
        wanting = self._membership.wanting(topic) or set()
        publishing = self._membership.publishing(topic)
        members = members_of(wanting & self._nodes, publishing & self._nodes)
        if members is not None and self._port.node_id not in members:
            members = None
        before = self._members_of.get(topic)
        if members == before:
            return False
        if before is not None:
            del self._members_of[topic]
            topics = self._topics_of[before]
            del topics[topic]
            if not topics:
                del self._topics_of[before]
                if (overlay := self._by_members.get(before)) is not None:
                    self._unneeded(overlay)
        if members is not None:
            self._members_of[topic] = members
            self._topics_of.setdefault(members, {})[topic] = None
            self._need(members)
        return True

    def _need(self, members: Members) -> None:
        if (needed := self._get(members)) is not None:
            needed.unneeded_s = None
            self._build_soon(needed)

    def _get(self, members: Members) -> Overlay | None:
        overlay = self._by_members.get(members)
        if overlay is None and len(self._by_members) >= MAX_OVERLAYS:
            self._crowded = True
        elif overlay is None:
            overlay = Overlay(self._port.node_id, members, self._up, self._do)
            overlay.building.number = self._highest
            self._by_members[members] = self._by_number[overlay.number] = overlay
            if members not in self._topics_of:
                self._unneeded(overlay)
        return overlay

    def _unneeded(self, overlay: Overlay) -> None:
        overlay.unneeded_s = self._port.now()
        if not self._sweeping:
            self._sweeping = True
            self._port.set_timer(FORGET_S, _SWEEP)

    def _sweep(self) -> None:
        late_s = self._port.now() - FORGET_S
        since = {each: each.unneeded_s for each in self if each.unneeded_s is not None}
        for overlay, unneeded_s in since.items():
            if unneeded_s <= late_s:
                del self._by_members[overlay.members], self._by_number[overlay.number]
                for kind in (_BUILD, _CHOOSE, _LATE):
                    self._port.cancel_timer((kind, overlay.number))
        if self._crowded:
            self._crowded = False
            for members in self._topics_of:
                if members not in self._by_members:
                    self._need(members)
        self._sweeping = any(not each.needed for each in self)
        if self._sweeping:
            self._port.set_timer(FORGET_S, _SWEEP)

    # ---- building ------------------------------------------------------------------------

    def _build_soon(self, overlay: Overlay) -> None:
        if not overlay.needed or overlay.tree is not None:
            return
        late_s = LATE_S * 2 ** min(overlay.late, MOST_DOUBLINGS)
        self._port.set_timer(late_s, (_LATE, overlay.number))
        if not overlay.waits:
            place = overlay.members.index(self._port.node_id)
            delay_s = self._merge_s * (1 + min(place, MAX_WAITS))
            self._port.set_timer(delay_s, (_BUILD, overlay.number))

    def _build(self, overlay: Overlay) -> None:
        if overlay.needed and overlay.tree is None:
            overlay.building.begin()
            self._heard(overlay.building.number)

    def adopted(self, overlay: Overlay) -> None:
        """A wave has come to its end; some member may not have been in it."""
        if overlay.tree is not None:
            overlay.late = 0
        self._build_soon(overlay)
        self._changed(self.topics_of(overlay))

    def arrived(self, neighbor: str, said: OfOverlay) -> None:
        """What another member says; of somebody who is none, or of one too many, nothing."""
        members = said.members
        if self._port.node_id not in members or neighbor not in members:
            raise RemoteProtocolError(f"neighbor {neighbor} speaks of an overlay that is not ours")
        overlay = self._get(members) if isinstance(said.message, Explore) else self.of(members)
        self._heard(said.message.wave.number)
        if overlay is not None and not overlay.needed:
            overlay.unneeded_s = self._port.now()  # others know more, and wait for an answer
        if overlay is not None and not overlay.arrived(neighbor, said.message):
            overlay.building.heard(said.message.wave.number)
            overlay.lost()
            self._build_soon(overlay)
            self._changed(self.topics_of(overlay))

    def _heard(self, number: int) -> None:
        if is_later(number, self._highest):
            self._highest = number

    def link_up(self, name: str) -> None:
        for overlay in self:
            if overlay.link_up(name):
                self._build_soon(overlay)

    def link_down(self, name: str) -> None:
        for overlay in self:
            if overlay.link_down(name):
                self._build_soon(overlay)

    def timer(self, key: Hashable) -> bool:
        """Whether it was one of these."""
        if key == _SLICE:
            self._work()
        elif key == _SWEEP:
            self._sweep()
        elif isinstance(key, tuple) and key[0] in (_BUILD, _CHOOSE, _LATE):
            overlay = self._by_number.get(key[1])
            if overlay is None:
                return True
            if key[0] == _CHOOSE:
                overlay.building.collected()
                self._build_soon(overlay)
            elif key[0] == _LATE:
                overlay.late += 1
                self._build(overlay)
                self._build_soon(overlay)
            elif not overlay.waits:
                self._build(overlay)
        else:
            return False
        return True
