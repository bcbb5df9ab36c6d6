"""A topology guard and the states of its links, which the exchange keeps otherwise."""

from __future__ import annotations

from isthmus.exchange.link.life import LINK, LinkEvent, LinkState
from isthmus.exchange.topology.guard import GuardActions, TopologyGuard
from isthmus.tables import step

__all__ = ["WatchedGuard"]


class WatchedGuard(TopologyGuard):
    """Whatever happens to a link must be in the table of its life; one that is down is let go."""

    def __init__(self, node_id: str, incarnation: str, actions: GuardActions) -> None:
        super().__init__(node_id, incarnation, _Watching(self, actions))
        self._states: dict[str, LinkState] = {}

    def link_up(self, neighbor: str) -> None:
        self._let_go(neighbor)
        self.happens(neighbor, LinkEvent.COMPLETE)
        super().link_up(neighbor)

    def link_down(self, neighbor: str) -> None:
        self._let_go(neighbor)
        super().link_down(neighbor)

    def _let_go(self, neighbor: str) -> None:
        if neighbor in self._states:
            self.happens(neighbor, LinkEvent.LET_GO)
            del self._states[neighbor]

    def state(self, neighbor: str) -> LinkState:
        return self._states.get(neighbor, LinkState.DOWN)

    def happens(self, neighbor: str, event: LinkEvent) -> None:
        self._states[neighbor], _ = step(LINK, self.state(neighbor), event)


class _Watching:
    def __init__(self, guard: WatchedGuard, actions: GuardActions) -> None:
        self._guard = guard
        self._actions = actions
        self.send = actions.send
        self.pause = actions.pause
        self.topology_changed = actions.topology_changed

    def activate(self, neighbor: str) -> None:
        self._guard.happens(neighbor, LinkEvent.AGREED)
        self._actions.activate(neighbor)

    def block(self, neighbor: str, ring: tuple[str, ...]) -> None:
        self._guard.happens(neighbor, LinkEvent.RING)
        self._actions.block(neighbor, ring)
