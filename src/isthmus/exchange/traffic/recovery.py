"""After a crash: decide nothing before the neighbors have said what they want.

A node that was killed and comes back knows no neighbor and no subscription of theirs.  Neighbors
send it at once what they have kept for it; were that routed at once, it would be acknowledged and
not reach those that are not back yet.  So a node with a `state_dir` remembers who its neighbors
are, and after a start *awaits* each of them until it is back and has told what it wants, for as
long as neighbors are kept (`hold_s`).

Messages at QoS 1 and 2 go at once to the local broker and to the neighbors that are known to want
them; for every other neighbor that is awaited they wait here:

    awaited ──told all it wants──▶ back: what it wants is sent, the rest was not for it
       │ └──wants a topic already──▶ what waits on that topic is sent
       └──not back in time, too much waits, stands by, removed──▶ given up, counted

What waits came in order and is sent in order, topic by topic ([MQTT-4.6.0]) and in slices; what
comes later on a topic waits behind what is left of it.  It is unacknowledged to the neighbor it
came from, so that nothing is lost if this node crashes again, but for what is older than `in_hand`
allows.  What waits for one neighbor is bounded by `queue_bytes`; beyond, the neighbor is given up,
as one is whose link is down; or, if destinations are set apart, who sends has to wait.

A node that is stopped in order says goodbye; neighbors keep it all the same if they know from its
hello that it has a `state_dir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from isthmus.exchange import kept_records
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.lane import Outgoing
from isthmus.exchange.traffic.message import Message

__all__ = ["RECOVERY_S", "Awaited", "Recovery", "RecoveryOwner"]

RECOVERY_S = 10.0
"""The least time that neighbors are awaited, and what one that is there gets beyond `hold_s`, since
it may itself be awaiting others."""


_KEPT = ("neighbors", 1)
"""Name and version of the file: a record for each neighbor."""


class RecoveryOwner(Protocol):
    """Who is told."""

    def neighbor_back(self, awaited: Awaited) -> None:
        """The neighbor has told all that it wants; to be followed by `Recovery.settled`."""
        ...

    def neighbor_missed(self, neighbor: str, waited: list[Outgoing]) -> None:
        """`neighbor` is no longer awaited."""
        ...

    def awaits_changed(self) -> None:
        """One neighbor fewer is awaited."""
        ...


class Awaited:
    """A neighbor of the last life, and what waits for it."""

    __slots__ = ("_messages", "_topics", "bytes", "name", "timer")

    def __init__(self, name: str, timer: Cancellable) -> None:
        self.name = name
        self.timer = timer
        self.bytes = 0
        self._topics: dict[bytes, list[Outgoing]] = {}
        self._messages: set[Message] = set()

    def wait(self, entry: Outgoing) -> None:
        if entry.message in self._messages:
            return  # it has got another way meanwhile
        self._messages.add(entry.message)
        if entry.in_hand is not None:
            entry.in_hand.wait_for(self.name)
        self._topics.setdefault(entry.message.topic, []).append(entry)
        self.bytes += entry.cost

    def waits_on(self, topic: bytes) -> bool:
        return topic in self._topics

    def topics(self) -> list[bytes]:
        return list(self._topics)

    def entries(self) -> Iterator[Outgoing]:
        for entries in self._topics.values():
            yield from entries

    def take(self, topic: bytes, most: int) -> list[Outgoing]:
        """The first that wait on `topic`; they do not any more."""
        entries = self._topics.get(topic, [])
        taken = entries[:most]
        del entries[:most]
        if not entries:
            self._topics.pop(topic, None)
        self.bytes -= sum(entry.cost for entry in taken)
        self._messages.difference_update(entry.message for entry in taken)
        return taken

    def take_all(self) -> list[Outgoing]:
        taken = list(self.entries())
        self._topics.clear()
        self._messages.clear()
        self.bytes = 0
        return taken

    def only_here(self) -> int:
        """How many messages of this node's own clients wait."""
        return sum(entry.message.came_from is None for entry in self.entries())


class Recovery:
    """Who was a neighbor when the last life ended, and is awaited."""

    def __init__(self, host: Host, owner: RecoveryOwner, *, hold_s: float) -> None:
        self._host = host
        self._owner = owner
        self._hold_s = max(hold_s, RECOVERY_S)
        self._neighbors: set[str] = set()
        """What is kept; who is awaited is one of them."""
        self._joined: set[str] = set()
        """Those that are neighbors in this life."""
        self.awaited: dict[str, Awaited] = {}
        self.back: dict[str, Awaited] = {}
        """Those that have told all, and are being sent what waits."""

    @property
    def active(self) -> bool:
        return bool(self.awaited or self.back)

    def awaits_others(self, neighbor: str) -> bool:
        """Whether anybody but `neighbor` is awaited."""
        return bool(self.awaited.keys() - {neighbor})

    def only_here(self) -> int:
        """How many messages of this node's own clients wait."""
        return sum(each.only_here() for each in (*self.awaited.values(), *self.back.values()))

    def start(self) -> None:
        kept = self._host.load_state(*_KEPT)
        names = sorted({record.decode() for record in kept_records.read(kept or b"").records})
        self._neighbors = set(names)
        for name in names:
            self.awaited[name] = Awaited(name, self._timer(name, self._hold_s))
        if names:
            self._host.log("info", "recovering", awaits=" ".join(names))

    def _timer(self, name: str, delay_s: float) -> Cancellable:
        return self._host.call_later(delay_s, lambda: self._time_is_over(name))

    def stop(self) -> None:
        for awaited in self.awaited.values():
            awaited.timer.cancel()

    def came(self, neighbor: str) -> None:
        """The link to `neighbor` is up: it gets the whole time to tell what it wants."""
        if awaited := self.awaited.get(neighbor):
            awaited.timer.cancel()
            awaited.timer = self._timer(neighbor, self._hold_s + RECOVERY_S)

    def joined(self, neighbor: str) -> None:
        self._joined.add(neighbor)
        if neighbor not in self._neighbors:
            self._neighbors.add(neighbor)
            self._save()

    def left(self, neighbor: str) -> None:
        """`neighbor` is one no longer, or stands by."""
        self._joined.discard(neighbor)
        self.miss(neighbor)

    def miss(self, neighbor: str) -> None:
        """Await `neighbor` no longer, although it has not told all it wants."""
        if neighbor in self._neighbors - self._joined:
            self._neighbors.discard(neighbor)
            self._save()
        if rest := self.back.pop(neighbor, None):
            self._owner.neighbor_missed(neighbor, rest.take_all())
        if awaited := self._no_longer(neighbor):
            self._owner.neighbor_missed(neighbor, awaited.take_all())
            self._owner.awaits_changed()

    def ready(self, neighbor: str) -> None:
        """`neighbor` is back and has told what it wants."""
        if awaited := self._no_longer(neighbor):
            self.back[neighbor] = awaited
            self._owner.neighbor_back(awaited)
            self._owner.awaits_changed()

    def settled(self, awaited: Awaited) -> None:
        """Nothing waits for `awaited` any more."""
        if self.back.get(awaited.name) is awaited:
            del self.back[awaited.name]

    def _time_is_over(self, neighbor: str) -> None:
        self._host.log("warning", "not back", neighbor=neighbor)
        self.miss(neighbor)

    def _no_longer(self, neighbor: str) -> Awaited | None:
        awaited = self.awaited.pop(neighbor, None)
        if awaited is not None:
            awaited.timer.cancel()
        return awaited

    def _save(self) -> None:
        if self._host.keeps_state:
            names = (name.encode() for name in sorted(self._neighbors))
            self._host.save_state("neighbors", kept_records.write(*_KEPT, names))
