"""The whole node against its model, and against nodes that are wrong; see `fuzz_node.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fuzz.fuzz_node import Report, fuzz, run_episode
from isthmus.exchange.client.broker_session import BrokerSession
from isthmus.exchange.client.checks import TopicAliases
from isthmus.exchange.client.client import Client
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.relay import Relay
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.mqtt.packets import ConnAck, Connect


def check(packets: int, seed: int) -> Report:
    report = fuzz(packets, seed)
    print(f"seed {seed}: {report}")
    assert report.failure is None, report.failure
    assert report.packets >= packets
    # A fuzzer whose clients are all refused, or whose packets are all bad, proves little.
    assert report.publishes > packets // 10
    assert report.messages > packets // 15
    assert report.ends["accepted"] > report.ends["refused or never answered"] > 10
    assert report.ends["no CONNECT"] > 10
    return report


def test_node_on_20_000_packets() -> None:
    check(20_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_node_on_a_million_packets() -> None:
    check(1_000_000, seed=2)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = fuzz(3_000, seed=3), fuzz(3_000, seed=3)
    assert first.record() | {"packets_per_s": 0} == second.record() | {"packets_per_s": 0}


# ---- nodes that are wrong, as they were ---------------------------------------------------


def never_released(self: Unreleased, packet_id: int) -> None:
    """A PUBREL with a reason code, or a PUBREC that refuses, leaves the identifier taken."""


def forgotten(self: Client, connect: Connect, connack: ConnAck) -> Unreleased:
    """Who takes a session over begins with an empty memory."""
    return Unreleased()


def let_in(self: BrokerSession, connack: ConnAck, client: ClientSession) -> None:
    """What waited for the CONNACK goes on, whatever it says."""
    client.released()


def forwarded(
    self: ClientSession, data: bytes, publishes: int, _offsets: Sequence[int] | None = None
) -> None:
    """The broker gets each packet's copy twice now and then."""
    assert self.paired is not None
    self.paired.wire.write(data + (data if len(data) == 4 else b""))


def careless(self: TopicAliases, alias: int, topic: bytes) -> bytes:
    """Does not know that an alias may be unknown."""
    return topic or self._topics[alias]


def kept(self: Relay, client: ClientSession) -> None:
    """Forgets that a client is gone."""


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "problem"),
    [
        (Unreleased, "release", never_released, "to the fabric"),
        (Client, "identifiers", forgotten, "to the fabric"),
        (BrokerSession, "_settle", let_in, "got|to the fabric|AttributeError"),
        (ClientSession, "_forward", forwarded, "the broker got"),
        (TopicAliases, "topic", careless, "KeyError|should"),
        (Relay, "client_gone", kept, "the node holds"),
    ],
)
def test_a_wrong_node_is_found(
    owner: type, name: str, wrong: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    report = fuzz(30_000, seed=1, shrinks=False)
    assert report.failure is not None
    assert any(part in report.failure.problem for part in problem.split("|"))
    assert f"seed 1, episode {report.episodes}" in str(report.failure)


def test_a_failure_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientSession, "_forward", forwarded)
    long, short = fuzz(30_000, seed=1, shrinks=False), fuzz(30_000, seed=1)
    assert long.failure is not None
    assert short.failure is not None
    assert len(short.failure.operations) < len(long.failure.operations)
    assert "the broker got" in run_episode(short.failure.operations)
