"""Well-behaved clients, in a process of their own: what they wait for their messages meanwhile.

One publisher and one subscriber at the node under attack, one subscriber at its neighbor.  Every
10 ms a message is sent, with its time in it; the two ways are told apart.  Latency is counted from
when a message was due, so a publisher that is kept waiting does not hide it.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import body_offset, frame_length
from isthmus.mqtt.packets import Connect, Publish, Subscribe, Subscription

__all__ = ["Bystanders", "Waits", "running_bystanders"]

EVERY_S = 0.01
LAST_S = 3.0
TOPIC = "bystanders/t"


@dataclass(slots=True)
class Waits:
    """How long messages took, in milliseconds, and how many did not come."""

    sent: int = 0
    here_ms: list[float] = field(default_factory=list)
    there_ms: list[float] = field(default_factory=list)
    problem: str = ""

    def share(self, there: bool, part: float) -> float:
        waits = sorted(self.there_ms if there else self.here_ms)
        return waits[min(len(waits) - 1, int(part * len(waits)))] if waits else float("nan")

    @property
    def lost(self) -> int:
        return 2 * self.sent - len(self.here_ms) - len(self.there_ms)


class Bystanders:
    """The clients' process, from outside."""

    def __init__(self, port: int, neighbor_port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._results, theirs = context.Pipe(duplex=False)
        self._stop = context.Event()
        self._ready = context.Event()
        self._process = context.Process(
            target=_exchange_messages,
            args=(port, neighbor_port, theirs, self._ready, self._stop),
            daemon=True,
        )
        self._process.start()
        if not self._ready.wait(20):
            raise TimeoutError("the well-behaved clients do not get through")

    def finish(self) -> Waits:
        self._stop.set()
        waits: Waits = self._results.recv() if self._results.poll(LAST_S + 20) else Waits()
        self._process.join(5)
        return waits

    def close(self) -> None:
        self._stop.set()
        self._process.join(LAST_S + 5)
        if self._process.is_alive():
            self._process.kill()


@contextmanager
def running_bystanders(port: int, neighbor_port: int) -> Iterator[Bystanders]:
    bystanders = Bystanders(port, neighbor_port)
    try:
        yield bystanders
    finally:
        bystanders.close()


class _Peer:
    """A connection with MQTT packets in it."""

    def __init__(self, port: int, name: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._received = b""
        self.sock.sendall(encode(Connect(client_id=name, clean_start=True, keep_alive=0), 5))
        self.frames_until(0x20)

    def frames(self) -> Iterator[bytes]:
        """What came with one read."""
        chunk = self.sock.recv(65_536)
        if not chunk:
            raise ConnectionError("a well-behaved client was disconnected")
        self._received += chunk
        while (length := frame_length(self._received, 0)) and len(self._received) >= length:
            yield self._received[:length]
            self._received = self._received[length:]

    def frames_until(self, head: int) -> None:
        while not any(frame[0] == head for frame in self.frames()):
            pass


def _exchange_messages(
    port: int, neighbor_port: int, results: Connection, ready: Event, stop: Event
) -> None:
    waits = Waits()
    try:
        publisher = _Peer(port, "bystander-publisher")
        peers = [_Peer(port, "bystander-here"), _Peer(neighbor_port, "bystander-there")]
        for peer in peers:
            peer.sock.sendall(encode(Subscribe(1, (Subscription(TOPIC),)), 5))
            peer.frames_until(0x90)
        _wait_for_the_way(publisher, peers)
        ready.set()
        _measure(publisher, peers, waits, stop)
    except (OSError, TimeoutError) as error:
        waits.problem = str(error) or type(error).__name__
    results.send(waits)


def _wait_for_the_way(publisher: _Peer, peers: list[_Peer]) -> None:
    """Until a message has reached both; what is still on its way then does not count."""
    reached: set[int] = set()
    deadline_s = time.monotonic() + 15
    while len(reached) < 2:
        if time.monotonic() > deadline_s:
            raise TimeoutError("no message reaches the neighbor")
        publisher.sock.sendall(encode(Publish(TOPIC, struct.pack("!d", -1.0)), 5))
        time.sleep(0.05)
        reached |= {at for at, peer in enumerate(peers) if _messages(peer, 0.05)}


def _messages(peer: _Peer, timeout_s: float) -> list[float]:
    if not select.select([peer.sock], [], [], timeout_s)[0]:
        return []
    return [
        struct.unpack("!d", frame[-8:])[0]
        for frame in peer.frames()
        if frame[0] & 0xF0 == 0x30 and body_offset(frame, 0)
    ]


def _measure(publisher: _Peer, peers: list[_Peer], waits: Waits, stop: Event) -> None:
    due_s = time.monotonic() + EVERY_S
    ends_s = None
    lists = (waits.here_ms, waits.there_ms)
    by_socket = {peer.sock: (peer, times) for peer, times in zip(peers, lists, strict=True)}
    while ends_s is None or (time.monotonic() < ends_s and waits.lost):
        now_s = time.monotonic()
        if ends_s is None and now_s >= due_s:
            publisher.sock.sendall(encode(Publish(TOPIC, struct.pack("!d", due_s)), 5))
            waits.sent += 1
            due_s += EVERY_S
            if stop.is_set():
                ends_s = now_s + LAST_S
        pause_s = 0.05 if ends_s is not None else max(0.0, due_s - time.monotonic())
        for sock in select.select(list(by_socket), [], [], pause_s)[0]:
            peer, times = by_socket[sock]
            for sent_s in _messages(peer, 0.0):
                if sent_s > 0:
                    times.append((time.monotonic() - sent_s) * 1000)
