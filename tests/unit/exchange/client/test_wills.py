"""When a will is due, rule by rule."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import pytest

from isthmus.cooperation import kept_records
from isthmus.errors import IsthmusError
from isthmus.exchange.client.wills import DueWill, Wills
from isthmus.mqtt.packets import Connect, Publish, Will
from isthmus.mqtt.properties import Properties

NEVER = 0xFFFF_FFFF


class Timers:
    """Timers that run out when told to."""

    def __init__(self) -> None:
        self.running: dict[Hashable, float] = {}

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        self.running[key] = delay_s

    def cancel_timer(self, key: Hashable) -> None:
        self.running.pop(key, None)

    def only(self) -> tuple[Hashable, float]:
        ((key, delay_s),) = self.running.items()
        return key, delay_s


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def wills(timers: Timers) -> Wills:
    return Wills(timers)


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
def test_a_lost_connection(wills: Wills, timers: Timers, end: End) -> None:
    assert wills.connected(1, end.connect, "c") == []
    due = wills.lost(1, 50.0)
    if end.delay_s:
        assert due == []
        key, delay_s = timers.only()
        assert delay_s == end.delay_s
        timers.cancel_timer(key)
        due = wills.on_timer(key)
        assert wills.on_timer(key) == []
    assert end.connect.will is not None
    assert due == [DueWill("c", end.connect.will)]
    assert timers.running == {}
    assert wills.lost(1, 51.0) == []
    assert wills.status()["bytes"] == 0
    assert wills.status()["sent"] == 1


@pytest.mark.parametrize("connect", [v3(clean=True), v3(clean=False), v5(), v5(10, 100)])
def test_a_normal_disconnection_deletes_the_will(
    wills: Wills, timers: Timers, connect: Connect
) -> None:
    """[MQTT-3.1.2-10], [MQTT-3.14.4-3]"""
    wills.connected(1, connect, "c")
    assert wills.disconnected_cleanly(1, 0.0) == []
    assert wills.lost(1, 0.0) == []
    assert timers.running == {}
    assert wills.status()["bytes"] == 0


def test_a_disconnection_with_will_message_publishes_it(wills: Wills, timers: Timers) -> None:
    """Reason code 0x04 (table 3-10), and any other that is not 0x00 [MQTT-3.14.4-3]."""
    wills.connected(1, v5(), "c")
    assert ids(wills.disconnected_cleanly(1, 0.0, with_will=True)) == ["c"]
    assert wills.lost(1, 0.0) == []


def test_the_delay_holds_for_a_disconnection_with_will_message(
    wills: Wills, timers: Timers
) -> None:
    wills.connected(1, v5(10, 100), "c")
    assert wills.disconnected_cleanly(1, 0.0, with_will=True) == []
    key, delay_s = timers.only()
    assert delay_s == 10
    assert ids(wills.on_timer(key)) == ["c"]


@pytest.mark.parametrize(("expiry", "delay_s"), [(5, 5), (20, 10), (0, 0)])
def test_a_disconnect_may_change_the_session_expiry(
    wills: Wills, timers: Timers, expiry: int, delay_s: int
) -> None:
    """3.14.2.2.2"""
    wills.connected(1, v5(10, 100), "c")
    due = wills.disconnected_cleanly(1, 0.0, with_will=True, session_expiry=expiry)
    assert ids(due) == (["c"] if delay_s == 0 else [])
    if delay_s:
        assert timers.only()[1] == delay_s


def test_a_disconnect_that_makes_a_session_last_is_no_valid_one(wills: Wills) -> None:
    """3.14.2.2.2: not if it was 0 in CONNECT; the server then ends the connection itself."""
    wills.connected(1, v5(10, 0), "c")
    assert ids(wills.disconnected_cleanly(1, 0.0, session_expiry=5)) == ["c"]


def test_the_server_may_use_another_session_expiry(wills: Wills, timers: Timers) -> None:
    """3.2.2.3.2"""
    wills.connected(1, v5(10, 100), "c", session_expiry=3)
    wills.lost(1, 0.0)
    assert timers.only()[1] == 3


# ---- a client that comes back ----


@dataclass(frozen=True, slots=True)
class Return:
    """What becomes of the first connection's will when the client connects again."""

    statement: str
    first: Connect
    second: Connect
    sent: bool
    session_present: bool | None = None


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
    Return("5: CONNACK says that it had ended", v5(10, 100), v5(), True, False),
]  # fmt: skip


@pytest.mark.parametrize("lost_first", [True, False], ids=["lost first", "taken over"])
@pytest.mark.parametrize("case", RETURNS, ids=lambda case: case.statement)
def test_a_second_connection(wills: Wills, timers: Timers, case: Return, lost_first: bool) -> None:
    """3.1.3.2.2, and [MQTT-3.1.4-3]; in whatever order the node sees the two events."""
    due: list[DueWill] = []
    wills.connected(1, case.first, "c")
    if lost_first:
        due += wills.lost(1, 0.0)
    due += wills.connected(2, case.second, "c", session_present=case.session_present)
    if not lost_first:
        due += wills.lost(1, 0.0)
    assert due == ([DueWill("c", case.first.will)] if case.sent and case.first.will else [])
    assert timers.running == {}
    assert wills.status()["waiting"] == 0
    assert wills.status()["armed"] == (case.second.will is not None)


def test_the_second_connection_has_a_will_of_its_own(wills: Wills) -> None:
    wills.connected(1, v5(10, 100), "c")
    second = v5()
    wills.connected(2, second, "c")
    assert wills.lost(1, 0.0) == []
    assert wills.lost(2, 0.0) == [DueWill("c", second.will or a_will())]


def test_a_late_timer_of_a_cancelled_delay_does_nothing(wills: Wills, timers: Timers) -> None:
    wills.connected(1, v5(10, 100), "c")
    wills.lost(1, 0.0)
    key, _ = timers.only()
    wills.connected(2, v5(10, 100), "c")
    wills.lost(2, 0.0)
    assert wills.on_timer(key) == []
    assert wills.on_timer("another's") == []
    assert len(timers.running) == 1


def test_other_clients_and_unknown_ids_are_others(wills: Wills) -> None:
    wills.connected(1, v5(), "c")
    assert wills.connected(2, v5(clean=True), "d") == []
    assert wills.connected(3, v3(clean=True), "") == []
    assert wills.connected(4, v3(clean=True), "") == []
    assert ids(wills.lost(3, 0.0)) == [""]
    assert ids(wills.lost(4, 0.0)) == [""]
    wills.connected(5, v5(10, 100), "")
    wills.lost(5, 0.0)
    assert wills.connected(6, v5(clean=True), "") == []
    assert wills.status()["waiting"] == 1


def test_a_client_without_a_will_leaves_nothing(wills: Wills) -> None:
    wills.connected(1, v5(will=False), "c")
    assert wills.status()["armed"] == 0
    assert wills.lost(1, 0.0) == wills.disconnected_cleanly(1, 0.0, with_will=True) == []


def test_a_refused_connect_is_never_told_so_its_end_sends_nothing(wills: Wills) -> None:
    assert wills.lost(1, 0.0) == []


def test_a_session_connects_once(wills: Wills) -> None:
    wills.connected(1, v5(), "c")
    with pytest.raises(ValueError, match="session 1"):
        wills.connected(1, v5(), "c")


def test_the_message_of_a_will() -> None:
    """A retained will is published as a retained message [MQTT-3.1.2-15]; the delay stays here."""
    assert DueWill("c", a_will(10)).publish() == Publish(
        "w/t", b"gone", 1, True, properties=Properties(user_properties=(("a", "b"),))
    )


# ---- the node stops, and starts again ----


def test_a_node_that_stops_sends_what_has_no_delay(wills: Wills, timers: Timers) -> None:
    wills.connected(1, v3(clean=True), "at once")
    wills.connected(2, v5(10, 100), "later")
    wills.connected(3, v5(20, 100), "waiting")
    wills.lost(3, 0.0)
    assert ids(wills.stop(5.0)) == ["at once"]
    assert timers.running == {}

    again = Wills(timers)
    assert again.restore(wills.snapshot(5.0), 1000.0) == []
    assert sorted(timers.running.values()) == [10.0, 15.0]
    assert again.connected(1, v5(10, 100), "later") == []
    key, _ = timers.only()
    assert again.on_timer(key) == [DueWill("waiting", a_will(20))]


def test_after_a_crash_every_connection_was_lost(wills: Wills, timers: Timers) -> None:
    wills.connected(1, v3(clean=True), "at once")
    wills.connected(2, v5(10, 100), "later")
    snapshot = wills.snapshot(5.0)
    again = Wills(timers)
    assert again.restore(snapshot, 0.0) == [DueWill("at once", Will("w/t", b"gone", 1, True))]
    assert timers.only()[1] == 10.0


@pytest.mark.parametrize("other", [b"", b"wills", kept_records.write("wills", 1, [])])
def test_another_format_is_refused(wills: Wills, other: bytes) -> None:
    with pytest.raises(IsthmusError, match="wills"):
        wills.restore(other, 0.0)


def test_damage_costs_one_will(wills: Wills, timers: Timers) -> None:
    for number in range(3):
        wills.connected(number, v3(clean=True), f"client {number}")
    snapshot = wills.snapshot(0.0)
    place = snapshot.index(b"client 1")
    damaged = snapshot[:place] + b"X" + snapshot[place + 1 :]
    assert ids(Wills(timers).restore(damaged, 0.0)) == ["client 0", "client 2"]


# ---- bounded memory ----


def test_when_full_waiting_wills_are_sent_early_and_new_ones_not_remembered(
    timers: Timers,
) -> None:
    wills = Wills(timers, max_bytes=1500)
    wills.connected(1, v5(10, 100), "first")
    wills.connected(2, v5(10, 100), "second")
    wills.lost(1, 0.0)
    wills.lost(2, 0.0)
    assert wills.connected(3, v5(), "third") == [DueWill("first", a_will(10))]
    assert len(timers.running) == 1
    assert ids(wills.connected(4, v5(), "fourth")) == ["second"]
    assert wills.connected(5, v5(), "fifth") == []
    assert wills.lost(5, 0.0) == []
    status = wills.status()
    assert (status["sent_early"], status["not_remembered"], status["armed"]) == (2, 1, 2)
    assert ids(wills.lost(3, 0.0)) == ["third"]
    assert wills.connected(6, v5(), "sixth") == []
    assert ids(wills.lost(6, 0.0)) == ["sixth"]


def test_a_will_that_cannot_fit_sends_no_other_early(timers: Timers) -> None:
    wills = Wills(timers, max_bytes=1500)
    wills.connected(1, v5(10, 100), "first")
    wills.lost(1, 0.0)
    huge = Connect(will=a_will(payload=b"x" * 2000))
    assert wills.connected(2, huge, "second") == []
    assert len(timers.running) == 1
    assert wills.status()["not_remembered"] == 1
