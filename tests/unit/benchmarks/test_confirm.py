"""The arithmetic of the benchmark that waits for all brokers."""

from __future__ import annotations

import socket

import pytest
from benchmarks.bench_confirm import Answers, ConfirmRound, figures_of, targets_of
from benchmarks.confirm.loops import DELIVERED_BYTES, Subscriber
from benchmarks.relay.statistics import Run

from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish


def run(rate: float) -> Run:
    cpu = {"near node": 1.0, "far node": 2.0}
    return Run(rate, rate, cpu, cpu, 0.0, 4, 4)


def round_of(local: float, fabric: float, puback_s: float, rtt_s: float) -> ConfirmRound:
    answers = {mode: Answers(puback_s, 2 * puback_s, rtt_s) for mode in ("local", "fabric")}
    return ConfirmRound({"local": run(local), "fabric": run(fabric)}, answers, answers)


def test_ratios_are_taken_within_each_round() -> None:
    rounds = [
        round_of(10_000, 9_000, 0.012, 0.010),
        round_of(5_000, 4_000, 0.033, 0.011),
        round_of(1_000, 600, 0.024, 0.010),
    ]
    figures = figures_of(rounds)
    assert figures["rate, fabric / local"].spread.median == pytest.approx(0.8)
    assert figures["PUBACK, fabric / round trip"].spread.median == pytest.approx(2.4)
    assert [target.met for target in targets_of(figures)] == [True, True]
    slow = figures_of([round_of(10_000, 6_900, 0.031, 0.010)] * 3)
    assert [target.met for target in targets_of(slow)] == [False, False]


def test_what_arrives_is_counted_by_its_bytes() -> None:
    frame = encode(Publish("loop/07", bytes(32)), 4)
    assert len(frame) == DELIVERED_BYTES
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subscriber = Subscriber(ours)
        theirs.sendall(frame * 3 + frame[:10])
        subscriber.turn()
        assert subscriber.delivered == 3
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(LoadError, match="closed"):
            subscriber.turn()
