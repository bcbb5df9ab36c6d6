"""Closed loop: the highest rate that the path sustains without losing anything.

At most `window` published messages are outstanding, all publishers together; a message is no
longer outstanding when its deliveries are in.  The path therefore runs at its own limit and no
queue grows beyond the window, so nothing may be lost.

How the subscribers read decides what a broker on the same machine pays for each write.  One that
waits for data (`nap_s` 0), as real clients do, has to be woken up; one that sleeps for `nap_s` and
then takes all that has gathered costs the broker no wake-up, but exists only in benchmarks.  Both
are measured.  The window covers what the path delivers in many naps.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.relay.clients import LoadError
from benchmarks.relay.population import Population
from benchmarks.relay.statistics import Slice

__all__ = ["ClosedLoop", "saturate"]

RECEIVE_BYTES = 1 << 18
STALLED_S = 10.0  # nothing delivered for so long: the run is stuck, or the rest is lost


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """How hard and how long to push."""

    window: int = 1000
    batch: int = 5  # messages per send
    nap_s: float = 0.0  # between two turns of the generator
    warmup_s: float = 0.5
    slices: int = 5  # quiet ones to collect
    slice_s: float = 0.5
    patience: int = 4  # at most so many times `slices` when other processes disturb


class _Loop:
    """The turns of a closed loop: receive what is there, send what the window allows."""

    def __init__(self, population: Population, plan: ClosedLoop) -> None:
        self.population = population
        self.plan = plan
        self.delivered = 0
        self.sent = 0
        self.next_publisher = 0
        self.buffer = bytearray(RECEIVE_BYTES)
        self.poll = select.epoll()
        self.by_fd = {}
        for sock, subscriber in zip(population.sockets, population.subscribers, strict=True):
            self.poll.register(sock.fileno(), select.EPOLLIN)
            self.by_fd[sock.fileno()] = (sock.recv_into, subscriber.take)

    def receive(self, timeout_s: float) -> int:
        """Read every readable subscriber once; messages delivered."""
        delivered = 0
        buffer, by_fd = self.buffer, self.by_fd
        for fd, _ in self.poll.poll(timeout_s):
            recv_into, take = by_fd[fd]
            size = recv_into(buffer)
            if not size:
                raise LoadError("a subscriber's connection was closed under load")
            delivered += take(buffer, size)
        self.delivered += delivered
        return delivered

    def send(self) -> None:
        """Hand out the free part of the window in batches, publisher after publisher."""
        batch, publishers = self.plan.batch, self.population.publishers
        room = self.plan.window - self.sent + self.delivered // self.population.shape.fan_out
        full = 0
        while room >= batch and full < len(publishers):
            count = publishers[self.next_publisher].send(batch)
            full = 0 if count else full + 1
            self.sent += count
            room -= count
            self.next_publisher = (self.next_publisher + 1) % len(publishers)

    def push_until(self, end: float) -> float:
        """Run turns until the time `end`; the time it was then."""
        last_progress = now = time.perf_counter()
        while now < end:
            if self.receive(0.05):
                last_progress = now
            elif now - last_progress > STALLED_S:
                raise LoadError(f"nothing delivered for {STALLED_S:.0f} s under load")
            self.send()
            if self.plan.nap_s:
                time.sleep(self.plan.nap_s)
            now = time.perf_counter()
        return now

    def drain(self) -> int:
        """Stop sending and wait for what is outstanding; deliveries that never came."""
        last_progress = time.perf_counter()
        while self.population.lost():
            for publisher in self.population.publishers:
                publisher.flush()
            if self.receive(0.05):
                last_progress = time.perf_counter()
            elif time.perf_counter() - last_progress > STALLED_S:
                break
        return self.population.lost()


def saturate(
    population: Population, plan: ClosedLoop, cpu_ns: Callable[[], Mapping[str, int]]
) -> list[Slice]:
    """Run `plan` to its end; `cpu_ns` reads the CPU clocks of the processes to account for.

    A delivery that never came is a `LoadError`: a rate that loses messages is not sustained.
    """
    loop = _Loop(population, plan)
    with loop.poll:
        loop.send()
        then = loop.push_until(time.perf_counter() + plan.warmup_s)
        before, delivered = cpu_ns(), loop.delivered
        slices: list[Slice] = []
        quiet = 0
        while quiet < plan.slices and len(slices) < plan.slices * plan.patience:
            now = loop.push_until(then + plan.slice_s)
            after = cpu_ns()
            used = {name: after[name] - before[name] for name in after}
            slices.append(Slice(now - then, loop.delivered - delivered, used))
            quiet += slices[-1].quiet
            then, before, delivered = now, after, loop.delivered
        lost = loop.drain()
    if lost:
        raise LoadError(f"{lost} of {population.sent() * population.shape.fan_out} deliveries lost")
    return slices
