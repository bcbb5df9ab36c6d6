"""What topology guards say to each other: two messages, as versioned JSON.

    hello   {"v": 1, "type": "hello", "incarnation": "k3f9", "epoch": 7}
    update  {"v": 1, "type": "update",
             "nodes": [["edge-1", "k3f9", 4, [["edge-2", "a81c", 7, 1], ...]], ...],
             "gone": [["edge-9", "77d0"], ...]}

A *hello* opens the conversation on a link: forget whatever I said on it before.  An *update*
carries announcements (node id, incarnation, sequence number, links) and withdraws earlier ones.  A
link is written as the id and incarnation, the link's birth and its opening (see
`isthmus.exchange.topology.guard`).

Invariants: an update that would be long is cut into several of about `CHUNK_BYTES`, in order;
nothing longer than `MAX_PAYLOAD_BYTES` is written or read; parsing is strict, and whatever does not
fit exactly is a `RemoteProtocolError` that names the place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isthmus.errors import RemoteProtocolError

__all__ = [
    "CHUNK_BYTES",
    "LEAP",
    "MAX_COUNTER",
    "MAX_LINKS",
    "MAX_PAYLOAD_BYTES",
    "WIRE_VERSION",
    "Announcement",
    "GuardHello",
    "LinkEntry",
    "Message",
    "NodeKey",
    "Update",
    "check_name",
    "encode_hello",
    "encode_updates",
    "parse",
]

WIRE_VERSION = 1
CHUNK_BYTES = 16 * 1024
"""An update is closed when it has grown to this; one announcement is never cut in two."""
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_ITEMS = 2048
"""Nodes in one message, announced or withdrawn: more than fit into a piece."""
MAX_ENTRIES = 4096
"""Links in one message: more than fit into a piece and one announcement of `MAX_LINKS`."""
MAX_LINKS = 1024
"""Links of one node.  With names as long as they may be, that many still fit into a payload."""
MAX_NAME = 64
MAX_COUNTER = 2**53 - 1
"""What every JSON implementation keeps exactly."""
LEAP = 2**32
"""How far ahead of what is known a number may be and still be taken for a count of something.

Births, openings and sequence numbers count events, of which no fabric sees as many.  A neighbor
that leaps further is not followed; one that leaps less, again and again, needs two million messages
to use the numbers up.
"""

MAX_KNOWN_BYTES = 1024 * 1024
"""Text of announcements that need not be read again; what comes of it takes ten times as much."""

_HEAD = f'{{"v":{WIRE_VERSION},"type":"update","nodes":['.encode()
_MIDDLE = b'],"gone":['
_TAIL = b"]}"
_BEGIN, _END = b'["', b"]]"
"""Of an announcement, whether it has links or not."""


class NodeKey(NamedTuple):
    """One life of one node: a restart or a second node of the same id has another incarnation."""

    node_id: str
    incarnation: str


class LinkEntry(NamedTuple):
    """A link as one of its two ends announces it."""

    far_end: NodeKey
    birth: int
    opening: int
    """0 while this end keeps the link closed for the algorithm."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says about itself; a greater `sequence` replaces a smaller one."""

    node: NodeKey
    sequence: int
    links: tuple[LinkEntry, ...]
    entries: Mapping[NodeKey, LinkEntry] = field(init=False, compare=False, repr=False)
    """The links by their far ends."""
    youngest: int = field(init=False, compare=False, repr=False)
    """The greatest birth."""
    _json: list[bytes] = field(default_factory=list, init=False, compare=False, repr=False)
    """As it is written, once it has been: it goes to every neighbor."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", {entry[0]: entry for entry in self.links})
        object.__setattr__(self, "youngest", max((entry[1] for entry in self.links), default=0))

    def json(self) -> bytes:
        if not self._json:
            self._json.append(_dump(_listed(self)))
        return self._json[0]


@dataclass(frozen=True, slots=True)
class GuardHello:
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Update:
    nodes: tuple[Announcement, ...]
    gone: tuple[NodeKey, ...]


Message = GuardHello | Update


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def encode_hello(hello: GuardHello) -> bytes:
    fields = {"incarnation": hello.incarnation, "epoch": hello.epoch}
    return _dump({"v": WIRE_VERSION, "type": "hello", **fields})


def encode_updates(nodes: Iterable[Announcement], gone: Iterable[NodeKey]) -> Iterator[bytes]:
    """Updates that together say all of it, withdrawals first and `nodes` in their order."""
    gone_texts: list[bytes] = []
    texts: list[bytes] = []
    waiting, size = gone_texts, 0
    for keys_or_nodes in (map(_dump, gone), (announcement.json() for announcement in nodes)):
        for text in keys_or_nodes:
            if size and size + len(text) >= CHUNK_BYTES:
                yield _update(texts, gone_texts)
                gone_texts.clear()
                texts.clear()
                size = 0
            waiting.append(text)
            size += len(text) + 1
        waiting = texts
    if size:
        yield _update(texts, gone_texts)


def _listed(announcement: Announcement) -> list[object]:
    links = [[*far_end, birth, opening] for far_end, birth, opening in announcement.links]
    return [*announcement.node, announcement.sequence, links]


def _update(nodes: list[bytes], gone: list[bytes]) -> bytes:
    """An update of parts that are JSON already."""
    return b"".join((_HEAD, b",".join(nodes), _MIDDLE, b",".join(gone), _TAIL))


# ---- parsing ----


def check_name(name: object, where: str) -> str:
    """`name` if it can be a node id or an incarnation; `ValueError` otherwise."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(f"{where}: must be 1 to {MAX_NAME} printable characters, not {name!r:.80}")
    return name


def parse(payload: bytes) -> Message:
    """The message in `payload`; `RemoteProtocolError` if it is not exactly one."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise _fault(f"{len(payload)} bytes are more than {MAX_PAYLOAD_BYTES}")
    if (message := _known_update(payload)) is not None:
        return message
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise _fault(f"not JSON: {error}") from None
    try:
        return _message(data)
    except ValueError as error:
        raise _fault(str(error)) from None


class _Known:
    """Announcements by their text, all of which has been checked."""

    def __init__(self) -> None:
        self._by_text: dict[bytes, Announcement] = {}
        self._bytes = 0
        self._keys: dict[NodeKey, NodeKey] = {}
        self._entries: dict[LinkEntry, LinkEntry] = {}
        """What is the same is the same object: it is found sooner, and takes less."""

    def read(self, texts: list[bytes]) -> list[Announcement]:
        """`ValueError` if a text is not exactly one announcement."""
        found = list(map(self._by_text.get, texts))
        return [
            self._read(text) if known is None else known
            for text, known in zip(texts, found, strict=True)
        ]

    def _read(self, text: bytes) -> Announcement:
        read = _announcement(json.loads(_BEGIN + text + _END), "")
        self._bytes += len(text)
        if self._bytes > MAX_KNOWN_BYTES:
            self._by_text.clear()
            self._keys.clear()
            self._entries.clear()
            self._bytes = len(text)
        node = self._keys.setdefault(read.node, read.node)
        announcement = Announcement(node, read.sequence, tuple(map(self._entry, read.links)))
        self._by_text[text] = announcement
        return announcement

    def _entry(self, read: LinkEntry) -> LinkEntry:
        entry = self._entries.get(read)
        if entry is None:
            far_end = self._keys.setdefault(read.far_end, read.far_end)
            entry = LinkEntry(far_end, read.birth, read.opening)
            self._entries[entry] = entry
        return entry


_known = _Known()


def _known_update(payload: bytes) -> Update | None:
    """An update in the form in which guards write it; None if it is anything else.

    Every announcement comes over many links, so it is looked up by its text before it is read.
    Texts of announcements with commas between are a list of just these, wherever they were cut
    apart; so it does no harm that names can look like what stands between announcements.
    """
    if not payload.startswith(_HEAD) or len(payload) > 2 * CHUNK_BYTES:
        return None
    nodes, middle, gone = payload[len(_HEAD) : -len(_TAIL)].partition(_MIDDLE)
    if not middle or not payload.endswith(_TAIL):
        return None
    texts = []
    if nodes:
        if not nodes.startswith(_BEGIN) or not nodes.endswith(_END):
            return None
        texts = nodes[len(_BEGIN) : -len(_END)].split(_END + b"," + _BEGIN)
    try:
        keys = json.loads(b"[" + gone + b"]") if gone else ()
        if len(texts) + len(keys) > MAX_ITEMS:
            return None
        return Update(tuple(_known.read(texts)), tuple(_key(item, "") for item in keys))
    except (ValueError, RecursionError):
        return None


def _fault(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"topology message: {problem}", section="isthmus topology 1")


def _message(data: object) -> Message:
    if not isinstance(data, dict):
        raise ValueError("must be an object")
    if type(data.get("v")) is not int or data["v"] != WIRE_VERSION:
        raise ValueError(f"version {data.get('v')!r:.20} is not supported; {WIRE_VERSION} is")
    match data:
        case {"type": "hello", "incarnation": incarnation, "epoch": epoch} if len(data) == 4:
            return GuardHello(check_name(incarnation, "incarnation"), _counter(epoch, "epoch", 1))
        case {"type": "update", "nodes": list(nodes), "gone": list(gone)} if len(data) == 4:
            if len(nodes) + len(gone) > MAX_ITEMS:
                raise ValueError(f"more than {MAX_ITEMS} nodes in a message")
            # Looked at before they are read, which takes longer.
            links = (item[3] for item in nodes if isinstance(item, list) and len(item) == 4)
            if sum(len(each) for each in links if isinstance(each, list)) > MAX_ENTRIES:
                raise ValueError(f"more than {MAX_ENTRIES} links in a message")
            return Update(
                tuple(_announcement(item, f"nodes[{i}]") for i, item in enumerate(nodes)),
                tuple(_key(item, f"gone[{i}]") for i, item in enumerate(gone)),
            )
    raise ValueError(f"neither a hello nor an update: {sorted(data)!r:.200}")


def _counter(value: object, where: str, least: int) -> int:
    # `type`, because JSON's true is an `int` for `isinstance`.
    if type(value) is not int or not least <= value <= MAX_COUNTER:
        raise ValueError(f"{where}: must be an integer from {least}, not {value!r:.40}")
    return value


def _items(value: object, where: str, count: int) -> list[object]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{where}: must be a list of {count}")
    return value


def _key(value: object, where: str) -> NodeKey:
    node_id, incarnation = _items(value, where, 2)
    return NodeKey(check_name(node_id, where), check_name(incarnation, where))


def _announcement(value: object, where: str) -> Announcement:
    node_id, incarnation, sequence, links = _items(value, where, 4)
    node = _key([node_id, incarnation], where)
    if not isinstance(links, list) or len(links) > MAX_LINKS:
        raise ValueError(f"{where}: links must be a list of at most {MAX_LINKS}")
    entries = tuple(_entry(link, f"{where} link {i}") for i, link in enumerate(links))
    ends = {entry.far_end.node_id for entry in entries}
    if len(ends) != len(entries) or node.node_id in ends:
        raise ValueError(f"{where}: a node has one link to each neighbor and none to itself")
    return Announcement(node, _counter(sequence, where, 1), entries)


def _entry(value: object, where: str) -> LinkEntry:
    node_id, incarnation, birth, opening = _items(value, where, 4)
    return LinkEntry(
        _key([node_id, incarnation], where),
        _counter(birth, where, 1),
        _counter(opening, where, 0),
    )
