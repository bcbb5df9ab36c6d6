"""The node's own messages, as they come back by its own subscription."""

from __future__ import annotations

from isthmus.exchange.broker.echoes import ECHO_S, MAX_REMEMBERED, Echoes


class Clock:
    s = 1000.0

    def __call__(self) -> float:
        return self.s


def test_as_many_are_swallowed_as_were_published() -> None:
    echoes = Echoes(Clock())
    echoes.opened(no_local=False)
    echoes.published(b"t", b"1")
    echoes.published(b"t", b"1")
    echoes.published(b"t", b"2")
    assert [echoes.is_echo(b"t", each) for each in (b"1", b"3", b"1", b"1", b"2", b"2")] == [
        *(True, False, True),
        *(False, True, False),
    ]
    assert not echoes


def test_what_does_not_come_is_forgotten_and_what_came_forgets_no_other() -> None:
    clock = Clock()
    echoes = Echoes(clock)
    echoes.opened(no_local=False)
    echoes.published(b"t", b"never")
    echoes.published(b"t", b"twice")
    assert echoes.is_echo(b"t", b"twice")
    clock.s += ECHO_S - 1
    echoes.published(b"t", b"twice")
    clock.s += 2
    echoes.published(b"t", b"other")
    assert not echoes.is_echo(b"t", b"never")
    assert echoes.is_echo(b"t", b"twice")


def test_nothing_gets_older_while_the_broker_does_not_answer() -> None:
    clock = Clock()
    echoes = Echoes(clock)
    echoes.opened(no_local=False)
    echoes.published(b"t", b"before")
    clock.s += ECHO_S - 10
    echoes.answers(False)
    clock.s += 10 * ECHO_S
    echoes.answers(False)
    echoes.published(b"t", b"meanwhile")
    clock.s += ECHO_S
    echoes.answers(True)
    clock.s += 5
    echoes.answers(True)
    assert echoes.is_echo(b"t", b"before")
    clock.s += ECHO_S
    assert not echoes.is_echo(b"t", b"meanwhile")


def test_there_is_a_limit() -> None:
    echoes = Echoes(Clock())
    for number in range(MAX_REMEMBERED + 10):
        echoes.published(b"t", b"%d" % number)
    assert len(echoes) == MAX_REMEMBERED
    assert not echoes.is_echo(b"t", b"9")
    assert echoes.is_echo(b"t", b"10")


def test_a_session_that_keeps_to_no_local_is_not_watched() -> None:
    echoes = Echoes(Clock())
    echoes.opened(no_local=True)
    echoes.published(b"t", b"1")
    echoes.proven()
    assert (echoes.on, len(echoes)) == (False, 0)
    echoes.opened(no_local=True)
    assert echoes.on
    echoes.published(b"t", b"1")
    assert echoes.is_echo(b"t", b"1")
    echoes.proven()
    assert echoes.on, "it does not keep to it"
    echoes.opened(no_local=False)
    echoes.proven()
    assert echoes.on, "it was not asked to"
