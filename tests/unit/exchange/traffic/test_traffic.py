"""Messages on their way through one node: what is taken, passed on, doubted, dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.wills import DueWill
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Message, number_of, to_link
from isthmus.exchange.traffic.traffic import DOUBT_S, LEAST_HOPS
from isthmus.mqtt.packets import Will
from isthmus.sim.fabric import SimFabric
from isthmus.sim.node import SimNode


class Stage:
    """b ── a ── c, where messages are handed to a's data plane; all flood."""

    def __init__(self, queue_bytes: int = 1 << 20) -> None:
        self.fabric = SimFabric(algorithm="pf", link=LinkSettings(queue_bytes=queue_bytes))
        self.a, b, c = (self.fabric.node(name) for name in "abc")
        self.fabric.link(self.a, b)
        self.fabric.link(self.a, c)
        self.fabric.settle()
        self.traffic = self.a.exchange.traffic
        self.counters = self.a.exchange.counters
        self.numbers = 0
        self.held = self.released = 0

    def link(self, neighbor: str) -> Link:
        return self.a.exchange.links.links[neighbor]

    def arrives(
        self, message: Message, neighbor: str = "b", *, qos: int = 0, packet_id: int = 0
    ) -> None:
        """As the neighbor's next packet, unless `packet_id` says which."""
        if qos and not packet_id:
            self.numbers += 1
            packet_id = self.numbers
        frame = to_link(message, qos, packet_id, self.fabric.engine.now_s)
        self.traffic.message_arrived(self.link(neighbor), 0, frame)

    def publish(self, message: Message) -> None:
        """A client of a's does."""
        self.traffic.client_publish(message, self._hold)

    def _hold(self) -> Callable[[], None]:
        self.held += 1
        return self._go_on

    def _go_on(self) -> None:
        self.released += 1

    def injected(self, node: SimNode, payload: bytes = b"x") -> int:
        return node.broker.injected[payload]

    def unsafe(self, neighbor: str = "b") -> int:
        """Messages of the neighbor that are not acknowledged to it."""
        incoming = self.link(neighbor).incoming[0]
        assert incoming is not None
        return len(incoming._busy)


def numbered(origin: str = "b", count: int = 1, hops: int = 0) -> Message:
    return Message(b"t", b"x", qos=1, origin=origin, number=number_of("1f", count), hops=hops)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- from local clients ----


def test_a_clients_message_goes_to_the_neighbors_and_not_to_its_own_broker(stage: Stage) -> None:
    stage.publish(Message(b"t", b"x", origin="a"))
    stage.fabric.settle()
    assert [stage.injected(stage.fabric.nodes[name]) for name in "abc"] == [0, 1, 1]
    assert stage.counters["published_to_links"] == 1


def test_what_begins_with_a_dollar_sign_stays_here(stage: Stage) -> None:
    stage.publish(Message(b"$SYS/t", b"x", origin="a", qos=1))
    assert stage.counters["published_to_links"] == 0


def test_messages_at_qos_1_and_2_are_numbered_by_this_life_of_the_node(stage: Stage) -> None:
    messages = [Message(b"t", b"x", origin="a", qos=qos) for qos in (0, 1, 2)]
    for message in messages:
        stage.publish(message)
    incarnation = stage.a.exchange.incarnation
    assert [m.number for m in messages] == [
        "",
        number_of(incarnation, 1),
        number_of(incarnation, 2),
    ]


def test_publishers_are_held_while_a_neighbor_does_not_acknowledge() -> None:
    stage = Stage(queue_bytes=1_000)
    for _ in range(4):
        stage.publish(Message(b"t", bytes(400), origin="a", qos=1))
    assert stage.held > 0
    assert stage.released == 0
    assert stage.counters["publishers_held"] == stage.held
    stage.fabric.settle()
    assert stage.released == stage.held


def test_beyond_twice_the_queue_not_even_one_message_more_is_taken() -> None:
    """Else clients that send one each, or hang up when they are held, would fill any memory."""
    stage = Stage(queue_bytes=1_000)
    message = Message(b"t", bytes(400), origin="a", qos=1)
    while stage.link("b").unacked_bytes() <= 2_000:
        assert not stage.traffic.must_wait(message, stage._hold)
        stage.publish(Message(b"t", bytes(400), origin="a", qos=1))
    held = stage.held
    assert stage.traffic.must_wait(message, stage._hold)
    assert stage.held == held + 1
    assert not stage.traffic.must_wait(Message(b"t", b"x", origin="a"), stage._hold)
    stage.fabric.settle()
    assert stage.released == stage.held
    assert not stage.traffic.must_wait(message, stage._hold)


def test_wills_do_not_fill_a_link_that_is_full() -> None:
    stage = Stage(queue_bytes=1_000)
    for _ in range(20):
        stage.a.exchange._will_due(DueWill("c", Will("t", bytes(400), qos=1, retain=True)))
    assert 2_000 < stage.link("b").unacked_bytes() < 3_500
    assert stage.counters["given_up"] + stage.counters["wills_sent"] == 20
    assert stage.counters["given_up"] > 10
    stage.fabric.settle()
    stage.a.exchange._will_due(DueWill("c", Will("t", b"x", qos=1)))
    stage.fabric.settle()
    assert stage.injected(stage.fabric.nodes["b"]) == 1


# ---- from neighbors ----


def test_a_message_is_passed_on_and_acknowledged_when_everybody_has_it(stage: Stage) -> None:
    stage.arrives(numbered(), qos=1)
    assert stage.unsafe() == 1
    assert {each.name for each in stage.traffic.by_session} == {"b", "c"}
    stage.fabric.settle()
    assert stage.unsafe() == 0
    assert len(stage.traffic.in_hand) == 0
    assert [stage.injected(stage.fabric.nodes[name]) for name in "abc"] == [1, 0, 1]


def test_a_message_that_was_here_is_not_passed_on_again(stage: Stage) -> None:
    stage.arrives(numbered(), qos=1)
    stage.arrives(numbered(), qos=1)
    stage.arrives(numbered(), qos=1, packet_id=stage.numbers)  # the lane knows that one
    stage.fabric.settle()
    assert stage.counters["repeated"] == 2
    assert stage.injected(stage.a) == 1
    assert stage.unsafe() == 0


def test_a_message_that_has_gone_too_far_is_dropped_and_acknowledged(stage: Stage) -> None:
    """Who sends it counts itself."""
    stage.arrives(numbered(hops=LEAST_HOPS), qos=1)
    stage.arrives(numbered(hops=LEAST_HOPS - 1, count=2), qos=1)
    stage.fabric.settle()
    assert stage.counters["hops_dropped"] == 1
    assert stage.injected(stage.a) == 1
    assert stage.unsafe() == 0


def test_at_qos_0_a_message_is_taken_only_from_where_its_origin_is_reached(stage: Stage) -> None:
    stage.arrives(Message(b"t", b"x", origin="c"), "b")
    assert stage.counters["doubtful_dropped"] == 1
    stage.arrives(Message(b"t", b"x", origin="c"), "c")
    stage.fabric.settle()
    assert stage.injected(stage.a) == 1


def test_a_numbered_message_from_elsewhere_waits_and_is_then_dropped(stage: Stage) -> None:
    for count in (1, 2):
        stage.arrives(numbered("c", count), "b", qos=1)
    stage.fabric.run(DOUBT_S - 0.1)
    assert stage.unsafe() == 2
    assert stage.counters["doubtful_dropped"] == 0
    stage.fabric.run(0.2)
    assert stage.unsafe() == 0
    assert stage.counters["doubtful_dropped"] == 2
    assert stage.injected(stage.a) == 0


def test_what_is_doubted_later_has_its_own_time(stage: Stage) -> None:
    stage.arrives(numbered("c", 1), "b", qos=1)
    stage.fabric.run(DOUBT_S / 2)
    stage.arrives(numbered("c", 2), "b", qos=1)
    stage.fabric.run(DOUBT_S / 2 + 0.1)
    assert (stage.unsafe(), stage.counters["doubtful_dropped"]) == (1, 1)
    stage.fabric.run(DOUBT_S / 2)
    assert (stage.unsafe(), stage.counters["doubtful_dropped"]) == (0, 2)


def test_what_is_doubted_is_taken_when_the_topology_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.arrives(numbered("c"), "b", qos=1)
    monkeypatch.setattr(stage.traffic.guard, "ways", lambda: {"c": frozenset(("b",))})
    stage.traffic.topology_changed()
    stage.fabric.settle()
    assert stage.injected(stage.a) == 1
    assert stage.unsafe() == 0


def test_a_message_that_has_expired_goes_no_further(stage: Stage) -> None:
    now_s = stage.fabric.engine.now_s
    stage.publish(Message(b"t", b"x", origin="a", qos=1, expiry_s=1, arrived_s=now_s - 1))
    stage.fabric.settle()
    assert stage.counters["expired"] == 1
    assert stage.injected(stage.fabric.nodes["b"]) == 0


def test_a_number_before_its_stream_is_a_fault(stage: Stage) -> None:
    stage.link("b").incoming[0] = None
    with pytest.raises(RemoteProtocolError, match="before its stream"):
        stage.arrives(numbered(), qos=1)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_the_broker_cannot_take_is_counted_and_acknowledged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    monkeypatch.setattr(stage.traffic.host, "inject", lambda *_: False)
    message = numbered() if qos else Message(b"t", b"x", origin="b")
    stage.arrives(message, qos=qos)
    stage.fabric.settle()
    assert stage.counters["inject_dropped"] == 1
    assert len(stage.traffic.in_hand) == 0
