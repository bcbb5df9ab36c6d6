"""The one graph search: breadth first, the lowest neighbor first, so that it repeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["first_steps", "path_to", "search"]


class _Node(Protocol):
    def __hash__(self) -> int: ...
    def __lt__(self, other: Any, /) -> bool: ...


N = TypeVar("N", bound=_Node)


def search(edges: Iterable[tuple[N, N]], start: N) -> dict[N, N]:
    """Every node that `start` reaches, with the one before it on a shortest way; the nearest first.

    `start` itself comes after itself.
    """
    around: dict[N, list[N]] = {start: []}
    for a, b in edges:
        around.setdefault(a, []).append(b)
        around.setdefault(b, []).append(a)
    before = {start: start}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for following in sorted(around[at]):
            if following not in before:
                before[following] = at
                queue.append(following)
    return before


def path_to(before: dict[N, N], node: N) -> tuple[N, ...]:
    """The way from the start of a search to a node that it found, both included."""
    path = [node]
    while before[path[-1]] != path[-1]:
        path.append(before[path[-1]])
    return tuple(reversed(path))


def first_steps(before: dict[N, N]) -> dict[N, N]:
    """The first step on the way to each node of a search, without the start."""
    steps: dict[N, N] = {}
    for node, previous in before.items():
        if node != previous:
            steps[node] = steps.get(previous, node)
    return steps
