"""A node of the simulated fabric: its lives, its broker, its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isthmus.cooperation.api import CooperationAlgorithm, LinkOptions, Resources
from isthmus.exchange.exchange import Exchange, ExchangeSettings
from isthmus.exchange.split.brokers import Brokers, BrokersSettings
from isthmus.mqtt.packets import Publish
from isthmus.sim.broker import KeptSession, SimBroker
from isthmus.sim.client import SimClient, VirtualConnection
from isthmus.sim.disk import Disk
from isthmus.sim.host import SimHost
from isthmus.sim.stream import StreamEnd, open_stream

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
        brokers: Mapping[str, SimBroker],
        broker_settings: BrokersSettings | None,
        state_dir: bool,
        clock_ahead_ms: int,
        node_id: str = "",
        from_broker: bool = False,
        interest: tuple[str, ...] = (),
    ) -> None:
        self.fabric = fabric
        self.engine = fabric.engine
        self.name = name
        """Of its machine, and so of its address."""
        self.node_id = node_id or name
        """What it calls itself; the same as another's, or another one than before, by mistake."""
        self.from_broker = from_broker
        """``[broker] source = "broker"``."""
        self.interest = interest
        self.brokers = brokers
        """By name; the only one has none."""
        self.broker_settings = broker_settings
        self._places: Brokers | None = None
        """What its last life knew of where topics live."""
        self._broker_crashes = 0
        self.state_dir = state_dir
        self.disk = Disk()
        self.forgetful = False
        """A bit of its files has flipped, or its state is gone: it need not know what it knew."""
        self.peers: dict[str, LinkOptions] = {}
        """What its configuration says: addresses, with lanes, QoS and rules."""
        self.host: SimHost | None = None
        self.clients: dict[str, SimClient] = {}
        self.ended_s: list[float] = []
        """When its lives ended."""
        self.clock_ahead_ms = clock_ahead_ms
        self.resources = Resources(1.0, 1 << 30)
        """What is free at its machine, as the test wants it."""
        self._lives = 0
        self._given_up = 0

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def address(self) -> str:
        return f"{self.name}:7883"

    @property
    def running(self) -> bool:
        return self.host is not None

    # ---- its broker, or brokers ------------------------------------------------------------

    @property
    def broker(self) -> SimBroker:
        """The only one, or the first of several."""
        return next(iter(self.brokers.values()))

    def broker_of(self, topic: str) -> SimBroker:
        """Where `topic` lives."""
        return (
            self.broker if self._places is None else self.brokers[self._places.of(topic.encode())]
        )

    @property
    def brokers_up(self) -> bool:
        return all(broker.up for broker in self.brokers.values())

    @property
    def broker_delay_s(self) -> float:
        return max(broker.delay_s for broker in self.brokers.values())

    def sessions_of(self, client_id: str) -> list[KeptSession]:
        """What brokers keep of a client."""
        found = (broker.sessions.get(client_id) for broker in self.brokers.values())
        return [session for session in found if session is not None]

    @property
    def retained(self) -> dict[str, Publish]:
        return {
            topic: publish
            for broker in self.brokers.values()
            for topic, publish in broker.retained.items()
        }

    @property
    def published(self) -> Counter[bytes]:
        """How often each payload was published at any of them."""
        return sum((broker.published for broker in self.brokers.values()), Counter[bytes]())

    def crash_broker(self) -> None:
        """One of them, in turn."""
        brokers = list(self.brokers.values())
        brokers[self._broker_crashes % len(brokers)].crash()
        self._broker_crashes += 1

    def restart_broker(self) -> None:
        for broker in self.brokers.values():
            if not broker.up:
                broker.restart()

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
        host = SimHost(self, self._lives)
        settings = ExchangeSettings(
            self.node_id,
            fabric.algorithm_name,
            fabric.options,
            fabric.link_settings,
            address=self.address,
            discovery=fabric.discovery,
            confirm=fabric.confirm,
            routes_retained=fabric.routes_retained,
            from_broker=self.from_broker,
            interest=self.interest,
            brokers=self.broker_settings,
        )
        self.host = host
        host.join(Exchange(host, settings, fabric.factory))
        self._places = host.exchange.brokers
        fabric.trace.note(self.name, "start", life=self._lives)
        fabric.network.off.discard(self.name)
        fabric.network.listen(host)
        host.exchange.start()
        for address, each in self.peers.items():
            host.exchange.add_peer(address, each.lanes, each.qos, each.rules)

    def stop(self) -> None:
        """An orderly stop: the neighbors are told, the clients lose their connections."""
        if self.host is None:
            return
        self.fabric.trace.note(self.name, "stop")
        host = self.host
        host.exchange.stop()
        host.exchange.flush()
        host.own.close()
        self._end(host, silent=False)
        self.disk.finish(self.engine.random_for(f"{self.name}/{self._lives}/stopped"))

    def crash(self, *, silent: bool = False, torn: bool = False) -> None:
        """kill -9; `silent` if its machine goes too, so that nobody is told; `torn` in a write."""
        if self.host is None:
            return
        self.fabric.trace.note(self.name, "crash", silent=silent)
        self._end(self.host, silent=silent)
        self.disk.killed(self.engine.random_for(f"{self.name}/{self._lives}/killed"))
        if torn:
            rng = self.engine.random_for(f"{self.name}/{self._lives}/disk")
            suffered = self.disk.torn(rng, self.engine.now_s)
            self.fabric.trace.note(self.name, "torn", files=suffered)

    def flip(self) -> None:
        """A bit of one of its files flips."""
        name = self.disk.flip(self.engine.random_for(f"{self.name}/{self._lives}/flip"))
        self.forgetful = self.forgetful or bool(name)
        self.fabric.trace.note(self.name, "bit flip", file=name)

    def rename(self, node_id: str) -> None:
        """Another node, which has no state, stands at this address from its next start on."""
        if self.host is not None:
            raise RuntimeError(f"node {self.name} is running")
        self.node_id = node_id
        self.disk = Disk()
        self.forgetful = True

    @property
    def given_up(self) -> int:
        """Messages that its lives have counted as given up."""
        now = self.host.exchange.counters["given_up"] if self.host is not None else 0
        return self._given_up + now

    def _end(self, host: SimHost, *, silent: bool) -> None:
        host.end()
        self._given_up += host.exchange.counters["given_up"]
        self.ended_s.append(self.engine.now_s)
        self.host = None
        self.fabric.network.endpoint_gone(host, silent=silent)
        self.engine.activity()

    def client(self, client_id: str, *, connect: bool = True, **options: Any) -> SimClient:
        """A client of this node, connecting; options are those of `SimClient`."""
        client = SimClient(self, client_id, **options)
        self.clients[client_id] = client
        if connect:
            client.connect()
        return client

    def open_client(self, connection: VirtualConnection, delay_s: float) -> None:
        """A client dials."""
        engine = self.engine

        def arrival_s() -> float:
            return engine.now_s + delay_s

        rng = self.fabric.streams
        if connection.direct:
            broker = self.broker
            open_stream(
                engine,
                (
                    StreamEnd(engine, rng, broker.arrival_s, "broker"),
                    StreamEnd(engine, rng, broker.answer_s, "client"),
                ),
                delay_s,
                accept=broker.accept,
                opened=lambda end: end.attach(connection),
                refused=lambda: connection.connection_lost(None),
            )
            return
        here = StreamEnd(engine, rng, arrival_s, self.name)
        open_stream(
            engine,
            (here, StreamEnd(engine, rng, arrival_s, "client")),
            delay_s,
            accept=lambda end: None if self.host is None else self.host.accept_client(end),
            opened=lambda end: end.attach(connection),
            refused=lambda: connection.connection_lost(None),
        )
