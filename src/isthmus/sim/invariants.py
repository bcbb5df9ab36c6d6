"""What must hold of a fabric at rest, computed from scratch.

Each check raises `Violation` with what is and what should be.  They read the nodes' own objects but
share no computation with them: trees by search.  An algorithm's own are beside the algorithm
(`CooperationAlgorithm.check_at_rest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from isthmus.cooperation.api import AtRest, SessionInfo, SessionKind
from isthmus.exchange.client.clients import SAVE_DELAY_S
from isthmus.exchange.retained.values import Version
from isthmus.graph import search
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.topics import matches
from isthmus.sim.fabric import SimFabric
from isthmus.sim.names import has_rules, name_across, names_at
from isthmus.sim.node import SimNode

__all__ = [
    "Violation",
    "check_algorithms",
    "check_at_rest",
    "check_empty",
    "check_local_interest",
    "check_retained",
    "check_topology",
]


class Violation(AssertionError):
    """An invariant does not hold."""


def check_at_rest(
    fabric: SimFabric, *, retained: bool = True, deleted: Collection[str] = ()
) -> Counter[str]:
    """Everything that holds when all nodes run, nothing is cut and nothing happens any more.

    `deleted` are topics of which a retained message was deleted at one time.  Returns what the
    algorithm has `AtRest.checked`.
    """
    if fabric.trace.accusations:
        raise Violation(f"protocol errors between honest nodes: {fabric.trace.accusations[:3]}")
    check_topology(fabric)
    check_local_interest(fabric)
    checked = check_algorithms(fabric)
    if retained:
        check_retained(fabric, deleted)
    for node in fabric.nodes.values():
        if refused := node.exchange.counters["rules_refused"]:
            raise Violation(f"{node.name} was sent what may not cross its links {refused} times")
        for link in node.exchange.links:
            if link.state.session and (waiting := link.unacked()):
                raise Violation(
                    f"{node.name} waits for {link.info.name} to acknowledge {waiting} messages"
                )
    return checked


# ---- topology ----------------------------------------------------------------------------


def check_topology(fabric: SimFabric) -> None:
    """Active links have two ends and connect all that is linked.

    They form no ring, or are all that were asked for, as the algorithm's topology is.
    """
    active = fabric.active_links()
    edges = set()
    for name, neighbors in active.items():
        for other in neighbors:
            if name not in active.get(other, ()):
                raise Violation(f"the link {name} - {other} is active at {name} alone")
            edges.add((min(name, other), max(name, other)))
    wanted = fabric.wanted_links()
    if edges - wanted:
        raise Violation(f"active links that nobody asked for: {sorted(edges - wanted)}")
    for name in active:
        reached, linked = set(search(edges, name)), set(search(wanted, name))
        if reached != linked:
            raise Violation(
                f"{name} reaches {sorted(reached)} but is linked with {sorted(linked)}; "
                f"active: {sorted(edges)}, wanted: {sorted(wanted)}"
            )
        inside = [edge for edge in edges if edge[0] in reached]
        if fabric.topology == "any":
            if missing := {edge for edge in wanted if edge[0] in reached} - edges:
                raise Violation(f"links that are wanted and not active: {sorted(missing)}")
        elif len(inside) != len(reached) - 1:
            raise Violation(f"the active links of {sorted(reached)} form a ring: {sorted(inside)}")


# ---- interest ----------------------------------------------------------------------------


def check_local_interest(fabric: SimFabric) -> None:
    """Each node knows what its clients want: no less, and no more than its broker keeps."""
    for node in fabric.nodes.values():
        known = set(node.exchange.local_filters)
        connected = {
            normal_form(topic_filter)
            for client in node.clients.values()
            for session in node.sessions_of(client.client_id)
            if session.connection is not None
            for topic_filter in session.filters
            if topic_filter in client.wanted  # else it ended it while its connection was broken
        }
        missing = (connected | _kept_for_absent(node)) - known
        if missing and "#" not in known:
            raise Violation(f"{node.name} does not know that its clients want {sorted(missing)}")


def _kept_for_absent(node: SimNode) -> set[str]:
    """What absent clients were granted and nothing can have made the node forget."""
    kept: set[str] = set()
    if node.forgetful:
        return kept
    for client in node.clients.values():
        sessions = node.sessions_of(client.client_id)
        if any(session.connection is not None for session in sessions):
            continue
        held = {each for session in sessions if session.expiry_s for each in session.filters}
        for topic_filter, granted_s in client.granted.items():
            forgotten = any(
                granted_s <= ended_s
                and (not node.state_dir or ended_s < granted_s + 2 * SAVE_DELAY_S)
                for ended_s in node.ended_s
            )
            if not forgotten and topic_filter in held:
                kept.add(normal_form(topic_filter))
    return kept


def check_algorithms(fabric: SimFabric) -> Counter[str]:
    """What the algorithm itself says must hold; returns what it has `AtRest.checked`."""
    active = fabric.active_links()
    edges = {(name, other) for name, others in active.items() for other in others}

    def side(name: str, other: str) -> Iterable[str]:
        return search((edge for edge in edges if set(edge) != {name, other}), name)

    nodes = fabric.nodes
    at_rest = AtRest(
        algorithms={name: nodes[name].algorithm for name in active},
        local_filters={name: nodes[name].exchange.local_filters for name in active},
        links={
            name: {
                other: nodes[name].exchange.links.links[nodes[other].node_id].info
                for other in others
            }
            for name, others in active.items()
        },
        side=side,
    )
    try:
        for kind in {type(algorithm) for algorithm in at_rest.algorithms.values()}:
            kind.check_at_rest(at_rest)
    except AssertionError as error:
        raise Violation(str(error)) from error
    _check_routes_of_all(at_rest)
    return at_rest.checked


def _check_routes_of_all(at_rest: AtRest) -> None:
    """What is said of all topics is what is said of each."""
    here = SessionInfo(-1, SessionKind.LOCAL_CLIENT, "any client")
    for name, algorithm in at_rest.algorithms.items():
        for place in (here, *at_rest.links[name].values()):
            every = algorithm.route_of_all(place)
            if every is None:
                continue
            for topic in ("nobody/has/this", *_like(at_rest.local_filters.values())):
                route = algorithm.route(topic, place, retain=False)
                if (set(route.hops), route.to_local_broker, route.pending) != (
                    set(every.hops),
                    every.to_local_broker,
                    every.pending,
                ):
                    raise Violation(
                        f"{name}: route_of_all({place.name!r}) gives {every}, and route({topic!r}) "
                        f"{route}"
                    )


def _like(wanted: Iterable[Iterable[str]]) -> set[str]:
    """Topics that the filters match, one for each."""
    return {
        topic_filter.replace("+", "x").replace("#", "x")
        for filters in wanted
        for topic_filter in filters
    }


# ---- retained ----------------------------------------------------------------------------


def check_retained(fabric: SimFabric, deleted: Collection[str] = ()) -> None:
    """Brokers that are connected hold the same retained messages, as far as they may cross.

    With ``source = "broker"`` of topics that both nodes are subscribed to, and of which none was
    deleted: nobody may have wanted to know.
    """
    if fabric.routes_retained:
        _check_retained_wanted(fabric)
        return
    if has_rules(fabric):
        _check_retained_across(fabric, deleted)
        return
    wanted = fabric.wanted_links()
    for name, node in fabric.nodes.items():
        for other in sorted(search(wanted, name)):
            pair = (node, fabric.nodes[other])
            mine, theirs = (
                {
                    topic: publish.payload
                    for topic, publish in each.retained.items()
                    if all(_takes(one, topic, deleted) for one in pair)
                }
                for each in pair
            )
            if mine != theirs:
                differ = {
                    topic: (mine.get(topic), theirs.get(topic))
                    for topic in sorted(mine.keys() | theirs.keys())
                    if mine.get(topic) != theirs.get(topic)
                }
                raise Violation(f"retained messages of {name} and {other} differ: {differ}")


def _takes(node: SimNode, topic: str, deleted: Collection[str]) -> bool:
    source = node.host.own.source if node.host is not None else None
    return source is None or (topic not in deleted and source.subscriptions.matches(topic.encode()))


def _check_retained_wanted(fabric: SimFabric) -> None:
    """Of what clients of a broker want it has the newest that there is at any node."""
    for name, node in fabric.nodes.items():
        newest: dict[str, tuple[Version, bytes]] = {}
        for origin in search(fabric.wanted_links(), name):
            other = fabric.nodes[origin].exchange
            for topic in other.retention.store.topics():
                here = names_at(fabric, topic.decode(), origin).get(name)
                found = other.retention.store.get(topic, other.host.wall_ms())
                if here is None or found is None:
                    continue
                if here not in newest or newest[here][0] < found.version:
                    newest[here] = found.version, found.payload
        for topic_, (version, payload) in newest.items():
            if not any(matches(each, topic_) for each in node.exchange.local_filters):
                continue
            held = node.retained.get(topic_)
            if (b"" if held is None else held.payload) != payload:
                raise Violation(
                    f"clients of {name} want {topic_}: its broker has {held}, the newest is "
                    f"{payload!r} of {version}"
                )


def _check_retained_across(fabric: SimFabric, deleted: Collection[str]) -> None:
    """Over each link that it may cross, nobody has anything older than its neighbor."""
    for name, node in fabric.nodes.items():
        store = node.exchange.retention.store
        retained = {
            name_of: publish.payload
            for name_of, publish in node.retained.items()
            if _takes(node, name_of, deleted)
        }
        kept = {
            name_of: each.payload
            for each in store.live(node.exchange.host.wall_ms())
            if _takes(node, name_of := each.topic.decode(), deleted)
        }
        if retained != kept:
            raise Violation(f"{name} keeps {kept} as retained, its broker {retained}")
        for other in sorted(fabric.active_links()[name]):
            theirs = fabric.nodes[other].exchange.retention.store
            for topic in store.topics():
                there = name_across(node, fabric.nodes[other], topic.decode())
                if there is None:
                    continue
                ours, known = store.version(topic), theirs.version(there.encode())
                if known is None or (ours is not None and known < ours):
                    here = f"{topic.decode()} at {name}: {ours}"
                    raise Violation(f"{other} has {known} of {there}, which is {here}")


# ---- nothing left ------------------------------------------------------------------------


def check_empty(fabric: SimFabric) -> None:
    """All clients have left for good: no interest remains anywhere."""
    for node in fabric.nodes.values():
        if left := node.exchange.local_filters:
            raise Violation(f"{node.name} still has interest in {sorted(left)}")
    check_algorithms(fabric)
