"""The journal of wills: read at the start, appended to, rewritten when it has grown too long.

So that a node that crashes sends the wills of its clients when it is back.  What a client that
comes or goes costs does not depend on how many there are, and nothing takes long at one go.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from isthmus.errors import IsthmusError
from isthmus.exchange.client.wills import DueWill, Wills
from isthmus.exchange.host import Host, StateRewrite
from isthmus.exchange.timers import Timers

__all__ = ["NAME", "WillsKeeping"]

NAME: Final = "wills"
APPEND_S: Final = 1.0
REWRITE_BYTES: Final = 16 << 20
MAX_WAITING_BYTES: Final = 8 << 20


class WillsKeeping:
    """Keeps wills over restarts, if the host keeps anything.

    Nothing is written before `changed` or `rewrite` is called: until then what the node's last
    life left stays.
    """

    def __init__(self, host: Host, wills: Wills) -> None:
        self._host = host
        self._wills = wills
        self._timers = Timers(host, self._timer_fired)
        self._has_journal = False
        """Whether what is appended continues a journal of this life."""
        self._appended = self._size = 0
        self._rewriting: tuple[StateRewrite, Iterator[bytes]] | None = None

    def load(self) -> list[DueWill]:
        """Read what was kept; what is due."""
        kept = self._host.load_state(NAME)
        if not kept:
            return []
        try:
            return self._wills.restore(kept, self._host.now())
        except IsthmusError as error:
            self._host.log("error", "kept wills cannot be read", cause=str(error))
            return []

    def stop(self) -> None:
        """Write all that is left, at once."""
        self._timers.cancel_all()
        if self._host.keeps_state:
            self._host.save_state(NAME, self._wills.snapshot(self._host.now()))

    def changed(self) -> None:
        """Perhaps; write soon what has."""
        if self._host.keeps_state:
            self._timers.set_timer_unless_set(APPEND_S, "append")

    def rewrite(self) -> None:
        """Write all of it anew, because what was kept is lost, another life's or too long."""
        pieces = self._wills.journal.rewriting(self._host.now())
        self._rewriting = (self._host.rewrite_state(NAME), pieces)
        self._size = 0
        self._rewrite_more()  # the header comes first
        self._timers.set_timer(0, "rewrite")

    def lost(self) -> None:
        """Not all that was appended could be written."""
        self._has_journal = False
        self.rewrite()

    def _timer_fired(self, key: Hashable) -> None:
        if key == "rewrite":
            if self._rewriting is not None:
                slow = self._rewriting[0].waiting_bytes > MAX_WAITING_BYTES
                if not slow:
                    self._rewrite_more()
                self._timers.set_timer(0.05 if slow else 0, "rewrite")
        elif not self._has_journal and self._rewriting is None:
            self.rewrite()
        elif self._append():
            self._timers.set_timer(0, "append")
        elif self._rewriting is None and self._appended > max(REWRITE_BYTES, self._size):
            self.rewrite()

    def _append(self) -> bool:
        """Append a slice of what has changed; False if nothing had."""
        more = self._wills.journal.drain(self._host.now())
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
            self._size += len(piece)
            return
        rewrite.commit()
        self._rewriting = None
        self._has_journal = True
        self._appended = 0
