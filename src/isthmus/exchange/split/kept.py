"""What is kept of clients' sessions that are spread over several brokers.

Of each: at which brokers it has a session, what it has subscribed to there, whose the identifiers
of its messages are.  The brokers keep the sessions themselves; this is what it takes to find them
again, and to give a broker back what it has lost.

The file is a journal (`isthmus.exchange.journal`): what changed is appended.

It is kept while the client is connected and, if its session outlives that, afterwards: of the
`MAX_AWAY` clients that left last.  Brokers and subscriptions survive a restart of the node if the
host keeps anything.  Of whom nothing is known, and who wants to go on with a session, every broker
is asked.  Sessions expire at the brokers: what is kept here counts only if one of them has it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from isthmus.errors import RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.host import Host
from isthmus.exchange.journal import Journal
from isthmus.exchange.split.identifiers import Identifiers
from isthmus.mqtt.filters.topics import check_topic_filter, matches
from isthmus.mqtt.packets import Connect, Subscription
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.publish_layout import DUP, QOS, publish_id, topic_bounds

if TYPE_CHECKING:
    from isthmus.exchange.split.part import Part
    from isthmus.exchange.split.split import Split

__all__ = [
    "SAVE_S",
    "STATE_NAME",
    "STATE_VERSION",
    "Copies",
    "KeptSession",
    "KeptSessions",
    "Wanted",
]

MAX_AWAY: Final = 65_536
STATE_NAME: Final = "split-sessions"
STATE_VERSION: Final = 1
SAVE_S: Final = 0.2
SLICE: Final = 100
"""Sessions that are written in a turn."""
SLICE_BYTES: Final = 32 << 10
"""No more of them than that."""


class Wanted(NamedTuple):
    """A subscription as the client asked for it."""

    subscription: Subscription
    identifier: int = 0
    """MQTT 5's Subscription Identifier, if it has one."""


@dataclass(eq=False, slots=True)
class Copies:
    """What was retained elsewhere and published anew where its topics went (`moving`).

    A session that had subscribed there gets it as any message, though it has had it; so each is
    known by topic and payload, and goes no further.
    """

    payloads: Mapping[str, Sequence[bytes]]
    """By topic; shared by all sessions."""
    filters: tuple[str, ...]
    """What the session had subscribed to there."""
    came: dict[tuple[str, int], int] = field(default_factory=dict)
    """Which of them have, with the broker's identifier: it may repeat them."""

    def takes(self, frame: bytes) -> bool:
        """Whether a PUBLISH is one of them, which has not come yet."""
        begin, end = topic_bounds(frame)
        topic = frame[begin:end].decode()
        payloads, known = self.payloads.get(topic), len(self.came)
        if payloads is None or not any(matches(each, topic) for each in self.filters):
            return False
        packet_id = publish_id(frame) if frame[0] & QOS else 0
        for at, payload in enumerate(payloads):
            if frame.endswith(payload):
                before = self.came.setdefault((topic, at), packet_id)
                if before == packet_id and (frame[0] & DUP or len(self.came) > known):
                    return True
        return False


@dataclass(eq=False, slots=True)
class KeptSession:
    """One client's."""

    brokers: dict[str, None] = field(default_factory=dict)
    """Where it has a session."""
    wanted: dict[str, dict[str, Wanted]] = field(default_factory=dict)
    """By broker and topic filter."""
    untold: dict[str, dict[str, None]] = field(default_factory=dict)
    """Of these, what a broker that was away has not granted yet."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """What a broker was asked for and may have granted: nobody has heard."""
    unwanted: dict[str, dict[str, None]] = field(default_factory=dict)
    """What a broker that was away is to be unsubscribed from."""
    identifiers: Identifiers = field(default_factory=Identifiers)
    releases: dict[int, str] = field(default_factory=dict)
    """Where its own QoS 2 messages went that it has not released."""
    refused: dict[str, dict[int, None]] = field(default_factory=dict)
    """By broker, QoS 2 messages that were refused under way; the broker may have them."""
    quiet: dict[str, set[str]] = field(default_factory=dict)
    """Of what is untold, what is to bring nothing that is retained: the client has had it."""
    copies: dict[str, list[Copies]] = field(default_factory=dict)
    """By broker, what the client has had and may come from there once more."""
    connect: Connect | None = None
    """How the client came last, in this life of the node; of an earlier one its login is missing,
    and ``logged_in`` says whether it had one."""
    logged_in: bool = False

    def forget_copies(self, known: Collection[Copies]) -> None:
        """They have come by now."""
        for theirs in self.copies.values():
            theirs[:] = [each for each in theirs if each not in known]

    def remember(self, connect: Connect) -> None:
        """How it comes now."""
        self.connect = connect
        self.logged_in = connect.username is not None or connect.password is not None


class KeptSessions:
    """All clients', by client id."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.leaving: dict[tuple[str, str], Part] = {}
        """Of clients that are gone, by client id and broker: what still greets the broker."""
        self._connected: dict[str, Split] = {}
        self._sessions: dict[str, KeptSession] = {}
        """Of who is away, and who is connected and is to be kept."""
        self._away: dict[str, None] = {}
        """The longest away first."""
        self._salt = int.from_bytes(host.token_bytes(4))
        self._has_changed = False
        """In this life; else the file stays as it is."""
        self._changed: dict[str, None] = {}
        self._journal = Journal(host, STATE_NAME, drain=self._drain, snapshot=self._all)
        self.state_lost = self._journal.lost

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def connected(self) -> int:
        return len(self._connected)

    def is_connected(self, client_id: str) -> bool:
        return client_id in self._connected

    def away(self) -> Iterator[tuple[str, KeptSession]]:
        """Those that are kept of clients which are not connected."""
        return ((each, self._sessions[each]) for each in self._away)

    def of(self, client_id: str) -> KeptSession | None:
        return self._sessions.get(client_id)

    def accepted(self, client_id: str, split: Split, session: KeptSession, keeps: bool) -> None:
        """A client was let in; who had its id before is over."""
        older = self._connected.pop(client_id, None)
        if older is not None:
            older.taken_over()
        if not client_id:
            return
        self._connected[client_id] = split
        self._away.pop(client_id, None)
        if self._sessions.pop(client_id, None) is not None or keeps:
            self.changed(client_id)
        if keeps:
            self._sessions[client_id] = session

    def ended(self, client_id: str, split: Split, keeps: bool) -> None:
        """Its connection is over, and its session, too, unless it `keeps` one."""
        if self._connected.get(client_id) is not split:
            return
        del self._connected[client_id]
        session = self._sessions.pop(client_id, None)
        if session is None:
            return
        self.changed(client_id)
        if keeps:
            session.identifiers.open.clear()
            self._sessions[client_id] = session
            self._away[client_id] = None
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        if len(self._away) > MAX_AWAY:
            oldest = next(iter(self._away))
            del self._away[oldest], self._sessions[oldest]
            self.changed(oldest)

    # ---- over a restart --------------------------------------------------------------------

    def changed(self, client_id: str) -> None:
        """Write it soon, if anything is kept."""
        if self._host.keeps_state:
            self._has_changed = True
            self._changed[client_id] = None
            self._journal.changed(SAVE_S)

    def _drain(self) -> bytes:
        return self._some(self._changed)

    def _all(self) -> Iterator[bytes]:
        yield kept_records.header(STATE_NAME, STATE_VERSION, self._salt)
        self._changed.clear()
        left = dict.fromkeys(self._sessions)
        while left:
            yield self._some(left)

    def _some(self, left: dict[str, None]) -> bytes:
        """Records of the next few, which are then not left any more; as they are now."""
        records: list[bytes] = []
        size = 0
        for client_id in list(islice(left, SLICE)):
            if size >= SLICE_BYTES:
                break
            del left[client_id]
            body = _record(client_id, self._sessions.get(client_id))
            records.append(kept_records.record(body, self._salt))
            size += len(body)
        return b"".join(records)

    def stop(self) -> None:
        if self._has_changed:
            self._journal.stop()

    def load(self, names: tuple[str, ...]) -> None:
        """What the node's last life has left, of the brokers that there still are."""
        state = self._host.load_state(STATE_NAME, STATE_VERSION)
        for record in kept_records.read(state).records if state is not None else ():
            try:
                client_id, session = _read(record, names)
            except (
                AttributeError,
                KeyError,
                TypeError,
                ValueError,
                RemoteProtocolError,
            ) as error:
                self._host.log("error", "a kept session cannot be read", cause=str(error))
                continue
            self._away.pop(client_id, None)
            self._sessions.pop(client_id, None)
            if session is not None:
                self._sessions[client_id] = session
                self._away[client_id] = None
                self._forget_the_oldest()


def _record(client_id: str, session: KeptSession | None) -> bytes:
    """None if there is none any more."""
    if session is None:
        return json.dumps({"id": client_id}).encode()
    wanted = {
        broker: [[*astuple(each.subscription), each.identifier] for each in theirs.values()]
        for broker, theirs in session.wanted.items()
    }
    return json.dumps(
        {
            "id": client_id,
            "brokers": list(session.brokers),
            "wanted": wanted,
            **_how_it_came(session.connect, session.logged_in),
            "untold": {broker: list(theirs) for broker, theirs in session.untold.items()},
            "unwanted": {broker: list(theirs) for broker, theirs in session.unwanted.items()},
        }
    ).encode()


def _how_it_came(connect: Connect | None, logged_in: bool) -> dict[str, object]:
    """The login stays in memory."""
    if connect is None:
        return {}
    return {
        "level": connect.protocol_level,
        "expiry": connect.properties.session_expiry_interval,
        "logged_in": logged_in,
    }


def _read(record: bytes, names: tuple[str, ...]) -> tuple[str, KeptSession | None]:
    entry = json.loads(record)
    if entry.keys() == {"id"}:
        return str(entry["id"]), None
    session = KeptSession({str(name): None for name in entry["brokers"] if name in names})
    session.identifiers.is_new = True
    for broker, theirs in entry["wanted"].items():
        for topic_filter, qos, no_local, as_published, handling, identifier in theirs:
            check_topic_filter(topic_filter, shared_subscriptions=False)
            if broker in names:
                subscription = Subscription(
                    topic_filter, int(qos), bool(no_local), bool(as_published), int(handling)
                )
                session.wanted.setdefault(broker, {})[topic_filter] = Wanted(
                    subscription, int(identifier)
                )
    if "level" in entry:
        expiry = entry["expiry"]
        session.connect = Connect(
            str(entry["id"]),
            protocol_level=int(entry["level"]),
            properties=Properties(session_expiry_interval=None if expiry is None else int(expiry)),
        )
        session.logged_in = bool(entry["logged_in"])
    for kept, of_brokers in (
        (session.untold, entry.get("untold", {})),
        (session.unwanted, entry.get("unwanted", {})),
    ):
        for broker, filters in of_brokers.items():
            for topic_filter in filters:
                check_topic_filter(topic_filter, shared_subscriptions=False)
            if broker in names:
                kept[broker] = dict.fromkeys(filters)
    return str(entry["id"]), session
