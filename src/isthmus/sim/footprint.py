"""How much an algorithm holds: the entries of all containers that it owns."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from enum import Enum

__all__ = ["footprint"]

_ATOMS = (str, bytes, int, float, bool, type(None), Enum, type)


def footprint(algorithm: object) -> int:
    """Entries in dicts, lists, sets and the like reachable from `algorithm`, its port left out."""
    seen: set[int] = {id(getattr(algorithm, "port", None))}
    total = 0
    todo: list[object] = [algorithm]
    while todo:
        thing = todo.pop()
        if isinstance(thing, _ATOMS) or callable(thing) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            total += len(thing)
            todo += thing.keys()
            todo += thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            total += len(thing)
            todo += thing
        else:
            if isinstance(thing, Collection):
                total += len(thing)
            todo += _attributes(thing)
    return total


def _attributes(thing: object) -> Iterator[object]:
    yield from getattr(thing, "__dict__", {}).values()
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                if hasattr(thing, private):
                    yield getattr(thing, private)
