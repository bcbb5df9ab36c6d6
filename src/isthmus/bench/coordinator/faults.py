"""Makes the faults of a scenario while it is measured, and records when each was made.

    [[crash]]  at_s: SIGKILL ──▶ at_s + for_s: started again ──▶ ready
    [[cut]]    at_s: no byte passes ──▶ at_s + for_s: what was kept back passes

A thread makes them, so that nothing that the coordinator waits for makes one late.  What fails
there fails the measurement (:meth:`Making.check`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from isthmus.bench.load.clock import now_ns
from isthmus.config.faults import Crash, Cut
from isthmus.errors import LoadError

__all__ = ["Breakable", "MadeFault", "Making"]

POLL_S: Final = 0.02
READY_S: Final = 60.0
"""A node that was started again is ready within this time, or has failed."""
JOIN_S: Final = 20.0

Ways = tuple[tuple[str, str], ...]


class Breakable(Protocol):
    """What faults are made in: :class:`isthmus.bench.rig.rig.Rig`."""

    def kill(self, node: str) -> None: ...
    def start_again(self, node: str) -> None: ...

    def is_ready(self, node: str) -> bool:
        """Whether a node that was started again is; raises `NodeFailed` if it ended."""

    def cut(self, ways: Iterable[tuple[str, str]]) -> None: ...
    def heal(self, ways: Iterable[tuple[str, str]]) -> None: ...


@dataclass(frozen=True, slots=True)
class MadeFault:
    """When a fault began and ended, in nanoseconds since the epoch on the coordinator's clock."""

    fault: Cut | Crash
    began_ns: int
    ended_ns: int | None = None
    ready_ns: int | None = None
    """When a node that was killed said that it is ready again."""

    def in_words(self, start_ns: int) -> str:
        """For the run's notes; times count from `start_ns`."""

        def at(t_ns: int | None) -> str:
            return "never" if t_ns is None else f"{(t_ns - start_ns) / 1e9:.3f} s"

        if isinstance(self.fault, Crash):
            return (
                f"{self.fault.node} was killed at {at(self.began_ns)}, started again at "
                f"{at(self.ended_ns)} and ready at {at(self.ready_ns)}"
            )
        source, target = ", ".join(self.fault.source), ", ".join(self.fault.target)
        way = (
            f"from {source} to {target}" if self.fault.one_way else f"between {source} and {target}"
        )
        return f"nothing passed {way} from {at(self.began_ns)} to {at(self.ended_ns)}"


class Making:
    """The faults of one measurement, from its start on; a context manager."""

    def __init__(
        self, cuts: Iterable[Cut], crashes: Iterable[Crash], rig: Breakable | None, start_s: float
    ) -> None:
        """`start_s` is when the first message is due, on `time.monotonic`'s clock."""
        self.made: list[MadeFault] = []
        """In the order in which they began."""
        self._over_s: float | None = None
        self._rig = rig
        self._steps: list[tuple[float, int, Callable[[], None]]] = []
        """When, and then in which order: what ends goes before what begins."""
        self._starting: dict[str, tuple[int, float]] = {}
        """Nodes that are not ready yet: which fault it was, and since when."""
        self._failed: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._make, name="faults", daemon=True)
        for cut in cuts:
            self._plan(cut, start_s)
        for crash in crashes:
            self._plan(crash, start_s)
        self._steps.sort(key=lambda step: step[:2])
        if not self._steps:
            self._over_s = start_s
        elif rig is None:
            raise LoadError("the scenario has faults, and nobody is there to make them")

    def __enter__(self) -> Making:
        if self._steps:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def check(self) -> None:
        """Raises what went wrong."""
        if self._failed is not None:
            raise self._failed

    @property
    def over_for_s(self) -> float:
        """For how long every fault is over and every node ready; less than 0 if they are not."""
        return -1.0 if self._over_s is None else time.monotonic() - self._over_s

    def _plan(self, fault: Cut | Crash, start_s: float) -> None:
        number: list[int] = []

        def begin() -> None:
            assert self._rig is not None
            number.append(len(self.made))
            if isinstance(fault, Crash):
                self._rig.kill(fault.node)
            else:
                self._rig.cut(fault.ways)
            self.made.append(MadeFault(fault, now_ns()))

        def over() -> None:
            assert self._rig is not None
            if isinstance(fault, Crash):
                self._rig.start_again(fault.node)
                self._starting[fault.node] = number[0], time.monotonic()
            else:
                self._rig.heal(fault.ways)
            self.made[number[0]] = replace(self.made[number[0]], ended_ns=now_ns())

        self._steps += [(start_s + fault.at_s, 1, begin), (start_s + fault.end_s, 0, over)]

    def _make(self) -> None:
        try:
            while self._steps or self._starting:
                now_s = time.monotonic()
                while self._steps and self._steps[0][0] <= now_s:
                    self._steps.pop(0)[2]()
                self._look(now_s)
                next_s = self._steps[0][0] if self._steps else now_s + POLL_S
                wait_s = next_s - time.monotonic()
                if self._stopping.wait(min(wait_s, POLL_S) if self._starting else wait_s):
                    return
            self._over_s = time.monotonic()
        except BaseException as error:  # noqa: BLE001 - a thread cannot raise; `check` does
            self._failed = error

    def _look(self, now_s: float) -> None:
        """Who is ready again."""
        assert self._rig is not None
        for node, (number, since_s) in list(self._starting.items()):
            if self._rig.is_ready(node):
                del self._starting[node]
                self.made[number] = replace(self.made[number], ready_ns=now_ns())
            elif now_s - since_s > READY_S:
                raise LoadError(f"{node} was started again and is not ready after {READY_S:g} s")
