"""The admin server without a network: framing, and what bounds memory and time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from isthmus.config.addresses import Address
from isthmus.node.admin import (
    HEAD_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_PER_ADDRESS,
    TOLD_EVERY_S,
    AdminServer,
)
from support.virtual_loop import MemoryListener, MemoryTransport, VirtualLoop, run_virtually, turns
from unit.node.test_admin_pages import FABRIC, FakeNode

REQUEST_S = 15.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Watched(FakeNode):
    """Notes in which turn of the loop it was asked."""

    def __init__(self) -> None:
        super().__init__(fabric=FABRIC)
        self.turn = 0
        self.asked_in: list[int] = []
        self.fault: Exception | None = None

    def status(self) -> dict[str, Any]:
        self.asked_in.append(self.turn)
        if self.fault is not None:
            raise self.fault
        return super().status()


class Desk:
    """A server that listens nowhere, and its node."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.node = Watched()
        self.server = AdminServer(self.node, Address("127.0.0.1", 9883), hosts=["Node.Example"])

    @property
    def listener(self) -> MemoryListener:
        return self.loop.listening[0]

    def connect(self, host: str = "127.0.0.1") -> MemoryTransport:
        return self.listener.accept(host)

    async def ask(self, request: bytes, host: str = "127.0.0.1") -> MemoryTransport:
        """Connect, ask, and let it be answered."""
        transport = self.connect(host)
        transport.receive(request)
        await turns(20)
        return transport


def with_desk(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        desk = Desk(loop)
        await desk.server.start()
        first = desk.connect()
        first.receive(HEALTH)
        give_up_s = time.monotonic() + 30.0
        while not first.written:  # the libraries are loaded by a thread, which takes real time
            assert time.monotonic() < give_up_s
            await asyncio.sleep(0)
        first.end_of_stream()
        await turns(20)
        assert desk.server.connections == 0
        try:
            await test(desk)
        finally:
            await desk.server.stop()

    run_virtually(main)


def status_of(transport: MemoryTransport) -> int:
    return int(bytes(transport.written).split(b" ", 2)[1])


# ---- framing -----------------------------------------------------------------------------


def test_a_request_is_answered_and_the_connection_stays_for_the_next() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(HEALTH)
        head, _, body = transport.taken().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        lines = {line.lower() for line in head.split(b"\r\n")}
        assert b"content-length: %d" % len(body) in lines
        assert {b"cache-control: no-store", b"x-content-type-options: nosniff"} <= lines
        transport.receive(b"GET /nope HTTP/1.1\r\nHost: node.example\r\n\r\n")
        await turns(20)
        assert status_of(transport) == 404
        assert not transport.is_closing()

    with_desk(then)


def test_a_request_may_come_byte_by_byte() -> None:
    async def then(desk: Desk) -> None:
        body = json.dumps({"address": "192.0.2.7:7883"}).encode()
        head = "POST /api/peers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        transport = desk.connect()
        for at in range(len(request)):
            assert desk.node.added == []
            transport.receive(request[at : at + 1])
            await turns()
        await turns(20)
        assert status_of(transport) == 202
        assert desk.node.added == [("192.0.2.7:7883", None, None)]

    with_desk(then)


def test_requests_in_one_read_are_answered_in_their_order() -> None:
    async def then(desk: Desk) -> None:
        nope = HEALTH.replace(b"healthz", b"nope")
        transport = await desk.ask(HEALTH + nope + HEALTH)
        found = bytes(transport.written)
        assert found.count(b"HTTP/1.1 ") == 3
        assert found.index(b" 200 ") < found.index(b" 404 ") < found.rindex(b" 200 ")

    with_desk(then)


def test_head_has_the_length_and_no_body() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(HEALTH.replace(b"GET", b"HEAD"))
        head, _, body = transport.taken().partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert body == b""
        assert b"content-length: 0" not in head.lower()
        transport.receive(HEALTH)
        await turns(20)
        assert status_of(transport) == 200

    with_desk(then)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # without Host
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * MAX_HEAD_BYTES, 431),
        (
            b"POST /api/peers HTTP/1.1\r\nHost: h\r\nContent-Length: 999999\r\n\r\n"
            + b"x" * (MAX_BODY_BYTES + 1),
            413,
        ),
        (
            b"POST /api/peers HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            + 5 * (b"4000\r\n" + b"x" * 0x4000 + b"\r\n"),
            413,
        ),
    ],
)
def test_what_cannot_be_taken_is_answered_and_closed(request_bytes: bytes, status: int) -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(request_bytes)
        assert status_of(transport) == status
        assert b"connection: close" in bytes(transport.written).lower()
        assert transport.eof
        assert not transport.is_closing()  # the answer is to be read first
        transport.end_of_stream()
        await turns(20)
        assert desk.server.connections == 0
        assert desk.node.added == []

    with_desk(then)


def test_a_body_as_long_as_it_may_be_is_taken() -> None:
    async def then(desk: Desk) -> None:
        head = b"POST /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES
        transport = await desk.ask(head.replace(b"Host: h", b"Host: localhost"))
        for _ in range(4):
            transport.receive(bytes(MAX_BODY_BYTES // 4))
            await turns(20)
        assert status_of(transport) == 405

    with_desk(then)


def test_who_asks_from_where_is_told_to_the_pages() -> None:
    async def then(desk: Desk) -> None:
        request = (
            b"DELETE /api/peers/edge-2 HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        assert status_of(await desk.ask(request, "192.0.2.1")) == 403
        assert desk.node.removed == []
        assert status_of(await desk.ask(request)) == 200
        assert desk.node.removed == ["edge-2"]
        rebound = HEALTH.replace(b"127.0.0.1", b"rebound.example")
        assert status_of(await desk.ask(rebound)) == 421
        named = HEALTH.replace(b"127.0.0.1", b"node.example")
        assert status_of(await desk.ask(named)) == 200

    with_desk(then)


def test_a_fault_of_the_node_answers_500_and_the_next_request_works() -> None:
    async def then(desk: Desk) -> None:
        desk.node.fault = ZeroDivisionError()
        request = HEALTH.replace(b"/healthz", b"/api/status")
        transport = await desk.ask(request)
        assert status_of(transport) == 500
        transport.taken()
        desk.node.fault = None
        transport.receive(request)
        await turns(20)
        assert status_of(transport) == 200

    with_desk(then)


def test_changes_are_in_the_log_and_questions_are_not(caplog: pytest.LogCaptureFixture) -> None:
    async def then(desk: Desk) -> None:
        await desk.ask(HEALTH)
        await desk.ask(HEALTH.replace(b"GET /healthz", b"DELETE /api/peers/edge-2"))

    with caplog.at_level("INFO", "isthmus.node.admin"):
        with_desk(then)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("admin request")


# ---- time --------------------------------------------------------------------------------


async def stands(transport: MemoryTransport, seconds: float) -> bool:
    """Whether it is still open then; let alone a moment before."""
    await asyncio.sleep(seconds - 0.1)
    assert not transport.is_closing()
    await asyncio.sleep(0.2)
    return not transport.is_closing()


@pytest.mark.parametrize("said", [b"", b"GET /healthz HT"])
def test_the_first_head_must_be_there_soon(said: bytes) -> None:
    async def then(desk: Desk) -> None:
        transport = desk.connect()
        if said:
            transport.receive(said)
        await turns(20)
        assert not await stands(transport, HEAD_TIMEOUT_S)
        assert transport.written == b""
        assert desk.server.connections == 0

    with_desk(then)


def test_between_two_requests_there_may_be_silence_for_longer() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(HEALTH)
        assert not await stands(transport, REQUEST_S)

    with_desk(then)


def test_a_later_head_must_be_there_soon_after_it_has_begun() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(HEALTH)
        await asyncio.sleep(REQUEST_S / 3)
        transport.receive(b"GET")
        await asyncio.sleep(HEAD_TIMEOUT_S / 2)
        transport.receive(b" /hea")
        assert not await stands(transport, HEAD_TIMEOUT_S / 2)

    with_desk(then)


def test_a_body_may_take_as_long_as_a_whole_request() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(
            b"POST /api/peers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        )
        for _ in range(2):
            await asyncio.sleep(REQUEST_S / 3)
            transport.receive(b"x")
        assert not await stands(transport, REQUEST_S / 3)

    with_desk(then)


def test_who_does_not_read_its_answer_is_cut_off() -> None:
    async def then(desk: Desk) -> None:
        transport = desk.connect()
        transport.waiting_bytes = 1_000
        transport.get_protocol().pause_writing()
        transport.receive(HEALTH)
        await turns(20)
        assert not await stands(transport, REQUEST_S)
        assert transport.ended == "abort"

    with_desk(then)


def test_who_does_not_end_after_the_last_answer_is_closed() -> None:
    async def then(desk: Desk) -> None:
        transport = await desk.ask(b"nonsense\r\n\r\n")
        for _ in range(3):
            transport.receive(b"and more")
            await turns()
        await asyncio.sleep(2.0)
        assert transport.ended == "close"
        assert desk.server.connections == 0

    with_desk(then)


# ---- room --------------------------------------------------------------------------------


def test_one_more_from_an_address_that_has_many_closes_the_one_that_stood_still_longest() -> None:
    async def then(desk: Desk) -> None:
        other = desk.connect("192.0.2.9")
        crowd = []
        for _ in range(MAX_PER_ADDRESS):
            crowd.append(desk.connect("192.0.2.1"))
            await asyncio.sleep(0.01)
        crowd[0].receive(HEALTH)  # it has done something since
        await turns(20)
        assert status_of(await desk.ask(HEALTH, "192.0.2.1")) == 200
        assert [at for at, each in enumerate(crowd) if each.is_closing()] == [1]
        assert crowd[1].ended == "abort"
        assert not other.is_closing()
        assert desk.server.connections == MAX_PER_ADDRESS + 1

    with_desk(then)


def test_when_all_places_are_taken_one_of_the_address_with_the_most_leaves() -> None:
    async def then(desk: Desk) -> None:
        few = [desk.connect(f"192.0.2.{at}") for at in range(MAX_CONNECTIONS - MAX_PER_ADDRESS)]
        await asyncio.sleep(0.01)
        many = [desk.connect("198.51.100.1") for _ in range(MAX_PER_ADDRESS)]
        assert desk.server.connections == MAX_CONNECTIONS
        assert status_of(await desk.ask(HEALTH, "203.0.113.1")) == 200
        assert sum(each.is_closing() for each in many) == 1
        assert not any(each.is_closing() for each in few)
        assert desk.server.connections == MAX_CONNECTIONS

    with_desk(then)


def test_who_is_being_answered_leaves_last() -> None:
    async def then(desk: Desk) -> None:
        answered = []
        for _ in range(MAX_PER_ADDRESS - 1):
            transport = desk.connect("192.0.2.1")
            transport.get_protocol().pause_writing()
            transport.receive(HEALTH)
            answered.append(transport)
        await turns(200)
        await asyncio.sleep(0.01)
        silent = desk.connect("192.0.2.1")
        await asyncio.sleep(0.01)
        desk.connect("192.0.2.1")
        assert silent.is_closing()
        assert not any(each.is_closing() for each in answered)

    with_desk(then)


@pytest.mark.parametrize(
    ("hosts", "together"),
    [
        (("2001:db8::1", "2001:db8::2"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("192.0.2.1", "::ffff:192.0.2.1"), True),
        (("fe80::1%eth0", "fe80::1%eth1"), True),
        (("192.0.2.1", "192.0.2.2"), False),
    ],
)
def test_whose_connections_count_together(hosts: tuple[str, str], together: bool) -> None:
    async def then(desk: Desk) -> None:
        crowd = [desk.connect(hosts[at % 2]) for at in range(MAX_PER_ADDRESS)]
        desk.connect(hosts[0])
        assert any(each.is_closing() for each in crowd) == together

    with_desk(then)


def test_that_there_are_too_many_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def then(desk: Desk) -> None:
        for _ in range(2 * MAX_PER_ADDRESS):
            desk.connect()
        assert len(caplog.records) == 1
        await asyncio.sleep(TOLD_EVERY_S)
        for _ in range(2 * MAX_PER_ADDRESS):
            desk.connect()
        assert len(caplog.records) == 2

    with caplog.at_level("WARNING", "isthmus.node.admin"):
        with_desk(then)


def test_at_most_one_request_is_answered_in_a_turn_whoever_sends_how_many() -> None:
    async def then(desk: Desk) -> None:
        def next_turn() -> None:
            desk.node.turn += 1
            ticking.append(desk.loop.call_soon(next_turn))

        ticking = [desk.loop.call_soon(next_turn)]
        request = HEALTH.replace(b"/healthz", b"/api/status")
        for _ in range(10):
            desk.connect().receive(5 * request)
        await turns(500)
        ticking[-1].cancel()
        assert len(desk.node.asked_in) == 50
        assert len(set(desk.node.asked_in)) == 50

    with_desk(then)


# ---- life --------------------------------------------------------------------------------


def test_where_it_listens_is_known_before_and_after_the_start() -> None:
    async def main(loop: VirtualLoop) -> None:
        server = AdminServer(FakeNode(), Address("127.0.0.1", 0))
        assert server.bound == ("127.0.0.1", 0)
        await server.start()
        loop.listening[0].address = ("127.0.0.1", 12_345)
        assert server.bound == ("127.0.0.1", 12_345)
        await server.stop()
        await server.stop()
        assert loop.listening[0].closed

    run_virtually(main)


def test_an_address_that_cannot_be_had_is_named_with_its_key() -> None:
    class Taken(VirtualLoop):
        async def create_server(self, *_: Any, **__: Any) -> Any:
            raise OSError(98, "address already in use")

    server = AdminServer(FakeNode(), Address("127.0.0.1", 9883))
    problem = r"\[listen\] admin = 127\.0\.0\.1:9883: .*in use"
    with (
        asyncio.Runner(loop_factory=Taken) as runner,
        pytest.raises(OSError, match=problem) as told,
    ):
        runner.run(server.start())
    assert told.value.errno == 98


def test_stop_ends_every_connection() -> None:
    async def then(desk: Desk) -> None:
        transports = [desk.connect(), await desk.ask(HEALTH), await desk.ask(b"GET /he")]
        await desk.server.stop()
        assert all(transport.is_closing() for transport in transports)
        assert desk.listener.closed
        assert desk.server.connections == 0

    with_desk(then)
