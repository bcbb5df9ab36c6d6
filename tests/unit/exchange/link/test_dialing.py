"""Peers are dialed until they are linked, and again when they are not any more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.exchange.host import Channel, Host
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.dialing import LONGEST_PAUSE_S, Dialing, Peer
from isthmus.exchange.link.hello import Hello
from isthmus.exchange.link.life import DialState, LinkEvent
from isthmus.exchange.link.link import Link
from support.hosts import HandHost
from unit.exchange.link.test_connection import A, FakeChannel, connection


class DialHost(HandHost):
    """Notes what is dialed, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(1)
        self.dialed: list[float] = []
        self.outcome: list[tuple[Callable[[Channel], Connection], Callable[[str], None]]] = []

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        self.dialed.append(self.now())
        self.outcome.append((opened, failed))


class Owner:
    def __init__(self) -> None:
        self.before: list[str] = []

    def new_session(self, address: str) -> SessionInfo:
        return SessionInfo(1, SessionKind.NEIGHBOR, "", address=address)

    def linked_before(self, session: SessionInfo, link: Link) -> None:
        self.before.append(session.address)


class Stage:
    def __init__(self) -> None:
        self.host = DialHost()
        self.owner = Owner()
        self.abandoned: list[Peer] = []
        self.dialing = Dialing(
            cast("Host", self.host),
            self.owner,
            A,
            keep_alive_s=3,
            connect=self._connect,
            abandon=self.abandoned.append,
        )

    def _connect(self, channel: Channel, hello: Hello) -> Connection:
        return connection(hello, dialed=True)


def link_to(name: str) -> Link:
    info = SessionInfo(2, SessionKind.NEIGHBOR, name)
    return Link(info, "s", qos=1, queue_bytes=1, round_robin=False)


def fail(stage: Stage) -> None:
    stage.host.outcome.pop()[1]("refused")


def test_nobody_is_dialed_when_the_node_has_stopped() -> None:
    stage = Stage()
    peer = stage.dialing.dial("b:1", 1, 1)
    stage.dialing.start()
    stage.dialing.stop()
    stage.host.run(10.0)
    assert (stage.host.dialed, peer.state) == ([], DialState.WAITING)


def test_nobody_is_dialed_before_the_node_runs() -> None:
    stage = Stage()
    peer = stage.dialing.dial("b:1", 1, 1)
    assert stage.dialing.dial("b:1", 2, 0) is peer
    stage.host.run(10.0)
    assert stage.host.dialed == []
    stage.dialing.start()
    stage.host.run(10.0)
    assert stage.host.dialed == [10.0]


def test_the_pause_grows_and_is_bounded() -> None:
    stage = Stage()
    stage.dialing.start()
    peer = stage.dialing.dial("b:1", 1, 1)
    for _ in range(12):
        stage.host.run(LONGEST_PAUSE_S)
        fail(stage)
    pauses_s = [at_s - LONGEST_PAUSE_S * n for n, at_s in enumerate(stage.host.dialed)]
    assert len(pauses_s) == 12
    assert 0 < pauses_s[1] <= 0.2
    assert LONGEST_PAUSE_S / 2 <= pauses_s[-1] <= LONGEST_PAUSE_S
    assert stage.abandoned == [peer] * 12
    assert (peer.failures, peer.problem) == (12, "refused")
    assert stage.host.logged == [("warning", "cannot link")], "once for each cause"
    stage.dialing.linked(peer)
    assert (peer.failures, peer.problem, peer.state) == (0, "", DialState.RESTING)


def test_what_opens_too_late_is_closed() -> None:
    stage = Stage()
    stage.dialing.start()
    peer = stage.dialing.dial("b:1", 2, 1)
    stage.host.run()
    stage.dialing.other_lanes(peer)
    (first, _), (_, second_failed) = stage.host.outcome
    second_failed("refused")
    late = first(FakeChannel())
    assert isinstance(late.channel, FakeChannel)
    late.flush()
    assert (late.channel.written, late.channel.closed) == (b"", True)


def test_a_failure_of_an_earlier_set_is_none_of_this_one() -> None:
    stage = Stage()
    stage.dialing.start()
    peer = stage.dialing.dial("b:1", 1, 1)
    stage.host.run()
    fail(stage)
    stage.host.run(1.0)
    assert peer.state is DialState.DIALING
    stage.dialing.failed(peer, peer.attempt - 1, "late")
    assert (peer.state, peer.failures) == (DialState.DIALING, 1)


def test_one_that_is_linked_meanwhile_is_not_dialed() -> None:
    stage = Stage()
    stage.dialing.start()
    peer = stage.dialing.dial("b:1", 1, 1)
    peer.link = link_to("b")
    peer.link.happens(LinkEvent.COMPLETE)
    stage.host.run()
    assert (stage.host.dialed, peer.state) == ([], DialState.RESTING)
    peer.link.happens(LinkEvent.LOST)
    stage.dialing.again(peer.link)
    stage.host.run(1.0)
    assert (len(stage.host.dialed), peer.state) == (1, DialState.DIALING)


@pytest.mark.parametrize("by", ["peer", "session"])
def test_one_that_is_forgotten_is_not_dialed(by: str) -> None:
    stage = Stage()
    stage.dialing.start()
    peer = stage.dialing.dial("b:1", 1, 1)
    if by == "peer":
        stage.dialing.forget(peer)
    else:
        stage.dialing.forget_session(peer.info)
    stage.host.run(10.0)
    assert (stage.host.dialed, stage.dialing.peers) == ([], {})
    assert not stage.dialing.wants(peer)


def test_an_address_leads_to_one_node_and_then_to_another() -> None:
    stage = Stage()
    peer = stage.dialing.dial("b:1", 1, 1)
    first, second = link_to("b"), link_to("c")
    stage.dialing.leads_to(peer, first)
    assert stage.owner.before == ["b:1"]
    assert (peer.info, first.info.address) == (first.info, "b:1")
    stage.dialing.leads_to(peer, second)
    assert (first.info.address, second.info.address) == ("", "b:1")
    assert stage.dialing.is_dialed(second)
    assert not stage.dialing.is_dialed(first)
    stage.dialing.leads_nowhere(second)
    assert (peer.link, peer.info.name, peer.info.address) == (None, "", "b:1")
