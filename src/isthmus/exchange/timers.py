"""Timers by key, on top of the host's."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from isthmus.exchange.host import Cancellable, Host

__all__ = ["Timers"]


class Timers:
    """Calls `fired(key)`; a timer of the same key is replaced."""

    def __init__(self, host: Host, fired: Callable[[Hashable], None]) -> None:
        self._host = host
        self._fired = fired
        self._running: dict[Hashable, Cancellable] = {}

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        self.cancel_timer(key)

        def fire() -> None:
            self._running.pop(key, None)
            self._fired(key)

        self._running[key] = self._host.call_later(delay_s, fire)

    def set_timer_unless_set(self, delay_s: float, key: Hashable) -> None:
        if key not in self._running:
            self.set_timer(delay_s, key)

    def cancel_timer(self, key: Hashable) -> None:
        if timer := self._running.pop(key, None):
            timer.cancel()

    def cancel_all(self) -> None:
        for timer in self._running.values():
            timer.cancel()
        self._running.clear()
