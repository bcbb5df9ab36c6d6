"""The journal of retained messages: read at the start, appended to, rewritten now and then.

Nothing here takes long at one go: what changed is appended in slices, a rewrite goes on slice by
slice beside it, and what changes meanwhile goes into both files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from isthmus.errors import IsthmusError
from isthmus.exchange.host import Host, StateRewrite
from isthmus.exchange.retained.store import RetainedStore
from isthmus.exchange.timers import Timers

__all__ = ["JOURNAL_S", "RetainedKeeping"]

JOURNAL_S: Final = 0.5
REWRITE_BYTES: Final = 16 << 20
NAME: Final = "retained"
MAX_WAITING_BYTES: Final = 8 << 20


class RetainedKeeping:
    """Keeps a store over restarts, if the host keeps anything."""

    def __init__(self, host: Host, store: RetainedStore) -> None:
        self._host = host
        self._store = store
        self._timers = Timers(host, self._timer_fired)
        self._has_journal = False
        """Whether what is appended continues a journal that can be read."""
        self._appended = 0
        self._rewriting: tuple[StateRewrite, Iterator[bytes]] | None = None

    def loading(self) -> Iterator[None]:
        """Read what was kept, with pauses."""
        journal = self._host.load_state(NAME)
        if not journal:
            return
        try:
            for problem in self._store.loading(journal, self._host.wall_ms()):
                if problem:
                    self._host.log("warning", "kept retained messages: lost a part", cause=problem)
                yield
        except IsthmusError as error:
            self._host.log("error", "kept retained messages cannot be read", cause=str(error))
            return
        self._has_journal = True
        self._appended = REWRITE_BYTES + 1  # rewritten at the first chance: shorter, and whole

    def start(self) -> None:
        if self._host.keeps_state:
            self._timers.set_timer(JOURNAL_S, "journal")

    def stop(self) -> None:
        """Write all that is to be written, at once."""
        self._timers.cancel_all()
        if not self._host.keeps_state:
            return
        if not self._has_journal:
            self.rewrite()
        while self._rewriting is not None:
            self._rewrite_more()
        while self._append():
            pass

    def rewrite(self) -> None:
        """Write all of it anew, because what was kept is lost or has grown too long."""
        if self._host.keeps_state:
            self._rewriting = (self._host.rewrite_state(NAME), self._store.snapshot())
            self._timers.set_timer(0, "rewrite")

    def _timer_fired(self, key: Hashable) -> None:
        if key == "rewrite":
            if self._rewriting is not None:
                slow = self._rewriting[0].waiting_bytes > MAX_WAITING_BYTES
                if not slow:
                    self._rewrite_more()
                self._timers.set_timer(0.05 if slow else 0, "rewrite")
            return
        more = self._store.sweep(self._host.wall_ms())
        if self._has_journal or self._rewriting is not None:
            more = self._append() or more
        if self._rewriting is None and (
            self._appended > REWRITE_BYTES or (not self._has_journal and self._store.has_changed)
        ):
            self.rewrite()
        self._timers.set_timer(0 if more else JOURNAL_S, "journal")

    def _append(self) -> bool:
        """Append a slice of what has changed; False if nothing had."""
        more = self._store.drain()
        if not more:
            return False
        if self._has_journal:
            self._host.append_state(NAME, more)
            self._appended += len(more)
        if self._rewriting is not None:
            self._rewriting[0].write(more)
        return True

    def _rewrite_more(self) -> None:
        assert self._rewriting is not None
        rewrite, pieces = self._rewriting
        piece = next(pieces, None)
        if piece is not None:
            rewrite.write(piece)
            return
        rewrite.commit()
        self._rewriting = None
        self._has_journal = True
        self._appended = 0
