"""How far the clocks of the load processes are from the coordinator's.

A question and its answer bound the difference: the other clock was read after the question left
and before the answer came.  So the middle of the two is wrong by at most half of the round trip,
and of many rounds the shortest one knows best (Cristian, "Probabilistic clock synchronization",
1989).  ILDM §6.2 had an NTP server in the same segment; here nobody needs to be synchronized, and a
process on the same machine is asked like any other.

Clocks also drift, so each is asked before and after a measurement; the run takes the middle, and
its error grows by half of what the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["Offset", "Round", "ask_clock", "best", "between"]

ROUNDS: Final = 40
ENOUGH_NS: Final = 500_000_000
"""No further round once asking took that long, as it does over a slow network."""
FEWEST_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Round:
    """One question: our clock before it and after the answer, theirs in between."""

    asked_ns: int
    theirs_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Offset:
    """What to add to the other clock to get ours, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int


def best(rounds: Iterable[Round]) -> Offset:
    """What the shortest of the rounds says."""
    shortest = min(rounds, key=lambda one: one.answered_ns - one.asked_ns)
    middle_ns = (shortest.asked_ns + shortest.answered_ns) // 2
    # One more for the half that the division drops.
    error_ns = (shortest.answered_ns - shortest.asked_ns) // 2 + 1
    return Offset(middle_ns - shortest.theirs_ns, error_ns)


def between(before: Offset, after: Offset) -> Offset:
    """The offset over a time that began with one and ended with the other."""
    drift_ns = abs(after.offset_ns - before.offset_ns)
    return Offset(
        (before.offset_ns + after.offset_ns) // 2,
        max(before.error_ns, after.error_ns) + (drift_ns + 1) // 2,
    )


def ask_clock(ask: Callable[[], int], ours: Callable[[], int]) -> Offset:
    """Ask the other clock, by `ask`, as often as is worth it."""
    rounds: list[Round] = []
    first_ns = ours()
    while len(rounds) < ROUNDS:
        asked_ns = ours()
        theirs_ns = ask()
        rounds.append(Round(asked_ns, theirs_ns, ours()))
        if len(rounds) >= FEWEST_ROUNDS and ours() - first_ns > ENOUGH_NS:
            break
    return best(rounds)
