"""The admin pages and metrics, without a socket: what is answered to which request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.node.admin import PAGES, answer
from isthmus.node.counters import Counters
from isthmus.node.metrics import COUNTER_HELP, GAUGE_HELP

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "admin.md"


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
            **sections,
        }

    def status(self) -> dict[str, Any]:
        return self._status


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
    class Bare:
        ready = False

        def status(self) -> dict[str, Any]:
            return {}

    for path in PAGES:
        assert answer(Bare(), "GET", path).status in (200, 503)


def test_every_page_and_metric_is_documented() -> None:
    text = REFERENCE.read_text()
    names = [f"isthmus_{name}_total" for name in Counters().totals()]
    names += ["isthmus_refusals_total", "isthmus_node_info", "isthmus_ready"]
    names += ["isthmus_uptime_seconds", *(f"isthmus_{name}" for name in GAUGE_HELP)]
    missing = [name for name in (*PAGES, *names) if f"`{name}`" not in text]
    assert missing == []


def test_every_counter_has_its_own_help_text() -> None:
    assert set(COUNTER_HELP) == {*Counters().totals(), "refusals"}
