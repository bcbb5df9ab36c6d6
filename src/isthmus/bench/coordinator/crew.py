"""All load processes of a session together: one question to each, and what they answer.

Invariants: whoever says ``failed``, ends, or does not answer in time makes the whole question fail
with :class:`~isthmus.errors.LoadFailed` in its name; reports that come in between go to whoever
asked for them and get in nobody's way.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from isthmus.bench.coordinator.clocks import Offset, ask_clock
from isthmus.bench.coordinator.control import ControlMessage, item
from isthmus.bench.coordinator.workers import LoadProcess
from isthmus.bench.load.clock import now_ns
from isthmus.errors import LoadFailed

__all__ = ["Crew"]

SEND_S: Final = 30.0
CLOSE_S: Final = 1.0
CLOCK_S: Final = 30.0
"""The first answer waits until the process has started, on a busy machine."""


class Crew:
    """The load processes, in the order of their names."""

    def __init__(self, workers: Sequence[LoadProcess]) -> None:
        self.workers = tuple(workers)
        self._selector = selectors.DefaultSelector()
        for worker in workers:
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def clocks(self) -> dict[str, Offset]:
        """How far each one's clock is from ours, asked one after the other."""

        def offset(worker: LoadProcess) -> Offset:
            return ask_clock(lambda: self._clock(worker), now_ns)

        return {worker.writer: offset(worker) for worker in self.workers}

    def tell(self, message: Callable[[LoadProcess], ControlMessage]) -> None:
        """Say to each what `message` makes for it."""
        for worker in self.workers:
            worker.channel.send(message(worker), SEND_S)

    def ask(
        self,
        message: Callable[[LoadProcess], ControlMessage],
        answer: str,
        timeout_s: float,
    ) -> dict[str, ControlMessage]:
        """Say to each what `message` makes for it; each one's `answer`, by writer."""
        self.tell(message)
        answers: dict[str, ControlMessage] = {}
        deadline_s = time.monotonic() + timeout_s
        while len(answers) < len(self.workers):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                late = [worker for worker in self.workers if worker.writer not in answers]
                names = ", ".join(worker.channel.name for worker in late)
                raise LoadFailed(names, f"has not said {answer!r} within {timeout_s:g} s")
            for worker, said in self.listen(left_s):
                if said.get("is") == answer:
                    answers[worker.writer] = said
                elif said.get("is") != "progress":
                    raise _unexpected(worker, said, answer)
        return answers

    def listen(self, timeout_s: float) -> Iterator[tuple[LoadProcess, ControlMessage]]:
        """All that is said until `timeout_s` have passed, or sooner, as soon as anything is."""
        for key, _ in self._selector.select(timeout_s):
            worker: LoadProcess = key.data
            while (said := self._next(worker)) is not None:
                yield worker, said

    def close(self) -> None:
        """End all of them; each one, whatever happens at another."""
        self._selector.close()
        with ExitStack() as stack:
            for worker in self.workers:
                stack.callback(worker.close)
            for worker in self.workers:  # all at once; `close` then waits for one after the other
                try:
                    worker.channel.send({"do": "close"}, CLOSE_S)
                except LoadFailed:
                    pass  # a dead one is closed like the others

    def _next(self, worker: LoadProcess) -> ControlMessage | None:
        try:
            said = worker.channel.next()
        except EOFError:
            raise worker.failure() from None
        if said is not None and said.get("is") == "failed":
            raise LoadFailed(
                worker.channel.name,
                item(said, "problem", str, worker.channel.name),
                str(said.get("log", "")),
            )
        return said

    def _clock(self, worker: LoadProcess) -> int:
        worker.channel.send({"do": "clock"}, SEND_S)
        deadline_s = time.monotonic() + CLOCK_S
        while (said := self._next(worker)) is None:
            worker.channel.wait(deadline_s)
        if said.get("is") != "clock":
            raise _unexpected(worker, said, "clock")
        return item(said, "t_ns", int, worker.channel.name)


def _unexpected(worker: LoadProcess, said: ControlMessage, answer: str) -> LoadFailed:
    return LoadFailed(worker.channel.name, f"said {said.get('is')!r} instead of {answer!r}")
