"""No guard: every link that is up is the algorithm's.

For algorithms of the topology ``any``.  Nothing is announced, so a node knows its own links only:
who is beyond them, and which way, is the algorithm's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.life import LinkState
from isthmus.exchange.topology.guard import GuardActions, Reach

__all__ = ["OpenTopology"]


class OpenTopology:
    """In the place of `TopologyGuard`."""

    knows_ways = False
    weight = 0

    def __init__(
        self, node_id: str, incarnation: str, actions: GuardActions, size: Callable[[], int]
    ) -> None:
        """`size` says how many nodes the fabric has, as far as the algorithm knows."""
        self._here = node_id
        self._incarnation = incarnation
        self._actions = actions
        self._size = size
        self._up: set[str] = set()
        self._ways: dict[str, frozenset[str]] = {}

    def link_up(self, neighbor: str) -> None:
        self._up.add(neighbor)
        self._actions.activate(neighbor)
        self._actions.topology_changed()

    def link_down(self, neighbor: str) -> None:
        self._up.discard(neighbor)
        self._actions.topology_changed()

    def message_arrived(self, neighbor: str, payload: bytes) -> None:
        raise RemoteProtocolError(
            f"{neighbor} announces its links; this algorithm has no tree that they could be of"
        )

    def reach(self) -> Mapping[str, Reach]:
        """Neighbors only."""
        return {name: Reach(name, (self._here, name)) for name in self._up}

    def ways(self) -> Mapping[str, frozenset[str]]:
        """Not known."""
        return self._ways

    @property
    def size(self) -> int:
        return max(self._size(), len(self._up) + 1)

    def is_primary(self, origin: str, neighbor: str) -> bool:
        """Whether a message of `origin` may come from `neighbor`: from any, if it is not ours."""
        return origin != self._here

    def other_lives(self) -> tuple[str, ...]:
        """Not known."""
        return ()

    def status(self) -> dict[str, object]:
        """What a node knows of the fabric by itself, in the form of the guard's, JSON-able."""
        up = sorted(self._up)
        return {
            "node": self._here,
            "incarnation": self._incarnation,
            "nodes": sorted({self._here, *up}),
            "links": [
                {"ends": sorted((self._here, name)), "birth": 0, "state": LinkState.ACTIVE.shown}
                for name in up
            ],
            "paths": {name: [self._here, name] for name in up},
            "rings": [],
            "rings_total": 0,
            "duplicates": {},
        }
