"""The journal of retained messages: read at the start, then a slice of what changed now and then.

See `isthmus.exchange.journal`; what its records say is in `isthmus.exchange.retained.journal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.journal import Journal
from isthmus.exchange.retained.journal import JOURNAL_NAME, JOURNAL_VERSION
from isthmus.exchange.retained.store import RetainedStore

__all__ = ["JOURNAL_S", "RetainedKeeping"]

JOURNAL_S: Final = 0.5


class RetainedKeeping:
    """Keeps a store over restarts, if the host keeps anything, and sweeps it."""

    def __init__(self, host: Host, store: RetainedStore) -> None:
        self._host = host
        self._store = store
        self.journal = Journal(host, JOURNAL_NAME, drain=store.drain, snapshot=store.snapshot)
        self._ticker: Cancellable | None = None

    def loading(self) -> Iterator[None]:
        """Read what was kept, with pauses."""
        kept = self._host.load_state(JOURNAL_NAME, JOURNAL_VERSION)
        if kept is None:
            return
        for problem in self._store.loading(kept, self._host.wall_ms()):
            if problem:
                self._host.log("warning", "kept retained messages: lost a part", cause=problem)
            yield
        self.journal.resume()
        self.journal.changed(JOURNAL_S)

    def start(self) -> None:
        if self._host.keeps_state:
            self._ticker = self._host.call_later(JOURNAL_S, self._tick)

    def stop(self) -> None:
        """Write all that is to be written, at once."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.journal.stop()

    def _tick(self) -> None:
        more = self._store.sweep(self._host.wall_ms())
        if self._store.has_changed:
            self.journal.changed(0)
        self._ticker = self._host.call_later(0 if more else JOURNAL_S, self._tick)
