"""A fabric of topology guards without nodes: links that fail, messages that wait.

Every direction of a link is a queue.  It holds the notices that the link came up or went down, as
the receiving end will get them, and between them the messages of that session.  A link that goes
down loses what is on the way in both directions, and its two ends notice at different times.  What
is delivered next, anywhere, is chosen by the test.

A guard's pause is over when the test chooses, too: anything may happen in it.

Beside the guards' payloads the links carry probes in place of an algorithm's messages.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from isthmus.exchange.link.life import LinkState
from isthmus.exchange.topology.guard import Ring
from support.watched_guard import WatchedGuard

Pair = tuple[str, str]


def pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def components(nodes: list[str], links: set[Pair]) -> dict[str, frozenset[str]]:
    """The component of every node, by merging sets; on purpose unlike the guard's way."""
    found = {node: frozenset([node]) for node in nodes}
    for a, b in links:
        merged = found[a] | found[b]
        for node in merged:
            found[node] = merged
    return found


def is_forest(nodes: list[str], links: set[Pair]) -> bool:
    trees = set(components(nodes, links).values())
    return len(links) == len(nodes) - len(trees)


@dataclass(frozen=True)
class Notice:
    """The link came up (`session`) or went down (None)."""

    session: int | None


@dataclass(frozen=True)
class Probe:
    """An algorithm's message, with the opening of the link that it was sent in."""

    opening: int


@dataclass
class Member:
    """A node: its guard, and the guard's actions."""

    name: str
    fabric: Fabric
    lives: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    usable: set[str] = field(default_factory=set)
    """The neighbors that the algorithm may use, going by `activate` and `block`."""
    blocks: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    activations: int = 0
    pauses: bool = False

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.sessions.clear()
        self.usable.clear()
        self.pauses = False
        self.guard = WatchedGuard(self.name, f"life-{self.lives}", self)

    def send(self, neighbor: str, payload: bytes) -> None:
        self.fabric.put(self, neighbor, payload)

    def activate(self, neighbor: str) -> None:
        assert neighbor not in self.usable, "activated twice"
        self.usable.add(neighbor)
        self.activations += 1
        self.probe(neighbor)

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        self.usable.discard(neighbor)
        self.blocks.append((neighbor, ring))

    def pause(self, pause_s: float) -> None:
        assert pause_s > 0
        assert not self.pauses, "a pause in a pause"
        self.pauses = True

    def pause_over(self) -> None:
        self.pauses = False
        self.guard.pause_over()

    def topology_changed(self) -> None:
        """Nothing rests on it here."""

    def probe(self, neighbor: str) -> None:
        self.fabric.put(self, neighbor, Probe(self.guard._links[neighbor].opening))

    def receive(self, neighbor: str, item: Notice | Probe | bytes) -> None:
        if isinstance(item, bytes):
            self.guard.message_arrived(neighbor, item)
        elif isinstance(item, Probe):
            self.check(neighbor, item)
        elif item.session is None:
            del self.sessions[neighbor]
            self.usable.discard(neighbor)
            self.guard.link_down(neighbor)
        else:
            self.sessions[neighbor] = item.session
            self.guard.link_up(neighbor)

    def check(self, neighbor: str, probe: Probe) -> None:
        """A probe finds its own opening, or a link that was closed since; never another one."""
        link = self.guard._links[neighbor]
        if self.guard.state(neighbor) is LinkState.ACTIVE:
            assert probe.opening == link._active, f"{self.name}: {neighbor} in another opening"
        elif pair(self.name, neighbor) not in self.fabric.renewed:  # then it may be an old one
            assert probe.opening <= link._used, f"{self.name}: {neighbor} sent before we opened"


class Fabric:
    """Members, links and what is on the way; `trace` says what was done so far."""

    def __init__(self, names: list[str]) -> None:
        self.queues: dict[Pair, deque[Notice | Probe | bytes]] = {}
        self.sessions: dict[Pair, int] = {}
        self.renewed: set[Pair] = set()
        self.trace: list[str] = []
        self.delivered = 0
        self.members = {name: Member(name, self) for name in names}
        self._last_session = 0

    # ---- events ----

    def link_up(self, a: str, b: str) -> None:
        self._last_session += 1
        self.sessions[pair(a, b)] = self._last_session
        self._notice(a, b, self._last_session)

    def link_down(self, a: str, b: str) -> None:
        del self.sessions[pair(a, b)]
        for direction in ((a, b), (b, a)):
            waiting = self.queues[direction]
            notices = [item for item in waiting if isinstance(item, Notice)]
            waiting.clear()
            waiting.extend(notices)
        self._notice(a, b, None)

    def _notice(self, a: str, b: str, session: int | None) -> None:
        self.trace.append(f"{a}-{b} {'down' if session is None else 'up'}")
        for direction in ((a, b), (b, a)):
            self.queues.setdefault(direction, deque()).append(Notice(session))

    def restart(self, name: str) -> None:
        """The node dies and is back at once, with its links down."""
        for a, b in [ends for ends in self.sessions if name in ends]:
            self.link_down(a, b)
        self.trace.append(f"{name} restarts")
        for (_, target), waiting in self.queues.items():
            if target == name:
                waiting.clear()
        self.members[name].start()

    def renew(self, a: str, b: str) -> None:
        """Only `a` believes that the link was interrupted; nothing is lost on the way."""
        if self.members[a].sessions.get(b) == self.sessions[pair(a, b)]:
            self.trace.append(f"{a} renews its link to {b}")
            self.renewed.add(pair(a, b))
            self.members[a].usable.discard(b)
            self.members[a].guard.link_up(b)

    # ---- messages ----

    def put(self, sender: Member, neighbor: str, item: Probe | bytes) -> None:
        session = self.sessions.get(pair(sender.name, neighbor))
        if session is not None and sender.sessions.get(neighbor) == session:
            self.queues[sender.name, neighbor].append(item)

    def waiting(self) -> list[Pair]:
        return [direction for direction, queue in self.queues.items() if queue]

    def deliver(self, direction: Pair) -> None:
        item = self.queues[direction].popleft()
        self.delivered += 1
        self.trace.append(f"{direction[0]}>{direction[1]} {item!r:.300}")
        self.members[direction[1]].receive(direction[0], item)

    def step(self, rng: random.Random) -> bool:
        """Deliver one item of any queue, or end a pause; False if there is neither."""
        waiting = self.waiting()
        pausing = [member for member in self.members.values() if member.pauses]
        if not waiting and not pausing:
            return False
        number = rng.randrange(len(waiting) + len(pausing))
        if number < len(waiting):
            self.deliver(waiting[number])
        else:
            self.trace.append(f"{pausing[number - len(waiting)].name} has paused")
            pausing[number - len(waiting)].pause_over()
        return True

    def settle(self, rng: random.Random, limit: int) -> int:
        """Deliver until nothing is left; the number of deliveries, which must stay in `limit`."""
        for count in range(limit):
            if not self.step(rng):
                return count
        raise AssertionError(f"no rest after {limit} deliveries\n" + "\n".join(self.trace[-200:]))

    # ---- what must hold ----

    def active(self) -> set[Pair]:
        """Links that both ends hold for active."""
        return {
            (a, b)
            for a, b in self.sessions
            if b in self.members[a].usable and a in self.members[b].usable
        }

    def check_always(self) -> None:
        for member in self.members.values():
            states = {name: member.guard.state(name) for name in member.sessions}
            active = {name for name, state in states.items() if state is LinkState.ACTIVE}
            assert member.usable == active, f"{member.name}: actions and states differ"

    def check_at_rest(self) -> None:
        self.check_always()
        names = list(self.members)
        up = set(self.sessions)
        connected = components(names, up)
        active = self.active()
        assert is_forest(names, active), f"ring among {sorted(active)}"
        assert components(names, active) == connected, f"parted: {sorted(active)} of {sorted(up)}"
        for a, b in up:
            states = {self.members[a].guard.state(b), self.members[b].guard.state(a)}
            expected = LinkState.ACTIVE if (a, b) in active else LinkState.BLOCKED
            assert states == {expected}, f"{a}-{b}: {states}, expected {expected}"
        for name in names:
            self._check_knowledge(name, connected[name], active)

    def _check_knowledge(self, name: str, connected: frozenset[str], active: set[Pair]) -> None:
        member = self.members[name]
        others = connected - {name}
        assert set(member.guard.reach()) == others, name
        for target, reach in member.guard.reach().items():
            assert reach.path[0] == name
            assert reach.path[-1] == target
            assert reach.next_neighbor == reach.path[1]
            hops = zip(reach.path, reach.path[1:], strict=False)
            assert all(pair(*hop) in active for hop in hops), reach
            for neighbor in member.usable:
                primary = member.guard.is_primary(target, neighbor)
                assert primary == (neighbor == reach.next_neighbor)
        held = {key.node_id for key in member.guard._others}
        assert held == others, f"{name} still holds {sorted(held - others)}"
        assert not member.guard.duplicates()
        cut = {pair(*ring.link) for ring in member.guard.rings()}
        inside = {ends for ends in self.sessions if ends[0] in connected}
        assert cut == inside - active, f"{name}: {cut}"
        for ring in member.guard.rings():
            self._check_ring(ring, active)

    @staticmethod
    def _check_ring(ring: Ring, active: set[Pair]) -> None:
        hops = list(zip(ring.nodes, ring.nodes[1:], strict=False))
        assert len(hops) >= 2
        assert len(set(ring.nodes)) == len(ring.nodes)
        assert pair(ring.nodes[0], ring.nodes[-1]) == pair(*ring.link)
        assert all(pair(*hop) in active for hop in hops)
