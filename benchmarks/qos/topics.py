"""Many topics: one publisher over all of them in turn at QoS 0, one subscriber to ``#``.

    publisher ──▶ topics 0, 1, … N - 1, 0, … ──▶ near ══▶ far ──▶ subscriber to #

Every packet is equally long, and arrives as it was sent; so what arrives is compared byte for byte
with what was to come.  Of a topic no more than one message is ever under way, and who remembers
fewer topics than there are has forgotten each of them when its turn comes again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.qos.sites import QosSite
from benchmarks.relay.load import connect
from benchmarks.relay.processes import cpu_ns, machine_busy_ns, memory
from benchmarks.relay.statistics import Run, Slice, pool

from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = ["PAYLOAD_BYTES", "ManyTopics", "Stream", "in_turn"]

PAYLOAD_BYTES = 16
CHUNK = 100
WINDOW = 1_000
LEAST_WARMUP = 20_000
LEVEL = 4
STALLED_S = 15.0
REACHED_S = 20.0
QUIET_S = 0.3


@dataclass(frozen=True, slots=True)
class ManyTopics:
    """What so many topics cost, and what each process holds in memory afterwards."""

    run: Run
    resident_bytes: Mapping[str, int]


class Stream:
    """The packets of all topics in turn, and who compares what arrives with them."""

    def __init__(self, topics: int) -> None:
        frames = (_frame(number) for number in range(topics))
        self._bytes = b"".join(frames)
        self.size = len(self._bytes) // topics
        self._sent_at = self._seen_at = 0
        self.sent = 0
        self._seen_bytes = 0

    @property
    def arrived(self) -> int:
        return self._seen_bytes // self.size

    def next(self, count: int) -> bytes:
        """So many packets more."""
        at, wanted = self._sent_at, count * self.size
        self._sent_at = (at + wanted) % len(self._bytes)
        self.sent += count
        found = self._bytes[at : at + wanted]
        while len(found) < wanted:
            found += self._bytes[: wanted - len(found)]
        return found

    def take(self, data: bytes) -> None:
        """What has arrived is what was to come next."""
        at = 0
        while at < len(data):
            count = min(len(data) - at, len(self._bytes) - self._seen_at)
            if data[at : at + count] != self._bytes[self._seen_at : self._seen_at + count]:
                raise LoadError(f"something else arrived than message {self.arrived:,}")
            at += count
            self._seen_at = (self._seen_at + count) % len(self._bytes)
            self._seen_bytes += count


def _frame(number: int) -> bytes:
    return encode(Publish(f"site/device/{number:07d}", number.to_bytes(PAYLOAD_BYTES)), LEVEL)


def in_turn(site: QosSite, topics: int, most: int) -> ManyTopics:
    """Measured after all topics had their turn: once more as many, but `most` at most."""
    stream = Stream(topics)
    with ExitStack() as stack:
        [far] = connect(site.far_port, 1, ["#"])
        stack.enter_context(far).setblocking(True)
        [near] = connect(site.near_port, 1)
        stack.enter_context(near).setblocking(True)
        near.settimeout(STALLED_S)
        _until_reached(near, far)
        far.settimeout(STALLED_S)

        def push(count: int) -> None:
            goal = stream.sent + count
            while stream.arrived < goal:
                if stream.sent < goal and stream.sent - stream.arrived <= WINDOW - CHUNK:
                    near.sendall(stream.next(min(CHUNK, goal - stream.sent)))
                    continue
                data = far.recv(1 << 18)
                if not data:
                    raise LoadError("the subscriber's connection was closed under load")
                stream.take(data)

        def clocks() -> dict[str, int]:
            used = {name: cpu_ns(pid) for name, pid in site.pids.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        push(max(topics, LEAST_WARMUP))
        slices = []
        left = max(min(topics, most), most // 2)
        for count in (left // 2, left - left // 2):
            began_s, before = time.perf_counter(), clocks()
            push(count)
            elapsed_s, after = time.perf_counter() - began_s, clocks()
            slices.append(
                Slice(elapsed_s, count, {name: after[name] - before[name] for name in after})
            )
        resident = {name: memory(pid).rss_bytes for name, pid in site.pids.items()}
    return ManyTopics(pool(slices), resident)


def _until_reached(near: socket.socket, far: socket.socket) -> None:
    """Until a probe arrives, and all others that were sent meanwhile have too."""
    deadline_s = time.monotonic() + REACHED_S
    probe, end = (encode(Publish(f"probe/{name}", b""), LEVEL) for name in ("begin", "end"))
    far.settimeout(QUIET_S)
    came = b""
    while not came:
        near.sendall(probe)
        try:
            came = far.recv(65_536)
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise LoadError(f"no message crossed within {REACHED_S:.0f} s") from None
    near.sendall(end)
    far.settimeout(STALLED_S)
    while not came.endswith(end):
        came += far.recv(65_536)
