"""A sink: answers CONNECT, then reads everything and counts the bytes.

    python -m benchmarks.load.sink CONNECTIONS

Prints the port it listens on, a line when all are connected, and for each line of its standard
input how many bytes have come so far from all of them together.
"""

from __future__ import annotations

import select
import socket
import sys

from benchmarks.load.source import read_packet

READ_BYTES = 1 << 20


def main(connections: int) -> None:
    socks: dict[int, socket.socket] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server, select.epoll() as epoll:
        print(server.getsockname()[1], flush=True)
        for _ in range(connections):
            sock, _ = server.accept()
            read_packet(sock)  # CONNECT
            sock.sendall(b"\x20\x02\x00\x00")
            socks[sock.fileno()] = sock
            epoll.register(sock.fileno(), select.EPOLLIN)
        print("ready", flush=True)
        epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        total = 0
        buffer = bytearray(READ_BYTES)
        while True:
            for fd, _ in epoll.poll():
                if fd in socks:
                    size = socks[fd].recv_into(buffer)
                    total += size
                    if not size:
                        epoll.unregister(fd)
                elif sys.stdin.readline():
                    print(total, flush=True)
                else:
                    return


if __name__ == "__main__":
    main(int(sys.argv[1]))
