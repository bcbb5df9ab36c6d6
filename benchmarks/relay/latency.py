"""Open loop: messages leave at a fixed rate, whatever comes back; the time to each delivery.

The payload carries the time just before the send, by the same monotonic clock that the receiver
reads just after its receive, in the same process.  Every frame is checked: none lost, none twice,
every publisher's sequence without a gap.  The schedule comes from a timerfd, since epoll's own
time-out counts in whole milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.relay.clients import LoadError
from benchmarks.relay.population import Population

__all__ = ["Latency", "OpenLoop", "measure_latency"]

STALLED_S = 10.0
NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """How fast and how long to send; messages of the warm-up are delivered but not counted."""

    rate_in: float = 2000.0
    warmup_s: float = 0.5
    measure_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of all counted deliveries in ns, sorted, and how well the schedule was kept."""

    latencies_ns: array[int]
    achieved_rate: float  # messages per second in


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


@contextmanager
def _ticker(interval_ns: int) -> Iterator[int]:
    """A file descriptor that is readable every `interval_ns`; reading it counts the ticks."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    try:
        tick = _Timespec(interval_ns // 1_000_000_000, interval_ns % 1_000_000_000)
        if libc.timerfd_settime(fd, 0, ctypes.byref(_Itimerspec(tick, tick)), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        yield fd
    finally:
        os.close(fd)


def measure_latency(population: Population, plan: OpenLoop) -> Latency:
    """Run `plan` with every publisher in turn."""
    latencies = array("q")
    fan_out, publishers = population.shape.fan_out, population.publishers
    messages = round(plan.rate_in * (plan.warmup_s + plan.measure_s))
    counted_from = round(plan.rate_in * plan.warmup_s)
    by_fd = {
        sock.fileno(): (sock, subscriber)
        for sock, subscriber in zip(population.sockets, population.subscribers, strict=True)
    }
    sent = delivered = 0
    t_last = last_progress = time.perf_counter_ns()
    t_count = NEVER_NS  # when the first counted message left
    with select.epoll() as poll, _ticker(round(1e9 / plan.rate_in)) as ticker:
        poll.register(ticker, select.EPOLLIN)
        for fd in by_fd:
            poll.register(fd, select.EPOLLIN)
        while delivered < messages * fan_out:
            for fd, _ in poll.poll(1.0):
                if fd == ticker:
                    due = int.from_bytes(os.read(ticker, 8), "little")
                    for _ in range(min(due, messages - sent)):
                        if sent == counted_from:
                            t_count = time.perf_counter_ns()
                        t_last = time.perf_counter_ns()
                        sent += publishers[sent % len(publishers)].send(1, t_last)
                    continue
                sock, subscriber = by_fd[fd]
                chunk = sock.recv(65536)
                t_received = last_progress = time.perf_counter_ns()
                if not chunk:
                    raise LoadError("a subscriber's connection was closed")
                times = subscriber.take_all(chunk)
                delivered += len(times)
                latencies.extend(t_received - t for t in times if t >= t_count)
            if time.perf_counter_ns() - last_progress > STALLED_S * 1e9:
                break
    achieved = (messages - counted_from - 1) / ((t_last - t_count) / 1e9)
    if lost := population.lost():
        raise LoadError(
            f"{lost} of {messages * fan_out} deliveries lost at {plan.rate_in:.0f} msg/s"
        )
    return Latency(array("q", sorted(latencies)), achieved)
