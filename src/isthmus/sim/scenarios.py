"""The scenarios of the conformance suite: what is done on a stage, and what must come of it.

Each takes a `Stage` at rest and raises `AssertionError`; its docstring is what a failure is
explained with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.mqtt.packets import Will
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import SimFabric
from isthmus.sim.footprint import footprint
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode

__all__ = ["SCENARIOS", "Stage"]


@dataclass(slots=True)
class Stage:
    """A fabric with one subscriber and one publisher at every node."""

    fabric: SimFabric
    nodes: list[SimNode]
    subscribers: list[SimClient]
    publishers: list[SimClient]
    survives: bool
    """No link stands by, so the way of a message does not change while it is on it, or the
    algorithm sees to it that it arrives all the same."""
    sent: int = 0

    def subscribe(self, topic_filter: str) -> None:
        """All subscribers do, and all of the fabric knows it."""
        for subscriber in self.subscribers:
            subscriber.subscribe(topic_filter)
        self.fabric.settle()

    def rest(self) -> None:
        self.fabric.settle()
        check_at_rest(self.fabric)

    def expect(
        self,
        topic: str,
        receivers: Iterable[SimClient],
        *,
        qos: int = 1,
        sources: Sequence[SimClient] | None = None,
    ) -> None:
        """Publish on `topic` from every source; exactly `receivers` get each message, once."""
        payloads = []
        for source in sources or self.publishers:
            self.sent += 1
            payload = f"{topic} {self.sent}".encode()
            if not source.publish(topic, payload, qos=qos):
                raise AssertionError(f"{source.client_id} is not connected")
            payloads.append(payload)
        self.fabric.settle()
        self.received(payloads, receivers)

    def survived(self, payloads: Sequence[bytes]) -> None:
        """What was published during a fault: it survives and everybody got it, once; or at most.

        When a standby link takes over, a message that has passed a node does not pass it again,
        also if that is the only way left to somebody.
        """
        if self.survives:
            self.received(payloads, self.subscribers)
            return
        for client in self.subscribers:
            for payload in payloads:
                if client.payloads().count(payload) > 1:
                    raise AssertionError(f"{client.client_id} got {payload!r} more than once")

    def received(self, payloads: Iterable[bytes], receivers: Iterable[SimClient]) -> None:
        expected = {client.client_id for client in receivers}
        for payload in payloads:
            got = Counter(
                client.client_id
                for client in self.subscribers
                for each in client.received
                if each.payload == payload
            )
            if got != Counter(expected):
                raise AssertionError(
                    f"{payload.decode()!r} should reach {sorted(expected)} once each; "
                    f"it reached {dict(sorted(got.items()))}"
                )


# ---- scenarios ---------------------------------------------------------------------------


def _delivery(stage: Stage) -> None:
    """Exact filters and wildcards, overlapping ones too, at every QoS."""
    first, last = stage.subscribers[0], stage.subscribers[-1]
    first.subscribe("a/b", "a/+")
    last.subscribe("a/#")
    stage.fabric.settle()
    for qos in (0, 1, 2):
        stage.expect("a/b", (first, last), qos=qos)
        stage.expect("a/b/c", (last,), qos=qos)
        stage.expect("b", (), qos=qos)
    stage.subscribe("all")
    stage.expect("all", stage.subscribers)


def _order(stage: Stage) -> None:
    """One publisher's messages on one topic stay in order."""
    stage.subscribe("o")
    for number in range(30):
        stage.publishers[0].publish("o", b"%d" % number, qos=1)
        if number % 7 == 0:
            stage.fabric.run(0.01)
    stage.fabric.settle()
    for subscriber in stage.subscribers:
        got = [int(payload) for payload in subscriber.payloads("o")]
        if got != list(range(30)):
            raise AssertionError(f"{subscriber.client_id} got {got}")


def _unsubscribe(stage: Stage) -> None:
    """Who unsubscribes gets nothing more; a covered filter lives on when the covering one goes."""
    first, last = stage.subscribers[0], stage.subscribers[-1]
    first.subscribe("a/#", "a/b")
    last.subscribe("a/b")
    stage.fabric.settle()
    first.unsubscribe("a/#")
    stage.fabric.settle()
    stage.expect("a/b", (first, last))
    stage.expect("a/c", ())
    first.unsubscribe("a/b")
    stage.fabric.settle()
    stage.expect("a/b", (last,))
    last.disconnect()
    stage.fabric.settle()
    stage.expect("a/b", ())


def _nothing_left(stage: Stage) -> None:
    """Interest that comes and goes leaves nothing in the algorithm."""
    sizes = []
    for turn in range(4):
        for index, subscriber in enumerate(stage.subscribers):
            subscriber.subscribe(f"x{turn}/{index}", f"x{turn}/+", f"y{turn}/{index}/#")
        stage.fabric.settle()
        for subscriber in stage.subscribers:
            subscriber.unsubscribe(*subscriber.wanted)
        stage.fabric.settle()
        sizes.append(sum(footprint(node.algorithm) for node in stage.nodes))
    if sizes[-1] > sizes[0]:
        raise AssertionError(f"what the algorithms hold grows with every turn: {sizes}")


def _broken_connection(stage: Stage) -> None:
    """Connections break under QoS 1 and 2: nothing is lost, nothing is doubled."""
    stage.subscribe("q/#")
    payloads = []
    for number in range(12):
        qos = 1 + number % 2
        payloads.append(b"%d" % number)
        stage.publishers[number % len(stage.publishers)].publish("q/1", payloads[-1], qos=qos)
        stage.fabric.run(0.003)
        if number % 4 == 1:
            for a in stage.nodes:
                for b in stage.nodes[stage.nodes.index(a) + 1 :]:
                    stage.fabric.break_connections(a, b)
    stage.rest()
    stage.survived(payloads)
    stage.expect("q/2", stage.subscribers, qos=0)


def _partition(stage: Stage) -> None:
    """A partition that nobody is told of; what is published meanwhile at QoS 1 arrives later."""
    stage.subscribe("p")
    half = len(stage.nodes) // 2
    stage.fabric.partition(stage.nodes[:half], stage.nodes[half:])
    stage.publishers[0].publish("p", b"early", qos=1)
    stage.fabric.run(8.0)
    stage.publishers[-1].publish("p", b"late", qos=1)
    stage.fabric.run(0.5)
    stage.fabric.heal()
    stage.rest()
    stage.survived((b"early", b"late"))
    stage.expect("p", stage.subscribers, qos=0)


def _crash(stage: Stage) -> None:
    """Each node in turn is killed, or vanishes, and comes back."""
    stage.subscribe("c/+")
    for index, node in enumerate(stage.nodes):
        stage.fabric.crash(node, silent=bool(index % 2))
        stage.fabric.run(1.0 + 4.0 * (index % 3))
        stage.fabric.restart(node)
        stage.rest()
        stage.expect("c/1", stage.subscribers, qos=index % 3)


def _stop(stage: Stage) -> None:
    """Each node in turn stops in order and comes back; the rest goes on without it."""
    _in_turn(stage, stage.fabric.stop, 3.0, stage.fabric.restart)


def _broker_crash(stage: Stage) -> None:
    """Each broker in turn dies and comes back; QoS 1 sent meanwhile waits for it."""
    _in_turn(stage, stage.fabric.crash_broker, 2.0, stage.fabric.restart_broker)


def _in_turn(
    stage: Stage, ends: Callable[[SimNode], None], away_s: float, begins: Callable[[SimNode], None]
) -> None:
    stage.subscribe("s")
    for node in stage.nodes:
        ends(node)
        stage.fabric.run(away_s)
        begins(node)
        stage.rest()
        stage.expect("s", stage.subscribers)


def _neighbors(stage: Stage) -> None:
    """Links are removed and added at the same time as interest changes."""
    fabric = stage.fabric
    stage.subscribe("n")
    by_name = {node.name: node for node in stage.nodes}
    links = sorted(fabric.wanted_links())
    for a, b in links:
        fabric.unlink(by_name[a], by_name[b])
    stage.subscribers[0].subscribe("n/2")
    fabric.run(0.004)
    for a, b in links:
        fabric.link(by_name[b], by_name[a])
    stage.subscribers[-1].subscribe("n/#")
    stage.subscribers[0].unsubscribe("n")
    fabric.settle()
    check_at_rest(fabric)
    stage.expect("n/2", {stage.subscribers[0], stage.subscribers[-1]})
    stage.expect("n", stage.subscribers[1:])


def _retained(stage: Stage) -> None:
    """Who subscribes later gets the last retained message, wherever it was published."""
    stage.publishers[0].publish("r", b"old", qos=1, retain=True)
    stage.fabric.settle()
    stage.publishers[-1].publish("r", b"new", qos=1, retain=True)
    stage.fabric.settle()
    stage.subscribe("r")
    for subscriber in stage.subscribers:
        got = [(each.payload, each.retain) for each in subscriber.received]
        if got != [(b"new", True)]:
            raise AssertionError(f"{subscriber.client_id} got {got}, not the retained message")
    stage.publishers[0].publish("r", b"", qos=1, retain=True)
    stage.rest()
    if any(node.retained for node in stage.nodes):
        raise AssertionError("a retained message that was deleted is still there")


def _wills(stage: Stage) -> None:
    """A client that vanishes has a will; one that says goodbye has none."""
    stage.subscribe("w/#")
    for index, node in enumerate(stage.nodes):
        will = Will(f"w/{index}", f"will of {index}".encode(), qos=1)
        client = node.client(f"mortal-{index}", will=will)
        stage.fabric.settle()
        client.vanish()
        polite = node.client(f"polite-{index}", will=Will("w", b"never"))
        stage.fabric.settle()
        polite.disconnect()
        stage.fabric.settle()
        stage.received((will.payload,), stage.subscribers)
    stage.received((b"never",), ())


SCENARIOS: Mapping[str, Callable[[Stage], None]] = {
    "delivery": _delivery,
    "order": _order,
    "unsubscribe": _unsubscribe,
    "nothing-left": _nothing_left,
    "broken-connection": _broken_connection,
    "partition": _partition,
    "crash": _crash,
    "stop": _stop,
    "broker-crash": _broker_crash,
    "neighbors": _neighbors,
    "retained": _retained,
    "wills": _wills,
}
