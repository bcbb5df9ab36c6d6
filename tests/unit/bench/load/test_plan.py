"""Who plays which client."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.load.plan import plan_clients
from isthmus.bench.scenario import (
    Latency,
    Load,
    Overview,
    Place,
    Scenario,
    ScenarioNode,
    load_scenario,
)

NODES = ("n1", "n2", "n3")

places = st.lists(
    st.builds(
        Place,
        node=st.sampled_from(NODES),
        topic=st.sampled_from(["a", "b", "c"]),
        publishers=st.integers(0, 20),
        subscribers=st.integers(0, 20),
    ),
    max_size=8,
)
latencies = st.one_of(
    st.none(),
    st.builds(
        Latency,
        topic=st.just("fast"),
        publisher=st.sampled_from(NODES),
        subscribers=st.lists(st.sampled_from(NODES), min_size=1, max_size=3).map(tuple),
    ),
)


def scenario_of(place: list[Place], latency: Latency | None) -> Scenario:
    return Scenario(
        scenario=Overview(name="x"),
        load=Load(rate=1.0),
        latency=latency,
        place=tuple(place),
        node=tuple(ScenarioNode(id=node) for node in NODES),
    )


@given(places, latencies, st.integers(1, 5))
def test_every_client_once_and_shared_out_evenly(
    place: list[Place], latency: Latency | None, writers: int
) -> None:
    scenario = scenario_of(place, latency)
    names = [f"w{number}" for number in range(writers)]
    plan = plan_clients(scenario, names, "l0")
    assert plan.topics == scenario.topics
    assert [client.client for client in plan.clients] == list(range(len(plan.clients)))
    assert len({client.name for client in plan.clients}) == len(plan.clients)
    asked: Counter[tuple[str, str, str, str]] = Counter()
    for each in place:
        asked["t", "publisher", each.topic, each.node] += each.publishers
        asked["t", "subscriber", each.topic, each.node] += each.subscribers
    if latency is not None:
        asked["l", "publisher", "fast", latency.publisher] += 1
        for node in latency.subscribers:
            asked["l", "subscriber", "fast", node] += 1
    planned = Counter(
        (client.kind, client.role, plan.topics[client.topic], client.node)
        for client in plan.clients
    )
    assert planned == +asked
    for role in ("publisher", "subscriber"):
        dealt = Counter(c.writer for c in plan.clients if c.kind == "t" and c.role == role)
        counts = [dealt[name] for name in names]
        assert max(counts) - min(counts) <= 1
    assert all(client.writer == "l0" for client in plan.clients if client.kind == "l")
    assert "l0" not in {client.writer for client in plan.clients if client.kind == "t"}
    assert sorted(c.client for writer in plan.writers for c in plan.of(writer)) == [
        client.client for client in plan.clients
    ]
    assert plan_clients(scenario, names, "l0") == plan


@pytest.mark.parametrize(
    ("name", "l_subscribers"), [("single", 1), ("A", 1), ("B", 5), ("C", 5), ("D", 5)]
)
def test_the_papers_patterns(name: str, l_subscribers: int) -> None:
    plan = plan_clients(load_scenario(name), ["w0", "w1"], "l0")
    kinds = Counter((client.kind, client.role) for client in plan.clients)
    assert kinds == {
        ("t", "publisher"): 50,
        ("t", "subscriber"): 50,
        ("l", "publisher"): 1,
        ("l", "subscriber"): l_subscribers,
    }
    assert plan.writers == ("w0", "w1", "l0")
    assert Counter(client.writer for client in plan.clients)["w0"] == 50
