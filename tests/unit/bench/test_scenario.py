"""Scenarios: the paper's patterns as shipped, every mistake with its place, and the docs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from isthmus.bench.scenario import EmulatedLink, Scenario, load_scenario, shipped
from isthmus.config.addresses import Address
from isthmus.config.faults import Crash, Cut
from isthmus.config.files import FabricConfig
from isthmus.errors import ConfigError, ConfigMistake

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "scenarios.md"
MINIMAL = """\
[scenario]
name = "own"
[load]
interval_ms = 10.0
[[node]]
id = "n1"
[[place]]
node = "n1"
topic = "t"
publishers = 1
subscribers = 2
"""
LINES = MINIMAL.count("\n")
TOPICS = [f"topic{number}" for number in range(1, 6)]
NODES = [f"n{number}" for number in range(1, 6)]

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return to_file


def mistakes(path: Path) -> dict[str, ConfigMistake]:
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert all(mistake.file == str(path) for mistake in caught.value.mistakes)
    keys = [mistake.key for mistake in caught.value.mistakes]
    assert len(keys) == len(set(keys)), "one mistake is reported once"
    return {mistake.key: mistake for mistake in caught.value.mistakes}


# ---- the paper's patterns (ILDM §6.1, §6.3, Table 3) -------------------------------------------


def t_clients(scenario: Scenario, role: str) -> Counter[tuple[str, str]]:
    """How many t-clients of a role are at each node for each topic."""
    counts: Counter[tuple[str, str]] = Counter()
    for place in scenario.place:
        counts[place.node, place.topic] += getattr(place, role)
    return +counts


def test_what_ships() -> None:
    assert set(shipped()) >= {"single", "A", "B", "C", "D"}
    for name in shipped():
        assert load_scenario(name).name == name


@pytest.mark.parametrize("name", ["single", "A", "B", "C", "D"])
def test_what_the_patterns_have_in_common(name: str) -> None:
    scenario = load_scenario(name)
    assert (scenario.scenario.duration_s, scenario.scenario.trim_s) == (80, 10)
    assert (scenario.load.qos, scenario.load.payload_bytes) == (0, 32)
    assert scenario.sp_ratio == 10
    assert scenario.topics == (*TOPICS, "topic6")
    for role in ("publishers", "subscribers"):
        clients = t_clients(scenario, role)
        per_topic = Counter[str]()
        for (_, topic), count in clients.items():
            per_topic[topic] += count
        assert per_topic == dict.fromkeys(TOPICS, 10)
    ids = [node.id for node in scenario.node]
    latency = scenario.latency
    assert latency is not None
    assert (latency.topic, latency.interval_s) == ("topic6", 1)
    assert latency.publisher == "n1"  # at the end of the row
    assert list(latency.subscribers) == ids
    assert {node.broker for node in scenario.node} == {"mosquitto"}


@pytest.mark.parametrize(("name", "with_node"), [("single", False), ("A", True)])
def test_one_broker(name: str, with_node: bool) -> None:
    (node,) = load_scenario(name).node
    assert (node.id, node.with_node, node.peers) == ("n1", with_node, ())


@pytest.mark.parametrize("name", ["B", "C", "D"])
def test_five_in_a_row_with_twenty_clients_each(name: str) -> None:
    scenario = load_scenario(name)
    assert [node.id for node in scenario.node] == NODES
    assert [node.peers for node in scenario.node] == [(), *[(node,) for node in NODES[:-1]]]
    assert all(node.with_node for node in scenario.node)
    for role in ("publishers", "subscribers"):
        at_node = Counter[str]()
        for (node, _), count in t_clients(scenario, role).items():
            at_node[node] += count
        assert at_node == dict.fromkeys(NODES, 10)


@pytest.mark.parametrize("role", ["publishers", "subscribers"])
def test_locality(role: str) -> None:
    def counts(name: str, node: str) -> list[int]:
        clients = t_clients(load_scenario(name), role)
        return sorted((n for (at, _), n in clients.items() if at == node), reverse=True)

    for node in NODES:
        assert counts("B", node) == [2, 2, 2, 2, 2]
        assert counts("C", node) == [10]
        assert counts("D", node) == [8, 1, 1]


def test_in_pattern_d_publishers_and_subscribers_are_placed_alike() -> None:
    scenario = load_scenario("D")
    assert t_clients(scenario, "publishers") == t_clients(scenario, "subscribers")


# ---- what is accepted --------------------------------------------------------------------------


def test_a_minimal_file_has_every_default(write: Write) -> None:
    scenario = load_scenario(write(MINIMAL))
    assert scenario.name == "own"
    assert (scenario.scenario.duration_s, scenario.scenario.trim_s) == (80, 10)
    assert scenario.load.interval_ns == 10_000_000
    assert (scenario.load.qos, scenario.load.payload_bytes) == (0, 32)
    assert scenario.latency is None
    assert scenario.cooperation.algorithm == "sf"
    assert scenario.node[0].broker == "mosquitto"
    assert scenario.node[0].with_node
    assert scenario.emulation.cpu is None
    assert scenario.emulation.link == ()
    assert scenario.emulation.longest_delay_s == 0
    assert scenario.topics == ("t",)
    assert scenario.sp_ratio == 2


def test_every_key_can_be_set(write: Write) -> None:
    scenario = load_scenario(
        write(
            """
            [scenario]
            name = "all"
            seed = 7
            description = "everything"
            duration_s = 12
            trim_s = 2.5
            [load]
            rate = 250
            qos = 2
            payload_bytes = 1024
            [latency]
            topic = "fast"
            publisher = "a"
            subscribers = ["a", "b"]
            interval_s = 0.05
            qos = 1
            [emulation]
            cpu = 0.5
            cpu_per_process = 0.25
            period_ms = 10
            link_delay_ms = 5
            link_mbit_s = 100
            [[emulation.link]]
            between = ["b", "a"]
            delay_ms = 0
            mbit_s = 2.5
            back_delay_ms = 30
            back_mbit_s = 1
            [[cut]]
            at_s = 1
            for_s = 2
            source = ["a"]
            target = ["b"]
            one_way = true
            [[crash]]
            node = "a"
            at_s = 4
            for_s = 1.5
            [cooperation]
            algorithm = "tree"
            alpha = 0.7
            beta = 0.3
            [discovery]
            group = "239.255.77.84:0"
            [link]
            qos = 2
            secret = "0123456789abcdef-hunter2"
            [limits]
            clients = 100
            [log]
            level = "warning"
            [[node]]
            id = "a"
            broker = "hivemq"
            mqtt = "127.0.0.1:1883"
            [[node]]
            id = "b"
            broker = "mqtt://127.0.0.1:1999"
            username = "b"
            password = "hunter2"
            peers = ["a"]
            [[node]]
            id = "c"
            address = "192.0.2.7:1883"
            admin = "192.0.2.7:9883"
            username = "bench"
            password = "hunter2"
            [[place]]
            node = "a"
            topic = "x"
            publishers = 3
            [[place]]
            node = "b"
            topic = "x"
            subscribers = 4
            [[place]]
            node = "c"
            topic = "y"
            publishers = 1
            subscribers = 1
            """
        )
    )
    assert scenario.load.interval_ns == 4_000_000
    assert scenario.topics == ("x", "y", "fast")
    assert scenario.sp_ratio == (3 * 4 + 1 * 1) / 4
    assert scenario.node[2].address == Address("192.0.2.7", 1883)
    (line,) = scenario.emulation.link
    assert (line.between, line.delay_ms, line.mbit_s) == (("b", "a"), 0, 2.5)
    assert (line.back_delay_ms, line.back_mbit_s) == (30, 1)
    assert scenario.emulation.longest_delay_s == 0.03
    for shown in (repr(scenario), str(scenario.model_dump(mode="json"))):
        assert "hunter2" not in shown


def test_the_same_topic_at_several_places_counts_once() -> None:
    scenario = load_scenario("B")
    assert len(scenario.place) == 25
    assert len(scenario.topics) == 6


def test_a_scenario_with_l_clients_only(write: Write) -> None:
    text = MINIMAL.partition("[[place]]")[0] + '[latency]\npublisher = "n1"\nsubscribers = ["n1"]\n'
    scenario = load_scenario(write(text))
    assert scenario.topics == ("topic6",)
    assert scenario.sp_ratio == 0


def test_the_same_with_changes() -> None:
    scenario = load_scenario("C")
    other = scenario.changed(
        broker="hivemq", algorithm="pf", duration_s=8, trim_s=1, interval_ns=1_234_567
    )
    assert {node.broker for node in other.node} == {"hivemq"}
    assert other.cooperation.algorithm == "pf"
    assert (other.scenario.duration_s, other.scenario.trim_s) == (8, 1)
    assert other.load.interval_ns == 1_234_567
    assert other.place == scenario.place
    assert other.load.payload_bytes == scenario.load.payload_bytes
    assert scenario.changed() == scenario
    rate = scenario.model_copy(
        update={"load": scenario.load.model_copy(update={"interval_ms": None, "rate": 4.0})}
    )
    assert rate.load.interval_ns == 250_000_000
    assert rate.changed(interval_ns=1000).load.interval_ns == 1000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duration_s": 20.0}, "10 s cut at each end leave nothing of 20 s"),
        ({"trim_s": 40.0}, "40 s cut at each end leave nothing of 80 s"),
        ({"broker": "mosquito"}, "did you mean 'mosquitto'"),
        ({"algorithm": "fp"}, "known: "),
    ],
)
def test_changes_that_a_file_could_not_say(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_scenario("C").changed(**changes)  # type: ignore[arg-type]


# ---- mistakes in one key -----------------------------------------------------------------------

NODE = '[[node]]\nid = "n2"\n'
PLACE = '[[place]]\nnode = "n1"\n'
LATENCY = '[latency]\npublisher = "n1"\nsubscribers = ["n1"]\n'


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        # in a field
        (NODE + 'broker = "mosquito"', "node[1].broker", ["did you mean 'mosquitto'?"]),
        (NODE + 'with_node = "no"', "node[1].with_node", ["boolean", '"no"']),
        (NODE + 'peers = "n1"', "node[1].peers", ["must be a list", 'peers = ["edge-2"]']),
        (NODE + 'address = "h"', "node[1].address", ["no port"]),
        (NODE + "adress = 1", "node[1].adress", ["did you mean 'address'?"]),
        (PLACE + 'topic = "u"\npublishers = -1', "place[1].publishers", ["equal to 0", "-1"]),
        (PLACE + 'topic = "u"\npublishers = 1.5', "place[1].publishers", ["an integer"]),
        (PLACE + 'publishers = 1\ntopic = ""', "place[1].topic", ["must not be empty", "topic1"]),
        (LATENCY + "interval_s = 0", "latency.interval_s", ["0.001"]),
        (LATENCY + "qos = 3", "latency.qos", ["0, 1 or 2"]),
        (LATENCY + "interval_ms = 3", "latency.interval_ms", ["did you mean 'interval_s'?"]),
        ("[emulation]\ncpu = 0", "emulation.cpu", ["greater than 0"]),
        ("[emulation]\ncpu = nan", "emulation.cpu", ["finite"]),
        ("[emulation]\nperiod_ms = 0.1", "emulation.period_ms", ["equal to 1"]),
        ("[emulation]\nlink_delay_ms = -1", "emulation.link_delay_ms", ["equal to 0"]),
        ("[emulation]\ncpus = 1", "emulation.cpus", ["did you mean 'cpu'?"]),
        # between keys
        (NODE + 'peers = ["n3"]', "node[1].peers", ['no [[node]] "n3"', "there are n1"]),
        (NODE + 'peers = ["n1", "n1"]', "node[1].peers", ["named twice"]),
        (
            NODE + 'with_node = false\nbroker = "mqtts://192.0.2.7:8883"',
            "node[1].broker",
            ["speaks no TLS", "mqtt:// URL"],
        ),
        (NODE + 'peers = ["n2"]', "node[1].peers", ["this node itself"]),
        (
            NODE + 'with_node = false\npeers = ["n1"]',
            "node[1].peers",
            ["a bare broker has no links", "with_node"],
        ),
        (
            NODE + 'address = "h:1"\npeers = ["n1"]',
            "node[1].peers",
            ["linked by its own node's file"],
        ),
        (NODE + 'address = "h:0"', "node[1].address", ["no port to connect to"]),
        (
            NODE + 'address = "h:1"\nadmin = "h:0"',
            "node[1].admin",
            ["no port to connect to"],
        ),
        (NODE + 'username = "u"', "node[1].username", ['no effect with broker = "mosquitto"']),
        (NODE + 'address = "h:1"\nmqtt = "h:2"', "node[1].mqtt", ["is started here"]),
        # what a fabric's file would be told as well
        (NODE + 'mqtt = "h:1"\nws = "h:1"', "node[1].ws", ["already taken by node[1].mqtt"]),
        ('[discovery]\ngroup = "10.0.0.1:0"', "discovery.group", ["no multicast group"]),
        ("[discovery]\nevery_s = 1", "discovery.every_s", ["without discovery.group"]),
        ("[link]\ndead_after_s = 0", "link.dead_after_s", ["equal to 0.2"]),
        ("[cooperation]\nalgoritm = 1", "cooperation.algoritm", ["did you mean 'algorithm'?"]),
        ('[cooperation]\nalgorithm = "sf"\nfoo = 1', "cooperation.foo", ["no such option"]),
        (
            PLACE + 'publishers = 1\ntopic = "a/+"',
            "place[1].topic",
            ["contains a wildcard"],
        ),
        (PLACE + 'publishers = 1\ntopic = "$SYS/x"', "place[1].topic", ["begins with $"]),
        (PLACE + 'publishers = 1\ntopic = "a\\u0000"', "place[1].topic", ["U+0000"]),
        (LATENCY + 'topic = "t"', "latency.topic", ["is a topic of t-clients"]),
        (LATENCY + 'topic = "#"', "latency.topic", ["contains a wildcard"]),
    ],
)
def test_one_mistake_is_reported_once_with_its_line(
    write: Write, text: str, key: str, words: list[str]
) -> None:
    path = write(f"{MINIMAL}{text}\n")
    found = mistakes(path)
    assert list(found) == [key]
    assert found[key].line == LINES + text.count("\n") + 1
    for word in words:
        assert word in found[key].problem
    assert str(found[key]).startswith(f"{path}:{found[key].line}: {key}: ")


@pytest.mark.parametrize(
    ("change", "key", "line", "words"),
    [
        (('name = "own"', 'name = "a b"'), "scenario.name", 2, ["1 to 64 letters", 'name = "C"']),
        (('name = "own"', ""), "scenario.name", 1, ["is required", 'name = "C"']),
        (
            ('name = "own"', 'name = "own"\nduration_s = 20.0'),
            "scenario.duration_s",
            3,
            ["10 s cut at each end leave nothing of 20 s", "at most 5 "],
        ),
        (('name = "own"', 'name = "own"\ntrim_s = 40'), "scenario.trim_s", 3, ["at most 20 "]),
        (('name = "own"', 'name = "own"\nduration_s = 0'), "scenario.duration_s", 3, ["than 0"]),
        (("interval_ms = 10.0", ""), "load.interval_ms", 3, ["is required, or rate"]),
        (("interval_ms = 10.0", "interval_ms = 0"), "load.interval_ms", 4, ["equal to 0.001"]),
        (("interval_ms = 10.0", "interval = 1\nrate = 1"), "load.interval", 4, ["'interval_ms'?"]),
        (("interval_ms = 10.0", "interval_ms = 1\nrate = 1"), "load.interval_ms", 4, ["both say"]),
        (("interval_ms = 10.0", "rate = 1e7"), "load.rate", 4, ["1000000"]),
        (
            ("interval_ms = 10.0", "rate = 1\npayload_bytes = 31"),
            "load.payload_bytes",
            5,
            ["equal to 32", "not 31", "payload_bytes = 32"],
        ),
        (('id = "n1"', 'id = "n1"\n[[node]]\nid = "n1"'), "node[1].id", 8, ["already the id"]),
        (('node = "n1"', 'node = "nn1"'), "place[0].node", 8, ['no [[node]] "nn1"', "'n1'?"]),
        (('node = "n1"', ""), "place[0].node", 7, ["is required"]),
        (("publishers = 1\nsubscribers = 2\n", LATENCY), "place[0]", 7, ["places nobody"]),
        (("publishers = 1\n", ""), "place", 7, ["nobody publishes", "publishers = 10"]),
        (
            ("[scenario]", '[cooperation]\nalgorithm = "fp"\n[scenario]'),
            "cooperation.algorithm",
            2,
            ["known: none, pf, sf"],
        ),
        (("[[place]]", "[place]"), "place", 7, ["[[place]]", "double brackets"]),
        (("[[node]]", "[node]"), "node", 5, ["[[node]]", "double brackets"]),
    ],
)
def test_a_mistake_within_the_file(
    write: Write, change: tuple[str, str], key: str, line: int, words: list[str]
) -> None:
    found = mistakes(write(MINIMAL.replace(*change)))
    found.pop("place[0].node" if key == "node" else "", None)  # which then is not there
    assert list(found) == [key]
    assert found[key].line == line
    for word in words:
        assert word in found[key].problem


def test_a_file_of_an_earlier_version(write: Write) -> None:
    found = mistakes(write('algorithm = "sf"\n' + MINIMAL.replace("[[node]]", "[[server]]")))
    assert "is called 'node' now" in found["server"].problem
    assert "known here: scenario, node, cooperation" in found["algorithm"].problem


ROW = MINIMAL.replace('id = "n1"', 'id = "n1"\n[[node]]\nid = "n2"\npeers = ["n1"]')


def test_peers_that_have_no_links(write: Write) -> None:
    bare = ROW.replace('id = "n1"\n', 'id = "n1"\nwith_node = false\n')
    assert "is a bare broker" in mistakes(write(bare))["node[1].peers"].problem
    running = ROW.replace('id = "n1"\n', 'id = "n1"\naddress = "h:1"\n')
    assert "runs already" in mistakes(write(running))["node[1].peers"].problem
    alone = mistakes(write('[cooperation]\nalgorithm = "none"\n' + ROW))
    assert "passes no message to a peer" in alone["cooperation.algorithm"].problem


def test_subscribers_that_nothing_can_reach(write: Write) -> None:
    far = '[[place]]\nnode = "n2"\ntopic = "t"\nsubscribers = 1\n'
    assert load_scenario(write(ROW + far))
    apart = ROW.replace('peers = ["n1"]\n', "")
    found = mistakes(write(apart + far))
    assert list(found) == ["place[1].topic"]
    assert '"t" is published at n1, but no links lead from there to n2' in str(found)
    latency = '[latency]\npublisher = "n1"\nsubscribers = ["n1", "n2"]\n'
    assert load_scenario(write(ROW + latency))
    found = mistakes(write(apart + latency))
    assert list(found) == ["latency.subscribers"]
    assert "no links lead from there to n2" in found["latency.subscribers"].problem
    # How those are linked that run already is not known here.
    running = apart.replace('id = "n2"\n', 'id = "n2"\naddress = "h:1"\n')
    assert load_scenario(write(running + far + latency))


def test_a_long_row_in_any_order_is_joined(write: Write) -> None:
    nodes = "".join(
        f'[[node]]\nid = "s{at}"\npeers = [{peer}]\n'
        for at, peer in [(3, '"s4"'), (0, '"s1"'), (4, ""), (1, '"s2"'), (2, '"s3"')]
    )
    places = "".join(
        f'[[place]]\nnode = "s{at}"\ntopic = "t"\npublishers = 1\nsubscribers = 1\n'
        for at in range(5)
    )
    head = '[scenario]\nname = "row"\n[load]\nrate = 1\n'
    assert load_scenario(write(head + nodes + places))
    assert mistakes(write(head + nodes.replace('"s3"', "") + places))


@pytest.mark.parametrize("key", ["publisher", "subscribers"])
def test_l_clients_at_no_node(write: Write, key: str) -> None:
    value = '"n9"' if key == "publisher" else '["n1", "n9", "n8"]'
    lines = {"publisher": '"n1"', "subscribers": '["n1"]', key: value}
    text = "[latency]\n" + "".join(f"{name} = {given}\n" for name, given in lines.items())
    found = mistakes(write(MINIMAL + text))
    assert list(found) == [f"latency.{key}"]
    assert 'no [[node]] "n9"' in found[f"latency.{key}"].problem
    assert found[f"latency.{key}"].line == LINES + (2 if key == "publisher" else 3)


# ---- lines between nodes -----------------------------------------------------------------------

THREE = MINIMAL.replace('id = "n1"', 'id = "n1"\n[[node]]\nid = "n2"\n[[node]]\nid = "n3"')
LINE = '[[emulation.link]]\nbetween = ["n1", "n2"]\n'


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (LINE + "delay_ms = -1", "delay_ms", ["equal to 0", "-1", "delay_ms = 20.0"]),
        (LINE + "delay_ms = 1e9", "delay_ms", ["60000"]),
        (LINE + "delay_ms = nan", "delay_ms", ["finite"]),
        (LINE + "back_delay_ms = -0.5", "back_delay_ms", ["equal to 0", "-0.5"]),
        (LINE + "mbit_s = 0", "mbit_s", ["greater than 0"]),
        (LINE + "mbit_s = -3", "mbit_s", ["greater than 0", "-3"]),
        (LINE + "delay_ms = 1\nback_mbit_s = -3", "back_mbit_s", ["greater than 0", "-3"]),
        (LINE + 'mbit_s = "3"', "mbit_s", ["number"]),
        (LINE + "delay_ms = 1\ndelay = 1", "delay", ["did you mean 'delay_ms'?"]),
        (
            '[[emulation.link]]\ndelay_ms = 1\nbetween = ["n1", "nn2"]',
            "between",
            ['no [[node]] "nn2"', "'n2'?", "there are n1, n2, n3"],
        ),
        ('[[emulation.link]]\ndelay_ms = 1\nbetween = ["n1", "n1"]', "between", ["named twice"]),
        ('[[emulation.link]]\ndelay_ms = 1\nbetween = ["n1"]', "between", ["two nodes, not 1"]),
        (
            '[[emulation.link]]\ndelay_ms = 1\nbetween = ["n1", "n2", "n3"]',
            "between",
            ["two nodes, not 3"],
        ),
        ('[[emulation.link]]\ndelay_ms = 1\nbetween = "n1"', "between", ["must be a list"]),
        ('[[emulation.link]]\ndelay_ms = 1\nbetween = [1, "n2"]', "between[0]", ["string"]),
    ],
)
def test_a_mistake_in_a_line(write: Write, text: str, key: str, words: list[str]) -> None:
    path = write(f"{THREE}{text}\n")
    found = mistakes(path)
    assert list(found) == [f"emulation.link[0].{key}"]
    (mistake,) = found.values()
    assert mistake.line == (THREE + text).count("\n") + 1
    for word in words:
        assert word in mistake.problem


def test_a_line_that_is_given_twice_says_nothing_or_leads_nowhere(write: Write) -> None:
    fine = LINE + "delay_ms = 1\n"
    assert len(load_scenario(write(THREE + fine)).emulation.link) == 1
    again = '[[emulation.link]]\nbetween = ["n2", "n1"]\ndelay_ms = 2\n'
    found = mistakes(write(THREE + fine + again))
    assert list(found) == ["emulation.link[1].between"]
    problem = found["emulation.link[1].between"].problem
    assert problem.startswith("emulation.link[0] is already the line between n2 and n1")
    assert found["emulation.link[1].between"].line == (THREE + fine).count("\n") + 2
    found = mistakes(write(THREE + LINE))
    assert list(found) == ["emulation.link[0]"]
    assert "says nothing of this line" in found["emulation.link[0]"].problem
    assert found["emulation.link[0]"].line == THREE.count("\n") + 1
    bare = THREE.replace('id = "n2"\n', 'id = "n2"\nwith_node = false\n')
    assert "is a bare broker" in mistakes(write(bare + fine))["emulation.link[0].between"].problem
    running = THREE.replace('id = "n2"\n', 'id = "n2"\naddress = "h:1"\n')
    assert "runs already" in mistakes(write(running + fine))["emulation.link[0].between"].problem
    table = mistakes(write(THREE + fine.replace("[[", "[").replace("]]", "]")))
    assert "double brackets" in table["emulation.link"].problem


# ---- what fails, and when ----------------------------------------------------------------------

CUT = '[[cut]]\nat_s = 1.0\nfor_s = 2.0\nsource = ["n1"]\ntarget = ["n2", "n3"]\n'
CRASH = '[[crash]]\nnode = "n1"\nat_s = 3.0\nfor_s = 2.0\n'


def test_faults(write: Write) -> None:
    scenario = load_scenario(write(THREE + CUT + CRASH))
    (cut,), (crash,) = scenario.cut, scenario.crash
    assert cut.ways == (("n1", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n1"))
    assert cut.model_copy(update={"one_way": True}).ways == (("n1", "n2"), ("n1", "n3"))
    assert (crash.node, crash.at_s, crash.end_s) == ("n1", 3, 5)
    with pytest.raises(ValueError, match=r"crash\[0\] ends after the run, which takes 4 s"):
        scenario.changed(duration_s=4, trim_s=0)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (CUT.replace('"n1"', '"m1"'), "cut[0].source", ['no [[node]] "m1"', "n1, n2, n3"]),
        (CUT.replace('"n3"', '"n1"'), "cut[0].target", ['"n1" is on both sides']),
        (CUT.replace("2.0", "0"), "cut[0].for_s", ["greater than 0"]),
        (CUT.replace("1.0", "79.0"), "cut[0].for_s", ["ends after the run, which takes 80 s"]),
        (CUT + "oneway = true\n", "cut[0].oneway", ["did you mean 'one_way'?"]),
        (CRASH.replace("3.0", "-1"), "crash[0].at_s", ["equal to 0"]),
        (CRASH.replace("3.0", "79"), "crash[0].for_s", ["ends after the run"]),
        (CRASH.replace("n1", "n4"), "crash[0].node", ['no [[node]] "n4"']),
        (CRASH + CRASH, "crash[1].at_s", ["n1 is down until 5 s by crash[0]"]),
    ],
)
def test_a_mistake_in_a_fault(write: Write, text: str, key: str, words: list[str]) -> None:
    found = mistakes(write(THREE + text))
    assert list(found) == [key]
    for word in words:
        assert word in found[key].problem
    bare = THREE.replace('id = "n1"\n', 'id = "n1"\nwith_node = false\n')
    assert "is a bare broker" in mistakes(write(bare + CRASH))["crash[0].node"].problem
    running = THREE.replace('id = "n1"\n', 'id = "n1"\naddress = "h:1"\n')
    assert "runs already" in mistakes(write(running + CUT))["cut[0].source"].problem


# ---- the fabric --------------------------------------------------------------------------------


def test_tls_hides_whom_to_cut_off(write: Write) -> None:
    for name in ("cert", "key", "ca"):
        write(THREE).with_name(name).touch()
    tls = '[link.tls]\ncert = "cert"\nkey = "key"\nca = "ca"\n'
    assert load_scenario(write(THREE + CRASH + tls))
    assert list(mistakes(write(THREE + CUT + tls))) == ["link.tls"]


def test_nodes_that_find_each_other_are_joined(write: Write) -> None:
    far = '[[place]]\nnode = "n2"\ntopic = "t"\nsubscribers = 1\n'
    assert "place[1].topic" in mistakes(write(THREE + far))
    found = far + '[discovery]\ngroup = "239.255.77.84:0"\n'
    assert load_scenario(write(THREE + found)).discovery.is_on
    bare = THREE.replace('id = "n2"\n', 'id = "n2"\nwith_node = false\n')
    assert "no links lead" in mistakes(write(bare + found))["place[1].topic"].problem


def test_the_fabric_of_a_scenario(write: Write) -> None:
    text = THREE.replace('id = "n2"\n', 'id = "n2"\nwith_node = false\n')
    text = text.replace('id = "n3"\n', 'id = "n3"\naddress = "h:1"\n')
    fabric = load_scenario(write(text + "[link]\nqos = 2\n")).fabric
    assert [node.id for node in fabric.node] == ["n1"]
    assert fabric.link.qos == 2


def test_another_algorithm_has_other_keys(write: Write) -> None:
    scenario = load_scenario(write(MINIMAL + '[cooperation]\nalgorithm = "tree"\nalpha = 2.0\n'))
    assert scenario.changed(algorithm="tree").cooperation.options == {"alpha": 2.0}
    assert scenario.changed(algorithm="sf").cooperation.options == {}


def test_a_login(write: Write) -> None:
    running = MINIMAL.replace('id = "n1"', 'id = "n1"\naddress = "h:1"\npassword = "hunter2"')
    found = mistakes(write(running))
    assert list(found) == ["node[0].username"]
    assert "hunter2" not in str(found)
    assert load_scenario(write(running.replace("password", 'username = "u"\npassword')))


def test_an_empty_file(write: Write) -> None:
    assert set(mistakes(write(""))) == {"scenario", "load.interval_ms", "node", "place"}
    problem = mistakes(write("node = []\n"))["node"].problem
    assert problem == "there must be at least one; begin it with [[node]]"
    none = MINIMAL + '[latency]\npublisher = "n1"\nsubscribers = []\n'
    problem = mistakes(write(none))["latency.subscribers"].problem
    assert problem == 'must not be empty; for example subscribers = ["n1", "n2"]'


def test_all_mistakes_come_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        '[scenario]\nname = "x"\nduration_s = 5\n'
        "[load]\ninterval_ms = 1\nrate = 2\nqos = 7\n"
        '[latency]\npublisher = "n7"\n'
        '[[node]]\nid = "n1"\npeers = ["n1"]\n'
        '[[node]]\nid = "n1"\n'
        '[[place]]\nnode = "n5"\ntopic = "#"\n'
        "[extra]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [
        (3, "scenario.duration_s"),
        (5, "load.interval_ms"),
        (7, "load.qos"),
        (8, "latency.subscribers"),
        (9, "latency.publisher"),
        (12, "node[0].peers"),
        (14, "node[1].id"),
        (15, "place[0]"),
        (16, "place[0].node"),
        (17, "place[0].topic"),
        (18, "extra"),
    ]


def test_a_name_that_is_neither_a_file_nor_shipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="those that ship: A, B, C, D") as caught:
        load_scenario("E")
    assert caught.value.mistakes[0].file == "E"
    with pytest.raises(ConfigError, match="No such file"):
        load_scenario(tmp_path / "E")
    with pytest.raises(ConfigError, match="No such file"):
        load_scenario("E.toml")


def test_what_is_no_toml(write: Write) -> None:
    assert mistakes(write("[scenario]\nname = \n"))[""].line == 2


toml_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-5, 300),
        st.sampled_from(
            ['"n1"', '"t"', '"h:1"', "1.5", "nan", "{ }", '{ id = "n1" }', "{ id = 1 }"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


KEYS = {
    table: list(model.model_fields)
    for table, model in [
        ("scenario", Scenario.model_fields["scenario"].annotation),
        ("load", Scenario.model_fields["load"].annotation),
        ("latency", get_args(Scenario.model_fields["latency"].annotation)[0]),
        ("node", get_args(Scenario.model_fields["node"].annotation)[0]),
        ("place", get_args(Scenario.model_fields["place"].annotation)[0]),
        ("emulation.link", EmulatedLink),
        ("cut", Cut),
        ("crash", Crash),
    ]
    if model is not None
}
inside = st.sampled_from(sorted(KEYS)).flatmap(
    lambda table: st.tuples(
        st.just(table), st.dictionaries(st.sampled_from(KEYS[table]), toml_values, max_size=4)
    )
)


@given(
    st.dictionaries(st.sampled_from(list(Scenario.model_fields)), toml_values, max_size=4),
    st.lists(inside, max_size=4, unique_by=lambda item: item[0]),
)
def test_values_of_any_type_never_crash_the_loader(
    top: dict[str, object], tables: list[tuple[str, dict[str, object]]]
) -> None:
    text = "".join(
        f"{key} = {_toml(value)}\n"
        for key, value in top.items()
        if key not in {table.partition(".")[0] for table, _ in tables}
    )
    for table, content in tables:
        text += (
            f"[[{table}]]\n"
            if table in ("node", "place", "emulation.link", "cut", "crash")
            else f"[{table}]\n"
        )
        text += "".join(f"{key} = {_toml(value)}\n" for key, value in content.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.toml")
        path.write_text(text)
        with contextlib.suppress(ConfigError):
            load_scenario(path)


# ---- documentation -----------------------------------------------------------------------------


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, UnionType):
            inner = next(kind for kind in get_args(inner) if kind is not NoneType)
        if get_origin(inner) is tuple:
            inner = get_args(inner)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "required" if field.is_required() else field.default


def _shown(default: object) -> str:
    if default is None:
        return "not set"
    if default == "required":
        return "required"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"`{default}`"
    return "`[]`" if default == () else f'`"{default}"`'


def test_every_key_is_documented_with_its_default() -> None:
    rows = {
        cells[1].strip(): cells[2].strip()
        for line in REFERENCE.read_text().splitlines()
        if line.startswith("| `") and len(cells := line.split("|")) > 3
    }
    shared = tuple(f"{name}." for name in FabricConfig.model_fields if name != "node")
    assert rows == {
        f"`{key}`": _shown(default)
        for key, default in _fields(Scenario)
        if not key.startswith(shared)  # those are in configuration.md
    }


def test_the_example_of_the_documentation(write: Write) -> None:
    first, fabric, lines = re.findall("```toml\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    scenario = load_scenario(write(first))
    assert scenario.sp_ratio == 10
    (line,) = load_scenario(write(first + lines)).emulation.link
    found = load_scenario(write(first.replace('[cooperation]\nalgorithm = "sf"\n', "") + fabric))
    assert (found.cooperation.algorithm, found.discovery.is_on) == ("topic-tree", True)
    assert (line.between, line.back_mbit_s) == (("north", "south"), 2)
