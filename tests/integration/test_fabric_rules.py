"""Links that not everything may cross, with real brokers.

site ── hub ── office        Mosquitto behind each; `site` dials, with a prefix
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.mqtt.packets import Will
from support.fabrics import QUICK_LINKS, FabricClient, NodeFabric
from support.waiting import wait_for

SITE = {"out": ["plant/#"], "in": ["orders/#"], "prefix": "site-1/"}


@pytest.fixture(params=["sf", "pf"])
def fabric(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeFabric]:
    with NodeFabric(
        tmp_path,
        [("site", "hub"), ("hub", "office")],
        algorithm=request.param,
        link=QUICK_LINKS,
        rules={("site", "hub"): SITE},
    ) as running:
        yield running


def retained_at(fabric: NodeFabric, name: str) -> dict[str, bytes]:
    """What the broker itself gives a new subscriber."""
    with FabricClient(fabric.brokers[name].port) as client:
        client.connect()
        client.subscribe("#", qos=0)
        client.subscribe("marker")
        client.publish("marker", b"end", qos=1)
        return {m.topic: m.payload for m in client.until(b"end") if m.retain}


def test_a_site_shows_what_it_may(fabric: NodeFabric) -> None:
    """Messages at every QoS, retained ones over a partition, a will; and it is shown."""
    with fabric.client("site") as site, fabric.client("office") as office:
        site.subscribe("#")
        office.subscribe("#")
        fabric.settle()
        for qos in (0, 1, 2):
            site.publish("private", b"mine", qos=qos)
            site.publish("plant/line/7", b"up %d" % qos, qos=qos)
            office.publish("site-1/gossip", b"theirs", qos=qos)
            office.publish("site-1/orders/3", b"down %d" % qos, qos=qos)
        # At QoS 2 as well: one at QoS 1 may overtake it, on another topic.
        site.publish("plant/end", b"end of site", qos=2)
        office.publish("site-1/orders/end", b"end of office", qos=2)
        up = [(m.topic, m.payload) for m in office.until(b"end of site")]
        down = [(m.topic, m.payload) for m in site.until(b"end of office")]
        for qos in (0, 1, 2):
            assert up.count(("site-1/plant/line/7", b"up %d" % qos)) == 1
            assert down.count(("orders/3", b"down %d" % qos)) == 1
        assert not any(payload == b"mine" for _, payload in up)
        assert not any(payload == b"theirs" for _, payload in down)

        fabric.taps["site", "hub"].cut()
        fabric.until_linked(("site", "hub"), status="down")
        site.publish("plant/state", b"running", qos=1, retain=True)
        site.publish("private/state", b"mine", qos=1, retain=True)
        office.publish("site-1/orders/now", b"stop", qos=1, retain=True)
        fabric.taps["site", "hub"].mend()
        fabric.until_linked(("site", "hub"), status="active")
        wanted = {"plant/state": b"running", "private/state": b"mine", "orders/now": b"stop"}
        wait_for(lambda: retained_at(fabric, "site") == wanted, 20, "the site's retained messages")
        wanted = {"site-1/plant/state": b"running", "site-1/orders/now": b"stop"}
        wait_for(lambda: retained_at(fabric, "office") == wanted, 20, "the office's")

        dying = fabric.client("site", will=Will("plant/alarm", b"gone", qos=1))
        dying.raw.close()
        while (last := office.next()).payload != b"gone":
            pass
        assert last.topic == "site-1/plant/alarm"

    here, there = fabric.link("site", "hub")["rules"], fabric.link("hub", "site")["rules"]
    assert (here["out"], here["in"], here["prefix"]) == (["plant/#"], ["orders/#"], "site-1/")
    assert there["in"] == ["site-1/plant/#"]
    assert there["set_by"] == ["the other end"]
    assert fabric["hub"].fabric()["counters"].get("rules_refused", 0) == 0


def test_retained_messages_where_they_are_wanted(tmp_path: Path) -> None:
    """A late subscriber two links away; until then nobody else has it."""
    with NodeFabric(
        tmp_path,
        [("a", "b"), ("b", "c")],
        link=QUICK_LINKS,
        cooperation={"retained": "routed"},
    ) as fabric:
        with fabric.client("a") as publisher:
            for number in range(20):
                publisher.publish(f"r/{number}", b"%d" % number, qos=1, retain=True)
            publisher.publish("r/3", b"", qos=1, retain=True)
            publisher.publish("seen", b"by nobody", qos=1, retain=True)
        assert fabric["c"].fabric()["retained"]["topics"] == 0
        with fabric.client("c") as late:
            late.subscribe("r/+")
            got = {late.next().topic for _ in range(19)}
            assert got == {f"r/{number}" for number in range(20)} - {"r/3"}
            with fabric.client("a") as publisher:
                publisher.publish("r/4", b"newer", qos=1, retain=True)
            assert late.next().payload == b"newer"
        assert "seen" not in retained_at(fabric, "c")
        assert retained_at(fabric, "b") == {}
        wait_for(lambda: retained_at(fabric, "c").get("r/4") == b"newer", 20, "the newest")
