"""A flood: answers CONNECT and SUBSCRIBE, then sends messages as fast as they are taken.

    python -m benchmarks.load.source CONNECTIONS MESSAGES_PER_WRITE RUN

Prints the port it listens on, and a line when all are subscribed.  For each line ``SECONDS`` on its
standard input it floods for so long and prints how many messages each connection got.

Frames lie ready in one block per connection; between two uses of a block only its numbers and times
are set, so a message costs the source almost nothing but its write.  The bytes are made here by
hand: a source that shared the tool's code would share its faults too.
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import sys
import time
from typing import Any

import numpy as np

BLOCK = 1500
"""Messages of a block: about 64 KB."""
MAGIC = 0x31484D49
PAYLOAD_BYTES = 32


class Flooded:
    """One subscriber's connection; `number` is the publisher that its messages name."""

    def __init__(self, number: int, sock: socket.socket, run: str) -> None:
        self.number = number
        self.sock = sock
        read_packet(sock)  # CONNECT
        sock.sendall(b"\x20\x02\x00\x00")
        subscribe = read_packet(sock)
        topic = subscribe[6 : 6 + subscribe[5]]
        sock.sendall(b"\x90\x03" + subscribe[2:4] + b"\x00")
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = bytes((0x30, 2 + len(topic) + PAYLOAD_BYTES, 0, len(topic))) + topic
        self.frame_bytes = len(head) + PAYLOAD_BYTES
        self.block = np.zeros(
            BLOCK,
            [
                ("head", f"S{len(head)}"),
                ("magic", "<u4"),
                ("publisher", "<u4"),
                ("t_send_ns", "<i8"),
                ("message", "<u4"),
                ("reserved", "<u4"),
                ("tag", "<u8"),
            ],
        )
        digest = hashlib.blake2b(run.encode(), digest_size=8).digest()
        self.block["head"] = head
        self.block["magic"] = MAGIC
        self.block["publisher"] = number
        # Sent at different times up to a millisecond ago, as from different publishers.
        self._ages_ns = np.random.default_rng(number).integers(0, 1_000_000, BLOCK)
        self.block["t_send_ns"] = time.time_ns() - self._ages_ns
        self.block["message"] = np.arange(BLOCK)
        self.block["tag"] = int.from_bytes(digest, "little")
        self.view = self.block.view(np.uint8).data
        self.at = 0
        self.blocks = 0

    @property
    def sent(self) -> int:
        """Whole messages so far."""
        return self.blocks * BLOCK + self.at // self.frame_bytes

    def write(self, size: int) -> None:
        """Send up to `size` bytes of the block; begin it anew at its end."""
        try:
            self.at += self.sock.send(self.view[self.at : self.at + size])
        except BlockingIOError:
            return
        if self.at == len(self.view):
            self.at = 0
            self.blocks += 1
            self.block["message"] += BLOCK
            self.block["t_send_ns"] = time.time_ns() - self._ages_ns

    def complete(self) -> None:
        """Send the rest of a message that is out in part."""
        self.sock.setblocking(True)
        while rest := -self.at % self.frame_bytes:
            self.write(rest)
        self.sock.setblocking(False)


def read_packet(sock: socket.socket) -> bytes:
    """The next packet, whose remaining length has one byte."""
    data = b""
    while len(data) < 2 or len(data) < 2 + data[1]:
        chunk = sock.recv(2 + data[1] - len(data) if len(data) >= 2 else 2 - len(data))
        if not chunk:
            raise SystemExit("a client left before it was ready")
        data += chunk
    return data


def flood(flooded: list[Flooded], per_write: int, seconds: float) -> dict[str, Any]:
    """Send for so long; messages sent to each connection, and what it cost."""
    by_fd = {one.sock.fileno(): one for one in flooded}
    size = per_write * flooded[0].frame_bytes
    with select.epoll() as epoll:
        for fd in by_fd:
            epoll.register(fd, select.EPOLLOUT)
        cpu_s, end_s = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            for fd, _ in epoll.poll(0.1):
                by_fd[fd].write(size)
    for one in flooded:
        one.complete()
    return {
        "sent": [one.sent for one in flooded],
        "cpu_s": time.process_time() - cpu_s,
    }


def main(connections: int, per_write: int, run: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        print(server.getsockname()[1], flush=True)
        flooded = [Flooded(number, server.accept()[0], run) for number in range(connections)]
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(flood(flooded, per_write, float(line))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
