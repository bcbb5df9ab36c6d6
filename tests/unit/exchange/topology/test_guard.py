"""The topology guard, case by case.  Any interleaving is in `tests/property/test_topology.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from isthmus.errors import LocalProtocolError, RemoteProtocolError
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.topology import guard as topology
from isthmus.exchange.topology import link as guarded_link
from isthmus.exchange.topology.guard import Reach, Ring
from isthmus.exchange.topology.messages import (
    LEAP,
    MAX_LINKS,
    MAX_PAYLOAD_BYTES,
    QUIET,
    Announcement,
    GuardHello,
    LinkEntry,
    Message,
    NodeKey,
    Opening,
    Update,
    encode_hello,
    encode_opening,
    encode_updates,
    parse,
)
from isthmus.exchange.topology.view import TopologyView
from support.topology_fabric import Fabric
from support.watched_guard import WatchedGuard

LEARNING, ACTIVE, BLOCKED = LinkState.LEARNING, LinkState.ACTIVE, LinkState.BLOCKED


def fabric_of(names: str, *links: str) -> Fabric:
    """Links one after the other, each at rest before the next."""
    fabric = Fabric(list(names))
    for ends in links:
        add(fabric, ends)
    return fabric


def add(fabric: Fabric, ends: str) -> None:
    fabric.link_up(*ends)
    rest(fabric)


def cut(fabric: Fabric, ends: str) -> None:
    fabric.link_down(*ends)
    rest(fabric)


def rest(fabric: Fabric) -> None:
    fabric.settle(random.Random(0), limit=10_000)
    fabric.check_at_rest()


def state(fabric: Fabric, ends: str) -> LinkState:
    a, b = tuple(ends)
    found = {fabric.members[a].guard.state(b), fabric.members[b].guard.state(a)}
    assert len(found) == 1
    return found.pop()


class Recorder:
    """Actions as a list; `on_activate` and `on_send` may call the guard."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.calls: list[str] = []
        self.pauses: list[float] = []
        self.changes = 0
        self.on_activate: Callable[[], None] = lambda: None
        self.on_send: Callable[[], None] = lambda: None

    def send(self, neighbor: str, payload: bytes) -> None:
        self.sent.append((neighbor, payload))
        self.calls.append(f"send {neighbor}")
        self.on_send()

    def activate(self, neighbor: str) -> None:
        self.calls.append(f"activate {neighbor}")
        self.on_activate()

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        self.calls.append(f"block {neighbor} {'-'.join(ring)}")

    def pause(self, pause_s: float) -> None:
        self.pauses.append(pause_s)

    def topology_changed(self) -> None:
        self.changes += 1

    def last(self) -> Message:
        return parse(self.sent[-1][1])


def update(*nodes: Announcement, gone: tuple[NodeKey, ...] = ()) -> bytes:
    (payload,) = encode_updates(nodes, gone)
    return payload


A, B, C = NodeKey("a", "1"), NodeKey("b", "1"), NodeKey("c", "1")


def guard_with_active_link() -> tuple[WatchedGuard, Recorder]:
    """Guard a, whose neighbor b is played by the test."""
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, 1),))))
    assert guard.state("b") is ACTIVE
    actions.calls.clear()
    return guard, actions


def own_openings(actions: Recorder) -> dict[str, int]:
    """What guard a announced of its links last."""
    updates = [parse(payload) for _, payload in actions.sent]
    own = [
        announcement
        for message in updates
        if isinstance(message, Update)
        for announcement in message.nodes
        if announcement.node == A
    ]
    return {entry.far_end.node_id: entry.opening for entry in own[-1].links}


# ---- one link ----


def test_a_link_is_learned_and_then_activated() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    assert guard.state("b") is LinkState.DOWN
    guard.link_up("b")
    assert guard.state("b") is LEARNING
    assert actions.last() == GuardHello("1", 1)
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    assert guard.state("b") is LEARNING
    assert actions.last() == Update((Announcement(A, 2, (LinkEntry(B, 5, 0),)),), ())
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, 0),))))
    assert guard.state("b") is LEARNING
    assert actions.last() == Update((Announcement(A, 3, (LinkEntry(B, 5, 1),)),), ())
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(A, 5, 1),))))
    assert guard.state("b") is ACTIVE
    assert actions.calls == ["send b"] * 3 + ["activate b"]
    assert actions.changes == 4, "once for each thing that happened"
    assert guard.reach() == {"b": Reach("b", ("a", "b"))}


def test_what_is_told_goes_before_the_activation() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, 1),))))
    assert actions.calls[-2:] == ["send b", "activate b"]


def test_a_link_of_an_earlier_session_is_not_believed() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 4, 1),))))
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(NodeKey("a", "0"), 5, 1),))))
    assert guard.state("b") is LEARNING
    assert "activate b" not in actions.calls


def test_an_opening_counts_only_over_the_link_itself() -> None:
    """a knows from c that b opened; what b sent over the link before may still be on its way."""
    guard, actions, opened = guard_with_a_witness()
    assert (guard.state("b"), guard.state("c")) == (LEARNING, ACTIVE)
    assert own_openings(actions) == {"b": 0, "c": 1}
    guard.message_arrived("b", update(opened))
    assert guard.state("b") is ACTIVE


def guard_with_a_witness() -> tuple[WatchedGuard, Recorder, Announcement]:
    """a with links to b (no announcement yet) and c (active), which vouches for b's opening."""
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.link_up("c")
    for name in "bc":
        guard.pause_over()
        guard.message_arrived(name, encode_hello(GuardHello("1", 5)))
    opened = Announcement(B, 3, (LinkEntry(A, 5, 1),))
    guard.message_arrived("c", update(opened, Announcement(C, 1, (LinkEntry(A, 5, 1),))))
    return guard, actions, opened


def test_an_opening_of_another_birth_does_not_count() -> None:
    guard, _, _ = guard_with_a_witness()
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(A, 4, 1),))))
    assert guard.state("b") is LEARNING


def test_nothing_is_reached_over_a_link_that_is_not_active_here() -> None:
    guard, _, opened = guard_with_a_witness()
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(A, 5, 0),))))
    assert guard.state("b") is LEARNING  # though both ends have opened it, going by c's word
    assert set(guard.reach()) == {"c"}
    guard.message_arrived("b", update(opened))
    assert set(guard.reach()) == {"b", "c"}


def test_of_two_active_paths_the_one_in_the_forest_is_primary() -> None:
    """A ring that came about in a race, as b sees it before c and d have closed their link."""
    actions = Recorder()
    guard = WatchedGuard("b", "1", actions)
    for name in "ac":
        guard.link_up(name)
    for name in "ac":
        guard.pause_over()
        guard.message_arrived(name, encode_hello(GuardHello("1", 5)))
    d = NodeKey("d", "1")
    guard.message_arrived("c", update(Announcement(C, 1, (LinkEntry(B, 5, 1), LinkEntry(d, 5, 1)))))
    guard.message_arrived("a", update(Announcement(A, 1, (LinkEntry(B, 5, 1), LinkEntry(d, 7, 1)))))
    guard.message_arrived("a", update(Announcement(d, 1, (LinkEntry(A, 7, 1), LinkEntry(C, 5, 1)))))
    guard.pause_over()
    assert (guard.state("a"), guard.state("c")) == (ACTIVE, ACTIVE)
    assert guard.rings() == [Ring(("a", "d"), ("a", "b", "c", "d"))]
    assert guard.is_primary("d", "c")
    assert not guard.is_primary("d", "a")


def test_an_opening_is_never_used_twice() -> None:
    """b's 1 is the answer to a's first opening, of which b does not know yet that it is over."""
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("c")
    guard.link_up("b")
    guard.message_arrived("c", encode_hello(GuardHello("1", 5)))
    guard.pause_over()
    guard.message_arrived("b", encode_hello(GuardHello("1", 9)))
    guard.message_arrived("c", update(Announcement(C, 1, (LinkEntry(A, 5, 1), LinkEntry(B, 7, 1)))))
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 9, 0),))))
    assert own_openings(actions) == {"b": 1, "c": 1}
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(A, 9, 0), LinkEntry(C, 7, 1)))))
    assert own_openings(actions) == {"b": 1, "c": 1}  # news of others are gathered
    guard.pause_over()
    assert own_openings(actions) == {"b": 0, "c": 1}  # c─b has come up: a─b closes a ring
    guard.message_arrived("b", update(Announcement(B, 3, (LinkEntry(A, 9, 1),))))
    guard.message_arrived("c", update(Announcement(C, 2, (LinkEntry(A, 5, 1),))))
    assert own_openings(actions) == {"b": 2, "c": 1}  # c─b is gone again
    assert guard.state("b") is not ACTIVE
    guard.message_arrived("b", update(Announcement(B, 4, (LinkEntry(A, 9, 2),))))
    assert guard.state("b") is ACTIVE


def test_a_hello_makes_former_openings_void() -> None:
    guard, actions, opened = guard_with_a_witness()
    guard.message_arrived("b", update(opened))
    guard.pause_over()
    actions.calls.clear()
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    assert guard.state("b") is BLOCKED
    assert "block b " in actions.calls
    guard.message_arrived("b", update(Announcement(B, 4, (LinkEntry(A, 5, 2),))))
    assert guard.state("b") is ACTIVE


def test_the_other_end_closes_and_opens_again() -> None:
    guard, actions = guard_with_active_link()
    guard.message_arrived("b", update(Announcement(B, 2, (LinkEntry(A, 5, 0),))))
    assert guard.state("b") is BLOCKED
    assert actions.calls == ["send b", "block b "]
    actions.calls.clear()
    guard.message_arrived("b", update(Announcement(B, 3, (LinkEntry(A, 5, 2),))))
    assert guard.state("b") is ACTIVE
    assert actions.calls == ["activate b"]


def test_a_newer_opening_interrupts_the_older_one() -> None:
    """The closing in between was overtaken: the algorithm must begin anew all the same."""
    guard, actions = guard_with_active_link()
    guard.message_arrived("b", update(Announcement(B, 3, (LinkEntry(A, 5, 2),))))
    assert actions.calls == ["send b", "block b ", "activate b"]
    own = actions.last()
    assert isinstance(own, Update)
    assert own.nodes[-1].links == (LinkEntry(B, 5, 2),)


def test_a_second_hello_of_another_epoch_is_answered() -> None:
    guard, actions = guard_with_active_link()
    guard.message_arrived("b", encode_hello(GuardHello("1", 9)))
    assert actions.calls == ["send b", "send b", "block b "]
    assert parse(actions.sent[-2][1]) == GuardHello("1", 1)
    assert guard.reach() == {}


def test_an_end_adopts_the_opening_of_the_other() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.message_arrived("b", update(Announcement(B, 9, (LinkEntry(A, 5, 3),))))
    assert own_openings(actions) == {"b": 3}
    assert guard.state("b") is ACTIVE


def test_a_new_link_is_younger_than_all_that_was_heard_of() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.link_up("c")
    assert actions.last() == GuardHello("1", 6)
    known = (LinkEntry(A, 5, 1), LinkEntry(NodeKey("x", "1"), 70, 0))
    guard.message_arrived("b", update(Announcement(B, 2, known)))
    guard.link_up("d")
    assert actions.last() == GuardHello("1", 71)


def test_own_links_are_told_last() -> None:
    """Who sees the link in them knows everything that the other end knows."""
    guard, actions = guard_with_active_link()
    guard.link_up("c")
    guard.message_arrived("c", encode_hello(GuardHello("1", 5)))
    told = actions.last()
    assert isinstance(told, Update)
    assert [announcement.node for announcement in told.nodes] == [B, A]


def test_updates_before_the_hello_are_left_over_and_ignored() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 1, 1),))))
    assert guard.state("b") is LEARNING
    assert actions.calls == ["send b"]
    guard, _ = guard_with_active_link()
    x = NodeKey("x", "1")
    known = (LinkEntry(A, 5, 1), LinkEntry(x, 3, 1))
    guard.message_arrived("b", update(Announcement(B, 2, known)))
    guard.link_up("c")
    guard.message_arrived("c", update(Announcement(x, 1, (LinkEntry(B, 3, 1),))))
    assert "x" not in guard.reach()


def test_messages_of_links_that_are_down_are_ignored() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.message_arrived("b", encode_hello(GuardHello("1", 9)))
    guard.link_down("b")
    assert actions.calls == []


def test_an_action_may_call_the_guard() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)

    def give_up_b_for_d() -> None:
        guard.link_down("b")
        guard.link_up("d")
        actions.calls.append("has given up b")

    actions.on_activate = give_up_b_for_d
    guard.link_up("b")
    guard.link_up("c")
    for name in "bc":
        guard.message_arrived(name, encode_hello(GuardHello("1", 5)))
        guard.pause_over()
    guard.pause_over()
    actions.calls.clear()
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, 1),))))
    assert guard.state("b") is LinkState.DOWN
    # What follows from the two calls comes after the action that made them.
    decided = ["send b", "send c", "activate b", "has given up b"]
    assert actions.calls == [*decided, "send d"]
    guard.pause_over()
    assert actions.calls == [*decided, "send d", "send c"]


def test_nothing_is_done_on_a_link_that_an_action_gave_up() -> None:
    guard, actions, _ = guard_with_a_witness()
    actions.calls.clear()
    actions.on_send = lambda: guard.link_down("c")
    guard.message_arrived("b", update(Announcement(B, 4, (LinkEntry(A, 5, 1),))))
    assert "send b" in actions.calls
    assert "send c" not in actions.calls


@pytest.mark.parametrize("sequence", [4, 5])
def test_what_a_neighbor_takes_back_in_a_pause_is_not_believed(sequence: int) -> None:
    guard, actions, opened = guard_with_a_witness()
    x = NodeKey("x", "1")
    links = (*opened.links, LinkEntry(x, 3, 1))
    guard.message_arrived("b", update(Announcement(B, 4, links)))
    said = {number: Announcement(x, number, (LinkEntry(B, 3, 1),)) for number in (4, 5, 7)}
    guard.message_arrived("c", update(said[4]))
    guard.pause_over()
    guard.message_arrived("b", update(said[5]))
    guard.pause_over()
    pauses = len(actions.pauses)
    guard.message_arrived("b", update(said[7]))
    guard.message_arrived("b", update(said[sequence]))
    assert guard._others[x] == said[5]
    assert len(actions.pauses) == pauses, "all this is in a pause"
    guard.pause_over()
    assert guard._others[x] == said[sequence]


def test_of_what_neighbors_say_in_a_pause_the_latest_is_believed() -> None:
    guard, _, _ = guard_with_a_witness()
    x = NodeKey("x", "1")
    said = [Announcement(x, number, (LinkEntry(C, number, 0),)) for number in (3, 7, 5)]
    for name, announcement in zip("bcb", said, strict=True):
        guard.message_arrived(name, update(announcement))
    guard.pause_over()
    assert guard._others[x] == said[1]
    guard.link_down("c")
    assert guard._others[x] == said[2]


def test_while_much_is_gathered_links_are_closed_but_not_opened() -> None:
    guard, actions, opened = guard_with_a_witness()
    many = [NodeKey(f"x{number}", "1") for number in range(topology.FEW + 1)]
    guard.message_arrived("c", update(*(Announcement(key, 1, ()) for key in many)))
    guard.message_arrived("b", update(replace(opened, links=(LinkEntry(A, 5, 0),))))
    assert own_openings(actions) == {"b": 0, "c": 1}
    guard.message_arrived("c", update(Announcement(C, 2, (LinkEntry(A, 5, 0),))))
    assert guard.state("c") is BLOCKED, "what the other end did is seen at once"
    assert own_openings(actions) == {"b": 0, "c": 0}
    guard.pause_over()
    assert own_openings(actions) == {"b": 1, "c": 2}


def test_nothing_is_reached_over_a_link_that_went_down_while_much_was_gathered() -> None:
    """c still says that b keeps the link closed; that b has opened it was gathered, too."""
    guard, _, _ = guard_with_a_witness()
    closed = Announcement(B, 4, (LinkEntry(A, 5, 0),))
    guard.message_arrived("b", update(closed))
    guard.message_arrived("c", update(closed))
    many = [NodeKey(f"x{number}", "1") for number in range(topology.FEW + 1)]
    guard.message_arrived("c", update(*(Announcement(key, 1, ()) for key in many)))
    guard.message_arrived("b", update(Announcement(B, 5, (LinkEntry(A, 5, 1),))))
    assert set(guard.reach()) == {"b", "c"}
    guard.link_down("b")
    assert set(guard.reach()) == {"c"}


# ---- rings ----


def test_the_link_that_closes_a_triangle_is_blocked() -> None:
    #   a ── b
    #    ╲   │
    #     ╲  │     a─c comes last
    #        c
    fabric = fabric_of("abc", "ab", "bc", "ac")
    assert [state(fabric, ends) for ends in ("ab", "bc", "ac")] == [ACTIVE, ACTIVE, BLOCKED]
    assert fabric.members["a"].blocks == [("c", ("a", "b", "c"))]
    assert fabric.members["c"].blocks == [("a", ("a", "b", "c"))]
    assert fabric.members["b"].blocks == []
    for member in fabric.members.values():
        assert member.guard.rings() == [Ring(("a", "c"), ("a", "b", "c"))]


def test_names_do_not_decide_what_age_decides() -> None:
    fabric = fabric_of("abc", "bc", "ac", "ab")
    assert [state(fabric, ends) for ends in ("ab", "bc", "ac")] == [BLOCKED, ACTIVE, ACTIVE]


def test_a_standby_takes_over_and_stays() -> None:
    fabric = fabric_of("abcd", "ab", "bc", "cd", "da")
    assert state(fabric, "da") is BLOCKED
    cut(fabric, "bc")
    assert state(fabric, "da") is ACTIVE
    add(fabric, "bc")  # is back, and is now the youngest
    assert (state(fabric, "da"), state(fabric, "bc")) == (ACTIVE, BLOCKED)


def test_break_before_make() -> None:
    #        d          a─b (5) and a─c (6) are older than d─b (8) and b─c (9), which are open:
    #      /   \        those must be closed first, at both ends, and one ring after the other
    #    a ───── b
    #      \   /
    #        c
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    for name, epoch in (("b", 5), ("c", 6), ("d", 7)):
        guard.link_up(name)
        guard.message_arrived(name, encode_hello(GuardHello("1", epoch)))
        guard.pause_over()
    sequence = 0

    def say(name: str, *links: tuple[NodeKey, int, int]) -> dict[str, int]:
        nonlocal sequence
        sequence += 1
        node = NodeKey(name, "1")
        entries = tuple(LinkEntry(*link) for link in links)
        guard.message_arrived(name, update(Announcement(node, sequence, entries)))
        guard.pause_over()
        return own_openings(actions)

    d = NodeKey("d", "1")
    say("d", (A, 7, 1), (B, 8, 1))
    assert guard.state("d") is ACTIVE
    assert say("b", (A, 5, 0), (C, 9, 1), (d, 8, 1)) == {"b": 0, "c": 0, "d": 1}
    assert say("c", (A, 6, 0), (B, 9, 1)) == {"b": 0, "c": 0, "d": 1}
    assert say("b", (A, 5, 0), (C, 9, 1), (d, 8, 0)) == {"b": 0, "c": 0, "d": 1}
    assert say("d", (A, 7, 1), (B, 8, 0)) == {"b": 1, "c": 0, "d": 1}
    assert say("c", (A, 6, 0), (B, 9, 0)) == {"b": 1, "c": 0, "d": 1}
    assert say("b", (A, 5, 0), (C, 9, 0), (d, 8, 0)) == {"b": 1, "c": 1, "d": 1}


def test_what_is_closed_now_keeps_nothing_else_closed() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.link_up("c")
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.pause_over()
    guard.message_arrived("c", encode_hello(GuardHello("1", 9)))
    guard.message_arrived("c", update(Announcement(C, 1, (LinkEntry(A, 9, 0), LinkEntry(B, 7, 1)))))
    assert own_openings(actions) == {"b": 0, "c": 1}  # c has not opened its end yet
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, 0), LinkEntry(C, 7, 1)))))
    assert own_openings(actions) == {"b": 1, "c": 0}


def test_two_rings_that_share_links_lose_one_link_each() -> None:
    #   a ── b ── c
    #   │    │    │
    #   f ── e ── d
    fabric = fabric_of("abcdef", "ab", "bc", "cd", "de", "ef", "fa", "be")
    rings = fabric.members["a"].guard.rings()
    assert [ring.link for ring in rings] == [("a", "f"), ("b", "e")]
    assert [len(ring.nodes) for ring in rings] == [6, 4]


def test_a_cut_off_part_is_forgotten_and_found_again() -> None:
    fabric = fabric_of("abcd", "ab", "bc", "cd")
    cut(fabric, "bc")
    assert set(fabric.members["a"].guard.reach()) == {"b"}
    add(fabric, "ad")
    assert fabric.members["b"].guard.reach()["c"] == Reach("a", ("b", "a", "d", "c"))


def test_a_restarted_node_is_one_node() -> None:
    fabric = fabric_of("abc", "ab", "bc", "ac")
    fabric.restart("b")
    fabric.link_up("a", "b")
    fabric.link_up("b", "c")
    rest(fabric)
    assert state(fabric, "ac") is ACTIVE  # the oldest now
    assert fabric.members["a"].guard.duplicates() == {}


def test_data_may_come_over_the_primary_only() -> None:
    fabric = fabric_of("abc", "ab", "bc", "ac")
    guard = fabric.members["a"].guard
    assert guard.is_primary("c", "b")
    assert not guard.is_primary("c", "c")
    assert guard.is_primary("stranger", "b")
    assert not guard.is_primary("a", "b"), "own messages that come back have gone round"


# ---- the view ----


def view_of(bc: LinkEntry, cb: LinkEntry) -> TopologyView:
    """a ── b ── c as a sees it, with b's and c's entries for the link between them."""
    nodes = [
        Announcement(A, 1, (LinkEntry(B, 5, 1),)),
        Announcement(B, 1, (LinkEntry(A, 5, 1), bc)),
        Announcement(C, 1, (cb,)),
    ]
    return TopologyView(A, nodes)


def test_a_link_needs_two_ends_that_mean_the_same() -> None:
    assert view_of(LinkEntry(C, 6, 1), LinkEntry(B, 6, 1)).nodes == {A, B, C}
    assert view_of(LinkEntry(C, 6, 1), LinkEntry(B, 7, 1)).nodes == {A, B}
    assert view_of(LinkEntry(C, 6, 1), LinkEntry(NodeKey("b", "2"), 6, 1)).nodes == {A, B}


@pytest.mark.parametrize(
    ("one", "other", "active"),
    [
        (1, 1, True),
        (0, 0, False),
        (1, 0, False),
        (1, 2, False),
        (QUIET, QUIET, True),
        (QUIET, 2, True),
        (QUIET, 0, False),
    ],
)
def test_a_link_is_active_when_both_ends_have_the_same_opening(
    one: int, other: int, active: bool
) -> None:
    for openings in ((one, other), (other, one)):
        view = view_of(LinkEntry(C, 6, openings[0]), LinkEntry(B, 6, openings[1]))
        edge = view.edge((B, C))
        assert edge is not None
        assert edge.active is active


# ---- pauses ----


def guard_of_two() -> tuple[WatchedGuard, Recorder]:
    """Guard a between b and c, which are played by the test; nothing was told just before."""
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    for key, birth in ((B, 5), (C, 6)):
        guard.link_up(key.node_id)
        guard.message_arrived(key.node_id, encode_hello(GuardHello("1", birth)))
        guard.message_arrived(key.node_id, update(Announcement(key, 1, (LinkEntry(A, birth, 1),))))
        assert guard.state(key.node_id) is ACTIVE
        for _ in range(3):
            guard.pause_over()
    actions.sent.clear()
    actions.pauses.clear()
    return guard, actions


def chain(sequence: int, opening: int = 1) -> bytes:
    """b has a neighbor d."""
    d = NodeKey("d", "1")
    ends = (LinkEntry(A, 5, 1), LinkEntry(d, 6, opening))
    return update(
        Announcement(d, sequence, (LinkEntry(B, 6, opening),)), Announcement(B, 1 + sequence, ends)
    )


def told_of_d(actions: Recorder) -> list[int]:
    """The sequence numbers of d that were told, in order."""
    messages = [parse(payload) for _, payload in actions.sent]
    nodes = [node for each in messages if isinstance(each, Update) for node in each.nodes]
    return [node.sequence for node in nodes if node.node.node_id == "d"]


def test_one_change_is_told_at_once_and_those_that_follow_together() -> None:
    guard, actions = guard_of_two()
    guard.message_arrived("b", chain(1))
    assert [neighbor for neighbor, _ in actions.sent] == ["c"]
    assert told_of_d(actions) == [1]
    (pause_s,) = actions.pauses
    for sequence in range(2, 10):
        guard.message_arrived("b", chain(sequence, sequence))
    assert told_of_d(actions) == [1]
    guard.pause_over()
    assert told_of_d(actions) == [1, 9]
    assert actions.pauses == [pause_s, pause_s]
    guard.pause_over()
    assert len(actions.pauses) == 2


def test_the_pause_is_longer_when_there_is_more_to_tell() -> None:
    guard, actions = guard_of_two()
    keys = [B, *(NodeKey(f"d{number}", "1") for number in range(400))]
    line = [
        Announcement(key, 9, tuple(LinkEntry(near, 6, 1) for near in nears if near))
        for key, *nears in zip(keys[1:], keys[:-1], [*keys[2:], None], strict=True)
    ]
    own = Announcement(B, 9, (LinkEntry(A, 5, 1), LinkEntry(keys[1], 6, 1)))
    for payload in encode_updates([*line[:100], own], []):
        guard.message_arrived("b", payload)
    guard.pause_over()
    for payload in encode_updates(line[100:], []):
        guard.message_arrived("b", payload)
    guard.pause_over()
    assert guard.size == 403
    shorter_s, longer_s = sorted(actions.pauses)[0], sorted(actions.pauses)[-1]
    assert shorter_s < longer_s <= 0.5


def test_with_news_of_its_own_a_node_tells_all_that_waits() -> None:
    guard, actions = guard_of_two()
    guard.message_arrived("b", chain(1))
    guard.message_arrived("b", chain(2, 2))
    actions.sent.clear()
    guard.message_arrived("c", encode_hello(GuardHello("1", 9)))  # c begins anew
    assert told_of_d(actions) == [2]
    last = actions.last()
    assert isinstance(last, Update)
    assert last.nodes[-1].node == A


def test_a_number_that_leaps_is_not_gathered_with_others() -> None:
    guard, actions = guard_of_two()
    for sequence in (1, 2, 3, 3 + LEAP, 4 + LEAP):
        guard.message_arrived("b", chain(sequence, sequence % LEAP))
    guard.pause_over()
    assert told_of_d(actions) == [1, 3, 3 + LEAP, 4 + LEAP]


def test_a_hello_that_is_repeated_hides_nothing_that_has_gone() -> None:
    guard, actions = guard_of_two()
    guard.message_arrived("b", chain(1))  # which is told to c, and a pause begins
    d = NodeKey("d", "1")
    guard.message_arrived("b", update(Announcement(B, 3, (LinkEntry(A, 5, 1),)), gone=(d,)))
    guard.message_arrived("c", encode_hello(GuardHello("1", 6)))
    assert any(
        isinstance(message, Update) and d in message.gone
        for message in (parse(payload) for name, payload in actions.sent if name == "c")
    )


# ---- links that come up together ----


def guard_of_three() -> tuple[WatchedGuard, Recorder]:
    """Guard a, whose links to b, c and d come up together; c is the next to d as well."""
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    for name in "bcd":
        guard.link_up(name)
    for name in "bcd":
        guard.message_arrived(name, encode_hello(GuardHello("1", 5)))
    assert len(actions.pauses) == 1
    d = NodeKey("d", "1")
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, QUIET),))))
    c = Announcement(C, 1, (LinkEntry(A, 5, QUIET), LinkEntry(d, 4, QUIET)))
    guard.message_arrived("c", update(c))
    guard.message_arrived(
        "d", update(Announcement(d, 1, (LinkEntry(A, 5, QUIET), LinkEntry(C, 4, QUIET))))
    )
    return guard, actions


def said(actions: Recorder) -> list[tuple[str, int]]:
    """To whom which openings were told alone."""
    messages = [(name, parse(payload)) for name, payload in actions.sent]
    return [(name, message.number) for name, message in messages if isinstance(message, Opening)]


def test_links_that_come_up_together_are_opened_when_nothing_is_heard_any_more() -> None:
    guard, actions = guard_of_three()
    assert own_openings(actions) == {"b": QUIET, "c": QUIET, "d": QUIET}
    guard.pause_over()  # in which they came up
    many = [NodeKey(f"x{number}", "1") for number in range(topology.FEW + 1)]
    guard.message_arrived("b", update(*(Announcement(key, 1, ()) for key in many)))
    guard.pause_over()
    assert len(actions.pauses) == 3, "whether there was anything to tell or not"
    assert said(actions) == []
    assert guard.state("d") is BLOCKED
    guard.pause_over()
    assert said(actions) == [("b", 1), ("c", 1)]
    assert own_openings(actions) == {"b": QUIET, "c": QUIET, "d": QUIET}, "nobody else is told"
    assert guard.state("b") is LEARNING
    guard.message_arrived("b", encode_opening(1))
    assert guard.state("b") is ACTIVE
    assert set(guard.reach()) == {"b"}, "of our own links those that are active"
    guard.message_arrived("c", encode_opening(1))
    assert guard.reach()["d"].path == ("a", "c", "d"), "of others those of the forest"
    guard.message_arrived("c", encode_opening(0))
    assert guard.state("c") is BLOCKED
    guard.message_arrived("c", encode_opening(2))
    assert guard.state("c") is ACTIVE
    assert said(actions)[2:] == [("c", 2)]


def test_news_that_never_end_do_not_keep_links_closed() -> None:
    guard, actions = guard_of_three()
    many = [NodeKey(f"x{number}", "1") for number in range(topology.FEW + 1)]
    for sequence in range(1, topology.PATIENCE + 1):
        assert said(actions) == []
        guard.message_arrived("b", update(*(Announcement(key, sequence, ()) for key in many)))
        guard.pause_over()
    assert said(actions) == [("b", 1), ("c", 1)]


def test_while_own_links_come_up_news_of_others_wait_for_another_pause() -> None:
    guard, actions = guard_of_three()
    actions.sent.clear()
    x = NodeKey("x", "1")
    guard.message_arrived("c", update(Announcement(x, 1, (LinkEntry(C, 3, QUIET),))))
    c = (LinkEntry(A, 5, QUIET), LinkEntry(NodeKey("d", "1"), 4, QUIET), LinkEntry(x, 3, QUIET))
    guard.message_arrived("c", update(Announcement(C, 2, c)))
    guard.link_up("e")
    guard.message_arrived("e", encode_hello(GuardHello("1", 5)))
    actions.sent.clear()

    def told_to_b() -> list[str]:
        messages = [parse(payload) for name, payload in actions.sent if name == "b"]
        nodes = [node for each in messages if isinstance(each, Update) for node in each.nodes]
        return [node.node.node_id for node in nodes]

    guard.pause_over()
    assert told_to_b() == ["a"]
    guard.pause_over()
    assert sorted(told_to_b()) == ["a", "c", "d", "x"]


def test_an_opening_counts_once_the_neighbor_has_announced_the_link() -> None:
    actions = Recorder()
    guard = WatchedGuard("a", "1", actions)
    guard.link_up("b")
    guard.message_arrived("b", encode_opening(1))
    guard.message_arrived("b", encode_hello(GuardHello("1", 5)))
    guard.message_arrived("b", encode_opening(1))
    guard.message_arrived("b", update(Announcement(B, 1, (LinkEntry(A, 5, QUIET),))))
    assert guard.state("b") is LEARNING
    guard.message_arrived("b", encode_opening(1))
    assert guard.state("b") is ACTIVE
    assert own_openings(actions) == {"b": 1}, "this end is not quiet: its link came up alone"


# ---- two nodes with one id ----


def test_two_nodes_with_one_id_are_reported_everywhere() -> None:
    #   x(1) ── a ── b ── x(2), the last one played by the test
    fabric = fabric_of("abx", "ab", "ax")
    b = fabric.members["b"].guard
    b.link_up("x")
    b.message_arrived("x", encode_hello(GuardHello("other", 50)))
    twin = NodeKey("x", "other")
    b.message_arrived(
        "x", update(Announcement(twin, 1, (LinkEntry(NodeKey("b", "life-1"), 50, 1),)))
    )
    assert b.state("x") is ACTIVE
    fabric.settle(random.Random(0), limit=1000)
    for name in "abx":
        guard = fabric.members[name].guard
        assert guard.duplicates() == {"x": ("life-1", "other")}
        assert set(guard.reach()) == set("abx") - {name}
    assert b.is_primary("x", "a")
    assert b.is_primary("x", "x")


def test_a_node_is_not_its_own_neighbor() -> None:
    with pytest.raises(LocalProtocolError, match="own neighbor"):
        WatchedGuard("a", "1", Recorder()).link_up("a")


# ---- what people see ----


def test_status_is_json_and_shows_the_whole_fabric() -> None:
    fabric = fabric_of("abcd", "ab", "bc", "ac", "cd")
    status = fabric.members["d"].guard.status()
    assert json.loads(json.dumps(status)) == status
    assert status["nodes"] == ["a", "b", "c", "d"]
    assert status["rings"] == [{"cut": ["a", "c"], "ring": ["a", "b", "c"]}]
    assert status["paths"] == {"a": ["d", "c", "b", "a"], "b": ["d", "c", "b"], "c": ["d", "c"]}
    links = status["links"]
    assert isinstance(links, list)
    assert {"".join(link["ends"]): link["state"] for link in links} == {
        "ab": "active",
        "bc": "active",
        "ac": "blocked",
        "cd": "active",
    }


# ---- bad input ----


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"v":2,"type":"hello","incarnation":"1","epoch":1}',
        b'{"v":true,"type":"hello","incarnation":"1","epoch":1}',
        b'{"type":"hello","incarnation":"1","epoch":1}',
        b'{"v":1,"type":"hello","incarnation":"1"}',
        b'{"v":1,"type":"hello","incarnation":"1","epoch":1,"more":1}',
        b'{"v":1,"type":"hello","incarnation":"1","epoch":true}',
        b'{"v":1,"type":"hello","incarnation":"1","epoch":0}',
        b'{"v":1,"type":"hello","incarnation":"1","epoch":1.0}',
        b'{"v":1,"type":"hello","incarnation":"1","epoch":9007199254740992}',
        b'{"v":1,"type":"hello","incarnation":"","epoch":1}',
        b'{"v":1,"type":"hello","incarnation":"\\ud800","epoch":1}',
        b'{"v":1,"type":"hello","incarnation":"a\\nb","epoch":1}',
        b'{"v":1,"type":"hello","incarnation":"' + b"i" * 65 + b'","epoch":1}',
        b'{"v":1,"type":"bye","nodes":[],"gone":[]}',
        b'{"v":1,"type":"update","nodes":{},"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",1]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",0,[]]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",1,[["a","1",1]]]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",1,[["a","1",0,0]]]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",1,[["a","1",1,-2]]]],"gone":[]}',
        b'{"v":1,"type":"opening","number":-1}',
        b'{"v":1,"type":"opening","number":1,"of":2}',
        b'{"v":1,"type":"opening","number":4294967298}',
        b'{"v":1,"type":"update","nodes":[["b","1",1,[["b","1",1,0]]]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[["b","1",1,[["a","1",1,0],["a","2",1,0]]]],"gone":[]}',
        b'{"v":1,"type":"update","nodes":[],"gone":[["b"]]}',
        b'{"v":1,"type":"update","nodes":[],"gone":["b1"]}',
        b" " * (MAX_PAYLOAD_BYTES + 1),
    ],
    ids=lambda payload: payload[:60].decode(errors="replace"),
)
def test_malformed_messages_are_the_peers_fault_and_change_nothing(payload: bytes) -> None:
    guard, actions = guard_with_active_link()
    before = guard.status()
    with pytest.raises(RemoteProtocolError):
        guard.message_arrived("b", payload)
    assert guard.status() == before
    assert actions.calls == []


def test_a_version_that_is_not_spoken_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="version 2 is not supported; 1 is"):
        parse(b'{"v":2,"type":"something new"}')


def test_a_neighbor_cannot_announce_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_link, "MAX_NODES", 3)
    guard, actions = guard_with_active_link()
    strangers = [Announcement(NodeKey(f"n{i}", "1"), 1, ()) for i in range(3)]
    guard.message_arrived("b", update(*strangers[:2]))
    with pytest.raises(RemoteProtocolError, match="more than 3"):
        guard.message_arrived("b", update(strangers[2]))
    assert guard.state("b") is ACTIVE
    assert actions.calls == []


def test_strangers_that_are_not_connected_are_not_passed_on() -> None:
    guard, actions = guard_with_active_link()
    guard.link_up("c")
    guard.message_arrived("c", encode_hello(GuardHello("1", 9)))
    actions.sent.clear()
    ghost = NodeKey("ghost", "1")
    guard.message_arrived("b", update(Announcement(ghost, 1, (LinkEntry(B, 2, 1),))))
    assert actions.sent == []
    assert "ghost" not in guard.reach()


def test_the_largest_announcement_fits_into_a_payload() -> None:
    links = tuple(
        LinkEntry(NodeKey(f"{i:04}".ljust(64, "\N{BUTTERFLY}"), "\N{BUTTERFLY}" * 64), 2**53 - 1, 1)
        for i in range(MAX_LINKS)
    )
    payload = update(Announcement(A, 2**53 - 1, links))
    assert len(payload) <= MAX_PAYLOAD_BYTES
    assert parse(payload) == Update((Announcement(A, 2**53 - 1, links),), ())


def test_a_node_has_a_bounded_number_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "MAX_LINKS", 1)
    guard, _ = guard_with_active_link()
    guard.link_up("b")
    with pytest.raises(LocalProtocolError, match="at most 1"):
        guard.link_up("c")
