"""What nodes say to each other to build a tree: the control packets of `tree`.

PUBLISHes on ``$isthmus/tree``; the payload is a JSON list that begins with what it is:

    ["hello", number, label, stamp,    who came up: the highest wave it has seen, the tree it uses
     parent]                           and its parent there
    ["answer", stamp]                  at once, to a hello: the time between is a first RTT
    ["explore", wave, cost_us]         a wave, and what the way to its root costs from here
    ["echo", wave, [node, …]]          the sender is a child: these nodes are below it, itself first
    ["waiting", wave]                  now and then, where it takes long: the sender is still at it
    ["adopt", wave, [node, …]]         the tree is complete: these nodes are in it
    ["advertise", label, […], […]]     topics that are published on the sender's side, and no more
    ["want", label, […], […]]          topics, advertised by the receiver, that are wanted, and not

A *wave* is ``[number, capability, address, root, nonce]``: the paper's root broker and capability C
(Overlays §4.1.1), after a number by which later waves are told from earlier ones; the cost is the
paper's root path cost P.

Numbers go round: of two that are less than half of all apart the one that the other leads to is
the later one.  So there is always a later one, whatever somebody has claimed.

Bounds, so that no message takes long to deal with: `MAX_BYTES`, of which the list of `MAX_NODES`
nodes is the longest, and `MAX_TOPICS` topics.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Final

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import check_topic_name

__all__ = [
    "LABEL_BYTES",
    "MAX_CAPABILITY",
    "MAX_COST_US",
    "MAX_NODES",
    "MAX_NUMBER",
    "MAX_TOPICS",
    "TOPIC",
    "Adopt",
    "Advertise",
    "Answer",
    "Echo",
    "Explore",
    "Hello",
    "TreeMessage",
    "Waiting",
    "Want",
    "Wave",
    "encode",
    "is_later",
    "listed",
    "loads",
    "next_number",
    "node_names",
    "parse",
    "unlisted",
]

TOPIC: Final = "$isthmus/tree"
LABEL_BYTES: Final = 8
MAX_NUMBER: Final = 2**32 - 1
MAX_CAPABILITY: Final = 2**48
MAX_COST_US: Final = 2**48
MAX_NODES: Final = 5_000
"""In a list; of a larger tree the nodes that are listed are not all."""
MAX_TOPICS: Final = 500
MAX_BYTES: Final = 512 * 1024
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"[!-~]{0,256}")
_LABEL = struct.Struct(">II")


def is_later(number: int, than: int) -> bool:
    """Of waves; no wave has the number 0."""
    if not number or not than:
        return number > than
    ahead = (number - than) % (MAX_NUMBER + 1)
    half = (MAX_NUMBER + 1) // 2
    return 0 < ahead < half or (ahead == half and number > than)


def next_number(number: int) -> int:
    return number % MAX_NUMBER + 1


@dataclass(frozen=True)
class Wave:
    """One attempt to build a tree."""

    number: int
    capability: int
    address: str
    root: str
    nonce: int
    """Drawn by the root: one that was restarted may use a number again."""

    @cached_property
    def label(self) -> bytes:
        """Of the messages that travel in the tree."""
        return _LABEL.pack(self.number, self.nonce)

    def beats(self, other: Wave) -> bool:
        """Whether who hears both goes with this one: the later one, then the better root."""
        if self.number != other.number:
            return is_later(self.number, other.number)
        if (self.address, self.root) == (other.address, other.root):
            return (self.capability, self.nonce) > (other.capability, other.nonce)
        return self.is_better_root(other)

    def is_better_root(self, other: Wave) -> bool:
        """Overlays §4.2.1: of the highest capability, and of those of the lowest address."""
        if self.capability != other.capability:
            return self.capability > other.capability
        return _order(self.address, self.root) < _order(other.address, other.root)


def _order(address: str, root: str) -> tuple[int, int, str, int, str]:
    """By number where the address is one, else by name; then by port and node id."""
    host, _, port = address.rpartition(":")
    number = int(port) if port.isdecimal() and len(port) <= 5 else 0
    try:
        ip = ip_address(host.strip("[]"))
    except ValueError:
        return (9, 0, host, number, root)
    return (ip.version, int(ip), "", number, root)


@dataclass(frozen=True, slots=True)
class Hello:
    number: int
    label: bytes
    stamp: int
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    stamp: int


@dataclass(frozen=True, slots=True)
class Explore:
    wave: Wave
    cost_us: int


@dataclass(frozen=True, slots=True)
class Echo:
    wave: Wave
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    wave: Wave


@dataclass(frozen=True, slots=True)
class Adopt:
    wave: Wave
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advertise:
    label: bytes
    begun: tuple[str, ...]
    ended: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Want:
    label: bytes
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]


TreeMessage = Hello | Answer | Explore | Echo | Waiting | Adopt | Advertise | Want


def encode(message: TreeMessage) -> bytes:
    return json.dumps(listed(message), separators=(",", ":")).encode()


def listed(message: TreeMessage) -> list[object]:
    match message:
        case Hello(number, label, stamp, parent):
            return ["hello", number, label.hex(), stamp, parent]
        case Answer(stamp):
            return ["answer", stamp]
        case Explore(wave, cost_us):
            return ["explore", _listed(wave), cost_us]
        case Echo(wave, nodes):
            return ["echo", _listed(wave), nodes]
        case Waiting(wave):
            return ["waiting", _listed(wave)]
        case Adopt(wave, nodes):
            return ["adopt", _listed(wave), nodes]
        case Advertise(label, begun, ended):
            return ["advertise", label.hex(), begun, ended]
        case Want(label, wanted, unwanted):
            return ["want", label.hex(), wanted, unwanted]


def _listed(wave: Wave) -> list[object]:
    return [wave.number, wave.capability, wave.address, wave.root, wave.nonce]


def parse(payload: bytes) -> TreeMessage:
    """Raises `RemoteProtocolError` for anything that `encode` does not make."""
    try:
        return unlisted(loads(payload))
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(f"a message of the tree that cannot be read: {error}") from None


def loads(payload: bytes) -> object:
    """Raises `ValueError` also for what is too long to be read in one turn."""
    if len(payload) > MAX_BYTES:
        raise ValueError(f"{len(payload):,} bytes")
    return json.loads(payload)


def unlisted(said: object) -> TreeMessage:
    """Raises `ValueError` for anything that `listed` does not make."""
    match said:
        case ["hello", number, str(label), stamp, parent]:
            known = _label(label)
            return Hello(
                _whole(number, MAX_NUMBER), known, _whole(stamp), _node(parent) if parent else ""
            )
        case ["answer", stamp]:
            return Answer(_whole(stamp))
        case ["explore", wave, cost_us]:
            return Explore(_wave(wave), _whole(cost_us, MAX_COST_US))
        case ["echo", wave, nodes]:
            return Echo(_wave(wave), node_names(nodes))
        case ["waiting", wave]:
            return Waiting(_wave(wave))
        case ["adopt", wave, nodes]:
            return Adopt(_wave(wave), node_names(nodes))
        case ["advertise", str(label), list(begun), list(ended)]:
            return Advertise(_label(label), _topics(begun), _topics(ended))
        case ["want", str(label), list(wanted), list(unwanted)]:
            return Want(_label(label), _topics(wanted), _topics(unwanted))
    raise ValueError(f"{str(said)[:60]!r} is none")


def _wave(said: object) -> Wave:
    match said:
        case [number, capability, str(address), str(root), nonce]:
            return Wave(
                _whole(number, MAX_NUMBER, least=1),
                _whole(capability, MAX_CAPABILITY),
                _address(address),
                _node(root),
                _whole(nonce, 2**32 - 1),
            )
    raise ValueError("a wave that is none")


def _whole(said: object, most: int = 2**63, *, least: int = 0) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not least <= said <= most:
        raise ValueError(f"{str(said)[:40]!r} is not a number from {least} to {most}")
    return said


def _node(said: object) -> str:
    if not isinstance(said, str) or not _NODE.fullmatch(said):
        raise ValueError("a name of a node that is none")
    return said


def _address(said: str) -> str:
    if not _ADDRESS.fullmatch(said):
        raise ValueError("an address that is none")
    return said


def _label(said: str) -> bytes:
    label = bytes.fromhex(said)
    if len(label) not in (0, LABEL_BYTES):
        raise ValueError(f"a label of {len(label)} bytes")
    return label


def _topics(said: list[object]) -> tuple[str, ...]:
    if len(said) > MAX_TOPICS:
        raise ValueError(f"more than {MAX_TOPICS} topics at once")
    for each in said:
        if not isinstance(each, str):
            raise ValueError("a topic that is none")
        check_topic_name(each)
    return tuple(map(str, said))


def node_names(said: object) -> tuple[str, ...]:
    if not isinstance(said, Sequence) or isinstance(said, str) or not 0 < len(said) <= MAX_NODES:
        raise ValueError("a list of nodes that is none")
    return tuple(map(_node, said))
