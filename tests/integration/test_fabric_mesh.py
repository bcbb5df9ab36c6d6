"""Five real nodes with a link between any two, and an algorithm of the topology `any`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from support.examples import unpack
from support.fabrics import QUICK_LINKS, FabricClient, NodeFabric

NODES = "abcde"
TOPICS = 10


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeFabric]:
    """A star for every topic."""
    plugins = tmp_path / "plugins"
    unpack("isthmus-stars", plugins)
    monkeypatch.setenv("PYTHONPATH", str(plugins), prepend=":")
    with NodeFabric(
        tmp_path,
        list(combinations(NODES, 2)),
        algorithm="stars",
        tapped=False,
        link={**QUICK_LINKS, "hold_s": 2.0},
    ) as made:
        yield made


def gone(fabric: NodeFabric, name: str) -> bool:
    return not fabric.link(name, "c")


def round_of(publishers: dict[str, FabricClient], tag: str) -> set[bytes]:
    """A message of each on every topic at every QoS; what was published."""
    published = set()
    for name, publisher in publishers.items():
        for number in range(TOPICS):
            for qos in (0, 1, 2):
                payload = f"{tag} {name} {number} {qos}".encode()
                publisher.publish(f"t/{number}", payload, qos=qos)
                published.add(payload)
    return published


def test_a_star_for_every_topic_on_five_nodes(fabric: NodeFabric) -> None:
    """Everybody gets everything once, also when a node, the center of some topics, is killed."""
    for name in NODES:
        links = fabric[name].fabric()["links"]
        assert {link["neighbor"] for link in links} == set(NODES) - {name}
        assert {link["status"] for link in links} == {"active"}
    with ExitStack() as stack:
        publishers, subscribers = (
            {name: stack.enter_context(fabric.client(name)) for name in NODES} for _ in range(2)
        )
        for each in subscribers.values():
            each.subscribe("t/#")
        published = round_of(publishers, "first")
        assert len(published) * len(subscribers) == 750
        for each in subscribers.values():
            got = [each.next().payload for _ in published]
            assert set(got) == published
        fabric["c"].kill()
        for name in "abde":
            fabric[name].wait_until(partial(gone, fabric, name))
        del publishers["c"], subscribers["c"]
        published = round_of(publishers, "second")
        for each in subscribers.values():
            got = [each.next().payload for _ in published]
            assert set(got) == published
