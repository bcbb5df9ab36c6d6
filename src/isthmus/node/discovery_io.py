"""Announcements on UDP: a multicast group, and seeds that are told one by one.

What comes is given to `Exchange.discovery`, which believes nothing of it.  What cannot be sent is
told once, and tried again with the next announcement.

Each seed is looked up by itself, so that a name that nobody answers for delays no other, and keeps
its last addresses while it cannot be found.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import struct
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from isthmus.config.addresses import Address
from isthmus.exchange.session import remote_name
from isthmus.logs import get_logger

if TYPE_CHECKING:
    from isthmus.config.files import DiscoveryTable

__all__ = ["DiscoveryIo", "deafness"]

RESOLVE_S = 30.0
MAX_ADDRESSES = 16
"""Of one seed, that its name may stand for."""
TRIALS = 5
"""Datagrams that are sent to hear oneself: one of them may be lost."""
MAX_TOLD = 256
"""Problems that are not told again; then all are."""

log = get_logger(__name__)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, arrived: Callable[[bytes, str], None]) -> None:
        self._arrived = arrived

    def datagram_received(self, data: bytes, addr: tuple[object, ...]) -> None:
        self._arrived(data, remote_name(addr))

    def error_received(self, exc: Exception) -> None:
        """Of something that was sent: datagrams are not waited for."""


class DiscoveryIo:
    """The sockets of one node's announcements."""

    def __init__(self, table: DiscoveryTable, arrived: Callable[[bytes, str], None]) -> None:
        self._table = table
        self._arrived = arrived
        self._transports: list[asyncio.DatagramTransport] = []
        self._out: dict[int, socket.socket] = {}
        self._seeds: dict[Address, list[tuple[int, tuple[object, ...]]]] = {}
        """Families and addresses, where they have been found."""
        self._resolvers: list[asyncio.Task[None]] = []
        self._told: set[str] = set()

    async def start(self) -> None:
        """Raises `OSError`, with the key of the configuration, if a socket cannot be had."""
        loop = asyncio.get_running_loop()
        for key, make in (("group", self._group_socket), ("listen", self._own_socket)):
            try:
                sock = make()
            except OSError as error:
                self.close()
                where = getattr(self._table, key)
                raise OSError(f"discovery.{key}: {where}: {error.strerror or error}") from error
            if sock is not None:
                transport, _ = await loop.create_datagram_endpoint(
                    lambda: _Receiver(self._arrived), sock=sock
                )
                self._transports.append(transport)
        self._resolvers = [loop.create_task(self._resolve(seed)) for seed in set(self._table.seeds)]

    def close(self) -> None:
        for resolver in self._resolvers:
            resolver.cancel()
        for transport in self._transports:
            transport.close()
        for sock in self._out.values():
            sock.close()

    # ---- sockets -------------------------------------------------------------------------

    def _group_socket(self) -> socket.socket | None:
        group = self._table.group
        if group is None:
            return None
        family = _family(group.host)
        sock = _udp(family)
        try:
            # Several nodes of one machine are in the group; each gets every datagram.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.bind((group.host, group.port, 0, self._interface_v6()))
            else:
                sock.bind((group.host, group.port))
            if family == socket.AF_INET:
                member = socket.inet_aton(group.host) + self._interface_v4()
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            else:
                member = socket.inet_pton(family, group.host) + struct.pack(
                    "@I", self._interface_v6()
                )
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
            self._out[family] = self._sender(family)
        except BaseException:
            sock.close()
            raise
        return sock

    def _sender(self, family: int) -> socket.socket:
        sock = _udp(family)
        ttl = self._table.ttl
        try:
            if family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._interface_v4())
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            else:
                interface = self._interface_v6()
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
        except BaseException:
            sock.close()
            raise
        return sock

    def _interface_v4(self) -> bytes:
        return socket.inet_aton(self._table.interface or "0.0.0.0")

    def _interface_v6(self) -> int:
        return socket.if_nametoindex(self._table.interface) if self._table.interface else 0

    def _own_socket(self) -> socket.socket | None:
        listen = self._table.listen
        if listen is None:
            return None
        sock = _udp(_family(listen.host))
        try:
            sock.bind((listen.host, listen.port))
        except BaseException:
            sock.close()
            raise
        return sock

    @property
    def port(self) -> int:
        """Where seeds' announcements are heard; 0 if nowhere."""
        if self._table.listen is None or not self._transports:
            return 0
        port: int = self._transports[-1].get_extra_info("sockname")[1]
        return port

    @property
    def problem(self) -> str:
        """Something that could not be sent; empty if there was nothing."""
        return next(iter(self._told), "")

    # ---- sending -------------------------------------------------------------------------

    def send(self, datagram: bytes) -> None:
        group = self._table.group
        if group is not None:
            self._send(_family(group.host), datagram, (group.host, group.port))
        for family, address in set(chain.from_iterable(self._seeds.values())):
            self._send(family, datagram, address)

    def _send(self, family: int, datagram: bytes, address: tuple[object, ...]) -> None:
        try:
            sock = self._out.get(family)
            if sock is None:
                sock = self._out[family] = _udp(family)
            sock.sendto(datagram, address)
        except BlockingIOError:
            pass  # the next one may find room
        except OSError as error:
            self._tell(f"{remote_name(address)}: {error.strerror or error}")

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told.add(problem)
            log.warning("cannot announce", cause=problem)

    async def _resolve(self, seed: Address) -> None:
        """Look it up again and again: names move, and may not be known yet."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(seed.host, seed.port, type=socket.SOCK_DGRAM)
            except OSError as error:
                self._tell(f"discovery.seeds: {seed}: {error.strerror or error}")
            except UnicodeError as error:  # no host can have that name
                self._tell(f"discovery.seeds: {seed}: {error}")
            else:
                self._seeds[seed] = [(each[0], each[4]) for each in found[:MAX_ADDRESSES]]
            await asyncio.sleep(RESOLVE_S)


async def deafness(table: DiscoveryTable, within_s: float = 1.0) -> str:
    """Why what is sent to the group of `table` does not come back; empty if it does."""
    token, heard = secrets.token_bytes(16), asyncio.Event()

    def arrived(datagram: bytes, _remote: str) -> None:
        if datagram == token:
            heard.set()

    io = DiscoveryIo(table, arrived)
    try:
        await io.start()
        for _ in range(TRIALS):
            io.send(token)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), within_s / TRIALS)
                return ""
    except OSError as error:
        return str(error).removeprefix("discovery.group: ")
    finally:
        io.close()
    return io.problem or f"nothing that is sent to {table.group} over {table.interface} comes back"


def _udp(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


def _family(host: str) -> int:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return socket.AF_INET6
    return socket.AF_INET
