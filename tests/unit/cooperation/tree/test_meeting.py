"""Who announces itself when, and who dials whom."""

from __future__ import annotations

from collections.abc import Hashable

from isthmus.cooperation.api import (
    AS_CONFIGURED,
    AnnouncedNode,
    LinkOptions,
    SessionInfo,
    SessionKind,
    SessionStatus,
)
from isthmus.cooperation.tree.meeting import FORGET_S, TRIAL_S, Meeting
from isthmus.cooperation.tree.options import TreeOptions
from support.algorithm_network import FakePort


class Meeter(FakePort):
    """A port that notes what is announced and dialed."""

    def __init__(self, node_id: str, *, alone: bool = False) -> None:
        super().__init__(node_id)
        self.alone = alone
        self.announced = 0
        self.dialed: dict[str, SessionInfo] = {}
        self.closed: list[str] = []

    def announce(self, data: bytes) -> bool:
        self.announced += 1
        return not self.alone

    def create_session(self, address: str, options: LinkOptions = AS_CONFIGURED) -> SessionInfo:
        if address not in self.dialed:
            session = self.session(SessionKind.NEIGHBOR)
            session.status, session.address = SessionStatus.CLOSED, address
            self.dialed[address] = session
        return self.dialed[address]

    def close_session(self, session: SessionInfo) -> None:
        self.closed.append(session.address)
        del self.dialed[session.address]


class Case:
    def __init__(self, node_id: str = "m", **options: float) -> None:
        self.port = Meeter(node_id)
        self.linked: set[str] = set()
        self.up: set[str] = set()
        self.meeting = Meeting(
            self.port,
            TreeOptions(**options),  # type: ignore[arg-type]
            is_linked=self.linked.__contains__,
            is_up=self.up.__contains__,
        )

    def hear(self, name: str, address: str = "") -> None:
        self.meeting.heard(AnnouncedNode(name, address or f"{name}:1"))

    def later(self, seconds: float) -> None:
        """Timers run out one after the other."""
        until_s = self.port.clock_s + seconds
        while due := [key for key, at_s in self.port.timers.items() if at_s <= until_s]:
            key: Hashable = min(due, key=lambda each: self.port.timers[each])
            self.port.clock_s = max(self.port.clock_s, self.port.timers.pop(key))
            self.meeting.timer(key)
        self.port.clock_s = until_s


def test_often_at_first_and_seldom_later() -> None:
    case = Case(discovery_s=1.0, announce_s=0.2, beacon_s=5.0)
    assert case.meeting.start()
    case.later(1.0)
    assert 5 <= case.port.announced <= 8
    before = case.port.announced
    case.later(50.0)
    assert 8 <= case.port.announced - before <= 14


def test_never_again_if_so_configured() -> None:
    case = Case(discovery_s=1.0, announce_s=0.2, beacon_s=0.0)
    case.meeting.start()
    case.later(2.0)
    before = case.port.announced
    case.later(100.0)
    assert case.port.announced == before


def test_with_nobody_to_tell_there_is_nobody_to_find() -> None:
    case = Case()
    case.port.alone = True
    assert not case.meeting.start()
    assert not case.port.timers


def test_the_lower_id_dials_at_once_the_other_after_a_moment() -> None:
    case = Case("m", announce_s=0.2)
    case.hear("z")
    assert list(case.port.dialed) == ["z:1"]
    case.hear("a")
    assert list(case.port.dialed) == ["z:1"]
    case.later(0.3)
    assert "a:1" not in case.port.dialed
    case.later(0.2)
    assert "a:1" in case.port.dialed  # it does not hear us, perhaps


def test_who_has_dialed_is_not_dialed() -> None:
    case = Case("m")
    case.hear("a")
    case.linked.add("a")
    case.meeting.linked("a")
    case.later(10.0)
    assert not case.port.dialed


def test_who_is_new_is_answered_and_not_too_often() -> None:
    case = Case("m", announce_s=0.2)
    for name in ("x", "y", "z"):
        case.hear(name)
    assert case.port.announced == 1
    case.later(0.3)
    case.hear("w")
    assert case.port.announced == 2
    case.hear("w")
    assert case.port.announced == 2


def test_who_is_back_is_answered_although_it_is_known() -> None:
    case = Case("m")
    case.hear("x")
    case.linked.add("x")
    case.up.add("x")
    case.later(10.0)
    before = case.port.announced
    case.hear("x")
    assert case.port.announced == before
    case.up.discard("x")  # it was killed
    case.hear("x")  # and is there again
    assert case.port.announced == before + 1
    for _ in range(20):
        case.later(0.1)
        case.hear("x")
    assert case.port.announced <= before + 2


def test_who_is_silent_is_not_dialed_for_ever() -> None:
    case = Case("m")
    case.meeting.start()
    case.hear("x")
    case.hear("y")
    case.linked.add("y")
    case.later(FORGET_S / 2)
    assert "x:1" in case.port.dialed
    case.later(FORGET_S)
    assert case.port.closed == ["x:1"]
    case.hear("x")
    assert "x:1" in case.port.dialed


def test_who_has_moved_is_dialed_where_it_is() -> None:
    case = Case("m")
    case.hear("x", "old:1")
    case.hear("x", "new:1")
    assert case.port.closed == ["old:1"]
    assert list(case.port.dialed) == ["new:1"]


def test_what_the_operator_wants_is_dialed_whatever_is_heard() -> None:
    case = Case("m")
    case.meeting.start()
    case.meeting.wanted("x:1", AS_CONFIGURED)
    case.hear("x")
    case.later(3 * FORGET_S)
    assert not case.port.closed
    assert "x:1" in case.port.dialed


def test_there_are_not_more_than_so_many_links() -> None:
    case = Case("a", max_links=3)
    for index in range(10):
        case.hear(f"n{index}")
    assert len(case.port.dialed) == 3


def test_who_is_dialed_in_vain_makes_room() -> None:
    """Somebody announces nodes that are not there, one after the other and again and again."""
    case = Case("a", max_links=3)
    case.hear("here")
    case.linked.add("here")
    case.hear("false1")
    case.later(TRIAL_S / 2)
    case.hear("false2")
    case.hear("true")
    assert "true:1" not in case.port.dialed
    case.later(TRIAL_S * 0.6)
    case.hear("false1")
    case.hear("true")
    assert sorted(case.port.dialed) == ["false2:1", "here:1", "true:1"]
    case.hear("another")
    assert "another:1" not in case.port.dialed
