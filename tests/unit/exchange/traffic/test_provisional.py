"""What waits for its coming again: in vain, together with what is older."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from isthmus.cooperation.api import SessionInfo, SessionKind
from isthmus.exchange.traffic.provisional import COPY_S, SWEEP_S, ProvisionalMessages
from isthmus.sim import SimFabric

NEAR = SessionInfo(1, SessionKind.NEIGHBOR, "near")
FAR = SessionInfo(2, SessionKind.NEIGHBOR, "far")


class Taken:
    """A message in hand."""

    def __init__(self) -> None:
        self.waited = False
        self.waits_for: list[str] = []

    def wait_for(self, branch: str) -> None:
        self.waits_for.append(branch)

    def acknowledged_by(self, branch: str) -> None:
        self.waits_for.remove(branch)


class Waiting:
    def __init__(self, number: str, topic: bytes, came_from: SessionInfo, origin: str = "o"):
        self.number, self.topic, self.came_from, self.origin = number, topic, came_from, origin
        self.cost = 1
        self.in_hand = Taken()


def provisional_of(
    waits_for: Callable[[Any, Any], float],
) -> tuple[SimFabric, ProvisionalMessages, list[str]]:
    fabric = SimFabric()
    host = fabric.node("a").host
    assert host is not None
    sent: list[str] = []
    waiting = ProvisionalMessages(
        host,
        waits_for=waits_for,
        again=lambda message, _: sent.append(message.number),
        give=lambda _, __: False,
        queue_bytes=1 << 20,
    )
    return fabric, waiting, sent


def put(waiting: ProvisionalMessages, message: Waiting, wait_s: float) -> Waiting:
    waiting.put(cast("Any", message), cast("Any", message.in_hand), wait_s)
    return message


def test_a_newer_message_does_not_pass_what_waits_for_a_neighbor_that_is_not_reached() -> None:
    fabric, waiting, sent = provisional_of(lambda _, __: 600.0)
    older = put(waiting, Waiting("1.01", b"t", FAR), 600.0)
    other = put(waiting, Waiting("1.02", b"u", FAR), 600.0)
    newest = put(waiting, Waiting("1.04", b"t", FAR), 600.0)
    newer = put(waiting, Waiting("1.03", b"t", NEAR), COPY_S)
    fabric.run(COPY_S + SWEEP_S)
    assert sent == ["1.01", "1.03"]
    assert older.in_hand.waited, "it is sent on, and does not wait once more"
    assert not newer.in_hand.waited
    assert [bool(each.in_hand.waits_for) for each in (older, newer, other, newest)] == [
        False,
        False,
        True,
        True,
    ]
    assert len(waiting) == waiting.bytes == 2
    waiting.stop()


def test_when_a_neighbor_has_gone_what_is_older_goes_too() -> None:
    _, waiting, sent = provisional_of(lambda _, __: 600.0)
    put(waiting, Waiting("1.01", b"t", FAR), 600.0)
    put(waiting, Waiting("1.02", b"t", FAR, origin="another"), 600.0)
    put(waiting, Waiting("1.03", b"t", NEAR), 600.0)
    waiting.neighbor_left(NEAR)
    assert sent == ["1.01", "1.03"]
    waiting.neighbor_left(FAR)
    assert sent == ["1.01", "1.03", "1.02"]
    assert len(waiting) == waiting.bytes == 0
    waiting.stop()


def test_what_has_come_again_is_sent_by_nobody() -> None:
    fabric, waiting, sent = provisional_of(lambda _, __: 600.0)
    older = put(waiting, Waiting("1.01", b"t", FAR), 600.0)
    put(waiting, Waiting("1.02", b"t", NEAR), COPY_S)
    assert [cast("Any", each) for each in waiting.copies(cast("Any", older))] == [older.in_hand]
    fabric.run(COPY_S + SWEEP_S)
    assert sent == ["1.02"]
