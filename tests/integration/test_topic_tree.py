"""Real nodes with an overlay for each topic: what crosses the links between them, counted there.

a ─── b        each link has a tap in it; a and c have clients for `t/1`, b has none
 \\   /
   c
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from support.fabrics import FabricClient, NodeFabric
from support.waiting import wait_for

NAMES = "abc"
MESSAGES = 10


def overlays(fabric: NodeFabric, topic: str) -> dict[str, list[str]]:
    """The t-ORT of a topic, at nodes that have one."""
    tables = {name: node.fabric()["algorithm"]["t_ort"] for name, node in fabric.nodes.items()}
    return {name: sorted(table[topic]) for name, table in tables.items() if topic in table}


def crossed(fabric: NodeFabric) -> Counter[tuple[str, str, str]]:
    """How many messages of which topic each node has sent to each other one."""
    return Counter(
        (each.sender, tap.other(each.sender), each.about)
        for tap in fabric.taps.values()
        for each in tap.passed()
        if each.kind == "publish"
    )


def test_only_what_somebody_wants_crosses_links_and_what_is_local_crosses_none(
    tmp_path: Path,
) -> None:
    fabric = NodeFabric(
        tmp_path,
        list(combinations(NAMES, 2)),
        algorithm="topic-tree",
        link={"lanes": 1},  # so that nothing comes after the last message
    )
    with fabric, ExitStack() as stack:
        fabric.settle()
        clients: dict[str, FabricClient] = {
            name: stack.enter_context(fabric.client(name)) for name in NAMES
        }
        for name, client in clients.items():
            client.subscribe("all", f"local/{name}/#")
        for name in "ac":
            clients[name].subscribe("t/+")
        clients["a"].publish("all", b"begin", 1)
        clients["a"].publish("t/1", b"begin", 1)
        wait_for(lambda: set(overlays(fabric, "all")) == set(NAMES), 30, "an overlay of all")
        wait_for(
            lambda: overlays(fabric, "t/1") == {"a": ["c"], "c": ["a"]}, 30, "the overlay of t/1"
        )
        for name, client in clients.items():
            for _ in ("all", "t/1") if name in "ac" else ("all",):
                assert client.next().payload == b"begin"
        before = crossed(fabric)

        for number in range(MESSAGES):
            for qos in (0, 1, 2):
                for name, client in clients.items():  # at 100 % locality
                    client.publish(f"local/{name}/{qos}", b"%d" % number, qos)
                clients["a"].publish("t/1", b"%d" % number, qos)
        for name in NAMES:
            clients[name].publish("all", name.encode(), 1)
        got = {name: Counter[str]() for name in NAMES}
        for name, client in clients.items():
            while got[name]["all"] < len(NAMES):
                got[name][client.next().topic] += 1
        local = {
            name: {f"local/{name}/{qos}": MESSAGES for qos in (0, 1, 2)} | {"all": len(NAMES)}
            for name in NAMES
        }
        local["a"]["t/1"] = local["c"]["t/1"] = 3 * MESSAGES
        assert got == {name: Counter(each) for name, each in local.items()}
        since = crossed(fabric) - before
        assert {way: count for way, count in since.items() if way[2] != "all"} == {
            ("a", "c", "t/1"): 3 * MESSAGES
        }
