"""Two nodes of one id: who stays, and how both learn of it.

A neighbor of both sees a connection that claims the id of a link that is up.  It cannot tell a node
that was restarted, and whose former connection nobody closed, from a second node: so it asks over
the standing link (a PING).  If there is an answer the newcomer is refused with the cause `same-id`,
and the standing node is told; if there is none in time, the newcomer takes the link over.

    newcomer ──CONNECT──▶ node ──PINGREQ──▶ standing node
                            │◀──PINGRESP────────┤
    newcomer ◀──same-id─────┤──$isthmus/same-id─▶

Nodes that have no neighbor in common find each other in the topology guard's announcements, as
another incarnation of their own id.  A restarted node sees its former life there for a while, so
that counts only when it lasts.

Either way both nodes are *in conflict*: they say so once in the log, and are not ready until
nothing has been heard of the other for `FORGET_S`.  What a neighbor says of it holds only as long
as the link to that neighbor: it may be a lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isthmus.exchange.host import Cancellable, Host

if TYPE_CHECKING:
    from isthmus.exchange.link.connection import Connection
    from isthmus.exchange.link.link import Link

__all__ = ["SAME_ID_TOPIC", "IdConflict", "Probe"]

SAME_ID_TOPIC = "$isthmus/same-id"
FORGET_S = 45.0
"""More than twice the longest pause between two attempts of a node that is refused for its id."""


@dataclass(eq=False, slots=True)
class Probe:
    """A standing link that is asked whether it lives, and who wants to take it over."""

    link: Link
    connection: Connection
    ping: int
    timer: Cancellable
    newcomers: list[Connection] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return self.connection.pongs >= self.ping


class IdConflict:
    """What this node knows of another one with its id."""

    def __init__(self, host: Host, node_id: str, patience_s: float) -> None:
        """`patience_s`: how long a former life of this node may still be announced."""
        self._host = host
        self._node_id = node_id
        self._patience_s = patience_s
        self._seen_since_s: float | None = None
        self._until_s = 0.0
        self._reason = ""
        self._by = ""

    @property
    def reason(self) -> str:
        """Why the node is not ready; empty if there is no conflict."""
        return self._reason if self._host.now() < self._until_s else ""

    def told(self, reason: str, by: str = "") -> None:
        """Somebody has met both nodes, or, with `by`, a neighbor says so."""
        begins = not self.reason
        if begins or not by:
            self._by = by
        self._until_s = self._host.now() + FORGET_S
        self._reason = reason
        if begins:
            self._host.log(
                "error",
                "another node has this node's id; give each node its own",
                id=self._node_id,
                cause=reason,
            )

    def gone(self, neighbor: str) -> None:
        """The link to `neighbor` is down: its word alone counts no longer."""
        if self._by == neighbor:
            self._by, self._until_s = "", 0.0

    def announced(self, incarnations: tuple[str, ...]) -> None:
        """Other lives of this node id that the fabric knows of at this moment."""
        if not incarnations:
            self._seen_since_s = None
            return
        now_s = self._host.now()
        if self._seen_since_s is None:
            self._seen_since_s = now_s
        elif now_s - self._seen_since_s > self._patience_s:
            self.told(f"another node {self._node_id!r} is in the fabric")
