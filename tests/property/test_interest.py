"""SF under concurrent changes: after quiescence every node holds what the definition requires.

Nodes, links and subscriptions come and go in any order, and messages of different links arrive in
any interleaving.  The oracle knows nothing of the algorithm: what a node must have been told over a
link is the largest filters of all clients beyond it, and a message must reach exactly the brokers
with a matching client.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.mqtt.filters.covering import normal_form
from isthmus.sim.generating import generate
from isthmus.sim.run import run_schedule
from isthmus.sim.schedule import PROFILES
from support.algorithm_network import FakeClient, FakeNetwork
from support.topic_oracle import all_filters, by_regular_expression, naive_maximal

NODES = "ABCDEF"
FILTERS = [*all_filters(("a", "b"), 2), "a/b/+", "a/+/b", "$s/#", "$share/g/a/b"]
NAMES = ["/".join(levels) for n in (1, 2, 3) for levels in product("abz", repeat=n)]

filters = st.sampled_from(FILTERS)
nodes = st.sampled_from(NODES)


class OneAtATime(SubscriptionFlooding):
    """Waits for each acknowledgment, so that changes often meet others that are still waiting."""

    window = 1


class LittleByLittle(SubscriptionFlooding):
    """Leaves most of its work to later turns, so that everything comes between everything."""

    slice_steps = 3


class InterestMachine(RuleBasedStateMachine):
    """A forest of nodes; `links` has those that exist, `network.up` those that are up."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.clients: dict[tuple[str, int], FakeClient] = {}
        self.wanted: dict[tuple[str, int], set[str]] = {}

    # ---- what happens ----

    @initialize(
        parents=st.lists(st.integers(0, 99), min_size=5, max_size=5),
        algorithm=st.sampled_from([SubscriptionFlooding, OneAtATime, LittleByLittle]),
    )
    def tree(self, parents: list[int], algorithm: type[SubscriptionFlooding]) -> None:
        self.network = FakeNetwork(algorithm, NODES)
        for at, parent in enumerate(parents, start=1):
            self.add_link(NODES[at], NODES[parent % at])

    @rule(a=nodes, b=nodes)
    def add_link(self, a: str, b: str) -> None:
        if b not in self.side(a):
            self.links.append((a, b))
            self.network.connect(a, b)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def remove_link(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self.links))
        self.links.remove(link)
        self.network.remove(*link)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def cut_link(self, data: st.DataObject) -> None:
        a, b = data.draw(st.sampled_from(self.links))
        noticed_by = data.draw(st.sampled_from([(a, b), (a,), (b,), ()]))
        self.network.cut(a, b, noticed_by=noticed_by)
        if data.draw(st.booleans()):
            self.network.connect(a, b)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def give_up_and_return(self, data: st.DataObject) -> None:
        a, b = data.draw(st.sampled_from(self.links))
        self.network.give_up(a, b)
        self.network.connect(a, b)

    @rule(node=nodes, number=st.integers(0, 1), chosen=st.lists(filters, min_size=1, max_size=4))
    def subscribe(self, node: str, number: int, chosen: list[str]) -> None:
        key = node, number
        if key not in self.clients:
            self.clients[key] = self.network.client(node, f"client-{number}")
        self.clients[key].subscribe(*chosen)
        self.wanted.setdefault(key, set()).update(chosen)

    @precondition(lambda self: any(self.wanted.values()))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        held = sorted((key, each) for key, filters in self.wanted.items() for each in filters)
        key, topic_filter = data.draw(st.sampled_from(held))
        self.clients[key].unsubscribe(topic_filter)
        self.wanted[key].remove(topic_filter)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.clients)))
        self.clients.pop(key).drop()
        del self.wanted[key]

    @precondition(lambda self: self.network.pending())
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 8))):
            pending = self.network.pending()
            if not pending:
                return
            self.network.deliver(*data.draw(st.sampled_from(pending)))

    @rule()
    def turn(self) -> None:
        self.network.turn()

    @precondition(lambda self: self.network.pending())
    @rule()
    def settle(self) -> None:
        self.network.settle()

    @precondition(lambda self: any(self.wanted.values()))
    @rule(data=st.data())
    def unsubscribe_beyond_a_link_that_is_down(self, data: st.DataObject) -> None:
        self.network.settle()
        for link in self.links:
            self.network.cut(*link)
        self.unsubscribe(data)

    # ---- what must hold ----

    @rule()
    def quiescence(self) -> None:
        for a, b in self.links:
            if frozenset((a, b)) not in self.network.up:
                self.network.connect(a, b)
        self.network.settle()
        for a, b in self.links:
            self.check_link(a, b)
            self.check_link(b, a)
        for node in NODES:
            for topic in NAMES:
                self.check_message(node, topic)

    def check_link(self, told: str, teller: str) -> None:
        """What `teller` has inter-subscribed on `told`."""
        beyond = self.side(teller, without=told)
        required = {normal_form(each) for each in naive_maximal(sorted(self.local(beyond)))}
        here, there = self.network.algorithms[told], self.network.algorithms[teller]
        assert isinstance(here, SubscriptionFlooding)
        assert isinstance(there, SubscriptionFlooding)
        held = here.received_from(self.network.session(told, teller))
        assert set(held) == required
        assert set(there.announced_to(self.network.session(teller, told))) == required

    def check_message(self, node: str, topic: str) -> None:
        reached = {
            other
            for other in self.side(node)
            if other != node
            and any(by_regular_expression(each, topic) for each in self.local({other}))
        }
        assert self.network.publish(node, topic).brokers == Counter(reached)

    def local(self, some: set[str]) -> set[str]:
        """The filters of these nodes' clients that concern other nodes."""
        wanted = (each for (node, _), held in self.wanted.items() if node in some for each in held)
        matched = {each.removeprefix("$share/g/") for each in wanted}
        return {each for each in matched if not each.startswith("$")}

    def side(self, start: str, without: str = "") -> set[str]:
        """The nodes that `start` is joined with, other than through `without`."""
        found = {start}
        waiting = [start]
        while waiting:
            at = waiting.pop()
            for link in self.links:
                if at in link:
                    other = link[1] if link[0] == at else link[0]
                    if other not in found and not (at == start and other == without):
                        found.add(other)
                        waiting.append(other)
        return found

    def teardown(self) -> None:
        self.quiescence()
        for client in self.clients.values():
            client.drop()
        self.clients.clear()
        self.wanted.clear()
        self.network.settle()
        for node in NODES:
            algorithm = self.network.algorithms[node]
            assert isinstance(algorithm, SubscriptionFlooding)
            assert not self.network.ports[node].local_filters
            assert len(algorithm._index) == 0
        for a, b in self.links:
            self.check_link(a, b)
            self.check_link(b, a)


TestInterest = InterestMachine.TestCase
TestInterest.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", range(8800, 8802))
def test_schedules_in_the_smallest_slices(seed: int, profile: str) -> None:
    run_schedule(generate(seed, profile), LittleByLittle)


REPLACEMENTS = [
    [["a/b", "a/c", "b"], ["a/#", "b"], ["a/b", "a/+", "+"], ["#"], ["a/+", "+/c", "+/b", "b"]],
    [["#"], ["+", "+/#"], ["a/#", "b/#"], ["+/+/#", "+"], ["a/b/#", "+/+", "+"]],
]


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    parents=st.lists(st.integers(0, 99), min_size=3, max_size=3),
    algorithm=st.sampled_from([SubscriptionFlooding, OneAtATime, LittleByLittle]),
)
def test_who_replaces_its_filters_is_never_without(
    data: st.DataObject, parents: list[int], algorithm: type[SubscriptionFlooding]
) -> None:
    """Two clients replace what they want by other filters that match the same, again and again.

    New filters are subscribed to before old ones are ended.  Whatever of this has come how far, a
    message on what they want all the time reaches both.
    """
    network = FakeNetwork(algorithm, "ABCD")
    for number, parent in enumerate(parents, start=1):
        network.connect("ABCD"[number], "ABCD"[parent % number])
    clients = [network.client(node, f"at {node}") for node in "AD"]
    sets = [list(each) for each in REPLACEMENTS]
    for client, wanted in zip(clients, sets, strict=True):
        client.subscribe(*wanted[0])
    network.settle()
    always = [["a/b", "a/c", "b"], ["a/b", "a/b/c", "b"]]
    at = [0, 0]
    directions: list[tuple[str, str]]
    for _ in range(data.draw(st.integers(1, 12))):
        who = data.draw(st.integers(0, 1))
        onwards = data.draw(st.integers(0, len(sets[who]) - 1))
        old, new = sets[who][at[who]], sets[who][onwards]
        at[who] = onwards
        fresh, ended = [e for e in new if e not in old], [e for e in old if e not in new]
        if fresh:
            clients[who].subscribe(*fresh)
        if ended:
            clients[who].unsubscribe(*ended)
        for _ in range(data.draw(st.integers(0, 6))):
            directions = network.pending()
            if directions and data.draw(st.sampled_from(["deliver", "turn"])) == "deliver":
                network.deliver(*data.draw(st.sampled_from(directions)))
            else:
                network.turn()
            for receiver, topics in zip("AD", always, strict=True):
                for topic in topics:
                    for publisher in "ABCD":
                        if publisher != receiver:
                            assert network.publish(publisher, topic).brokers[receiver] == 1
