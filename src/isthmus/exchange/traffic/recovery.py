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

A node that keeps nothing does not know whom to await.  If it confirms messages (`confirming`), it
must not do so without neighbors that are not back yet.  So for `YOUNG_S` it awaits `UNKNOWN`, who
stands for all of them, and for as long as one of its configured peers is not linked, `hold_s` at
most.  Only messages to be confirmed wait for `UNKNOWN`; a neighbor that comes meanwhile is awaited
like one that was remembered, with all that has waited until then.  Beyond `queue_bytes` messages to
be confirmed do not wait, for anybody: they are missed, which their publishers are told.

A node that is stopped in order says goodbye; neighbors keep it all the same if they know from its
hello that it has a `state_dir`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from isthmus.exchange import kept_records
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.dialing import LONGEST_PAUSE_S
from isthmus.exchange.link.lane import Outgoing
from isthmus.exchange.traffic.message import Message

__all__ = ["RECOVERY_S", "UNKNOWN", "YOUNG_S", "Awaited", "Recovery", "RecoveryOwner"]

RECOVERY_S = 10.0
"""The least time that neighbors are awaited, and what one that is there gets beyond `hold_s`, since
it may itself be awaiting others."""
UNKNOWN: Final = "whoever was a neighbor"
"""No node can be called so."""
YOUNG_S: Final = LONGEST_PAUSE_S + 3.0
"""By then whoever dials this node has dialed it again, and is linked: a dial that was on its way
when it started may have been in vain."""
LOOK_AGAIN_S: Final = 0.5


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

    def unknown_are_back(self, awaited: Awaited) -> None:
        """Whoever was a neighbor is one again, or has been missed by itself."""
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

    def for_another(self, name: str, timer: Cancellable) -> Awaited:
        """What waits for this one waits for `name` as well, unless it came from there."""
        other = Awaited(name, timer)
        other.bytes = self.bytes
        other._messages = self._messages.copy()
        for topic, entries in self._topics.items():
            waiting = other._topics[topic] = []
            for entry in entries:
                source = entry.message.came_from
                if source is not None and source.name == name:
                    other.bytes -= entry.cost
                    other._messages.discard(entry.message)
                else:
                    waiting.append(entry)
                    if entry.in_hand is not None:
                        entry.in_hand.wait_for(name)
            if not waiting:
                del other._topics[topic]
        return other

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

    def __init__(
        self,
        host: Host,
        owner: RecoveryOwner,
        *,
        hold_s: float,
        peers_are_back: Callable[[], bool] = lambda: True,
    ) -> None:
        """`peers_are_back` says whether all that this node is configured to dial are linked."""
        self._host = host
        self._owner = owner
        self._peers_are_back = peers_are_back
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

    def start(self, *, forgot: bool = False) -> None:
        """`forgot` if nothing of the last life is kept, and nobody must be missed for that."""
        kept = self._host.load_state(*_KEPT)
        names = sorted({record.decode() for record in kept_records.read(kept or b"").records})
        self._neighbors = set(names)
        for name in names:
            self.awaited[name] = Awaited(name, self._timer(name, self._hold_s))
        if names:
            self._host.log("info", "recovering", awaits=" ".join(names))
        if forgot:
            self._await_unknown()

    def _await_unknown(self) -> None:
        until_s = self._host.now() + self._hold_s
        timer = self._host.call_later(YOUNG_S, lambda: self._look_for_unknown(until_s))
        self.awaited[UNKNOWN] = Awaited(UNKNOWN, timer)
        self._host.log("info", "recovering", awaits=UNKNOWN, for_s=YOUNG_S)

    def _look_for_unknown(self, until_s: float) -> None:
        if self._host.now() < until_s and not self._peers_are_back():
            self.awaited[UNKNOWN].timer = self._host.call_later(
                LOOK_AGAIN_S, lambda: self._look_for_unknown(until_s)
            )
        elif unknown := self._no_longer(UNKNOWN):
            self._owner.unknown_are_back(unknown)
            self._owner.awaits_changed()

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
        elif neighbor not in self._joined and (unknown := self.awaited.get(UNKNOWN)):
            timer = self._timer(neighbor, self._hold_s + RECOVERY_S)
            self.awaited[neighbor] = unknown.for_another(neighbor, timer)

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
