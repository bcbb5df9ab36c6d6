"""Local clients, packet by packet: when a filter begins to count and when it stops."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    ReceivedPacket,
    Route,
    SessionInfo,
    SessionStatus,
)
from isthmus.errors import RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.client import client as client_module
from isthmus.exchange.client import publishers
from isthmus.exchange.client.clients import SAVE_DELAY_S
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.algorithm_network import FakeClient, FakePort


class Told(CooperationAlgorithm):
    """Notes what it is told."""

    name = "told"

    def __init__(self, port: FakePort) -> None:
        super().__init__(port, {})
        self.changes: list[tuple[Sequence[str], Sequence[str]]] = []
        self.hooks: list[str] = []

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        self.changes.append((added, removed))
        self.hooks.append("on_local_interest")

    def on_session_established(self, session: SessionInfo) -> None:
        self.hooks.append(f"on_session_established {session.kind.value}")

    def on_tcp_down(self, session: SessionInfo) -> None:
        self.hooks.append(f"on_tcp_down {session.kind.value}")

    def on_session_closed(self, session: SessionInfo) -> None:
        self.hooks.append(f"on_session_closed {session.kind.value}")

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        self.hooks.append(f"on_recv_failure {session.kind.value}")

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        self.hooks.append(f"{session.kind.value}: {type(message.packet).__name__}")
        return True

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        self.hooks.append(f"on_local_publisher {begun} {ended}")


class Desk:
    """A node's clients, their host, and what the algorithm is told."""

    def __init__(self, port: FakePort | None = None) -> None:
        self.port = port or FakePort()
        self.clients = self.port.clients
        self.told = self.clients.algorithm = Told(self.port)
        self.clients.start()

    def client(self, level: int = 5) -> FakeClient:
        return FakeClient(self.port, level)

    @property
    def filters(self) -> list[str]:
        self.advance(0)  # what has ended is released in the next turn
        return sorted(self.clients.interest.filters)

    @property
    def changes(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        self.advance(0)
        return self.told.changes

    @property
    def kept(self) -> bytes:
        return self.port.files["client-sessions"]

    def advance(self, seconds: float) -> None:
        self.port.advance(seconds)

    def restarted(self) -> Desk:
        """The node that comes up after this one, with another clock."""
        port = FakePort()
        port.clock_s = 5.0
        port.files = self.port.files
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
    monkeypatch.setattr(client_module, "MAX_PENDING_BYTES", 1000)
    client = desk.client().connect()
    for _ in range(20):
        client.subscribe("x" * 500)  # answered each time: never too much
    client.says(Subscribe(100, (Subscription("x" * 500),)))
    client.says(Subscribe(100, (Subscription("x" * 500),)))  # instead of the one before
    with pytest.raises(RemoteProtocolError) as caught:
        client.says(Unsubscribe(101, ("y" * 500,)))
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED


# ---- CONNECT ----


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
    assert desk.clients.status()["clients"] == 0


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
    desk.advance(1)  # and that is written
    assert desk.port.timers == {}


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


@pytest.mark.parametrize(("expiry_s", "left"), [(None, []), (100, ["late"])])
def test_what_comes_after_the_successor_has_gone_is_not_held_for_ever(
    desk: Desk, expiry_s: int | None, left: list[str]
) -> None:
    first = desk.client().connect(expiry_s=expiry_s, clean_start=False)
    first.says(Subscribe(9, (Subscription("late"),)))
    desk.client().connect(expiry_s=expiry_s, clean_start=False, session_present=True).drop()
    first.hears(SubAck(9, (ReasonCode.SUCCESS,)))
    assert desk.filters == ["late"]
    first.drop()
    assert desk.filters == left
    desk.advance(100)
    assert desk.filters == []
    assert desk.clients.status()["clients"] == 0


# ---- over a restart ----


def test_persistent_filters_survive_a_restart(desk: Desk) -> None:
    desk.client(4).connect("v3", clean_start=False).subscribe("a", "$share/g/s")
    desk.client().connect("v5", expiry_s=100).subscribe("b").drop()
    desk.client().connect("clean").subscribe("c")
    assert desk.port.saved["client-sessions"] == 0  # not at each change
    desk.advance(SAVE_DELAY_S + 0.1)
    assert desk.port.saved["client-sessions"] == 1

    after = desk.restarted()
    assert after.filters == ["a", "b", "s"]
    after.advance(101)
    assert after.filters == ["a", "s"]
    after.client(4).connect("v3", clean_start=False, session_present=True).unsubscribe("$share/g/s")
    assert after.filters == ["a"]


def test_the_time_that_is_left_is_kept(desk: Desk) -> None:
    desk.client().connect(expiry_s=100).subscribe("a").drop()
    desk.advance(60)
    desk.clients.stop()
    after = desk.restarted()
    after.advance(39)
    assert after.filters == ["a"]
    after.advance(1)
    assert after.filters == []
    after.clients.stop()
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
    assert desk.clients.status()["clients"] == 0


@pytest.mark.parametrize(
    "record",
    [
        b"\xff",
        b"[]",
        b"{}",
        b'{"id": "a"}',
        b'{"id": "a", "filters": [7], "expiry_s": null}',
        b'{"id": "a", "filters": ["a#"], "expiry_s": null}',
    ],
)
def test_state_that_cannot_be_read_is_left_out(record: bytes) -> None:
    port = FakePort()
    port.files["client-sessions"] = kept_records.write("client-sessions", 2, [record])
    assert Desk(port).filters == []
    assert "cannot be read" in port.logged[-1]


def test_state_has_a_record_for_each_client(desk: Desk) -> None:
    desk.client().connect("é", expiry_s=9).subscribe("a")
    desk.client().connect("b", expiry_s=8).subscribe("b")
    desk.clients.stop()
    kept = kept_records.read(desk.kept)
    assert kept.is_("client-sessions", 2)
    assert [json.loads(record) for record in kept.records] == [
        {"id": "é", "filters": ["a"], "expiry_s": 9},
        {"id": "b", "filters": ["b"], "expiry_s": 8},
    ]


# ---- what the algorithm is told, in which order ----


@pytest.mark.parametrize("clean", [True, False])
def test_the_order_of_hooks(desk: Desk, clean: bool) -> None:
    client = desk.client().connect().subscribe("a").unsubscribe("a").subscribe("b")
    if clean:
        client.disconnect()
    else:
        client.drop()
    desk.advance(0)
    down = [] if clean else ["on_tcp_down {}"]
    assert desk.told.hooks == [
        "on_session_established client",
        "on_session_established broker",
        "client: Connect",
        "broker: ConnAck",
        "client: Subscribe",
        "broker: SubAck",
        "on_local_interest",
        "client: Unsubscribe",
        "broker: UnsubAck",
        "on_local_interest",
        "client: Subscribe",
        "broker: SubAck",
        "on_local_interest",
        *(["client: Disconnect"] if clean else []),
        *(each.format("client") for each in down),
        "on_session_closed client",
        *(each.format("broker") for each in down),
        "on_session_closed broker",
        "on_local_interest",
    ]


def test_a_session_says_whose_it_is_and_how_it_speaks(desk: Desk) -> None:
    assigned = Properties(assigned_client_identifier="given")
    five = desk.client().connect("", ack=assigned).pair
    four = desk.client(4).connect("four").pair
    assert [(each.name, each.level) for each in (five.session, five.broker)] == [("given", 5)] * 2
    assert [(each.name, each.level) for each in (four.session, four.broker)] == [("four", 4)] * 2
    assert desk.port.get_paired_session(five.session) is five.broker
    assert desk.port.get_paired_session(five.broker) is five.session


def test_a_clients_session_is_closed_as_a_pair(desk: Desk) -> None:
    client = desk.client().connect()
    pair = client.pair
    desk.clients.close(pair.broker)
    desk.clients.close(pair.broker)
    assert client.end.codes == []  # not from within the call
    assert pair.session.status is pair.broker.status is SessionStatus.TERMINATING
    assert not desk.clients.send(pair.session, b"x")
    desk.advance(0)
    assert client.end.codes == [ReasonCode.ADMINISTRATIVE_ACTION]
    client.drop()
    assert desk.told.hooks[-2:] == ["on_session_closed client", "on_session_closed broker"]
    assert {pair.session.status, pair.broker.status} == {SessionStatus.CLOSED}


def test_a_packet_can_be_sent_to_either_end(desk: Desk) -> None:
    client = desk.client().connect()
    assert desk.clients.send(client.pair.session, b"to the client")
    assert desk.clients.send(client.pair.broker, b"to the broker")
    assert client.end.sent == [(b"to the client", False), (b"to the broker", True)]
    client.drop()
    assert not desk.clients.send(client.pair.session, b"too late")


def test_bad_bytes_are_told_and_are_no_loss_of_the_connection(desk: Desk) -> None:
    for by_broker in (False, True):
        client = desk.client().connect()
        desk.told.hooks.clear()
        desk.clients.failed(client.pair, RemoteProtocolError("x"), by_broker=by_broker)
        assert client.pair.session.status is SessionStatus.TERMINATING
        client.drop()
        assert desk.told.hooks == [
            f"on_recv_failure {'broker' if by_broker else 'client'}",
            "on_session_closed client",
            "on_session_closed broker",
        ]


def test_an_algorithm_may_refuse_a_client(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(session: SessionInfo, message: ReceivedPacket) -> bool:
        raise RemoteProtocolError("not you")

    monkeypatch.setattr(desk.told, "mqtt_message_arrived", refuses)
    with pytest.raises(RemoteProtocolError, match="not you"):
        desk.client().connect()
    assert len(desk.clients) == 0
    assert desk.clients.status()["clients"] == 0
    assert desk.told.hooks[2:] == [
        "on_recv_failure client",
        "on_session_closed client",
        "on_session_closed broker",
    ]


def test_topics_begin_with_their_first_use_and_end_with_the_connection(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishers, "MAX_TOPICS", 2)
    monkeypatch.setattr(Told, "follows_publishers", True)
    client = desk.client()
    client.routes = {topic: Route() for topic in (b"a", b"b", b"c")}
    client.connect()
    desk.told.hooks.clear()
    for topic in (b"a", b"b", b"a", b"c", b"b"):
        assert client.pair.routes[topic] == Route()
    with pytest.raises(KeyError):
        client.pair.routes[b"not a topic"]
    client.drop()
    assert desk.told.hooks == [
        "on_local_publisher ('a',) ()",
        "on_local_publisher ('b',) ()",
        "on_local_publisher ('c',) ('a',)",
        "on_local_publisher () ('b', 'c')",
        "on_tcp_down client",
        "on_session_closed client",
        "on_tcp_down broker",
        "on_session_closed broker",
    ]


def test_who_does_not_ask_for_it_pays_nothing_for_publishers(desk: Desk) -> None:
    client = desk.client().connect()
    assert client.pair.routes is client.routes
