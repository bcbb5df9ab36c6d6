"""Which QoS 2 messages of a session are not released."""

from __future__ import annotations

from isthmus.exchange.client.unreleased import Unreleased, UnreleasedOfSessions
from isthmus.mqtt.packets import ConnAck, Connect

RESUMED, NEW = ConnAck(session_present=True), ConnAck(session_present=False)
KEEPS, CLEAN = Connect("c", clean_start=False), Connect("c", clean_start=True)


def test_an_identifier_is_taken_until_it_is_released() -> None:
    memory = Unreleased()
    assert not memory.is_repetition(1, dup=False)
    assert memory.is_repetition(1, dup=True)
    assert memory.is_repetition(1, dup=False)
    memory.release(1)
    memory.release(1)
    assert not memory.is_repetition(1, dup=False)


def test_two_connections_of_one_client_share_it() -> None:
    sessions = UnreleasedOfSessions()
    old = sessions.connected("c", KEEPS, NEW)
    old.add(1)
    new = sessions.connected("c", KEEPS, RESUMED)
    assert new is old
    sessions.closed("c", old)
    assert sessions.connected("c", KEEPS, RESUMED).is_repetition(1, dup=True)


def test_it_outlives_the_connection_and_ends_with_clean_start() -> None:
    sessions = UnreleasedOfSessions()
    memory = sessions.connected("c", KEEPS, NEW)
    memory.add(1)
    sessions.closed("c", memory)
    memory = sessions.connected("c", KEEPS, RESUMED)
    assert memory.is_repetition(1, dup=False)
    clean = sessions.connected("c", CLEAN, NEW)
    assert not clean.is_repetition(1, dup=True)
    sessions.closed("c", memory)  # of the connection that was taken over
    assert sessions.connected("c", KEEPS, RESUMED) is clean


def test_without_a_session_only_a_marked_repetition_counts() -> None:
    """ActiveMQ and amqtt say that there is no session, and resume it."""
    sessions = UnreleasedOfSessions()
    memory = sessions.connected("c", KEEPS, NEW)
    memory.update((1, 2))
    sessions.closed("c", memory)
    memory = sessions.connected("c", KEEPS, NEW)
    assert memory.is_repetition(1, dup=True)
    assert not memory.is_repetition(2, dup=False), "a new message under an old identifier"
    assert memory.is_repetition(2, dup=False), "which is that one's from now on"


def test_nothing_is_kept_for_a_client_that_released_everything() -> None:
    sessions = UnreleasedOfSessions()
    memory = sessions.connected("c", KEEPS, NEW)
    memory.add(1)
    memory.release(1)
    sessions.closed("c", memory)
    assert len(sessions) == 0


def test_clients_without_an_id_share_nothing() -> None:
    sessions = UnreleasedOfSessions()
    first, second = (sessions.connected("", KEEPS, NEW) for _ in range(2))
    assert first is not second
    first.add(1)
    sessions.closed("", first)
    assert len(sessions) == 0


def test_what_is_kept_for_absent_clients_is_bounded() -> None:
    sessions = UnreleasedOfSessions(max_away_ids=5)
    for number in range(4):
        memory = sessions.connected(f"c{number}", KEEPS, NEW)
        memory.update((1, 2))
        sessions.closed(f"c{number}", memory)
    assert len(sessions) == 2
    assert not sessions.connected("c0", KEEPS, RESUMED).is_repetition(1, dup=True)
    assert sessions.connected("c3", KEEPS, RESUMED).is_repetition(1, dup=True)
