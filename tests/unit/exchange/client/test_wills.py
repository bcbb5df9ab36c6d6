"""When a will is due, rule by rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.exchange.client.wills import RESTORED_AFTER_S, WRITE_S, DueWill
from isthmus.exchange.host import Cancellable
from isthmus.mqtt.packets import ConnAck, Connect, Disconnect, Publish, Will
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from support.algorithm_network import FakeClient, FakePort, FakeTimer

NEVER = 0xFFFF_FFFF


class Node:
    """A node's clients, played connection by connection; every step returns the wills then due."""

    def __init__(self, *, max_bytes: int = 64 << 20, files: dict[str, bytes] | None = None) -> None:
        self.port = FakePort()
        self.port.files = files or {}
        self.port.clients.algorithm = CooperationAlgorithm(self.port, {})
        self.wills = self.port.clients.wills
        self.wills._max_bytes = max_bytes
        self.connections: dict[int, FakeClient] = {}

    @property
    def running(self) -> dict[Cancellable, float]:
        """What waits, by timer, and for how long."""
        timers = [client.will.timer for client in self.wills._waiting.values() if client.will]
        now_s = self.port.clock_s
        return {
            timer: self.port.timers[timer] - now_s
            for timer in timers
            if isinstance(timer, FakeTimer)
        }

    def only(self) -> tuple[Cancellable, float]:
        ((key, delay_s),) = self.running.items()
        return key, delay_s

    def status(self) -> dict[str, object]:
        return self.wills.status()

    def due(self) -> list[DueWill]:
        due = list(self.port.wills)
        self.port.wills.clear()
        return due

    def connected(
        self,
        session: int,
        connect: Connect,
        client_id: str,
        *,
        session_expiry: int | None = None,
        session_present: bool = False,
    ) -> list[DueWill]:
        client = self.connections[session] = FakeClient(self.port, connect.protocol_level)
        client.says(replace(connect, client_id=client_id))
        v5 = connect.protocol_level == 5
        code = ReasonCode.SUCCESS if v5 else ConnectReturnCode(0)
        properties = Properties(session_expiry_interval=session_expiry)
        client.hears(ConnAck(session_present, code, properties))
        return self.due()

    def disconnected_cleanly(
        self, session: int, *, with_will: bool = False, session_expiry: int | None = None
    ) -> list[DueWill]:
        """DISCONNECT comes; the end of the connection is still to be seen."""
        code = ReasonCode.DISCONNECT_WITH_WILL_MESSAGE if with_will else ReasonCode.SUCCESS
        properties = Properties(session_expiry_interval=session_expiry)
        self.connections[session].says(Disconnect(code, properties))
        return self.due()

    def lost(self, session: int) -> list[DueWill]:
        self.connections[session].drop()
        return self.due()

    def on_timer(self, timer: Cancellable) -> list[DueWill]:
        """It runs out, unless it was canceled."""
        if isinstance(timer, FakeTimer) and timer in self.port.timers:
            self.port.fire(timer, print)
        return self.due()

    def stop(self) -> list[DueWill]:
        self.wills.stop()
        return self.due()

    def restarted(self) -> Node:
        """The life after this one, with what this one has written; see `begin`."""
        return Node(files=self.port.files)

    def begin(self) -> list[DueWill]:
        self.port.clients.start()
        self.port.advance(RESTORED_AFTER_S)
        return self.due()


@pytest.fixture
def node() -> Node:
    return Node()


def a_will(delay: int | None = None, payload: bytes = b"gone") -> Will:
    properties = Properties(will_delay_interval=delay, user_properties=(("a", "b"),))
    return Will("w/t", payload, 1, True, properties)


def v5(
    delay: int | None = None, expiry: int | None = None, *, clean: bool = False, will: bool = True
) -> Connect:
    return Connect(
        client_id="c",
        clean_start=clean,
        will=a_will(delay) if will else None,
        properties=Properties(session_expiry_interval=expiry),
    )


def v3(*, clean: bool) -> Connect:
    will = Will("w/t", b"gone", 1, True)
    return Connect(client_id="c", clean_start=clean, will=will, protocol_level=4)


def ids(due: list[DueWill]) -> list[str]:
    return [each.client_id for each in due]


# ---- an end of the connection ----


@dataclass(frozen=True, slots=True)
class End:
    """What happens to a will when its connection is lost."""

    statement: str
    connect: Connect
    delay_s: int
    """0 for at once."""


ENDS = [
    End("3.1.1: published when the connection is closed [MQTT-3.1.2-8]", v3(clean=True), 0),
    End("3.1.1: also if the session goes on", v3(clean=False), 0),
    End("5: without a delay there is none (3.1.3.2.2)", v5(None, 100), 0),
    End("5: a delay of 0 is none (3.1.3.2.2)", v5(0, 100), 0),
    End("5: after the delay, if the session lives on [MQTT-3.1.2-8]", v5(10, 100), 10),
    End("5: when the session ends, if that is first (3.1.3.2.2)", v5(100, 10), 10),
    End("5: without an expiry interval the session ends at once (3.1.2.11.2)", v5(10), 0),
    End("5: the same with 0", v5(10, 0), 0),
    End("5: 0xFFFFFFFF never expires (3.1.2.11.2)", v5(10, NEVER), 10),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.statement)
def test_a_lost_connection(node: Node, end: End) -> None:
    assert node.connected(1, end.connect, "c") == []
    due = node.lost(1)
    if end.delay_s:
        assert due == []
        key, delay_s = node.only()
        assert delay_s == end.delay_s
        due = node.on_timer(key)
        assert node.on_timer(key) == []
    assert end.connect.will is not None
    assert due == [DueWill("c", end.connect.will)]
    assert node.running == {}
    assert node.lost(1) == []
    assert node.status()["bytes"] == 0
    assert node.status()["sent"] == 1


@pytest.mark.parametrize("connect", [v3(clean=True), v3(clean=False), v5(), v5(10, 100)])
def test_a_normal_disconnection_deletes_the_will(node: Node, connect: Connect) -> None:
    """[MQTT-3.1.2-10], [MQTT-3.14.4-3]"""
    node.connected(1, connect, "c")
    assert node.disconnected_cleanly(1) == []
    assert node.lost(1) == []
    assert node.running == {}
    assert node.status()["bytes"] == 0


def test_a_disconnection_with_will_message_publishes_it(node: Node) -> None:
    """Reason code 0x04 (table 3-10), and any other that is not 0x00 [MQTT-3.14.4-3]."""
    node.connected(1, v5(), "c")
    assert ids(node.disconnected_cleanly(1, with_will=True)) == ["c"]
    assert node.lost(1) == []


def test_the_delay_holds_for_a_disconnection_with_will_message(node: Node) -> None:
    node.connected(1, v5(10, 100), "c")
    assert node.disconnected_cleanly(1, with_will=True) == []
    key, delay_s = node.only()
    assert delay_s == 10
    assert ids(node.on_timer(key)) == ["c"]


@pytest.mark.parametrize(("expiry", "delay_s"), [(5, 5), (20, 10), (0, 0)])
def test_a_disconnect_may_change_the_session_expiry(node: Node, expiry: int, delay_s: int) -> None:
    """3.14.2.2.2"""
    node.connected(1, v5(10, 100), "c")
    due = node.disconnected_cleanly(1, with_will=True, session_expiry=expiry)
    assert ids(due) == (["c"] if delay_s == 0 else [])
    if delay_s:
        assert node.only()[1] == delay_s


def test_a_disconnect_that_makes_a_session_last_is_no_valid_one(node: Node) -> None:
    """3.14.2.2.2: not if it was 0 in CONNECT; the server then ends the connection itself."""
    node.connected(1, v5(10, 0), "c")
    assert ids(node.disconnected_cleanly(1, session_expiry=5)) == ["c"]


def test_the_server_may_use_another_session_expiry(node: Node) -> None:
    """3.2.2.3.2"""
    node.connected(1, v5(10, 100), "c", session_expiry=3)
    node.lost(1)
    assert node.only()[1] == 3


# ---- a client that comes back ----


@dataclass(frozen=True, slots=True)
class Return:
    """What becomes of the first connection's will when the client connects again."""

    statement: str
    first: Connect
    second: Connect
    sent: bool
    session_present: bool = False


RETURNS = [
    Return("3.1.1: the old one is closed", v3(clean=False), v3(clean=False), True),
    Return("3.1.1: the same with a new session", v3(clean=True), v3(clean=True), True),
    Return("5: a new connection to the session [MQTT-3.1.3-9]", v5(10, 100), v5(10, 100), False),
    Return("5: even if it has no will", v5(10, 100), v5(will=False), False),
    Return("5: Clean Start 1 ends the session", v5(10, 100), v5(clean=True), True),
    Return("5: Clean Start 1 without a will", v5(10, 100), v5(clean=True, will=False), True),
    Return("5: without a delay at the close", v5(None, 100), v5(None, 100), True),
    Return("5: the session ended with the connection", v5(10, 0), v5(10, 0), True),
    Return("3.1.1 after 5: the session goes on", v5(10, 100), v3(clean=False), False),
    Return("3.1.1 after 5: Clean Session 1 ends it", v5(10, 100), v3(clean=True), True),
    Return("5 after 3.1.1: there was no delay", v3(clean=False), v5(10, 100), True),
    Return("5: CONNACK says that the session was there", v5(10, 100), v5(), False, True),
    Return("5: CONNACK is not believed if not, as some are wrong", v5(10, 100), v5(), False),
]  # fmt: skip


@pytest.mark.parametrize("lost_first", [True, False], ids=["lost first", "taken over"])
@pytest.mark.parametrize("case", RETURNS, ids=lambda case: case.statement)
def test_a_second_connection(node: Node, case: Return, lost_first: bool) -> None:
    """3.1.3.2.2, and [MQTT-3.1.4-3]; in whatever order the node sees the two events."""
    due: list[DueWill] = []
    node.connected(1, case.first, "c")
    if lost_first:
        due += node.lost(1)
    due += node.connected(2, case.second, "c", session_present=case.session_present)
    if not lost_first:
        due += node.lost(1)
    assert due == ([DueWill("c", case.first.will)] if case.sent and case.first.will else [])
    assert node.running == {}
    assert node.status()["waiting"] == 0
    assert node.status()["armed"] == (case.second.will is not None)


def test_the_second_connection_has_a_will_of_its_own(node: Node) -> None:
    node.connected(1, v5(10, 100), "c")
    second = v5()
    node.connected(2, second, "c")
    assert node.lost(1) == []
    assert node.lost(2) == [DueWill("c", second.will or a_will())]


def test_a_late_timer_of_a_canceled_delay_does_nothing(node: Node) -> None:
    node.connected(1, v5(10, 100), "c")
    node.lost(1)
    key, _ = node.only()
    node.connected(2, v5(10, 100), "c")
    node.lost(2)
    assert node.on_timer(key) == []
    assert len(node.running) == 1


def test_other_clients_and_unknown_ids_are_others(node: Node) -> None:
    node.connected(1, v5(), "c")
    assert node.connected(2, v5(clean=True), "d") == []
    assert node.connected(3, v3(clean=True), "") == []
    assert node.connected(4, v3(clean=True), "") == []
    assert ids(node.lost(3)) == [""]
    assert ids(node.lost(4)) == [""]
    node.connected(5, v5(10, 100), "")
    assert ids(node.lost(5)) == [""]  # nobody can come back under a name that nobody knows
    assert node.status()["waiting"] == 0


def test_a_client_without_a_will_leaves_nothing(node: Node) -> None:
    node.connected(1, v5(will=False), "c")
    assert node.status()["armed"] == 0
    assert node.lost(1) == node.disconnected_cleanly(1, with_will=True) == []


def test_the_message_of_a_will() -> None:
    """A retained will is published as a retained message [MQTT-3.1.2-15]; the delay stays here."""
    assert DueWill("c", a_will(10)).publish() == Publish(
        "w/t", b"gone", 1, True, properties=Properties(user_properties=(("a", "b"),))
    )


# ---- the node stops, and starts again ----


def test_a_node_that_stops_sends_what_has_no_delay(node: Node) -> None:
    node.connected(1, v3(clean=True), "at once")
    node.connected(2, v5(10, 100), "later")
    node.connected(3, v5(20, 100), "waiting")
    node.lost(3)
    node.port.advance(5.0)
    assert ids(node.stop()) == ["at once"]

    again = node.restarted()
    again.port.clients.start()
    assert sorted(again.running.values()) == [10.0, 15.0]
    assert again.connected(1, v5(10, 100), "later") == []
    key, _ = again.only()
    assert again.on_timer(key) == [DueWill("waiting", a_will(20))]


def test_after_a_crash_every_connection_was_lost(node: Node) -> None:
    node.connected(1, v3(clean=True), "at once")
    node.connected(2, v5(10, 100), "later")
    node.port.advance(WRITE_S)
    again = node.restarted()
    again.port.clients.start()
    assert again.only()[1] == 10.0
    again.port.advance(RESTORED_AFTER_S)
    assert again.due() == [DueWill("at once", Will("w/t", b"gone", 1, True))]


def test_damage_costs_one_will(node: Node) -> None:
    for number in range(3):
        node.connected(number, v3(clean=True), f"client {number}")
    node.port.advance(WRITE_S)
    file = node.port.files["wills"]
    place = file.index(b"client 1")
    node.port.files["wills"] = file[:place] + b"X" + file[place + 1 :]
    assert ids(node.restarted().begin()) == ["client 0", "client 2"]


def test_the_wills_of_the_last_life_are_kept_until_they_are_sent(node: Node) -> None:
    node.connected(1, v3(clean=True), "of before")
    node.port.advance(WRITE_S)
    second = node.restarted()
    second.port.clients.start()
    second.connected(1, v3(clean=True), "of now")
    second.port.advance(RESTORED_AFTER_S - 1)
    assert ids(second.restarted().begin()) == ["of before", "of now"]
    second.port.advance(1 + WRITE_S)
    assert ids(second.due()) == ["of before"]
    assert ids(second.restarted().begin()) == ["of now"]


# ---- bounded memory ----


def test_when_full_waiting_wills_are_sent_early_and_new_ones_not_remembered() -> None:
    node = Node(max_bytes=1500)
    node.connected(1, v5(10, 100), "first")
    node.connected(2, v5(10, 100), "second")
    node.lost(1)
    node.lost(2)
    assert node.connected(3, v5(), "third") == [DueWill("first", a_will(10))]
    assert len(node.running) == 1
    assert ids(node.connected(4, v5(), "fourth")) == ["second"]
    assert node.connected(5, v5(), "fifth") == []
    assert node.lost(5) == []
    status = node.status()
    assert (status["sent_early"], status["not_remembered"], status["armed"]) == (2, 1, 2)
    assert ids(node.lost(3)) == ["third"]
    assert node.connected(6, v5(), "sixth") == []
    assert ids(node.lost(6)) == ["sixth"]


def test_a_will_that_cannot_fit_sends_no_other_early() -> None:
    node = Node(max_bytes=1500)
    node.connected(1, v5(10, 100), "first")
    node.lost(1)
    huge = Connect(will=a_will(payload=b"x" * 2000))
    assert node.connected(2, huge, "second") == []
    assert len(node.running) == 1
    assert node.status()["not_remembered"] == 1
