"""Publishers at QoS 1 on the near side that wait for PUBACKs, and a subscriber on the far one.

*Delivered* is what has arrived at the far subscriber: what a node acknowledges early and has not
brought there does not count.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.bench_closed_loop import STALLED_S, Publisher
from benchmarks.confirm.sites import ConfirmSite
from benchmarks.relay.load import connect
from benchmarks.relay.processes import cpu_ns, machine_busy_ns
from benchmarks.relay.statistics import Slice, slices_of

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
    time.sleep(0.3)  # for the others that were sent meanwhile
    far.sock.setblocking(True)


def throughput(
    site: ConfirmSite,
    *,
    publishers: int,
    in_flight: int,
    warmup_s: float,
    slices: int,
    slice_s: float,
    patience: int,
) -> list[Slice]:
    """At saturation: slices of what arrived on the far side."""
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        [sock] = connect(site.far_port, 1, [FILTER])
        far = Subscriber(stack.enter_context(sock))
        found: dict[int, Publisher] = {}
        socks = connect(site.near_port, publishers)
        _until_reached(socks[0], far)
        for number, sock in enumerate(socks):
            stack.enter_context(sock).setblocking(True)
            found[sock.fileno()] = Publisher(sock, number, in_flight)
            poll.register(sock.fileno(), select.EPOLLIN)
        poll.register(far.sock.fileno(), select.EPOLLIN)
        for publisher in found.values():
            publisher.begin()

        def push_until(end: float) -> int:
            last_s = time.perf_counter()
            while (now := time.perf_counter()) < end:
                ready = poll.poll(0.05)
                if ready:
                    last_s = now
                elif now - last_s > STALLED_S:
                    raise LoadError(f"nothing for {STALLED_S:.0f} s")
                for fd, _ in ready:
                    if fd == far.sock.fileno():
                        far.turn()
                    else:
                        found[fd].turn()
            return far.delivered

        def clocks() -> Mapping[str, int]:
            used = {name: cpu_ns(pid) for name, pid in site.pids.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        push_until(time.perf_counter() + warmup_s)
        return slices_of(push_until, clocks, slices, slice_s, patience)


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
