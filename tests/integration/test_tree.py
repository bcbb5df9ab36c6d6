"""Real nodes that nobody has told of each other: they find each other and build a tree.

    a ═╦═ b        every node hears every other one in a multicast group on loopback, so links
       ║           are a full mesh, of which the tree is what the nodes make of it
       c           (the slow test has a ring as well, where there are inner nodes for certain)

Under load, nodes are killed: the root, an inner node, a leaf.  What survivors publish reaches all
survivors, and once.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from conftest import require_broker
from isthmus.config.files import load_fabric_config
from isthmus.fabric.processes import Fabric
from isthmus.fabric.view import joined_lines
from support.fabrics import FabricClient, NodeFabric
from support.nodes import NodeProcess, free_port
from support.recording import recorded
from support.steady_load import LoadPublisher, LoadSubscriber
from support.waiting import wait_for

SECRET = "7f3b2a90c1d4e5f6"
RATE_PER_S = 25.0
KILLS = 18
DRAIN_S = 30.0
QUIET_S = 5.0

EXAMPLE = Path(__file__).parents[2] / "examples" / "five-brokers.toml"

Status = dict[str, Any]


def made(
    folder: Path,
    names: str,
    group: int = 0,
    *,
    links: tuple[tuple[str, str], ...] = (),
    secret: str = SECRET,
    algorithm: str = "tree",
) -> NodeFabric:
    """Nodes of those names in the multicast group of that port, or with those links."""
    folder.mkdir(exist_ok=True)
    fabric = NodeFabric(
        folder,
        links,
        names=names,
        algorithm=algorithm,
        tapped=False,
        link={"secret": secret},
    )
    for node in fabric.nodes.values():
        node.tables["cooperation"]["beacon_s"] = 0.5
        if group:
            node.tables["discovery"] = in_group(group)
    return fabric


def in_group(port: int) -> dict[str, Any]:
    return {"group": f"239.255.77.84:{port}", "interface": "127.0.0.1", "ttl": 0}


def trees(*fabrics: NodeFabric) -> dict[str, Status]:
    """By node; those that have built none are left out."""
    found = {
        name: node.fabric()["algorithm"]
        for fabric in fabrics
        for name, node in fabric.nodes.items()
        if node.process is not None and node.process.poll() is None
    }
    return {name: said["tree"] for name, said in found.items() if said["phase"] == "RUNTIME"}


def are_one_tree(names: str, *fabrics: NodeFabric) -> bool:
    """Whether the nodes are in one tree, by what each of them says of itself and its neighbors."""
    of = trees(*fabrics)
    return (
        set(of) == set(names)
        and len({(tree["number"], tree["root"]) for tree in of.values()}) == 1
        and all(set(tree["nodes"]) == set(names) for tree in of.values())
        and [name for name, tree in of.items() if not tree["parent"]] == [of[names[0]]["root"]]
        and all(
            tree["children"] == sorted(child for child in of if of[child]["parent"] == name)
            for name, tree in of.items()
        )
    )


def until_one_tree(names: str, *fabrics: NodeFabric) -> dict[str, Status]:
    wait_for(lambda: are_one_tree(names, *fabrics), 30, f"{names} in one tree", every_s=0.05)
    return trees(*fabrics)


def everything_crosses(names: str, *fabrics: NodeFabric) -> None:
    """A message of each QoS from everybody to everybody, once."""
    of = {name: fabric for fabric in fabrics for name in fabric.nodes}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(of[name].client(name)) for name in names}
        for client in clients.values():
            client.subscribe("t/#")
        for name in names:
            for qos in (0, 1, 2):
                clients[name].publish(f"t/{name}", f"{name}{qos}".encode(), qos)
            clients[name].publish(f"t/{name}", b"end", 2)
        for client in clients.values():
            got: list[bytes] = []
            for _ in names:
                got += [message.payload for message in client.until(b"end")]
            assert sorted(got) == sorted(
                f"{name}{qos}".encode() for name in names for qos in range(3)
            )


# ---- finding each other ----------------------------------------------------------------------


def test_three_nodes_find_each_other_and_a_fourth_one_joins_later(tmp_path: Path) -> None:
    port = free_port()
    with made(tmp_path / "three", "abc", port) as three:
        of = until_one_tree("abc", three)
        everything_crosses("abc", three)
        assert three["a"].fabric()["peers"] or three["b"].fabric()["peers"]
        with made(tmp_path / "fourth", "d", port) as fourth:
            later = until_one_tree("abcd", three, fourth)
            assert later["a"]["number"] > of["a"]["number"]
            everything_crosses("abcd", three, fourth)


def test_who_has_another_secret_is_ignored_and_counted(tmp_path: Path) -> None:
    port = free_port()
    with (
        made(tmp_path / "ours", "ab", port) as ours,
        made(tmp_path / "theirs", "xy", port, secret="another secret of theirs") as theirs,
    ):
        until_one_tree("ab", ours)
        until_one_tree("xy", theirs)
        for fabric in (ours, theirs):
            for node in fabric.nodes.values():
                node.wait_until(lambda n=node: n.fabric()["discovery"]["ignored"].get("stranger"))  # type: ignore[misc]
                assert {link["neighbor"] for link in node.fabric()["links"]} < set(fabric.nodes)
                assert "was not made with this fabric's secret" in node.log()
        everything_crosses("ab", ours)
        assert are_one_tree("ab", ours)


def test_two_nodes_of_one_id_are_told(tmp_path: Path) -> None:
    port = free_port()
    with made(tmp_path / "ours", "ab", port) as ours:
        until_one_tree("ab", ours)
        folder = tmp_path / "second"
        folder.mkdir()
        second = NodeProcess(
            folder,
            ours["a"].tables["broker"]["url"],
            id="a",
            listen={"link": f"127.0.0.1:{free_port()}"},
            link={"secret": SECRET},
            cooperation={"algorithm": "tree", "beacon_s": 0.5},
            discovery=in_group(port),
        )
        try:
            second.start(ready=False)
            for node in (ours["a"], second):
                node.wait_until(lambda n=node: "another node 'a'" in str(n.status()["node"]))  # type: ignore[misc]
                assert not node.is_ready()
        finally:
            second.stop()


def test_five_brokers_of_five_makes_are_one_fabric() -> None:
    """The example of docs/howto/let-nodes-find-each-other.md."""
    config = load_fabric_config(EXAMPLE)
    for node in config.node:
        require_broker(node.broker)
    with Fabric(config) as fabric, ExitStack() as stack:
        names = {node.id for node in config.node}
        assert len({node.broker for node in config.node}) == len(names) == 5
        assert all(set(tree["nodes"]) == names for tree in fabric.joined.trees.values())
        assert len(joined_lines(fabric.joined)) == 6
        clients = {}
        for running in fabric.nodes:
            assert running.broker is not None
            client = stack.enter_context(FabricClient(running.mqtt.port, 4))
            password = (running.broker.password or "").encode()
            login = {"username": running.broker.username, "password": password}
            client.connect(running.id, **(login if running.broker.username else {}))
            client.subscribe("t/#", qos=1)
            clients[running.id] = client
        for name, client in clients.items():
            client.publish(f"t/{name}", name.encode(), 1)
        for client in clients.values():
            assert {client.next().payload.decode() for _ in names} == names


# ---- nodes are killed under load -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Struck:
    """One kill."""

    role: str
    victim: str
    since_s: float
    """All that was sent before has arrived and is acknowledged."""
    killed_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """What one kill did to messages of survivors, each counted for every survivor."""

    links: str
    role: str
    expected: int
    lost: int
    doubled: int
    flowing_s: float
    """From the kill until everybody has had something from everybody that was sent after it."""
    slowest_s: float
    """The longest that one of them took, from when it was sent; also while the node comes back."""


class Load:
    """At each node a publisher of QoS 1, one of QoS 2, and a subscriber."""

    def __init__(self, fabric: NodeFabric) -> None:
        self.publishers = {
            f"{name}{qos}": LoadPublisher(
                f"{name}{qos}", fabric[name].port, f"load/{name}/{qos}", RATE_PER_S, qos
            )
            for name in fabric.nodes
            for qos in (1, 2)
        }
        self.subscribers = {
            name: LoadSubscriber(name, fabric[name].port, "load/#", 2) for name in fabric.nodes
        }

    def ways(self, without: str) -> Iterator[tuple[LoadPublisher, LoadSubscriber]]:
        for publisher in self.publishers.values():
            for name, subscriber in self.subscribers.items():
                if without not in (name, publisher.name[:-1]):
                    yield publisher, subscriber

    def first_after(self, since_s: float, without: str = "") -> float | None:
        """When everybody had something that was sent after `since_s`, from everybody else."""
        firsts_s: list[float] = []
        for publisher, subscriber in self.ways(without):
            begin = bisect_right(publisher.sent, since_s, key=lambda sent: sent.sent_s)
            names = (f"{publisher.name}:{number}" for number in range(begin, len(publisher.sent)))
            first = next((subscriber.got[name] for name in names if name in subscriber.got), None)
            if first is None:
                return None
            firsts_s.append(first[0])
        return max(firsts_s)

    async def until_flowing(self, since_s: float, without: str = "") -> float:
        deadline_s = time.monotonic() + 30
        while (first_s := self.first_after(since_s, without)) is None:
            assert time.monotonic() < deadline_s, "waited 30 s in vain for messages to flow"
            await asyncio.sleep(0.02)
        return first_s

    async def rest(self, fabric: NodeFabric) -> float:
        """Until all that was sent is acknowledged by everybody, and messages flow again.

        Where a node was dead, those before it wait for it to acknowledge what has come meanwhile:
        if they were killed before, they would be given it again.
        """

        def unacknowledged() -> int:
            links = (link for node in fabric.nodes.values() for link in node.fabric()["links"])
            return sum(link["unacknowledged"] for link in links)

        for publisher in self.publishers.values():
            publisher.resting = True
        deadline_s = time.monotonic() + 30
        while any(each.awaits for each in self.publishers.values()) or (
            await asyncio.to_thread(unacknowledged) > 0
        ):
            assert time.monotonic() < deadline_s, "waited 30 s in vain for acknowledgments"
            await asyncio.sleep(0.05)
        since_s = time.monotonic()
        for publisher in self.publishers.values():
            publisher.resting = False
        await self.until_flowing(since_s)
        return since_s

    def missing(self) -> int:
        """Of what was acknowledged; some of it may be lost, if its node was killed."""
        return sum(
            f"{publisher.name}:{number}" not in subscriber.got
            for publisher, subscriber in self.ways("")
            for number, sent in enumerate(publisher.sent)
            if sent.acknowledged_s is not None
        )

    async def drain(self) -> None:
        """Until nothing is missing, or nothing has come for a while."""
        for publisher in self.publishers.values():
            publisher.stopping = True
        since_s, before = time.monotonic(), -1
        deadline_s = since_s + DRAIN_S
        while time.monotonic() < min(deadline_s, since_s + QUIET_S):
            await asyncio.sleep(0.1)
            done = all(publisher.done for publisher in self.publishers.values())
            if (missing := self.missing()) == 0 and done:
                return
            if missing != before or not done:
                since_s, before = time.monotonic(), missing


def chosen(role: str, fabric: NodeFabric) -> str:
    """A node of that role in the tree; empty if there is none."""
    for name, tree in trees(fabric).items():
        has = "root" if not tree["parent"] else "inner" if tree["children"] else "leaf"
        if has == role:
            return name
    return ""


async def killed_in_turn(fabric: NodeFabric, roles: Iterable[str]) -> tuple[Load, list[Struck]]:
    """Under load: a node is killed, the others go on without it, and it comes back."""
    load, struck, names = Load(fabric), [], "".join(fabric.nodes)
    tasks = [asyncio.create_task(each.run()) for each in load.subscribers.values()]
    try:
        for subscriber in load.subscribers.values():
            await asyncio.wait_for(subscriber.subscribed.wait(), 20)
        tasks += [asyncio.create_task(each.run()) for each in load.publishers.values()]
        await load.until_flowing(0.0)
        for role in roles:
            since_s = await load.rest(fabric)
            if not (victim := await asyncio.to_thread(chosen, role, fabric)):
                continue  # in a mesh nobody may be an inner node
            struck.append(Struck(role, victim, since_s, time.monotonic()))
            await asyncio.to_thread(fabric[victim].kill)
            await load.until_flowing(time.monotonic(), victim)
            await asyncio.to_thread(until_one_tree, names.replace(victim, ""), fabric)
            await asyncio.to_thread(fabric[victim].start)
            await asyncio.to_thread(until_one_tree, names, fabric)
            await load.until_flowing(time.monotonic())
        await load.drain()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return load, struck


def account(links: str, load: Load, struck: Struck, end_s: float) -> Account:
    expected = lost = doubled = 0
    slowest_s = 0.0
    for publisher, subscriber in load.ways(struck.victim):
        for number, sent in enumerate(publisher.sent):
            if sent.acknowledged_s is None or not struck.since_s <= sent.sent_s < end_s:
                continue
            times = subscriber.got.get(f"{publisher.name}:{number}", ())
            expected += 1
            lost += not times
            doubled += max(0, len(times) - 1)
            slowest_s = max(slowest_s, *(each_s - sent.sent_s for each_s in times), 0.0)
    first_s = load.first_after(struck.killed_s, struck.victim) or end_s
    flowing_s = round(first_s - struck.killed_s, 2)
    return Account(links, struck.role, expected, lost, doubled, flowing_s, round(slowest_s, 2))


def survived(fabric: NodeFabric, roles: Iterable[str], links: str) -> list[Account]:
    """Nothing of the survivors' is lost or comes twice; an account for each kill."""
    with fabric:
        try:
            until_one_tree("".join(fabric.nodes), fabric)
            load, struck = asyncio.run(killed_in_turn(fabric, roles))
        except BaseException:
            for node in fabric.nodes.values():
                print(f"---- {node.id}\n{node.log()}")
            raise
    ends_s = [*(each.since_s for each in struck[1:]), time.monotonic()]
    found = [account(links, load, *each) for each in zip(struck, ends_s, strict=True)]
    for each in found:
        print(json.dumps(asdict(each)))
        assert each.expected, each
        assert (each.lost, each.doubled) == (0, 0), each
    return found


@pytest.mark.parametrize("algorithm", ["tree", "routed-tree"])
def test_the_root_and_a_leaf_are_killed_under_load(tmp_path: Path, algorithm: str) -> None:
    fabric = made(tmp_path, "abc", free_port(), algorithm=algorithm)
    accounts = survived(fabric, ("root", "leaf"), "mesh")
    assert [each.role for each in accounts] == ["root", "leaf"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kind_of_node_is_killed_dozens_of_times(tmp_path: Path) -> None:
    """Nodes that were found, and a ring: there, each tree has inner nodes."""
    ring = tuple((one, "abcde"[(at + 1) % 5]) for at, one in enumerate("abcde"))
    turns = tuple(islice(cycle(("root", "inner", "leaf")), KILLS))
    runs: list[dict[str, Any]] = []
    for algorithm in ("tree", "routed-tree", "topic-tree"):
        folder = tmp_path / algorithm
        folder.mkdir()
        mesh = made(folder / "mesh", "abcde", free_port(), algorithm=algorithm)
        accounts = survived(mesh, turns, "mesh")
        over_ring = made(folder / "ring", "abcde", links=ring, algorithm=algorithm)
        accounts += survived(over_ring, turns, "ring")
        roles = Counter(each.role for each in accounts)
        assert min(roles["root"], roles["inner"], roles["leaf"]) >= KILLS // 3
        runs.append({"algorithm": algorithm, "kills": [asdict(each) for each in accounts]})
    if "KILL_TREE_RECORD" in os.environ:
        plan = {"nodes": 5, "publishers": 10, "messages_per_s_and_publisher": RATE_PER_S}
        Path(os.environ["KILL_TREE_RECORD"]).write_text(recorded(plan, runs))
