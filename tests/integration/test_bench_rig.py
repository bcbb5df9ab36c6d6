"""Emulated servers for real: brokers, nodes, quotas and shaped links, and nothing left of them."""

from __future__ import annotations

import os
import signal
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from conftest import require_broker
from isthmus.bench.coordinator.control import Target
from isthmus.bench.rig import rig as rig_module
from isthmus.bench.rig.cgroups import CpuQuotas, find_hierarchy
from isthmus.bench.rig.rig import Rig
from isthmus.bench.scenario import Scenario
from isthmus.brokers import names
from isthmus.brokers.mosquitto import Mosquitto
from isthmus.brokers.probe import connect_answer
from isthmus.config.addresses import Address
from isthmus.errors import BrokerMissing, QuotaUnavailable
from isthmus.fabric.admin_client import fetch_status
from isthmus.processes.children import Launch, end, launch
from support.acquainting import Acquainting
from support.examples import unpack, unpack_algorithm
from support.waiting import wait_for


def scenario(
    *nodes: dict[str, Any],
    algorithm: str = "sf",
    tables: dict[str, Any] | None = None,
    **emulation: Any,
) -> Scenario:
    return Scenario.model_validate(
        {
            "scenario": {"name": "test"},
            "load": {"interval_ms": 100.0},
            "place": [{"node": nodes[0]["id"], "topic": "topic1", "publishers": 1}],
            "node": nodes,
            "cooperation": {"algorithm": algorithm},
            "emulation": emulation,
            **(tables or {}),
        }
    )


ROW = ({"id": "n1"}, {"id": "n2", "peers": ["n1"]})
BARE = {"id": "n1", "with_node": False}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    require_broker("mosquitto")
    before = {child.pid for child in psutil.Process().children()}
    yield
    # What brokers and Spark sessions of other tests start meanwhile is below them, not below us.
    assert [child for child in psutil.Process().children() if child.pid not in before] == []
    try:
        base = find_hierarchy().base
    except QuotaUnavailable:
        return
    assert list(base.glob(f"isthmus-{psutil.Process().pid}-*")) == []


def answers(target: Target) -> bool:
    code = connect_answer(
        target.host, target.port, username=target.username, password=target.password
    )
    return code == 0


def client(target: Target, on_message: Callable[[float], None] | None = None) -> mqtt.Client:
    """A connected client; with `on_message`, subscribed to ``topic``."""
    made = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"t{uuid.uuid4().hex[:12]}")
    ready: list[bool] = []
    if on_message is not None:
        heard = on_message
        made.on_message = lambda *_: heard(time.monotonic())
        made.on_connect = lambda *_: made.subscribe("topic") and None
        made.on_subscribe = lambda *_: ready.append(True)
    else:
        made.on_connect = lambda *_: ready.append(True)
    made.connect(target.host, target.port)
    made.loop_start()
    wait_for(lambda: ready, 10, "the client to be connected")
    return made


def test_a_bare_broker_under_a_quota() -> None:
    with Rig(scenario(BARE, cpu=0.2, cpu_per_process=0.1)) as rig:
        assert answers(rig.targets["n1"])
        assert rig.admins == {}
        (watched,) = rig.watched()
        assert (watched.node, watched.process) == ("n1", "broker")
        if rig.notes and not os.environ.get("CI"):
            pytest.skip(rig.notes[0])
        assert rig.throttled_ns("n1") is not None
        assert rig.throttled_ns("n1", "broker") is not None
        assert rig.throttled_ns("elsewhere") is None
        (group,) = find_hierarchy().base.glob(f"isthmus-{psutil.Process().pid}-*-n1/broker")
        placed = {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        assert placed == set(watched.pids)


def test_linked_servers_with_a_delay_between_them(tmp_path: Path) -> None:
    heard_s: list[float] = []
    with Rig(
        scenario(*ROW, cpu=0.4, cpu_per_process=0.2, link_delay_ms=40.0, link_mbit_s=100.0),
        folder=tmp_path / "rig",
    ) as rig:
        assert set(rig.targets) == set(rig.admins) == {"n1", "n2"}
        assert {(each.node, each.process) for each in rig.watched()} == {
            *((node, process) for node in ("n1", "n2") for process in ("broker", "node")),
            ("", "shaping"),
        }
        assert (tmp_path / "rig" / "n1.log").exists()
        subscriber = client(rig.targets["n2"], heard_s.append)
        publisher = client(rig.targets["n1"])

        def sent_and_heard() -> bool:  # the inter-subscription too is under way for 40 ms
            publisher.publish("topic", b"")
            return bool(heard_s)

        wait_for(sent_and_heard, 10, "a message over the link", every_s=0.1)
        wait_for(lambda: time.monotonic() - heard_s[-1] > 0.3, 10, "all to have come")
        for _ in range(3):
            count, sent_s = len(heard_s), time.monotonic()
            publisher.publish("topic", b"")
            wait_for(lambda count=count: len(heard_s) > count, 10, "the message")  # type: ignore[misc]
            assert heard_s[-1] - sent_s >= 0.04
        for each in (subscriber, publisher):
            each.disconnect()
            each.loop_stop()


def rtt_ms(rig: Rig, here: str, there: str) -> float:
    """What node `here` says of its link to `there`, once it has asked often enough."""

    def known() -> float:
        links = fetch_status(rig.admins[here])["fabric"]["links"]
        return max((link["rtt_ms"] for link in links if link["neighbor"] == there), default=0.0)

    return wait_for(known, 20, f"{here} to know how far {there} is", every_s=0.1)


def test_a_link_that_an_algorithm_dials_is_shaped_as_its_pair_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 ── n2 ── n3 are configured; n1 is told of n3 and dials it."""
    unpack_algorithm(Acquainting, tmp_path / "plugins")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugins"), prepend=":")
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    row = (*ROW, {"id": "n3", "peers": ["n2"]})
    lines = [
        {"between": ["n1", "n3"], "delay_ms": 120.0},
        {"between": ["n3", "n2"], "delay_ms": 15.0, "back_delay_ms": 25.0},
    ]
    with Rig(
        scenario(*row, algorithm="acquainting", link_delay_ms=5.0, link=lines),
        folder=tmp_path / "rig",
    ) as rig:
        listening = {
            node: tomllib.loads((tmp_path / "rig" / f"{node}.toml").read_text())
            for node in rig.admins
        }
        wait_for(
            lambda: fetch_status(rig.admins["n1"])["fabric"]["algorithm"]["dialed"],
            20,
            "n1 to dial",
        )
        algorithm = fetch_status(rig.admins["n1"])["fabric"]["algorithm"]
        assert algorithm["dialed"] == [listening["n3"]["node"]["advertise"]]
        assert listening["n3"]["node"]["advertise"] != listening["n3"]["listen"]["link"]
        for here, there, least_ms in (
            ("n1", "n3", 240),
            ("n3", "n1", 240),
            ("n2", "n3", 40),
            ("n3", "n2", 40),
            ("n1", "n2", 10),
            ("n2", "n1", 10),
        ):
            assert rtt_ms(rig, here, there) >= least_ms, (here, there)
        # n3's link to n2 is none of those that are slow.
        assert rtt_ms(rig, "n2", "n3") < rtt_ms(rig, "n1", "n3")


def test_nodes_that_find_each_other_announce_their_proxies(tmp_path: Path) -> None:
    tables = {
        "cooperation": {"algorithm": "tree", "alpha": 3.0},
        "discovery": {"group": "239.255.77.84:0", "every_s": 0.5},
        "link": {"qos": 2, "dead_after_s": 2.0},
        "limits": {"clients": 77},
    }
    nodes = [{"id": f"n{number}", "broker": "embedded"} for number in (1, 2, 3)]
    folder = tmp_path / "rig"
    with Rig(scenario(*nodes, tables=tables, link_delay_ms=30.0), folder=folder) as rig:
        files = {name: tomllib.loads((folder / f"{name}.toml").read_text()) for name in rig.admins}
        proxies = {name: file["node"]["advertise"] for name, file in files.items()}
        for name, file in files.items():
            assert file["cooperation"] == tables["cooperation"]
            assert (file["link"]["qos"], file["link"]["dead_after_s"]) == (2, 2.0)
            assert file["limits"]["clients"] == 77
            assert file["discovery"]["every_s"] == 0.5
            assert "peer" not in file
            for other in files.keys() - {name}:
                assert rtt_ms(rig, name, other) >= 60
            peers = fetch_status(rig.admins[name])["fabric"]["peers"]
            assert {peer["address"] for peer in peers} <= set(proxies.values())


def test_a_row_starts_whose_nodes_know_their_neighbors_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 ── n2 ── n3, and of n3 n1 never hears: the topology is `any`."""
    unpack("isthmus-stars", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    with Rig(scenario(*ROW, {"id": "n3", "peers": ["n2"]}, algorithm="stars")) as rig:
        topology = fetch_status(rig.admins["n1"])["fabric"]["topology"]
        assert topology["wanted"] == "any"
        assert topology["nodes"] == ["n1", "n2"]


def test_quotas_can_wait_until_the_servers_are_warm() -> None:
    with Rig(scenario(BARE, cpu=0.5), quotas=False) as rig:
        assert answers(rig.targets["n1"])
        assert rig.throttled_ns("n1") is None
        for _ in range(2):  # the second time changes nothing
            rig.set_quotas()
            assert rig.notes or rig.throttled_ns("n1") is not None


def test_for_what_runs_already_nothing_is_started() -> None:
    running = {"id": "n2", "address": "192.0.2.7:1883", "admin": "192.0.2.7:9883"}
    login = {"username": "bench", "password": "secret"}
    with Rig(scenario(BARE, {**running, **login}, cpu=0.5)) as rig:
        assert rig.targets["n2"] == Target("192.0.2.7", 1883, "bench", "secret")
        assert rig.admins == {"n2": Address("192.0.2.7", 9883)}
        assert [watched.node for watched in rig.watched()] == ["n1"]
        assert any("n2" in note or "no CPU quotas" in note for note in rig.notes)


def test_a_broker_that_is_missing_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = BrokerMissing("aedes", "aedes", "get it")
    monkeypatch.setattr(
        "isthmus.brokers.aedes.Aedes.missing", classmethod(lambda cls: absent), raising=True
    )
    for with_node in (True, False):
        nodes = [
            {"id": f"n{number}", "broker": broker, "with_node": with_node}
            for number, broker in enumerate(("mosquitto", "aedes", "mosquitto"))
        ]
        with pytest.raises(BrokerMissing, match="get it"), Rig(scenario(*nodes)):
            pytest.fail("it cannot have started")


def test_without_permission_it_runs_without_quotas_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise QuotaUnavailable("no permission to make groups in here")

    monkeypatch.setattr(rig_module, "find_hierarchy", refused)
    with Rig(scenario(BARE, cpu=0.1)) as rig:
        (note,) = rig.notes
        assert "no CPU quotas" in note
        assert "no permission to make groups in here" in note
        assert rig.throttled_ns("n1") is None
        assert answers(rig.targets["n1"])


def test_a_quota_that_one_server_cannot_have_none_has(monkeypatch: pytest.MonkeyPatch) -> None:
    place = CpuQuotas.place

    def second_fails(self: CpuQuotas, server: str, processes: Any) -> None:
        place(self, server, processes)
        if server == "n2":
            raise QuotaUnavailable("not n2")

    monkeypatch.setattr(CpuQuotas, "place", second_fails)
    with Rig(scenario(BARE, {"id": "n2", "with_node": False}, cpu=0.1)) as rig:
        assert len(rig.notes) == 1
        assert rig.throttled_ns("n1") is None


def test_whatever_fails_everything_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(rig_module, "find_hierarchy", broken)
    with (
        pytest.raises(RuntimeError, match="of our own"),
        Rig(scenario(*ROW, cpu=0.4, link_delay_ms=1.0)),
    ):
        pytest.fail("it cannot have started")


RUN = """
import sys, time
from isthmus.bench.rig.rig import Rig
from isthmus.bench.scenario import load_scenario
from isthmus.fabric.processes import interruptible
try:
    with interruptible(), Rig(load_scenario(sys.argv[1])):
        print("ready", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
FILE = """
[scenario]
name = "interrupted"
[load]
interval_ms = 100.0
[emulation]
cpu = 0.4
link_delay_ms = 1.0
[[node]]
id = "n1"
[[node]]
id = "n2"
peers = ["n1"]
[[place]]
node = "n1"
topic = "topic1"
publishers = 1
"""


@pytest.mark.parametrize("when", ["the first broker runs", "all is ready"])
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(tmp_path: Path, when: str, by: signal.Signals) -> None:
    file, log = tmp_path / "scenario.toml", tmp_path / "log"
    file.write_text(FILE)
    process = launch(Launch([sys.executable, "-c", RUN, str(file)]), log)
    try:
        watched = psutil.Process(process.pid)
        if when == "all is ready":
            wait_for(lambda: "ready" in log.read_text(), 30, "the rig")
        wait_for(lambda: watched.children(recursive=True), 30, "a broker")
        started = watched.children(recursive=True)
        process.send_signal(by)
        process.wait(30)
        assert log.read_text().endswith("interrupted\n")
        assert [each for each in started if each.is_running()] == []
    finally:
        end(process, 0)
    try:
        assert list(find_hierarchy().base.glob(f"isthmus-{process.pid}-*")) == []
    except QuotaUnavailable:
        pass  # then there were no groups


def test_too_many_servers_for_the_machine_are_noted() -> None:
    with Rig(scenario(BARE, cpu=1000.0)) as rig:
        assert any("more than the" in note or "no CPU quotas" in note for note in rig.notes)


@pytest.mark.slow
@pytest.mark.parametrize("broker", [name for name in names() if name != Mosquitto.name])
def test_every_broker_can_be_a_server(broker: str) -> None:
    require_broker(broker)
    behind_node: dict[str, Any] = {"id": "n1", "broker": broker}
    bare = {"id": "n2", "broker": broker, "with_node": False}
    with Rig(scenario(behind_node, bare, cpu=0.8, cpu_per_process=0.4)) as rig:
        for target in rig.targets.values():
            wait_for(lambda target=target: answers(target), 30, "an answer")  # type: ignore[misc]
        assert all(watched.pids for watched in rig.watched())
