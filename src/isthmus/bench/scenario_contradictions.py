"""The mistakes that lie between the keys of a scenario, or that only MQTT knows.

`scenario_contradictions` looks at the raw tables, whose values may be of any type, and passes over
what the fields themselves already report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from isthmus.bench.scenario import Latency, Overview, ScenarioNode
from isthmus.config.addresses import Address
from isthmus.config.contradictions import fabric_contradictions, option_contradictions
from isthmus.config.faults import fault_contradictions
from isthmus.config.mistakes import Mistakes, Table, known_names, raw_table, raw_tables, same_ids
from isthmus.errors import RemoteProtocolError
from isthmus.graph import search
from isthmus.mqtt.filters.topics import check_topic_name

__all__ = ["scenario_contradictions", "started_contradictions", "too_short"]

DEFAULT_DURATION_S = Overview.model_fields["duration_s"].default
DEFAULT_TRIM_S = Overview.model_fields["trim_s"].default
DEFAULT_BROKER = ScenarioNode.model_fields["broker"].default
DEFAULT_LATENCY_TOPIC = Latency.model_fields["topic"].default


def scenario_contradictions(data: Table) -> Mistakes:
    """Everything that two keys of a scenario say against each other."""
    overview = raw_table(data, "scenario")
    duration = overview.get("duration_s", DEFAULT_DURATION_S)
    trim = overview.get("trim_s", DEFAULT_TRIM_S)
    if _are_numbers(duration, trim) and (problem := too_short(duration, trim)):
        yield ("scenario", "trim_s" if "trim_s" in overview else "duration_s"), problem
    load = raw_table(data, "load")
    if ("interval_ms" in load) == ("rate" in load):
        problem = "both say how often" if "rate" in load else "is required, or rate"
        yield ("load", "interval_ms"), f"{problem}; give one of them, like interval_ms = 10.0"
    nodes, places = raw_tables(data, "node"), raw_tables(data, "place")
    yield from _nodes(nodes)
    yield from fabric_contradictions(_fabric(data))
    yield from option_contradictions(data)
    ids = _ids(nodes)
    yield from _places(places, ids)
    latency = raw_table(data, "latency")
    yield from _latency(latency, ids, {place.get("topic") for _, place in _of_text(places)})
    if not any(place.get("publishers") for _, place in places) and not latency:
        yield ("place",), "nobody publishes; give a [[place]] publishers = 10"
    yield from _apart(data, places, latency)
    by_id = _by_id(nodes)
    yield from _emulated_links(raw_tables(raw_table(data, "emulation"), "link"), by_id)
    yield from fault_contradictions(data, partial(_no_line_to, by_id=by_id), duration)
    if raw_tables(data, "cut") and raw_table(data, "link", "tls"):
        problem = "hides which node calls which, so that nothing can be cut between two of them"
        yield ("link", "tls"), f"{problem}; remove it, or every [[cut]]"


def started_contradictions(data: Table) -> Mistakes:
    """What only ``isthmus bench run`` takes: nodes that run already, and brokers without a node."""
    for index, node in raw_tables(data, "node"):
        if "address" in node:
            yield (
                ("node", index, "address"),
                "of one that runs already is for `isthmus bench` alone",
            )
        elif node.get("with_node") is False:
            problem = "a broker without a node is for `isthmus bench` alone; remove this"
            yield ("node", index, "with_node"), problem


def too_short(duration_s: float, trim_s: float) -> str:
    """What is wrong if nothing is left of the duration when both its ends are cut."""
    if 2 * trim_s < duration_s:
        return ""
    return (
        f"{trim_s:g} s cut at each end leave nothing of {duration_s:g} s; "
        f"at most {duration_s / 4:g} is sensible"
    )


def _fabric(data: Table) -> Table:
    """The file as a fabric's: what runs already is none of its nodes, and takes no place there."""
    nodes = data.get("node")
    if not isinstance(nodes, list):
        return data
    started = [
        {"broker": DEFAULT_BROKER, **node}
        if isinstance(node, Mapping) and "address" not in node
        else None
        for node in nodes
    ]
    return {**data, "node": started}


def _nodes(nodes: list[tuple[int, Table]]) -> Mistakes:
    yield from same_ids("node", nodes)
    by_id = _by_id(nodes)
    for index, node in nodes:
        for problem in _wrong_peers(node, by_id):
            yield ("node", index, "peers"), problem
            break  # one line of the file, one mistake at a time
        broker = node.get("broker")
        if node.get("with_node") is False and str(broker).startswith("mqtts:"):
            yield (
                ("node", index, "broker"),
                f'the load tool speaks no TLS, so it cannot load "{broker}"; give a mqtt:// URL, '
                "or remove with_node = false",
            )
        if "address" not in node:
            continue
        for key in ("address", "admin"):
            if _port(node.get(key)) == 0:
                yield ("node", index, key), f'"{node[key]}" has no port to connect to'
        for key in ("mqtt", "ws", "link", "password_file"):
            if key in node:
                problem = "is for one that is started here; remove it, or the address"
                yield ("node", index, key), problem
        if "password" in node and "username" not in node:
            yield ("node", index, "username"), "is required because there is a password"


def _wrong_peers(node: Table, by_id: Mapping[str, Table]) -> Iterator[str]:
    peers = node.get("peers")
    if not isinstance(peers, list) or not peers:
        return
    if node.get("with_node") is False:
        yield "a bare broker has no links; remove with_node = false, or the peers"
    if "address" in node:
        yield "what runs already is linked by its own node's file; remove the peers"
    seen: set[str] = set()
    for peer in (peer for peer in peers if isinstance(peer, str)):
        if peer in seen:
            yield f'"{peer}" is named twice; remove one of the two'
        seen.add(peer)
        if peer == node.get("id"):
            yield f'"{peer}" is this node itself; name another one'
        elif (other := by_id.get(peer)) is None:
            yield _no_node(peer, [name for name in by_id if name != node.get("id")])
        elif other.get("with_node") is False:
            yield f'"{peer}" is a bare broker, which has no links; remove its with_node = false'
        elif "address" in other:
            yield f'"{peer}" runs already and is linked by its own node\'s file; remove it here'


def _emulated_links(links: list[tuple[int, Table]], by_id: Mapping[str, Table]) -> Mistakes:
    first: dict[frozenset[str], int] = {}
    for index, link in links:
        if not link.keys() & {"delay_ms", "mbit_s", "back_delay_ms", "back_mbit_s"}:
            problem = "says nothing of this line; give delay_ms = 20.0 or mbit_s = 10.0"
            yield ("emulation", "link", index), problem
        pair = link.get("between")
        if not isinstance(pair, list) or not all(isinstance(each, str) for each in pair):
            continue
        key = ("emulation", "link", index, "between")
        wrong = [problem for name in pair if (problem := _no_line_to(name, by_id))]
        if wrong:
            yield key, wrong[0]
        elif len(pair) != 2:
            pass  # already reported by the field itself
        elif pair[0] == pair[1]:
            yield key, f'"{pair[0]}" is named twice; name the two nodes that the line joins'
        elif first.setdefault(frozenset(pair), index) != index:
            earlier = f"emulation.link[{first[frozenset(pair)]}]"
            yield (
                key,
                f"{earlier} is already the line between {pair[0]} and {pair[1]}; its back_delay_ms "
                "and back_mbit_s are for the other direction",
            )


def _no_line_to(name: str, by_id: Mapping[str, Table]) -> str:
    node = by_id.get(name)
    if node is None:
        return _no_node(name, list(by_id))
    if node.get("with_node") is False:
        return f'"{name}" is a bare broker, which has no links; remove its with_node = false'
    if "address" in node:
        return f'"{name}" runs already, and only what is started here is emulated; remove it here'
    return ""


def _places(places: list[tuple[int, Table]], ids: list[str]) -> Mistakes:
    for index, place in places:
        node = place.get("node")
        if isinstance(node, str) and node not in ids:
            yield ("place", index, "node"), _no_node(node, ids)
        if not place.get("publishers") and not place.get("subscribers"):
            yield ("place", index), "places nobody; give publishers = 10 or subscribers = 10"
        if problem := _wrong_topic(place.get("topic")):
            yield ("place", index, "topic"), problem


def _latency(latency: Table, ids: list[str], topics: set[Any]) -> Mistakes:
    named = latency.get("subscribers")
    for key, nodes in (
        ("publisher", [latency.get("publisher")]),
        ("subscribers", named if isinstance(named, list) else []),
    ):
        for node in nodes:
            if isinstance(node, str) and node not in ids:
                yield ("latency", key), _no_node(node, ids)
                break
    topic = latency.get("topic", DEFAULT_LATENCY_TOPIC)
    if latency and isinstance(topic, str) and topic in topics:
        yield ("latency", "topic"), f'"{topic}" is a topic of t-clients; l-clients need their own'
    if problem := _wrong_topic(topic):
        yield ("latency", "topic"), problem


def _apart(data: Table, places: list[tuple[int, Table]], latency: Table) -> Mistakes:
    """Subscribers that no message of their topic can reach; unknown for what runs already."""
    finds = "group" in raw_table(data, "discovery")
    part = _parts(raw_tables(data, "node"), finds=finds)
    publishers: dict[str, list[str]] = {}
    for _, place in _of_text(places):
        if place.get("publishers") and place["node"] in part:
            publishers.setdefault(place["topic"], []).append(place["node"])
    for index, place in _of_text(places):
        if not place.get("subscribers") or place["node"] not in part:
            continue
        for node in publishers.get(place["topic"], ()):
            if part[node] != part[place["node"]]:
                problem = _not_joined(node, place["node"], place["topic"])
                yield ("place", index, "topic"), problem
                break
    source, named = latency.get("publisher"), latency.get("subscribers")
    if isinstance(source, str) and source in part and isinstance(named, list):
        for node in named:
            if isinstance(node, str) and part.get(node, part[source]) != part[source]:
                topic = latency.get("topic", DEFAULT_LATENCY_TOPIC)
                yield ("latency", "subscribers"), _not_joined(source, node, topic)
                break


def _parts(nodes: list[tuple[int, Table]], *, finds: bool) -> dict[str, str]:
    """Which nodes are joined: each one's id to the least id of its part.

    If each `finds` the others, all are, but for bare brokers.
    """
    started = {node["id"]: node for _, node in nodes if _is_named(node) and "address" not in node}
    links = [
        (identity, peer)
        for identity, node in started.items()
        for peers in [node.get("peers")]
        for peer in (peers if isinstance(peers, list) else ())
        if isinstance(peer, str) and peer in started
    ]
    if finds:
        found = [name for name, node in started.items() if node.get("with_node") is not False]
        links += pairwise(found)
    return {identity: min(search(links, identity)) for identity in started}


def _not_joined(source: str, node: str, topic: object) -> str:
    return (
        f'"{topic}" is published at {source}, but no links lead from there to {node}; '
        "join them by peers or [discovery]"
    )


def _no_node(name: str, known: list[str]) -> str:
    return f'there is no [[node]] "{name}"{known_names(name, known)}'


def _wrong_topic(topic: object) -> str:
    if not isinstance(topic, str) or not topic:
        return ""
    try:
        check_topic_name(topic)
    except RemoteProtocolError as error:
        return error.problem
    if topic.startswith("$"):
        return f'"{topic}" begins with $, which brokers keep for themselves; leave it out'
    return ""


def _port(address: object) -> int | None:
    try:
        return Address.parse(address).port if isinstance(address, str) else None
    except ValueError:
        return None  # already reported by the field itself


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _ids(nodes: list[tuple[int, Table]]) -> list[str]:
    return [node["id"] for _, node in nodes if _is_named(node)]


def _by_id(nodes: list[tuple[int, Table]]) -> dict[str, Table]:
    """The first node of each id."""
    by_id: dict[str, Table] = {}
    for _, node in nodes:
        if _is_named(node):
            by_id.setdefault(node["id"], node)
    return by_id


def _is_named(node: Table) -> bool:
    return isinstance(node.get("id"), str)


def _of_text(places: list[tuple[int, Table]]) -> list[tuple[int, Table]]:
    """Those whose node and topic are texts, as they must be."""
    return [
        (index, place)
        for index, place in places
        if isinstance(place.get("node"), str) and isinstance(place.get("topic"), str)
    ]
