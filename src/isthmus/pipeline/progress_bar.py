"""How far something is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

__all__ = ["ProgressBar"]


class ProgressBar:
    """`name`, the bar, and what is shown beside it; `at_s` is the caller's own time."""

    def __init__(self, console: Console, name: str, plain_every_s: float) -> None:
        self._console = console
        self._name = name
        self._plain_every_s = self._plain_after_s = plain_every_s
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, shown="")
        self._bar.start()

    def show(self, at_s: float, done: float, total: float | None, shown: str) -> None:
        """It is so far."""
        self._bar.update(self._task, completed=done, total=total, shown=shown)
        self._bar.refresh()
        if not self._console.is_terminal and at_s >= self._plain_after_s:
            self._plain_after_s += self._plain_every_s
            self._console.print(f"{self._name}: {shown}", markup=False)

    def stop(self) -> None:
        """It is over, and the bar goes."""
        self._bar.stop()
