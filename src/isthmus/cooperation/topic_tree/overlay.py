"""The overlay of one set of members, as one of them sees it: a tree over the links between them.

It is built by the waves of `tree` (`isthmus.cooperation.tree.wave`), which here go to members
only.  As there, a tree that is complete never changes, and the next one has another label; the
label has the tree's own and the number of the member set, so that it is nobody else's.

A tree whose link is lost here is of no use any more (`edges_of` has none); others may still send
in it until they have adopted the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final, Protocol

from isthmus.cooperation.topic_tree.messages import OfOverlay
from isthmus.cooperation.tree.messages import (
    LABEL_BYTES,
    Adopt,
    Echo,
    Explore,
    TreeMessage,
    Wave,
)
from isthmus.cooperation.tree.wave import Building, Tree

__all__ = ["OVERLAY_LABEL_BYTES", "Members", "Overlay", "OverlayActions", "set_of"]

Members = tuple[str, ...]
"""In order, each once."""

SET_BYTES: Final = 8
OVERLAY_LABEL_BYTES: Final = LABEL_BYTES + SET_BYTES


def set_of(label: bytes) -> bytes:
    """The number of the member set whose label it is; empty if it is none of an overlay."""
    return label[LABEL_BYTES:] if len(label) == OVERLAY_LABEL_BYTES else b""


class OverlayActions(Protocol):
    """What the overlays of one node share."""

    def send_in(self, neighbor: str, message: OfOverlay) -> None: ...

    def collect_in(self, overlay: Overlay) -> None:
        """Call `Building.collected` in a moment."""
        ...

    def adopted_in(self, overlay: Overlay) -> None: ...

    def cost_us(self, neighbor: str) -> int: ...

    def candidate_in(self, overlay: Overlay, number: int) -> Wave: ...


class Overlay:
    """The actions of a `Building`, and what has come of it."""

    def __init__(
        self, here: str, members: Members, up: Collection[str], actions: OverlayActions
    ) -> None:
        self._here = here
        self.members = members
        self.number = blake2b("\0".join(members).encode(), digest_size=SET_BYTES).digest()
        """Of the member set."""
        self._others = frozenset(members) - {here}
        self._do = actions
        self.building = Building(here, self)
        self.unneeded_s: float | None = None
        """Since when no topic is known that has these members, and nobody speaks of it."""
        self.late = 0
        """How many times it was begun anew because there was no tree in time."""
        self._label = b""
        self._beyond: Mapping[str, Collection[str]] = {}
        self._broken = False
        for name in up:
            self.link_up(name)

    @property
    def tree(self) -> Tree | None:
        """The t-ORT of its topics, if all members are in it and its links are up."""
        tree = self.building.tree
        return tree if tree is not None and not self._broken and self._has_all(tree) else None

    def _has_all(self, tree: Tree) -> bool:
        return len(tree.nodes) == len(self.members) and self._others <= tree.nodes

    @property
    def needed(self) -> bool:
        return self.unneeded_s is None

    @property
    def label(self) -> bytes:
        """Of the tree that is complete."""
        return self._label

    @property
    def waits(self) -> bool:
        """Whether a wave is under way that may come to its end."""
        return self.building.in_progress and not self.building.is_stuck

    def edges_of(self, label: bytes) -> tuple[str, ...] | None:
        """The neighbors in the tree of that label, if it is in use or about to be."""
        tree = self.tree
        if tree is not None and label == self._label:
            return tree.neighbors
        return self.building.edges_of(label[:LABEL_BYTES]) if self.waits else None

    def beyond(self, neighbor: str) -> Collection[str]:
        """Who is reached over a neighbor, in the tree that is complete."""
        return self._beyond[neighbor]

    # ---- links and messages --------------------------------------------------------------

    def link_up(self, name: str) -> bool:
        """Whether it is a member's, and may make the overlay whole."""
        if name not in self._others:
            return False
        self.building.link_up(name)
        return self.tree is None

    def link_down(self, name: str) -> bool:
        """Whether the tree, or the wave under way, needed it."""
        needed = self.building.link_down(name)
        tree = self.building.tree
        if tree is not None and name in tree.neighbors and not self._broken:
            self._broken = needed = True
        return needed

    def lost(self) -> None:
        """A member has forgotten the tree."""
        self._broken = True

    def arrived(self, neighbor: str, message: Explore | Echo | Adopt) -> bool:
        """False if the neighbor has forgotten a tree that this node has."""
        building = self.building
        if isinstance(message, Explore):
            settled = not building.in_progress
            known, tree = building.explored(neighbor, message), building.tree
            ignored = settled and not building.in_progress
            return known and not (ignored and tree is not None and message.wave != tree.wave)
        if isinstance(message, Echo):
            building.echoed(neighbor, message)
        else:
            building.adopt_arrived(neighbor, message)
        return True

    # ---- actions of the wave -------------------------------------------------------------

    def send(self, neighbor: str, message: TreeMessage) -> None:
        assert isinstance(message, Explore | Echo | Adopt)
        self._do.send_in(neighbor, OfOverlay(self.members, message))

    def collect(self) -> None:
        self._do.collect_in(self)

    def wait(self) -> None:
        """It needs all its members: without one that is mute it has no tree, as now."""

    def contradict(self) -> None:
        self.building.begin()  # two of one id have a common neighbor here, which lets one in

    def cost_us(self, neighbor: str) -> int:
        return self._do.cost_us(neighbor)

    def candidate(self, number: int) -> Wave:
        return self._do.candidate_in(self, number)

    def adopted(self, tree: Tree) -> None:
        self._broken = any(name not in self.building.up for name in tree.neighbors)
        self._label = tree.label + self.number
        self._beyond = below = dict(self.building.below)
        if tree.parent:
            below[tree.parent] = tree.nodes.difference({self._here}, *below.values())
        self._do.adopted_in(self)
