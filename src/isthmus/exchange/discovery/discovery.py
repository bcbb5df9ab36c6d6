"""Announcements: a node tells who it is to whom it does not know, and hears who else there is.

By datagrams, which may be lost, come twice or late, and may be anybody's.  What was not made with
the fabric's secret is not heard.  What was may be *replayed* by others: an announcement counts only
once, only if it is not much older than the latest one of its node, and only if its stamp is near
this node's own clock.  So a replay can at most repeat what was true `CLOCK_S` ago, to a node that
has not heard it then, or has set its own clock back since, by more than that.

An algorithm announces and hears by itself (`discovers`).  For others the node does it: it announces
itself every `every_s`, and links with who announces itself and is not in its fabric yet, after a
moment, since many may hear it.  A node that was found so is dialed no longer when it has been
silent for `FORGET_S` and its link is down.

Bounded: the latest stamps of `MAX_KNOWN` nodes are known, those heard of longest ago are forgotten;
`MAX_FOUND` nodes are dialed, others are not; who has been dialed for `TRIAL_S` in vain makes room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.cooperation.api import MAX_ANNOUNCEMENT_BYTES, AnnouncedNode
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.discovery.datagrams import Announcement, read, write
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.hello import Hello

__all__ = ["CLOCK_S", "FORGET_S", "Discovery", "DiscoveryOwner", "DiscoverySettings"]

CLOCK_S: Final = 300.0
"""How far the clocks of two nodes may differ."""
LATE_MS: Final = 10_000
"""How much later than a newer one an announcement may come."""
FORGET_S: Final = 60.0
TRIAL_S: Final = 5.0
MAX_KNOWN: Final = 4_096
MAX_FOUND: Final = 256
"""Nodes that are dialed because they have announced themselves."""
MAX_STAMPS: Final = 64
"""Of one node, the latest."""
TELL_AGAIN_S: Final = 60.0
WINDOW_S: Final = 0.1
MAX_IN_WINDOW: Final = 200
"""Datagrams that are looked at in that time: who sends more must not keep the node busy."""


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """What the configuration says."""

    every_s: float = 2.0
    links: bool = True
    """Whether to link with who is found, if that is not the algorithm's affair."""


class DiscoveryOwner(Protocol):
    """Who is told; the exchange."""

    def heard(self, node: AnnouncedNode, data: bytes) -> None:
        """An announcement of another node that counts."""
        ...

    def same_id_announced(self, problem: str) -> None:
        """Another node has this node's id."""
        ...

    def is_in_fabric(self, node_id: str) -> bool: ...

    def found(self, address: str) -> bool:
        """A node is there that is not in the fabric: link with it; False if it is dialed anyway."""
        ...

    def lose(self, address: str) -> bool:
        """A node that was found is silent: do not dial it any more, if its link is down.

        Whether that is done.
        """
        ...


@dataclass(slots=True)
class _Known:
    """What has been heard of one node."""

    stamps: set[int] = field(default_factory=set)
    latest: int = 0
    floor: int = 0
    """What is not greater has been forgotten, and does not count."""


@dataclass(slots=True)
class _Found:
    """An address that is dialed because of an announcement."""

    found_s: float
    heard_s: float


class Discovery:
    """Of one node."""

    def __init__(
        self,
        host: Host,
        hello: Hello,
        key: bytes,
        owner: DiscoveryOwner,
        settings: DiscoverySettings | None,
    ) -> None:
        """Without `settings` nothing is announced or heard."""
        self._host = host
        self._hello = hello
        self._key = key
        self._owner = owner
        self._settings = settings
        self._stamp = 0
        self._born_ms = host.wall_ms()
        self._known: dict[str, _Known] = {}
        self._found: dict[str, _Found] = {}
        self._soon: set[str] = set()
        self._timer: Cancellable | None = None
        self._told_s: dict[str, float] = {}
        self._window_s, self._in_window = 0.0, 0
        """Until when what comes is counted, and how much has come."""
        self.ignored: Counter[str] = Counter()
        self.sent = self.heard = 0

    def start(self, *, by_itself: bool) -> None:
        """`by_itself`: the algorithm leaves it to the node."""
        if self._settings is not None and by_itself:
            self._again(self._host.random.uniform(0.0, 0.1))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_on(self) -> bool:
        return self._settings is not None

    def is_wanted(self, address: str) -> None:
        """Somebody wants it dialed, announced or not."""
        self._found.pop(address, None)

    # ---- announcing ----------------------------------------------------------------------

    @staticmethod
    def check(data: bytes) -> None:
        """Raises `ValueError` if they are too long."""
        if len(data) > MAX_ANNOUNCEMENT_BYTES:
            raise ValueError(f"an announcement of {len(data)} bytes; {MAX_ANNOUNCEMENT_BYTES} fit")

    def announce(self, data: bytes = b"") -> bool:
        """Say who this node is; False if it is not configured to whom."""
        if self._settings is None:
            return False
        wall_ms = self._host.wall_ms()
        # Nobody would hear a stamp that is so far ahead: the clock has been set back.
        is_ahead = self._stamp > wall_ms + CLOCK_S * 1000
        self._stamp = wall_ms if is_ahead else max(self._stamp + 1, wall_ms)
        hello = self._hello
        announcement = Announcement(
            hello.node_id, hello.incarnation, hello.algorithm, hello.address, self._stamp, data
        )
        self._host.announce(write(announcement, self._key))
        self.sent += 1
        return True

    def _again(self, delay_s: float) -> None:
        self._timer = self._host.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        assert self._settings is not None
        self.announce()
        now_s = self._host.now()
        for address, found in list(self._found.items()):
            if now_s - found.heard_s > FORGET_S and self._owner.lose(address):
                del self._found[address]
        self._again(self._settings.every_s * self._host.random.uniform(0.8, 1.2))

    # ---- hearing -------------------------------------------------------------------------

    def arrived(self, datagram: bytes, remote: str) -> None:
        """A datagram came from `remote`, whoever that is."""
        if self._settings is None:
            return
        now_s = self._host.now()
        if now_s >= self._window_s:
            self._window_s, self._in_window = now_s + WINDOW_S, 0
        self._in_window += 1
        if self._in_window > MAX_IN_WINDOW:
            self.ignored["too-many"] += 1
            return
        try:
            announcement = read(datagram, self._key)
        except RemoteProtocolError as error:
            self._ignore("malformed", remote, str(error))
            return
        if announcement is None:
            self._ignore("stranger", remote, "it was not made with this fabric's secret")
        elif self._is_own(announcement, remote) or not self._counts(announcement, remote):
            return
        elif announcement.algorithm != self._hello.algorithm:
            said = f"it runs {announcement.algorithm!r}, this node {self._hello.algorithm!r}"
            self._ignore("algorithm", remote, said, announcement.node_id)
        else:
            self.heard += 1
            node = AnnouncedNode(announcement.node_id, announcement.address)
            self._owner.heard(node, announcement.data)
            self._link_soon(announcement)

    def _is_own(self, announcement: Announcement, remote: str) -> bool:
        ours = self._hello
        if announcement.node_id != ours.node_id:
            return False
        if announcement.incarnation == ours.incarnation:
            return True  # groups give one's own back
        # What the former life of this node has said may come late.
        if self._counts(announcement, remote) and announcement.stamp > self._born_ms:
            self.ignored["same-id"] += 1
            self._owner.same_id_announced(
                f"another node {ours.node_id!r} announces itself from {remote}"
            )
        return True

    def _counts(self, announcement: Announcement, remote: str) -> bool:
        """Whether it is news, and not a repetition or a replay."""
        node_id, stamp = announcement.node_id, announcement.stamp
        wall_ms = self._host.wall_ms()
        behind_s = (wall_ms - stamp) / 1000
        if abs(behind_s) > CLOCK_S:
            said = f"its clock is {-behind_s:+.0f} s from this node's, or somebody replays it"
            self._ignore("clock", remote, said, node_id)
            return False
        known = self._known.pop(node_id, None) or _Known()
        if known.latest > wall_ms + CLOCK_S * 1000:  # this node's own clock has been set back
            known = _Known()
        self._known[node_id] = known
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        if stamp in known.stamps or stamp <= max(known.floor, known.latest - LATE_MS):
            self.ignored["repeated"] += 1
            return False
        known.stamps.add(stamp)
        known.latest = max(known.latest, stamp)
        if len(known.stamps) > MAX_STAMPS:
            known.floor = min(known.stamps)
            known.stamps.discard(known.floor)
        return True

    def _ignore(self, cause: str, remote: str, said: str, node_id: str = "") -> None:
        self.ignored[cause] += 1
        now_s = self._host.now()
        if now_s >= self._told_s.get(cause, 0.0):
            self._told_s[cause] = now_s + TELL_AGAIN_S
            self._host.log(
                "warning", "announcement ignored", remote=remote, node=node_id, cause=said
            )

    # ---- linking -------------------------------------------------------------------------

    def _link_soon(self, announcement: Announcement) -> None:
        settings, address = self._settings, announcement.address
        if settings is None or not settings.links or not address or self._timer is None:
            return
        if address in self._found:
            self._found[address].heard_s = self._host.now()
        elif (
            announcement.node_id not in self._soon
            and not self._owner.is_in_fabric(announcement.node_id)
            and (len(self._soon) + len(self._found) < MAX_FOUND or self._make_room())
        ):
            self._soon.add(announcement.node_id)
            delay_s = self._host.random.uniform(0.0, settings.every_s / 2)
            self._host.call_later(delay_s, lambda: self._link(announcement))

    def _make_room(self) -> bool:
        """Lose who has been dialed in vain for longest, if that is long enough."""
        late_s = self._host.now() - TRIAL_S
        for address, found in self._found.items():
            if found.found_s > late_s:
                break
            if self._owner.lose(address):
                del self._found[address]
                return True
        return False

    def _link(self, announcement: Announcement) -> None:
        self._soon.discard(announcement.node_id)
        address = announcement.address
        if not self._owner.is_in_fabric(announcement.node_id) and self._owner.found(address):
            now_s = self._host.now()
            self._found[address] = _Found(now_s, now_s)

    def status(self) -> dict[str, object]:
        """JSON-able."""
        return {
            "announced": self.sent,
            "heard": self.heard,
            "known": len(self._known),
            "found": sorted(self._found),
            "ignored": dict(self.ignored),
        }
