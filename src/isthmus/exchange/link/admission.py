"""Who may be linked with, once it has proved who it is.

Not another node of this node's id, or of a neighbor that is there (`same_id`), nor one with another
algorithm.  Not if no message may have the same name at both ends (two prefixes).  One that the
operator removed is refused until it is added again.  When two nodes dial
each other, the connections that the node with the lower id opened are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.cooperation.link_rules import Crossing
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.dialing import Dialing
from isthmus.exchange.link.hello import Hello, LinkRefused
from isthmus.exchange.link.link import Link
from isthmus.exchange.link.same_id import IdConflict
from isthmus.exchange.topology.messages import MAX_LINKS
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["Admission"]


class Admission:
    """Judges connections by what this node knows."""

    def __init__(
        self, hello: Hello, links: Mapping[str, Link], dialing: Dialing, conflict: IdConflict
    ) -> None:
        self._hello = hello
        self._links = links
        self._dialing = dialing
        self._conflict = conflict
        self.removed: set[str] = set()
        """Neighbors that the operator removed."""
        self.stopped = False
        self.obeys_rules = True
        """Whether the algorithm can do with links that not everything may cross."""

    def judge(self, connection: Connection, other: Hello) -> None:
        """Whether `other` may be linked with; raises `LinkRefused`."""
        if self.stopped:
            raise LinkRefused("stopping", "this node is stopping", ReasonCode.SERVER_SHUTTING_DOWN)
        if other.node_id == self._hello.node_id:
            self._met_itself(other)
        if other.algorithm != self._hello.algorithm:
            raise LinkRefused(
                "algorithm", f"algorithm {other.algorithm!r:.80} here {self._hello.algorithm!r}"
            )
        if other.topology != self._hello.topology:
            raise LinkRefused(
                "topology",
                f"algorithm {other.algorithm!r} there wants the topology {other.topology!r:.80}, "
                f"here {self._hello.topology!r}: another version of it?",
            )
        if other.max_label_bytes != self._hello.max_label_bytes:
            raise LinkRefused(
                "labels",
                f"algorithm {other.algorithm!r} there has labels of up to {other.max_label_bytes} "
                f"bytes, here {self._hello.max_label_bytes}: another version of it?",
            )
        if other.retained != self._hello.retained:
            raise LinkRefused(
                "retained",
                f"retained messages go {other.retained!r:.80} there, {self._hello.retained!r} "
                "here; set [cooperation] retained the same on all nodes",
            )
        if connection.lane == 0:
            self._judge_rules(connection, other)
        wanted = connection.dialed_for
        if wanted is not None and self._dialing.wants(wanted):
            self.removed.discard(other.node_id)  # it was added again
        elif wanted is not None or other.node_id in self.removed:
            raise LinkRefused("removed", f"{other.node_id!r} was removed here")
        link = self._links.get(other.node_id)
        if link is None and len(self._links) >= MAX_LINKS:
            raise LinkRefused("too-many-links", f"a node has at most {MAX_LINKS} links")
        initiator = self._hello.node_id if connection.dialed else other.node_id
        if connection.lane > 0 and (
            link is None
            or link.initiator != initiator
            or link.incarnation != other.incarnation
            or connection.lane >= link.lanes
            or link.connections[connection.lane] is not None
        ):
            raise LinkRefused("bad-lane", "a lane that belongs to no link that is being made")
        if link is None or not link.state.up or link.incarnation != other.incarnation:
            return
        ours, theirs = self._hello.node_id, other.node_id
        if link.initiator != initiator and link.initiator == min(ours, theirs):
            raise LinkRefused("duplicate", "there is a link already")

    def _judge_rules(self, connection: Connection, other: Hello) -> None:
        own = connection.rules if connection.dialed else self._dialing.rules_for(other)
        if other.rules and not self.obeys_rules:
            raise LinkRefused(
                "rules",
                f"the other end has rules of what may cross the link; algorithm "
                f"{other.algorithm!r} knows none here",
            )
        try:
            Crossing.check(own, other.rules)
        except ValueError as error:
            raise LinkRefused("rules", str(error)) from None

    def _met_itself(self, other: Hello) -> None:
        """A node of this node's own id, or this node."""
        if other.incarnation == self._hello.incarnation:
            raise LinkRefused("same-id", "that is this node itself")
        problem = f"both nodes are called {other.node_id!r}"
        self._conflict.told(problem)
        raise LinkRefused("same-id", problem)

    def stands(self, link: Link, connection: Connection, hello: Hello) -> bool:
        """Whether a link that seems to be in order would have to go for this connection.

        Not if both nodes dialed each other: then one of the two connections is too many.
        """
        if connection.lane > 0 or not link.state.up:
            return False
        initiator = self._hello.node_id if connection.dialed else hello.node_id
        return link.incarnation != hello.incarnation or link.initiator == initiator

    def is_self(self, hello: Hello) -> bool:
        ours = self._hello
        return (hello.node_id, hello.incarnation) == (ours.node_id, ours.incarnation)
