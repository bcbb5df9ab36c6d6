"""The players and the arithmetic of the benchmark of QoS 1 and 2, many topics and storms."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from benchmarks.qos.players import IDS, PROBE, Latencies, Publisher, Subscriber
from benchmarks.qos.storm import Restart
from benchmarks.qos.topics import ManyTopics, Stream
from benchmarks.qos.verdict import Loop, Round, figures_of, tables_of, targets_of
from benchmarks.relay.statistics import Run

from isthmus.errors import LoadError

PARTS = {
    "direct": ("broker",),
    "node": ("broker", "node"),
    "never": ("broker", "node"),
    "linked": ("near broker", "near node", "far node", "far broker"),
    "bridge": ("near broker", "far broker"),
}


def run(path: str, rate: float, us: float) -> Run:
    cpu = dict.fromkeys((*PARTS[path], "generator"), us)
    return Run(rate, rate, cpu, cpu, 0.0, 2, 2)


def loops(rates: dict[str, float], us: float = 5.0) -> dict[str, dict[int, Loop]]:
    return {path: {20: Loop(run(path, rate, us), 0.001, 0.002)} for path, rate in rates.items()}


RATES = {"direct": 50_000.0, "node": 48_000.0, "never": 40_000.0, "linked": 20_000.0}


def round_of(scale: float = 1.0) -> Round:
    rates = {path: rate * scale for path, rate in RATES.items()}
    return Round(
        loops={1: loops(rates | {"bridge": 16_000.0 * scale}), 2: loops(rates)},
        topics={
            "linked": {
                count: ManyTopics(run("linked", 1.0, us), dict.fromkeys(PARTS["linked"], 2**20))
                for count, us in ((1_000, 2.0), (1_000_000, 3.2))
            }
        },
        storms={"direct": {"TCP": run("direct", 1e4, 1)}, "node": {"TCP": run("node", 4e3, 1)}},
        restart=Restart(0.5, 2.0),
    )


def test_ratios_are_taken_within_each_round_and_judged() -> None:
    rounds = [round_of(1.0), round_of(0.1), round_of(3.0)]
    figures = figures_of(rounds)
    ratio = figures["rate, node / direct, QoS 1, W = 20"].spread
    assert [ratio.low, ratio.high] == pytest.approx([0.96, 0.96])
    assert figures["CPU of all, linked / bridge, QoS 1, W = 20"].spread.median == 2.0
    assert not any("bridge, QoS 2" in name for name in figures)
    verdicts = {target.name: target.met for target in targets_of(figures, rounds)}
    assert verdicts["rate, linked / bridge, QoS 1, W = 20"]
    assert not verdicts["CPU of all, linked / bridge, QoS 1, W = 20"]
    assert not verdicts["CPU near node, 1,000,000 / 1,000 topics"]
    assert verdicts["memory far node, linked, 1,000,000 topics"]
    assert not verdicts["storm, TCP, node / direct"]
    assert verdicts["after a node's restart all are back within"]
    rates, cpu, taken = tables_of(rounds)[:3]
    assert rates["rows"][0] == ["direct", "50,000"]
    assert ["linked: far node", "5.000"] in cpu["rows"]
    assert ["bridge: p99", "2.000"] in taken["rows"]


def test_a_part_that_was_left_out_is_not_judged() -> None:
    rounds = [replace(round_of(), loops={}, topics={}, restart=None)] * 3
    targets = targets_of(figures_of(rounds), rounds)
    assert [target.name for target in targets] == ["storm, TCP, node / direct"]
    assert tables_of(rounds) == []


def test_latencies_are_weighed_by_their_messages() -> None:
    latencies = Latencies()
    for taken_s, count in ((3.0, 1), (1.0, 98), (2.0, 1)):
        latencies.add(taken_s, count)
    assert [latencies.percentile(percent) for percent in (50, 99, 100)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window", [1, 100])
def test_a_subscriber_takes_what_a_publisher_sends_and_nothing_else(qos: int, window: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        publisher = Publisher(ours, 7, qos, window, Latencies())
        publisher.begin()
        sent = theirs.recv(1 << 20)
        size = len(sent) // window

        def taken(data: bytes, cut: int = 0) -> int:
            one, other = socket.socketpair()
            with one, other:
                subscriber = Subscriber(one, 7, qos)
                for part in (data[:cut], data[cut:]) if cut else (data,):
                    other.sendall(part)
                    subscriber.turn()
                assert len(other.recv(1 << 20)) == 4 * (len(data) // size)
                return subscriber.delivered

        assert taken(sent) == taken(sent, size // 2 + 1) == window
        probe = sent[: size - 32] + PROBE.to_bytes(2) + bytes(30)
        assert taken(probe + sent) == window, "probes come when they come"
        with pytest.raises(LoadError, match=r"was due|out of order"):
            taken(sent + sent)
        lost = sent[size:] if window > 1 else sent[: size - 32] + b"\0\1" + bytes(30)
        with pytest.raises(LoadError, match="was due"):
            taken(lost)
        answers = b"".join(b"\x40\x02" + (n + 1).to_bytes(2) for n in range(window))
        if qos == 2:
            theirs.sendall(answers.replace(b"\x40\x02", b"\x50\x02"))
            publisher.turn()
            assert theirs.recv(1 << 20) == answers.replace(b"\x40\x02", b"\x62\x02")
            answers = answers.replace(b"\x40\x02", b"\x70\x02")
        theirs.sendall(answers)
        publisher.turn()
        assert (publisher.acknowledged, publisher.sent) == (window, 2 * window)
    assert window < IDS


def test_what_arrives_is_compared_with_what_was_sent() -> None:
    stream = Stream(3)
    sent = stream.next(2) + stream.next(5)
    assert len(sent) == 7 * stream.size
    stream.take(sent[:10])
    stream.take(sent[10:-1])
    assert stream.arrived == 6
    with pytest.raises(LoadError, match="than message 6"):
        stream.take(b"?")
