"""The admin pages and metrics, without a socket: what is answered to which request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.exchange.client.counters import Counters
from isthmus.node.admin_pages import PAGES, AdminRequest, Answer
from isthmus.node.admin_pages import answer as answer_request
from isthmus.node.metrics import (
    COUNTER_HELP,
    FABRIC_COUNTER_HELP,
    FABRIC_HELP,
    GAUGE_HELP,
    LINK_COUNTER_HELP,
    LINK_HELP,
)
from isthmus.node.neighbors import neighbors

ROOT = Path(__file__).parents[3]
DISCOVERY = ("announced", "heard", "ignored")
REFERENCE = ROOT / "docs" / "reference" / "admin.md"

LINK: dict[str, Any] = {
    "neighbor": "edge-2",
    "status": "active",
    "blocked": False,
    "lanes": 2,
    "qos": 1,
    "initiator": "edge-1",
    "sent": 10,
    "dropped": 1,
    "unacknowledged": 3,
    "unacknowledged_bytes": 300,
}
FABRIC: dict[str, Any] = {
    "algorithm": {"name": "sf"},
    "links": [LINK, {**LINK, "neighbor": "edge-3", "status": "blocked", "blocked": True}],
    "peers": [
        {"address": "127.0.0.1:7002", "neighbor": "edge-2", "problem": ""},
        {"address": "127.0.0.1:7009", "neighbor": "", "problem": "Connection refused"},
    ],
    "topology": {
        "nodes": ["edge-1", "edge-2", "edge-3"],
        "paths": {"edge-2": ["edge-1", "edge-2"], "edge-3": ["edge-1", "edge-2", "edge-3"]},
        "rings": [{"cut": ["edge-1", "edge-3"], "ring": ["edge-1", "edge-2", "edge-3"]}],
    },
    "retained": {"topics": 4, "bytes": 400},
    "wills": {"armed": 5, "waiting": 1},
    "counters": {"doubtful_dropped": 6, "of_tomorrow": 7},
    "refusals": {"version": 8},
}


class FakeNode:
    """A node that says what it is told to say."""

    def __init__(self, *, ready: bool = True, **sections: Any) -> None:
        self.ready = ready
        self._status: dict[str, Any] = {
            "node": {"id": "edge-1", "version": "9.9", "status": "running", "uptime_s": 12.5},
            "broker": {"url": "mqtt://127.0.0.1:1884", "reachable": ready, "problem": ""},
            "sessions": {"open": 3, "clients": []},
            "counters": {"client_bytes": 4096},
            "refusals": {"malformed": 2, 'odd "cause"\n': 1},
            "listeners": {"link": "127.0.0.1:7001"},
            **sections,
        }
        self.added: list[tuple[str, int | None, int | None]] = []
        self.removed: list[str] = []

    def status(self) -> dict[str, Any]:
        return self._status

    def add_peer(
        self,
        address: str,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None:
        self.added.append((address, lanes, qos))
        self.rules = rules

    def remove_peer(self, name: str) -> bool:
        self.removed.append(name)
        return name in ("edge-2", "127.0.0.1:7009", "[::1]:7")

    def ask_algorithm(self, request: Mapping[str, object]) -> Mapping[str, object]:
        if "split" not in request:
            raise ValueError("nothing to split")
        return {"asked": "split"}


def answer(node: FakeNode, method: str, target: str, accept: str = "") -> Answer:
    return answer_request(node, AdminRequest(method, target, accept))


def change(node: FakeNode, method: str, target: str, body: object = None, **more: str) -> Answer:
    """A change as `isthmus peers` asks for it, but for `more`."""
    usual = {"content_type": "application/json", "host": "127.0.0.1:9883", "client": "127.0.0.1"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return answer_request(node, AdminRequest(method, target, body=content, **{**usual, **more}))


def metrics(node: FakeNode) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name to labels to value, as Prometheus' own parser reads the page."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    text = answer(node, "GET", "/metrics").body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def test_healthz_is_ok_even_when_not_ready() -> None:
    assert answer(FakeNode(ready=False), "GET", "/healthz").status == 200


def test_readyz_tells_why_not() -> None:
    assert answer(FakeNode(), "GET", "/readyz").status == 200
    refused = answer(FakeNode(ready=False), "GET", "/readyz")
    assert refused.status == 503
    assert b"its broker mqtt://127.0.0.1:1884 is unreachable" in refused.body
    stopping = FakeNode(ready=False, node={"status": "stopping"}, broker={"reachable": True})
    assert answer(stopping, "GET", "/readyz").body == b"not ready: the node is stopping\n"


def test_status_is_the_nodes_own() -> None:
    reply = answer(FakeNode(), "GET", "/api/status?pretty")
    assert reply.content_type == "application/json"
    assert json.loads(reply.body) == FakeNode().status()


def test_the_index_names_every_page() -> None:
    index = answer(FakeNode(), "GET", "/").body.decode()
    assert all(path in index for path in PAGES)


def test_unknown_paths_and_methods() -> None:
    assert answer(FakeNode(), "GET", "/nope").status == 404
    refused = answer(FakeNode(), "POST", "/healthz")
    assert refused.status == 405
    assert ("Allow", "GET, HEAD") in refused.headers


def test_metrics_carry_the_status() -> None:
    found = metrics(FakeNode())
    assert found["isthmus_node_info"] == {(("id", "edge-1"), ("version", "9.9")): 1.0}
    assert found["isthmus_ready"] == {(): 1.0}
    assert found["isthmus_uptime_seconds"] == {(): 12.5}
    assert found["isthmus_broker_reachable"] == {(): 1.0}
    assert found["isthmus_sessions_open"] == {(): 3.0}
    assert found["isthmus_client_bytes_total"] == {(): 4096.0}
    assert found["isthmus_refusals_total"] == {
        (("cause", "malformed"),): 2.0,
        (("cause", 'odd "cause"\n'),): 1.0,
    }
    assert found["process_cpu_seconds_total"][()] > 0


def test_readiness_is_a_gauge_too() -> None:
    assert metrics(FakeNode(ready=False))["isthmus_ready"] == {(): 0.0}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("", "text/plain"), ("application/openmetrics-text;version=1.0.0", "application/openmetrics")],
)
def test_the_format_is_negotiated(accept: str, content_type: str) -> None:
    reply = answer(FakeNode(), "GET", "/metrics", accept)
    assert reply.content_type.startswith(content_type)
    assert "charset=utf-8" in reply.content_type
    assert (b"# EOF" in reply.body) == ("openmetrics" in content_type)


def test_an_empty_status_is_no_error() -> None:
    class Bare(FakeNode):
        def status(self) -> dict[str, Any]:
            return {}

    for path in PAGES:
        assert answer(Bare(ready=False), "GET", path).status in (200, 503)


# ---- neighbors ------------------------------------------------------------------------------


def test_neighbors_are_links_and_peers_in_one_list() -> None:
    node = FakeNode(fabric=FABRIC)
    answered = json.loads(answer(node, "GET", "/api/peers").body)
    assert answered == neighbors(node.status())
    assert [(p["neighbor"], p["address"], p["state"], p["why"]) for p in answered["peers"]] == [
        ("edge-2", "127.0.0.1:7002", "active", ""),
        ("edge-3", None, "blocked", "closes the ring edge-1 - edge-2 - edge-3 - edge-1"),
        (None, "127.0.0.1:7009", "dialing", "Connection refused"),
    ]
    assert answered["peers"][0]["unacknowledged"] == 3
    assert answered["rings"] == FABRIC["topology"]["rings"]


def test_a_lost_link_says_why_it_does_not_come_back() -> None:
    fabric = {
        "links": [{**LINK, "status": "down"}],
        "peers": [{"address": "h:1", "neighbor": "edge-2", "problem": "No route to host"}],
    }
    (row,) = neighbors({"fabric": fabric})["peers"]
    assert (row["state"], row["why"], row["address"]) == ("down", "No route to host", "h:1")


def test_adding_a_peer() -> None:
    node = FakeNode(fabric=FABRIC)
    wanted = {"address": "192.0.2.7:7883", "lanes": 2, "qos": 0}
    reply = change(node, "POST", "/api/peers", wanted)
    assert reply.status == 202
    assert change(node, "POST", "/api/peers", {"address": "[::1]:7883"}).status == 202
    assert node.added == [("192.0.2.7:7883", 2, 0), ("[::1]:7883", None, None)]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, ["not JSON"]),
        (b"\xff", 400, ["not JSON"]),
        (b"[" * 60_000, 400, ["not JSON"]),
        (b"[]", 400, ["must be an object"]),
        ({}, 400, ["address: is required"]),
        ({"address": 5}, 400, ["address: must be a string"]),
        ({"address": "h:0", "qos": 3}, 400, ["no port to connect to", "qos: must be 0, 1 or 2"]),
        ({"address": "h:1", "lane": 1}, 400, ["lane: unknown key; did you mean 'lanes'"]),
        ({"address": "h:1", "sessions": 1}, 400, ["sessions: is called 'lanes' now"]),
        ({"address": "127.0.0.1:7001"}, 400, ["this node's own"]),
        ({"address": "127.0.0.1:7009"}, 409, ["already a peer"]),
    ],
)
def test_what_is_wrong_with_a_peer_is_said(body: object, status: int, words: list[str]) -> None:
    node = FakeNode(fabric=FABRIC)
    reply = change(node, "POST", "/api/peers", body)
    assert reply.status == status
    problems = " / ".join(json.loads(reply.body)["problems"])
    assert all(word in problems for word in words), problems
    assert node.added == []


def test_a_peer_with_rules_is_added() -> None:
    node = FakeNode()
    rules = {"out": ["plant/#"], "in": ["orders/#"], "prefix": "site-1/"}
    assert change(node, "POST", "/api/peers", {"address": "h:1", **rules}).status == 202
    assert node.rules == LinkRules(("plant/#",), ("orders/#",), "site-1/")
    reply = change(node, "POST", "/api/peers", {"address": "h:2", "in": ["a/#/b"]})
    assert reply.status == 400
    (problem,) = json.loads(reply.body)["problems"]
    assert problem.startswith("in: ")


def test_a_node_that_objects_is_quoted() -> None:
    class Objecting(FakeNode):
        def add_peer(
            self,
            address: str,
            lanes: int | None = None,
            qos: int | None = None,
            rules: LinkRules = NO_RULES,
        ) -> None:
            raise ValueError("no room")

    reply = change(Objecting(), "POST", "/api/peers", {"address": "h:1"})
    assert (reply.status, json.loads(reply.body)) == (400, {"problems": ["no room"]})


@pytest.mark.parametrize("name", ["edge-2", "127.0.0.1:7009", "%5B%3A%3A1%5D%3A7"])
def test_removing_a_peer_by_id_or_address(name: str) -> None:
    assert change(FakeNode(fabric=FABRIC), "DELETE", f"/api/peers/{name}").status == 200


def test_removing_nobody_names_those_there_are() -> None:
    reply = change(FakeNode(fabric=FABRIC), "DELETE", "/api/peers/edge-9")
    assert reply.status == 404
    (problem,) = json.loads(reply.body)["problems"]
    assert "'edge-9'; there are edge-2, 127.0.0.1:7002, edge-3, 127.0.0.1:7009" in problem


@pytest.mark.parametrize(
    ("unusual", "status"),
    [
        ({"client": "192.0.2.1"}, 403),
        ({"client": ""}, 403),
        ({"client": "::ffff:192.0.2.1"}, 403),
        ({"content_type": ""}, 415),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "rebound.example:9883"}, 421),
        ({"host": ""}, 403),
        ({"origin": "http://page.example"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 403),
        ({"origin": "null"}, 403),
        ({"client": "::1"}, 200),
        ({"client": "::ffff:127.0.0.1"}, 200),
        ({"client": "127.1.2.3"}, 200),
        ({"content_type": "Application/JSON; charset=utf-8"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LOCALHOST:1"}, 200),
        ({"host": "[::1]:9883"}, 200),
        ({"host": "10.0.0.1"}, 200),
        ({"origin": "http://127.0.0.1:9883"}, 200),
    ],
)
def test_who_may_change_a_node(unusual: dict[str, str], status: int) -> None:
    node = FakeNode(fabric=FABRIC)
    assert change(node, "DELETE", "/api/peers/edge-2", **unusual).status == status
    assert node.removed == (["edge-2"] if status == 200 else [])
    added = change(node, "POST", "/api/peers", {"address": "h:1"}, **unusual)
    assert added.status == (202 if status == 200 else status)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9883", 200),
        ("[::1]:9883", 200),
        ("[fe80::1%25eth0]", 200),
        ("198.51.100.7", 200),
        ("localhost", 200),
        ("localhost.:9883", 200),
        ("node-1.example:9883", 200),
        ("Node-1.EXAMPLE", 200),
        ("", 200),
        ("rebound.example", 421),
        ("rebound.example:9883", 421),
        ("127.0.0.1.rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("x.node-1.example", 421),
        ("127.0.0.1,rebound.example", 421),
        ("[rebound.example]", 421),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/api/status", "/nope"])
def test_what_a_node_may_be_called(host: str, status: int, path: str) -> None:
    reply = answer_request(FakeNode(), AdminRequest("GET", path, host=host), ["node-1.example"])
    assert reply.status == (404 if status == 200 and path == "/nope" else status)
    assert (b"admin_hosts" in reply.body) == (status == 421)


def test_methods_of_the_peers_pages() -> None:
    for method, target, allowed in (
        ("PUT", "/api/peers", "GET, POST, HEAD"),
        ("OPTIONS", "/api/peers", "GET, POST, HEAD"),  # so no browser takes it for permission
        ("GET", "/api/peers/edge-2", "DELETE"),
    ):
        reply = change(FakeNode(), method, target)
        assert reply.status == 405
        assert ("Allow", allowed) in reply.headers
    assert change(FakeNode(), "DELETE", "/api/peers/").status == 404


def test_metrics_of_the_fabric() -> None:
    found = metrics(FakeNode(fabric=FABRIC))
    two, three = (("neighbor", "edge-2"),), (("neighbor", "edge-3"),)
    assert found["isthmus_link_up"] == {two: 1.0, three: 1.0}
    assert found["isthmus_link_active"] == {two: 1.0, three: 0.0}
    assert found["isthmus_link_blocked"] == {two: 0.0, three: 1.0}
    assert found["isthmus_link_unacknowledged"] == {two: 3.0, three: 3.0}
    assert found["isthmus_link_sent_total"] == {two: 10.0, three: 10.0}
    assert found["isthmus_link_dropped_total"] == {two: 1.0, three: 1.0}
    assert found["isthmus_link_refusals_total"] == {(("cause", "version"),): 8.0}
    assert found["isthmus_fabric_nodes"] == {(): 3.0}
    assert found["isthmus_fabric_rings"] == {(): 1.0}
    assert found["isthmus_fabric_peers"] == {(): 2.0}
    assert found["isthmus_fabric_retained_topics"] == {(): 4.0}
    assert found["isthmus_fabric_wills_armed"] == {(): 5.0}
    assert found["isthmus_fabric_doubtful_dropped_total"] == {(): 6.0}
    assert found["isthmus_fabric_of_tomorrow_total"] == {(): 7.0}
    assert found["isthmus_fabric_given_up_total"] == {(): 0.0}  # there before it happens


# ---- documentation ---------------------------------------------------------------------------


def test_every_page_and_metric_is_documented() -> None:
    text = REFERENCE.read_text()
    names = [f"isthmus_{name}_total" for name in Counters().totals()]
    names += ["isthmus_refusals_total", "isthmus_node_info", "isthmus_ready"]
    names += ["isthmus_uptime_seconds", *(f"isthmus_{name}" for name in GAUGE_HELP)]
    names += [f"isthmus_link_{name}" for name in LINK_HELP]
    names += [f"isthmus_link_{name}_total" for name in (*LINK_COUNTER_HELP, "refusals")]
    names += [f"isthmus_discovery_{name}_total" for name in DISCOVERY]
    names += [f"isthmus_fabric_{name}" for name in FABRIC_HELP]
    names += [f"isthmus_fabric_{name}_total" for name in FABRIC_COUNTER_HELP]
    missing = [name for name in (*PAGES, "/api/peers/NAME", *names) if f"`{name}`" not in text]
    assert missing == []


def test_every_counter_has_its_own_help_text() -> None:
    others = {"refusals", "link_refusals", *(f"discovery_{name}" for name in DISCOVERY)}
    assert set(COUNTER_HELP) == {*Counters().totals(), *others}


def test_every_counter_of_the_fabric_has_its_own_help_text() -> None:
    source = "".join(
        file.read_text()
        for folder in ("exchange", "node")
        for file in (ROOT / "src" / "isthmus" / folder).rglob("*.py")
    )
    assert set(FABRIC_COUNTER_HELP) == set(re.findall(r'counters\["([a-z_]+)"\]', source))


def test_the_algorithm_can_be_asked() -> None:
    def ask(body: bytes) -> Answer:
        request = AdminRequest(
            "POST",
            "/api/cooperation",
            host="127.0.0.1",
            client="127.0.0.1",
            content_type="application/json",
            body=body,
        )
        return answer_request(FakeNode(), request)

    assert ask(b'{"split": "1"}').status == 202
    assert json.loads(ask(b'{"split": "1"}').body) == {"asked": "split"}
    assert (ask(b"{}").status, b"nothing to split" in ask(b"{}").body) == (400, True)
    assert ask(b"[]").status == ask(b"no").status == 400
