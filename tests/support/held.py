"""A message in hand, as lanes and links see it."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.exchange.traffic.message import Message

__all__ = ["Held"]


class Held:
    """Waits for `branches`; `done` is called when it waits for nobody any more."""

    def __init__(self, message: Message, done: Callable[[], None], *branches: str) -> None:
        self.message = message
        self.size = message.cost
        self.waits_for = list(branches)
        self._done = done

    def wait_for(self, branch: str) -> None:
        self.waits_for.append(branch)

    def acknowledged_by(self, branch: str) -> None:
        self.waits_for.remove(branch)
        if not self.waits_for:
            self._done()
