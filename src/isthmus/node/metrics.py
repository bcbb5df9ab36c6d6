"""A node's status as Prometheus metrics, named ``isthmus_…``.

The collector reads `status()` when it is scraped; nothing is counted twice and the relay knows
nothing of Prometheus.  Counters become ``isthmus_<name>_total``, the exchange's
``isthmus_fabric_<name>_total``; refusals are one counter labeled with their ``cause``.  Numbers
among ``broker``, ``sessions``, ``routes`` and ``loop`` become gauges.  Links are labeled with
their ``neighbor``; a link that is let go takes its series with it.  `docs/reference/admin.md` lists
them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from isthmus.node.admin_pages import StatusSource

__all__ = ["NodeCollector", "exposition"]

GAUGE_HELP = {
    "broker_reachable": "1 when the broker answered the last time it was tried.",
    "broker_own_session_refused": "1 when the broker refuses the node's own sessions.",
    "broker_own_sessions": "Sessions of the node's own that stand, for neighbors: 16 at most.",
    "broker_away": "1 when one of several brokers takes no connections, or does not answer.",
    "broker_sessions": "Of several brokers: clients' sessions that stand with this one.",
    "sessions_open": "Client connections open now.",
    "sessions_established": "Client connections paired with a broker session now.",
    "sessions_limit": "Client connections allowed at once.",
    "sessions_pending_bytes": "Bytes held of packets that have not arrived whole.",
    "routes_topics": "Topics in the forwarding table.",
    "loop_longest_turn_s": "The longest turn of the event loop since the start, in seconds.",
    "loop_longest_turn_cpu_s": "How much processor time was used in that turn, in seconds.",
    "loop_busiest_turn_cpu_s": "The most processor time in one turn since the start, in seconds.",
    "state_faulty": "1 when not everything that is to survive a restart is written.",
    "state_failures": "Times the disk did not take what was to be written, since the start.",
    "state_waiting_bytes": "Bytes on their way to the disk.",
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
    "not_confirmed": "Messages of which publishers were told that somebody may do without them.",
    "slow_turns": "Turns of the event loop that took longer than 50 ms.",
    "refusals": "Connections that the node ended, by cause.",
    "link_refusals": "Connections of other nodes that were refused, by cause.",
    "discovery_announced": "Announcements that this node has sent.",
    "discovery_heard": "Announcements of other nodes that count.",
    "discovery_ignored": "Announcements that do not count, by cause.",
}

BROKER_GAUGES = ("reachable", "away", "own_session_refused", "own_sessions", "sessions")
"""Of several brokers, with a label each."""

LINK_HELP = {
    "up": "1 when the neighbor is connected.",
    "active": "1 when messages may pass.",
    "blocked": "1 when the link stands by because it would close a ring.",
    "unacknowledged": "Messages that the neighbor has not acknowledged yet.",
    "unacknowledged_bytes": "Their bytes, held here.",
    "rules_differ": "1 when the two ends have different rules of what may cross the link.",
    "rtt_seconds": "Smoothed time until the neighbor answers a ping; 0 while it is not known.",
}
LINK_COUNTER_HELP = {
    "sent": "Messages sent to the neighbor.",
    "dropped": "QoS 0 messages dropped: link down, or its queue full.",
    "data_sent_bytes": "Bytes of messages and acknowledgments sent to the neighbor.",
    "data_received": "Messages received from the neighbor.",
    "data_received_bytes": "Bytes of messages and acknowledgments received from the neighbor.",
    "control_sent": "Control packets sent to the neighbor.",
    "control_sent_bytes": "Their bytes.",
    "control_received": "Control packets received from the neighbor.",
    "control_received_bytes": "Their bytes.",
    "rules_refused": "What the neighbor sent or asked for although it may not cross the link.",
}
FABRIC_HELP = {
    "nodes": "Nodes of the fabric known here, this one included.",
    "rings": "Rings in the fabric, each with one link blocked.",
    "peers": "Peers that this node keeps connected to, or tries to.",
    "retained_topics": "Topics with a retained message, as known here.",
    "retained_bytes": "Bytes of these messages that are kept.",
    "retained_owed": "Topics whose retained message the broker has not acknowledged yet.",
    "apart_destinations": "Neighbors and brokers (by neighbor) that are set apart.",
    "apart_messages": "Messages that wait for them.",
    "apart_bytes": "Bytes of these on disk.",
    "apart_blocked": "1 when there is no room on disk for what waits, so that others wait.",
    "wills_armed": "Wills of clients that are connected now.",
    "wills_waiting": "Wills whose delay has begun.",
}
SOURCE_HELP = {
    "filters": "Filters that the node is subscribed to at its broker.",
    "refused": "Of them those that the broker refuses.",
    "unacknowledged": "Messages not acknowledged to the broker yet.",
    "echoing": "1 when the broker sends the node's own messages back although asked not to.",
    "stopped": "1 when nothing is taken, as another node stands before the same broker.",
}
FABRIC_COUNTER_HELP = {
    "broker_away": "Times that one of several brokers was found to be away.",
    "broker_away_dropped": "QoS 0 messages of clients for a broker that was away, or for none.",
    "broker_away_refused": "QoS 1 and 2 messages of clients refused for the same reasons.",
    "publishes_held_and_left": "Messages of clients that left while their topic was moving.",
    "nobodys_topic": "Messages from links on topics that none of several brokers has.",
    "subscriptions_not_restored": "Filters that a broker refused when it was back.",
    "subscriptions_refused": "Filters that one of several brokers refused and another one granted.",
    "control_ignored": "Control messages that came on a link after it was blocked.",
    "control_received": "Control messages received on links, inter-subscriptions among them.",
    "control_sent": "Control messages that the algorithm sent on links.",
    "echoes_swallowed": "Messages of the node's own that its broker sent back to it.",
    "expired": "Messages whose expiry was over before they were passed on.",
    "given_up": "QoS 1 and 2 messages given up with a neighbor or broker that did not come back.",
    "hops_dropped": "Messages that had crossed more links than the fabric can have on one way.",
    "inject_dropped": "QoS 0 messages from links that the broker could not be given.",
    "inject_refused": "Messages from links that the broker refused.",
    "links_blocked": "Times a link was blocked because it would close a ring.",
    "doubtful_dropped": "Messages that came from where their origin is not, and were dropped.",
    "pending_dropped": "QoS 0 messages dropped because their path was being set up.",
    "published_to_links": "Messages of local clients that were sent to at least one neighbor.",
    "publishers_held": "Times a publisher had to wait because a link was full.",
    "received_from_links": "Messages received on links.",
    "repeated": "Messages that a neighbor repeated and that had been taken before.",
    "rerouted": "Messages that a neighbor had not acknowledged and that went another way.",
    "retain_unavailable": "Retained messages for a broker that keeps none.",
    "retained_known": "Retained messages that came again or were out of date.",
    "retained_found": "Retained messages that the broker had and the fabric did not know.",
    "retained_from_future": "Retained messages that a wrong clock put too far ahead.",
    "retained_given_again": "Retained messages that the broker was asked for and did not have.",
    "retained_postponed": "Retained messages without room, left for the next comparison.",
    "retained_synchronized": "Retained messages learned from a neighbor that joined.",
    "rules_refused": "What neighbors sent or asked for although it may not cross their links.",
    "set_aside": "Messages from links that the broker does not take, kept for inspection.",
    "source_bad": "Packets of the broker that are no messages, and were not taken.",
    "source_doubled": "Messages that the broker delivered twice while filters changed.",
    "source_filters_refused": "Times the broker refused a filter of the node's own.",
    "source_let_go": "Messages acknowledged to the broker while a neighbor did not have them yet.",
    "source_not_taken": "Messages not taken, as another node stands before the same broker.",
    "source_unasked": "Messages of which it was not found out whether they are retained.",
    "taken_from_broker": "Messages that the broker delivered to the node itself.",
    "too_large": "Messages longer than a neighbor takes, and therefore not sent to it.",
    "wills_sent": "Wills sent to neighbors.",
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
        brokers = status.get("brokers", [])
        yield from _brokers(brokers)
        for section in ("broker", "sessions", "routes", "loop", "state"):
            if section == "broker" and brokers:
                continue  # each has its own
            for name, value in status.get(section, {}).items():
                if isinstance(value, (bool, int, float)):
                    text = GAUGE_HELP.get(f"{section}_{name}", f"{name} of {section}, now.")
                    yield _gauge(f"{section}_{name}", text, value)
        if source := status.get("broker", {}).get("source"):
            values = {
                **source,
                "refused": len(source["refused"]),
                "stopped": bool(source["problem"]),
            }
            for name, text in SOURCE_HELP.items():
                yield _gauge(f"source_{name}", text, values[name])
        for name, value in status.get("counters", {}).items():
            yield _counter(name, value)
        yield _counter("refusals", status.get("refusals", {}))
        if "fabric" in status:
            yield from _fabric(status["fabric"])

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: registering must not ask the node."""
        return iter(())


def _brokers(brokers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Of each of several, by name."""
    for name in BROKER_GAUGES if brokers else ():
        text = GAUGE_HELP[f"broker_{name}"]
        gauge = GaugeMetricFamily(f"isthmus_broker_{name}", text, labels=["broker"])
        for broker in brokers:
            value = broker[name]
            gauge.add_metric([broker["name"]], float(value != "" if name == "away" else value))
        yield gauge


def _gauge(name: str, documentation: str, value: Any) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"isthmus_{name}", documentation, value=float(value))


def _counter(name: str, value: Any) -> CounterMetricFamily:
    text = COUNTER_HELP.get(name) or FABRIC_COUNTER_HELP.get(name.removeprefix("fabric_"))
    text = text or f"{name.replace('_', ' ').capitalize()} since the start."
    if not isinstance(value, Mapping):
        return CounterMetricFamily(f"isthmus_{name}", text, value=value)
    family = CounterMetricFamily(f"isthmus_{name}", text, labels=["cause"])
    for cause, count in value.items():
        family.add_metric([str(cause)], count)
    return family


def _fabric(fabric: Mapping[str, Any]) -> Iterator[Metric]:
    links = fabric.get("links", [])
    for name, text in LINK_HELP.items():
        gauge = GaugeMetricFamily(f"isthmus_link_{name}", text, labels=["neighbor"])
        for link in links:
            gauge.add_metric([link["neighbor"]], float(_link_value(link, name)))
        yield gauge
    for name, text in LINK_COUNTER_HELP.items():
        counter = CounterMetricFamily(f"isthmus_link_{name}", text, labels=["neighbor"])
        for link in links:
            counter.add_metric([link["neighbor"]], link.get(name, 0))
        yield counter
    yield _counter("link_refusals", fabric.get("refusals", {}))
    discovery = fabric.get("discovery", {})
    for name, none in (("announced", 0), ("heard", 0), ("ignored", {})):
        yield _counter(f"discovery_{name}", discovery.get(name, none))
    topology, retained = fabric.get("topology", {}), fabric.get("retained", {})
    wills, apart = fabric.get("wills", {}), fabric.get("apart", [])
    values = {
        "nodes": len(topology.get("nodes", [])),
        "rings": topology.get("rings_total", len(topology.get("rings", []))),
        "peers": len(fabric.get("peers", [])),
        "retained_topics": retained.get("topics", 0),
        "retained_bytes": retained.get("bytes", 0),
        "retained_owed": retained.get("owed", 0),
        "apart_destinations": len(apart),
        "apart_messages": sum(each["messages"] for each in apart),
        "apart_bytes": sum(each["bytes"] for each in apart),
        "apart_blocked": any(each["problem"] for each in apart),
        "wills_armed": wills.get("armed", 0),
        "wills_waiting": wills.get("waiting", 0),
    }
    for name, value in values.items():
        yield _gauge(f"fabric_{name}", FABRIC_HELP[name], value)
    # Also those that have not happened yet, so that an alert on them works from the start.
    counts = {**dict.fromkeys(FABRIC_COUNTER_HELP, 0), **fabric.get("counters", {})}
    for name, value in counts.items():
        yield _counter(f"fabric_{name}", value)


def _link_value(link: Mapping[str, Any], name: str) -> Any:
    if name == "up":
        return link.get("status") != "down"
    if name == "active":
        return link.get("status") == "active"
    if name == "rules_differ":
        return bool((link.get("rules") or {}).get("differ"))
    if name == "rtt_seconds":
        return link.get("rtt_ms", 0) / 1000
    return link.get(name, 0)


def exposition(node: StatusSource, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that `accept` asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
