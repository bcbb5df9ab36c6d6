"""What nodes say to each other in a Skip Graph: the control packets of `skipgraph` beside `tree`'s.

PUBLISHes on ``$isthmus/skipgraph``; the payload is a JSON list that begins with what it is.  First
what is about the whole fabric (`standing`):

    ["fit", label, nonce]                  the sender uses that tree over all nodes, is linked with
                                           everybody in it, and keeps nothing for anybody else; with
                                           the nonce 0 it does not, or not any more
    ["neighbors", [[node, address], …]]    whom the sender is linked with, and where to dial them

then, each after the *epoch* that it is said in, what is about lists (`lists`), where *of* is a key
of the sender and *to* one of the receiver:

    ["ready"]                              all that the sender's clients wanted is in the lists
    ["insert", level, of]                  put my key into the list of that level, to your right
    ["remove", level, of, right, status]   take it out; this was beside it
    ["go", level, to, nearer]              ask that one, it is nearer to your key
    ["inserted", level, of, to, right, status]
                                           your key is to the right of mine, and to the left of that
    ["linked", level, of, to]              so it is
    ["left", level, of, to, status]        I am to the left of you now; who was there knew this
    ["left-ok", level, of, to, status]     so you are
    ["removed", level, to]                 your key is out of the list

and about suspending and resuming (`suspension`; thesis §3.2.1), with a *status* of two numbers, the
version and whether publishers are resumed:

    ["signal", to, status, end]            from the rendezvous point, for your key of publishers and
                                           all to the right of it, up to the one of that node
    ["confirm", of, to, status]            is that what you know?
    ["report", of, to, status]             for the rendezvous point: somebody knows something else
    ["are-resumed", to, status, node, number]
                                           for your key and all publishers to the right of it: are
                                           you?  That node wants to know
    ["all-resumed", to, number]            all that stood to the right of your key are

On the wire a key is ``[topic, kind]``, a neighbor is ``[node, topic, kind]``.  Nobody can claim the
key of another: the *place* in it is computed from the node's id (`keys`), and keys are put in and
taken out only over the link with their own node.  Bounds: `MAX_BYTES`, `MAX_NEIGHBORS`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.cooperation.skipgraph.keys import Key, Kind, key_of
from isthmus.cooperation.skipgraph.tables import Neighbor
from isthmus.cooperation.skipgraph.vectors import VALUE_BITS
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import check_topic_filter

__all__ = [
    "EPOCH_BYTES",
    "MAX_NEIGHBORS",
    "MAX_NONCE",
    "TOPIC",
    "Acquaintances",
    "AllResumed",
    "AreResumed",
    "Confirm",
    "Fit",
    "Go",
    "GraphMessage",
    "InEpoch",
    "Insert",
    "Inserted",
    "Left",
    "LeftOk",
    "Linked",
    "ListMessage",
    "Ready",
    "Remove",
    "Removed",
    "Report",
    "Signal",
    "Status",
    "StatusMessage",
    "encode",
    "parse",
]

TOPIC: Final = "$isthmus/skipgraph"
EPOCH_BYTES: Final = 8
MAX_LEVEL: Final = VALUE_BITS
MAX_NONCE: Final = 2**32 - 1
MAX_VERSION: Final = 2**62
MAX_NEIGHBORS: Final = 1_000
MAX_BYTES: Final = 1280 * 1024
"""Three topics of 65,535 characters, if each is escaped, and what is around them."""
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"[!-~]{1,256}")


class Status(NamedTuple):
    """What is known of a topic's publishers: of two the one of the higher version holds."""

    version: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Fit:
    label: bytes
    nonce: int


@dataclass(frozen=True, slots=True)
class Acquaintances:
    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """All that the sender's clients wanted when the epoch began is in the lists."""


@dataclass(frozen=True, slots=True)
class Insert:
    level: int
    of: Key


@dataclass(frozen=True, slots=True)
class Remove:
    level: int
    of: Key
    right: Neighbor | None
    status: Status | None


@dataclass(frozen=True, slots=True)
class Go:
    level: int
    to: Key
    nearer: Neighbor


@dataclass(frozen=True, slots=True)
class Inserted:
    level: int
    of: Key
    to: Key
    right: Neighbor | None
    status: Status | None


@dataclass(frozen=True, slots=True)
class Linked:
    level: int
    of: Key
    to: Key


@dataclass(frozen=True, slots=True)
class Left:
    level: int
    of: Key
    to: Key
    status: Status | None


@dataclass(frozen=True, slots=True)
class LeftOk:
    level: int
    of: Key
    to: Key
    status: Status | None


@dataclass(frozen=True, slots=True)
class Removed:
    level: int
    to: Key


@dataclass(frozen=True, slots=True)
class Signal:
    to: Key
    status: Status
    end: str
    """The node whose key is the first beyond; empty: up to the last publisher."""


@dataclass(frozen=True, slots=True)
class Confirm:
    of: Key
    to: Key
    status: Status


@dataclass(frozen=True, slots=True)
class Report:
    of: Key
    to: Key
    status: Status


@dataclass(frozen=True, slots=True)
class AreResumed:
    to: Key
    status: Status | None
    """What the last publisher that it passed knows, if it passed any."""
    asker: str
    number: int


@dataclass(frozen=True, slots=True)
class AllResumed:
    to: Key
    number: int


ListMessage = Insert | Remove | Go | Inserted | Linked | Left | LeftOk | Removed
StatusMessage = Signal | Confirm | Report | AreResumed | AllResumed


@dataclass(frozen=True, slots=True)
class InEpoch:
    epoch: bytes
    message: Ready | ListMessage | StatusMessage


GraphMessage = Fit | Acquaintances | InEpoch


# ---- written -------------------------------------------------------------------------------


def encode(message: GraphMessage) -> bytes:
    match message:
        case Fit(label, nonce):
            said: list[object] = ["fit", label.hex(), nonce]
        case Acquaintances(nodes):
            said = ["neighbors", nodes]
        case InEpoch(epoch, inner):
            kind, *rest = _listed(inner)
            said = [kind, epoch.hex(), *rest]
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()


def _listed(message: Ready | ListMessage | StatusMessage) -> list[object]:
    match message:
        case Ready():
            return ["ready"]
        case Insert(level, of):
            return ["insert", level, _key(of)]
        case Remove(level, of, right, status):
            return ["remove", level, _key(of), _neighbor(right), status]
        case Go(level, to, nearer):
            return ["go", level, _key(to), _neighbor(nearer)]
        case Inserted(level, of, to, right, status):
            return ["inserted", level, _key(of), _key(to), _neighbor(right), status]
        case Linked(level, of, to):
            return ["linked", level, _key(of), _key(to)]
        case Left(level, of, to, status):
            return ["left", level, _key(of), _key(to), status]
        case LeftOk(level, of, to, status):
            return ["left-ok", level, _key(of), _key(to), status]
        case Removed(level, to):
            return ["removed", level, _key(to)]
        case Signal(to, known, end):
            return ["signal", _key(to), known, end]
        case Confirm(of, to, known):
            return ["confirm", _key(of), _key(to), known]
        case Report(of, to, known):
            return ["report", _key(of), _key(to), known]
        case AreResumed(to, status, asker, number):
            return ["are-resumed", _key(to), status, asker, number]
        case AllResumed(to, number):
            return ["all-resumed", _key(to), number]


def _key(key: Key) -> list[object]:
    return [key.topic, int(key.kind)]


def _neighbor(neighbor: Neighbor | None) -> list[object] | None:
    return None if neighbor is None else [neighbor.node, *_key(neighbor.key)]


# ---- read ----------------------------------------------------------------------------------


def parse(payload: bytes, sender: str, receiver: str) -> GraphMessage:
    """Raises `RemoteProtocolError` for anything that `encode` does not make."""
    try:
        if len(payload) > MAX_BYTES:
            raise ValueError(f"{len(payload):,} bytes")
        return _Reader(sender, receiver).message(json.loads(payload))
    except (ValueError, TypeError, RecursionError, RemoteProtocolError) as error:
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
            case ["fit", str(label), nonce]:
                return Fit(bytes.fromhex(label), _whole(nonce, MAX_NONCE))
            case ["neighbors", list(nodes)] if len(nodes) <= MAX_NEIGHBORS:
                return Acquaintances(tuple(map(_acquaintance, nodes)))
            case [str(kind), str(text), *rest]:
                epoch = bytes.fromhex(text)
                if len(epoch) != EPOCH_BYTES:
                    raise ValueError(f"an epoch of {len(epoch)} bytes")
                return InEpoch(epoch, self._in_epoch([kind, *rest]))
        raise ValueError(f"{str(said)[:60]!r} is none")

    def _in_epoch(self, said: list[object]) -> Ready | ListMessage | StatusMessage:
        match said:
            case ["ready"]:
                return Ready()
            case ["insert", level, of]:
                return Insert(_level(level), self._of(of))
            case ["remove", level, of, right, status]:
                beside = _any_neighbor(right)
                return Remove(_level(level), self._of(of), beside, _any_status(status))
            case ["go", level, to, nearer]:
                return Go(_level(level), self._to(to), _some_neighbor(nearer))
            case ["inserted", level, of, to, right, status]:
                where = _level(level), self._of(of), self._to(to)
                return Inserted(*where, _any_neighbor(right), _any_status(status))
            case ["linked", level, of, to]:
                return Linked(_level(level), self._of(of), self._to(to))
            case ["left", level, of, to, status]:
                return Left(_level(level), self._of(of), self._to(to), _any_status(status))
            case ["left-ok", level, of, to, status]:
                return LeftOk(_level(level), self._of(of), self._to(to), _any_status(status))
            case ["removed", level, to]:
                return Removed(_level(level), self._to(to))
            case ["signal", to, status, str(end)]:
                return Signal(self._publisher(to), _status(status), _node(end) if end else "")
            case ["confirm", of, to, status]:
                return Confirm(self._of(of), self._publisher(to), _status(status))
            case ["report", of, to, status]:
                return Report(self._of(of), self._publisher(to), _status(status))
            case ["are-resumed", to, status, str(asker), number]:
                key, known = self._member(to), _any_status(status)
                return AreResumed(key, known, _node(asker), _whole(number, MAX_VERSION))
            case ["all-resumed", to, number]:
                return AllResumed(self._member(to), _whole(number, MAX_VERSION))
        raise ValueError(f"{str(said)[:60]!r} is none")

    def _of(self, said: object) -> Key:
        return _key_of(said, self._sender)

    def _to(self, said: object) -> Key:
        return _key_of(said, self._receiver)

    def _member(self, said: object) -> Key:
        key = self._to(said)
        if key.kind is Kind.IDLE:
            raise ValueError("a question about no topic")
        return key

    def _publisher(self, said: object) -> Key:
        key = self._to(said)
        if key.kind is not Kind.PUBLISHER:
            raise ValueError("a status for somebody who does not publish")
        return key


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


def _any_neighbor(said: object) -> Neighbor | None:
    return None if said is None else _some_neighbor(said)


def _some_neighbor(said: object) -> Neighbor:
    match said:
        case [str(node), str(topic), kind]:
            return Neighbor(_checked_key(topic, kind, _node(node)), node)
    raise ValueError("a neighbor that is none")


def _acquaintance(said: object) -> tuple[str, str]:
    match said:
        case [str(node), str(address)] if _ADDRESS.fullmatch(address):
            return _node(node), address
    raise ValueError("an address that is none")


def _node(said: str) -> str:
    if not _NODE.fullmatch(said):
        raise ValueError("a name of a node that is none")
    return said


def _any_status(said: object) -> Status | None:
    return None if said is None else _status(said)


def _status(said: object) -> Status:
    match said:
        case [version, bool(resumed)]:
            return Status(_whole(version, MAX_VERSION), resumed)
    raise ValueError("a status that is none")


def _level(said: object) -> int:
    return _whole(said, MAX_LEVEL)


def _whole(said: object, most: int) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= most:
        raise ValueError(f"{str(said)[:40]!r} is not a number from 0 to {most}")
    return said
