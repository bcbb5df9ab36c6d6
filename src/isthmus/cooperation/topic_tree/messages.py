"""What nodes say to each other about topics: the control packets of `topic-tree` beside `tree`'s.

PUBLISHes on ``$isthmus/topics``; the payload is a JSON list that begins with what it is:

    ["begin"]  …  ["end"]              between them all that the sender's clients want and publish
    ["want", [filter, …]]              a client of the sender wants these
    ["unwant", [filter, …]]            nobody does any more
    ["publish", [topic, …]]            a client of the sender publishes on these
    ["unpublish", [topic, …]]          nobody does any more
    ["keeps", label, [node, …], awaits, linked]
                                       the sender uses that tree over all nodes; these, who are not
                                       in it any more, it still has as neighbors; whether it awaits
                                       others, of its last life; whether it is linked with all that
                                       are in the tree, and they have told
    ["overlay", [node, …], message]    a message of `tree`, about the overlay of these nodes

The paper has a PINGREQ for each topic, again and again (Overlays §4.1.2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from isthmus.cooperation.api import MAX_LEVELS
from isthmus.cooperation.tree.messages import (
    Adopt,
    Echo,
    Explore,
    TreeMessage,
    listed,
    loads,
    node_names,
    unlisted,
)
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.covering import normal_form
from isthmus.mqtt.filters.topics import check_topic_filter, check_topic_name

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_NAMES",
    "MAX_MEMBERS",
    "TOPIC",
    "Begin",
    "End",
    "Keeps",
    "News",
    "OfOverlay",
    "TopicMessage",
    "encode",
    "in_chunks",
    "parse",
]

TOPIC: Final = "$isthmus/topics"
CHUNK_NAMES: Final = 500
CHUNK_BYTES: Final = 32 * 1024
"""A packet ends before either limit, unless one name alone is longer."""
MAX_MEMBERS: Final = 256
"""Of an overlay."""


@dataclass(frozen=True, slots=True)
class Begin:
    """All is told from here on."""


@dataclass(frozen=True, slots=True)
class End:
    """All has been told."""


@dataclass(frozen=True, slots=True)
class News:
    names: tuple[str, ...]
    publish: bool
    """They are topics that somebody publishes on; else filters that somebody wants."""
    begins: bool
    """Else it has ended."""


@dataclass(frozen=True, slots=True)
class Keeps:
    label: bytes
    nodes: tuple[str, ...]
    awaits: bool
    linked: bool


@dataclass(frozen=True, slots=True)
class OfOverlay:
    members: tuple[str, ...]
    """In order, each once."""
    message: Explore | Echo | Adopt


TopicMessage = Begin | End | News | Keeps | OfOverlay

_NEWS: Final = {
    "want": (False, True),
    "unwant": (False, False),
    "publish": (True, True),
    "unpublish": (True, False),
}
_SAID: Final = {kind: said for said, kind in _NEWS.items()}


def encode(message: TopicMessage) -> bytes:
    match message:
        case Begin():
            said: list[object] = ["begin"]
        case End():
            said = ["end"]
        case News(names, publish, begins):
            said = [_SAID[publish, begins], names]
        case Keeps(label, nodes, awaits, linked):
            said = ["keeps", label.hex(), nodes, awaits, linked]
        case OfOverlay(members, inner):
            said = ["overlay", members, listed(inner)]
    return json.dumps(said, separators=(",", ":")).encode()


def in_chunks(names: Iterable[str], *, publish: bool, begins: bool) -> Iterator[News]:
    """News of any length in packets of a bounded one."""
    chunk: list[str] = []
    size = 0
    for name in names:
        length = len(name.encode())
        if chunk and (len(chunk) == CHUNK_NAMES or size + length > CHUNK_BYTES):
            yield News(tuple(chunk), publish, begins)
            chunk, size = [], 0
        chunk.append(name)
        size += length
    if chunk:
        yield News(tuple(chunk), publish, begins)


def parse(payload: bytes) -> TopicMessage:
    """Raises `RemoteProtocolError` for anything that `encode` does not make."""
    try:
        said = loads(payload)
        match said:
            case ["begin"]:
                return Begin()
            case ["end"]:
                return End()
            case [str(kind), [*names]] if kind in _NEWS:
                if len(names) > CHUNK_NAMES:
                    raise ValueError(f"more than {CHUNK_NAMES} names at once")
                publish, begins = _NEWS[kind]
                return News(tuple(_name(each, publish) for each in names), publish, begins)
            case ["keeps", str(label), [*nodes], bool(awaits), bool(linked)]:
                kept = node_names(nodes) if nodes else ()
                return Keeps(bytes.fromhex(label), kept, awaits, linked)
            case ["overlay", members, inner]:
                return OfOverlay(_members(members), _of_wave(unlisted(inner)))
    except (ValueError, TypeError, RecursionError, RemoteProtocolError) as error:
        raise RemoteProtocolError(f"a message about topics that cannot be read: {error}") from None
    raise RemoteProtocolError(f"a message about topics that is none: {payload[:60]!r}")


def _name(said: object, publish: bool) -> str:
    if not isinstance(said, str):
        raise TypeError("a topic that is no text")
    if publish:
        check_topic_name(said)
    else:
        check_topic_filter(said)
        if said.count("/") >= MAX_LEVELS:
            raise ValueError(f"a filter of more than {MAX_LEVELS} levels")
    if said.startswith("$"):
        raise ValueError("what starts with $ stays on its own server")
    return said if publish else normal_form(said)


def _members(said: object) -> tuple[str, ...]:
    members = node_names(said)
    if len(members) > MAX_MEMBERS or list(members) != sorted(set(members)):
        raise ValueError("members of an overlay that are too many or not in order")
    "".join(members).encode()  # or they cannot be told to others
    return members


def _of_wave(message: TreeMessage) -> Explore | Echo | Adopt:
    if not isinstance(message, Explore | Echo | Adopt):
        raise TypeError("no message of a wave")
    return message
