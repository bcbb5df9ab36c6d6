"""A node's status as Prometheus metrics, named ``isthmus_…``.

The collector reads `status()` when it is scraped; nothing is counted twice and the relay knows
nothing of Prometheus.  Counters become ``isthmus_<name>_total``; refusals are one
counter labelled with their ``cause``.  Numbers among ``broker``, ``sessions`` and ``routes``
become gauges.  `docs/reference/admin.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from isthmus.node.admin import StatusSource

__all__ = ["NodeCollector", "exposition"]

GAUGE_HELP = {
    "broker_reachable": "1 when the broker answered the last time it was tried.",
    "sessions_open": "Client connections open now.",
    "sessions_established": "Client connections paired with a broker session now.",
    "sessions_limit": "Client connections allowed at once.",
    "sessions_pending_bytes": "Bytes held of packets that have not arrived whole.",
    "routes_topics": "Topics in the forwarding table.",
}
COUNTER_HELP = {
    "clients_accepted": "Connections accepted from clients.",
    "clients_connected": "Clients that the broker accepted.",
    "clients_refused": "Clients refused by the node.",
    "clients_closed": "Client connections that ended.",
    "client_bytes": "Bytes received from clients.",
    "client_publishes": "PUBLISH packets received from clients.",
    "broker_bytes": "Bytes received from the broker.",
    "broker_packets": "Packets received from the broker.",
    "broker_connect_failures": "Times the broker could not be reached for a client.",
    "broker_sessions_lost": "Sessions that the broker ended.",
    "refusals": "Connections that the node ended, by cause.",
}


class NodeCollector(Collector):
    """Turns one node's status into metric families at every scrape."""

    def __init__(self, node: StatusSource) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        status = self._node.status()
        node = status.get("node", {})
        identity = {"id": str(node.get("id", "")), "version": str(node.get("version", ""))}
        yield InfoMetricFamily("isthmus_node", "Which node this is.", identity)
        yield _gauge("ready", "1 when a client would be served now.", self._node.ready)
        yield _gauge("uptime_seconds", "Time since the node started.", node.get("uptime_s", 0))
        for section in ("broker", "sessions", "routes"):
            for name, value in status.get(section, {}).items():
                if isinstance(value, (bool, int, float)):
                    text = GAUGE_HELP.get(f"{section}_{name}", f"{name} of {section}, now.")
                    yield _gauge(f"{section}_{name}", text, value)
        for name, value in status.get("counters", {}).items():
            yield _counter(name, value)
        yield _counter("refusals", status.get("refusals", {}))

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: registering must not ask the node."""
        return iter(())


def _gauge(name: str, documentation: str, value: Any) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"isthmus_{name}", documentation, value=float(value))


def _counter(name: str, value: Any) -> CounterMetricFamily:
    text = COUNTER_HELP.get(name, f"{name.replace('_', ' ').capitalize()} since the start.")
    if not isinstance(value, Mapping):
        return CounterMetricFamily(f"isthmus_{name}", text, value=value)
    family = CounterMetricFamily(f"isthmus_{name}", text, labels=["cause"])
    for cause, count in value.items():
        family.add_metric([str(cause)], count)
    return family


def exposition(node: StatusSource, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that `accept` asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
