"""ILDM's Fig. 6, 7 and 8 with real nodes and Mosquitto: the same steps, the same messages counted.

Fig. 6 (PF) and Fig. 7 (SF):                Fig. 8 (SF):

    I1    I4                                I1 (C1: t1)
      \\  /                                    \\
       I2 (C1) ── I3 (C2) ── I5 (C3)           I2 ┄┄ added, removed ┄┄ I4 (C3: t3)
                                              /
                                            I3 (C2: t2)

What passes on a link is read from the wire by a tap in it, not from the nodes' own counters.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fabrics import NodeFabric, settled
from support.waiting import wait_for

FIGURE_6 = [("I1", "I2"), ("I4", "I2"), ("I3", "I2"), ("I5", "I3")]
FIGURE_8 = [("I1", "I2"), ("I3", "I2")]

Flow = tuple[str, str, str, str]
"""What, about which topic, from which node, to which node."""


class Steps:
    """Tells apart what each step of a figure made pass; every packet counts."""

    def __init__(self, fabric: NodeFabric) -> None:
        self._fabric = fabric
        self._seen: dict[tuple[str, str], int] = {}
        self.flows()

    def flows(self) -> list[Flow]:
        """What has passed on the links since the last call, sorted."""
        new: list[Flow] = []
        for key, tap in self._fabric.taps.items():
            passed = tap.passed()
            for each in passed[self._seen.get(key, 0) :]:
                new.append((each.kind, each.about, each.sender, tap.other(each.sender)))
            self._seen[key] = len(passed)
        return sorted(new)


def everywhere(fabric: NodeFabric, topic: str) -> None:
    """Until a message on `topic` has passed on every link: then so has what came before it."""
    wait_for(
        lambda: all(tap.count("publish", topic) for tap in fabric.taps.values()),
        20,
        f"{topic} on every link",
    )


def test_figure_6_publication_flooding(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, FIGURE_6, algorithm="pf") as fabric:
        steps = Steps(fabric)
        with fabric.client("I2") as c1, fabric.client("I3") as c2, fabric.client("I5") as c3:
            c1.subscribe("t")  # step 1
            c2.subscribe("t")  # step 2
            c3.publish("t", b"step 3", qos=1)
            assert (c1.next().payload, c2.next().payload) == (b"step 3", b"step 3")
            everywhere(fabric, "t")
            assert steps.flows() == sorted(
                ("publish", "t", *way)
                for way in [("I5", "I3"), ("I3", "I2"), ("I2", "I1"), ("I2", "I4")]
            )
            # Nobody gets it twice: what is published next is what comes next.
            c3.publish("t", b"next", qos=1)
            assert (c1.next().payload, c2.next().payload) == (b"next", b"next")
        # I1 is one link further than the clients.
        wait_for(
            lambda: fabric["I1"].fabric()["counters"]["received_from_links"] >= 2,
            20,
            "the second message at I1",
        )
        assert fabric["I1"].fabric()["counters"]["received_from_links"] == 2


def test_figure_7_subscription_flooding(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, FIGURE_6, algorithm="sf") as fabric:
        steps = Steps(fabric)
        with fabric.client("I2") as c1, fabric.client("I3") as c2, fabric.client("I5") as c3:
            c1.subscribe("t")
            fabric.settle()
            assert steps.flows() == sorted(
                ("subscribe", "t", *way)
                for way in [("I2", "I1"), ("I2", "I3"), ("I2", "I4"), ("I3", "I5")]
            )
            c2.subscribe("t")
            fabric.settle()
            assert steps.flows() == [("subscribe", "t", "I3", "I2")]
            c3.publish("t", b"step 3", qos=1)
            assert (c1.next().payload, c2.next().payload) == (b"step 3", b"step 3")
            # A retained message goes everywhere (§4.3), behind all that was sent before it.
            c3.publish("mark", b"", qos=1, retain=True)
            everywhere(fabric, "mark")
            passed = steps.flows()
            assert [flow for flow in passed if flow[1] == "t"] == [
                ("publish", "t", "I3", "I2"),
                ("publish", "t", "I5", "I3"),
            ]
            assert len(passed) == 2 + len(FIGURE_6)
            leave_in_turn(fabric, steps)


def leave_in_turn(fabric: NodeFabric, steps: Steps) -> None:
    """§3.2.1: a client that leaves takes back only what nobody else on its side wants."""
    with fabric.client("I2") as c1, fabric.client("I3") as c2:
        c1.subscribe("u")
        c2.subscribe("u")
        fabric.settle()
        steps.flows()
        c1.unsubscribe("u")
        fabric.settle()
        # C2 still wants it: only I3 no longer needs to send it to I2.
        assert steps.flows() == [("unsubscribe", "u", "I2", "I3")]
        c2.unsubscribe("u")
        fabric.settle()
        assert steps.flows() == sorted(
            ("unsubscribe", "u", *way)
            for way in [("I3", "I2"), ("I3", "I5"), ("I2", "I1"), ("I2", "I4")]
        )


def test_figure_8_adding_and_removing_a_neighbor(tmp_path: Path) -> None:
    with NodeFabric(tmp_path, FIGURE_8, names=["I4"]) as fabric:
        steps = Steps(fabric)
        with fabric.client("I1") as c1, fabric.client("I3") as c2, fabric.client("I4") as c3:
            c1.subscribe("t1")
            c2.subscribe("t2")
            c3.subscribe("t3")
            fabric.settle()
            assert steps.flows() == sorted(
                [
                    ("subscribe", "t1", "I1", "I2"),
                    ("subscribe", "t1", "I2", "I3"),
                    ("subscribe", "t2", "I3", "I2"),
                    ("subscribe", "t2", "I2", "I1"),
                ]
            )
            add(fabric, "I2", "I4")
            assert steps.flows() == sorted(
                [
                    ("subscribe", "t1", "I2", "I4"),
                    ("subscribe", "t2", "I2", "I4"),
                    ("subscribe", "t3", "I4", "I2"),
                    ("subscribe", "t3", "I2", "I1"),
                    ("subscribe", "t3", "I2", "I3"),
                ]
            )
            c1.publish("t3", b"from C1", qos=1)
            c3.publish("t2", b"from C3", qos=1)
            assert c3.next().payload == b"from C1"
            assert c2.next().payload == b"from C3"
            steps.flows()
            remove(fabric, "I2", "I4")
            # Departure from §4.4: on the link itself the goodbye ends all inter-subscriptions,
            # so nothing needs to be taken back there filter by filter.
            assert steps.flows() == sorted(
                [("unsubscribe", "t3", "I2", "I1"), ("unsubscribe", "t3", "I2", "I3")]
            )


def add(fabric: NodeFabric, here: str, there: str) -> None:
    """Both nodes add each other, as in the paper; whoever is second finds the link standing."""
    for one, other in ((here, there), (there, here)):
        status, answer = fabric[one].change(
            "POST", "/api/peers", {"address": fabric.address(one, other)}
        )
        assert status == 202, answer
        fabric.until_linked((here, there), status="active")
    fabric.settle()


def remove(fabric: NodeFabric, here: str, there: str) -> None:
    status, answer = fabric[here].change("DELETE", f"/api/peers/{there}")
    assert status == 200, answer
    wait_for(lambda: not fabric.link(there, here), 10, f"{there} to let {here} go")
    wait_for(
        lambda: settled(fabric[name] for name in ("I1", "I2", "I3")), 20, "what is left to settle"
    )
    neighbors = fabric[here].fabric()["algorithm"]["neighbors"]
    assert there not in neighbors


@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_the_nodes_own_counters_agree_with_the_wire(tmp_path: Path, algorithm: str) -> None:
    with NodeFabric(tmp_path, [("a", "b")], algorithm=algorithm) as fabric:
        with fabric.client("a") as publisher, fabric.client("b") as subscriber:
            subscriber.subscribe("count/#")
            fabric.settle()
            for number in range(10):
                publisher.publish(f"count/{number}", b"x", qos=number % 3)
            assert {subscriber.next().topic for _ in range(10)} == {
                f"count/{number}" for number in range(10)
            }
        assert fabric.link("a", "b")["sent"] == 10
        assert fabric.taps["a", "b"].count("publish") == {"a": 10}
        assert fabric["b"].fabric()["counters"]["received_from_links"] == 10
