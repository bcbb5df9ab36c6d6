"""Building a tree over links of any shape: a wave out from the root, and its echo back.

The paper has every node tell its neighbors root, path cost and capability, again and again, until
all agree (Overlays §4).  When they do, nobody knows, and while they do not, messages go astray.
Here a tree is built in one *wave*, whose end is known, and each tree has a number of its own:

    root ──explore──▶ everybody        each takes the neighbor over which the root is nearest
    root ◀──echo───── everybody        as its parent, tells the others, and answers when all
    root ──adopt────▶ everybody        others have: so the root knows that the tree is complete

A node joins a wave once and keeps the parent that it has chosen.  It chooses after `collect_s`, in
which the waves of several neighbors may come.  Whoever notices that the tree is broken, or that
somebody is not in it, begins a wave with the next number, as root.  Who would be a better root
(§4.2.1) than that of a wave that it hears first, begins one of its own with the same number
instead, which beats the other: so the best root of those that are connected wins, in the
end all have joined its wave, and no other one comes to its end.

Invariants: of one wave a node has one parent, and is nobody else's child; so the tree has no ring.
A tree that is adopted contains everybody who was connected with the root over links that were up
from when they joined until they answered.  What happens to a link of the tree meanwhile is the
beginning of another wave.

Nobody is waited for without end.  Where a wave takes long, whoever waits in it says so with every
`tick`, to its parent before it has answered, to its children afterwards.  Who has not said anything
for `PATIENCE` ticks is *mute*, and left out until it says something of a wave.  A parent that is
silent, so that the tree does not come about, is *suspended*: its waves are not joined until it is
forgiven, as it may be one that builds no trees.  No wave takes longer than `LONGEST` ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.cooperation.tree.messages import (
    MAX_COST_US,
    MAX_NODES,
    Adopt,
    Echo,
    Explore,
    TreeMessage,
    Waiting,
    Wave,
    is_later,
    next_number,
)

__all__ = ["Building", "BuildingActions", "Tree"]

PATIENCE: Final = 3
LONGEST: Final = 120
LOYALTY: Final = 0.75
"""Another parent than the one of the tree before must cost less than this part of it."""
NEARER: Final = 0.65
"""A tree is built anew for the sake of a way to the root that costs less than this part of it.

Less than `LOYALTY`, so that the wave takes that way."""
WORTHWHILE_US: Final = 5_000
"""And so much less."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree that is complete, as one node sees it: the paper's Overlay Routing Table."""

    wave: Wave
    parent: str
    """Empty at the root."""
    children: frozenset[str]
    cost_us: int
    nodes: frozenset[str]
    """All that are in it."""
    neighbors: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        neighbors = (self.parent, *sorted(self.children)) if self.parent else sorted(self.children)
        object.__setattr__(self, "neighbors", tuple(neighbors))

    @property
    def label(self) -> bytes:
        return self.wave.label


class BuildingActions(Protocol):
    """What is to be done; none of it calls back, but for `contradict`."""

    def send(self, neighbor: str, message: TreeMessage) -> None: ...

    def collect(self) -> None:
        """Call `Building.collected` in a moment."""
        ...

    def wait(self) -> None:
        """Call `Building.tick` every second as long as it is in progress."""
        ...

    def contradict(self) -> None:
        """Somebody has begun a wave in this node's name: call `begin`, whose wave is later.

        Now or later; not again and again: it may be another node of that id, which does the same.
        """
        ...

    def adopted(self, tree: Tree) -> None: ...

    def cost_us(self, neighbor: str) -> int:
        """Of the link there."""
        ...

    def candidate(self, number: int) -> Wave:
        """The wave of that number that this node would begin."""
        ...


@dataclass(slots=True)
class _Joined:
    """The latest wave, as far as it has come here."""

    wave: Wave
    offers: dict[str, int] = field(default_factory=dict)
    """What the way to the root costs from neighbors, all but the children."""
    """Neighbors that have told the cost of the way over them, before a parent was chosen."""
    choosing: bool = True
    parent: str = ""
    cost_us: int = 0
    asked: set[str] = field(default_factory=set)
    """Who was told of it."""
    awaited: set[str] = field(default_factory=set)
    """Who has been told and has not answered."""
    below: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Children, and who is below each of them, itself included."""
    silent: dict[str, int] = field(default_factory=dict)
    """For how many ticks the parent, and who is awaited, have not said anything of it."""
    ticks: int = 0
    echoed: bool = False
    stuck: bool = False
    """A link that it needs was lost."""


class Building:
    """Waves at one node."""

    def __init__(self, node_id: str, actions: BuildingActions) -> None:
        self._here = node_id
        self._do = actions
        self.number = 0
        """The highest that was heard of."""
        self.up: dict[str, None] = {}
        """Neighbors whose links are up, in order."""
        self.tree: Tree | None = None
        self.abandoned: dict[str, None] = {}
        """Neighbors in trees that others may have used, and this node has not."""
        self.mute: set[str] = set()
        """Neighbors whose links are up and that did not answer the last time."""
        self.suspended: set[str] = set()
        """Neighbors whose waves are not joined."""
        self._joined: _Joined | None = None

    @property
    def in_progress(self) -> bool:
        """Whether a wave has come here that is later than the tree."""
        joined = self._joined
        return joined is not None and (self.tree is None or joined.wave != self.tree.wave)

    @property
    def is_stuck(self) -> bool:
        """Whether the wave in progress has lost what it needs, and will not come to its end."""
        joined = self._joined
        return joined is not None and joined.stuck and self.in_progress

    # ---- beginning -----------------------------------------------------------------------

    def begin(self) -> None:
        """The tree is not, or no longer, what it should be."""
        self.number = next_number(self.number)
        self._begin(self._do.candidate(self.number))

    def _begin(self, wave: Wave) -> None:
        self._join(_Joined(wave, choosing=False))
        self._ask(self.up)

    def _join(self, joined: _Joined) -> None:
        before = self._joined
        if before is not None and before.echoed and self.in_progress:
            self.abandoned.update(dict.fromkeys((before.parent, *before.below)))
        self._joined = joined

    def _ask(self, neighbors: Iterable[str], answered: Collection[str] = ()) -> None:
        joined = self._joined
        assert joined is not None
        joined.asked = {each for each in neighbors if each != joined.parent}
        joined.awaited = joined.asked.difference(answered, self.mute, self.suspended)
        for neighbor in self.up:
            if neighbor in joined.asked:
                self._do.send(neighbor, Explore(joined.wave, joined.cost_us))
        self._do.wait()
        self._look()

    # ---- what neighbors say --------------------------------------------------------------

    def explored(self, neighbor: str, message: Explore) -> bool:
        """A wave comes; False if the neighbor is behind, and has not been told of a later one."""
        if neighbor not in self.up:
            return True
        wave, joined = message.wave, self._joined
        if neighbor in self.suspended:
            return True
        self.mute.discard(neighbor)
        self.heard(wave.number)
        if joined is not None and wave == joined.wave:
            joined.silent[neighbor] = 0
        if wave.root == self._here and (joined is None or wave.beats(joined.wave)):
            self._do.contradict()  # nobody else may say so
        elif joined is None or (wave != joined.wave and wave.beats(joined.wave)):
            own = self._do.candidate(wave.number)
            news = joined is None or is_later(wave.number, joined.wave.number)
            if news and own.is_better_root(wave):
                self._begin(own)
            else:
                self._join(_Joined(wave, {neighbor: message.cost_us}))
                self._do.collect()
        elif wave != joined.wave:
            return neighbor in joined.asked or neighbor == joined.parent or joined.choosing
        elif joined.choosing:
            joined.offers[neighbor] = message.cost_us
        else:
            joined.offers[neighbor] = message.cost_us  # too late for this wave
            joined.awaited.discard(neighbor)
            if neighbor not in joined.asked and neighbor != joined.parent:
                # Its link came up after this node had asked the others: it waits for an answer.
                joined.asked.add(neighbor)
                self._do.send(neighbor, Explore(joined.wave, joined.cost_us))
            self._look()
        return True

    def collected(self) -> None:
        """The parent is chosen from what has come."""
        joined = self._joined
        if joined is None or not joined.choosing:
            return
        costs = self._costs(joined)
        if not costs:
            joined.stuck = True  # who has told of it is away
            return
        joined.choosing = False
        joined.parent = self._nearest(costs)
        joined.cost_us = costs[joined.parent]
        self._ask(self.up, joined.offers)

    def _costs(self, joined: _Joined) -> dict[str, int]:
        """Of the ways to the root over neighbors, as their links are now."""
        return {
            neighbor: min(cost_us + self._do.cost_us(neighbor), MAX_COST_US)
            for neighbor, cost_us in joined.offers.items()
            if neighbor in self.up
        }

    def shortcut(self) -> str:
        """A neighbor over which the root is far nearer now than by the tree, or nobody.

        As far as this node knows: what its neighbors have said is of when the tree was built.
        """
        joined, present_us = self._joined, self._present_us()
        if joined is None or not present_us:
            return ""
        costs = self._costs(joined)
        answering = [each for each in costs if each not in self.mute | self.suspended]
        best = min(answering, key=lambda neighbor: (costs[neighbor], neighbor), default="")
        return best if best and _is_far_nearer(costs[best], present_us) else ""

    def ask_beside(self, neighbors: Iterable[str]) -> bool:
        """Of those who use this tree, ask whose link came up too late to have said what it costs.

        If the root may be far nearer over them, by their links alone.
        """
        joined, tree, present_us = self._joined, self.tree, self._present_us()
        if joined is None or tree is None or not present_us:
            return False
        known = {*joined.asked, *joined.offers, *tree.children, *self.mute, *self.suspended}
        asked = [
            neighbor
            for neighbor in neighbors
            if neighbor in self.up
            and neighbor not in known
            and _is_far_nearer(self._do.cost_us(neighbor), present_us)
        ]
        for neighbor in asked:
            joined.asked.add(neighbor)
            self._do.send(neighbor, Explore(joined.wave, joined.cost_us))
        return bool(asked)

    def _present_us(self) -> int:
        """What the way to the root costs now; 0 at the root, or if another tree is on its way."""
        joined, tree = self._joined, self.tree
        if joined is None or tree is None or self.in_progress:
            return 0
        return self._costs(joined).get(tree.parent, 0)

    def _nearest(self, costs: dict[str, int]) -> str:
        best = min(costs, key=lambda neighbor: (costs[neighbor], neighbor))
        if self.tree is not None and (before := self.tree.parent) in costs:
            return best if costs[best] < LOYALTY * costs[before] else before
        return best

    def echoed(self, neighbor: str, message: Echo) -> None:
        joined = self._joined
        if joined is None or message.wave != joined.wave or neighbor not in joined.asked:
            return
        if neighbor in joined.awaited:
            joined.awaited.discard(neighbor)
            joined.below[neighbor] = message.nodes
            self._look()
        else:
            self.mute.discard(neighbor)

    def is_waiting(self, neighbor: str, message: Waiting) -> None:
        joined = self._joined
        if joined is not None and message.wave == joined.wave:
            joined.silent[neighbor] = 0

    def _look(self) -> None:
        """Whether all have answered."""
        joined = self._joined
        if joined is None or joined.choosing or joined.awaited or joined.echoed or joined.stuck:
            return
        joined.echoed = True
        # Whoever names too many, it is theirs that are left out.
        below = sorted(joined.below.values(), key=len)
        nodes = tuple(dict.fromkeys((self._here, *(name for each in below for name in each))))
        nodes = nodes[:MAX_NODES]
        if joined.parent:
            joined.silent.clear()
            self._do.send(joined.parent, Echo(joined.wave, nodes))
        else:
            self._adopt(joined, nodes)

    def adopt_arrived(self, neighbor: str, message: Adopt) -> None:
        joined = self._joined
        if (
            joined is not None
            and message.wave == joined.wave
            and neighbor == joined.parent
            and joined.echoed
        ):
            self._adopt(joined, message.nodes)

    def _adopt(self, joined: _Joined, nodes: tuple[str, ...]) -> None:
        if self.tree is not None and self.tree.wave == joined.wave:
            return
        near = (self._here, *joined.below, *((joined.parent,) if joined.parent else ()))
        self.tree = Tree(
            joined.wave,
            joined.parent,
            frozenset(joined.below),
            joined.cost_us,
            frozenset((*near, *nodes)),
        )
        for child in sorted(joined.below):
            if child in self.up:
                self._do.send(child, Adopt(joined.wave, nodes))
        self._do.adopted(self.tree)

    def heard(self, number: int) -> None:
        """Of a wave of that number."""
        if is_later(number, self.number):
            self.number = number

    def tick(self) -> str:
        """A second of a wave that takes long has passed; the neighbor that is suspended."""
        joined = self._joined
        if joined is None or joined.choosing or joined.stuck or not self.in_progress:
            return ""
        joined.ticks += 1
        relied_on = {joined.parent} if joined.echoed else joined.awaited
        for each in relied_on:
            joined.silent[each] = joined.silent.get(each, 0) + 1
        late = joined.ticks > LONGEST
        silent = {each for each in relied_on if late or joined.silent[each] > PATIENCE}
        if joined.echoed:
            if silent:
                joined.stuck = True
                self.suspended.add(joined.parent)
                return joined.parent
        elif silent:
            self.mute |= silent
            joined.awaited -= silent
            self._look()
        if self.in_progress:
            others = [] if joined.echoed or not joined.parent else [joined.parent]
            for each in (*others, *joined.below):
                if each in self.up:
                    self._do.send(each, Waiting(joined.wave))
        return ""

    @property
    def root(self) -> str:
        """Of the latest wave that has come here; empty if none has."""
        return self._joined.wave.root if self._joined is not None else ""

    @property
    def below(self) -> Mapping[str, Collection[str]]:
        """The children in the latest wave, and who is below each of them, itself included."""
        return self._joined.below if self._joined is not None else {}

    def edges_of(self, label: bytes) -> tuple[str, ...] | None:
        """The neighbors in a tree that others use already, and this node will as well."""
        joined = self._joined
        if joined is None or not joined.echoed or joined.wave.label != label:
            return None
        children = sorted(joined.below)
        return (joined.parent, *children) if joined.parent else tuple(children)

    def is_asked(self, neighbor: str) -> bool:
        """Whether a neighbor is, as far as this node knows, in the tree that is being built."""
        joined = self._joined
        if joined is None or neighbor in self.mute or neighbor in self.suspended:
            return False
        return neighbor == joined.parent or neighbor in joined.asked

    # ---- links ---------------------------------------------------------------------------

    def link_up(self, neighbor: str) -> None:
        self.up[neighbor] = None

    def link_down(self, neighbor: str) -> bool:
        """Whether a wave that is in progress needed it."""
        self.up.pop(neighbor, None)
        self.mute.discard(neighbor)
        joined = self._joined
        if joined is None:
            return False
        joined.asked.discard(neighbor)
        if joined.choosing:
            joined.offers.pop(neighbor, None)
            joined.stuck = not joined.offers
        elif neighbor == joined.parent or neighbor in joined.below:
            joined.stuck = True
        else:
            joined.awaited.discard(neighbor)
            self._look()
        return self.is_stuck


def _is_far_nearer(cost_us: int, present_us: int) -> bool:
    """Whether it is worth another tree."""
    return cost_us < NEARER * present_us and cost_us <= present_us - WORTHWHILE_US
