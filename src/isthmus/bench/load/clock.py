"""The clock of the benchmark: every time in a log is read from here.

`now_ns` *is* `time.time_ns`, at its full speed, unless :data:`SHIFT_VARIABLE` is set when this
module is imported.  That variable exists for tests: it gives the processes of one machine different
clocks, as the processes of several machines have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

__all__ = ["SHIFT_VARIABLE", "now_ns"]

SHIFT_VARIABLE: Final = "ISTHMUS_CLOCK_SHIFT_NS"


def _clock(shift: str) -> Callable[[], int]:
    if not shift:
        return time.time_ns
    try:
        shift_ns = int(shift)
    except ValueError:
        raise ValueError(
            f"{SHIFT_VARIABLE}={shift!r} is not a whole number of nanoseconds, like 250000000"
        ) from None
    return lambda: time.time_ns() + shift_ns


now_ns: Callable[[], int] = _clock(os.environ.get(SHIFT_VARIABLE, ""))
"""Nanoseconds since the epoch on this process's clock."""
