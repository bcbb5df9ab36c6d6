"""The way to the local broker, on a virtual clock and without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus import brokers
from isthmus.config.files import BrokerTable
from isthmus.errors import BrokerError, BrokerFailed, BrokerMissing
from isthmus.exchange.session import Session
from isthmus.node.upstream import MAX_CONNECTING, PROBE_S, RETRY_S, Upstream
from support.certificates import Authority
from support.virtual_loop import MemoryTransport, Protocols, VirtualLoop, run_virtually, turns

TIMEOUT_S = 5.0


class Visitor(asyncio.Protocol):
    """A session that is to be connected with the broker."""

    def __init__(self) -> None:
        self.connected = False
        self.failures: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected = True


class Desk:
    """An upstream whose broker is the test."""

    def __init__(self, loop: VirtualLoop, **broker: Any) -> None:
        self.loop = loop
        loop.dial = self._dial
        self.refuses: Exception | None = None
        self.hangs: asyncio.Event | None = None
        self.in_use = False
        self.dialed: list[tuple[float, dict[str, Any]]] = []
        self.under_way = 0
        self.most_under_way = 0
        table = {"url": "mqtt://broker.example:1884", **broker}
        config = BrokerTable.model_validate(table)
        self.upstream = Upstream(config, TIMEOUT_S, lambda: self.in_use)

    async def _dial(self, make: Protocols, wanted: dict[str, Any]) -> None:
        self.dialed.append((self.loop.now_s, wanted))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hangs is not None:
                await self.hangs.wait()
        finally:
            self.under_way -= 1
        if self.refuses is not None:
            raise self.refuses
        make().connection_made(MemoryTransport(self.loop))

    def open(self) -> Visitor:
        visitor = Visitor()
        self.upstream.open(cast(Session, visitor), visitor.failures.append)
        return visitor

    def dialed_at(self) -> list[float]:
        return [round(at_s, 3) for at_s, _ in self.dialed]


def with_desk(test: Callable[[Desk], Coroutine[Any, Any, None]], **broker: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        desk = Desk(loop, **broker)
        try:
            await test(desk)
        finally:
            desk.upstream.close()
            await desk.upstream.stop()

    run_virtually(main)


def test_nothing_is_said_of_the_broker_before_it_was_tried() -> None:
    async def then(desk: Desk) -> None:
        assert not desk.upstream.reachable
        assert desk.upstream.problem == "not tried yet"

    with_desk(then)


# ---- sessions ----------------------------------------------------------------------------


def test_a_session_is_connected_and_the_broker_is_known_to_be_there() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        visitor = desk.open()
        await turns()
        assert visitor.connected
        assert visitor.failures == []
        assert not desk.upstream._opening
        assert desk.upstream.reachable
        assert desk.upstream.problem == ""
        _, wanted = desk.dialed[-1]
        assert (wanted["host"], wanted["port"]) == ("broker.example", 1884)
        assert wanted["ssl"] is wanted["server_hostname"] is None

    with_desk(then)


def test_a_session_that_is_asked_for_too_early_waits_for_the_start() -> None:
    async def then(desk: Desk) -> None:
        visitor = desk.open()
        await turns()
        assert desk.dialed == []
        await desk.upstream.start()
        await turns()
        assert visitor.connected

    with_desk(then)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (OSError(), "OSError"),
        (UnicodeError("label empty or too long"), "label empty or too long"),
    ],
)
def test_who_cannot_be_connected_is_told_the_cause_and_so_is_the_status(
    refusal: Exception, told: str
) -> None:
    async def then(desk: Desk) -> None:
        desk.refuses = refusal
        await desk.upstream.start()
        visitor = desk.open()
        await turns()
        assert visitor.failures == [told]
        assert not visitor.connected
        assert not desk.upstream.reachable
        assert desk.upstream.problem == told

    with_desk(then)


def test_a_broker_that_does_not_answer_is_waited_for_no_longer_than_configured() -> None:
    async def then(desk: Desk) -> None:
        desk.hangs = asyncio.Event()
        await desk.upstream.start()
        visitor = desk.open()
        await asyncio.sleep(TIMEOUT_S - 0.1)
        assert visitor.failures == []
        await asyncio.sleep(0.2)
        assert visitor.failures == ["no answer within 5 s"]
        assert desk.upstream.problem == "no answer within 5 s"

    with_desk(then)


def test_a_herd_of_clients_is_let_in_in_turn() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        desk.hangs = asyncio.Event()
        visitors = [desk.open() for _ in range(3 * MAX_CONNECTING)]
        await turns()
        assert desk.under_way == MAX_CONNECTING
        desk.hangs.set()
        await turns(20)
        assert all(visitor.connected for visitor in visitors)
        assert desk.most_under_way == MAX_CONNECTING

    with_desk(then)


def test_to_wait_for_its_turn_counts_as_waiting_for_the_broker() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        desk.hangs = asyncio.Event()
        visitors = [desk.open() for _ in range(MAX_CONNECTING + 1)]
        await asyncio.sleep(TIMEOUT_S + 0.1)
        assert all(len(visitor.failures) == 1 for visitor in visitors)

    with_desk(then)


def test_after_close_nothing_more_is_opened_and_nobody_is_told() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        desk.hangs = asyncio.Event()
        visitor = desk.open()
        await turns()
        desk.upstream.close()
        desk.hangs.set()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert not visitor.connected
        assert visitor.failures == []
        assert desk.under_way == 0

    with_desk(then)


# ---- looking for the broker --------------------------------------------------------------


def test_a_broker_that_is_away_is_looked_for_until_it_is_there() -> None:
    async def then(desk: Desk) -> None:
        desk.refuses = ConnectionRefusedError("no")
        await desk.upstream.start()
        await asyncio.sleep(2.2 * RETRY_S)
        assert desk.dialed_at() == [0.0, RETRY_S, 2 * RETRY_S]
        desk.refuses = None
        await asyncio.sleep(RETRY_S)
        assert desk.upstream.reachable

    with_desk(then)


def test_a_broker_that_nobody_uses_is_looked_after_now_and_then() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await asyncio.sleep(2.5 * PROBE_S)
        assert desk.dialed_at() == [0.0, PROBE_S, 2 * PROBE_S]
        desk.refuses = ConnectionRefusedError("gone")
        await asyncio.sleep(PROBE_S)
        assert not desk.upstream.reachable
        assert desk.upstream.problem == "gone"

    with_desk(then)


def test_a_broker_that_is_in_use_is_left_alone() -> None:
    async def then(desk: Desk) -> None:
        desk.in_use = True
        await desk.upstream.start()
        await asyncio.sleep(10 * PROBE_S)
        assert desk.dialed_at() == [0.0]
        desk.in_use = False
        await asyncio.sleep(PROBE_S)
        assert len(desk.dialed) == 2

    with_desk(then)


def test_a_client_that_has_tried_lately_spares_a_probe() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await asyncio.sleep(PROBE_S - 1.0)
        desk.open()
        await asyncio.sleep(2.0)
        assert desk.dialed_at() == [0.0, PROBE_S - 1.0]
        await asyncio.sleep(PROBE_S)
        assert len(desk.dialed) == 3

    with_desk(then)


def test_what_a_client_finds_out_counts_at_once() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        desk.refuses = ConnectionRefusedError("gone")
        desk.open()
        await turns()
        assert not desk.upstream.reachable
        desk.refuses = None
        desk.open()
        await turns()
        assert desk.upstream.reachable

    with_desk(then)


def test_it_is_told_once_when_the_broker_goes_and_when_it_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def then(desk: Desk) -> None:
        desk.refuses = ConnectionRefusedError("no")
        await desk.upstream.start()
        await asyncio.sleep(3.2 * RETRY_S)
        desk.refuses = ConnectionRefusedError("still not")
        await asyncio.sleep(3 * RETRY_S)
        desk.refuses = None
        await asyncio.sleep(3 * PROBE_S)

    with caplog.at_level("INFO", "isthmus.node.upstream"):
        with_desk(then)
    said = [record.getMessage().split(" broker=")[0] for record in caplog.records]
    assert said == ["broker unreachable", "broker unreachable", "broker reachable"]


def test_after_stop_nobody_looks_for_the_broker() -> None:
    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        await desk.upstream.stop()
        await asyncio.sleep(10 * PROBE_S)
        assert desk.dialed_at() == [0.0]

    with_desk(then)


def test_a_probe_closes_its_connection() -> None:
    async def then(desk: Desk) -> None:
        probes: list[MemoryTransport] = []

        async def dial(make: Protocols, _: dict[str, Any]) -> None:
            probes.append(MemoryTransport(desk.loop))
            make().connection_made(probes[-1])

        desk.loop.dial = dial
        await desk.upstream.start()
        await turns()
        assert [probe.ended for probe in probes] == ["close"]

    with_desk(then)


# ---- TLS ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "expected"),
    [({}, "broker.example"), ({"server_name": "other.example"}, "other.example")],
)
def test_an_mqtts_broker_is_spoken_to_in_tls_and_checked_by_name(
    tmp_path: Path, named: dict[str, str], expected: str
) -> None:
    ca = Authority(tmp_path).cert

    async def then(desk: Desk) -> None:
        await desk.upstream.start()
        await turns()
        _, wanted = desk.dialed[0]
        assert wanted["ssl"].check_hostname
        assert wanted["server_hostname"] == expected

    with_desk(then, url="mqtts://broker.example:8883", tls={"ca": str(ca), **named})


# ---- an embedded broker ------------------------------------------------------------------


class Embedded:
    """A broker that the node starts."""

    host = "127.0.0.9"
    port = 7

    def __init__(self) -> None:
        self.running = False
        self.starts = 0
        self.stops = 0
        self.fails = 0
        self.lacks: BrokerError | None = None

    def missing(self) -> BrokerError | None:
        return self.lacks

    async def async_start(self) -> None:
        self.starts += 1
        if self.starts <= self.fails:
            raise BrokerFailed("embedded", "no port")
        self.running = True

    async def async_stop(self) -> None:
        self.stops += 1


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Embedded:
    made = Embedded()
    monkeypatch.setattr(brokers, "create", lambda _: made)
    return made


def test_an_embedded_broker_is_started_before_anybody_is_connected_with_it(
    embedded: Embedded,
) -> None:
    async def then(desk: Desk) -> None:
        visitor = desk.open()
        await desk.upstream.start()
        await turns()
        assert embedded.starts == 1
        assert visitor.connected
        assert {(wanted["host"], wanted["port"]) for _, wanted in desk.dialed} == {("127.0.0.9", 7)}

    with_desk(then, url="embedded:")
    assert embedded.stops == 1


def test_an_embedded_broker_that_does_not_start_or_ends_is_started_again(
    embedded: Embedded,
) -> None:
    embedded.fails = 2

    async def then(desk: Desk) -> None:
        desk.refuses = ConnectionRefusedError("no")
        await desk.upstream.start()
        await asyncio.sleep(2.2 * RETRY_S)
        assert embedded.starts == 3
        desk.refuses = None
        await asyncio.sleep(2 * PROBE_S)
        assert embedded.starts == 3
        embedded.running = False
        await asyncio.sleep(PROBE_S)
        assert embedded.starts == 4

    with_desk(then, url="embedded:")


def test_an_embedded_broker_that_is_not_installed_keeps_the_node_from_starting(
    embedded: Embedded,
) -> None:
    embedded.lacks = BrokerMissing("embedded", "amqtt", "install it")

    async def then(desk: Desk) -> None:
        with pytest.raises(BrokerMissing):
            await desk.upstream.start()

    with_desk(then, url="embedded:")
