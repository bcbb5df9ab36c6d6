"""A whole fabric on a virtual clock.

    fabric = SimFabric(seed=1, algorithm="sf")
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, delay_s=0.02)
    subscriber = b.client("s")
    subscriber.subscribe("t/#")
    publisher = a.client("p")
    fabric.settle()
    publisher.publish("t/1", b"hello", qos=1)
    fabric.settle()
    assert subscriber.payloads() == [b"hello"]

Every node runs the production `Exchange` with the algorithm in it; only what is around it is
virtual.  Two runs with the same seed and the same calls are the same, event by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations

from isthmus.cooperation.api import CooperationAlgorithm, LinkOptions, Port
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.cooperation.registry import load
from isthmus.exchange.broker.injector import LONGEST_PAUSE_S as LONGEST_OWN_PAUSE_S
from isthmus.exchange.client.confirming import LOCAL, ConfirmSettings
from isthmus.exchange.discovery.discovery import DiscoverySettings
from isthmus.exchange.link.dialing import LONGEST_PAUSE_S
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.split.brokers import BrokersSettings
from isthmus.exchange.topology.messages import keep_for
from isthmus.exchange.traffic.in_hand import LET_GO_S
from isthmus.exchange.traffic.recovery import RECOVERY_S
from isthmus.exchange.traffic.traffic import DOUBT_S
from isthmus.sim.broker import SimBroker
from isthmus.sim.engine import Engine
from isthmus.sim.host import SimHost
from isthmus.sim.network import (
    CONNECT_TIMEOUT_S,
    DatagramSettings,
    HopRecord,
    Network,
    WireSettings,
)
from isthmus.sim.node import SimNode
from isthmus.sim.trace import Trace

__all__ = ["AlgorithmFactory", "SimFabric"]

AlgorithmFactory = Callable[[Port, Mapping[str, object]], CooperationAlgorithm]

LIMIT_S = 300.0
MANY = 20
"""Announcements, of which not all get lost."""
QUIET_S = 0.6
"""Long enough for any packet to arrive, as links are here by default."""


WAITS = 2
"""How often messages that are not acknowledged are waited for: meanwhile a hold may run out, and
what waited for that neighbor be sent to another one."""


BROKER_TOPICS: Mapping[str, tuple[str, ...]] = {
    "two": ("t/a/#", "u/a", "r/b", "w/c1", "w/c3"),
    "three": ("t/a/x", "u"),
}
"""With several brokers, what those have that are not the default: of the topics of schedules."""


def _brokers(number: int) -> BrokersSettings | None:
    if number == 1:
        return None
    names = ("one", *BROKER_TOPICS)[:number]
    topics = {each: BROKER_TOPICS[each] for each in names[1:]}
    return BrokersSettings(names, topics, default="one")


class SimFabric:
    """Nodes, brokers, clients, and what happens to them."""

    def __init__(
        self,
        *,
        seed: int = 0,
        algorithm: str | AlgorithmFactory = "sf",
        options: Mapping[str, object] | None = None,
        link: LinkSettings | None = None,
        wire: WireSettings | None = None,
        trace: bool = False,
        settle_s: float | None = None,
        on_hop: Callable[[HopRecord], None] | None = None,
        discovery: DiscoverySettings | None = None,
        datagrams: DatagramSettings | None = None,
        remembers: bool = True,
        confirm: ConfirmSettings = LOCAL,
        routes_retained: bool = False,
        from_broker: bool = False,
        brokers: int | BrokersSettings = 1,
    ) -> None:
        """`settle_s`: how long `settle` waits, for algorithms that never stop talking.

        `on_hop` is told of every message that is sent on a link.  With `discovery` all nodes are in
        one group, in which `datagrams` get lost and so on.  If it `remembers`, clients and brokers
        keep all that they had, for checks afterwards; else memory does not grow with the run.
        `from_broker` is ``source = "broker"`` of every node.  `brokers`: how many each node has, or
        which.
        """
        self.engine = Engine(seed)
        self.trace = Trace(self.engine, on=trace)
        self.network = Network(self.engine, self.trace, wire or WireSettings())
        self.network.on_hop = on_hop
        self.network.datagrams = datagrams or DatagramSettings()
        self.discovery = discovery
        self.remembers = remembers
        self.streams = self.engine.random_for("streams")
        """Where what clients, nodes and brokers say to each other is cut."""
        self.factory: AlgorithmFactory = (
            load(algorithm) if isinstance(algorithm, str) else algorithm
        )
        self.algorithm_name = str(getattr(self.factory, "name", "custom"))
        self.topology = getattr(self.factory, "topology", "tree")
        self.options = options or {}
        self.link_settings = link or LinkSettings()
        self.confirm = confirm
        self.routes_retained = routes_retained
        self.from_broker = from_broker
        self.broker_settings = _brokers(brokers) if isinstance(brokers, int) else brokers
        """Of each node, if it has several brokers."""
        self.nodes: dict[str, SimNode] = {}
        self._settle_s = settle_s

    @property
    def seed(self) -> int:
        return self.engine.seed

    @property
    def now_s(self) -> float:
        return self.engine.now_s

    # ---- shape ---------------------------------------------------------------------------

    def node(
        self,
        name: str,
        *,
        state_dir: bool = True,
        persistent_broker: bool = True,
        broker_level: int = 5,
        broker_delay_s: float = 0.001,
        clock_ahead_ms: int = 0,
        node_id: str = "",
        from_broker: bool | None = None,
        interest: tuple[str, ...] = (),
        broker: SimBroker | None = None,
        shares: SimNode | None = None,
    ) -> SimNode:
        """A node with its broker, running; `name` is its machine's, `node_id` its own if given.

        It `shares` the brokers of another one if that is given.
        """
        settings = self.broker_settings
        brokers = {
            each: broker
            or (shares.brokers[each] if shares is not None else None)
            or SimBroker(
                f"{name}/{each}" if each else name,
                self.engine,
                self.trace,
                level=broker_level,
                delay_s=broker_delay_s,
                persistent=persistent_broker,
                remembers=self.remembers,
            )
            for each in (settings.names if settings is not None else ("",))
        }
        node = SimNode(
            self,
            name,
            brokers=brokers,
            broker_settings=settings,
            state_dir=state_dir,
            clock_ahead_ms=clock_ahead_ms,
            node_id=node_id,
            from_broker=self.from_broker if from_broker is None else from_broker,
            interest=interest,
        )
        self.nodes[name] = node
        keep_for(len(self.nodes))
        node.start()
        return node

    def wire(
        self,
        a: SimNode,
        b: SimNode,
        *,
        delay_s: float | None = None,
        bytes_per_s: float | None = None,
    ) -> None:
        """What lies between two nodes, whoever of them dials the other; None: as it was."""
        before = self.network.wire(a.name, b.name)
        delay_s = before.delay_s if delay_s is None else delay_s
        rate = before.bytes_per_s if bytes_per_s is None else bytes_per_s
        if (delay_s, rate) != (before.delay_s, before.bytes_per_s):
            wire = replace(before, delay_s=delay_s, bytes_per_s=rate)
            self.network.set_wire(a.name, b.name, wire)

    def link(
        self,
        a: SimNode,
        b: SimNode,
        *,
        delay_s: float | None = None,
        bytes_per_s: float | None = None,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None:
        """`a` is told to keep up a link to `b`, now and after every restart.

        If `b`'s operator had removed `a`, `b` is told to take it back.
        """
        self.wire(a, b, delay_s=delay_s, bytes_per_s=bytes_per_s)
        self._note("link", a, b)
        a.peers[b.address] = LinkOptions(lanes, qos, rules)
        if a.running:
            a.exchange.add_peer(b.address, lanes, qos, rules)
        if b.running and a.node_id in b.exchange.links.removed:
            b.peers[a.address] = LinkOptions(lanes, qos)
            b.exchange.add_peer(a.address, lanes, qos)

    def unlink(self, a: SimNode, b: SimNode) -> None:
        """The operator removes the link where it was configured."""
        self._note("unlink", a, b)
        for one, other in ((a, b), (b, a)):
            if one.peers.pop(other.address, None) is not None and one.running:
                one.exchange.remove_peer(other.address)

    def remove(self, node: SimNode) -> None:
        """A node that is down is taken away for good, machine and all."""
        if node.running:
            raise RuntimeError(f"node {node.name} is running")
        del self.nodes[node.name]
        self.network.off.discard(node.name)

    def called(self, node_id: str) -> SimNode | None:
        """The node that calls itself `node_id`."""
        return next((node for node in self.nodes.values() if node.node_id == node_id), None)

    def wanted_links(self) -> set[tuple[str, str]]:
        """The links that the configurations ask for, each once; with discovery, any."""
        if self.discovery is not None:
            return set(combinations(sorted(self.nodes), 2))
        return {
            (min(node.name, peer), max(node.name, peer))
            for node in self.nodes.values()
            for peer in (address.partition(":")[0] for address in node.peers)
        }

    # ---- faults --------------------------------------------------------------------------

    def crash(self, node: SimNode, *, silent: bool = False, torn: bool = False) -> None:
        node.crash(silent=silent, torn=torn)

    def restart(self, node: SimNode) -> None:
        node.start()
        self.engine.activity()

    def stop(self, node: SimNode) -> None:
        node.stop()

    def crash_broker(self, node: SimNode) -> None:
        self._note("broker crash", node)
        node.crash_broker()
        self.engine.activity()

    def restart_broker(self, node: SimNode) -> None:
        self._note("broker restart", node)
        node.restart_broker()
        self.engine.activity()

    def break_connections(self, a: SimNode, b: SimNode) -> None:
        """Every TCP connection between the two breaks; new ones can be made."""
        self._note("break", a, b)
        self.network.break_connections(a.name, b.name)
        self.engine.activity()

    def partition(
        self,
        one_side: Iterable[SimNode],
        other_side: Iterable[SimNode],
        *,
        one_way: bool = False,
    ) -> None:
        """Nothing passes between the two sides, and nobody is told.

        If it is `one_way`, what the other side sends arrives.
        """
        others = list(other_side)
        pairs = [(a.name, b.name) for a in one_side for b in others]
        self.trace.note("fabric", "one-way cut" if one_way else "partition", pairs=pairs)
        self.network.cut(pairs)
        if not one_way:
            self.network.cut((b, a) for a, b in pairs)
        self.engine.activity()

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Every partition is over, or who of `pairs` could not send to whom now can."""
        self._note("heal")
        self.network.heal(pairs)
        self.engine.activity()

    def _note(self, what: str, *nodes: SimNode) -> None:
        self.trace.note("fabric", f"{what} {' - '.join(node.name for node in nodes)}")

    # ---- time ----------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.engine.run_until(self.engine.now_s + seconds)

    def settle(self) -> None:
        """Until everything that is going to happen by itself has happened.

        Neighbors that were let go for good, sessions that expire and holds that run out later
        are not waited for.
        """
        if self._settle_s is not None:
            self.run(self._settle_s)
            return
        # Every lost neighbor is noticed, and every one that can be reached is reached.
        settings = self.link_settings
        delay_s = max(
            (w.delay_of(lane) for w in self.network.wires() for lane in (0, settings.lanes)),
            default=0,
        )
        delay_s += max((node.broker_delay_s for node in self.nodes.values()), default=0.0)

        def until_quiet(quiet_s: float = QUIET_S) -> None:
            self.engine.run_until_quiet(quiet_s + 4 * delay_s, LIMIT_S)

        brokers = [each for node in self.nodes.values() for each in node.brokers.values()]
        self.engine.run_until(max(each.busy_until_s for each in brokers))
        until_quiet()
        if not self._all_up():
            noticed_s = settings.dead_after_s * 4 / 3 + CONNECT_TIMEOUT_S + LONGEST_PAUSE_S + 1.0
            until_quiet(noticed_s)
        if self.discovery is not None and not self._all_found():
            until_quiet(MANY * self.discovery.every_s)
        if not self._own_sessions_stand():
            until_quiet(LONGEST_OWN_PAUSE_S + 1.0)
        if self._recovering():
            self.run(max(RECOVERY_S, settings.hold_s))
            until_quiet()
        if self._forgot():
            self.run(self.confirm.back_s)
            until_quiet()
        for _ in range(WAITS):
            if self._waiting():
                self.run(2 * DOUBT_S + LET_GO_S)
                until_quiet()

    def _living(self) -> list[tuple[SimNode, SimHost]]:
        return [(node, node.host) for node in self.nodes.values() if node.host is not None]

    def _own_sessions_stand(self) -> bool:
        """Whether no node waits to be connected with its broker, which runs."""
        return all(
            host.own.standing == len(host.own.injectors)
            for node, host in self._living()
            if node.brokers_up
        )

    def _recovering(self) -> bool:
        """Whether a node still waits for neighbors of its last life."""
        return any(host.exchange.recovery.active for _, host in self._living())

    def _forgot(self) -> bool:
        """Whether a node still wants everything for subscribers of its last life."""
        return any(host.exchange.clients.returning.awaited for _, host in self._living())

    def _waiting(self) -> bool:
        """Whether a message is not acknowledged: doubted, or one node waits for another."""
        return any(
            link.state.carries and link.unacked()
            for node, host in self._living()
            if node.brokers_up
            for link in host.exchange.links
        )

    def _all_found(self) -> bool:
        """Whether every node has every other in its fabric."""
        names = {node.node_id for node, _ in self._living()}
        return all(host.exchange.is_in_fabric(name) for _, host in self._living() for name in names)

    def _all_up(self) -> bool:
        """Whether no link waits to be made, and no end of one waits to be noticed."""
        if not self.network.whole:
            return False
        for node, host in self._living():
            links = host.exchange.links
            for peer in links.peers.values():
                if peer.link is None or not peer.link.state.up:
                    return False
            for link in links:
                other = self.called(link.info.name)
                if not link.state.up or other is None or other.host is None:
                    return False
                back = other.host.exchange.links.links.get(node.node_id)
                if back is None or not back.state.up:
                    return False
        return True

    # ---- what is seen --------------------------------------------------------------------

    @property
    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Packets by type for each (from, to); `CONTROL` are PUBLISHes on ``$isthmus/``."""
        return self.network.counts

    def reset_counts(self) -> None:
        self.network.counts.clear()

    def active_links(self) -> dict[str, set[str]]:
        """For each running node, the neighbors that its algorithm has a session with."""
        machines = {node.node_id: name for name, node in self.nodes.items()}
        return {
            node.name: {
                machines.get(link.info.name, link.info.name)
                for link in host.exchange.links
                if link.state.carries
            }
            for node, host in self._living()
        }
