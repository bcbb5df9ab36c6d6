"""Splitting and merging cells at one gateway, or at several before the same brokers in step.

All of them begin; when all are done with a step, all are told to take the next.  Until the last
step whoever fails ends it for all, and all is as it was.  The last step is told to all, again and
again if one does not answer: some may have taken it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.fabric.admin_client import ask_algorithm, fetch_cooperation

__all__ = ["STEPS", "change_cells"]

STEPS: Final = ("hold", "copy", "publish", "subscribe", "switch")
POLL_S: Final = 0.05
TRIES: Final = 40
"""To tell a gateway to take the last step, one in `POLL_S`."""


def change_cells(
    gateways: Sequence[Address],
    request: Mapping[str, object],
    *,
    timeout_s: float,
    progress: Callable[[str], None] = lambda _: None,
    copies: bool = True,
) -> dict[str, Any]:
    """What the first gateway tells of it at the end; raises `AdminError` if it could not be done.

    `copies`: whether what is retained is moved, which the first gateway does.
    """
    begun: list[Address] = []
    together = len(gateways) > 1
    try:
        for number, each in enumerate(gateways):
            asked = {**request, "copies": copies and number == 0, "waits": together}
            ask_algorithm(each, asked)
            begun.append(each)
        for step in STEPS if together else ():
            for each in gateways:
                _wait(each, step, timeout_s, progress)
            if step == STEPS[-1]:
                break
            for each in gateways:
                ask_algorithm(each, {"go": step})
    except AdminError as error:
        _abort(begun if together else [], str(error))
        raise
    if together:
        _switch(gateways)
    for each in gateways:
        _wait(each, "", timeout_s, progress)
    return fetch_cooperation(gateways[0])


def _wait(gateway: Address, step: str, timeout_s: float, progress: Callable[[str], None]) -> None:
    """Until the gateway waits for that step; or, without one, until it is done."""
    deadline = time.monotonic() + timeout_s
    told = ""
    while True:
        answer = fetch_cooperation(gateway)
        algorithm, move = answer["algorithm"], answer["move"] or {}
        if problem := algorithm.get("problem"):
            raise AdminError(f"{gateway}: {problem}")
        if not algorithm.get("changing"):
            if not step:
                return
            raise AdminError(f"{gateway}: nothing is being split or merged there any more")
        if step and move.get("next") == step:
            return
        waits_for = move.get("waits_for") or ""
        now = f"{gateway}: {move.get('state', '')}" + (f", {waits_for}" if waits_for else "")
        if now != told:
            progress(now)
            told = now
        if time.monotonic() > deadline:
            raise AdminError(f"{now}: not done within {timeout_s:g} s")
        time.sleep(POLL_S)


def _abort(gateways: Sequence[Address], why: str) -> None:
    for each in gateways:
        try:
            ask_algorithm(each, {"abort": why})
        except AdminError:
            continue  # it gives up by itself, if it has not already


def _switch(gateways: Sequence[Address]) -> None:
    left, problem = list(gateways), ""
    for _ in range(TRIES):
        for each in list(left):
            try:
                ask_algorithm(each, {"go": STEPS[-1]})
                left.remove(each)
            except AdminError as error:
                problem = str(error)
        if not left:
            return
        time.sleep(POLL_S)
    done = ", ".join(map(str, (each for each in gateways if each not in left))) or "none"
    raise AdminError(
        f"{', '.join(map(str, left))} could not be told to switch ({problem}); switched: {done}. "
        "Ask those that are left again, each alone, with --no-copy"
    )
