"""What the node gave its broker lately, and what it asks for when a session is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from isthmus.exchange.host import Host
from isthmus.exchange.retained import broker as retained_broker
from isthmus.exchange.retained.broker import SLICE, BrokerCopies, _Lately
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.traffic.message import Message


def test_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_broker, "MAX_LATELY", 10)
    lately = _Lately()
    for number in range(23):
        lately.note(b"%d" % number, float(number))
    lately.note(b"21", 30.0)
    assert [number for number in range(23) if lately.is_noted(b"%d" % number, 0.0)] == [
        *range(15, 23)
    ]
    assert lately.is_noted(b"21", 30.0)
    assert not lately.is_noted(b"22", 30.0)
    assert set(lately.since(20.0)) == {b"20", b"21", b"22"}


def test_a_lost_session_is_dealt_with_in_slices() -> None:
    """A neighbor brought very many at QoS 0, and the broker ends the session."""
    waiting: list[Callable[[], None]] = []

    def call_later(_delay_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        waiting.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def inject(_message: Message, _key: str, done: Callable[[], None]) -> bool:
        done()
        return True

    host = SimpleNamespace(
        now=lambda: 1.0,
        wall_ms=lambda: 1_000,
        call_later=call_later,
        inject=inject,
        ask_retained=lambda *_: None,
    )
    store = RetainedStore("here")
    copies = BrokerCopies(cast(Host, host), store, "here", Counter())
    topics = [b"t/%d" % number for number in range(3 * SLICE)]
    for topic in topics:
        retained = store.record_local(
            topic, b"v", properties=b"", qos=0, expiry_s=None, now_ms=1_000
        )
        message = Message(topic, b"v", retain=True, version=str(retained.version))
        copies.deliver(message, "neighbor", None)
    assert len(copies) == 0
    copies.session_lost("neighbor")
    assert len(copies) == SLICE
    while len(copies) < len(topics):
        before = len(copies)
        waiting.pop(0)()
        assert len(copies) <= before + SLICE
    assert set(store.owed) == set(topics)
