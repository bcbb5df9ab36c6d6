"""The fabric benchmark's own arithmetic: turns, far CPU above idle, routes, figures, targets."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from benchmarks.bench_filter_index import all_filters
from benchmarks.fabric.crossing import palindrome
from benchmarks.fabric.local import Local
from benchmarks.fabric.million import Million, Routes, distinct_topics, routes_of
from benchmarks.fabric.neighbor import Announcer
from benchmarks.fabric.rounds import Round
from benchmarks.fabric.sites import PATHS, bridge_lines, running_site
from benchmarks.fabric.timed import TimedSubscriptionFlooding, plug_in
from benchmarks.fabric.verdict import doubts, figures_of, round_document, targets_of
from benchmarks.relay.processes import Memory, node_file, peak_resident
from benchmarks.relay.statistics import Run

from isthmus.config.files import load_node_config
from isthmus.cooperation.api import Port, ReceivedPacket, SessionInfo, SessionKind
from isthmus.cooperation.registry import GROUP
from isthmus.cooperation.subscription_flooding.neighbor import WINDOW
from isthmus.errors import LoadError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.topics import matches
from isthmus.mqtt.packets import Packet, Publish, SubAck, Subscribe
from isthmus.mqtt.reason_codes import ReasonCode


def a_run(rate: float, cpu_us: dict[str, float], *, quiet: int = 1) -> Run:
    cores = {name: us * rate / 1e6 for name, us in cpu_us.items()}
    return Run(rate, rate, cpu_us, cores, 0.0 if quiet else 0.9, 2, quiet)


def a_local(path: str, far_us: float, *, crossed: int = 0) -> Local:
    """10,000 published a second to ten subscribers; the far broker idles at 0.001 cores."""
    run = a_run(100_000, {"far broker": far_us / 10, "far node": far_us / 10, "generator": 1.0})
    if path == "bridge":
        return Local(run, 10, {"far broker": 0.001}, None)
    return Local(run, 10, {"far broker": 0.001, "far node": 0.001}, crossed)


def a_round(
    sf: float,
    *,
    quiet: int = 1,
    far_node_us: float = 0.3,
    sf_far_us: float = 0.1,
    sf_crossed: int = 0,
) -> Round:
    """Bridge and PF at 200,000 a second, SF at `sf`; lazy subscribers have SF at half."""
    rates = {"bridge": 200_000.0, "sf": sf, "pf": 200_000.0}
    cpu = {"near broker": 0.5, "far broker": 4.0, "generator": 1.0}
    nodes = {"near node": 0.5, "far node": far_node_us}

    def runs(factor: float) -> dict[str, Run]:
        return {
            path: a_run(
                rate * (factor if path == "sf" else 1.0),
                cpu if path == "bridge" else cpu | nodes,
                quiet=quiet,
            )
            for path, rate in rates.items()
        }

    local = {
        "bridge": a_local("bridge", 8.0),
        "sf": a_local("sf", sf_far_us, crossed=sf_crossed),
        "pf": a_local("pf", 6.0, crossed=20_000),
    }
    return Round("bridge sf pf pf sf bridge", runs(1.0), runs(0.5), local)


def a_million(filters: int = 1_000_000, median_us: float = 12.0) -> Million:
    before, after = Memory(50 << 20, 0, 0), Memory(300 << 20, 0, 0)
    routes = (Routes(0, 10, 5.0, 9.0, 6.0), Routes(10, 10, median_us, 40.0, 15.0))
    return Million(filters, 20.0, 7.0, 4.0, before, after, 310 << 20, routes)


class TestSites:
    def test_a_nodes_file_is_one_that_nodes_accept(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text(
            node_file(
                "near",
                1884,
                '[cooperation]\nalgorithm = "sf"',
                peer=1888,
                mqtt=1885,
                link=1886,
                admin=1887,
            )
        )
        config = load_node_config(file)
        assert (config.node.id, config.cooperation.algorithm) == ("near", "sf")
        assert [peer.address.port for peer in config.peer] == [1888]

    def test_without_a_peer_there_is_none(self) -> None:
        text = node_file("near", 1, mqtt=2, link=3, admin=4)
        assert "peer" not in tomllib.loads(text)

    def test_the_bridge_carries_everything_both_ways_at_qos_0(self) -> None:
        assert "topic # both 0" in bridge_lines(1999)
        assert "address 127.0.0.1:1999" in bridge_lines(1999)

    def test_a_path_that_is_none(self) -> None:
        with pytest.raises(ValueError, match="known: bridge, sf, pf"), running_site("tree"):
            pass


class TestTurns:
    @pytest.mark.parametrize("number", range(6))
    def test_every_path_comes_twice_and_on_average_in_the_middle(self, number: int) -> None:
        turns = palindrome(PATHS, number)
        for path in PATHS:
            at = [place for place, turn in enumerate(turns) if turn == path]
            assert len(at) == 2
            assert sum(at) == len(turns) - 1

    def test_each_path_begins_a_round(self) -> None:
        assert {palindrome(PATHS, number)[0] for number in range(3)} == set(PATHS)


class TestLocal:
    def test_cpu_is_per_published_message(self) -> None:
        local = a_local("bridge", 8.0)
        assert local.published_rate == 10_000
        assert local.raw_us("far broker") == pytest.approx(8.0)

    def test_idle_cpu_is_taken_off(self) -> None:
        # 0.001 cores are 0.1 µs for each of 10,000 messages a second.
        assert a_local("sf", 0.1).above_idle_us("far node") == pytest.approx(0.0)
        assert a_local("sf", 0.3).above_idle_us("far node") == pytest.approx(0.2)

    def test_a_process_that_the_path_does_not_have(self) -> None:
        run = a_run(1000, {"far broker": 1.0})
        assert Local(run, 10, {}, None).raw_us("far node") == 0


class TestMillion:
    def test_topics_are_distinct_and_match_as_many_filters_as_they_should(self) -> None:
        filters = list(all_filters(20_005))
        for hits, topics in distinct_topics(20_005, 20, random.Random(5)).items():
            assert len(set(topics)) == len(topics) == 20
            for topic in topics:
                assert sum(matches(each, topic) for each in filters) == hits, topic

    def test_among_few_filters_there_are_fewer_topics(self) -> None:
        found = distinct_topics(20_000, 20_000, random.Random(5))
        assert {hits: len(set(topics)) for hits, topics in found.items()} == {
            0: 5_000,
            1: 5_000,
            10: 500,
        }

    def test_times_are_split_by_hits(self) -> None:
        by_hits = {0: ["a", "b"], 1: ["c", "d", "e"]}
        found = routes_of(by_hits, [1000, 3000, 10_000, 30_000, 20_000], [0, 0, 1, 1, 1])
        assert [(each.hits, each.topics) for each in found] == [(0, 2), (1, 3)]
        assert [each.median_us for each in found] == [2.0, 20.0]

    @pytest.mark.parametrize("sent_to", [[1, 1], [0, 0]])
    def test_a_wrong_route_is_noticed(self, sent_to: list[int]) -> None:
        with pytest.raises(LoadError, match="routed wrongly"):
            routes_of({0: ["a"], 10: ["b"]}, [1, 1], sent_to)

    def test_a_topic_that_was_not_asked_for_is_noticed(self) -> None:
        with pytest.raises(LoadError, match="1 routes for 2 topics"):
            routes_of({0: ["a", "b"]}, [1], [0])

    def test_bytes_per_filter(self) -> None:
        assert a_million(250).bytes_per_filter == 2**20

    def test_peak_resident(self) -> None:
        assert peak_resident("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n") == 2 << 20
        with pytest.raises(ValueError, match="VmHWM"):
            peak_resident("Name:\tx\n")

    def test_the_timed_algorithm_is_found_as_a_plug_in(self, tmp_path: Path) -> None:
        environment = plug_in(tmp_path)
        assert environment["PYTHONPATH"].split(":")[0] == str(tmp_path)
        (found,) = distributions(path=[str(tmp_path)])
        (entry,) = found.entry_points.select(group=GROUP)
        assert entry.name == TimedSubscriptionFlooding.name
        assert entry.load() is TimedSubscriptionFlooding


class FakePort:
    """Keeps what an announcer sends."""

    def __init__(self) -> None:
        self.sent: list[Packet] = []

    def create_mqtt_message(self, packet: Packet) -> bytes:
        return encode(packet, 5)

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        self.sent.append(decode(message, 5))
        return True


class TestAnnouncer:
    SESSION = SessionInfo(1, SessionKind.NEIGHBOR, "node")

    def announcer(self, filters: int) -> tuple[Announcer, FakePort]:
        fake = FakePort()
        port: Port = fake  # type: ignore[assignment]
        return Announcer(port, {}, (f"f/{number}" for number in range(filters))), fake

    def acknowledge(self, announcer: Announcer, packet: Subscribe) -> None:
        codes = (ReasonCode.GRANTED_QOS_2,) * len(packet.subscriptions)
        frame = encode(SubAck(packet.packet_id, codes), 5)
        announcer.mqtt_message_arrived(self.SESSION, ReceivedPacket(frame))

    def test_all_filters_are_announced_once_between_begin_and_end(self) -> None:
        announcer, port = self.announcer(2500)
        announcer.on_session_established(self.SESSION)
        begin, *middle, end = port.sent
        assert isinstance(begin, Publish)
        assert isinstance(end, Publish)
        assert (begin.payload, end.payload) == (b"begin", b"end")
        names: list[str] = []
        for packet in middle:
            assert isinstance(packet, Subscribe)
            names += [each.topic_filter for each in packet.subscriptions]
            self.acknowledge(announcer, packet)
        assert names == [f"f/{number}" for number in range(2500)]
        assert announcer.acknowledged == 2500

    def test_no_more_than_the_window_is_unacknowledged(self) -> None:
        announcer, port = self.announcer(1000 * (WINDOW + 3))
        announcer.on_session_established(self.SESSION)
        assert len(port.sent) == 1 + WINDOW
        for number in itertools.count(1):
            if announcer.done:
                break
            packet = port.sent[number]
            assert isinstance(packet, Subscribe)
            self.acknowledge(announcer, packet)
        assert len(port.sent) == 1 + WINDOW + 3 + 1


class TestVerdict:
    def test_the_ratio_is_taken_per_round_first(self) -> None:
        figures = figures_of([a_round(180_000), a_round(220_000), a_round(240_000)])
        assert figures["rate sf / bridge, waiting"].spread.median == pytest.approx(1.1)
        assert figures["rate sf / bridge, lazy"].spread.median == pytest.approx(0.55)
        assert figures["CPU far node, sf, waiting"].spread.median == 0.3
        total = figures["CPU of all, sf / bridge, waiting"].spread.median
        assert total == pytest.approx(5.3 / 4.5)
        assert "CPU far node, bridge, waiting" not in figures

    def test_disturbed_rounds_do_not_count(self) -> None:
        rounds = [a_round(200_000), a_round(100_000, quiet=0)]
        assert figures_of(rounds)["rate sf / bridge, waiting"].rounds == 1
        assert len(doubts(rounds)) == 1
        assert figures_of(rounds[1:])["rate sf / bridge, waiting"].rounds == 1

    def test_targets_that_are_met(self) -> None:
        rounds = [a_round(400_000)]
        targets = targets_of(figures_of(rounds), rounds, a_million())
        assert [target.met for target in targets] == [True] * 9

    def test_targets_that_are_missed(self) -> None:
        rounds = [a_round(199_000, far_node_us=2.0, sf_far_us=0.3, sf_crossed=1)]
        targets = targets_of(figures_of(rounds), rounds, a_million(median_us=20.5))
        assert [target.met for target in targets] == [False] * 8 + [True]

    def test_one_message_that_crossed_in_any_round_is_one_too_many(self) -> None:
        rounds = [a_round(400_000), a_round(400_000, sf_crossed=1), a_round(400_000)]
        met = {each.name: each.met for each in targets_of(figures_of(rounds), rounds, None)}
        assert not met["SF, all local: messages that crossed"]

    def test_fewer_filters_do_not_count(self) -> None:
        rounds = [a_round(400_000)]
        for million in (None, a_million(999_999)):
            targets = targets_of(figures_of(rounds), rounds, million)
            assert [target.value for target in targets[-2:]] == [None, None]

    def test_a_round_can_be_written(self) -> None:
        written = json.loads(json.dumps(round_document(a_round(220_000))))
        assert written["ratio"]["waiting"]["sf"] == pytest.approx(1.1)
        assert written["local_us_per_published"]["bridge"]["far broker"]["raw"] == pytest.approx(8)
        assert written["local"]["pf"]["crossed"] == 20_000

    def test_a_line_names_every_path(self) -> None:
        line = a_round(220_000).line()
        assert all(path in line for path in PATHS)
        assert "20000 crossed" in line
