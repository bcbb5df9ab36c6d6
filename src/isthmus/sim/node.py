"""A node of the simulated fabric: its lives, its broker, its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.exchange.exchange import Exchange, ExchangeSettings
from isthmus.mqtt.packets import Publish
from isthmus.sim.broker import SimBroker
from isthmus.sim.client import SimClient
from isthmus.sim.client_connection import ClientConnection
from isthmus.sim.host import SimHost

if TYPE_CHECKING:
    from isthmus.sim.fabric import SimFabric

__all__ = ["SimNode"]


class SimNode:
    """One node; `host` is its present life, None while it is down."""

    def __init__(
        self,
        fabric: SimFabric,
        name: str,
        *,
        broker: SimBroker,
        state_dir: bool,
        clock_ahead_ms: int,
    ) -> None:
        self.fabric = fabric
        self.engine = fabric.engine
        self.name = name
        self.broker = broker
        self.state_dir = state_dir
        self.storage: dict[str, bytes] = {}
        self.peers: dict[str, tuple[int | None, int | None]] = {}
        """What its configuration says: addresses, with sessions and QoS."""
        self.host: SimHost | None = None
        self.attached: dict[ClientConnection, None] = {}
        self.clients: dict[str, SimClient] = {}
        self.ended_s: list[float] = []
        """When its lives ended."""
        self._clock_ahead_ms = clock_ahead_ms
        self._lives = 0

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def address(self) -> str:
        return f"{self.name}:7883"

    @property
    def running(self) -> bool:
        return self.host is not None

    @property
    def exchange(self) -> Exchange:
        if self.host is None:
            raise RuntimeError(f"node {self.name} is down")
        return self.host.exchange

    @property
    def algorithm(self) -> CooperationAlgorithm:
        return self.exchange.algorithm

    def start(self) -> None:
        """Begin a life: what was stored is there, nothing else."""
        if self.host is not None:
            return
        fabric = self.fabric
        self._lives += 1
        host = SimHost(
            self.name,
            self._lives,
            engine=fabric.engine,
            network=fabric.network,
            broker=self.broker,
            trace=fabric.trace,
            storage=self.storage if self.state_dir else None,
            clock_ahead_ms=self._clock_ahead_ms,
        )
        settings = ExchangeSettings(
            self.name, fabric.algorithm_name, fabric.options, fabric.link_settings
        )
        self.host = host
        host.exchange = Exchange(host, settings, fabric.factory)
        fabric.trace.note(self.name, "start", life=self._lives)
        fabric.network.off.discard(self.name)
        fabric.network.listen(host)
        host.exchange.start()
        for address, (sessions, qos) in self.peers.items():
            host.exchange.add_peer(address, sessions, qos)

    def stop(self) -> None:
        """An orderly stop: the neighbours are told, the clients lose their connections."""
        if self.host is None:
            return
        self.fabric.trace.note(self.name, "stop")
        host = self.host
        host.exchange.stop()
        host.exchange.flush()
        self._end(host, silent=False)

    def crash(self, *, silent: bool = False) -> None:
        """kill -9; `silent` if its machine goes too, so that nobody is told."""
        if self.host is None:
            return
        self.fabric.trace.note(self.name, "crash", silent=silent)
        self._end(self.host, silent=silent)

    def _end(self, host: SimHost, *, silent: bool) -> None:
        host.alive = False
        self.ended_s.append(self.engine.now_s)
        self.host = None
        self.broker.node_gone(host)
        self.fabric.network.endpoint_gone(host, silent=silent)
        attached, self.attached = list(self.attached), {}
        for connection in attached:
            connection.node_lost()
        self.engine.activity()

    def client(self, client_id: str, **options: Any) -> SimClient:
        """A client of this node, connecting; options are those of `SimClient`."""
        client = SimClient(self, client_id, **options)
        self.clients[client_id] = client
        client.connect()
        return client

    def published(self, packet: Publish) -> None:
        self.fabric.published(self, packet)

    def status(self) -> Mapping[str, object]:
        return self.exchange.status()
