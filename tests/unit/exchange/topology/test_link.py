"""One link as the guard keeps it: the conversation, and openings that keep two ends in step.

A ── B
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.topology import link as topology_link
from isthmus.exchange.topology.link import GuardedLink
from isthmus.exchange.topology.messages import (
    LEAP,
    MAX_COUNTER,
    Announcement,
    GuardHello,
    LinkEntry,
    NodeKey,
    Update,
)

A, B, C, D = (NodeKey(name, f"{name}1") for name in "abcd")


def says(node: NodeKey, *links: LinkEntry, sequence: int = 1) -> Announcement:
    return Announcement(node, sequence, links)


@pytest.fixture
def link() -> GuardedLink:
    """Node A's end of its link with B, of which B has announced that it is closed."""
    made = GuardedLink("b", 3)
    made.greet(GuardHello("b1", 5))
    hears(made, 0)
    return made


def hears(link: GuardedLink, opening: int) -> None:
    link.hear(says(B, LinkEntry(A, link.birth, opening)), A)


# ---- the conversation --------------------------------------------------------------------


def test_nothing_is_known_of_the_neighbor_before_its_hello() -> None:
    link = GuardedLink("b", 3)
    assert link.entry is None
    assert not link.may_open
    assert not link.greet(GuardHello("b1", 5))
    assert link.far_end == B
    assert link.entry == LinkEntry(B, 5, 0)


@pytest.mark.parametrize(("ours", "theirs"), [(3, 5), (5, 3)])
def test_the_birth_is_the_later_epoch_of_the_two(ours: int, theirs: int) -> None:
    link = GuardedLink("b", ours)
    link.greet(GuardHello("b1", theirs))
    assert link.birth == 5


@pytest.mark.parametrize("hello", [GuardHello("b1", 6), GuardHello("b2", 5)])
def test_a_hello_of_another_epoch_or_life_is_to_be_answered(
    link: GuardedLink, hello: GuardHello
) -> None:
    link.told[C] = 7
    assert link.greet(hello)
    assert link.told == {}
    assert link.far_end == NodeKey("b", hello.incarnation)


def test_the_same_hello_again_is_not_answered_and_what_was_told_stays_told(
    link: GuardedLink,
) -> None:
    """Else two guards would greet each other for ever."""
    link.told[C] = 7
    assert not link.greet(GuardHello("b1", 5))
    assert link.told == {C: 7}


def test_after_a_hello_nothing_is_believed_that_came_before_it(link: GuardedLink) -> None:
    link.vouch(says(C, LinkEntry(B, 1, 1)))
    link.open()
    link.fresh = False
    link.greet(GuardHello("b1", 6))
    assert link.heard == {}
    assert link.entries == 0
    assert link.opening == 0
    assert link.fresh
    assert not link.may_open  # until the neighbor has announced this link anew


def test_the_links_that_a_neighbor_vouches_for_are_counted(
    link: GuardedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_link, "MAX_ENTRIES", 3)

    def says_and_is_believed(announcement: Announcement) -> None:
        link.check_room(Update((announcement,), ()))
        link.vouch(announcement)

    two = (LinkEntry(B, 1, 1), LinkEntry(D, 1, 1))
    says_and_is_believed(says(C, *two))
    says_and_is_believed(says(D, LinkEntry(C, 1, 1)))
    with pytest.raises(RemoteProtocolError, match="more than 3 links"):
        says_and_is_believed(says(D, LinkEntry(B, 1, 1), LinkEntry(C, 1, 1), sequence=2))
    assert link.heard[D].sequence == 1
    for sequence in range(2, 6):  # what is replaced does not count
        says_and_is_believed(says(C, *two, sequence=sequence))
    assert link.withdraw(C)
    assert not link.withdraw(C)
    assert list(link.heard) == [D]
    says_and_is_believed(says(D, LinkEntry(A, 1, 1), *two[:1], LinkEntry(C, 1, 1), sequence=2))


# ---- the neighbor's opening --------------------------------------------------------------


def test_the_neighbors_opening_is_the_one_of_this_link_in_this_life_and_birth(
    link: GuardedLink,
) -> None:
    others = [LinkEntry(C, 5, 2), LinkEntry(NodeKey("a", "a0"), 5, 3), LinkEntry(A, 4, 4)]
    link.hear(says(B, *others), A)
    assert link.far_opening is None
    link.hear(says(B, *others, LinkEntry(A, 5, 9)), A)
    assert link.far_opening == 9
    link.hear(says(B, *others), A)
    assert link.far_opening is None


def test_an_opening_that_leaps_is_refused(link: GuardedLink) -> None:
    link.check(says(B), A)
    link.check(says(B, LinkEntry(A, 5, LEAP)), A)
    with pytest.raises(RemoteProtocolError, match=f"b opens a link as number {LEAP + 1}"):
        link.check(says(B, LinkEntry(A, 5, LEAP + 1)), A)
    link.open()
    link.check(says(B, LinkEntry(A, 5, LEAP + 1)), A)
    link.check(says(B, LinkEntry(C, 5, MAX_COUNTER)), A)  # not a matter of this link


# ---- the three rules ---------------------------------------------------------------------


def test_rule_1_a_greater_opening_of_the_neighbor_is_adopted(link: GuardedLink) -> None:
    hears(link, 4)
    link.open()
    assert link.opening == 4


@pytest.mark.parametrize("theirs", [0, 3, 4])
def test_rule_1_else_it_is_a_number_that_was_never_used(link: GuardedLink, theirs: int) -> None:
    hears(link, 4)
    link.open()
    link.close_if_due(in_forest=False)
    hears(link, theirs)
    link.open()
    assert link.opening == 5


def test_rule_1_numbers_go_on_counting_over_a_hello(link: GuardedLink) -> None:
    hears(link, 4)
    link.open()
    link.greet(GuardHello("b1", 9))
    hears(link, 0)
    link.open()
    assert link.opening == 5


@pytest.mark.parametrize("theirs", [0, 5])
def test_rule_2_who_was_active_closes_when_the_neighbor_closed_or_opened_anew(
    link: GuardedLink, theirs: int
) -> None:
    hears(link, 4)
    link.open()
    assert link.joined()
    hears(link, theirs)
    assert not link.may_open  # it has to close first
    link.close_if_due(in_forest=True)
    assert link.opening == 0
    assert link.may_open


def test_rule_2_who_waits_closes_when_the_neighbor_opened_with_a_greater_number(
    link: GuardedLink,
) -> None:
    link.open()
    hears(link, 2)
    link.close_if_due(in_forest=True)
    assert link.opening == 0
    link.open()
    assert link.opening == 2
    assert link.joined()


@pytest.mark.parametrize("theirs", [0, 3])
def test_rule_3_who_has_opened_waits_for_a_neighbor_that_has_not_or_is_behind(
    link: GuardedLink, theirs: int
) -> None:
    hears(link, 4)
    link.open()
    hears(link, theirs)
    link.close_if_due(in_forest=True)
    assert link.opening == 4
    assert not link.joined()
    hears(link, 4)
    assert link.joined()


def test_a_link_outside_of_the_forest_is_closed(link: GuardedLink) -> None:
    hears(link, 4)
    link.open()
    link.close_if_due(in_forest=True)
    assert link.opening == 4
    link.close_if_due(in_forest=False)
    assert link.opening == 0


def test_it_opens_only_when_closed_and_when_the_neighbor_has_announced_it(
    link: GuardedLink,
) -> None:
    assert link.may_open
    link.open()
    assert not link.may_open
    link.close_if_due(in_forest=False)
    assert link.may_open
    link.hear(says(B), A)
    assert not link.may_open


def test_it_does_not_open_when_the_numbers_are_used_up(link: GuardedLink) -> None:
    hears(link, MAX_COUNTER - 1)
    link.open()
    link.close_if_due(in_forest=False)
    assert link.may_open
    hears(link, MAX_COUNTER)
    link.open()
    link.close_if_due(in_forest=False)
    assert not link.may_open


# ---- what is concluded -------------------------------------------------------------------


def test_joined_and_interrupted_are_told_once(link: GuardedLink) -> None:
    assert not link.joined()
    assert not link.interrupted()
    hears(link, 4)
    link.open()
    assert not link.active
    assert link.joined()
    assert not link.joined()
    assert link.active
    assert not link.interrupted()
    hears(link, 0)
    assert link.active  # as concluded last
    assert link.interrupted()
    assert not link.interrupted()
    assert not link.active


def test_a_link_that_was_closed_and_opened_at_both_ends_meanwhile_was_interrupted(
    link: GuardedLink,
) -> None:
    hears(link, 4)
    link.open()
    link.joined()
    hears(link, 5)
    link.close_if_due(in_forest=True)
    link.open()
    assert link.opening == 5
    assert link.interrupted()
    assert link.joined()


def test_two_closed_ends_do_not_agree(link: GuardedLink) -> None:
    hears(link, 0)
    assert link.opening == link.far_opening == 0
    assert not link.joined()


# ---- two ends ----------------------------------------------------------------------------


class End:
    """A guard's part with one link: it announces what changed, and settles after every event."""

    def __init__(self, here: NodeKey, there: NodeKey) -> None:
        self.here = here
        self.link = GuardedLink(there.node_id, 1)
        self.link.greet(GuardHello(there.incarnation, 1))
        self.in_forest = True
        self.sent: deque[Announcement] = deque([self.announcement()])
        self.active_as: list[int] = []

    def announcement(self) -> Announcement:
        assert self.link.entry is not None
        return says(self.here, self.link.entry)

    def settle(self) -> None:
        before = self.link.opening
        self.link.close_if_due(self.in_forest)
        if self.link.opening != before:
            self.sent.append(self.announcement())
        if self.in_forest and self.link.may_open:
            self.link.open()
            self.sent.append(self.announcement())
        self.link.interrupted()
        if self.link.joined():
            self.active_as.append(self.link.opening)


@pytest.mark.parametrize("seed", range(50))
def test_two_ends_come_together_whatever_happens_between(seed: int) -> None:
    """Forests change at either end, and announcements take their time, but keep their order."""
    rng = random.Random(seed)
    ends = End(A, B), End(B, A)

    def hear(end: End, other: End) -> None:
        said = other.sent.popleft()
        end.link.check(said, end.here)
        end.link.hear(said, end.here)
        end.settle()

    for _ in range(rng.randrange(60)):
        end, other = rng.sample(ends, 2)
        if rng.random() < 0.3:
            end.in_forest = not end.in_forest
            end.settle()
        elif other.sent:
            hear(end, other)
    for end in ends:
        end.in_forest = True
        end.settle()
    for _ in range(100):
        for end, other in (ends, ends[::-1]):
            if other.sent:
                hear(end, other)
    assert not ends[0].sent
    assert not ends[1].sent
    assert ends[0].link.active
    assert ends[1].link.active
    assert ends[0].link.opening == ends[1].link.opening
    for end in ends:  # one number is one time that it is active
        assert end.active_as == sorted(set(end.active_as))
