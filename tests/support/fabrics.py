"""Fabrics of real nodes and real brokers for tests.

    with NodeFabric(folder, links=[("a", "b"), ("b", "c")], algorithm="sf") as fabric:
        with fabric.client("a") as publisher, fabric.client("c") as subscriber: ...

Every link is a pair (dialer, acceptor) and has a :class:`LinkTap` in it unless it is to be left
out.  A fabric starts its own brokers, ports are free ones, and leaving it stops every process by
its id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from conftest import require_broker
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from isthmus.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from support.link_taps import LinkTap
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

__all__ = ["QUICK_LINKS", "Closed", "FabricClient", "NodeFabric", "settled"]

BUILDS_A_TREE = {"tree", "routed-tree", "topic-tree", "skipgraph"}
QUICK_LINKS: Mapping[str, Any] = {"dead_after_s": 1.0}
"""`[link]` for tests that wait for a peer to be missed."""


class Closed(AssertionError):
    """The other side ended the connection while a packet was waited for."""


class FabricClient:
    """An MQTT client that acknowledges what it gets and keeps it in order of arrival."""

    def __init__(self, port: int, level: int = 5, *, timeout_s: float = 20) -> None:
        self.raw = RawClient(port, level, timeout_s=timeout_s)
        self._got: deque[Publish] = deque()
        self._packet_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def connect(self, client_id: str = "", **fields: Any) -> bool:
        """CONNECT; whether the broker had a session for this client."""
        connack = self.raw.connect(client_id, **fields)
        assert connack.reason_code == 0, connack
        return connack.session_present

    def disconnect(self) -> None:
        """Leave as the specification wants it."""
        self.raw.send(Disconnect())
        while self.raw.receive_frame():
            pass

    def subscribe(self, *filters: str, qos: int = 2, **options: Any) -> None:
        wanted = tuple(Subscription(each, qos, **options) for each in filters)
        self.raw.send(Subscribe(self._next_id(), wanted))
        answer = self._until(SubAck)
        assert max(answer.reason_codes) < 0x80, answer

    def unsubscribe(self, *filters: str) -> None:
        self.raw.send(Unsubscribe(self._next_id(), filters))
        self._until(UnsubAck)

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publish and wait for the broker's acknowledgment."""
        packet_id = self._next_id() if qos else 0
        self.raw.send(
            Publish(topic, payload, qos, retain=retain, packet_id=packet_id, properties=properties)
        )
        if qos == 1:
            self._until(PubAck)
        elif qos == 2 and isinstance(self._until(PubRec, PubAck), PubRec):
            # RabbitMQ answers QoS 2 with PUBACK, and that is all then.
            self.raw.send(PubRel(packet_id))
            self._until(PubComp)

    def next(self) -> Publish:
        """The next message, after its acknowledgment; fails if none comes in time."""
        while not self._got:
            self._take(self._packet())
        return self._got.popleft()

    def until(self, payload: bytes) -> list[Publish]:
        """All messages before the one with `payload`, which must come."""
        before: list[Publish] = []
        while (message := self.next()).payload != payload:
            before.append(message)
        return before

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def _packet(self) -> Any:
        packet = self.raw.receive()
        if packet is None:
            raise Closed("the connection was closed")
        return packet

    def _until(self, *kinds: type) -> Any:
        while not isinstance(packet := self._packet(), kinds):
            self._take(packet)
        return packet

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Publish):
            self._got.append(packet)
            if packet.qos:
                answer = PubAck if packet.qos == 1 else PubRec
                self.raw.send(answer(packet.packet_id))
        elif isinstance(packet, PubRel):
            self.raw.send(PubComp(packet.packet_id))


class NodeFabric:
    """Nodes, each in front of a broker of its own, and the links between them."""

    def __init__(
        self,
        folder: Path,
        links: Sequence[tuple[str, str]] = (),
        *,
        names: Iterable[str] = (),
        algorithm: str = "sf",
        broker: str = "mosquitto",
        broker_options: Mapping[str, Any] | None = None,
        tapped: bool = True,
        link: Mapping[str, Any] | None = None,
        links_of: Mapping[str, Mapping[str, Any]] | None = None,
        state: bool = False,
        cooperation: Mapping[str, Any] | None = None,
        rules: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    ) -> None:
        """`link` is every node's ``[link]``; `links_of` has more of it for single nodes.

        `rules` has more of the ``[[peer]]`` of a link.
        """
        require_broker(broker)
        self.folder = folder
        self.algorithm = algorithm
        self.nodes: dict[str, NodeProcess] = {}
        self.brokers: dict[str, Broker] = {}
        self.link_ports: dict[str, int] = {}
        self.taps: dict[tuple[str, str], LinkTap] = {}
        self._links = list(links)
        self._rules = rules or {}
        self._tapped = tapped
        self._exit = ExitStack()
        for name in dict.fromkeys([*names, *(end for pair in links for end in pair)]):
            self.brokers[name] = create(broker, **(broker_options or {}))
            self.link_ports[name] = free_port()
            self.nodes[name] = NodeProcess(
                folder,
                "",
                id=name,
                node={"state_dir": folder / f"{name}-state"} if state else {},
                listen={"link": f"127.0.0.1:{self.link_ports[name]}"},
                link={**(link or {}), **(links_of or {}).get(name, {})},
                cooperation={"algorithm": algorithm, **(cooperation or {})},
            )

    # ---- life ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def start(self) -> None:
        """Brokers, nodes, and then until every link is active or blocked."""
        with ThreadPoolExecutor() as pool:
            for broker in self.brokers.values():
                self._exit.callback(broker.stop)
            list(pool.map(Broker.start, self.brokers.values()))
        for name, node in self.nodes.items():
            node.tables["broker"]["url"] = f"mqtt://127.0.0.1:{self.brokers[name].port}"
        for dialer, acceptor in self._links:
            address = self.address(dialer, acceptor)
            more = self._rules.get((dialer, acceptor), {})
            self.nodes[dialer].peers.append({"address": address, **more})
        for node in self.nodes.values():
            self._exit.callback(node.stop)
            node.launch()
        self._exit.callback(self._begin_stop)
        for node in self.nodes.values():
            node.wait_until(node.is_ready)
        self.until_linked(*self._links)

    def _begin_stop(self) -> None:
        for node in self.nodes.values():
            node.begin_stop()

    def address(self, dialer: str, acceptor: str) -> str:
        """Where `dialer` finds `acceptor`: through a tap of its own, if there are to be any."""
        port = self.link_ports[acceptor]
        if self._tapped:
            if (dialer, acceptor) not in self.taps:
                tap = LinkTap(dialer, acceptor, port)
                self.taps[dialer, acceptor] = tap
                self._exit.callback(tap.close)
            port = self.taps[dialer, acceptor].port
        return f"127.0.0.1:{port}"

    # ---- what tests ask ------------------------------------------------------------------

    def __getitem__(self, name: str) -> NodeProcess:
        return self.nodes[name]

    def client(self, name: str, client_id: str = "", level: int = 5, **fields: Any) -> FabricClient:
        """A client connected to node `name`."""
        client = FabricClient(self.nodes[name].port, level)
        try:
            client.connect(client_id, **fields)
        except BaseException:
            client.raw.close()
            raise
        return client

    def link(self, here: str, there: str) -> dict[str, Any]:
        """What node `here` says of its link to `there`; empty if it has none."""
        for link in self.nodes[here].fabric()["links"]:
            if link["neighbor"] == there:
                found: dict[str, Any] = link
                return found
        return {}

    def until_linked(self, *links: tuple[str, str], status: str | None = None) -> None:
        """Until both ends see each link active or blocked, or in the one `status`."""
        wanted = {"active", "blocked"} if status is None else {status}
        for a, b in links:
            for here, there in ((a, b), (b, a)):

                def seen(here: str = here, there: str = there) -> bool:
                    return self.link(here, there).get("status") in wanted

                self.nodes[here].wait_until(seen)

    def settle(self) -> None:
        """SF: until what each node has announced is what its neighbors have received.

        Of algorithms that build a tree: until all nodes are in one.  Others share nothing, so there
        is nothing to wait for.
        """
        if self.algorithm == "sf":
            wait_for(lambda: settled(self.nodes.values()), 20, "inter-subscriptions to settle")
        elif self.algorithm in BUILDS_A_TREE:
            wait_for(lambda: in_one_tree(self.nodes.values()), 30, "all nodes in one tree")


def in_one_tree(nodes: Iterable[NodeProcess]) -> bool:
    """Whether all use one tree that has all of them."""
    said = {node.id: node.fabric()["algorithm"] for node in nodes}
    if any(each["phase"] != "RUNTIME" for each in said.values()):
        return False
    trees = [each["tree"] for each in said.values()]
    return all(
        set(tree["nodes"]) == said.keys()
        and (tree["number"], tree["root"]) == (trees[0]["number"], trees[0]["root"])
        for tree in trees
    )


def settled(nodes: Iterable[NodeProcess]) -> bool:
    """SF: whether both ends of every active link know the same inter-subscriptions.

    A node counts a client's filter before it passes the SUBACK on, and what it hears from one
    neighbor it announces to the others in the same turn.  So when all ends agree, starting from
    a client that has its SUBACK, what that client wants is known everywhere.
    """
    states = {node.id: node.fabric() for node in nodes}
    for name, state in states.items():
        active = {link["neighbor"] for link in state["links"] if link["status"] == "active"}
        neighbors = state["algorithm"]["neighbors"]
        for peer in active & states.keys():
            mine, theirs = neighbors.get(peer), states[peer]["algorithm"]["neighbors"].get(name)
            if mine is None or theirs is None or mine["synchronizing"] or mine["waiting_filters"]:
                return False
            if mine["announced_filters"] != theirs["received_filters"]:
                return False
            if mine["unacknowledged_packets"]:
                return False
    return True
