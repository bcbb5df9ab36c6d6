"""How nodes find each other (Overlays §3): they announce themselves, and link with who is heard.

For T_d after its start a node announces itself often, later now and then (the paper: never), and
when it hears somebody whose link is not up, who may not have heard it.  Of two that hear each
other the one of the lower id dials; the other one does if it has not come about after a moment,
since perhaps only one of them hears the other.

Who is silent and away for `FORGET_S` is not dialed any more.  Bounded: with `max_links` links, or
addresses that are dialed, others are not; who has been dialed for `TRIAL_S` in vain makes room for
somebody else that is heard of, so that announcements of nodes that are not there keep nobody out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from isthmus.cooperation.api import AnnouncedNode, LinkOptions, Port, SessionInfo, SessionStatus
from isthmus.cooperation.tree.options import TreeOptions

__all__ = ["Meeting"]

FORGET_S: Final = 60.0
TRIAL_S: Final = 5.0
PATIENCE: Final = 2.0
"""How many times `announce_s` the node of the higher id waits to be dialed."""

AGAIN_S: Final = 2.0
"""Two that hear each other and cannot be linked do not answer each other more often."""
MAX_ANSWERED: Final = 1_000

_ANNOUNCE: Final = "announce"


@dataclass(slots=True)
class _Met:
    """A node that was heard of."""

    address: str
    met_s: float
    heard_s: float


class Meeting:
    """Announces a node and dials others."""

    def __init__(
        self,
        port: Port,
        options: TreeOptions,
        *,
        is_linked: Callable[[str], bool],
        is_up: Callable[[str], bool],
    ) -> None:
        """Who is linked need not be up: it may be away."""
        self._port = port
        self._options = options
        self._is_linked = is_linked
        self._is_up = is_up
        self._met: dict[str, _Met] = {}
        """Nodes that are dialed, or about to be, because they have announced themselves."""
        self._wanted: set[str] = set()
        """Addresses that the operator wants dialed."""
        self._often_until_s = 0.0
        self._answered_s = -1e9
        self._answered: dict[str, float] = {}
        """By whom it was that this node announced itself because of somebody."""

    def start(self) -> bool:
        """Whether there is anybody to find."""
        self._often_until_s = self._port.now() + self._options.discovery_s
        if not self._port.announce(b""):
            return False
        self._port.set_timer(self._options.announce_s, _ANNOUNCE)
        return True

    def wanted(self, address: str, options: LinkOptions) -> None:
        self._wanted.add(address)
        self._port.create_session(address, options)

    def timer(self, key: Hashable) -> None:
        if key == _ANNOUNCE:
            self._port.announce(b"")
            self._forget()
            often = self._port.now() < self._often_until_s
            pause_s = self._options.announce_s if often else self._options.beacon_s
            if pause_s:
                jitter = self._port.random.uniform(0.8, 1.2)
                self._port.set_timer(pause_s * jitter, _ANNOUNCE)
        elif isinstance(key, tuple):
            self._dial(key[1])

    def heard(self, node: AnnouncedNode) -> None:
        """Linked or not."""
        now_s, name = self._port.now(), node.node_id
        if not self._is_up(name):
            self._answer(name, now_s)
        met = self._met.get(name)
        if met is not None:
            met.heard_s = now_s
            if met.address == node.address or not node.address:
                return
            self._lose(name)  # it has moved
        if self._is_linked(name) or not node.address or node.address in self._wanted:
            return
        if len(self._met) >= self._options.max_links and not self._make_room(now_s):
            return
        self._met[name] = _Met(node.address, now_s, now_s)
        if self._port.node_id < name:
            self._dial(name)
        else:
            self._port.set_timer(PATIENCE * self._options.announce_s, ("dial", name))

    def _answer(self, name: str, now_s: float) -> None:
        """It may not have heard of this node, or not since it was restarted."""
        answered_s = self._answered.get(name, -1e9)
        if now_s >= max(self._answered_s + self._options.announce_s, answered_s + AGAIN_S):
            if len(self._answered) >= MAX_ANSWERED:
                self._answered.clear()
            self._answered_s = self._answered[name] = now_s
            self._port.announce(b"")

    def _dial(self, name: str) -> None:
        met = self._met.get(name)
        if met is not None and not self._is_linked(name):
            self._port.create_session(met.address)

    def _make_room(self, now_s: float) -> bool:
        """Lose who has been dialed in vain for longest, if that is long enough."""
        for name, met in self._met.items():
            if not self._is_linked(name):
                if met.met_s > now_s - TRIAL_S:
                    return False
                self._lose(name)
                return True
        return False

    def _forget(self) -> None:
        late_s = self._port.now() - FORGET_S
        for name, met in list(self._met.items()):
            if met.heard_s < late_s and not self._is_linked(name):
                self._lose(name)

    def _lose(self, name: str) -> None:
        met = self._met.pop(name)
        self._port.cancel_timer(("dial", name))
        if met.address not in self._wanted:
            # What is dialed there is the session that this returns.
            session = self._port.create_session(met.address)
            if session.status is not SessionStatus.ESTABLISHED:
                self._port.close_session(session)

    def linked(self, name: str) -> None:
        self._port.cancel_timer(("dial", name))

    def closed(self, session: SessionInfo) -> None:
        """It dialed this node first, or the link is given up: an announcement begins anew."""
        if not self._is_linked(session.name):
            self._met.pop(session.name, None)
