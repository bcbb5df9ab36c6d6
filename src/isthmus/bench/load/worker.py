"""A load process: plays the clients it is told to, and answers the coordinator.

    python -m isthmus.bench.load.worker WRITER

Reads orders from standard input and writes answers to standard output, one JSON object per line
(:mod:`isthmus.bench.coordinator.control`); it knows nothing of other processes and machines.
Whatever goes wrong is said in a last line, ``failed``, and ends the process with exit code 1; an
error of our own shows its traceback on standard error.

A process of t-clients that subscribe rests between two looks at its sockets.  Each then has
several messages to read, the process needs less of a machine that it may share with the brokers,
and a broker on this machine need not wake it up for each, as it need not wake clients on others.
Its `t_receive_ns` is later by the rest, which takes `REST_S` and a little more.  It rests whatever
the load is: brokers whose clients rested only under much load could not be compared with others.
The process of l-clients, who measure latency, never rests.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from isthmus.bench.coordinator.control import ControlMessage, LineChannel, Target, item
from isthmus.bench.load.clients import Poller
from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.connecting import connect_clients
from isthmus.bench.load.measurement import Measurement, Order
from isthmus.bench.load.population import Population
from isthmus.errors import IsthmusError, LoadError, LoadFailed
from isthmus.pipeline.log.reading import LoggedClient

__all__ = ["Worker", "main"]

REST_S: Final = 0.001
ANSWER_S: Final = 600.0
"""The coordinator is gone if it takes nothing for so long."""
COORDINATOR: Final = "coordinator"


class Worker:
    """Orders come from the file descriptor `orders`, answers go to `answers`."""

    def __init__(self, writer: str, orders: int, answers: int) -> None:
        self._poller = Poller()
        self._writer = writer
        self._channel = LineChannel(COORDINATOR, orders, answers)
        self._open = True
        self._population: Population | None = None
        self._measurement: Measurement | None = None
        self._resting = False
        self._poller.watch(orders, self._read)

    def run(self) -> int:
        """Until told to close, or until there will be no more orders."""
        try:
            while self._open:
                self._turn()
        except (IsthmusError, OSError) as error:
            self._say({"is": "failed", "problem": str(error)})
            return 1
        finally:
            if self._population is not None:
                self._population.close()
        return 0

    def _turn(self) -> None:
        measurement = self._measurement
        if measurement is None:
            self._poller.turn(None)
            return
        if self._resting:
            time.sleep(REST_S)
            self._poller.turn(0.0)
        else:
            self._poller.turn(max(0.0, (self._next_ns(measurement) - now_ns()) / 1e9))
        if self._population is not None:
            self._population.serve(now_ns())
        if self._measurement is not None and (report := self._measurement.serve(now_ns())):
            self._say(report)

    def _next_ns(self, measurement: Measurement) -> int:
        next_ns = measurement.next_ns()
        back_ns = None if self._population is None else self._population.next_ns()
        return next_ns if back_ns is None else min(next_ns, back_ns)

    def _say(self, answer: ControlMessage) -> None:
        self._channel.send({**answer, "writer": self._writer}, ANSWER_S)

    def _read(self, _events: int) -> None:
        try:
            while self._open and (order := self._channel.next()) is not None:
                self._obey(order)
        except EOFError:
            self._close({})

    def _obey(self, order: ControlMessage) -> None:
        orders: dict[Any, Callable[[ControlMessage], None]] = {
            "clock": self._clock,
            "connect": self._connect,
            "measure": self._measure,
            "finish": self._finish,
            "close": self._close,
        }
        if order.get("do") not in orders:
            raise LoadError(f"{str(order)[:80]} is not an order; known are {', '.join(orders)}")
        orders[order["do"]](order)

    def _clock(self, _order: ControlMessage) -> None:
        self._say({"is": "clock", "t_ns": now_ns()})

    def _connect(self, order: ControlMessage) -> None:
        if self._population is not None:
            raise LoadError("connect: the clients are connected already")
        told = item(order, "clients", list, COORDINATOR)
        ours = [LoggedClient(**one) for one in told if one["writer"] == self._writer]
        topics = item(order, "topics", list, COORDINATOR)
        qos = item(order, "qos", dict, COORDINATOR)
        targets = {
            node: Target(**target)
            for node, target in item(order, "targets", dict, COORDINATOR).items()
        }
        timeout_s = item(order, "timeout_s", (int, float), COORDINATOR)
        payload_bytes = item(order, "payload_bytes", int, COORDINATOR)
        returning = item(order, "returning", list, COORDINATOR)
        self._resting = any(one.kind == "t" and one.role == "subscriber" for one in ours)
        connected = connect_clients(ours, topics, targets, qos, timeout_s, returning=returning)
        self._population = Population(
            connected,
            topics,
            qos,
            payload_bytes,
            self._poller,
            returning={node: targets[node] for node in returning if node in targets},
        )
        # What lives as long as the process need not be looked through again and again.
        gc.collect()
        gc.freeze()
        sockets = {one.client.name: one.local for one in self._population.connections}
        self._say({"is": "connected", "clients": len(ours), "sockets": sockets})

    def _measure(self, order: ControlMessage) -> None:
        if self._population is None or self._measurement is not None:
            problem = "a run is being measured" if self._measurement else "nobody is connected"
            raise LoadError(f"measure: {problem}")
        if away := self._population.away:
            loss = away[0]
            raise LoadError(
                f"measure: {len(away)} clients have lost their connection, "
                f"the first was {loss.client.name} at {loss.client.node}: {loss.problem}"
            )
        what = Order(
            run=item(order, "run", str, COORDINATOR),
            log=Path(item(order, "log", str, COORDINATOR)),
            start_ns=item(order, "start_ns", int, COORDINATOR),
            duration_ns=round(item(order, "duration_s", (int, float), COORDINATOR) * 1e9),
            interval_ns=item(order, "interval_ns", dict, COORDINATOR),
        )
        for kind, interval_ns in what.interval_ns.items():
            if not isinstance(interval_ns, int) or interval_ns < 1:
                raise LoadError(f"measure: an interval of {interval_ns!r} ns for {kind}-clients")
        self._measurement = Measurement(what, self._writer, self._population)

    def _finish(self, _order: ControlMessage) -> None:
        if self._measurement is None:
            raise LoadError("finish: no run is being measured")
        measured = self._measurement.finish()
        self._measurement = None
        self._say(measured)

    def _close(self, _order: ControlMessage) -> None:
        if self._measurement is not None:
            self._measurement.abandon()
            self._measurement = None
        self._open = False


def main(arguments: list[str]) -> int:
    """Run the load process called ``arguments[0]``."""
    if len(arguments) != 1 or not arguments[0]:
        print("usage: python -m isthmus.bench.load.worker WRITER", file=sys.stderr)
        return 2
    try:
        return Worker(arguments[0], sys.stdin.fileno(), sys.stdout.fileno()).run()
    except LoadFailed:  # nobody is there to be told
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
