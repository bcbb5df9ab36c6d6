"""Who plays which client, and when: a scenario's clients, numbered and shared out among writers.

A *writer* is one load process.  l-clients have a writer of their own, because what a busy process
measures is its own delay (ILDM Fig. 9 puts them on another server); t-clients that subscribe and
t-clients that publish are dealt out evenly to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from isthmus.bench.scenario import Scenario
from isthmus.pipeline.log.reading import ClientKind, ClientRole, LoggedClient

__all__ = ["Plan", "phase_ns", "plan_clients"]

_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


@dataclass(frozen=True, slots=True)
class Plan:
    """All clients of a run; `client` is the index into `clients`."""

    topics: tuple[str, ...]
    clients: tuple[LoggedClient, ...]

    @property
    def writers(self) -> tuple[str, ...]:
        """Those that play at least one client."""
        return tuple(dict.fromkeys(client.writer for client in self.clients))

    def of(self, writer: str) -> tuple[LoggedClient, ...]:
        """The clients that `writer` plays."""
        return tuple(client for client in self.clients if client.writer == writer)


def plan_clients(
    scenario: Scenario, throughput_writers: Sequence[str], latency_writer: str
) -> Plan:
    """Number the clients of `scenario` and share them out."""
    topics = {topic: index for index, topic in enumerate(scenario.topics)}
    clients: list[LoggedClient] = []
    dealt = {"publisher": 0, "subscriber": 0}

    def add(kind: ClientKind, role: ClientRole, topic: str, node: str, writer: str) -> None:
        number = len(clients)
        name = f"{kind}-{role[:3]}-{number}"
        clients.append(LoggedClient(number, name, kind, role, topics[topic], node, writer))

    def deal(role: ClientRole) -> str:
        writer = throughput_writers[dealt[role] % len(throughput_writers)]
        dealt[role] += 1
        return writer

    for place in scenario.place:
        for _ in range(place.publishers):
            add("t", "publisher", place.topic, place.node, deal("publisher"))
        for _ in range(place.subscribers):
            add("t", "subscriber", place.topic, place.node, deal("subscriber"))
    if scenario.latency is not None:
        topic = scenario.latency.topic
        add("l", "publisher", topic, scenario.latency.publisher, latency_writer)
        for node in scenario.latency.subscribers:
            add("l", "subscriber", topic, node, latency_writer)
    return Plan(tuple(topics), tuple(clients))


def phase_ns(client: int, interval_ns: int) -> int:
    """Where in the interval that client's messages are due.

    Multiples of the golden ratio lie evenly in the interval for any number of clients, so every
    load process knows its own without knowing of the others.
    """
    return (client * _GOLDEN % 2**64) * interval_ns >> 64
