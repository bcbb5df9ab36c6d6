"""The table of a client session's life."""

from __future__ import annotations

import pytest

from isthmus.errors import LocalProtocolError
from isthmus.exchange.client.life import CLIENT, ClientEvent, ClientState
from isthmus.tables import step


def reached(start: ClientState) -> set[ClientState]:
    found, todo = {start}, [start]
    while todo:
        for after, _ in CLIENT[todo.pop()].values():
            if after not in found:
                found.add(after)
                todo.append(after)
    return found


def test_every_state_is_reached_and_has_a_way_to_the_end() -> None:
    assert set(CLIENT) == reached(ClientState.CONNECT) == set(ClientState)
    assert all(ClientState.GONE in reached(state) for state in ClientState)


def test_who_is_over_or_gone_is_never_heard_again() -> None:
    for state in (ClientState.OVER, ClientState.GONE):
        assert all(after.over for after in reached(state))


@pytest.mark.parametrize("event", [ClientEvent.CONGESTED, ClientEvent.ASKED_IN])
def test_what_is_not_in_the_table_cannot_happen(event: ClientEvent) -> None:
    with pytest.raises(LocalProtocolError, match="cannot happen to what is 'over'"):
        step(CLIENT, ClientState.OVER, event)
