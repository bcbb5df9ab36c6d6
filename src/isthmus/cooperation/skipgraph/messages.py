"""What nodes say to each other to keep the lists of a Skip Graph: control packets of `skipgraph`.

PUBLISHes on ``$isthmus/skipgraph``; the payload is a JSON list that begins with what it is.  A
*side* is 0 (left) or 1 (right), a *key* is ``[topic, kind]``, a *contact* is
``[node, address, topic, kind]``:

    ["claim", level, side, of, to, how]         you are the neighbor of my key on this side
    ["ok", level, side, of, to, contact]        so it is; that one was before, if there was one
    ["hint", level, side, of, to, contact, how] your neighbor on this side is rather that one
    ["absent", level, side, of, to, contact]    my key is not in that list; perhaps that one's is
    ["check", [[level, side, of, to, how], …]]  claims that are answered only if it is not so
    ["bye", level, side, of, to, contact]       your neighbor on this side leaves; the next is this
    ["done", level, of, to]                     it has left the list as far as I know it
    ["find", origin, left, right, hops]         who stands beside the origin; those found so far
    ["found", to, left, right]                  they do
    ["walk", level, side, to, origin, hops]     along a list: who belongs to origin's next one?
    ["met", level, side, of, to]                I do, or (null) nobody on that side
    ["stir", level, side, of, to]               lists have met: look anew on this side, one level up

*How* is 1 if the claimer, or who is hinted at, is about to join.

Nobody can claim the key of another: a key on the wire has no *place* in it (`keys`).  It is
computed from the node id, which for `of` is that of the link it came on, for `to` the receiver's.
Of others there are but contacts, and those are only hints: who is told of one asks it itself.

Bounds, so that no message takes long to deal with: `MAX_BYTES`, `MAX_CLAIMS`, `MAX_HOPS`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of
from isthmus.cooperation.skipgraph.tables import Neighbor, Side
from isthmus.cooperation.skipgraph.vectors import VALUE_BITS
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import check_topic_filter

__all__ = [
    "MAX_CLAIMS",
    "MAX_HOPS",
    "MAX_LEVEL",
    "TOPIC",
    "Absent",
    "Bye",
    "Check",
    "Claim",
    "Contact",
    "Done",
    "Find",
    "Found",
    "GraphMessage",
    "Hint",
    "Met",
    "Ok",
    "Stir",
    "Walk",
    "encode",
    "parse",
]

TOPIC: Final = "$isthmus/skipgraph"
MAX_LEVEL: Final = VALUE_BITS
MAX_HOPS: Final = 1_024
"""Of a search or a walk: to see the end of a list of base 256 takes some hundred."""
MAX_CLAIMS: Final = 100
"""In one check."""
MAX_BYTES: Final = 1280 * 1024
"""Three topics of 65,535 characters, if each is escaped, and what is around them."""
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"[!-~]{0,256}")
_SIDES: Final = (Side.LEFT, Side.RIGHT)


@dataclass(frozen=True, slots=True)
class Contact:
    """A virtual node of somebody's, and where its node can be dialed."""

    key: Key
    node: str
    address: str = field(default="", compare=False)

    @property
    def neighbor(self) -> Neighbor:
        return Neighbor(self.key, self.node)


@dataclass(frozen=True, slots=True)
class Claim:
    level: int
    side: Side
    of: Key
    to: Key
    joins: bool = False
    """Whether the claimer brings nobody with it."""


@dataclass(frozen=True, slots=True)
class Check:
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Ok:
    level: int
    side: Side
    of: Key
    to: Key
    before: Contact | None
    """Who stood where the claimer does now."""


@dataclass(frozen=True, slots=True)
class Hint:
    level: int
    side: Side
    of: Key
    to: Key
    contact: Contact
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    level: int
    side: Side
    of: Key
    to: Key
    contact: Contact | None


@dataclass(frozen=True, slots=True)
class Bye:
    level: int
    side: Side
    of: Key
    to: Key
    contact: Contact | None


@dataclass(frozen=True, slots=True)
class Done:
    level: int
    of: Key
    to: Key


@dataclass(frozen=True, slots=True)
class Find:
    origin: Contact
    left: Contact | None
    right: Contact | None
    hops: int


@dataclass(frozen=True, slots=True)
class Found:
    to: Key
    left: Contact | None
    right: Contact | None


@dataclass(frozen=True, slots=True)
class Walk:
    level: int
    side: Side
    to: Key
    origin: Contact
    hops: int


@dataclass(frozen=True, slots=True)
class Met:
    level: int
    """The one above that of the walk."""
    side: Side
    of: Key | None
    to: Key


@dataclass(frozen=True, slots=True)
class Stir:
    level: int
    side: Side
    of: Key
    to: Key


GraphMessage = Claim | Check | Ok | Hint | Absent | Bye | Done | Find | Found | Walk | Met | Stir


# ---- written -------------------------------------------------------------------------------


def encode(message: GraphMessage) -> bytes:
    return json.dumps(_listed(message), separators=(",", ":"), ensure_ascii=False).encode()


def _listed(message: GraphMessage) -> list[object]:
    match message:
        case Claim():
            return ["claim", *_claim(message)]
        case Check(claims):
            return ["check", [_claim(each) for each in claims]]
        case Ok(level, side, of, to, before):
            return ["ok", level, _SIDES.index(side), _key(of), _key(to), _contact(before)]
        case Hint(level, side, of, to, contact, joins):
            where = [level, _SIDES.index(side), _key(of), _key(to)]
            return ["hint", *where, _contact(contact), int(joins)]
        case Absent(level, side, of, to, perhaps):
            return ["absent", level, _SIDES.index(side), _key(of), _key(to), _contact(perhaps)]
        case Bye(level, side, of, to, following):
            return ["bye", level, _SIDES.index(side), _key(of), _key(to), _contact(following)]
        case Done(level, of, to):
            return ["done", level, _key(of), _key(to)]
        case Find(origin, left, right, hops):
            return ["find", _contact(origin), _contact(left), _contact(right), hops]
        case Found(to, left, right):
            return ["found", _key(to), _contact(left), _contact(right)]
        case Walk(level, side, to, origin, hops):
            return ["walk", level, _SIDES.index(side), _key(to), _contact(origin), hops]
        case Met(level, side, met, to):
            return ["met", level, _SIDES.index(side), met and _key(met), _key(to)]
        case Stir(level, side, of, to):
            return ["stir", level, _SIDES.index(side), _key(of), _key(to)]


def _claim(claim: Claim) -> list[object]:
    side = _SIDES.index(claim.side)
    return [claim.level, side, _key(claim.of), _key(claim.to), int(claim.joins)]


def _key(key: Key) -> list[object]:
    return [key.topic, int(key.kind)]


def _contact(contact: Contact | None) -> list[object] | None:
    if contact is None:
        return None
    return [contact.node, contact.address, contact.key.topic, int(contact.key.kind)]


# ---- read ----------------------------------------------------------------------------------


def parse(payload: bytes, sender: str, receiver: str) -> GraphMessage:
    """Raises `RemoteProtocolError` for anything that `encode` does not make."""
    try:
        if len(payload) > MAX_BYTES:
            raise ValueError(f"{len(payload):,} bytes")
        return _Reader(sender, receiver).message(json.loads(payload))
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(
            f"a message of the Skip Graph that cannot be read: {error}"
        ) from None


class _Reader:
    """Keys are those of who speaks and of who is spoken to."""

    def __init__(self, sender: str, receiver: str) -> None:
        self._sender = sender
        self._receiver = receiver

    def message(self, said: object) -> GraphMessage:
        match said:
            case ["claim", *rest]:
                return self._claim(rest)
            case ["check", list(claims)] if 0 < len(claims) <= MAX_CLAIMS:
                return Check(tuple(map(self._claim, claims)))
            case ["ok", level, side, of, to, contact]:
                where = _level(level), _side(side), self._of(of), self._to(to)
                return Ok(*where, _any_contact(contact))
            case ["hint", level, side, of, to, contact, how]:
                where = _level(level), _side(side), self._of(of), self._to(to)
                return Hint(*where, _some_contact(contact), bool(_whole(how, 1)))
            case ["absent", level, side, of, to, contact]:
                where = _level(level), _side(side), self._of(of), self._to(to)
                return Absent(*where, _any_contact(contact))
            case ["bye", level, side, of, to, contact]:
                where = _level(level), _side(side), self._of(of), self._to(to)
                return Bye(*where, _any_contact(contact))
            case ["done", level, of, to]:
                return Done(_level(level), self._of(of), self._to(to))
            case ["find", origin, left, right, hops]:
                found = _any_contact(left), _any_contact(right)
                return Find(_some_contact(origin), *found, _whole(hops, MAX_HOPS))
            case ["found", to, left, right]:
                return Found(self._to(to), _any_contact(left), _any_contact(right))
            case ["walk", level, side, to, origin, hops]:
                start = _some_contact(origin)
                return Walk(_level(level), _side(side), self._to(to), start, _whole(hops, MAX_HOPS))
            case ["met", level, side, of, to]:
                met = None if of is None else self._of(of)
                return Met(_level(level), _side(side), met, self._to(to))
            case ["stir", level, side, of, to]:
                return Stir(_level(level), _side(side), self._of(of), self._to(to))
        raise ValueError(f"{str(said)[:60]!r} is none")

    def _claim(self, said: object) -> Claim:
        match said:
            case [level, side, of, to, how]:
                where = _level(level), _side(side), self._of(of), self._to(to)
                return Claim(*where, bool(_whole(how, 1)))
        raise ValueError("a claim that is none")

    def _of(self, said: object) -> Key:
        return _key_of(said, self._sender)

    def _to(self, said: object) -> Key:
        return _key_of(said, self._receiver)


def _key_of(said: object, node: str) -> Key:
    match said:
        case [str(topic), kind]:
            return _checked_key(topic, kind, node)
    raise ValueError("a key that is none")


def _checked_key(topic: str, kind: object, node: str) -> Key:
    known = Kind(_whole(kind, Kind.PUBLISHER))
    if (not topic) != (known is Kind.IDLE):
        raise ValueError("a key without a topic that is not the default key, or the reverse")
    if topic:
        check_topic_filter(topic, shared_subscriptions=False)
    return key_of(topic, known, node)


def _any_contact(said: object) -> Contact | None:
    return None if said is None else _some_contact(said)


def _some_contact(said: object) -> Contact:
    match said:
        case [str(node), str(address), str(topic), kind]:
            if not _NODE.fullmatch(node):
                raise ValueError("a name of a node that is none")
            if not _ADDRESS.fullmatch(address):
                raise ValueError("an address that is none")
            return Contact(_checked_key(topic, kind, node), node, address)
    raise ValueError("a contact that is none")


def _side(said: object) -> Side:
    return _SIDES[_whole(said, 1)]


def _level(said: object) -> int:
    return _whole(said, MAX_LEVEL)


def _whole(said: object, most: int) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= most:
        raise ValueError(f"{str(said)[:40]!r} is not a number from 0 to {most}")
    return said
