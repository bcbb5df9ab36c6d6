"""Publishers at QoS 1 on the near side that wait for PUBACKs, and a subscriber on the far one.

A run is over when all messages are acknowledged and have arrived: to acknowledge early what is not
there yet gains nothing.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from contextlib import ExitStack

from benchmarks.bench_closed_loop import STALLED_S, Publisher
from benchmarks.confirm.sites import ConfirmSite
from benchmarks.relay.load import connect
from benchmarks.relay.processes import cpu_ns, machine_busy_ns
from benchmarks.relay.statistics import Slice

from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["puback_times_s", "throughput"]

FILTER = "loop/#"
DELIVERED_BYTES = 2 + 2 + len("loop/00") + 32
"""Of a PUBLISH at QoS 0, which the subscriber has asked for."""
LEVEL = 4
REACHED_S = 20.0


class Subscriber:
    """Counts what it gets by its bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.bytes = 0

    @property
    def delivered(self) -> int:
        return self.bytes // DELIVERED_BYTES

    def turn(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise LoadError("the subscriber's connection was closed under load")
        self.bytes += len(data)


def _until_reached(near: socket.socket, far: Subscriber) -> None:
    """Until what is published on the near side arrives: subscriptions take their time."""
    deadline_s = time.monotonic() + REACHED_S
    far.sock.settimeout(0.05)
    while True:
        near.sendall(encode(Publish("loop/00", bytes(32)), LEVEL))
        try:
            far.turn()
            break
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise LoadError(f"no message crossed within {REACHED_S:.0f} s") from None
    far.sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            far.turn()  # the others that were sent meanwhile
    far.sock.setblocking(True)


class Limited(Publisher):
    """Stops after `budget` messages."""

    def __init__(self, sock: socket.socket, number: int, in_flight: int, budget: int) -> None:
        super().__init__(sock, number, in_flight)
        self._budget = budget

    def _send(self, count: int) -> None:
        count = min(count, self._budget)
        self._budget -= count
        super()._send(count)


def throughput(site: ConfirmSite, *, publishers: int, in_flight: int, messages: int) -> Slice:
    """`messages` of each publisher: until all of them are acknowledged and have arrived."""
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        [sock] = connect(site.far_port, 1, [FILTER])
        far = Subscriber(stack.enter_context(sock))
        found: dict[int, Publisher] = {}
        socks = connect(site.near_port, publishers)
        _until_reached(socks[0], far)
        for number, sock in enumerate(socks):
            stack.enter_context(sock).setblocking(True)
            found[sock.fileno()] = Limited(sock, number, in_flight, messages)
            poll.register(sock.fileno(), select.EPOLLIN)
        poll.register(far.sock.fileno(), select.EPOLLIN)

        def clocks() -> dict[str, int]:
            used = {name: cpu_ns(pid) for name, pid in site.pids.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        total = publishers * messages
        arrived, acknowledged = far.delivered, 0
        began_s, before = time.perf_counter(), clocks()
        for publisher in found.values():
            publisher.begin()
        while acknowledged < total or far.delivered - arrived < total:
            ready = poll.poll(STALLED_S)
            if not ready:
                raise LoadError(f"nothing for {STALLED_S:.0f} s")
            for fd, _ in ready:
                if fd == far.sock.fileno():
                    far.turn()
                else:
                    acknowledged += found[fd].turn()
        elapsed_s, after = time.perf_counter() - began_s, clocks()
        return Slice(elapsed_s, total, {name: after[name] - before[name] for name in after})


def puback_times_s(site: ConfirmSite, count: int) -> list[float]:
    """How long each of `count` messages, one after the other, waits for its PUBACK."""
    with ExitStack() as stack:
        [sock] = connect(site.far_port, 1, [FILTER])
        far = Subscriber(stack.enter_context(sock))
        [near] = connect(site.near_port, 1)
        stack.enter_context(near).setblocking(True)
        _until_reached(near, far)
        found: list[float] = []
        for number in range(count):
            frame = encode(
                Publish("loop/00", bytes(32), qos=1, packet_id=number % 1_000 + 1), LEVEL
            )
            began_s = time.perf_counter()
            near.sendall(frame)
            answer = near.recv(64)
            found.append(time.perf_counter() - began_s)
            if len(answer) != 4 or answer[0] != 0x40:
                raise LoadError(f"PUBACK expected, got {answer[:8].hex(' ')}")
        return found
