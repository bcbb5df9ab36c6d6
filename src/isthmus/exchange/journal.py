"""A file that is appended to, a slice at a time, and written anew when it has grown too long.

Nothing here takes long at one go: what changed is appended in slices, a rewrite goes on slice by
slice beside it, and what changes meanwhile goes into both files.  What a change costs does not
depend on how much is kept.  The slices are in the form of `isthmus.exchange.kept_records`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from isthmus.exchange.host import Host, StateRewrite
from isthmus.exchange.timers import Timers

__all__ = ["Journal"]

REWRITE_BYTES: Final = 16 << 20
MAX_WAITING_BYTES: Final = 8 << 20
"""With more on its way to the disk, a rewrite pauses."""
PAUSE_S: Final = 0.05


class Journal:
    """Keeps something over restarts, if the host keeps anything.

    `drain` gives the next slice that has to be appended, empty if none has; `snapshot` all of it in
    slices, of which the first begins the file.  Nothing is written before `changed` or `rewrite` is
    called: until then what the node's last life left stays.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        *,
        drain: Callable[[], bytes],
        snapshot: Callable[[], Iterator[bytes]],
    ) -> None:
        self._host = host
        self._name = name
        self._drain = drain
        self._snapshot = snapshot
        self._timers = Timers(host, self._timer_fired)
        self._stands = False
        """Whether what is appended continues a file that can be read."""
        self._appended = self._size = 0
        self._rewriting: tuple[StateRewrite, Iterator[bytes]] | None = None

    def resume(self) -> None:
        """Go on with what was read; it is rewritten at the first chance: shorter, and whole."""
        self._stands = True
        self._appended = REWRITE_BYTES + 1

    def changed(self, delay_s: float) -> None:
        """Perhaps; write what has, after `delay_s` at the latest."""
        if self._host.keeps_state:
            self._timers.set_timer_unless_set(delay_s, "append")

    def rewrite(self) -> None:
        """Write all of it anew, because what was kept is lost, another life's or too long."""
        if self._host.keeps_state:
            self._rewriting = (self._host.rewrite_state(self._name), self._snapshot())
            self._size = 0
            self._rewrite_more()  # the header comes first
            self._timers.set_timer(0, "rewrite")

    def lost(self) -> None:
        """Not all that was appended could be written."""
        self._stands = False
        self.rewrite()

    def stop(self) -> None:
        """Write all that is left, at once."""
        self.abandon()
        if not self._host.keeps_state:
            return
        if not self._stands and self._rewriting is None:
            self.rewrite()
            self.abandon()
        while self._rewriting is not None:
            self._rewrite_more()
        while self._append():
            pass

    def abandon(self) -> None:
        """Write nothing more."""
        self._timers.cancel_all()

    def _timer_fired(self, key: Hashable) -> None:
        if key == "rewrite":
            if self._rewriting is not None:
                slow = self._rewriting[0].waiting_bytes > MAX_WAITING_BYTES
                if not slow:
                    self._rewrite_more()
                self._timers.set_timer(PAUSE_S if slow else 0, "rewrite")
        elif not self._stands and self._rewriting is None:
            self.rewrite()
        elif self._append():
            self._timers.set_timer(0, "append")
        elif self._rewriting is None and self._appended > max(REWRITE_BYTES, self._size):
            self.rewrite()

    def _append(self) -> bool:
        """Append a slice of what has changed; False if nothing had."""
        more = self._drain()
        if not more:
            return False
        if self._stands:
            self._host.append_state(self._name, more)
            self._appended += len(more)
        if self._rewriting is not None:
            self._rewriting[0].write(more)
        return True

    def _rewrite_more(self) -> None:
        assert self._rewriting is not None
        rewrite, slices = self._rewriting
        more = next(slices, None)
        if more is not None:
            rewrite.write(more)
            self._size += len(more)
            return
        rewrite.commit()
        self._rewriting = None
        self._stands = True
        self._appended = 0
