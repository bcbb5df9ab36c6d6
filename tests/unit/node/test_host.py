"""The exchange's surroundings on asyncio, with a node that is the test."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.config.files import NodeConfig
from isthmus.errors import StateError
from isthmus.exchange import kept_records
from isthmus.exchange.host import Channel
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.session import Session
from isthmus.exchange.traffic.message import Message
from isthmus.exchange.turns import Turns
from isthmus.node import storage
from isthmus.node.host import NodeHost
from isthmus.node.runtime import Node
from support.hosts import HandHost
from support.virtual_loop import MemoryTransport, Protocols, VirtualLoop, run_virtually, turns

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class StandIn:
    """What of a node, and of its exchange, the host sees."""

    def __init__(self, loop: VirtualLoop, folder: Path | None = None, node_id: str = "n") -> None:
        self.loop = loop
        identity = {"id": node_id} | ({"state_dir": str(folder)} if folder else {})
        table = {"url": "mqtt://127.0.0.1:1884", "username": "u", "password": "p"}
        self.config = NodeConfig.model_validate({"node": identity, "broker": table})
        self.limits = self.config.limits
        self.set_aside = SimpleNamespace(keep=lambda *_: None)
        self.relay = SimpleNamespace(turns=Turns(HandHost()))
        self.upstreams = {"": SimpleNamespace(open=self._open)}
        self.opening: list[Session] = []
        self.exchange = self
        self.algorithm = SimpleNamespace(topology="tree")
        self.spools = SimpleNamespace(open=lambda _: None)
        self.links = self
        self.counters: Counter[str] = Counter()
        self.flushes = 0
        self.at_flush: Callable[[], None] = lambda: None
        self.lost_states: list[tuple[str, threading.Thread]] = []
        self.lost_one = asyncio.Event()

    def _open(self, session: Session, _failed: Callable[[str], None]) -> None:
        self.opening.append(session)

    def flush(self) -> None:
        self.flushes += 1
        self.at_flush()

    def state_lost(self, name: str) -> None:
        self.lost_states.append((name, threading.current_thread()))
        self.lost_one.set()

    def lost(self, _connection: object, _cause: str) -> None: ...


Test = Callable[[NodeHost, StandIn], Coroutine[Any, Any, None]]


def with_host(test: Test, folder: Path | None = None, node_id: str = "n") -> None:
    async def main(loop: VirtualLoop) -> None:
        node = StandIn(loop, folder, node_id)
        host = NodeHost(cast(Node, node), CONTEXT)
        try:
            await test(host, node)
        finally:
            host.close()
            await host.close_storage()

    run_virtually(main)


# ---- time --------------------------------------------------------------------------------


def test_time_is_the_loops_and_the_wall_clock_is_in_milliseconds() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        node.loop.now_s = 12.5
        assert host.now() == 12.5
        before_s = time.time()
        assert int(before_s * 1000) <= host.wall_ms() <= time.time() * 1000 + 1

    with_host(then)


def test_what_is_set_for_later_can_be_canceled() -> None:
    async def then(host: NodeHost, _: StandIn) -> None:
        fired: list[str] = []
        host.call_later(1.0, lambda: fired.append("later"))
        host.call_later(1.0, lambda: fired.append("canceled")).cancel()
        host.call_soon(lambda: fired.append("soon"))
        assert fired == []
        await asyncio.sleep(2.0)
        assert fired == ["soon", "later"]

    with_host(then)


def test_nonces_are_of_the_size_asked_for_and_do_not_come_again() -> None:
    async def then(host: NodeHost, _: StandIn) -> None:
        found = {host.token_bytes(16) for _ in range(100)}
        assert len(found) == 100
        assert {len(each) for each in found} == {16}

    with_host(then)


# ---- flushing ----------------------------------------------------------------------------


def test_however_often_it_is_woken_the_exchange_is_flushed_once_and_in_the_next_turn() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        for _ in range(10):
            host.wake()
        assert node.flushes == 0
        await turns()
        assert node.flushes == 1

    with_host(then)


def test_who_wakes_it_while_it_flushes_is_not_forgotten() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        def again() -> None:
            if node.flushes < 3:
                host.wake()

        node.at_flush = again
        host.wake()
        await turns(10)
        assert node.flushes == 3

    with_host(then)


def test_a_flush_that_fails_is_not_the_last() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        node.at_flush = fail
        host.wake()
        await turns()
        host.wake()
        await turns()
        assert node.flushes == 2
        faults = [type(fault["exception"]) for fault in node.loop.faults]
        node.loop.faults.clear()
        assert faults == [ZeroDivisionError] * 2

    with_host(then)


# ---- connections -------------------------------------------------------------------------


def test_a_neighbor_is_dialed_with_the_context_of_links() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        dialed: list[dict[str, Any]] = []
        opened: list[Channel] = []

        async def dial(make: Protocols, wanted: dict[str, Any]) -> None:
            dialed.append(wanted)
            make().connection_made(MemoryTransport(node.loop))

        def attach(channel: Channel) -> Connection:
            opened.append(channel)
            return cast(Connection, object())

        node.loop.dial = dial
        host.dial("edge.example:7883", attach, pytest.fail)
        assert dialed == []  # never at once
        await turns()
        assert [channel.remote for channel in opened] == ["127.0.0.1:4711"]
        (wanted,) = dialed
        assert (wanted["host"], wanted["port"]) == ("edge.example", 7883)
        assert wanted["ssl"] is CONTEXT

    with_host(then)


def test_who_cannot_be_dialed_is_told_of_later() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        async def dial(_make: Protocols, _wanted: dict[str, Any]) -> None:
            raise ConnectionRefusedError("refused")

        failures: list[str] = []
        node.loop.dial = dial
        host.dial("127.0.0.1:7", lambda _: pytest.fail("opened"), failures.append)
        assert failures == []
        await turns()
        assert failures == ["refused"]

    with_host(then)


def test_after_close_nobody_is_dialed_any_more() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        ended: list[str] = []

        async def dial(_make: Protocols, _wanted: dict[str, Any]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("canceled")

        node.loop.dial = dial
        host.dial("127.0.0.1:7", lambda _: pytest.fail("opened"), pytest.fail)
        await turns()
        host.close()
        await turns()
        assert ended == ["canceled"]
        await asyncio.sleep(100.0)  # longer than dialing takes

    with_host(then)


def test_what_comes_over_links_goes_to_the_broker_by_a_session_of_the_nodes_own() -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        host.neighbor_joined("edge-2")
        assert host.inject(Message(b"t", b"x", qos=1), "edge-2", None)
        (session,) = node.opening
        wire = MemoryTransport(node.loop)
        session.connection_made(wire)
        assert b"MQTT" in wire.written
        assert b"\x00\x01u\x00\x01p" in wire.written  # it logs in as configured

    with_host(then)


# ---- what must survive a restart ---------------------------------------------------------


def test_without_a_folder_nothing_is_kept_and_nobody_may_rely_on_it() -> None:
    async def then(host: NodeHost, _: StandIn) -> None:
        assert not host.keeps_state
        host.save_state("a", b"1")
        host.append_state("b", b"2")
        assert host.load_state("a", 1) is host.load_state("b", 1) is None
        with pytest.raises(RuntimeError, match="keeps nothing"):
            host.rewrite_state("a")

    with_host(then)


def test_what_is_kept_is_there_in_the_next_life(tmp_path: Path) -> None:
    def kept(host: NodeHost, name: str) -> list[bytes]:
        return kept_records.read(host.load_state(name, 1) or b"").records

    async def first(host: NodeHost, _: StandIn) -> None:
        assert host.keeps_state
        assert host.load_state("saved", 1) is None
        for body in (b"old", b"new"):
            host.save_state("saved", kept_records.write("saved", 1, [body]))
        host.append_state("appended", kept_records.header("appended", 1, 7))
        for body in (b"one", b"two"):
            host.append_state("appended", kept_records.record(body, 7))
        rewrite = host.rewrite_state("rewritten")
        rewrite.write(kept_records.header("rewritten", 1, 7))
        rewrite.write(kept_records.record(b"in pieces", 7))
        rewrite.commit()
        host.rewrite_state("half").write(kept_records.header("half", 1, 7))

    async def second(host: NodeHost, _: StandIn) -> None:
        assert kept(host, "saved") == [b"new"]
        assert kept(host, "appended") == [b"one", b"two"]
        assert kept(host, "rewritten") == [b"in pieces"]
        assert host.load_state("half", 1) is None

    with_host(first, tmp_path)
    with_host(second, tmp_path)


def test_a_folder_belongs_to_one_node(tmp_path: Path) -> None:
    async def nothing(_host: NodeHost, _: StandIn) -> None: ...

    with_host(nothing, tmp_path, "one")
    with pytest.raises(StateError, match="belongs to node 'one'"):
        with_host(nothing, tmp_path, "two")


def test_what_is_lost_on_the_way_to_the_disk_is_told_in_the_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def then(host: NodeHost, node: StandIn) -> None:
        monkeypatch.setattr(storage, "MAX_WAITING_BYTES", 10)
        host.append_state("journal", b"x" * 100)
        await node.lost_one.wait()
        assert node.lost_states == [("journal", threading.current_thread())]

    with_host(then, tmp_path)


# ---- the log -----------------------------------------------------------------------------


def test_what_the_exchange_says_is_in_the_log_with_its_level_and_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def then(host: NodeHost, _: StandIn) -> None:
        host.log("warning", "something is odd", neighbor="edge-2")

    with caplog.at_level("DEBUG", "isthmus.exchange"):
        with_host(then)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("isthmus.exchange", "WARNING")
    assert "something is odd" in record.getMessage()
