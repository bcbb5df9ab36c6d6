"""A node's neighbors as operators want to see them: one line each, with its state and why.

The exchange knows links (who is connected, whoever dialed) and peers (whom this node dials, linked
or not).  Here they become one list:

    active    messages may pass
    blocked   connected, but it would close a ring: stands by
    learning  connected; the nodes are agreeing on whether it closes a ring
    down      the connection was lost; what must not be lost is kept for ``link.hold_s``
    dialing  a peer that has not answered yet, or refuses; `why` says what came back
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isthmus.cooperation.api import LinkTraffic

__all__ = ["neighbors"]

COUNTS = (
    "lanes",
    "qos",
    "sent",
    "dropped",
    "unacknowledged",
    "unacknowledged_bytes",
    *(field.name for field in fields(LinkTraffic)),
)


def neighbors(status: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """``peers``, and the ``rings`` anywhere in the fabric, from a node's status."""
    fabric = status.get("fabric", {})
    here = status.get("node", {}).get("id", "")
    rings = fabric.get("topology", {}).get("rings", [])
    dialed = {peer["neighbor"]: peer for peer in fabric.get("peers", []) if peer["neighbor"]}
    rows: list[dict[str, Any]] = []
    shown: set[str] = set()
    for link in fabric.get("links", []):
        name = link["neighbor"]
        peer = dialed.get(name, {})
        shown.add(peer.get("address", ""))
        rows.append(
            {
                "neighbor": name,
                "address": peer.get("address"),
                "state": link["status"],
                "why": _why(link, peer, rings, here),
                "rules": link.get("rules"),
                "rules_refused": link.get("rules_refused"),
                **{count: link.get(count) for count in COUNTS},
            }
        )
    for peer in fabric.get("peers", []):
        if peer["address"] not in shown:
            rows.append(_unlinked(peer))
    return {"peers": rows, "rings": rings}


def _unlinked(peer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "neighbor": peer["neighbor"] or None,
        "address": peer["address"],
        "state": "dialing",
        "why": peer["problem"],
        "rules": None,
        "rules_refused": None,
        **dict.fromkeys(COUNTS),
    }


def _why(
    link: Mapping[str, Any], peer: Mapping[str, Any], rings: list[dict[str, Any]], here: str
) -> str:
    if link["status"] == "blocked":
        ends = {here, link["neighbor"]}
        for ring in rings:
            if set(ring["cut"]) == ends:
                return f"closes the ring {' - '.join((*ring['ring'], ring['ring'][0]))}"
        return "the other end has closed it"
    if link["status"] == "active":
        return ""
    return str(peer.get("problem", ""))
