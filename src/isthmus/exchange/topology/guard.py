"""The topology guard: of the links that people made, it lets the algorithm use a forest.

PF and SF assume that the nodes form a tree (ILDM §3); the paper leaves it to the operator.  The
guard makes it so, without I/O or a clock: calls in, `GuardActions` out.

Every node *announces* its links, and announcements travel over every link that is up, so all nodes
of a fabric come to know the same graph and, by `TopologyView.forest`, the same forest.  A link
outside the forest closes a ring; it is BLOCKED, stays up as a standby, and its announcement tells
every operator.  Two numbers make this safe:

- **birth**: each end counts an *epoch* beyond every number it has seen; the birth of the link is
  the greater of the two.  A link that closes a ring is therefore younger than the rest of it and
  loses, so traffic that flows is not disturbed.  Births are equal only in a race; then the link
  with the greatest sorted ends loses.
- **opening**: an end that wants to use a link says a number; the link is ACTIVE while both ends say
  the same one.  Who closes and opens again uses a greater number, so neither end can take what
  belongs to an earlier opening for the present one.  An end opens a link of the forest only when no
  other path of open links leads to the neighbor: break before make.

Invariants:

- announcements are kept as long as a neighbor vouches for them, and vouched for only while their
  node is connected in the voucher's own view.  A node that is cut off is therefore forgotten
  everywhere, although no message says that it went;
- an opening is believed only when it came over the link itself, where it is in order with the
  algorithm's messages.  What is sent after `activate` finds the other end ACTIVE, unless that one
  has closed the link since;
- what a neighbor hears is a whole: with this node's own announcement it hears all that was known
  here at that time, unless links of this node are just coming up together;
- links that go down, however many at once, never let a ring come about; links that come up at the
  same time may, until the announcements of one have reached the others.

What happens to this node's own links is concluded from, and told to the neighbor concerned, at
once.  News of others are, too, if there were none just before; then they are gathered for a short
*pause*, the longer the more there was to tell.  So one change runs through the fabric without
delay, while of a thousand at the same time every node hears the outcome, not each of them.  No link
is opened while much is gathered: it would be in ignorance of that.

A link that comes up alone announces its openings, so that others wait for it (break before make).
Who may have to wait is he who does not know the link yet: from then on whatever closes a ring with
it is younger.  Where several links of a node come up in one pause, most likely many more do so
elsewhere.  These are *quiet*: they wait until a pause brings hardly any news, are then opened, and
only the other end is told.  Others take it that a quiet link is open if it is in the forest.  While
such links still come up, other news wait for another pause: they would be out of date at once.

Departure from the obvious path vector: paths over active links alone do not show two ends of a
standby link the same ring at the same time, and cutting a victim per observed ring can part the
fabric when rings share links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from isthmus.errors import LocalProtocolError
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.topology.link import GuardedLink
from isthmus.exchange.topology.messages import (
    LEAP,
    MAX_COUNTER,
    MAX_LINKS,
    Announcement,
    GuardHello,
    NodeKey,
    Opening,
    Update,
    check_name,
    encode_hello,
    encode_opening,
    encode_updates,
    parse,
)
from isthmus.exchange.topology.view import (
    ActiveTree,
    Ends,
    TopologyView,
    ends_of,
)

__all__ = ["GuardActions", "Reach", "Ring", "TopologyGuard"]

SHORTEST_PAUSE_S, PAUSE_PER_NODE_S, LONGEST_PAUSE_S = 0.02, 0.001, 0.25
"""Between two times that all neighbors are told, so that much that happens at once is concluded
from, and told, at once; the longer, the more there was to tell."""
STRIDE = 2**16
"""By how much a sequence number may go up while news of it are gathered."""
FEW = 8
"""Nodes of which something may be heard in a pause, and still be concluded from with what is said
of our own links."""
GROWING = 2
"""Pauses after which it is known what links came up together with ours: theirs, and their news."""
PATIENCE = 16
"""Pauses for which links that come up together wait, at most, until there are no more news."""
MAX_WAITING = 1_024
"""Nodes of which something is heard, or to be told, while that is waited for."""
MAX_WHOLE_PATHS = 128
MAX_RINGS = 100
"""What `status` tells."""


class GuardActions(Protocol):
    """What the guard wants done.

    An action may call the guard: what follows from that is done after what was decided before.
    """

    def send(self, neighbor: str, payload: bytes) -> None:
        """Carry `payload` to the guard at the other end, once and in order."""
        ...

    def activate(self, neighbor: str) -> None:
        """The algorithm may use the link from now on, and begins anew on it."""
        ...

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        """The algorithm must not use the link (any more).

        `ring` lists the node ids from one end of the link to the other.  It is empty if the
        other end closed the link for a reason not known here yet; the call is then repeated
        when the ring is known, unless the link is activated again.
        """
        ...

    def pause(self, pause_s: float) -> None:
        """Call `TopologyGuard.pause_over` when that time is over."""
        ...

    def topology_changed(self) -> None:
        """After all of these: what is known of the fabric may be something else than before."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """How another node is reached over active links."""

    next_neighbor: str
    path: tuple[str, ...]
    """Node ids, this node's first."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of links, and the one of them that is kept closed: the one to cut."""

    link: tuple[str, str]
    nodes: tuple[str, ...]
    """From one end of `link` to the other."""


class TopologyGuard:
    """Decides which of a node's links the algorithm may use."""

    knows_ways = True
    """Over whom every node is reached."""

    def __init__(self, node_id: str, incarnation: str, actions: GuardActions) -> None:
        """`incarnation` is any text that is new at every start of the node."""
        self._here = NodeKey(check_name(node_id, "node id"), check_name(incarnation, "incarnation"))
        self._actions = actions
        self._links: dict[str, GuardedLink] = {}
        self._clock = 0
        self._own = Announcement(self._here, 1, ())
        self._others: dict[NodeKey, Announcement] = {}
        self._heard_of: dict[NodeKey, Announcement | None] = {}
        """Of whom somebody says something else since conclusions were drawn, in order; what is to
        be believed if that is clear, which it is if somebody says the latest of another's node."""
        self._news: dict[NodeKey, int] = {}
        """Of whom neighbors may have to be told something else, since all were told: the round."""
        self._round = 1
        """Counts how often neighbors were told, some or all."""
        self._pausing = False
        """All were told a short time ago."""
        self._crowd: set[GuardedLink] = set()
        """Links of ours that came up together: more than one, if it is to count."""
        self._growing = 0
        """Pauses until neighbors that grow as well have told more than of themselves."""
        self._heard_in_pause = 0
        """Of how many nodes something was heard since it began, and concluded from."""
        self._waited = 0
        """Pauses for which they wait already."""
        self._contradicted: list[Announcement] = []
        self._leaping = False
        """Nothing is gathered: somebody's number goes up by much, and all are led there."""
        self.weight = 0
        """Nodes and links that neighbors spoke of since somebody looked, and nodes that came or
        went: the time that it takes is in proportion to them."""
        self._view = TopologyView(self._here, (self._own,))
        self._tree = ActiveTree(self._here)
        self._outbox: deque[tuple[GuardedLink, Callable[[], None]]] = deque()
        self._draining = False

    # ---- what happens ----

    def link_up(self, neighbor: str) -> None:
        """A link came up; if it was up already, it began anew."""
        if check_name(neighbor, "neighbor") == self._here.node_id:
            raise LocalProtocolError(f"node {neighbor!r} cannot be its own neighbor")
        if len(self._links) >= MAX_LINKS and neighbor not in self._links:
            raise LocalProtocolError(f"a node has at most {MAX_LINKS} links")
        self._forget_link(neighbor)
        self._clock = min(self._clock + 1, MAX_COUNTER)
        link = self._links[neighbor] = GuardedLink(neighbor, self._clock)
        self._send_hello(link)
        self._settle()

    def link_down(self, neighbor: str) -> None:
        """A link went down; nothing that was learned over it alone is believed any more."""
        self._forget_link(neighbor)
        self._settle()

    def message_arrived(self, neighbor: str, payload: bytes) -> None:
        """The neighbor's guard said something.

        Raises `RemoteProtocolError`, with nothing changed, if it cannot be understood.
        """
        link = self._links.get(neighbor)
        if link is None:
            return
        message = parse(payload)
        if isinstance(message, GuardHello):
            self._hello_arrived(link, message)
            self._settle()
            return
        if link.far_end is None:  # before the hello: left over from before an interruption
            return
        if isinstance(message, Opening):
            concerns_us, leaps = link.hear_opening(message.number), False
        else:
            leaps = self._leaps(message)
            if leaps:
                self._leaping = True
                self._settle()
                if self._links.get(neighbor) is not link:
                    return  # what had to be done has ended it
            concerns_us = self._update_arrived(link, message)
        self._leaping = leaps
        full = max(len(self._heard_of), len(self._news)) >= MAX_WAITING
        if leaps or not self._pausing or full:
            self._settle()
        elif concerns_us:
            self._settle(gathering=len(self._heard_of) > FEW)
        else:
            self._act()

    def _leaps(self, update: Update) -> bool:
        """Whether somebody's sequence number goes up by much.

        Nobody follows a leap that is too large (`LEAP`).  So that everybody who could follow step
        by step still can, what was known before is told before, and that by itself.
        """
        for announcement in update.nodes:
            if announcement.sequence > STRIDE:
                key = announcement.node
                known = self._own if key == self._here else self._others.get(key)
                if known is not None and announcement.sequence > known.sequence + STRIDE:
                    return True
        return False

    def pause_over(self) -> None:
        """As long as was asked for has passed."""
        self._pausing = False
        own, links = self._own.sequence, self._links.values()
        untold = any(link.far_end and link.told.get(self._here) != own for link in links)
        together = self._together
        self._waited += 1
        much = self._growing > 0 or self._heard_in_pause + len(self._heard_of) > FEW
        if not (together and much and self._waited < PATIENCE):
            self._crowd.clear()
            self._waited = 0
        growing = self._growing == GROWING and self._together
        self._growing, self._heard_in_pause = max(self._growing - 1, 0), 0
        if self._heard_of or self._news or untold or together:
            self._settle(growing=growing)

    @property
    def _together(self) -> bool:
        """Whether several links of ours are coming up."""
        return len(self._crowd) > 1

    # ---- what is known ----

    def reach(self) -> Mapping[str, Reach]:
        """How every other node is reached over active links; takes a look at all of them."""
        reach: dict[str, Reach] = {}
        for node, path in self._tree.paths().items():
            if node.node_id != self._here.node_id:
                found = Reach(path[1].node_id, tuple(key.node_id for key in path))
                reach.setdefault(node.node_id, found)
        return reach

    def ways(self) -> Mapping[str, frozenset[str]]:
        """The neighbors on the way to each node that is reached over active links, as of now."""
        return self._tree.ways

    def ways_gone(self) -> Mapping[str, set[str]]:
        """Nodes, and neighbors that are no longer on the way to them since this was last asked."""
        gone, self._tree.gone = self._tree.gone, {}
        return gone

    @property
    def size(self) -> int:
        """How many nodes the fabric has, as far as is known here."""
        return len(self._view.nodes)

    def is_primary(self, origin: str, neighbor: str) -> bool:
        """Whether a message of `origin` may come over the link to `neighbor`.

        An origin that is not known may come from anywhere, this node's own messages from nowhere.
        """
        if origin == self._here.node_id:
            return False
        ways = self.ways().get(origin)
        return ways is None or neighbor in ways

    def rings(self, limit: int | None = None) -> list[Ring]:
        """Every ring of the fabric, or the first few, wherever in it, with the link to cut."""
        view = self._view
        left_out = view.left_out()[:limit]
        return [Ring((a.node_id, b.node_id), view.ring((a, b))) for a, b in left_out]

    def duplicates(self) -> dict[str, tuple[str, ...]]:
        """Node ids that several nodes of the fabric have, with their incarnations.

        While a restart is not noticed by all neighbors yet, both lives of the node are seen.
        """
        names = {node.node_id for node in self._view.nodes}
        lives = {name: self._view.lives(name) for name in sorted(names)}
        return {name: each for name, each in lives.items() if len(each) > 1}

    def other_lives(self) -> tuple[str, ...]:
        """Other incarnations of this node's own id: its life before a restart, or a second node."""
        here = self._here
        return tuple(life for life in self._view.lives(here.node_id) if life != here.incarnation)

    def status(self) -> dict[str, object]:
        """The whole fabric as seen from here, JSON-able."""
        view = self._view
        return {
            "node": self._here.node_id,
            "incarnation": self._here.incarnation,
            "nodes": sorted({node.node_id for node in view.nodes}),
            "links": [
                {"ends": [a.node_id, b.node_id], "birth": edge.birth, "state": self._seen(a, b)}
                for (a, b), edge in view.connected_edges().items()
            ],
            "paths": self._paths(),
            "rings": [
                {"cut": list(ring.link), "ring": list(ring.nodes)} for ring in self.rings(MAX_RINGS)
            ],
            "rings_total": len(view.left_out()),
            "duplicates": {node: list(lives) for node, lives in self.duplicates().items()},
        }

    def _paths(self) -> dict[str, list[str]]:
        """In a fabric of many nodes only the first step and the last, for brevity."""
        if len(self._view.nodes) <= MAX_WHOLE_PATHS:
            return {node: list(reach.path) for node, reach in sorted(self.reach().items())}
        here = self._here.node_id
        return {
            node.node_id: [here, step] if node.node_id == step else [here, step, "…", node[0]]
            for node, step in sorted(self._tree.first_steps().items())
            if node.node_id != here
        }

    def _seen(self, a: NodeKey, b: NodeKey) -> str:
        if not self._view.in_forest((a, b)):
            return LinkState.BLOCKED.shown
        edge = self._view.edge((a, b))
        active = edge is not None and edge.active
        return (LinkState.ACTIVE if active else LinkState.LEARNING).shown

    # ---- announcements ----

    def _forget_link(self, neighbor: str) -> None:
        link = self._links.pop(neighbor, None)
        if link is not None:
            self._heard_of.update(dict.fromkeys(link.heard))
            self._crowd.discard(link)

    def _choose(self) -> None:
        """Whom to believe about each of whom somebody says something else now."""
        heard_of, self._heard_of = self._heard_of, {}
        if self._pausing:
            self._heard_in_pause += len(heard_of)
        self._news.update(dict.fromkeys(heard_of, self._round))
        others, found = self._others, []
        for key, latest in heard_of.items():
            best = self._best(key) if latest is None else latest
            if best is others.get(key):
                continue
            if best is None:
                del others[key]
                self._view.drop(key)
            else:
                others[key] = best
                found.append(best)
        self._view.put(*found)

    def _best(self, key: NodeKey) -> Announcement | None:
        """A neighbor itself, over its own link, or else who says the latest."""
        itself = self._links.get(key.node_id)
        if itself is not None and itself.far_end == key and key in itself.heard:
            return itself.heard[key]
        best = None
        for link in self._links.values():
            said = link.heard.get(key)
            if said is not None and (best is None or said.sequence > best.sequence):
                best = said
        return best

    def _hello_arrived(self, link: GuardedLink, hello: GuardHello) -> None:
        self.weight += len(link.heard)
        self._heard_of.update(dict.fromkeys(link.heard))
        if link.greet(hello):
            self._send_hello(link)
        self._follow(link.birth)
        self._crowd.add(link)
        self._growing = GROWING
        if self._together:
            for each in self._crowd:
                each.quiet = each.quiet or not each.opening

    def _follow(self, *births: int) -> None:
        """Count on from each of them, unless nobody can have counted so far."""
        for birth in births:
            if self._clock < birth <= self._clock + LEAP:
                self._clock = birth

    def _update_arrived(self, link: GuardedLink, update: Update) -> bool:
        """Whether something was said of this node, or of the link by its other end."""
        nodes, far_end = update.nodes, link.far_end
        self.weight += len(nodes) + len(update.gone) + link.check_room(update)
        for announcement in nodes:
            if announcement.node == far_end:
                link.check(announcement, self._here)
        for key in update.gone:
            if link.withdraw(key):
                self._heard_of[key] = None
        others, heard_of = self._others, self._heard_of
        known, latest = others.get, heard_of.get
        ends = {self._here, *(each.far_end for each in self._links.values())}
        # From what is believed already, or will be, nothing follows.
        familiar = [
            each
            for each in nodes
            if latest(key := each.node, known(key)) is each and key not in ends
        ]
        link.vouch(*familiar)
        concerns_us = False
        if len(familiar) < len(nodes):
            for each in nodes:
                if each.node in ends:
                    concerns_us |= self._announced(link, each)
                elif latest(each.node, known(each.node)) is not each:
                    self._news_arrived(link, each)
        return concerns_us

    def _news_arrived(self, link: GuardedLink, announcement: Announcement) -> None:
        """Something else is said of a node that is not our neighbor."""
        key = announcement.node
        known, heard_of = self._others.get(key), self._heard_of
        if known is None or known.sequence < announcement.sequence <= known.sequence + LEAP:
            link.heard[key] = announcement
            if self._clock < announcement.youngest:
                self._follow(*(entry.birth for entry in announcement.links))
            latest = heard_of.get(key, announcement)
            if latest is not None:
                newer = announcement.sequence >= latest.sequence
                heard_of[key] = announcement if newer else None
        elif announcement.sequence < known.sequence and link.heard.get(key) is not known:
            link.heard[key] = announcement  # others know better, and so will the neighbor
            self._news[key] = self._round
            if key in heard_of:
                heard_of[key] = None
        else:
            self._announced(link, announcement)

    def _announced(self, link: GuardedLink, announcement: Announcement) -> bool:
        """Whether it concerns us."""
        key = announcement.node
        known = self._others.get(key)
        self._follow(*(entry.birth for entry in announcement.links))
        if key == self._here:
            self._contradict(announcement)
            return True
        if key == link.far_end:
            link.vouch(announcement)
            self._heard_of[key] = None
            return link.hear(announcement, self._here)
        if known is None or announcement.sequence <= known.sequence + LEAP:
            link.vouch(known if known is not None and announcement == known else announcement)
            self._heard_of[key] = None
            self._ask(announcement)
        return False

    def _ask(self, announcement: Announcement) -> None:
        """Somebody says of a neighbor what it has not said itself, or not yet: show it to it."""
        key = announcement.node
        itself = self._links.get(key.node_id)
        if (
            itself is not None
            and itself.far_end == key
            and key in itself.heard
            and announcement.sequence > max(itself.heard[key].sequence, itself.told.get(key, 0))
        ):
            itself.told[key] = announcement.sequence
            for payload in encode_updates([announcement], []):
                self._send(itself, payload)

    def _contradict(self, announcement: Announcement) -> None:
        """What others say of this node must not be later than what it says itself.

        Those who have heard the other word need a later one; those who have not would not follow a
        leap by one more than they may.  So it is said twice.
        """
        own, sequence = self._own, announcement.sequence
        if own.sequence <= sequence <= own.sequence + LEAP and announcement.links != own.links:
            self._contradicted.append(replace(own, sequence=sequence))
            self._own = replace(own, sequence=min(sequence + 1, MAX_COUNTER))

    def _renew_own(self) -> None:
        entries = (link.entry for link in self._links.values())
        links = tuple(sorted(entry for entry in entries if entry is not None))
        if links != self._own.links:
            sequence = min(self._own.sequence + 1, MAX_COUNTER)
            self._own = Announcement(self._here, sequence, links)
            self._view.put(self._own)

    # ---- decisions ----

    def _settle(self, *, gathering: bool = False, growing: bool = False) -> None:
        """Draw every conclusion from what is known now, and then act.

        While news are `gathering`, none are drawn from these, and no link is opened; nor while
        several links of ours come up.
        """
        if not gathering:
            self._choose()
        self._renew_own()
        view = self._view
        for link in self._links.values():
            link.close_if_due(view.in_forest(self._ends(link)))
        self._renew_own()  # what has just been closed must not keep another link closed
        for link in self._links.values() if not (gathering or self._together) else ():
            if link.may_open and view.in_forest(self._ends(link)) and not self._open_path(link):
                link.open()
        self._renew_own()
        self._tell_all(growing)
        self._conclude()
        self._carry()
        self._drain()

    def _carry(self) -> None:
        """Bring what is reached over active links up to date; what ends comes first."""
        changed = [*self._view.changed().values()]
        changed += [ends_of(self._here, other) for other in self._tree.neighbors()]
        changed += [ends for link in self._links.values() if (ends := self._ends(link))]
        begun, tree = [], self._tree
        for ends in changed:
            carries = self._carries(ends)
            if carries != (ends in tree):
                if carries:
                    begun.append(ends)
                else:
                    tree.disconnect(*ends)
        for ends in begun:
            tree.connect(*ends)

    def _carries(self, ends: Ends) -> bool:
        """For links of ours, as they are here."""
        if self._here in ends:
            far_end = ends[1] if ends[0] == self._here else ends[0]
            link = self._links.get(far_end.node_id)
            if link is not None and link.far_end == far_end:
                return link.active and self._view.in_forest(ends)
        return self._view.carries(ends)

    def _ends(self, link: GuardedLink) -> Ends | None:
        return None if link.far_end is None else ends_of(self._here, link.far_end)

    def _open_path(self, link: GuardedLink) -> bool:
        """Whether open links lead to the neighbor already.

        A link counts as open as soon, and as long, as one end has it open: of two links that
        would close a ring together, often one sees the other in time.
        """
        assert link.far_end is not None
        own = [
            other.far_end
            for other in self._links.values()
            if other.opening and other.far_end is not None and other is not link
        ]
        return self._view.leads_to(link.far_end, own)

    def _tell_all(self, growing: bool) -> None:
        """Tell neighbors what they should know: those at once with whom something is to be agreed,
        the others at once after a pause, and then not for a while.

        While our own links are `growing` in number, so may those of others: news of these are told
        a pause later.
        """
        view, links = self._view, self._links.values()
        if moved := view.moved():
            self.weight += len(moved)
            self._news.update(dict.fromkeys(sorted(moved), self._round))
        urgent = self._contradicted or self._leaping or len(self._news) >= MAX_WAITING
        everybody = urgent or not self._pausing
        only_own = growing and not urgent
        told = 0
        for link in links:
            if link.to_be_told or (everybody and link.far_end is not None):
                told = max(told, self._tell(link, only_own and not link.fresh))
        self._round += 1
        if everybody:
            if not only_own:
                self._news.clear()
            self._contradicted.clear()
            self._leaping = False
            if (told or self._together) and not self._pausing:
                self._pausing = True
                self._actions.pause(
                    min(SHORTEST_PAUSE_S + told * PAUSE_PER_NODE_S, LONGEST_PAUSE_S)
                )

    def _tell(self, link: GuardedLink, only_own: bool) -> int:
        """Bring what we vouch for up to date, at the other end of `link`.

        Our own announcement goes last: who sees the link in it knows what we know.  If it is
        `only_own`, the rest is told the next time.  Returns of how many nodes there was anything
        to tell.
        """
        connected, others = self._view.nodes, self._others
        if only_own:
            keys = []
        elif link.fresh:
            keys = sorted({*others, *link.told} - {self._here})
        else:
            keys = [key for key, number in self._news.items() if number > link.told_round]
        news = link.untold([others[key] for key in keys if key in connected])
        gone = link.unvouched([key for key in keys if key not in connected])
        if link.told.get(self._here) != self._own.sequence:
            for said in self._contradicted:
                for payload in encode_updates([said], []):
                    self._send(link, payload)
            news.append(self._own)
        link.fresh, link.entered = False, link.entry
        if not only_own:
            link.told_round = self._round
        link.told.update([(announcement.node, announcement.sequence) for announcement in news])
        for payload in encode_updates(news, gone):
            self._send(link, payload)
        if link.quiet and link.opening != link.told_opening:
            link.told_opening = link.opening
            self._send(link, encode_opening(link.opening))
        return len(news) + len(gone)

    def _conclude(self) -> None:
        """Blocks before activations, both after what was told."""
        view = self._view
        for link in self._links.values():
            interrupted = link.interrupted()
            if not interrupted and link.ring:
                continue  # told already
            link.ring = self._ring_of(link, view)
            if interrupted or link.ring:
                self._block(link)
        for link in self._links.values():
            if link.joined():
                self._activate(link)

    def _ring_of(self, link: GuardedLink, view: TopologyView) -> tuple[str, ...]:
        ends = self._ends(link)
        if ends is None or view.in_forest(ends) or view.edge(ends) is None:
            return ()
        return view.ring(ends)

    # ---- acting ----

    def _send_hello(self, link: GuardedLink) -> None:
        self._send(link, encode_hello(GuardHello(self._here.incarnation, link.epoch)))

    def _send(self, link: GuardedLink, payload: bytes) -> None:
        self._outbox.append((link, lambda: self._actions.send(link.neighbor, payload)))

    def _activate(self, link: GuardedLink) -> None:
        self._outbox.append((link, lambda: self._actions.activate(link.neighbor)))

    def _block(self, link: GuardedLink) -> None:
        ring = link.ring
        self._outbox.append((link, lambda: self._actions.block(link.neighbor, ring)))

    def _drain(self) -> None:
        """Act in order, also if an action calls the guard."""
        if not self._draining:
            self._act()
            self._actions.topology_changed()

    def _act(self) -> None:
        """Nothing on links that have gone."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._outbox:
                link, act = self._outbox.popleft()
                if self._links.get(link.neighbor) is link:
                    act()
        finally:
            self._draining = False
