"""The clients: publishers and subscribers on topics that begin with a cell."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.relay.load import HERE, Load, loopback

from isthmus.bench.load.plan import Plan
from isthmus.pipeline.log.reading import ClientRole, LoggedClient

__all__ = ["Crowd", "connect_crowd"]

TOPICS = ("0/1/t", "1/2/t", "2/3/t", "3/0/t")


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many clients on each of four topics, one in each quarter of the map."""

    name: str
    qos: int
    publishers: int
    subscribers: int

    def plan(self) -> Plan:
        """Those of the topics in turn, so that publishers who send in turn load all of them."""
        clients: list[LoggedClient] = []
        roles: tuple[tuple[ClientRole, int], ...] = (
            ("publisher", self.publishers),
            ("subscriber", self.subscribers),
        )
        for role, count in roles:
            for _ in range(count):
                for topic in range(len(TOPICS)):
                    number = len(clients)
                    name = f"{role[:3]}-{number}"
                    clients.append(LoggedClient(number, name, "t", role, topic, HERE, "w0"))
        return Plan(TOPICS, tuple(clients))


def connect_crowd(crowd: Crowd, port: int) -> Load:
    """At a broker or a node of this machine."""
    return Load(crowd.plan(), {HERE: loopback(port)}, crowd.qos)
