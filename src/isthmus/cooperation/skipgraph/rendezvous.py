"""What a publisher sees of its topic beside it at level 0 (thesis §3.2.1).

Nothing but its own table: the leftmost publisher of a topic is its rendezvous point, and has a
subscriber beside it, or there is none.
"""

from __future__ import annotations

from isthmus.cooperation.skipgraph.keys import Kind
from isthmus.cooperation.skipgraph.tables import VirtualNode

__all__ = ["has_subscribers", "is_rendezvous_point"]


def is_rendezvous_point(publisher: VirtualNode) -> bool:
    """Whether nobody who publishes on the topic stands between it and the subscribers."""
    return _kind_beside(publisher) is not Kind.PUBLISHER


def has_subscribers(rendezvous_point: VirtualNode) -> bool:
    """Whether anybody subscribes to the topic; the rendezvous point alone can tell."""
    return _kind_beside(rendezvous_point) is Kind.SUBSCRIBER


def _kind_beside(publisher: VirtualNode) -> Kind | None:
    """What stands to the left of it in its own topic."""
    beside = publisher.left[0] if publisher.left else None
    if beside is None or beside.key.topic != publisher.key.topic:
        return None
    return beside.key.kind
