"""Who is refused, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.exchange.host import Host
from isthmus.exchange.link import admission as module
from isthmus.exchange.link.admission import Admission
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.dialing import Dialing, Peer
from isthmus.exchange.link.hello import Hello, LinkRefused
from isthmus.exchange.link.life import LinkEvent
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.same_id import IdConflict
from support.hosts import HandHost
from unit.exchange.link.test_connection import connection

HERE = Hello("m", "1", "sf")
NEW = Hello("x", "2", "sf")


class Desk:
    """Node m, which may have a link with x; `wants` is whom it dials."""

    def __init__(self) -> None:
        host = cast("Host", HandHost())
        self.links: dict[str, Link] = {}
        self.wanted: set[Peer] = set()
        self.rules = NO_RULES
        self.conflict = IdConflict(host, "m", 7.0)
        self.admission = Admission(HERE, self.links, cast("Dialing", self), self.conflict)

    def wants(self, peer: Peer) -> bool:
        return peer in self.wanted

    def rules_for(self, hello: Hello) -> LinkRules:
        return self.rules

    def linked(self, *, initiator: str, lanes: int = 1, up: bool = True) -> Link:
        info = SessionInfo(1, SessionKind.NEIGHBOR, "x")
        link = self.links["x"] = Link(info, "s", qos=1, queue_bytes=1, round_robin=False)
        link.prepare(initiator, NEW.incarnation, lanes, "s")
        if up:
            link.happens(LinkEvent.COMPLETE)
        return link

    def refusal(self, hello: Hello = NEW, *, dialed_for: Peer | None = None, lane: int = 0) -> str:
        try:
            self.admission.judge(comes(hello, dialed_for, lane), hello)
        except LinkRefused as error:
            return error.cause
        return ""


def comes(hello: Hello, dialed_for: Peer | None = None, lane: int = 0) -> Connection:
    made = connection(hello, dialed=dialed_for is not None)
    made.dialed_for = dialed_for
    made.lane = lane
    return made


def peer() -> Peer:
    return Peer("x:1", 1, 1, SessionInfo(2, SessionKind.NEIGHBOR, ""))


def test_a_stranger_is_welcome() -> None:
    assert Desk().refusal() == ""


def test_a_node_that_stops_takes_nobody() -> None:
    desk = Desk()
    desk.admission.stopped = True
    assert desk.refusal() == "stopping"


def test_another_algorithm_is_refused() -> None:
    assert Desk().refusal(replace(NEW, algorithm="pf")) == "algorithm"


def test_another_version_of_the_algorithm_is_refused() -> None:
    assert Desk().refusal(replace(NEW, topology="any")) == "topology"
    assert Desk().refusal(replace(NEW, max_label_bytes=8)) == "labels"


def test_a_node_of_this_nodes_id_is_refused_and_told_of() -> None:
    desk = Desk()
    assert desk.refusal(HERE) == "same-id"
    assert not desk.conflict.reason, "that is this node itself"
    assert desk.refusal(replace(NEW, node_id="m")) == "same-id"
    assert desk.conflict.reason


def test_who_was_removed_is_refused_until_it_is_dialed() -> None:
    desk, wanted = Desk(), peer()
    desk.admission.removed.add("x")
    assert desk.refusal() == "removed"
    assert desk.refusal(dialed_for=wanted) == "removed", "it is not dialed any more"
    desk.wanted.add(wanted)
    assert desk.refusal(dialed_for=wanted) == ""
    assert desk.refusal() == ""


def test_there_is_a_limit_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINKS", 1)
    desk = Desk()
    desk.linked(initiator="x")
    assert desk.refusal() == ""
    assert desk.refusal(Hello("y", "3", "sf")) == "too-many-links"


@pytest.mark.parametrize(
    ("lane", "lanes", "initiator", "cause"),
    [(1, 2, "x", ""), (2, 2, "x", "bad-lane"), (1, 2, "m", "bad-lane")],
)
def test_a_lane_belongs_to_a_link_that_is_being_made(
    lane: int, lanes: int, initiator: str, cause: str
) -> None:
    desk = Desk()
    assert desk.refusal(lane=lane) == "bad-lane"
    desk.linked(initiator=initiator, lanes=lanes, up=False)
    assert desk.refusal(lane=lane) == cause


@pytest.mark.parametrize(("here", "cause"), [("m", "duplicate"), ("z", "")])
def test_of_two_that_dial_each_other_the_lower_ids_connections_stay(here: str, cause: str) -> None:
    desk = Desk()
    desk.admission = Admission(
        replace(HERE, node_id=here), desk.links, cast("Dialing", desk), desk.conflict
    )
    desk.linked(initiator=here)
    assert desk.refusal() == cause


def test_a_link_that_stands_is_asked_before_it_is_taken_over() -> None:
    desk = Desk()
    link = desk.linked(initiator="x")
    stands = desk.admission.stands
    assert stands(link, comes(NEW), NEW)
    assert not stands(link, comes(NEW, lane=1), NEW)
    assert not stands(link, comes(NEW, peer()), NEW), "both dialed: one is too many"
    assert stands(link, comes(NEW, peer()), replace(NEW, incarnation="9"))
    link.happens(LinkEvent.LOST)
    assert not stands(link, comes(NEW), NEW)
