"""After a crash: not to decide before one knows.

A node that was killed and comes back knows no neighbour and no subscription of theirs.  Neighbours
send it at once what they have kept for it; were that routed at once, it would be acknowledged and
go nowhere.  So a node with a `state_dir` remembers who its neighbours are, and after a start is
*recovering* until each of them is back, and the algorithm has what it needs of them, or until
`RECOVERY_S` after the last one came.  While it is, messages at QoS 1 and 2 wait, unacknowledged.

A node that is stopped in order says goodbye; neighbours keep it all the same if they know from its
hello that it has a `state_dir`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from isthmus.exchange.host import Cancellable, Host

__all__ = ["RECOVERY_S", "Recovery"]

RECOVERY_S = 10.0


class Recovery:
    """Who was a neighbour when the last life ended, and is awaited."""

    def __init__(
        self, host: Host, progressed: Callable[[], None], over: Callable[[], None]
    ) -> None:
        self._host = host
        self._progressed = progressed
        self._over = over
        self._timer: Cancellable | None = None
        self._neighbors: set[str] = set()
        self._awaited: set[str] = set()

    @property
    def active(self) -> bool:
        return bool(self._awaited)

    def awaits_others(self, neighbor: str) -> bool:
        """Whether anybody but `neighbor` is awaited."""
        return bool(self._awaited - {neighbor})

    def start(self) -> None:
        kept = self._host.load_state("neighbors")
        if not kept:
            return
        try:
            self._awaited = set(map(str, json.loads(kept)))
        except ValueError as error:
            self._host.log("error", "kept neighbours cannot be read", cause=str(error))
            return
        self._neighbors = set(self._awaited)
        if self._awaited:
            self._host.log("info", "recovering", awaits=" ".join(sorted(self._awaited)))
            self._timer = self._host.call_later(RECOVERY_S, self._time_is_over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def came(self, neighbor: str) -> None:
        """The link to `neighbor` is up: it gets the whole time to tell what it wants."""
        if neighbor in self._awaited and self._timer is not None:
            self._timer.cancel()
            self._timer = self._host.call_later(RECOVERY_S, self._time_is_over)

    def joined(self, neighbor: str) -> None:
        if neighbor not in self._neighbors:
            self._neighbors.add(neighbor)
            self._save()

    def left(self, neighbor: str) -> None:
        if neighbor in self._neighbors:
            self._neighbors.discard(neighbor)
            self._save()
        self.ready(neighbor)

    def ready(self, neighbor: str) -> None:
        """`neighbor` is back and has told what it wants, or is no longer a neighbour."""
        if neighbor in self._awaited:
            self._awaited.discard(neighbor)
            self._progress()

    def _time_is_over(self) -> None:
        if self._awaited:
            self._host.log("warning", "not back", neighbors=" ".join(sorted(self._awaited)))
            self._awaited.clear()
            self._progress()

    def _progress(self) -> None:
        self._progressed()
        if not self._awaited:
            if self._timer is not None:
                self._timer.cancel()
            self._over()

    def _save(self) -> None:
        if self._host.keeps_state:
            self._host.save_state("neighbors", json.dumps(sorted(self._neighbors)).encode())
