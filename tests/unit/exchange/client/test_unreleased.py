"""Which QoS 2 messages of a session are not released."""

from __future__ import annotations

import pytest

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.exchange.client import clients
from isthmus.exchange.client.unreleased import Unreleased
from support.algorithm_network import FakeClient, FakePort


class Sessions:
    """A node's clients, of which only the identifiers are looked at."""

    def __init__(self) -> None:
        self.port = FakePort()
        self.port.clients.algorithm = CooperationAlgorithm(self.port, {})

    def __len__(self) -> int:
        return len(self.port.clients._clients)

    def connected(
        self, client_id: str = "c", *, clean: bool = False, resumed: bool = False, level: int = 4
    ) -> tuple[FakeClient, Unreleased]:
        client = FakeClient(self.port, level)
        client.connect(client_id, clean_start=clean, session_present=resumed)
        return client, client.pair.unreleased


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


def test_an_identifier_is_taken_until_it_is_released() -> None:
    memory = Unreleased()
    assert not memory.is_repetition(1, dup=False)
    assert memory.is_repetition(1, dup=True)
    assert memory.is_repetition(1, dup=False)
    memory.release(1)
    memory.release(1)
    assert not memory.is_repetition(1, dup=False)


def test_two_connections_of_one_client_share_it(sessions: Sessions) -> None:
    first, old = sessions.connected()
    old.add(1)
    _, new = sessions.connected(resumed=True)
    assert new is old
    first.drop()
    assert sessions.connected(resumed=True)[1].is_repetition(1, dup=True)


def test_a_connection_that_was_taken_over_may_outlive_its_successor(sessions: Sessions) -> None:
    _, memory = sessions.connected()
    second, _ = sessions.connected(resumed=True)
    second.drop()
    memory.add(1)
    assert sessions.connected(resumed=True)[1].is_repetition(1, dup=True)


def test_it_outlives_the_connection_and_ends_with_clean_start(sessions: Sessions) -> None:
    client, memory = sessions.connected()
    memory.add(1)
    client.drop()
    second, memory = sessions.connected(resumed=True)
    assert memory.is_repetition(1, dup=False)
    _, clean = sessions.connected(clean=True)
    assert not clean.is_repetition(1, dup=True)
    second.drop()  # the connection that was taken over
    assert sessions.connected(resumed=True)[1] is clean


def test_without_a_session_only_a_marked_repetition_counts(sessions: Sessions) -> None:
    """ActiveMQ and amqtt say that there is no session, and resume it."""
    client, memory = sessions.connected()
    memory.update((1, 2))
    client.drop()
    _, memory = sessions.connected()
    assert memory.is_repetition(1, dup=True)
    assert not memory.is_repetition(2, dup=False), "a new message under an old identifier"
    assert memory.is_repetition(2, dup=False), "which is that one's from now on"


def test_nothing_is_kept_for_a_client_that_released_everything(sessions: Sessions) -> None:
    client, memory = sessions.connected()
    memory.add(1)
    memory.release(1)
    client.drop()
    assert len(sessions) == 0


def test_clients_without_an_id_share_nothing(sessions: Sessions) -> None:
    client, first = sessions.connected("", clean=True)
    _, second = sessions.connected("", clean=True)
    assert first is not second
    first.add(1)
    client.drop()
    assert len(sessions) == 1


def test_what_is_kept_for_absent_clients_is_bounded(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_AWAY_BYTES", 3_000)
    for number in range(4):
        client, memory = sessions.connected(f"c{number}")
        memory.update((1, 2))
        client.drop()
    assert len(sessions) == 2
    assert not sessions.connected("c0", resumed=True)[1].is_repetition(1, dup=True)
    assert sessions.connected("c3", resumed=True)[1].is_repetition(1, dup=True)
    assert 1_000 < sessions.port.clients._away_bytes < 1_500


def test_long_client_ids_do_not_fill_the_memory(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_AWAY_BYTES", 200_000)
    for number in range(20):
        client, memory = sessions.connected(f"{number}" + "c" * 60_000)
        memory.add(1)
        client.drop()
    assert len(sessions) == 3
