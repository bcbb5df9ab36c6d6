"""The attack profiles find products that are wrong as this one once was; the right one passes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.exchange import kept_records
from isthmus.exchange.broker import injection
from isthmus.exchange.broker.echoes import Echoes
from isthmus.exchange.broker.source import BrokerSource
from isthmus.exchange.client.client import Client
from isthmus.exchange.client.client_session import ClientSession
from isthmus.exchange.client.life import ClientState
from isthmus.exchange.client.unreleased import Unreleased
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.hello import LinkRefused
from isthmus.exchange.link.lane import Outgoing, OutgoingLane
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import Links
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.retained.values import Version
from isthmus.exchange.traffic.detours import Detours
from isthmus.exchange.traffic.recovery import Recovery
from isthmus.exchange.traffic.seen import Novelty, SeenMessages
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import ConnAck, Connect
from isthmus.sim.disk import Disk
from isthmus.sim.generating import generate
from isthmus.sim.schedule import ATTACKS
from isthmus.sim.soak import soak

SEEDS = range(40)


# ---- products that are wrong ----------------------------------------------------------------


def awaits_nobody(self: Recovery, *, forgot: bool = False) -> None:
    """After a crash messages are routed before the neighbors are back."""


def takes_all(self: SeenMessages, *_: object) -> Novelty:
    """Repetitions are not recognized."""
    return Novelty.NEW


def gives_up_silently(self: Detours, neighbor: str, entries: list[Outgoing]) -> Iterator[None]:
    """What a neighbor that is given up has not acknowledged is not counted."""
    for entry in entries:
        entry.finish(neighbor)
        yield


forget_in_flight = OutgoingLane.connection_lost


def forgets_in_flight(self: OutgoingLane) -> None:
    """What was under way when a connection broke is not sent again."""
    forget_in_flight(self)
    self._again.clear()


let_go = Links.let_go


def strikes_off(self: Links, link: Link, cause: str) -> None:
    """When the node that was there before is let go, so is the one that answers there now."""
    let_go(self, link, cause)
    for peer in self.peers.values():
        if peer.link is not None:
            self.links.pop(peer.link.info.name, None)


refused = Links._refused


def panics(self: Links, connection: Connection, error: LinkRefused) -> None:
    """Where a second node of the same id shows itself, everybody is let go."""
    refused(self, connection, error)
    if error.cause == "same-id":
        for link in list(self):
            self.let_go(link, "who knows who they are")


def by_wall_clock(self: RetainedStore, now_ms: int) -> Version:
    """A version says when, and nothing else."""
    return Version(now_ms, 0, self.origin)


def forgets_sessions(self: Client, connect: Connect, connack: ConnAck) -> Unreleased:
    """Who takes a session over begins with an empty memory."""
    return Unreleased()


def admits_at_once(self: ClientSession, data: bytes) -> None:
    """The exchange hears of a client before its broker has accepted it."""
    first_packet(self, data)
    if self.state is ClientState.CONNACK and self.connected is not None:
        connect = self.connect_frame
        self.accepted(ConnAck(), encode(ConnAck(), self.protocol_level))
        self.connect_frame = connect
        self.go_on(self.relay.turns.slice_ends_s())


first_packet = ClientSession._first_packet


read = kept_records.read


def needs_whole_files(data: bytes) -> kept_records.Kept:
    """What is damaged keeps the node from starting."""
    kept = read(data)
    if kept.damage:
        raise ValueError("damaged")
    return kept


@pytest.mark.parametrize(
    ("profile", "place", "wrong", "problem"),
    [
        ("double", (Recovery, "start"), awaits_nobody, "never reached"),
        ("double", (SeenMessages, "take"), takes_all, "times|acknowledge"),
        ("outlast", (Detours, "_send_elsewhere"), gives_up_silently, "messages are lost and"),
        ("expiry", (OutgoingLane, "connection_lost"), forgets_in_flight, "never reached"),
        ("renamed", (Links, "let_go"), strikes_off, "reaches|alone|still hold|KeyError"),
        ("duplicates", (Links, "_refused"), panics, "reaches|never|alone|quiet"),
        ("clocks", (RetainedStore, "_next_version"), by_wall_clock, "retained messages of|times"),
        ("brokers", (injection, "TRIES"), 10**9, "quiet|never reached|acknowledge"),
        ("clients", (Client, "identifiers"), forgets_sessions, "times"),
        ("clients", (ClientSession, "_first_packet"), admits_at_once, "may not connect|retained"),
        ("torn", (kept_records, "read"), needs_whole_files, "damaged"),
    ],
)
def test_a_wrong_product_is_found(
    profile: str,
    place: tuple[Any, str],
    wrong: Any,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*place, wrong)
    soaked = soak("sf", SEEDS, profile=profile, max_failures=1)
    assert soaked.failures, f"{len(SEEDS)} schedules of {profile} did not notice"
    assert any(part in soaked.failures[0][2] for part in problem.split("|")), soaked.failures


def hears_no_echo(self: Echoes, *_: object) -> bool:
    """What the node has published itself is taken when it comes back."""
    return False


def knows_nothing_again(self: BrokerSource, *_: object) -> bool:
    """What comes again when a session has fallen is taken once more."""
    return False


@pytest.mark.parametrize(
    ("profile", "place", "wrong", "problem"),
    [
        ("outages", (Echoes, "is_echo"), hears_no_echo, "events|times|once each"),
        ("brokers", (BrokerSource, "_is_again"), knows_nothing_again, "times"),
    ],
)
def test_a_source_that_is_wrong_is_found(
    profile: str,
    place: tuple[Any, str],
    wrong: Any,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*place, wrong)
    soaked = soak("pf?source=broker", SEEDS, profile=profile, max_failures=1)
    assert soaked.failures, f"{len(SEEDS)} schedules of {profile} did not notice"
    assert any(part in soaked.failures[0][2] for part in problem.split("|")), soaked.failures


@pytest.mark.parametrize("profile", ATTACKS)
def test_a_profile_has_the_fault_that_it_is_named_for(profile: str) -> None:
    kinds = {action.kind for seed in SEEDS for action in generate(seed, profile).actions}
    named = {
        "double": {"crash"},
        "outlast": {"partition", "crash"},
        "expiry": {"expiring", "flood", "partition"},
        "renamed": {"rename"},
        "duplicates": {"twin", "untwin"},
        "clocks": {"clock", "crash"},
        "brokers": {"poison", "broker-delay"},
        "clients": {"barge", "takeover", "vanish"},
        "torn": {"flip", "crash"},
        "storms": {"cut", "cut-one-way", "mend", "break", "crash", "stop", "wire", "clock"},
        "attack": {"rename", "twin", "clock", "poison", "barge", "takeover", "flip", "expiring"},
    }
    assert named[profile] <= kinds


# ---- the disk --------------------------------------------------------------------------------


OLD, NEW = (kept_records.write("a", 1, [body]) for body in (b"old", b"new"))


def test_a_torn_append_leaves_a_prefix_and_a_torn_save_all_or_nothing() -> None:
    outcomes = set()
    for seed in range(200):
        disk = Disk()
        disk.save("a", OLD, 0.0)
        disk.append("b", b"first", 0.0)
        disk.save("a", NEW, 10.0)
        disk.append("b", b"second", 10.0)
        disk.torn(random.Random(seed), 10.01)
        assert disk.files["a"] in (OLD, NEW)
        assert b"firstsecond".startswith(disk.files["b"])
        assert disk.files["b"].startswith(b"first")
        outcomes.add((disk.files["a"], disk.files["b"]))
    assert len(outcomes) == 2 * 7


def test_what_was_written_long_ago_survives() -> None:
    disk = Disk()
    disk.append("a", b"first", 0.0)
    kept = kept_records.write("b", 1, [b"x"])
    disk.save("b", kept, 0.0)
    assert disk.torn(random.Random(1), 5.0) == []
    assert disk.files["a"] == b"first"
    assert disk.load("b", 1) == kept
    assert disk.load("b", 2) is None


def test_a_flip_changes_one_bit() -> None:
    disk = Disk()
    assert disk.flip(random.Random(1)) == ""
    disk.save("a", b"x", 0.0)
    before = disk.files["a"]
    assert disk.flip(random.Random(1)) == "a"
    flipped = int.from_bytes(before) ^ int.from_bytes(disk.files["a"])
    assert flipped.bit_count() == 1


def test_what_a_flip_damages_is_not_believed() -> None:
    for seed in range(300):
        disk = Disk()
        disk.save("a", kept_records.write("a", 1, [b"neighbors"]), 0.0)
        disk.flip(random.Random(seed))
        assert kept_records.read(disk.load("a", 1) or b"").records in ([b"neighbors"], [])


# ---- seeds that have found something ---------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        ("double", 2202),  # a number that was forgotten when its origin became known
        ("renamed", 2611),  # two copies in hand, of which one was never acknowledged
        ("attack", 1051),  # two nodes that dial each other, and lanes that take longer than hold_s
        ("clocks", 78),  # what a comparison had brought first was not passed on live
        ("churn", 2060),  # came again on another way after more than twice hold_s
        ("renamed", 427),  # the same, held by neighbors of three names
        ("outlast", 9357),  # retained, brought by a comparison and then sent elsewhere
    ],
)
@pytest.mark.parametrize("algorithm", ["pf", "sf"])
def test_what_was_found_stays_mended(algorithm: str, profile: str, seed: int) -> None:
    soaked = soak(algorithm, [seed], profile=profile)
    assert not soaked.failures, soaked.failures


@pytest.mark.parametrize("algorithm", ["sf?confirm=fabric", "skipgraph?confirm=local"])
def test_what_was_found_with_several_brokers_stays_mended(algorithm: str) -> None:
    """A client's retained message is at the others, and its own broker is away."""
    soaked = soak(f"{algorithm}&brokers=2", [60053], profile="chaos")
    assert not soaked.failures, soaked.failures


@pytest.mark.parametrize(
    ("algorithm", "profile", "seed"),
    [
        ("pf", "forgetful", 624653),  # published to one broker after the other one had gone
        ("sf", "outlast", 620503),  # away, since nobody confirmed what it had published
        ("tree", "chaos", 621311),  # a parent that was removed, before the next tree
        ("tree", "duplicates", 623080),  # taken for silent, since all of it was to come at once
    ],
)
def test_what_was_found_with_several_brokers_that_confirm_stays_mended(
    algorithm: str, profile: str, seed: int
) -> None:
    soaked = soak(f"{algorithm}?brokers=2&confirm=fabric", [seed], profile=profile)
    assert not soaked.failures, soaked.failures


def test_what_was_found_where_retained_messages_are_routed_stays_mended() -> None:
    """Given up for one neighbor, and sent to one that had come to want it and had got it."""
    soaked = soak("sf?retained=routed", [550038], profile="churn")
    assert not soaked.failures, soaked.failures


@pytest.mark.parametrize("algorithm", ["pf", "tree"])
def test_what_was_found_with_brokers_as_sources_stays_mended(algorithm: str) -> None:
    """What a node publishes as soon as a kept session is resumed comes back, too."""
    soaked = soak(f"{algorithm}?source=broker", [1128], profile="double")
    assert not soaked.failures, soaked.failures


@pytest.mark.parametrize(
    ("algorithm", "profile", "seed"),
    [
        ("tree", "outlast", 777847),  # retained between the comparison and the tree
        ("tree", "churn", 779491),  # the same at QoS 0, while a link was removed
        ("tree", "outages", 778704),  # sent with the old label first, and then again
        ("tree", "outages", 778096),  # what came again went behind what had not to
        ("tree", "kills", 778018),  # sent again, and nobody looked at it
        ("routed-tree", "expiry", 778024),  # waited for a copy that had come before
        ("tree", "expiry", 780274),  # one of two waited for a neighbor with a new label
        ("topic-tree", "outages", 90045),  # a node between sent the newer one again first
        ("topic-tree", "double", 800094),  # sent directly after what has come after it
        ("topic-tree", "kills", 780149),
        ("topic-tree", "expiry", 30387),  # over two partitions, one after the other
        ("topic-tree", "brokers", 49),  # a member forgot an overlay that others were building
        ("topic-tree", "brokers", 590),  # three of one moment: the first was put behind the others
        ("topic-tree", "storms", 66),  # by the tree before, ahead of what came again
        ("tree", "duplicates", 5001554),  # two of one id contradicted each other without a pause
        ("tree", "outages", 10778),  # one answered alone for what its origin did not have any more
        ("tree", "clocks", 30424),  # a restarted node sent on what was to come again
        ("tree", "attack", 594),  # a 3.1.1 broker, asked before anything was published there
        ("tree", "outlast", 5100618),  # counted as on its way to others, who do not lead there
        ("topic-tree?roots=balance", "churn", 5001015),  # retained at QoS 0 went with a link
        ("tree", "churn", 779891),  # retained: again by another way, while the broker was in doubt
        ("skipgraph", "brokers", 20463),  # sent on from another tree, ahead of what waited there
        ("skipgraph", "torn", 99),  # sent to a subscriber beside it that was its own
        ("skipgraph", "churn", 105),  # a rendezvous point that counted from where it knew
        ("skipgraph", "attack", 135),  # given up while keys joined over slow links
        ("skipgraph", "churn", 1380),  # took the status of a neighbor on another topic
        ("skipgraph", "found", 11241),  # asked two who sent it to each other
        ("skipgraph", "duplicates", 200926),  # a key that had left to join again had a status
        ("skipgraph", "double", 202452),  # given at once, while older ones waited for copies
        ("skipgraph", "double", 301128),  # waited with what is given at once, and was not
        ("tree", "expiry", 640942),  # sent on in vain, past one that waited for who was not there
        ("tree?brokers=2", "expiry", 200384),  # waited for who was to be in a tree never used
    ],
)
def test_what_was_found_in_trees_stays_mended(algorithm: str, profile: str, seed: int) -> None:
    soaked = soak(algorithm, [seed], profile=profile)
    assert not soaked.failures, soaked.failures
