"""The mistakes that lie between the keys of a scenario, or that only MQTT knows.

`scenario_contradictions` looks at the raw tables, whose values may be of any type, and passes over
what the fields themselves already report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isthmus.bench.scenario import Latency, Overview
from isthmus.config.addresses import Address
from isthmus.config.mistakes import Mistakes, Table, known_names, raw_table, raw_tables, same_ids
from isthmus.errors import RemoteProtocolError
from isthmus.graph import search
from isthmus.mqtt.filters.topics import check_topic_name

__all__ = ["scenario_contradictions", "too_short"]

DEFAULT_DURATION_S = Overview.model_fields["duration_s"].default
DEFAULT_TRIM_S = Overview.model_fields["trim_s"].default
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
    servers, places = raw_tables(data, "server"), raw_tables(data, "place")
    yield from _servers(servers)
    if data.get("algorithm") == "none" and any(server.get("peers") for _, server in servers):
        yield (
            ("algorithm",),
            '"none" passes no message to a peer, but there are peers; write "sf" or "pf", or '
            "remove the peers",
        )
    ids = _ids(servers)
    yield from _places(places, ids)
    latency = raw_table(data, "latency")
    yield from _latency(latency, ids, {place.get("topic") for _, place in _of_text(places)})
    if not any(place.get("publishers") for _, place in places) and not latency:
        yield ("place",), "nobody publishes; give a [[place]] publishers = 10"
    yield from _apart(servers, places, latency)
    yield from _emulated_links(raw_tables(raw_table(data, "emulation"), "link"), _by_id(servers))


def too_short(duration_s: float, trim_s: float) -> str:
    """What is wrong if nothing is left of the duration when both its ends are cut."""
    if 2 * trim_s < duration_s:
        return ""
    return (
        f"{trim_s:g} s cut at each end leave nothing of {duration_s:g} s; "
        f"at most {duration_s / 4:g} is sensible"
    )


def _servers(servers: list[tuple[int, Table]]) -> Mistakes:
    yield from same_ids("server", servers)
    by_id = _by_id(servers)
    for index, server in servers:
        for problem in _wrong_peers(server, by_id):
            yield ("server", index, "peers"), problem
            break  # one line of the file, one mistake at a time
        broker = server.get("broker")
        if server.get("with_node") is False and str(broker).startswith("mqtts:"):
            yield (
                ("server", index, "broker"),
                f'the load tool speaks no TLS, so it cannot load "{broker}"; give a mqtt:// URL, '
                "or remove with_node = false",
            )
        for key in ("address", "admin"):
            if _port(server.get(key)) == 0:
                yield ("server", index, key), f'"{server[key]}" has no port to connect to'
        if "address" not in server:
            for key in ("admin", "username", "password"):
                if key in server:
                    yield (
                        ("server", index, key),
                        "is for one that runs already; give its address too",
                    )
                    break
        elif "password" in server and "username" not in server:
            yield ("server", index, "username"), "is required because there is a password"


def _wrong_peers(server: Table, by_id: Mapping[str, Table]) -> Iterator[str]:
    peers = server.get("peers")
    if not isinstance(peers, list) or not peers:
        return
    if server.get("with_node") is False:
        yield "a bare broker has no links; remove with_node = false, or the peers"
    if "address" in server:
        yield "what runs already is linked by its own node's file; remove the peers"
    seen: set[str] = set()
    for peer in (peer for peer in peers if isinstance(peer, str)):
        if peer in seen:
            yield f'"{peer}" is named twice; remove one of the two'
        seen.add(peer)
        if peer == server.get("id"):
            yield f'"{peer}" is this server itself; name another one'
        elif (other := by_id.get(peer)) is None:
            yield _no_server(peer, [name for name in by_id if name != server.get("id")])
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
            yield key, f'"{pair[0]}" is named twice; name the two servers that the line joins'
        elif first.setdefault(frozenset(pair), index) != index:
            earlier = f"emulation.link[{first[frozenset(pair)]}]"
            yield (
                key,
                f"{earlier} is already the line between {pair[0]} and {pair[1]}; its back_delay_ms "
                "and back_mbit_s are for the other direction",
            )


def _no_line_to(name: str, by_id: Mapping[str, Table]) -> str:
    server = by_id.get(name)
    if server is None:
        return _no_server(name, list(by_id))
    if server.get("with_node") is False:
        return f'"{name}" is a bare broker, which has no links; remove its with_node = false'
    if "address" in server:
        return f'"{name}" runs already, and only what is started here is emulated; remove it here'
    return ""


def _places(places: list[tuple[int, Table]], ids: list[str]) -> Mistakes:
    for index, place in places:
        node = place.get("node")
        if isinstance(node, str) and node not in ids:
            yield ("place", index, "node"), _no_server(node, ids)
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
                yield ("latency", key), _no_server(node, ids)
                break
    topic = latency.get("topic", DEFAULT_LATENCY_TOPIC)
    if latency and isinstance(topic, str) and topic in topics:
        yield ("latency", "topic"), f'"{topic}" is a topic of t-clients; l-clients need their own'
    if problem := _wrong_topic(topic):
        yield ("latency", "topic"), problem


def _apart(
    servers: list[tuple[int, Table]], places: list[tuple[int, Table]], latency: Table
) -> Mistakes:
    """Subscribers that no message of their topic can reach; unknown for what runs already."""
    part = _parts(servers)
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


def _parts(servers: list[tuple[int, Table]]) -> dict[str, str]:
    """Which servers the links join: each one's id to the least id of its part."""
    started = {
        server["id"]: server
        for _, server in servers
        if _is_named(server) and "address" not in server
    }
    links = [
        (identity, peer)
        for identity, server in started.items()
        for peers in [server.get("peers")]
        for peer in (peers if isinstance(peers, list) else ())
        if isinstance(peer, str) and peer in started
    ]
    return {identity: min(search(links, identity)) for identity in started}


def _not_joined(source: str, node: str, topic: object) -> str:
    return (
        f'"{topic}" is published at {source}, but no links lead from there to {node}; '
        "join them by peers"
    )


def _no_server(name: str, known: list[str]) -> str:
    return f'there is no [[server]] "{name}"{known_names(name, known)}'


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


def _ids(servers: list[tuple[int, Table]]) -> list[str]:
    return [server["id"] for _, server in servers if _is_named(server)]


def _by_id(servers: list[tuple[int, Table]]) -> dict[str, Table]:
    """The first server of each id."""
    by_id: dict[str, Table] = {}
    for _, server in servers:
        if _is_named(server):
            by_id.setdefault(server["id"], server)
    return by_id


def _is_named(server: Table) -> bool:
    return isinstance(server.get("id"), str)


def _of_text(places: list[tuple[int, Table]]) -> list[tuple[int, Table]]:
    """Those whose node and topic are texts, as they must be."""
    return [
        (index, place)
        for index, place in places
        if isinstance(place.get("node"), str) and isinstance(place.get("topic"), str)
    ]
