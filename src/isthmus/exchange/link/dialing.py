"""The peers of a node: addresses that are dialed for ever, with a growing, jittered pause.

A set of connections, one for each lane, is opened at a time; if one fails, all of it is tried
again.  Several addresses may lead to the same neighbor, and another node may answer at an address
than did before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from isthmus.cooperation.api import SessionInfo
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.exchange.host import Cancellable, Channel, Host
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.hello import Hello
from isthmus.exchange.link.life import DIALING, DialAction, DialEvent, DialState
from isthmus.exchange.link.link import Link
from isthmus.tables import step

__all__ = ["LONGEST_PAUSE_S", "Dialing", "Peer", "SessionOwner"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class SessionOwner(Protocol):
    """Who makes the sessions that the algorithm sees."""

    def new_session(self, address: str) -> SessionInfo: ...

    def linked_before(self, session: SessionInfo, link: Link) -> None:
        """Where `session` was to lead is a node that is linked already."""
        ...


class Peer:
    """A neighbor that this node was told to dial."""

    __slots__ = (
        "address",
        "answered",
        "attempt",
        "failures",
        "info",
        "lanes",
        "link",
        "problem",
        "qos",
        "rules",
        "state",
        "timer",
    )

    def __init__(
        self, address: str, lanes: int, qos: int, info: SessionInfo, rules: LinkRules = NO_RULES
    ) -> None:
        self.address = address
        self.lanes = lanes
        self.qos = qos
        self.rules = rules
        self.info = info
        self.link: Link | None = None
        self.answered = ""
        """Which node was there last."""
        self.attempt = 0
        """Which set of connections is being opened, or was last."""
        self.state = DialState.RESTING
        self.timer: Cancellable | None = None
        """When the next one will be."""
        self.failures = 0
        self.problem = ""

    def happens(self, event: DialEvent) -> tuple[DialAction, ...]:
        self.state, actions = step(DIALING, self.state, event)
        return actions


class Dialing:
    """All peers, by address."""

    def __init__(
        self,
        host: Host,
        owner: SessionOwner,
        hello: Hello,
        *,
        keep_alive_s: int,
        connect: Callable[[Channel, Hello], Connection],
        abandon: Callable[[Peer], None],
    ) -> None:
        """`abandon` closes what was opened of a peer's set."""
        self._host = host
        self._owner = owner
        self._hello = hello
        self._keep_alive_s = keep_alive_s
        self._connect = connect
        self._abandon = abandon
        self.peers: dict[str, Peer] = {}
        self._running = False

    def start(self) -> None:
        self._running = True
        for peer in self.peers.values():
            self._soon(peer, DialEvent.WANTED, 0.0)

    def stop(self) -> None:
        self._running = False

    def dial(self, address: str, lanes: int, qos: int, rules: LinkRules = NO_RULES) -> Peer:
        """Begin to keep up a link to `address`."""
        if address in self.peers:
            return self.peers[address]
        session = self._owner.new_session(address)
        peer = self.peers[address] = Peer(address, lanes, qos, session, rules)
        if self._running:
            self._soon(peer, DialEvent.WANTED, 0.0)
        return peer

    def again(self, link: Link) -> None:
        """`link` is lost."""
        for peer in self.peers.values():
            if peer.link is link:
                pause_s = FIRST_PAUSE_S * self._host.random.uniform(0.5, 1.5)
                self._soon(peer, DialEvent.WANTED, pause_s)

    def _soon(self, peer: Peer, event: DialEvent, delay_s: float) -> None:
        if DialAction.PAUSE in peer.happens(event):
            peer.timer = self._host.call_later(delay_s, lambda: self._now(peer))

    def _now(self, peer: Peer) -> None:
        if not self._running:
            return
        if peer.link is not None and peer.link.state.up:
            peer.happens(DialEvent.LINKED)  # the other node was faster
        elif DialAction.DIAL in peer.happens(DialEvent.DUE):
            peer.attempt += 1
            self._lane(peer, 0)

    def other_lanes(self, peer: Peer) -> None:
        """The first one stands."""
        for lane in range(1, peer.lanes):
            self._lane(peer, lane)

    def _lane(self, peer: Peer, lane: int) -> None:
        attempt = peer.attempt
        mine = replace(self._hello.for_lane(lane, peer.lanes), rules=peer.rules)

        def opened(channel: Channel) -> Connection:
            connection = self._connect(channel, mine)
            connection.dialed_for = peer
            connection.attempt = attempt
            if peer.state is DialState.DIALING and peer.attempt == attempt:
                connection.begin(self._keep_alive_s)
            else:
                connection.close()  # it is not wanted any more, or another lane has failed
            return connection

        self._host.dial(peer.address, opened, lambda problem: self.failed(peer, attempt, problem))

    def failed(
        self, peer: Peer, attempt: int, problem: str, longest_s: float = LONGEST_PAUSE_S
    ) -> None:
        """One lane could not be opened: try the whole set again, later."""
        if peer.state is not DialState.DIALING or peer.attempt != attempt:
            return  # of a set that is given up already
        if problem != peer.problem:
            self._host.log("warning", "cannot link", address=peer.address, cause=problem)
        peer.problem = problem
        peer.failures += 1
        self._abandon(peer)
        pause_s = min(longest_s, FIRST_PAUSE_S * 2 ** min(peer.failures, 10))
        self._soon(peer, DialEvent.FAILED, pause_s * self._host.random.uniform(0.5, 1.0))

    def linked(self, peer: Peer) -> None:
        peer.failures, peer.problem = 0, ""
        peer.happens(DialEvent.LINKED)

    # ---- where they lead -----------------------------------------------------------------

    def wants(self, peer: Peer) -> bool:
        return self.peers.get(peer.address) is peer

    def leads_to(self, peer: Peer, link: Link) -> None:
        """Which node answers at the address of `peer`; another one may have before."""
        if peer.link is not link:
            if peer.link is not None and peer.link.info.address == peer.address:
                peer.link.info.address = ""
            if not peer.info.name:
                self._owner.linked_before(peer.info, link)
            peer.link = link
            peer.info = link.info
            peer.answered = link.info.name
            link.info.address = peer.address

    def leads_nowhere(self, link: Link) -> None:
        """`link` is gone: who answers at its addresses next is another session."""
        self.again(link)
        for peer in self.peers.values():
            if peer.link is link:
                peer.link = None
                peer.info = self._owner.new_session(peer.address)

    def rules_for(self, hello: Hello) -> LinkRules:
        """What this node has to say of a link with a node that has dialed it.

        It knows the node as one of its peers if that has answered it before, or says that it is to
        be dialed where this one dials it.
        """
        for peer in self.peers.values():
            if peer.rules and (
                peer.answered == hello.node_id
                or (not peer.answered and peer.address == hello.address)
            ):
                return peer.rules
        return NO_RULES

    def is_dialed(self, link: Link) -> bool:
        return any(peer.link is link for peer in self.peers.values())

    def forget(self, peer: Peer) -> None:
        self.peers.pop(peer.address, None)
        if DialAction.STOP in peer.happens(DialEvent.REMOVED) and peer.timer is not None:
            peer.timer.cancel()

    def forget_session(self, session: SessionInfo) -> None:
        """Whatever addresses lead to `session` are not wanted any more."""
        for peer in list(self.peers.values()):
            if peer.info is session:
                self.forget(peer)
