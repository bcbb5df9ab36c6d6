"""The load: clients of a scenario of `isthmus.bench`, played by its load tool in this process.

    publisher p ──▶ its topic ──▶ every subscriber of that topic

With the scenario ``single`` (50 publishers and 50 subscribers on 5 topics) each message goes to 10
subscribers.  Nothing is recorded, because files cost the core that the node needs.

Every frame is checked: it is a message of this load, and the next one of its publisher that this
subscriber has to get.  So no loss, duplicate or disorder can hide, and `missing` is exact once
everything was read; meanwhile `delivered` goes by the bytes, as all frames are equally long.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isthmus.bench.coordinator.control import Target
from isthmus.bench.load.clients import Poller
from isthmus.bench.load.connecting import connect_clients
from isthmus.bench.load.expected import fan_out
from isthmus.bench.load.frames import template
from isthmus.bench.load.plan import Plan, plan_clients
from isthmus.bench.load.population import Population
from isthmus.bench.load.sending import SentLog
from isthmus.bench.scenario import load_scenario
from isthmus.errors import LoadError
from isthmus.pipeline.log.payload import run_tag
from isthmus.pipeline.log.reading import ClientRole, LoggedClient

__all__ = ["Check", "Load", "Shape", "clients_of", "connect", "loopback"]

CONNECT_S = 30.0
PAYLOAD_BYTES = 32
QOS = {"t": 0}
HERE = "n1"  # where the scenario has all its clients
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Shape:
    """How many clients, on how many topics."""

    publishers: int = 50
    subscribers: int = 50
    topics: int = 5

    @property
    def fan_out(self) -> int:
        """Subscribers that each message goes to."""
        return self.subscribers // self.topics


def shape_of(plan: Plan) -> Shape:
    """What `plan` has, all topics alike."""
    roles = Counter(client.role for client in plan.clients)
    return Shape(roles["publisher"], roles["subscriber"], len(plan.topics))


def clients_of(subscribers_at: str = HERE) -> Plan:
    """The clients of ``single``, but for those that time messages; publishers are at `HERE`.

    In turn one of each topic, so that publishers who send one after the other load all topics.
    """
    plan = plan_clients(load_scenario("single").model_copy(update={"latency": None}), ("w0",), "l0")
    moved = [
        replace(client, node=subscribers_at) if client.role == "subscriber" else client
        for client in plan.clients
    ]
    ranks = Counter[tuple[str, int]]()

    def turn(client: LoggedClient) -> tuple[int, int]:
        ranks[client.role, client.topic] += 1
        return ranks[client.role, client.topic], client.topic

    return Plan(plan.topics, tuple(sorted(moved, key=turn)))


def loopback(port: int) -> Target:
    """Where a broker or node of this machine is reached."""
    return Target("127.0.0.1", port)


class Check:
    """Takes deliveries as a recorder would, and refuses what is not the next of its publisher."""

    def __init__(self, clients: int) -> None:
        self._next = np.zeros(clients * clients, np.int64)
        self._clients = clients
        self.delivered = 0
        self.latencies_ns: list[NDArray[np.int64]] | None = None
        """Of what was sent from `counted_from_ns` on, if it is to be kept."""
        self.counted_from_ns = 0

    def add(self, _table: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Deliveries, those of one subscriber in the order of arrival."""
        messages = columns["message"].astype(np.int64)
        pairs = columns["subscriber"].astype(np.int64) * self._clients + columns["publisher"]
        order = np.argsort(pairs, kind="stable")
        pairs, messages = pairs[order], messages[order]
        first = np.flatnonzero(np.diff(pairs, prepend=-1))
        counts = np.diff(first, append=len(pairs))
        before = np.repeat(first, counts)
        expected = self._next[pairs] + np.arange(len(pairs)) - before
        if (wrong := np.flatnonzero(messages != expected)).size:
            at = int(wrong[0])
            subscriber, publisher = divmod(int(pairs[at]), self._clients)
            raise LoadError(
                f"subscriber {subscriber} got message {messages[at]} of publisher {publisher} "
                f"where {expected[at]} was to come"
            )
        self._next[pairs[first]] += counts
        self.delivered += len(pairs)
        if self.latencies_ns is not None:
            counted = columns["t_send_ns"] >= self.counted_from_ns
            self.latencies_ns.append((columns["t_receive_ns"] - columns["t_send_ns"])[counted])


class Load:
    """The connected clients; a context manager that disconnects them."""

    def __init__(self, plan: Plan, targets: Mapping[str, Target], qos: int = 0) -> None:
        """`qos` is that of what is published and of what is subscribed to."""
        self.plan = plan
        each = {"t": qos}
        self.poller = Poller()
        self.tag = run_tag(f"load-{next(_numbers)}")
        self.sent_log = SentLog(lambda columns: None)
        self.check = Check(len(plan.clients))
        clients = connect_clients(plan.clients, plan.topics, targets, each, CONNECT_S)
        self._population = Population(clients, plan.topics, each, PAYLOAD_BYTES, self.poller)
        self._population.begin(self.tag, self.check)
        self._frame_bytes = template(plan.topics[0], qos, PAYLOAD_BYTES).size
        self._fan_out = fan_out(plan)
        self.shape = shape_of(plan)
        self.publishers = [one.publisher for one in self._population.publishers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._population.close()

    @property
    def delivered(self) -> int:
        """Messages received so far, those that are still to be checked included."""
        return self._population.received_bytes // self._frame_bytes

    def turn(self, wait_s: float) -> None:
        """Wait for at most so long, then read and write what can be."""
        self.poller.turn(wait_s)
        if self._population.losses:
            loss = self._population.losses[0]
            raise LoadError(f"the connection of {loss.client.name} was lost: {loss.problem}")

    def due(self) -> int:
        """Deliveries that follow from what was sent."""
        return sum(one.message * self._fan_out[one.topic] for one in self.publishers)

    def missing(self) -> int:
        """Deliveries that have not come; checks what has."""
        if strays := self._population.end():
            raise LoadError(f"received what was never sent: {strays}")
        self._population.begin(self.tag, self.check)
        return self.due() - self.check.delivered


def connect(port: int, count: int, topics: Sequence[str] = ()) -> list[socket.socket]:
    """Sockets of so many clients at `port`; with `topics`, each is subscribed to one."""
    role: ClientRole = "subscriber" if topics else "publisher"
    clients = [
        LoggedClient(number, f"c{number}", "t", role, number if topics else 0, HERE, "w0")
        for number in range(count)
    ]
    found = connect_clients(clients, topics, {HERE: loopback(port)}, QOS, CONNECT_S)
    return [one.sock for one in found]
