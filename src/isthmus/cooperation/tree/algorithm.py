"""One tree over all nodes, which they build themselves (Overlays §3, §4, §5.1).

Nodes find each other (`meeting`), link with everybody that they hear of, and build a tree over the
links that are up (`wave`); its phases are those of Fig. 2 (`phases`).  Messages are flooded in
that tree, the paper's benchmark.

What makes it safe to change the tree while messages travel:

- every message carries the *label* of the tree that it travels in.  A tree never changes: a new
  one has a new label, and is used only when it is complete.  A node takes a message once for each
  label and gives it to its broker once (`Traffic`), so a message can be sent again in another
  tree without coming twice;
- who adopts a tree sends all that is not acknowledged yet again, in that tree, before what comes
  after it: what was stopped by the loss of a link, or crossed a tree that was about to be left,
  arrives, and in order.  Acknowledgment goes back along the whole way, so as long as the message
  has not arrived everywhere somebody has it who does so;
- what comes with another label than that of the tree in use goes on in the tree in use;
- a neighbor that is lost, and is in no tree now, still counts as a neighbor until its session is
  closed: what is for it waits, and if it comes back it has it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Set
from typing import ClassVar, Final, cast

from isthmus.cooperation.api import (
    AnnouncedNode,
    AtRest,
    CooperationAlgorithm,
    LinkOptions,
    Port,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionKind,
)
from isthmus.cooperation.tree.invariants import check_trees
from isthmus.cooperation.tree.meeting import Meeting
from isthmus.cooperation.tree.messages import (
    LABEL_BYTES,
    MAX_NODES,
    TOPIC,
    Adopt,
    Answer,
    Echo,
    Explore,
    Hello,
    TreeMessage,
    Waiting,
    Wave,
    encode,
    parse,
)
from isthmus.cooperation.tree.options import TreeOptions, options_of
from isthmus.cooperation.tree.phases import PHASES, Phase, PhaseAction, PhaseEvent
from isthmus.cooperation.tree.wave import Building, Tree
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.packets import Publish
from isthmus.tables import step

__all__ = ["SpanningTree"]

UNKNOWN_COST_US: Final = 10_000
"""Of a link whose RTT is not known yet."""
CAPABILITY_UNITS: Final = 10
STEADY: Final = 0.25
"""By what part the capability must change to count as another one."""
BETTER: Final = 1.5
"""How many times the root's capability a node must have to take its place."""
SLOWER: Final = 3.0
"""How many times as slow the link to the parent must become for another tree to be built."""
SETTLED_S: Final = 5.0
"""How long after a tree RTTs are what they are, and for how long a way must be the better one."""
LATELY_S: Final = 30.0
OFTEN: Final = 8
"""Trees that a node may have built in that time; from then on it waits longer before each."""
FLAPPING_S: Final = 0.2
MOST_DOUBLINGS: Final = 5
"""So it waits 6.4 s at most, and has 13 trees built in `LATELY_S`."""
LONGEST_REVIEW_S: Final = 3_600.0
TICK_S: Final = 1.0
"""How often a node whose wave takes long says that it still waits."""
MANY_NUMBERS: Final = 30
"""Of waves from one neighbor, without a tree: it is suspended."""
SUSPENDED_S: Final = 60.0
"""How long a neighbor is, or is not counted as it is mute."""

_FOUND, _GATHERED, _CHOOSE, _REPAIR, _REVIEW = "found", "gathered", "choose", "repair", "review"
_TICK, _FORGIVE, _CONTRADICT = "tick", "forgive", "contradict"
_SETTLED, _NEARER = "settled", "nearer"


class SpanningTree(CooperationAlgorithm):
    """Floods messages in a tree that the nodes have built."""

    name = "tree"
    topology = "any"
    survives_changes = True
    max_label_bytes = LABEL_BYTES
    discovers = True
    synchronizes = True
    options_kind: ClassVar[type[TreeOptions]] = TreeOptions

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, {})
        self._options = options_of(options, self.options_kind, self.name)
        self._building = Building(port.node_id, self)
        self._sessions: dict[str, SessionInfo] = {}
        """Of neighbors, also while their links are down."""
        self._labels: dict[str, bytes] = {}
        """Of the trees that neighbors whose links are up use, as far as they have said."""
        self._used: Tree | None = None
        """Of which messages are routed."""
        self._used_s = 0.0
        """Since when."""
        self._kept: dict[str, None] = {}
        """Neighbors in a tree before that, who are not in it."""
        self._gathering = False
        self._waves: Counter[tuple[str, bool]] = Counter()
        """That a neighbor was the first to tell of since the last tree was adopted; of its own, and
        of others."""
        self._counted: Wave | None = None
        self._begun_s: deque[float] = deque(maxlen=OFTEN + MOST_DOUBLINGS)
        """When this node had trees built, the last times."""
        self._built = 0
        self._sampled_us: dict[str, int] = {}
        """What the first message took there and back."""
        self._capability = 0
        self._review_s = self._options.review_s
        self._chosen_us = 0
        """What the link to the parent cost when the tree was adopted."""
        self._stamp = 0
        self._asked_s: dict[str, tuple[int, float]] = {}
        self._why = "the node has started"
        """The last time that a tree was built here."""
        self.phase = Phase.DISCOVERY
        self._meeting = Meeting(
            port,
            self._options,
            is_linked=self._sessions.__contains__,
            is_up=self._building.up.__contains__,
        )

    # ---- phases --------------------------------------------------------------------------

    def on_node_start(self) -> None:
        if self._meeting.start():
            self.port.set_timer(self._options.discovery_s, _FOUND)
        else:
            self.port.set_timer(0.0, _FOUND)
        self.port.set_timer(self._review_s, _REVIEW)

    def _happens(self, event: PhaseEvent, why: str = "") -> None:
        self.phase, actions = step(PHASES, self.phase, event)
        for action in actions:
            if action is PhaseAction.BUILD:
                self._why = why
                self._begun_s.append(self.port.now())
                self._built += 1
                self._building.begin()
            elif action is PhaseAction.USE:
                self._use()

    def _pause_s(self, pause_s: float) -> float:
        """Longer, the more often this node has had trees built of late: something flaps."""
        late_s = self.port.now() - LATELY_S
        often = sum(begun_s > late_s for begun_s in self._begun_s) - OFTEN
        return pause_s if often < 0 else max(pause_s, FLAPPING_S * 2**often)

    def on_timer(self, key: Hashable) -> None:
        if key == _FOUND:
            if self.phase is Phase.DISCOVERY:
                if self._building.in_progress:  # somebody else was sooner
                    self.port.set_timer(self._options.discovery_s, _FOUND)
                else:
                    self._happens(PhaseEvent.FOUND, "nobody else did")
        elif key == _CHOOSE:
            self._building.collected()
            if self._lost():
                self.port.set_timer(self._pause_s(self._options.repair_s), _REPAIR)
        elif key == _GATHERED:
            self._gathering = False
            strangers = self._strangers()
            if strangers:
                self._happens(PhaseEvent.STRANGER, f"not in the tree: {_some(strangers)}")
        elif key == _REPAIR:
            lost = self._lost()
            if lost:
                self._happens(PhaseEvent.BROKEN, f"lost: {_some(lost)}")
        elif key == _CONTRADICT:
            self._happens(PhaseEvent.STRANGER, "somebody else began a wave in this node's name")
        elif key == _REVIEW:
            self._review()
        elif key == _SETTLED:
            self._doubt()
        elif key == _NEARER:
            if shortcut := self._building.shortcut():
                self._better(f"the root is nearer over {shortcut}")
        elif key == _TICK:
            self._tick()
        elif isinstance(key, tuple) and key[0] == _FORGIVE:
            self._building.suspended.discard(key[1])
            self._building.mute.discard(key[1])
            self._look_for_strangers()
        else:
            self._meeting.timer(key)

    def wait(self) -> None:
        self.port.set_timer(TICK_S, _TICK)

    def contradict(self) -> None:
        self.port.set_timer(self._pause_s(0.0), _CONTRADICT)

    def _tick(self) -> None:
        before = set(self._building.mute)
        suspended = self._building.tick()
        for name in self._building.mute - before:
            self._suspend(name)
        if suspended:
            self._suspend(suspended)
            self.port.set_timer(self._pause_s(self._options.repair_s), _REPAIR)
        if self._building.in_progress and not self._building.is_stuck:
            self.port.set_timer(TICK_S, _TICK)

    def _suspend(self, name: str) -> None:
        """Until it is forgiven; who is mute, until it says something."""
        self.port.set_timer(SUSPENDED_S, (_FORGIVE, name))
        self.port.routes_changed()

    # ---- links ---------------------------------------------------------------------------

    def on_session_established(self, session: SessionInfo) -> None:
        if session.kind is not SessionKind.NEIGHBOR:
            return
        name = session.name
        self._sessions[name] = session
        self._labels[name] = b""
        self._building.link_up(name)
        self._meeting.linked(name)
        tree = self._building.tree
        self._stamp += 1
        self._asked_s[name] = (self._stamp, self.port.now())
        label, parent = (tree.label, tree.parent) if tree is not None else (b"", "")
        self.send(name, Hello(self._building.number, label, self._stamp, parent))
        self.port.routes_changed()

    def on_tcp_down(self, session: SessionInfo) -> None:
        if session.kind is SessionKind.NEIGHBOR:
            self._down(session.name)

    def on_session_closed(self, session: SessionInfo) -> None:
        name = session.name
        if session.kind is SessionKind.NEIGHBOR and self._sessions.get(name) is session:
            self._down(name)
            del self._sessions[name]
            self._kept.pop(name, None)
            self._sampled_us.pop(name, None)
            self.port.routes_changed()
        self._meeting.closed(session)

    def _down(self, name: str) -> None:
        if name not in self._building.up:
            return
        del self._labels[name]
        self._asked_s.pop(name, None)
        needed = self._building.link_down(name)
        self.port.routes_changed()  # what comes by the tree that is being built
        tree = self._building.tree
        if needed or (tree is not None and name in tree.neighbors):
            self.port.set_timer(self._pause_s(self._options.repair_s), _REPAIR)

    def _lost(self) -> list[str]:
        """Neighbors in the tree, or in the wave, whose links are not up."""
        tree = self._building.tree
        if self._building.is_stuck or (tree is None and not self._building.in_progress):
            return ["part of a tree that was being built"]
        if tree is None or self._building.in_progress:
            return []
        return [name for name in tree.neighbors if name not in self._building.up]

    def _strangers(self) -> list[str]:
        """Neighbors whose links are up and that use another tree."""
        tree = self._building.tree
        if self._building.in_progress:
            return []  # when it is adopted, it is looked again
        label = tree.label if tree is not None else b""
        left_out = self._building.mute | self._building.suspended
        return [
            name
            for name, said in self._labels.items()
            if name not in left_out and (not label or said != label)
        ]

    def _look_for_strangers(self) -> None:
        if not self._gathering and self._strangers():
            self._gathering = True
            self.port.set_timer(self._pause_s(self._options.merge_s), _GATHERED)

    def on_announcement(self, node: AnnouncedNode, data: bytes) -> None:
        self._meeting.heard(node)

    def on_node_add(self, address: str, options: LinkOptions) -> None:
        self._meeting.wanted(address, options)

    # ---- messages of the tree ------------------------------------------------------------

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if session.kind is not SessionKind.NEIGHBOR:
            return True
        packet = message.packet
        if not isinstance(packet, Publish) or packet.topic != TOPIC:
            raise RemoteProtocolError(
                f"neighbor {session.name} sends {message.type.name}, which `tree` does not know"
            )
        self._tree_message(session.name, parse(packet.payload))
        return True

    def _tree_message(self, name: str, said: TreeMessage) -> None:
        if isinstance(said, Hello):
            self._building.heard(said.number)
            if name in self._labels:
                tree = self._building.tree
                is_child = tree is not None and name in tree.children
                # Another node of that name may have been the child, or this one is another's.
                agrees = is_child == (said.parent == self.port.node_id)
                self._labels[name] = said.label if agrees else b""
                self.send(name, Answer(said.stamp))
                self._look_for_strangers()
        elif isinstance(said, Answer):
            stamp, asked_s = self._asked_s.pop(name, (0, 0.0))
            if stamp == said.stamp:
                self._sampled_us[name] = round((self.port.now() - asked_s) * 1e6)
        elif isinstance(said, Explore):
            self._count(name, said.wave)
            if not self._building.explored(name, said):
                self._labels[name] = b""
                self._look_for_strangers()
        elif isinstance(said, Echo):
            self._building.echoed(name, said)
            self._look_for_strangers()  # it may have been found mute, and come too late
        elif isinstance(said, Waiting):
            self._building.is_waiting(name, said)
        elif isinstance(said, Adopt):
            self._building.adopt_arrived(name, said)
        else:
            raise RemoteProtocolError(f"neighbor {name} advertises topics, which are flooded here")

    def _count(self, name: str, wave: Wave) -> None:
        """A neighbor whose waves come and come, and none of them comes to its end."""
        if wave == self._counted:
            return
        news = self._counted is None or wave.number != self._counted.number
        self._counted = wave
        kind = (name, wave.root == name)
        # Of one number there is a wave of each node that is better than those that it has heard.
        self._waves[kind] += MAX_NODES if news else 1
        if self._waves[kind] > MANY_NUMBERS * MAX_NODES:
            del self._waves[kind]
            self._building.suspended.add(name)
            self._suspend(name)

    def send(self, neighbor: str, message: TreeMessage) -> None:
        session = self._sessions.get(neighbor)
        if session is not None:  # else it has gone, and the tree with it
            packet = Publish(TOPIC, encode(message))
            self.port.send_message(session, self.port.create_mqtt_message(packet))

    def collect(self) -> None:
        self.port.set_timer(self._options.collect_s, _CHOOSE)

    def cost_us(self, neighbor: str) -> int:
        rtt_us = round(self._sessions[neighbor].rtt_s * 1e6)
        return rtt_us or self._sampled_us.get(neighbor, UNKNOWN_COST_US)

    def candidate(self, number: int) -> Wave:
        nonce = self.port.random.getrandbits(32)
        return Wave(
            number, self._capable(self._building.tree), self.port.address, self.port.node_id, nonce
        )

    def _capable(self, tree: Tree | None) -> int:
        """Overlays eq. 1, as long as it has not changed by much; more for who is the root."""
        free, options = self.port.resources, self._options
        weighed = options.alpha * free.cores + options.beta * free.memory_bytes / 2**30
        now = round(CAPABILITY_UNITS * weighed)
        if abs(now - self._capability) > STEADY * self._capability:
            self._capability = now
        is_root = tree is not None and not tree.parent and len(tree.nodes) > 1
        return round(self._capability * (1 + STEADY)) if is_root else self._capability

    def adopted(self, tree: Tree) -> None:
        self._happens(PhaseEvent.ADOPTED)

    def _use(self) -> None:
        tree, before = self._building.tree, self._used
        assert tree is not None
        self._used, self._used_s = tree, self.port.now()
        self._waves.clear()
        before_that = before.neighbors if before is not None else ()
        known = self._kept.keys() | set(before_that)
        self._kept = {
            name: None
            for name in (*self._kept, *before_that, *self._building.abandoned)
            if name in self._sessions and name not in tree.nodes
        }
        self._building.abandoned.clear()
        comes_to_be_kept = bool(self._kept.keys() - known)
        for name in tree.nodes & self._labels.keys():
            self._labels[name] = tree.label
        if tree.parent:
            self._chosen_us = self.cost_us(tree.parent)
        if before is None or tree.nodes != before.nodes:
            # It may have been built by the RTTs of nodes that were busy.
            self.port.set_timer(SETTLED_S, _SETTLED)

        def needed(labels: Set[bytes], missing: Set[str], source: SessionInfo | None) -> bool:
            """Unless all that are in the tree have it by the one before: who has not is away.

            Who was to be in a tree that was abandoned is away, too, and gets newer ones: so this.
            And who has it from a neighbor that is in the tree gets it again from the first one that
            has it: so what comes again comes in order.
            """
            if source is not None and self._sends_again(source, tree, labels):
                return False
            if before is None or before.label not in labels or comes_to_be_kept:
                return True
            return not (tree.nodes <= before.nodes and missing.isdisjoint(before.nodes))

        self.port.routes_changed(resend=needed)
        for name in tree.neighbors:
            session = self._sessions.get(name)
            if session is not None and (before is None or name not in before.neighbors):
                # What went by the tree before, and at QoS 0 may be lost with a link of it.
                self.port.compare_retained(session)
        self._synchronize()
        if self._lost():
            self.port.set_timer(self._pause_s(self._options.repair_s), _REPAIR)
        self._look_for_strangers()

    def _resends(self, labels: Set[bytes], _missing: Set[str], source: SessionInfo | None) -> bool:
        """What has gone by trees over all nodes comes again from who is before, if it is there.

        For algorithms that have other ways as well.
        """
        tree = self._building.tree
        return source is None or tree is None or not self._sends_again(source, tree, labels)

    def _sends_again(self, source: SessionInfo, tree: Tree, labels: Set[bytes]) -> bool:
        """Whether what came from there, and went on with these labels, comes again in the tree."""
        return self._uses(source, tree) and _in_trees(labels)

    def _synchronize(self) -> None:
        """All that is to be known of these neighbors is known."""
        for name in self._labels:
            if self._used is not None and name in self._used.nodes and self._has_told(name):
                self.port.synchronized(self._sessions[name])

    def _has_told(self, _name: str) -> bool:
        """What a neighbor has to say besides which tree it uses."""
        return True

    def _review(self) -> None:
        """Now and then: whether it is worth building another tree; less often if it was not."""
        tree = self._building.tree
        why = ""
        # If the link to the parent is lost, the tree is about to be repaired.
        if tree is not None and not self._building.in_progress and tree.parent in self._building.up:
            own = self._do_not_flap(tree)
            slow = self.cost_us(tree.parent) > SLOWER * self._chosen_us + UNKNOWN_COST_US
            others = any(
                self.cost_us(each) < self.cost_us(tree.parent) / SLOWER
                for each in self._building.up
            )
            if own:
                why = "this node has become the most capable"
            elif slow and others:
                why = f"the link to {tree.parent} has become slow"
        if why:
            self._better(why)
        elif not self._doubt():
            self._review_s = self._options.review_s
        self.port.set_timer(self._review_s, _REVIEW)

    def _doubt(self) -> bool:
        """Whether the tree may be a bad one; if it still seems so in a moment, it is."""
        used = self._used.label if self._used is not None else b""
        same = [name for name, said in self._labels.items() if said and said == used]
        doubtful = self._building.ask_beside(same) or bool(self._building.shortcut())
        if doubtful:
            self.port.set_timer(SETTLED_S, _NEARER)
        return doubtful

    def _better(self, why: str) -> None:
        self._happens(PhaseEvent.BETTER, why)
        self._review_s = min(2 * self._review_s, LONGEST_REVIEW_S)

    def _do_not_flap(self, tree: Tree) -> bool:
        return self._capable(tree) > BETTER * tree.wave.capability

    # ---- data plane ----------------------------------------------------------------------

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        here = arrived_on.kind is SessionKind.NEIGHBOR
        tree = self._building.tree
        if tree is None or (not here and self._is_to_join(tree)):
            return Route(to_local_broker=here, pending=True)
        edges, used, kept, known = tree.neighbors, tree.label, self._kept, True
        if label not in (b"", used) and (ahead := self._building.edges_of(label)) is not None:
            edges, used, kept, known = ahead, label, self._kept_ahead(tree), False
        if any(name not in self._sessions for name in edges):
            # It is no neighbor any more: who is beyond it will be in the next tree.
            return Route(to_local_broker=here, pending=True)
        known = known and not retain  # what is retained, all brokers have
        wanted = [name for name in edges if not known or self._goes_to(topic, name)]
        neighbors = (self._sessions[name] for name in dict.fromkeys((*wanted, *kept)))
        hops = [(each, used) for each in neighbors if not (each is arrived_on and label == used)]
        # Who is in another tree may rely on this node for nodes that this one does not reach.
        stranger = (
            here
            and label != used
            and arrived_on.name not in tree.nodes
            and arrived_on.name not in self._building.mute | self._building.suspended
        )
        return Route.labeled(hops, to_local_broker=here, provisional=stranger)

    def _is_to_join(self, tree: Tree) -> bool:
        """Whether this node is alone in its tree, and others that answer will be in the next."""
        left_out = self._building.mute | self._building.suspended
        return len(tree.nodes) == 1 and any(name not in left_out for name in self._labels)

    def _kept_ahead(self, tree: Tree) -> dict[str, None]:
        """`_kept` as it will be when the tree that is being built is used, or more.

        Who is in that one without this node having asked it takes what comes by both ways once.
        """
        lost = (*tree.neighbors, *self._building.abandoned)
        names = (name for name in lost if not self._building.is_asked(name))
        return self._kept | dict.fromkeys(name for name in names if name in self._sessions)

    def _goes_to(self, topic: str, name: str) -> bool:
        """Whether somebody behind that neighbor in the tree may want it."""
        return True

    def reaches(self, node_id: str) -> bool | None:
        tree = self._building.tree
        return tree is not None and node_id in tree.nodes

    def comes_again(self, session: SessionInfo, label: bytes) -> bool:
        """Who uses the same tree, or is about to, and has not got an acknowledgment yet."""
        tree = self._building.tree
        return tree is not None and self._uses(session, tree)

    def _uses(self, session: SessionInfo, tree: Tree) -> bool:
        name = session.name
        return (
            name in tree.nodes and name in self._building.up and self._sessions.get(name) is session
        )

    def label_now(self, label: bytes, topic: bytes) -> bytes:
        tree = self._building.tree
        if tree is None or self._building.edges_of(label) is not None:
            return label
        return tree.label

    @property
    def fabric_size(self) -> int:
        tree = self._building.tree
        return len(tree.nodes) if tree is not None else 0

    # ---- what people and tests see -------------------------------------------------------

    @property
    def tree(self) -> Tree | None:
        """The Overlay Routing Table."""
        return self._building.tree

    def status(self) -> dict[str, object]:
        tree = self._building.tree
        return {
            "phase": self.phase.name,
            "why": self._why,
            "built": self._built,
            "capability": self._capability / CAPABILITY_UNITS,
            "tree": tree
            and {
                "number": tree.wave.number,
                "root": tree.wave.root,
                "root_capability": tree.wave.capability / CAPABILITY_UNITS,
                "parent": tree.parent,
                "children": sorted(tree.children),
                "cost_ms": tree.cost_us / 1000,
                "nodes": sorted(tree.nodes),
                "age_s": round(self.port.now() - self._used_s, 3),
            },
            "kept": sorted(self._kept),
        }

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        check_trees(cast("Mapping[str, SpanningTree]", fabric.algorithms), fabric.links)


def _in_trees(labels: Set[bytes]) -> bool:
    """Whether they are all of trees over all nodes."""
    return all(len(label) == LABEL_BYTES for label in labels)


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (" and others" if len(names) > 5 else "")
