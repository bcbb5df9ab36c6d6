"""What the exact simulator is to play, whichever file it comes from.

    [simulation]  generated: so many nodes of a shape, clients at random   ──▶ planned
    [scenario]    named: each node, client and line, as for `bench run`    ──▶ planned_scenario

Clients of a scenario are those of ``isthmus bench run``, with the same numbers, and their messages
are due at the same times; so both runs of one file can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.bench.load.plan import phase_ns, plan_clients
from isthmus.bench.scenario import Scenario
from isthmus.config.faults import Crash, Cut
from isthmus.config.files import Cooperation, LinkTable
from isthmus.exchange.client.confirming import LOCAL, ConfirmSettings
from isthmus.exchange.discovery.discovery import DiscoverySettings
from isthmus.exchange.link.links import LinkSettings
from isthmus.pipeline.log.reading import ClientKind, LoggedClient
from isthmus.sim.engine import Engine
from isthmus.sim.network import WireSettings
from isthmus.sim.shapes import links_of
from isthmus.simulate.file import Simulation, node_name

__all__ = ["WRITER", "Messages", "Plan", "planned", "planned_scenario"]

WRITER: Final = "s0"


@dataclass(frozen=True, slots=True)
class Messages:
    """What clients of one kind send."""

    interval_ns: int
    qos: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A fabric, its clients, and what happens."""

    name: str
    title: str
    """For people, in a line."""
    source_json: str
    """The file that it is from, as it was read."""
    labels: Mapping[str, str]
    seed: int
    nodes: Sequence[str]
    links: Sequence[tuple[str, str]]
    """Who is told to link to whom."""
    algorithm: str
    options: Mapping[str, object]
    topics: tuple[str, ...]
    clients: tuple[LoggedClient, ...]
    messages: Mapping[ClientKind, Messages]
    first_ns: Mapping[int, int]
    """By publisher, when its first message is due, counted from the beginning."""
    duration_s: float
    trim_s: float = 0.0
    settle_s: float | None = None
    wire: WireSettings = field(default_factory=WireSettings)
    ways: Mapping[tuple[str, str], WireSettings] = field(default_factory=dict)
    """From one node to another, where it is not like `wire`."""
    link: LinkSettings = field(default_factory=LinkSettings)
    discovery: DiscoverySettings | None = None
    datagram_loss: float = 0.0
    cut: tuple[Cut, ...] = ()
    crash: tuple[Crash, ...] = ()
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """Of :class:`isthmus.sim.client.SimClient`."""
    confirm: ConfirmSettings = LOCAL
    routes_retained: bool = False
    """Retained messages go only where they are wanted."""
    from_broker: frozenset[str] = frozenset()
    """Nodes with ``source = "broker"``."""
    interest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By node, what is wanted by subscribers that it cannot see."""
    returning: frozenset[str] = frozenset()
    """Nodes whose clients have sessions that are kept, at QoS 1 and 2."""


def planned(simulation: Simulation) -> Plan:
    """Of a generated shape; what is random follows from its seed."""
    shape, load, network = simulation.simulation, simulation.load, simulation.network
    engine = Engine(shape.seed)
    rng = engine.random_for("shape")
    links = links_of(shape.topology, shape.nodes, rng, shape.graph_links)
    clients = _scattered(simulation, engine)
    interval_ns = round(load.interval_ms * 1e6)
    rng = engine.random_for("messages")
    algorithm = simulation.cooperation.algorithm
    return Plan(
        name=f"{shape.topology}-{shape.nodes}",
        title=(
            f"{shape.nodes:,} nodes, {shape.topology} of {len(links):,} links, {algorithm}, "
            f"seed {shape.seed}, {shape.duration_s:g} s"
        ),
        source_json=simulation.model_dump_json(),
        labels={
            "simulator": "exact",
            "algorithm": algorithm,
            "topology": shape.topology,
            "nodes": str(shape.nodes),
            "links": str(len(links)),
            "seed": str(shape.seed),
        },
        seed=shape.seed,
        nodes=tuple(node_name(number) for number in range(shape.nodes)),
        links=tuple((node_name(a), node_name(b)) for a, b in links),
        algorithm=algorithm,
        options=simulation.cooperation.options,
        confirm=_confirm(simulation.cooperation),
        routes_retained=simulation.cooperation.retained == "routed",
        topics=tuple(f"topic{number + 1}" for number in range(load.topics)),
        clients=clients,
        messages={"t": Messages(interval_ns, load.qos, load.payload_bytes)},
        first_ns={
            client.client: round(rng.random() * interval_ns)
            for client in clients
            if client.role == "publisher"
        },
        duration_s=shape.duration_s,
        settle_s=shape.settle_s,
        wire=WireSettings(network.delay_ms / 1000, network.bytes_per_s),
        discovery=DiscoverySettings() if network.discovery else None,
        datagram_loss=network.datagram_loss,
        cut=simulation.cut,
        crash=simulation.crash,
    )


def _scattered(simulation: Simulation, engine: Engine) -> tuple[LoggedClient, ...]:
    load, rng = simulation.load, engine.random_for("clients")
    found: list[LoggedClient] = []

    def add(number: int, role: Any) -> None:
        name = f"t-{role[:3]}-{len(found)}"
        node = node_name(rng.randrange(simulation.simulation.nodes))
        topic = number % load.topics
        found.append(LoggedClient(len(found), name, "t", role, topic, node, WRITER))

    for number in range(load.publishers):
        add(number, "publisher")
    for number in range(load.subscribers):
        add(number, "subscriber")
    return tuple(found)


def planned_scenario(scenario: Scenario, settle_s: float | None = None) -> Plan:
    """Of a scenario all of whose nodes are started here."""
    overview, cooperation = scenario.scenario, scenario.cooperation
    clients = plan_clients(scenario, [WRITER], WRITER)
    messages: dict[ClientKind, Messages] = {
        "t": Messages(scenario.load.interval_ns, scenario.load.qos, scenario.load.payload_bytes)
    }
    if scenario.latency is not None:
        interval_ns = round(scenario.latency.interval_s * 1e9)
        messages["l"] = Messages(interval_ns, scenario.latency.qos, scenario.load.payload_bytes)
    links = tuple((node.id, peer) for node in scenario.node for peer in node.peers)
    joined = "by discovery" if scenario.discovery.is_on else f"{len(links)} links"
    return Plan(
        name=scenario.name,
        title=(
            f"scenario {scenario.name}, {len(scenario.node)} nodes, {joined}, "
            f"{cooperation.algorithm}, seed {overview.seed}, {overview.duration_s:g} s"
        ),
        source_json=scenario.model_dump_json(),
        labels={
            "simulator": "exact",
            "broker": "simulated",
            "algorithm": cooperation.algorithm,
            "seed": str(overview.seed),
        },
        seed=overview.seed,
        nodes=tuple(node.id for node in scenario.node),
        links=links,
        algorithm=cooperation.algorithm,
        options=cooperation.options,
        confirm=_confirm(cooperation),
        routes_retained=cooperation.retained == "routed",
        topics=clients.topics,
        clients=clients.clients,
        messages=messages,
        first_ns={
            client.client: phase_ns(client.client, messages[client.kind].interval_ns)
            for client in clients.clients
            if client.role == "publisher"
        },
        duration_s=overview.duration_s,
        trim_s=overview.trim_s,
        settle_s=settle_s,
        wire=_wire(scenario.emulation.link_delay_ms, scenario.emulation.link_mbit_s),
        ways={way: _wire(*shape) for way, shape in scenario.emulation.ways.items()},
        link=_link_settings(scenario.link, scenario.limits.packet_bytes),
        discovery=DiscoverySettings(scenario.discovery.every_s)
        if scenario.discovery.is_on
        else None,
        cut=scenario.cut,
        crash=scenario.crash,
        client_options={"level": 4},
        from_broker=frozenset(node.id for node in scenario.node if node.source == "broker"),
        interest={node.id: node.interest for node in scenario.node if node.interest},
        returning=frozenset(crash.node for crash in scenario.crash),
    )


def _wire(delay_ms: float, mbit_s: float | None) -> WireSettings:
    return WireSettings(delay_ms / 1e3, 0.0 if mbit_s is None else mbit_s * 1e6 / 8)


def _confirm(table: Cooperation) -> ConfirmSettings:
    return ConfirmSettings.of(
        table.confirm, table.confirm_topics, table.confirm_s, table.confirm_back_s
    )


def _link_settings(link: LinkTable, packet_bytes: int) -> LinkSettings:
    """As the node itself makes them; nobody is between simulated nodes, so there is no secret."""
    return LinkSettings(
        qos=link.qos,
        lanes=link.lanes,
        round_robin=link.spread == "round-robin",
        dead_after_s=link.dead_after_s,
        hold_s=link.hold_s,
        queue_bytes=link.queue_bytes,
        apart_bytes=link.apart_bytes,
        apart_s=link.apart_s,
        holds_pending_qos0=link.pending_qos0 == "hold",
        packet_bytes=packet_bytes,
    )
