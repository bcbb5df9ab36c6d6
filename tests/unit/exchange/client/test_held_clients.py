"""Clients that are held for a congested link: when there is room, and when they hang up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.life import ClientState
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from support.hosts import MemoryWire
from support.relay_rig import RelayRig

Hold = Callable[[], Callable[[], None]]


class Congested:
    """A relay before a link that takes one message of each client, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = RelayRig(ClientLimits(clients=100))
        self.passed: list[bytes] = []
        self.held: list[Callable[[], None]] = []
        self.full = True
        self.overfull = False
        exchange = self.rig.exchange
        monkeypatch.setattr(exchange, "client_publish", self._publish)
        monkeypatch.setattr(exchange.traffic, "must_wait", self._must_wait)

    def _publish(self, message: Message, hold: Hold, _confirmed: object) -> None:
        self.passed.append(message.payload)
        if self.full:
            self.held.append(hold())

    def _must_wait(self, message: Message, hold: Hold) -> bool:
        if self.overfull:
            self.held.append(hold())
        return self.overfull

    def publisher(
        self, client_id: str, *payloads: bytes
    ) -> tuple[ClientSession, MemoryWire, MemoryWire]:
        session, client, broker = self.rig.connected(client_id)
        client.feed(b"".join(map(publish, payloads)))
        return session, client, broker

    def room(self) -> None:
        self.full = self.overfull = False
        held, self.held = self.held, []
        for go_on in held:
            go_on()


def publish(payload: bytes) -> bytes:
    return encode(Publish("t", payload, qos=1, packet_id=7, retain=True), 5)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Congested:
    return Congested(monkeypatch)


def test_many_that_may_go_on_together_take_several_turns(link: Congested) -> None:
    for number in range(40):
        link.publisher(f"c{number}", b"first", b"second")
    assert link.passed == [b"first"] * 40
    clock_ms = count()
    link.rig.host.clock = lambda: next(clock_ms) / 1000
    link.room()
    assert link.passed.count(b"second") < 10
    link.rig.host.run()
    assert link.passed.count(b"second") == 40


def test_many_that_hang_up_together_take_several_turns(link: Congested) -> None:
    wires = [link.publisher(f"c{number}", b"first", b"second")[1] for number in range(40)]
    clock_ms = count()
    link.rig.host.clock = lambda: next(clock_ms) / 1000
    for wire in wires:
        wire.close()
    link.rig.host.run()
    assert link.passed.count(b"second") == 40
    assert not link.rig.relay.clients


def test_who_has_gone_is_not_kept_by_the_link(link: Congested) -> None:
    session, client, _ = link.publisher("c", b"first")
    assert session.state is ClientState.LINK
    hold = session.hold
    assert hold is not None
    client.feed(b"")
    link.rig.host.run()
    assert not link.rig.relay.clients
    assert hold.client is None
    link.room()


def test_when_too_much_waits_a_message_waits_before_it_is_sent(link: Congested) -> None:
    link.overfull = True
    _, client, broker = link.publisher("c", b"first", b"second")
    assert link.passed == []
    assert broker.taken() == b""
    client.feed(publish(b"third"))
    assert link.passed == []
    link.room()
    link.rig.host.run()
    assert link.passed == [b"first", b"second", b"third"]
    assert broker.taken() == b"".join(map(publish, link.passed))


def test_who_hangs_up_when_too_much_waits_has_not_published(link: Congested) -> None:
    """Nothing of it was acknowledged; kept, it would add up without bound."""
    link.overfull = True
    _, client, broker = link.publisher("c", b"first", b"second")
    client.feed(b"")
    link.rig.host.run()
    assert link.passed == []
    assert broker.taken() == b""
    assert broker.closing
    assert not link.rig.relay.clients
    assert link.rig.relay.counters.refusals == {"hung-up-while-held": 1}
