"""One running node: its listeners, its sessions, its life from start to stop.

    STOPPED ──start──▶ RUNNING ──stop──▶ STOPPING ──drained──▶ STOPPED

`stop` closes the listeners, stops reading from clients, lets the broker's answers to what was
already sent come through, tells v5 clients, closes every session and cuts off what is left when
the time is over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from isthmus import __version__
from isthmus.config.addresses import Address
from isthmus.config.files import NodeConfig, option_error
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.cooperation.registry import load
from isthmus.exchange.broker.of_several import OwnSessionsOfSeveral
from isthmus.exchange.broker.own_sessions import OwnSessions, own_client_id
from isthmus.exchange.client.broker_session import BrokerSession
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.confirming import ConfirmSettings
from isthmus.exchange.client.counters import Counters
from isthmus.exchange.client.limits import ClientLimits
from isthmus.exchange.client.relay import WAITING_ROOM, Relay
from isthmus.exchange.discovery.discovery import DiscoverySettings
from isthmus.exchange.exchange import Exchange, ExchangeSettings
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.session import SessionStatus
from isthmus.exchange.split.brokers import BrokersSettings
from isthmus.exchange.split.split import Split
from isthmus.exchange.turns import Turns
from isthmus.logs import configure, get_logger
from isthmus.node.admin import AdminServer
from isthmus.node.collector import keep_collections_short
from isthmus.node.host import NodeHost
from isthmus.node.link_io import LinkChannel, LinkTlsDoor
from isthmus.node.pacing import Pacer
from isthmus.node.set_aside import SetAside
from isthmus.node.sockets import as_protocol, cannot_listen, probe_when_idle
from isthmus.node.tls import client_context, link_contexts
from isthmus.node.tls_door import ClientTlsDoor
from isthmus.node.upstream import Upstream
from isthmus.node.watchdog import Watchdog
from isthmus.processes.kernel import raise_open_files

__all__ = ["Node", "run"]

LISTEN_BACKLOG = 4096
SPARE_FILES = 64
QUIET_S = 0.1
MAX_LISTED_CLIENTS = 100

log = get_logger(__name__)


class Node:
    """A node in front of its broker, or of several."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.limits = config.limits
        self.counters = Counters()
        self.addresses: dict[str, tuple[str, int]] = {}
        self.set_aside = SetAside(config.node.state_dir)
        self.status_name = "stopped"
        self._servers: dict[str, asyncio.Server] = {}
        self._admin: AdminServer | None = None
        self._started_s = 0.0
        self.loop: asyncio.AbstractEventLoop
        self.pacer: Pacer
        self.watchdog: Watchdog
        self.relay: Relay
        self.upstreams: dict[str, Upstream]
        """By the brokers' names; the only one has none."""
        self.exchange: Exchange
        self._host: NodeHost

    # ---- life ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind every listener; raises `OSError` naming the address that is taken."""
        self.loop = asyncio.get_running_loop()
        self.pacer = Pacer(self.loop, self.counters, self.limits.rest_s)
        self.watchdog = Watchdog(self.loop, self.counters)
        self.upstreams = {
            table.name or "": Upstream(
                table, self.limits.broker_timeout_s, partial(self._broker_in_use, table.name)
            )
            for table in self.config.brokers
        }
        link_tls = link_contexts(self.config.link.tls)
        self._host = NodeHost(self, link_tls[1] if link_tls else None)
        self.exchange = self._make_exchange()
        self._host.join()
        self.relay = self._make_relay()
        try:
            for _ in self.exchange.retention.loading():
                await asyncio.sleep(0)  # as long as nobody is connected, nobody waits for it
            await self._listen(link_tls[0] if link_tls else None)
            for upstream in self.upstreams.values():
                await upstream.start()
            await self._host.discovery.start()
            self.exchange.start()
            for peer in self.config.peer:
                self.exchange.add_peer(str(peer.address), peer.lanes, peer.qos, peer.rules)
            for name in self._servers:
                await self._open(name)
        except BaseException:
            await self._close_listeners()
            self._host.discovery.close()
            await self._host.close_storage()
            raise
        self._started_s = time.monotonic()
        self.watchdog.start()
        self.status_name = "running"
        log.info(
            "node running",
            node=self.config.node.id,
            broker=", ".join(str(table.url) for table in self.config.brokers),
            **{name: str(Address(*address)) for name, address in self.addresses.items()},
        )

    def _discovery_settings(self) -> DiscoverySettings | None:
        table = self.config.discovery
        return DiscoverySettings(table.every_s, table.link) if table.is_on else None

    def _brokers_settings(self) -> BrokersSettings | None:
        if not self.config.has_several_brokers:
            return None
        tables = {str(table.name): table for table in self.config.brokers}
        default = [name for name, table in tables.items() if table.topics is None]
        return BrokersSettings(
            tuple(tables),
            {name: table.topics for name, table in tables.items() if table.topics is not None},
            default[0] if default else "",
            frozenset(name for name, table in tables.items() if table.away == "hold"),
        )

    def _make_exchange(self) -> Exchange:
        cooperation, link = self.config.cooperation, self.config.link
        settings = ExchangeSettings(
            node_id=self.config.node.id,
            algorithm=cooperation.algorithm,
            options=cooperation.options,
            filters_per_client=self.limits.filters_per_client,
            address=self.config.link_address,
            discovery=self._discovery_settings(),
            confirm=ConfirmSettings.of(
                cooperation.confirm,
                cooperation.confirm_topics,
                cooperation.confirm_s,
                cooperation.confirm_back_s,
            ),
            routes_retained=cooperation.retained == "routed",
            from_broker=self.config.broker.source == "broker",
            interest=tuple(each.filter for each in self.config.interest),
            brokers=self._brokers_settings(),
            link=LinkSettings(
                qos=link.qos,
                lanes=link.lanes,
                round_robin=link.spread == "round-robin",
                dead_after_s=link.dead_after_s,
                hold_s=link.hold_s,
                queue_bytes=link.queue_bytes,
                apart_bytes=link.apart_bytes,
                apart_s=link.apart_s,
                holds_pending_qos0=link.pending_qos0 == "hold",
                packet_bytes=self.limits.packet_bytes,
                secret=link.secret_bytes(),
            ),
        )
        try:
            return Exchange(self._host, settings, load(cooperation.algorithm))
        except ValueError as error:
            raise option_error(error) from error

    def _make_relay(self) -> Relay:
        names = (each.name for each in fields(ClientLimits))
        limits = ClientLimits(**{name: getattr(self.limits, name) for name in names})
        return Relay(
            self._host,
            self.exchange,
            replace(limits, clients=_clients_within_file_limit(limits.clients)),
            counters=self.counters,
            pacer=self.pacer,
            turns=Turns(self._host),
            own_client_ids=own_client_id(self.config.node.id, ""),
            retained_published=self._host.own.retained_published,
        )

    async def _listen(self, link_tls: ssl.SSLContext | None) -> None:
        listen = self.config.listen
        context = client_context(self.config.tls) if listen.mqtts or listen.wss else None
        for name in ("mqtt", "mqtts", "ws", "wss"):
            if (address := getattr(listen, name)) is not None:
                factory = self._client_factory(name)
                if context is not None and name in ("mqtts", "wss"):
                    factory = partial(ClientTlsDoor, self.relay, context, factory)
                await self._serve(name, address, factory)
        if listen.link is not None:
            links = self.exchange.links
            turns = self.relay.turns
            if link_tls is None:
                channel = partial(LinkChannel, links, turns, links.accepted)
                await self._serve("link", listen.link, lambda: as_protocol(channel()))
            else:
                door = partial(LinkTlsDoor, links, turns, link_tls)
                await self._serve("link", listen.link, door)
        if listen.admin is not None:
            self._admin = AdminServer(self, listen.admin, hosts=listen.admin_hosts)
            await self._admin.start()
            self.addresses["admin"] = self._admin.bound

    def _client_factory(self, name: str) -> Callable[[], asyncio.Protocol]:
        session = partial(ClientSession, self.relay, name)
        if name in ("mqtt", "mqtts"):
            return lambda: as_protocol(session())
        from isthmus.node.websocket import WebSocketServerSide

        return partial(WebSocketServerSide, self.relay, session)

    async def _serve(
        self, name: str, address: Address, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            server = await self.loop.create_server(
                factory, address.host, address.port, backlog=LISTEN_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise cannot_listen(name, address, error) from error
        self._servers[name] = server
        for listening in server.sockets:
            probe_when_idle(listening)
        self.addresses[name] = server.sockets[0].getsockname()[:2]

    async def _open(self, name: str) -> None:
        """Take connections, now that the algorithm may be told of them."""
        try:
            await self._servers[name].start_serving()
        except OSError as error:
            raise cannot_listen(name, Address(*self.addresses[name]), error) from error

    async def stop(self, drain_s: float | None = None) -> None:
        """Drain for at most `drain_s`, then stop."""
        if self.status_name != "running":
            return
        self.status_name = "stopping"
        self.relay.open = False
        deadline = self.loop.time() + (self.limits.drain_s if drain_s is None else drain_s)
        for server in self._servers.values():
            server.close()
        for client in list(self.relay.clients):
            client.hold_reading()
        await self._answers_came(deadline)
        self.exchange.begin_stop()
        while self.exchange.unacknowledged() and self.loop.time() < deadline - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if lost := self.exchange.unacknowledged():
            log.warning("stopping with messages that are not acknowledged", messages=lost)
        for client in list(self.relay.clients):
            client.shut_down()
        while self.relay.clients and self.loop.time() < deadline:  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(0.01)
        for client in list(self.relay.clients):
            client.wire.abort()
        for upstream in self.upstreams.values():
            upstream.close()
        self.exchange.stop()
        self._host.close()
        await asyncio.sleep(0)  # the goodbyes are written at the end of a turn
        for upstream in self.upstreams.values():
            await upstream.stop()
        await self._close_listeners()
        self.watchdog.stop()
        await self._host.close_storage()
        self.status_name = "stopped"
        log.info("node stopped", node=self.config.node.id)

    async def _close_listeners(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        if self._admin is not None:
            await self._admin.stop()
            self._admin = None

    async def _answers_came(self, deadline: float) -> None:
        """Wait until nobody's input waits and the broker has sent nothing for `QUIET_S`."""
        before = -1
        while self.relay.clients and (self.relay.turns or before != self.counters.broker_bytes):
            before = self.counters.broker_bytes
            if self.loop.time() >= deadline:
                return
            await asyncio.sleep(QUIET_S)

    def _broker_in_use(self, name: str | None) -> bool:
        """Whether any session with the broker stands, so that it need not be probed."""
        own = self._host.own
        if name is not None and isinstance(own, OwnSessionsOfSeveral):
            return own.of[name].standing > 0
        return own.standing > 0 or any(client.paired is not None for client in self.relay.clients)

    # ---- neighbors ----------------------------------------------------------------------

    def add_peer(
        self,
        address: str,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None:
        """Keep up a link to the node at `address` from now on; `ValueError` if it must not be."""
        self.config.link.check_peer(Address.parse(address))
        self.exchange.add_peer(address, lanes, qos, rules)

    def remove_peer(self, name: str) -> bool:
        """Remove a neighbor by its id or address; False if there is none of that name."""
        return self.exchange.remove_peer(name)

    def ask_algorithm(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """What an operator asks the algorithm for; `ValueError` for what cannot be done."""
        return self.exchange.algorithm.on_request(request)

    # ---- what it tells -------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return (
            self.status_name == "running"
            and self.broker_answers
            and not self._host.own.problem
            and not self.problems()
        )

    @property
    def broker_answers(self) -> bool:
        """As far as is known: that it takes connections, and what the own sessions ask it."""
        return all(
            upstream.reachable and not own.silent
            for upstream, own in zip(self.upstreams.values(), self._own_of_each(), strict=True)
        )

    def _own_of_each(self) -> list[OwnSessions]:
        """In the brokers' order."""
        own = self._host.own
        return list(own.of.values()) if isinstance(own, OwnSessionsOfSeveral) else [own]

    def problems(self) -> list[str]:
        """Why clients should go to another node, beside what is wrong with the broker."""
        storage = self._host.storage
        state = storage.problem if storage is not None else ""
        source = self._host.own.source
        taking = source.problem if source is not None else ""
        found = (self.exchange.problem, taking, state and f"its state cannot be kept: {state}")
        return [problem for problem in found if problem]

    def _broker_status(self, upstream: Upstream, own: OwnSessions) -> dict[str, Any]:
        problem = upstream.problem
        if not problem and own.silent:
            problem = "does not answer"
        elif not problem and own.problem:
            problem = f"refuses the node's own session: {own.problem}"
        return {
            "url": str(upstream.url),
            "reachable": upstream.reachable and not own.silent,
            "problem": problem,
            "own_session_refused": bool(own.problem),
            "own_sessions": own.standing,
        }

    def _brokers_status(self) -> list[dict[str, Any]]:
        """Of each of several; else none."""
        if self.exchange.brokers is None:
            return []
        away = self.exchange.brokers.problems()
        parts = Counter(
            name
            for client in self.relay.clients
            if isinstance(client.paired, BrokerSession)
            and client.paired.status is SessionStatus.ESTABLISHED
            and isinstance(client.paired.wire, Split)
            for name in client.paired.wire.standing
        )
        return [
            {
                "name": name,
                **self._broker_status(upstream, own),
                "away": away[name],
                "sessions": parts[name],
                "topics": list(table.topics) if table.topics is not None else None,
            }
            for (name, upstream), own, table in zip(
                self.upstreams.items(), self._own_of_each(), self.config.brokers, strict=True
            )
        ]

    def _move_status(self) -> dict[str, Any]:
        """Of topics that move from one broker to another, or did last."""
        brokers = self.exchange.brokers
        if brokers is None or brokers.last_move is None:
            return {}
        return {"move": brokers.last_move.status()}

    def status(self) -> dict[str, Any]:
        """What the node sees, for people and machines (`isthmus status`, `/api/status`)."""
        clients = list(self.relay.clients)
        established = [c for c in clients if c.paired is not None]
        source = self._host.own.source
        return {
            "node": {
                "id": self.config.node.id,
                "version": __version__,
                "status": self.status_name,
                "uptime_s": round(time.monotonic() - self._started_s, 3),
                "pid": os.getpid(),
                "problems": self.problems(),
            },
            "listeners": {name: str(Address(*address)) for name, address in self.addresses.items()},
            "broker": {
                **self._broker_status(next(iter(self.upstreams.values())), self._own_of_each()[0]),
                "set_aside": self.set_aside.listed(),
                **({"source": source.status()} if source is not None else {}),
            },
            **({"brokers": brokers} if (brokers := self._brokers_status()) else {}),
            **self._move_status(),
            "sessions": {
                "open": len(clients),
                "established": len(established),
                "limit": self.relay.max_clients,
                "pending_bytes": self.relay.pending.total,
                "clients": [_describe(c) for c in established[:MAX_LISTED_CLIENTS]],
            },
            "routes": {"topics": self.exchange.client_routes.total},
            "loop": {
                "longest_turn_s": round(self.watchdog.longest_s, 4),
                "longest_turn_cpu_s": round(self.watchdog.longest_cpu_s, 4),
                "busiest_turn_cpu_s": round(self.watchdog.busiest_cpu_s, 4),
            },
            "state": self._host.storage.status() if self._host.storage is not None else {},
            "fabric": self.exchange.status(),
            "counters": self.counters.totals(),
            "refusals": dict(self.counters.refusals),
        }


def _describe(client: ClientSession) -> dict[str, Any]:
    connect = client.connected
    return {
        "client_id": client.client_id,
        "remote": client.remote,
        "transport": client.transport_name,
        "protocol_level": client.protocol_level,
        "clean_start": connect.clean_start if connect else None,
        "session_expiry_s": connect.properties.session_expiry_interval if connect else None,
        "will_topic": connect.will.topic if connect and connect.will else None,
        "keep_alive_s": connect.keep_alive if connect else None,
    }


def _clients_within_file_limit(clients: int) -> int:
    """Raise the open-file limit as needed; each client takes two files."""
    wanted = 2 * (clients + WAITING_ROOM) + SPARE_FILES
    files = raise_open_files(wanted)
    if files == wanted:
        return clients
    fitting = max(1, (files - SPARE_FILES) // 2 - WAITING_ROOM)
    log.warning("fewer clients than configured: open-file limit", files=files, clients=fitting)
    return fitting


def run(config: NodeConfig) -> int:
    """Run a node until SIGTERM or SIGINT; the process's exit code."""
    import uvloop

    configure(config.log.level, config.log.format)
    return uvloop.run(_run(config))


async def _run(config: NodeConfig) -> int:
    node = Node(config)
    keep_collections_short()
    await node.start()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        node.loop.add_signal_handler(name, stop.set)
    await stop.wait()
    await node.stop()
    return 0
