"""The inputs, from a process of their own that gives way to the node.

On a small machine a generator that computes as much as it can takes the processor from the node
under attack, and the node's turns are then long by the clock for no fault of its own.  So the
generator is *niced*: it gets what the nodes, their brokers and the well-behaved clients leave.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

from benchmarks.hostile.inputs import INPUTS, Target

__all__ = ["NICENESS", "attack"]

NICENESS = 15
PATIENCE_S = 300.0


def attack(name: str, target: Target) -> str:
    """Let the input of that name come to `target`; what went wrong with it, if anything."""
    context = multiprocessing.get_context("spawn")
    result, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(name, target, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not result.poll(PATIENCE_S):
            return f"not over after {PATIENCE_S:g} s"
        problem: str = result.recv()
        return problem
    except EOFError:
        return "the generator ended by itself"
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()


def _attack(name: str, target: Target, result: Connection) -> None:
    os.nice(NICENESS)
    chosen = next(each for each in INPUTS if each.name == name)
    try:
        chosen.attack(target)
    except OSError as error:
        result.send(str(error) or type(error).__name__)
    else:
        result.send("")
