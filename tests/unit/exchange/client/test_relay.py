"""Who may come, what becomes of them, and what is counted."""

from __future__ import annotations

from dataclasses import fields

import pytest

from isthmus.config.files import Limits
from isthmus.exchange.client.entrance import SILENT_S
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import WAITING_ROOM
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.relay_rig import LIMITS, RelayRig


@pytest.fixture
def rig() -> RelayRig:
    return RelayRig()


def connect(client_id: str = "c", level: int = 5) -> bytes:
    return encode(Connect(client_id, protocol_level=level), level)


def test_the_limits_are_those_of_the_configuration() -> None:
    configured = Limits()
    for each in fields(ClientLimits):
        assert getattr(ClientLimits(), each.name) == getattr(configured, each.name), each.name


def test_over_the_limit_clients_are_told_so(rig: RelayRig) -> None:
    for number in range(LIMITS.clients):
        rig.connected(f"c{number}")
    _, wire = rig.open()
    wire.feed(connect("one more"))
    assert decode(wire.taken(), 5) == ConnAck(False, ReasonCode.QUOTA_EXCEEDED)
    assert wire.closing
    assert not rig.host.opening
    assert rig.relay.counters.refusals == {"clients-limit": 1}


def test_when_the_waiting_room_is_full_connections_are_just_closed(rig: RelayRig) -> None:
    for number in range(LIMITS.clients):
        rig.connected(f"c{number}")
    waiting = [rig.open()[1] for _ in range(WAITING_ROOM)]
    assert not any(wire.closing for wire in waiting)
    _, wire = rig.open()
    assert wire.closing
    assert wire.taken() == b""


def test_who_says_nothing_makes_room_for_who_comes(rig: RelayRig) -> None:
    (_, silent), (_, later) = rig.open(), rig.open()
    rig.connected("known")
    rig.host.run(SILENT_S)
    _, wire = rig.open()
    rig.host.run()
    assert silent.closing
    assert not later.closing
    wire.feed(connect("new"))
    rig.broker()
    assert rig.relay.counters.refusals == {"made-room": 1}
    assert len(rig.relay.clients) == LIMITS.clients


def test_a_node_that_stops_refuses_nobody_it_cannot_answer(rig: RelayRig) -> None:
    rig.relay.open = False
    for number in range(LIMITS.clients):
        rig.connected(f"c{number}")
    _, wire = rig.open()
    assert wire.closing


def test_no_client_takes_over_the_nodes_own_session(rig: RelayRig) -> None:
    _, wire = rig.open()
    wire.feed(connect("isthmus-n-b"))
    assert decode(wire.taken(), 5) == ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    assert not rig.host.opening


@pytest.mark.parametrize(
    ("level", "code"),
    [(4, ConnectReturnCode.SERVER_UNAVAILABLE), (5, ReasonCode.SERVER_UNAVAILABLE)],
)
def test_a_broker_that_cannot_be_reached_is_told(rig: RelayRig, level: int, code: int) -> None:
    _, wire = rig.open()
    wire.feed(connect(level=level))
    rig.broker_fails("connection refused")
    assert decode(wire.taken(), level) == ConnAck(False, code)  # type: ignore[arg-type]
    assert rig.relay.counters.broker_connect_failures == 1
    rig.host.run()
    assert not rig.relay.clients


def test_a_client_that_hangs_up_before_the_connection_stands_is_nobodys(rig: RelayRig) -> None:
    _, wire = rig.open()
    wire.feed(connect() + encode(Disconnect(), 5))
    wire.feed(b"")
    rig.host.run()
    rig.broker_fails("connection refused")
    assert not rig.relay.clients
    assert rig.relay.pending.total == 0


def test_who_never_says_connect_is_sent_away(rig: RelayRig) -> None:
    _, wire = rig.open()
    rig.host.run(LIMITS.connect_timeout_s - 0.1)
    assert not wire.closing
    rig.host.run(0.2)
    assert wire.closing
    assert rig.relay.counters.refusals == {"connect-timeout": 1}
    assert not rig.relay.clients


def test_comings_and_goings_are_counted(rig: RelayRig) -> None:
    _, client, broker = rig.connected()
    assert rig.relay.counters.clients_connected == 1
    assert len(rig.exchange.clients) == 1
    client.feed(encode(Disconnect(), 5))
    client.feed(b"")
    rig.host.run()
    assert broker.taken() == encode(Disconnect(), 5)
    assert broker.closing
    assert rig.relay.counters.clients_closed == 1
    assert rig.relay.counters.broker_sessions_lost == 0
    assert len(rig.exchange.clients) == 0


def test_a_session_that_the_broker_ends_is_counted_and_ends_the_clients(rig: RelayRig) -> None:
    _, client, broker = rig.connected()
    broker.feed(b"")
    rig.host.run()
    assert client.closing
    assert rig.relay.counters.broker_sessions_lost == 1
    assert not rig.relay.clients


def test_a_client_is_known_by_the_id_that_its_broker_has_assigned(rig: RelayRig) -> None:
    given = Properties(assigned_client_identifier="auto-1")
    session, client, _ = rig.connected("", connack=ConnAck(False, ReasonCode.SUCCESS, given))
    assert session.client_id == "auto-1"
    client.feed(b"")
    rig.host.run()
    assert session.client_id == ""
