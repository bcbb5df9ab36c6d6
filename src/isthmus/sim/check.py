"""The conformance suite of cooperation algorithms.

    from isthmus.sim import check_algorithm

    def test_my_algorithm() -> None:
        check_algorithm(MyAlgorithm)

Every scenario runs on several topologies and seeds, then come random schedules.  What is asked:

* each matching subscriber gets each message, once; nobody else gets it;
* one publisher's messages on one topic arrive in order;
* what nobody wants any more leaves nothing behind;
* a link that closes a ring neither doubles nor circulates messages;
* after a broken connection, a partition, a crash, a restart, or neighbours that were added and
  removed, all of this holds again, and QoS 1 and 2 have survived what did not outlast the hold time;
* retained messages and wills reach everybody they concern.

A failure is an `AlgorithmFailed`, an `AssertionError`, with the scenario, topology, seed and trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.exchange.links import LinkSettings
from isthmus.mqtt.packets import Will
from isthmus.sim.client import SimClient
from isthmus.sim.fabric import AlgorithmFactory, SimFabric
from isthmus.sim.footprint import footprint
from isthmus.sim.invariants import check_at_rest
from isthmus.sim.node import SimNode
from isthmus.sim.run import run_schedule
from isthmus.sim.schedule import PROFILES, generate

__all__ = ["SCENARIOS", "TOPOLOGIES", "AlgorithmFailed", "check_algorithm", "check_scenario"]

TOPOLOGIES: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "pair": (2, ((0, 1),)),
    "line": (4, ((0, 1), (1, 2), (3, 2))),
    "star": (5, ((0, 1), (0, 2), (3, 0), (4, 0))),
    "ildm": (5, ((0, 1), (1, 2), (1, 3), (2, 4))),
    "ring": (4, ((0, 1), (1, 2), (2, 3), (3, 0))),
    "mesh": (4, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))),
}
"""Name → number of nodes and who dials whom; `ildm` is the tree of ILDM Fig. 6 and 7."""


class AlgorithmFailed(AssertionError):
    """An algorithm does not do what `check_algorithm` asks."""


@dataclass(slots=True)
class _Stage:
    """A fabric with one subscriber and one publisher at every node."""

    fabric: SimFabric
    nodes: list[SimNode]
    subscribers: list[SimClient]
    publishers: list[SimClient]
    sent: int = 0

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


def _delivery(stage: _Stage) -> None:
    """Exact filters and wildcards, overlapping ones too, at every QoS."""
    first, last = stage.subscribers[0], stage.subscribers[-1]
    first.subscribe("a/b", "a/+")
    last.subscribe("a/#")
    stage.fabric.settle()
    for qos in (0, 1, 2):
        stage.expect("a/b", (first, last), qos=qos)
        stage.expect("a/b/c", (last,), qos=qos)
        stage.expect("b", (), qos=qos)
    for subscriber in stage.subscribers:
        subscriber.subscribe("all")
    stage.fabric.settle()
    stage.expect("all", stage.subscribers)


def _order(stage: _Stage) -> None:
    """One publisher's messages on one topic stay in order."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("o")
    stage.fabric.settle()
    for number in range(30):
        stage.publishers[0].publish("o", b"%d" % number, qos=1)
        if number % 7 == 0:
            stage.fabric.run(0.01)
    stage.fabric.settle()
    for subscriber in stage.subscribers:
        got = [int(payload) for payload in subscriber.payloads("o")]
        if got != list(range(30)):
            raise AssertionError(f"{subscriber.client_id} got {got}")


def _unsubscribe(stage: _Stage) -> None:
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


def _nothing_left(stage: _Stage) -> None:
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


def _broken_connection(stage: _Stage) -> None:
    """Connections break under QoS 1 and 2: nothing is lost, nothing is doubled."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("q/#")
    stage.fabric.settle()
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
    stage.fabric.settle()
    check_at_rest(stage.fabric)
    stage.received(payloads, stage.subscribers)
    stage.expect("q/2", stage.subscribers, qos=0)


def _partition(stage: _Stage) -> None:
    """A partition that nobody is told of; what is published meanwhile at QoS 1 arrives later."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("p")
    stage.fabric.settle()
    half = len(stage.nodes) // 2
    stage.fabric.partition(stage.nodes[:half], stage.nodes[half:])
    stage.publishers[0].publish("p", b"early", qos=1)
    stage.fabric.run(8.0)
    stage.publishers[-1].publish("p", b"late", qos=1)
    stage.fabric.run(0.5)
    stage.fabric.heal()
    stage.fabric.settle()
    check_at_rest(stage.fabric)
    stage.received((b"early", b"late"), stage.subscribers)
    stage.expect("p", stage.subscribers, qos=0)


def _crash(stage: _Stage) -> None:
    """Each node in turn is killed, or vanishes, and comes back."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("c/+")
    stage.fabric.settle()
    for index, node in enumerate(stage.nodes):
        stage.fabric.crash(node, silent=bool(index % 2))
        stage.fabric.run(1.0 + 4.0 * (index % 3))
        stage.fabric.restart(node)
        stage.fabric.settle()
        check_at_rest(stage.fabric)
        stage.expect("c/1", stage.subscribers, qos=index % 3)


def _stop(stage: _Stage) -> None:
    """Each node in turn stops in order and comes back; the rest goes on without it."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("s")
    stage.fabric.settle()
    for node in stage.nodes:
        stage.fabric.stop(node)
        stage.fabric.run(3.0)
        stage.fabric.restart(node)
        stage.fabric.settle()
        check_at_rest(stage.fabric)
        stage.expect("s", stage.subscribers)


def _broker_crash(stage: _Stage) -> None:
    """Each broker in turn dies and comes back; QoS 1 sent meanwhile waits for it."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("b")
    stage.fabric.settle()
    for node in stage.nodes:
        stage.fabric.crash_broker(node)
        stage.fabric.run(2.0)
        stage.fabric.restart_broker(node)
        stage.fabric.settle()
        check_at_rest(stage.fabric)
        stage.expect("b", stage.subscribers)


def _neighbors(stage: _Stage) -> None:
    """Links are removed and added at the same time as interest changes."""
    fabric = stage.fabric
    for subscriber in stage.subscribers:
        subscriber.subscribe("n")
    fabric.settle()
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


def _retained(stage: _Stage) -> None:
    """Who subscribes later gets the last retained message, wherever it was published."""
    stage.publishers[0].publish("r", b"old", qos=1, retain=True)
    stage.fabric.settle()
    stage.publishers[-1].publish("r", b"new", qos=1, retain=True)
    stage.fabric.settle()
    for subscriber in stage.subscribers:
        subscriber.subscribe("r")
    stage.fabric.settle()
    for subscriber in stage.subscribers:
        got = [(each.payload, each.retain) for each in subscriber.received]
        if got != [(b"new", True)]:
            raise AssertionError(f"{subscriber.client_id} got {got}, not the retained message")
    stage.publishers[0].publish("r", b"", qos=1, retain=True)
    stage.fabric.settle()
    check_at_rest(stage.fabric)
    if any(node.broker.retained for node in stage.nodes):
        raise AssertionError("a retained message that was deleted is still there")


def _wills(stage: _Stage) -> None:
    """A client that vanishes has a will; one that says goodbye has none."""
    for subscriber in stage.subscribers:
        subscriber.subscribe("w/#")
    stage.fabric.settle()
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


SCENARIOS: Mapping[str, Callable[[_Stage], None]] = {
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


# ---- the suite ---------------------------------------------------------------------------


def check_algorithm(
    factory: AlgorithmFactory,
    *,
    seeds: Iterable[int] = range(3),
    schedules: int = 30,
    options: Mapping[str, object] | None = None,
    topologies: Iterable[str] = tuple(TOPOLOGIES),
    settle_s: float | None = None,
) -> None:
    """Raise `AlgorithmFailed` unless `factory`'s algorithms do what every algorithm must.

    `settle_s` is for algorithms that talk without end: how long to wait for them to settle,
    instead of waiting until nothing happens.
    """
    names = tuple(topologies)
    for seed in seeds:
        for topology in names:
            for scenario in SCENARIOS:
                check_scenario(
                    factory, scenario, topology, seed, options=options, settle_s=settle_s
                )
    for seed in range(schedules):
        schedule = generate(seed, PROFILES[seed % len(PROFILES)])
        try:
            run_schedule(schedule, factory, options=options, settle_s=settle_s)
        except AssertionError as error:
            raise AlgorithmFailed(f"{_name(factory)}: random schedule: {error}") from error


def check_scenario(
    factory: AlgorithmFactory,
    scenario: str,
    topology: str,
    seed: int,
    *,
    options: Mapping[str, object] | None = None,
    settle_s: float | None = None,
) -> None:
    """One scenario of `check_algorithm`; a failure is run again for its trace."""
    try:
        SCENARIOS[scenario](_set_up(factory, topology, seed, options, settle_s, trace=False))
    except Exception as error:  # whatever an algorithm raises is a finding  # noqa: BLE001
        trace = _trace_of(factory, scenario, topology, seed, options, settle_s)
        text = str(error) if isinstance(error, AssertionError) else repr(error)
        raise AlgorithmFailed(
            f"{_name(factory)}: {scenario} on {topology}, seed {seed}: {text}\n"
            f"({SCENARIOS[scenario].__doc__})\nthe end of its trace:\n{trace}"
        ) from error


def _trace_of(
    factory: AlgorithmFactory,
    scenario: str,
    topology: str,
    seed: int,
    options: Mapping[str, object] | None,
    settle_s: float | None,
) -> str:
    stage = _set_up(factory, topology, seed, options, settle_s, trace=True)
    try:
        SCENARIOS[scenario](stage)
    except Exception:  # the failure is known already  # noqa: BLE001
        return "\n".join(stage.fabric.trace.lines[-60:])
    return "(it passes when it is run again: the algorithm depends on something besides its port)"


def _set_up(
    factory: AlgorithmFactory,
    topology: str,
    seed: int,
    options: Mapping[str, object] | None,
    settle_s: float | None,
    *,
    trace: bool,
) -> _Stage:
    count, links = TOPOLOGIES[topology]
    fabric = SimFabric(
        seed=seed,
        algorithm=factory,
        options=options,
        link=LinkSettings(sessions=1 + seed % 2, hold_s=60.0),
        settle_s=settle_s,
        trace=trace,
    )
    nodes = [fabric.node(f"I{number}") for number in range(1, count + 1)]
    for a, b in links:
        fabric.link(nodes[a], nodes[b])
    subscribers = [node.client(f"subscriber-{node.name}") for node in nodes]
    publishers = [node.client(f"publisher-{node.name}") for node in nodes]
    fabric.settle()
    check_at_rest(fabric)
    return _Stage(fabric, nodes, subscribers, publishers)


def _name(factory: AlgorithmFactory) -> str:
    return str(getattr(factory, "name", factory))
