"""Waves in fabrics of any shape, message by message, in any order that links allow."""

from __future__ import annotations

import random
from collections import deque
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.cooperation.tree.messages import Adopt, Echo, Explore, TreeMessage, Wave
from isthmus.cooperation.tree.wave import Building, Tree
from isthmus.graph import search


class Node:
    """The actions of one node: what it sends goes to a queue of the link."""

    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name
        self.capability = 10
        self.building = Building(name, self)
        self.collecting = False
        self.trees: list[Tree] = []

    def send(self, neighbor: str, message: TreeMessage) -> None:
        self.net.wires[self.name, neighbor].append(message)
        self.net.sent += 1

    def collect(self) -> None:
        self.collecting = True

    def wait(self) -> None:
        pass

    def contradict(self) -> None:
        self.building.begin()

    def adopted(self, tree: Tree) -> None:
        self.trees.append(tree)

    def cost_us(self, neighbor: str) -> int:
        return self.net.costs.get(frozenset((self.name, neighbor)), 1000)

    def candidate(self, number: int) -> Wave:
        address = f"192.0.2.{int(self.name[1:]) + 1}:1890"
        return Wave(number, self.capability, address, self.name, self.net.rng.getrandbits(32))


class Net:
    """Nodes and links; what is on its way arrives in an order that is drawn."""

    def __init__(self, count: int, pairs: list[tuple[int, int]], seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.nodes = {f"n{index}": Node(self, f"n{index}") for index in range(count)}
        self.wires: dict[tuple[str, str], deque[TreeMessage]] = {}
        self.costs: dict[frozenset[str], int] = {}
        self.sent = 0
        for a, b in pairs:
            self.link(f"n{a}", f"n{b}")

    def link(self, a: str, b: str) -> None:
        for one, other in ((a, b), (b, a)):
            self.wires[one, other] = deque()
            self.nodes[one].building.link_up(other)

    def cut(self, a: str, b: str) -> list[str]:
        """Who needed it for a wave in progress."""
        needed = []
        for one, other in ((a, b), (b, a)):
            del self.wires[one, other]
            if self.nodes[one].building.link_down(other):
                needed.append(one)
        return needed

    def begin(self, name: str) -> None:
        self.nodes[name].building.begin()

    def step(self) -> bool:
        """One message arrives, or one node chooses."""
        ready = [wire for wire, waiting in self.wires.items() if waiting]
        choosing = [name for name, node in self.nodes.items() if node.collecting]
        if not ready and not choosing:
            return False
        if choosing and (not ready or self.rng.random() < 0.2):
            node = self.nodes[self.rng.choice(choosing)]
            node.collecting = False
            node.building.collected()
            return True
        a, b = self.rng.choice(ready)
        message, building = self.wires[a, b].popleft(), self.nodes[b].building
        if isinstance(message, Explore):
            building.explored(a, message)
        elif isinstance(message, Echo):
            building.echoed(a, message)
        elif isinstance(message, Adopt):
            building.adopt_arrived(a, message)
        return True

    def run(self) -> None:
        for _ in range(100_000):
            if not self.step():
                return
        raise AssertionError("it does not end")

    def check(self) -> None:
        """One tree over each part of the fabric, and all agree."""
        trees = {name: node.building.tree for name, node in self.nodes.items()}
        for name, tree in trees.items():
            assert tree is not None, name
            assert tree.nodes == set(search(self.wires, name))
            edges = set()
            for other in tree.nodes:
                part = trees[other]
                assert part is not None
                assert part.wave == tree.wave
                edges |= {frozenset((other, each)) for each in part.neighbors}
                for child in part.children:
                    below = trees[child]
                    assert below is not None
                    assert below.parent == other
            assert len(edges) == len(tree.nodes) - 1


def mesh(count: int) -> list[tuple[int, int]]:
    return list(combinations(range(count), 2))


def connected(count: int, extra: int, seed: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    pairs = {(rng.randrange(index), index) for index in range(1, count)}
    others = [pair for pair in mesh(count) if pair not in pairs]
    return [*pairs, *rng.sample(others, min(extra, len(others)))]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 9), st.integers(0, 12), st.integers(0, 10**6), st.data())
def test_all_end_in_one_tree_whoever_begins(
    count: int, extra: int, seed: int, data: st.DataObject
) -> None:
    net = Net(count, connected(count, extra, seed), seed)
    for node in net.nodes.values():
        node.capability = data.draw(st.integers(8, 12))
    for name in data.draw(st.lists(st.sampled_from(sorted(net.nodes)), min_size=1, max_size=4)):
        net.begin(name)
        for _ in range(data.draw(st.integers(0, 20))):
            net.step()
    net.run()
    net.check()
    best = min(net.nodes.values(), key=lambda each: (-each.capability, int(each.name[1:])))
    tree = best.building.tree
    assert tree is not None
    assert tree.wave.root == best.name


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 8), st.integers(0, 12), st.integers(0, 10**6), st.data())
def test_links_that_are_lost_on_the_way_are_made_up_for(
    count: int, extra: int, seed: int, data: st.DataObject
) -> None:
    net = Net(count, connected(count, extra, seed), seed)
    net.begin("n0")
    for _ in range(data.draw(st.integers(0, 40))):
        net.step()
    lost = data.draw(st.sampled_from(sorted(net.wires)))
    net.cut(*lost)
    net.run()
    # Who misses something that it needs begins anew, as the algorithm does after a moment.
    for name in lost:
        building = net.nodes[name].building
        tree = building.tree
        gone = tree is not None and any(each not in building.up for each in tree.neighbors)
        if building.is_stuck or gone or tree is None:
            net.begin(name)
    net.run()
    if any(node.building.is_stuck for node in net.nodes.values()):
        pytest.fail("stuck")
    net.check()


def test_the_parent_is_over_whom_the_root_is_nearest() -> None:
    """Overlays §4.3: by the cost of the whole way, not of the first link."""
    net = Net(4, mesh(4))
    net.nodes["n0"].capability = 99
    costs = {(0, 1): 10, (0, 2): 50, (0, 3): 90, (1, 2): 15, (1, 3): 70, (2, 3): 20}
    net.costs = {frozenset((f"n{a}", f"n{b}")): cost for (a, b), cost in costs.items()}
    root = net.nodes["n0"]
    net.begin("n0")

    def hear(name: str, *froms: str) -> None:
        """All that is on its way from those, then it chooses."""
        for other in froms:
            while net.wires[other, name]:
                message = net.wires[other, name].popleft()
                assert isinstance(message, Explore)
                net.nodes[name].building.explored(other, message)
        net.nodes[name].building.collected()

    hear("n1", "n0")
    hear("n2", "n0", "n1")
    hear("n3", "n0", "n1", "n2")
    net.run()
    net.check()
    tree = {name: node.building.tree for name, node in net.nodes.items()}
    assert root.building.tree is not None
    assert [(each.parent, each.cost_us) for each in tree.values() if each is not None] == [
        ("", 0),
        ("n0", 10),
        ("n1", 25),
        ("n2", 45),
    ]


def test_the_parent_of_the_tree_before_is_kept_unless_another_is_much_nearer() -> None:
    net = Net(3, mesh(3))
    net.nodes["n0"].capability = 99
    far, near = frozenset(("n0", "n2")), frozenset(("n1", "n2"))
    net.costs = {far: 4000, near: 2500}
    node = net.nodes["n2"].building

    def built() -> str:
        net.begin("n0")
        for name, froms in (("n1", ("n0",)), ("n2", ("n0", "n1"))):
            for other in froms:
                while net.wires[other, name]:
                    message = net.wires[other, name].popleft()
                    assert isinstance(message, Explore)
                    net.nodes[name].building.explored(other, message)
            net.nodes[name].building.collected()
        net.run()
        assert node.tree is not None
        return node.tree.parent

    assert built() == "n1"  # 1000 + 2500
    net.costs[far] = 3300  # nearer than 3500, and not by much
    assert built() == "n1"
    net.costs[far] = 2000
    assert built() == "n0"


def test_a_wave_crosses_every_link_about_twice() -> None:
    """Explore both ways, or explore and echo; and adopt once for each node."""
    count = 40
    net = Net(count, connected(count, 80, 1), 1)
    net.nodes["n0"].capability = 99
    net.begin("n0")
    net.run()
    net.check()
    links = len(net.wires) // 2
    assert net.sent == 2 * links + count - 1


def test_what_is_said_of_another_wave_changes_nothing() -> None:
    net = Net(3, mesh(3))
    net.begin("n0")
    net.run()
    building = net.nodes["n1"].building
    tree, sent = building.tree, net.sent
    assert tree is not None
    other = Wave(tree.wave.number, 0, "x:1", "x", 1)
    building.echoed("n0", Echo(other, ("n0",)))
    building.adopt_arrived("n0", Adopt(other, ("n0",)))
    building.adopt_arrived("n2", Adopt(tree.wave, ("n0", "n9")))
    building.explored("n9", Explore(Wave(99, 500, "x:1", "x", 1), 0))
    assert building.tree is tree
    assert net.sent == sent
