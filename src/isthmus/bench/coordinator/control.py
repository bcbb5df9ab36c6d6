"""How the coordinator and the load processes talk: JSON objects, one per line, over two pipes.

The coordinator says ``{"do": …}``, a load process answers ``{"is": …, "writer": …}``::

    clock     → clock       t_ns: what its clock shows, at once
    connect   → connected   its clients are connected, its subscribers subscribed
    measure   → progress …  from start_ns for duration_s, then on; a report each half second
    finish    → measured    it has written its files of this run and says how it fared
    close                   it disconnects its clients and ends; so does the end of its input
              → failed      at any time: what went wrong; the session ends with it

:class:`LineChannel` carries them, over pipes to a process here and over TCP to an agent elsewhere
(:mod:`isthmus.bench.coordinator.agent`).  Invariants: nothing waits without a deadline; a line that
is being received occupies at most `max_line_bytes`; what is sent is kept nowhere but in the kernel;
whatever is not such a line raises :class:`~isthmus.errors.LoadFailed` with the name of the other
end.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeVar

from isthmus.errors import LoadFailed

__all__ = ["MAX_LINE_BYTES", "ControlMessage", "LineChannel", "Target", "item"]

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Room for the clients of the largest scenario: each takes some 130 bytes."""
CHUNK_BYTES: Final = 256 * 1024
SHOWN_CHARACTERS: Final = 80

ControlMessage = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the clients of one server connect, as the load processes reach it."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)


class LineChannel:
    """Messages to and from one other process; `name` is what errors call it.

    The descriptors stay the caller's to close.
    """

    def __init__(
        self, name: str, read_fd: int, write_fd: int, *, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self.name = name
        self.max_line_bytes = max_line_bytes
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = bytearray()
        self._searched = 0  # no line feed before here
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """What to wait on for something to read; see `next` for what may be here already."""
        return self._read_fd

    def send(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Hand the whole message to the kernel."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.send_bytes(line, timeout_s)

    def send_bytes(self, data: bytes, timeout_s: float) -> None:
        """Hand `data` to the kernel, however slowly the other end takes it within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                self._wait(self._write_fd, select.POLLOUT, deadline_s, "takes nothing more")
            except OSError as error:
                raise self._failed(f"cannot be told anything more: {error.strerror}") from None

    def next(self) -> ControlMessage | None:
        """The next message if it is all here, without waiting; `EOFError` after the last."""
        line = self._line()
        if line is None:
            self._fill()
            line = self._line()
        return None if line is None else self._parsed(line)

    def receive(self, timeout_s: float) -> ControlMessage:
        """The next message, waited for; `EOFError` after the last."""
        deadline_s = time.monotonic() + timeout_s
        while (message := self.next()) is None:
            self.wait(deadline_s)
        return message

    def wait(self, deadline_s: float) -> None:
        """Until there is something to read; `deadline_s` is of `time.monotonic`."""
        self._wait(self._read_fd, select.POLLIN, deadline_s, "has not answered in time")

    def receive_bytes(self, count: int, into: IO[bytes], timeout_s: float) -> None:
        """Exactly the next `count` bytes, in bounded chunks; `EOFError` if fewer come.

        `timeout_s` is for each chunk.
        """
        while count:
            if not self._buffer:
                self._wait(
                    self._read_fd,
                    select.POLLIN,
                    time.monotonic() + timeout_s,
                    f"sent nothing for {timeout_s:g} s, {count} bytes of a file are missing",
                )
                self._fill()
            chunk = self._buffer[: min(count, CHUNK_BYTES)]
            del self._buffer[: len(chunk)]
            self._searched = 0
            into.write(chunk)
            count -= len(chunk)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > self.max_line_bytes:
                raise self._failed(f"sent a line of more than {self.max_line_bytes} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _fill(self) -> None:
        try:
            data = os.read(self._read_fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:  # what a socket says for a peer that is gone
            data = b""
        if not data:
            raise EOFError
        self._buffer += data

    def _parsed(self, line: bytes) -> ControlMessage:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # no JSON, or brackets without end
            message = None
        if not isinstance(message, dict):
            shown = line[:SHOWN_CHARACTERS].decode(errors="replace")
            raise self._failed(f"sent {shown!r}, which is not a JSON object")
        return message

    def _wait(self, fd: int, event: int, deadline_s: float, otherwise: str) -> None:
        poll = select.poll()
        poll.register(fd, event)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise self._failed(otherwise)

    def _failed(self, problem: str) -> LoadFailed:
        return LoadFailed(self.name, problem)


def item(message: ControlMessage, key: str, kind: type[T] | tuple[type[T], ...], name: str) -> T:
    """`message[key]` if it is there and of that kind; else whoever `name` is has failed."""
    value = message.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        said = message.get("is", message.get("do"))
        raise LoadFailed(name, f"said {said!r} with {key}={value!r}, which means nothing")
    return value
