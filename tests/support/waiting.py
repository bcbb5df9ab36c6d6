"""Waiting for a condition with a deadline, never for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_for"]

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T], timeout_s: float, what: str, *, every_s: float = 0.01
) -> T:
    """Return the condition's first true result; fail with `what` when none came in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(every_s)
