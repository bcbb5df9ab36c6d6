"""Local interest, packet by packet: when a filter begins to count and when it stops."""

from __future__ import annotations

import json
import logging

import pytest

from isthmus.cooperation import client_sessions, kept_records
from isthmus.cooperation.local_interest import SAVE_DELAY_S, LocalInterest
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.algorithm_network import FakeClient, FakePort


class Desk:
    """A `LocalInterest`, its port, and the changes it reports."""

    def __init__(self, port: FakePort | None = None) -> None:
        self.port = port or FakePort()
        self.changes: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.interest = LocalInterest(
            self.port, lambda added, removed: self.changes.append((added, removed))
        )
        self.interest.on_node_start()

    def client(self, level: int = 5) -> FakeClient:
        return FakeClient(
            self.port, self.interest.mqtt_message_arrived, self.interest.on_session_closed, level
        )

    @property
    def filters(self) -> list[str]:
        return sorted(self.interest.filters)

    def advance(self, seconds: float) -> None:
        self.port.advance(seconds, self.interest.on_timer)

    def restarted(self) -> Desk:
        """The node that comes up after this one, with another clock."""
        port = FakePort()
        port.clock_s = 5.0
        port.state = self.port.state
        return Desk(port)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- SUBSCRIBE and UNSUBSCRIBE ----


@pytest.mark.parametrize("level", [4, 5])
def test_interest_lasts_from_suback_to_unsuback(desk: Desk, level: int) -> None:
    client = desk.client(level).connect()
    client.says(Subscribe(7, (Subscription("a"),)))
    assert desk.filters == []
    client.hears(SubAck(7, (ReasonCode.GRANTED_QOS_0,)))
    assert desk.filters == ["a"]
    client.says(Unsubscribe(8, ("a",)))
    assert desk.filters == ["a"]
    client.hears(UnsubAck(8, (ReasonCode.SUCCESS,) if level == 5 else ()))
    assert desk.filters == []
    assert desk.changes == [(("a",), ()), ((), ("a",))]


@pytest.mark.parametrize("level", [4, 5])
def test_only_what_was_granted_counts(desk: Desk, level: int) -> None:
    client = desk.client(level).connect()
    client.subscribe("a", "b", "c", codes=(0, 0x80, 2))
    assert desk.filters == ["a", "c"]
    assert desk.changes == [(("a", "c"), ())]


def test_answers_belong_to_their_packet_and_session(desk: Desk) -> None:
    one, two = desk.client().connect("one"), desk.client().connect("two")
    one.says(Subscribe(1, (Subscription("of-one"),)))
    two.says(Subscribe(1, (Subscription("of-two"),)))
    one.says(Subscribe(2, (Subscription("later"),)))
    two.hears(SubAck(1, (ReasonCode.SUCCESS,)))
    assert desk.filters == ["of-two"]
    one.hears(SubAck(2, (ReasonCode.SUCCESS,)))
    assert desk.filters == ["later", "of-two"]
    one.hears(SubAck(3, (ReasonCode.SUCCESS,)))  # answers nothing
    one.hears(SubAck(2, (ReasonCode.SUCCESS,)))  # a second time
    assert desk.filters == ["later", "of-two"]


def test_an_unsubscribe_that_fails_changes_nothing(desk: Desk) -> None:
    client = desk.client().connect().subscribe("a", "b", "c")
    client.unsubscribe("a", "b", "c", codes=(0x87, 0x11, 0x00))
    assert desk.filters == ["a"]


def test_a_filter_counts_until_its_last_subscriber_goes(desk: Desk) -> None:
    one, two = desk.client().connect("one"), desk.client().connect("two")
    one.subscribe("a").subscribe("a")
    two.subscribe("a")
    one.unsubscribe("a")
    assert desk.filters == ["a"]
    assert len(desk.changes) == 1
    two.unsubscribe("a")
    assert desk.changes[1:] == [((), ("a",))]


def test_two_ways_to_write_a_filter_are_one(desk: Desk) -> None:
    client = desk.client().connect().subscribe("+/#", "#")
    assert desk.filters == ["#"]
    client.unsubscribe("#")
    assert desk.filters == ["#"]
    client.unsubscribe("+/#")
    assert desk.filters == []


@pytest.mark.parametrize("level", [4, 5])
def test_shared_and_private_filters(desk: Desk, level: int) -> None:
    client = desk.client(level).connect()
    client.subscribe("$share/g/a/b", "a/b", "$SYS/#", "$share/g/$SYS/x")
    assert desk.filters == ["a/b"]
    client.unsubscribe("a/b")
    assert desk.filters == ["a/b"]
    client.unsubscribe("$share/g/a/b")
    assert desk.filters == []


def test_a_client_may_not_leave_endless_requests_open(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "MAX_PENDING_BYTES", 1000)
    client = desk.client().connect()
    for _ in range(20):
        client.subscribe("x" * 500)  # answered each time: never too much
    client.says(Subscribe(100, (Subscription("x" * 500),)))
    client.says(Subscribe(100, (Subscription("x" * 500),)))  # instead of the one before
    with pytest.raises(RemoteProtocolError) as caught:
        client.says(Unsubscribe(101, ("y" * 500,)))
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED


def test_a_brokers_packet_that_cannot_be_read_is_counted(desk: Desk) -> None:
    client = desk.client().connect()
    desk.interest.mqtt_message_arrived(client.broker, PacketType.SUBACK, b"\x90\x02\x00\x00")
    assert desk.interest.status()["undecodable_packets"] == 1
    client.subscribe("a")
    assert desk.filters == ["a"]


def test_sessions_that_are_not_a_clients_are_ignored(desk: Desk) -> None:
    lone = desk.port.session(desk.client().broker.kind)
    desk.interest.mqtt_message_arrived(
        lone, PacketType.SUBACK, encode(SubAck(1, (ReasonCode.SUCCESS,)), 5)
    )
    assert desk.filters == []


# ---- CONNECT ----


@pytest.mark.parametrize("level", [4, 5])
def test_a_refused_connect_changes_nothing(desk: Desk, level: int) -> None:
    if level == 5:
        first = desk.client(5).connect(expiry_s=100)
    else:
        first = desk.client(4).connect(clean_start=False)
    first.subscribe("a")
    second = desk.client(level).connect(clean_start=True, refused=True)
    second.drop()
    assert desk.filters == ["a"]
    first.drop()
    assert desk.filters == ["a"]


def test_clean_start_ends_what_there_was_once_it_is_accepted(desk: Desk) -> None:
    desk.client().connect(expiry_s=100).subscribe("a").drop()
    client = desk.client()
    client.says(Connect(client_id="client", clean_start=True))
    assert desk.filters == ["a"]
    client.hears(ConnAck())
    assert desk.filters == []


@pytest.mark.parametrize("session_present", [False, True])
def test_without_clean_start_it_is_kept_whatever_the_connack_says(
    desk: Desk, session_present: bool
) -> None:
    desk.client(4).connect(clean_start=False).subscribe("a").drop()
    again = desk.client(4).connect(clean_start=False, session_present=session_present)
    assert desk.filters == ["a"]
    again.unsubscribe("a")
    assert desk.filters == []


def test_an_assigned_client_id_is_the_client_id(desk: Desk) -> None:
    assigned = Properties(assigned_client_identifier="given")
    desk.client().connect("", expiry_s=50, ack=assigned).subscribe("a").drop()
    assert desk.filters == ["a"]
    desk.client().connect("given", clean_start=True)
    assert desk.filters == []


def test_clients_without_an_id_are_different_clients(desk: Desk) -> None:
    one, two = desk.client(4).connect(""), desk.client(4).connect("")
    one.subscribe("a")
    two.subscribe("b")
    one.drop()
    assert desk.filters == ["b"]


# ---- the end of a connection ----


def test_a_clean_session_leaves_nothing(desk: Desk) -> None:
    for level in (4, 5):
        desk.client(level).connect().subscribe("a", "b").drop()
        assert desk.filters == []
    assert desk.changes == [(("a", "b"), ()), ((), ("a", "b"))] * 2
    assert desk.interest.status()["clients"] == 0


def test_a_persistent_session_of_3_1_1_stays(desk: Desk) -> None:
    desk.client(4).connect(clean_start=False).subscribe("a").drop()
    desk.advance(10_000_000)
    assert desk.filters == ["a"]


def test_a_session_ends_when_its_interval_is_over(desk: Desk) -> None:
    desk.client().connect(expiry_s=100).subscribe("a").drop()
    desk.advance(99)
    assert desk.filters == ["a"]
    desk.advance(1)
    assert desk.filters == []
    assert not desk.port.timers.keys() - {("local-interest", "save", "")}


def test_coming_back_in_time_stops_the_interval(desk: Desk) -> None:
    desk.client().connect(expiry_s=100).subscribe("a").drop()
    desk.advance(99)
    back = desk.client().connect(clean_start=False, expiry_s=100)
    desk.advance(500)
    assert desk.filters == ["a"]
    back.drop()
    desk.advance(99)
    assert desk.filters == ["a"]
    desk.advance(1)
    assert desk.filters == []


def test_the_largest_interval_never_ends(desk: Desk) -> None:
    desk.client().connect(expiry_s=0xFFFFFFFF).subscribe("a").drop()
    desk.advance(2.0**33)
    assert desk.filters == ["a"]


def test_connack_and_disconnect_may_change_the_interval(desk: Desk) -> None:
    shorter = Properties(session_expiry_interval=10)
    desk.client().connect("one", expiry_s=100, ack=shorter).subscribe("a").drop()
    desk.client().connect("two", expiry_s=100).subscribe("b").disconnect(expiry_s=0)
    desk.client().connect("three", expiry_s=5).subscribe("c").disconnect(expiry_s=50)
    desk.client().connect("four").subscribe("d").disconnect(expiry_s=50)  # not allowed from 0
    assert desk.filters == ["a", "c"]
    desk.advance(10)
    assert desk.filters == ["c"]
    desk.advance(40)
    assert desk.filters == []


def test_a_taken_over_connection_does_not_take_the_filters_along(desk: Desk) -> None:
    first = desk.client().connect(expiry_s=100).subscribe("a")
    second = desk.client().connect(clean_start=False, session_present=True).subscribe("b")
    first.disconnect(expiry_s=7)
    desk.advance(1000)
    assert desk.filters == ["a", "b"]
    second.drop()
    assert desk.filters == []


def test_what_was_to_leave_nothing_leaves_nothing_to_its_successor(desk: Desk) -> None:
    desk.client(4).connect(clean_start=True).subscribe("a")
    second = desk.client(4).connect(clean_start=False)
    assert desk.filters == []
    second.subscribe("b").drop()
    assert desk.filters == ["b"]


def test_a_late_answer_counts_unless_the_successor_started_clean(desk: Desk) -> None:
    for clean_start, expected in ((False, ["late"]), (True, [])):
        first = desk.client().connect(expiry_s=100, clean_start=False)
        first.says(Subscribe(9, (Subscription("late"),)))
        desk.client().connect(
            expiry_s=100, clean_start=clean_start, session_present=not clean_start
        )
        first.hears(SubAck(9, (ReasonCode.SUCCESS,)))
        assert desk.filters == expected


# ---- over a restart ----


def test_persistent_filters_survive_a_restart(desk: Desk) -> None:
    desk.client(4).connect("v3", clean_start=False).subscribe("a", "$share/g/s")
    desk.client().connect("v5", expiry_s=100).subscribe("b").drop()
    desk.client().connect("clean").subscribe("c")
    assert desk.port.saves == 0  # not at each change
    desk.advance(SAVE_DELAY_S + 0.1)
    assert desk.port.saves == 1

    after = desk.restarted()
    assert after.filters == ["a", "b", "s"]
    after.advance(101)
    assert after.filters == ["a", "s"]
    after.client(4).connect("v3", clean_start=False, session_present=True).unsubscribe("$share/g/s")
    assert after.filters == ["a"]


def test_the_time_that_is_left_is_kept(desk: Desk) -> None:
    desk.client().connect(expiry_s=100).subscribe("a").drop()
    desk.advance(60)
    desk.interest.on_node_stop()
    after = desk.restarted()
    after.advance(39)
    assert after.filters == ["a"]
    after.advance(1)
    assert after.filters == []
    after.interest.on_node_stop()
    assert after.restarted().filters == []


def test_what_ended_is_not_there_after_a_restart(desk: Desk) -> None:
    gone = desk.client(4).connect("gone", clean_start=False).subscribe("a")
    desk.client().connect("left", expiry_s=100).subscribe("b").disconnect(expiry_s=0)
    desk.advance(1)
    gone.drop()
    desk.client(4).connect("gone", clean_start=True)
    desk.advance(1)
    assert desk.restarted().filters == []


def test_a_session_without_filters_is_not_kept(desk: Desk) -> None:
    desk.client(4).connect(clean_start=False).drop()
    assert desk.interest.status()["clients"] == 0


@pytest.mark.parametrize(
    "state",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2, "clients": []}',
        b'{"version": 1, "clients": [{"id": "a"}]}',
        b'{"version": 1, "clients": [{"id": "a", "filters": [7], "expiry_s": null}]}',
        b'{"version": 1, "clients": [{"id": "a", "filters": ["a#"], "expiry_s": null}]}',
    ],
)
def test_state_that_cannot_be_read_is_left_out(
    state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    port = FakePort()
    port.state = state
    with caplog.at_level(logging.WARNING):
        assert Desk(port).filters == []
    assert "left out" in caplog.text


def test_state_has_a_record_for_each_client(desk: Desk) -> None:
    desk.client().connect("é", expiry_s=9).subscribe("a")
    desk.client().connect("b", expiry_s=8).subscribe("b")
    desk.interest.on_node_stop()
    assert desk.port.state is not None
    kept = kept_records.read(desk.port.state)
    assert kept.is_("client-sessions", 2)
    assert [json.loads(record) for record in kept.records] == [
        {"id": "é", "filters": ["a"], "expiry_s": 9},
        {"id": "b", "filters": ["b"], "expiry_s": 8},
    ]
