"""A closed loop over one path: windows of messages, until all are acknowledged and have arrived."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.qos.players import PAYLOAD_BYTES, PROBE, Latencies, Publisher, Subscriber, topic_of
from benchmarks.qos.sites import QosSite
from benchmarks.relay.load import connect
from benchmarks.relay.processes import cpu_ns, machine_busy_ns
from benchmarks.relay.statistics import Slice

from isthmus.errors import LoadError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish, Subscribe, Subscription

__all__ = ["Measured", "closed_loop"]

LEVEL = 4
STALLED_S = 15.0
REACHED_S = 20.0
QUIET_S = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its rate and CPU, and how long acknowledgments took."""

    slice: Slice
    ack_median_s: float
    ack_p99_s: float


def closed_loop(
    site: QosSite, *, qos: int, window: int, clients: int, warmup_s: float, run_s: float
) -> Measured:
    """`clients` publishers, one subscriber each.

    Messages count from the end of the warm-up until the last one of all has arrived.
    """
    latencies = Latencies()
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        subscribers = []
        for number, sock in enumerate(connect(site.far_port, clients)):
            stack.enter_context(sock).setblocking(True)
            _subscribe(sock, number, qos)
            subscribers.append(Subscriber(sock, number, qos))
        socks = connect(site.near_port, clients)
        for sock in socks:
            stack.enter_context(sock).setblocking(True)
        _until_reached(socks, subscribers, qos)
        publishers = [
            Publisher(sock, number, qos, window, latencies) for number, sock in enumerate(socks)
        ]
        players: dict[int, Publisher | Subscriber] = {}
        players |= {each.sock.fileno(): each for each in publishers}
        players |= {each.sock.fileno(): each for each in subscribers}
        for fd in players:
            poll.register(fd, select.EPOLLIN)

        def open_ends() -> str:
            pairs = zip(publishers, subscribers, strict=True)
            return "; ".join(
                f"{sender.sent} sent, {sender.acknowledged} acknowledged, {there.delivered} there"
                for sender, there in pairs
                if not sender.acknowledged == sender.sent == there.delivered
            )

        def play_until(end_s: float, *, drained: bool = False) -> None:
            last_s = time.perf_counter()
            while (now_s := time.perf_counter()) < end_s:
                ready = poll.poll(0.05)
                if ready:
                    last_s = now_s
                elif now_s - last_s > STALLED_S:
                    raise LoadError(f"nothing for {STALLED_S:.0f} s: {open_ends()}")
                for fd, _ in ready:
                    players[fd].turn()
                if drained and _is_over(publishers, subscribers):
                    return
            if drained:
                raise LoadError(f"not all messages arrived: {open_ends()}")

        def clocks() -> dict[str, int]:
            used = {name: cpu_ns(pid) for name, pid in site.pids.items()}
            return used | {"generator": time.process_time_ns(), "machine": machine_busy_ns()}

        for publisher in publishers:
            publisher.begin()
        play_until(time.perf_counter() + warmup_s)
        latencies.taken_s.clear()
        latencies.counts.clear()
        began_s, before = time.perf_counter(), clocks()
        delivered = sum(each.delivered for each in subscribers)
        play_until(began_s + run_s)
        for publisher in publishers:
            publisher.stopped = True
        play_until(time.perf_counter() + 60.0, drained=True)
        elapsed_s, after = time.perf_counter() - began_s, clocks()
        delivered = sum(each.delivered for each in subscribers) - delivered
    used = {name: after[name] - before[name] for name in after}
    return Measured(
        Slice(elapsed_s, delivered, used), latencies.percentile(50), latencies.percentile(99)
    )


def _is_over(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]) -> bool:
    return all(
        publisher.acknowledged == publisher.sent == subscriber.delivered
        for publisher, subscriber in zip(publishers, subscribers, strict=True)
    )


def _subscribe(sock: socket.socket, number: int, qos: int) -> None:
    sock.sendall(encode(Subscribe(1, (Subscription(topic_of(number).decode(), qos),)), LEVEL))
    sock.settimeout(STALLED_S)
    if (answer := sock.recv(5)) != b"\x90\x03\x00\x01" + bytes((qos,)):
        raise LoadError(f"SUBACK granting QoS {qos} expected, got {answer.hex(' ')}")
    sock.setblocking(True)


def _until_reached(
    socks: Sequence[socket.socket], subscribers: Sequence[Subscriber], qos: int
) -> None:
    """Until what each publishes arrives: subscriptions take their time.

    At the QoS of the run, so that nothing is lost from then on.
    """
    deadline_s = time.monotonic() + REACHED_S
    payload = PROBE.to_bytes(2) + bytes(PAYLOAD_BYTES - 2)
    for number, (sock, subscriber) in enumerate(zip(socks, subscribers, strict=True)):
        frame = encode(Publish(topic_of(number).decode(), payload, qos, packet_id=1), LEVEL)
        sock.settimeout(STALLED_S)
        subscriber.sock.settimeout(QUIET_S)
        while not subscriber.reached:
            sock.sendall(frame)
            if qos == 2:
                _expect(sock, b"\x50\x02\x00\x01")
                sock.sendall(b"\x62\x02\x00\x01")
                _expect(sock, b"\x70\x02\x00\x01")
            else:
                _expect(sock, b"\x40\x02\x00\x01")
            try:
                while not subscriber.reached:
                    subscriber.turn()
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise LoadError(f"no message crossed within {REACHED_S:.0f} s") from None
        sock.setblocking(True)
        subscriber.sock.setblocking(True)


def _expect(sock: socket.socket, wanted: bytes) -> None:
    if (answer := sock.recv(4)) != wanted:
        raise LoadError(f"{wanted.hex(' ')} expected, got {answer.hex(' ')}")
