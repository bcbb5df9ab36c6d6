"""Connects clients: TCP, CONNECT, and SUBSCRIBE for those that subscribe; then hands sockets over.

At most `AT_ONCE` clients are on their way at a time, which is below the usual listen backlog of
brokers and nodes.  MQTT 3.1.1, no keep-alive (a benchmark's clients need none, and
a ping would stand between the messages), and clean sessions but for clients that come back
(:mod:`isthmus.bench.load.returning`).  A client whose connection is closed on the way tries
again, as some brokers close a few when many come at once.  The first client that does not get in
ends it all, with `LoadError`: who, where, why.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from isthmus.bench.coordinator.control import Target
from isthmus.bench.load.frames import LEVEL, MAX_FRAME_BYTES
from isthmus.errors import LoadError, RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import ConnAck, Connect, Packet, Publish, SubAck, Subscribe, Subscription
from isthmus.pipeline.log.reading import LoggedClient
from isthmus.processes.kernel import raise_open_files

__all__ = ["Connected", "connect_clients"]

AT_ONCE: Final = 200
ATTEMPTS: Final = 3
SPARE_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class Connected:
    """A client whose broker has accepted it, with its non-blocking socket."""

    client: LoggedClient
    sock: socket.socket
    early: bytes
    """Messages that came before the answer to SUBSCRIBE."""
    client_id: str = ""
    clean: bool = True
    """Whether its broker keeps nothing for it when it is away."""


def connect_clients(
    clients: Sequence[LoggedClient],
    topics: Sequence[str],
    targets: Mapping[str, Target],
    qos: Mapping[str, int],
    timeout_s: float,
    *,
    returning: Collection[str] = (),
) -> list[Connected]:
    """All of `clients`, in their order; each has `timeout_s` from its first packet on.

    Those of `returning` nodes have sessions that are kept, at QoS 1 and 2.
    """
    _raise_file_limit(len(clients))
    opened: list[socket.socket] = []
    try:
        return uvloop.run(
            _connect_all(
                clients,
                topics,
                targets,
                qos,
                timeout_s=timeout_s,
                returning=returning,
                opened=opened,
            )
        )
    except BaseException as error:
        for sock in opened:
            sock.close()
        if isinstance(error, BaseExceptionGroup):
            raise _first(error) from None
        raise


def _raise_file_limit(clients: int) -> None:
    needed = clients + SPARE_FILES
    if (allowed := raise_open_files(needed)) < needed:
        raise LoadError(
            f"{clients} clients in one process need {needed} open files and {allowed} are allowed; "
            f"raise the limit (ulimit -Hn {needed}) or use more load processes"
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _connect_all(
    clients: Sequence[LoggedClient],
    topics: Sequence[str],
    targets: Mapping[str, Target],
    qos: Mapping[str, int],
    *,
    timeout_s: float,
    returning: Collection[str],
    opened: list[socket.socket],
) -> list[Connected]:
    session = os.urandom(4).hex()  # client ids of two sessions must not meet at a broker
    addresses = {
        node: await _resolve(node, targets[node]) for node in {client.node for client in clients}
    }
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(client: LoggedClient) -> Connected:
        async with limit:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return await attempted(client, f"{session}-{attempt}-{client.name}")
                except _Closed:
                    if attempt == ATTEMPTS:
                        raise
            raise AssertionError("the last attempt returns or raises")

    async def attempted(client: LoggedClient, client_id: str) -> Connected:
        target = targets[client.node]
        where = f"{client.name} at {client.node} ({target.host}:{target.port})"
        family, address = addresses[client.node]
        sock = socket.socket(family, socket.SOCK_STREAM)
        opened.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arriving = _Arriving(sock, where)
        clean = not (qos[client.kind] and client.node in returning)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, address)
                await _accepted(arriving, client_id, target, clean=clean)
                if client.role == "subscriber":
                    await _subscribed(arriving, topics[client.topic], qos[client.kind])
        except TimeoutError:
            raise LoadError(f"{where}: not connected within {timeout_s:g} s") from None
        except (OSError, RemoteProtocolError) as error:
            raise LoadError(f"{where}: cannot connect: {error}") from None
        except _Closed:
            sock.close()
            raise
        return Connected(client, sock, arriving.early, client_id, clean)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(client)) for client in clients]
    return [task.result() for task in tasks]


async def _resolve(node: str, target: Target) -> tuple[int, tuple[str, int]]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise LoadError(f"{node}: {target.host!r} is not a host that is known: {error}") from None
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


class _Closed(LoadError):
    """The broker hung up before it had accepted the client and its subscription."""


class _Arriving:
    """The packets of a connection that is being set up; reads no byte more than it needs."""

    def __init__(self, sock: socket.socket, where: str) -> None:
        self._sock = sock
        self.where = where
        self.early = b""

    async def send(self, packet: Packet) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, encode(packet, LEVEL))

    async def receive(self) -> tuple[Packet, bytes]:
        frame = await self._read(2)
        while not (length := frame_length(frame, 0)):
            frame += await self._read(1)
        if length > MAX_FRAME_BYTES:
            raise LoadError(f"{self.where}: answered with a packet of {length} bytes")
        frame += await self._read(length - len(frame))
        return decode(frame, LEVEL), frame

    async def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = await asyncio.get_running_loop().sock_recv(self._sock, count - len(data))
            if not chunk:
                raise _Closed(f"{self.where}: the connection was closed before it was accepted")
            data += chunk
        return data


async def _accepted(arriving: _Arriving, client_id: str, target: Target, *, clean: bool) -> None:
    await arriving.send(
        Connect(
            client_id,
            clean_start=clean,
            keep_alive=0,
            username=target.username,
            password=None if target.password is None else target.password.encode(),
            protocol_level=LEVEL,
        )
    )
    answer, _ = await arriving.receive()
    if not isinstance(answer, ConnAck) or answer.reason_code != 0:
        raise LoadError(f"{arriving.where}: refused: {_shown(answer)}")


async def _subscribed(arriving: _Arriving, topic: str, qos: int) -> None:
    await arriving.send(Subscribe(1, (Subscription(topic, qos),)))
    while True:
        answer, frame = await arriving.receive()
        if not isinstance(answer, Publish):
            break
        arriving.early += frame  # a server may deliver before it answers [MQTT-3.8.4]
        if len(arriving.early) > MAX_FRAME_BYTES:
            raise LoadError(f"{arriving.where}: messages come, but no answer to SUBSCRIBE")
    if not isinstance(answer, SubAck) or tuple(answer.reason_codes) != (qos,):
        raise LoadError(
            f"{arriving.where}: subscription to {topic!r} at QoS {qos} not granted: "
            f"{_shown(answer)}"
        )


def _shown(packet: Packet) -> str:
    match packet:
        case ConnAck():
            return packet.reason_code.name.lower().replace("_", " ")
        case SubAck():
            return ", ".join(f"{code:#04x}" for code in packet.reason_codes)
        case _:
            return f"{type(packet).__name__} instead of an answer"
