"""What topology guards say to each other: three messages, as versioned JSON.

    hello    {"v": 1, "type": "hello", "incarnation": "k3f9", "epoch": 7}
    update   {"v": 1, "type": "update",
              "nodes": [["edge-1", "k3f9", 4, [["edge-2", "a81c", 7, 1], ...]], ...],
              "gone": [["edge-9", "77d0"], ...]}
    opening  {"v": 1, "type": "opening", "number": 1}

A *hello* opens the conversation on a link: forget whatever I said on it before.  An *update*
carries announcements (node id, incarnation, sequence number, links) and withdraws earlier ones.  A
link is written as the id and incarnation, the link's birth and its opening (see
`isthmus.exchange.topology.guard`).  For a link with the opening -1 (`QUIET`), an *opening* on the
link itself says what it is now, if it is not 0.

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
    "QUIET",
    "WIRE_VERSION",
    "Announcement",
    "Ends",
    "GuardHello",
    "LinkEntry",
    "Message",
    "NodeKey",
    "Opening",
    "Update",
    "Weight",
    "check_name",
    "encode_hello",
    "encode_opening",
    "encode_updates",
    "keep_for",
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

QUIET = -1
"""In the place of an opening: this end opens and closes the link as the forest has it, and tells
the other end alone."""

MAX_KNOWN_BYTES = 1024 * 1024
"""Text of announcements that need not be read again; what comes of it takes ten times as much."""
KNOWN_BYTES_PER_NODE = 8 * 1024
"""The same in a process of many nodes: much of what each of them announces while links come up."""

_HEAD = f'{{"v":{WIRE_VERSION},"type":"update","nodes":['.encode()
_MIDDLE = b'],"gone":['
_TAIL = b"]}"
_BEGIN, _END = b'["', b"]]"
"""Of an announcement, whether it has links or not."""


class NodeKey(NamedTuple):
    """One life of one node: a restart or a second node of the same id has another incarnation."""

    node_id: str
    incarnation: str


Ends = tuple[NodeKey, NodeKey]
"""Of a link, in order."""
Weight = str
"""What links are ordered by: birth, and then their ends, as a text that compares as they do."""


class LinkEntry(NamedTuple):
    """A link as one of its two ends announces it."""

    far_end: NodeKey
    birth: int
    opening: int
    """0 while this end keeps the link closed for the algorithm, or `QUIET`."""


def _edge(birth: int, ends: Ends) -> tuple[Weight, Ends]:
    """Names are printable: what stands between them is less than whatever may be in them."""
    return "\0".join((f"{birth:016d}", *ends[0], *ends[1])), ends


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says about itself; a greater `sequence` replaces a smaller one."""

    node: NodeKey
    sequence: int
    links: tuple[LinkEntry, ...]
    entries: Mapping[NodeKey, LinkEntry] = field(init=False, compare=False, repr=False)
    """The links by their far ends."""
    edges: Mapping[NodeKey, tuple[Weight, Ends]] = field(init=False, compare=False, repr=False)
    """The same for the forest."""
    youngest: int = field(init=False, compare=False, repr=False)
    """The greatest birth."""
    text: bytes = field(init=False, compare=False, repr=False)
    """As it is written: it goes to every neighbor."""

    def __post_init__(self) -> None:
        node = self.node
        object.__setattr__(self, "entries", {entry[0]: entry for entry in self.links})
        edges = {
            end: _edge(birth, (node, end) if node < end else (end, node))
            for end, birth, _ in self.links
        }
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "youngest", max((entry[1] for entry in self.links), default=0))
        links = [[*far_end, birth, opening] for far_end, birth, opening in self.links]
        object.__setattr__(self, "text", _dump([*node, self.sequence, links]))


@dataclass(frozen=True, slots=True)
class GuardHello:
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Update:
    nodes: tuple[Announcement, ...]
    gone: tuple[NodeKey, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """Of the link that it comes on, at the sender's end."""

    number: int


Message = GuardHello | Update | Opening


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def encode_hello(hello: GuardHello) -> bytes:
    fields = {"incarnation": hello.incarnation, "epoch": hello.epoch}
    return _dump({"v": WIRE_VERSION, "type": "hello", **fields})


def encode_opening(number: int) -> bytes:
    return _dump({"v": WIRE_VERSION, "type": "opening", "number": number})


def encode_updates(nodes: Iterable[Announcement], gone: Iterable[NodeKey]) -> Iterator[bytes]:
    """Updates that together say all of it, withdrawals first and `nodes` in their order."""
    texts = [announcement.text for announcement in nodes]
    gone_texts = [_dump(key) for key in gone]
    parts = texts + gone_texts
    if sum(map(len, parts)) + len(parts) < CHUNK_BYTES:
        if texts or gone_texts:
            yield _update(texts, gone_texts)
        return
    piece: tuple[list[bytes], list[bytes]] = [], []
    size = 0
    for waiting, each in zip((piece[1], piece[0]), (gone_texts, texts), strict=True):
        for text in each:
            if size and size + len(text) >= CHUNK_BYTES:
                yield _update(*piece)
                piece[0].clear()
                piece[1].clear()
                size = 0
            waiting.append(text)
            size += len(text) + 1
    if size:
        yield _update(*piece)


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
    """Announcements by their text, all of which has been checked.

    What was used since half of `max_bytes` came is kept for another half.
    """

    def __init__(self) -> None:
        self.max_bytes = MAX_KNOWN_BYTES
        self._by_text: dict[bytes, Announcement] = {}
        self._bytes = 0
        self._former: dict[bytes, Announcement] = {}
        self._keys: dict[NodeKey, NodeKey] = {}
        self._entries: dict[LinkEntry, LinkEntry] = {}
        """What is the same is the same object: it is found sooner, and takes less."""

    def read(self, texts: list[bytes]) -> list[Announcement]:
        """`ValueError` if a text is not exactly one announcement."""
        found = list(map(self._by_text.get, texts))
        if all(found):
            return found  # type: ignore[return-value]
        return [known or self._read(text) for text, known in zip(texts, found, strict=True)]

    def _read(self, text: bytes) -> Announcement:
        announcement = self._former.get(text)
        if announcement is None:
            read = _announcement(json.loads(_BEGIN + text + _END), "")
            node = self._keys.setdefault(read.node, read.node)
            announcement = Announcement(node, read.sequence, tuple(map(self._entry, read.links)))
        if self._bytes + len(text) > self.max_bytes // 2:
            self._turn()
        self._bytes += len(text)
        self._by_text[text] = announcement
        return announcement

    def _turn(self) -> None:
        """What was not used since the last time is forgotten."""
        self._former, self._by_text, self._bytes = self._by_text, {}, 0
        kept = self._former.values()
        self._keys = {each.node: each.node for each in kept}
        self._entries = {entry: entry for each in kept for entry in each.links}

    def _entry(self, read: LinkEntry) -> LinkEntry:
        entry = self._entries.get(read)
        if entry is None:
            far_end = self._keys.setdefault(read.far_end, read.far_end)
            entry = LinkEntry(far_end, read.birth, read.opening)
            self._entries[entry] = entry
        return entry


_known = _Known()


def keep_for(nodes: int) -> None:
    """So many nodes are simulated in this process, which hears what all of them hear."""
    _known.max_bytes = max(MAX_KNOWN_BYTES, nodes * KNOWN_BYTES_PER_NODE)


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
        case {"type": "opening", "number": number} if len(data) == 3:
            return Opening(_counter(number, "number", 0))
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
    raise ValueError(f"neither a hello, an update nor an opening: {sorted(data)!r:.200}")


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
        _counter(opening, where, QUIET),
    )
