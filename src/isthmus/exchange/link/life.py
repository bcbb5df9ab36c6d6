"""The life of a link: what may happen in which state, what follows from it, what is to be done.

Three tables, each with one owner who alone changes that state, by its `happens`:

    LINK      of `Link`: one neighbor, whoever dialed, over as many connections as it takes
    GREETING  of `Connection`: one connection, which becomes a lane of a link
    DIALING   of `Peer`: an address that is dialed; several may lead to the same neighbor

Everybody else reads the states or sends events: what is not in a table cannot happen, and raises
`LocalProtocolError`.  The topology guard has no state of its own: its decisions are events here.
`SessionInfo.status`, which the algorithm sees, follows from the link's state.

`make life` draws the tables into docs/explanation/life-of-a-link.md; `make check` compares.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

from isthmus.tables import table_of

__all__ = [
    "DIALING",
    "GREETING",
    "LINK",
    "DialAction",
    "DialEvent",
    "DialState",
    "GreetingAction",
    "GreetingEvent",
    "GreetingState",
    "LinkAction",
    "LinkEvent",
    "LinkState",
]


# ---- a link ------------------------------------------------------------------------------


class LinkState(Enum):
    """Where a link stands; `shown` is what people are told of it."""

    DOWN = "down", "down", False, False
    """Not every lane is connected, and the algorithm has no such session."""
    HELD = "held", "down", False, True
    """Likewise, but it was the algorithm's: its session stays, and what is sent there waits."""
    LEARNING = "learning", "learning", True, False
    """Connected; the guard has not judged it yet, or the other end has not opened it yet."""
    RETURNING = "returning", "learning", True, True
    """Likewise, but it was held: what waited is sent."""
    ACTIVE = "active", "active", True, True
    """The algorithm's session, established."""
    BLOCKED = "blocked", "blocked", True, False
    """Connected, but closed for the algorithm: a standby."""
    GONE = "gone", "gone", False, False

    shown: str
    up: bool
    """Every lane is connected."""
    session: bool
    """The algorithm has this session: messages go there, now or when it is up again."""
    carries: bool
    """Both: messages are sent."""

    def __new__(cls, name: str, shown: str, up: bool, session: bool) -> Self:
        member = object.__new__(cls)
        member._value_ = name
        member.shown, member.up, member.session = shown, up, session
        member.carries = up and session
        return member


class LinkEvent(Enum):
    COMPLETE = "every lane is connected"
    LOST = "a lane is lost"
    AGREED = "both ends open it"
    RING = "it closes a ring, or the other end closes it"
    LET_GO = "let go"


class LinkAction(Enum):
    JOIN = "tell the guard that it is up"
    PART = "tell the guard that it is down"
    ESTABLISH = "on_session_established"
    PAUSE = "on_tcp_down"
    CLOSE = "on_session_closed, send elsewhere what is unacknowledged"
    FORGET = "forget the neighbor"


LINK = table_of(
    (LinkState, LinkEvent, LinkAction),
    """
    DOWN       COMPLETE  LEARNING   JOIN
    DOWN       LET_GO    GONE       FORGET
    HELD       COMPLETE  RETURNING  JOIN
    HELD       LET_GO    GONE       CLOSE FORGET
    LEARNING   LOST      DOWN       PART
    LEARNING   AGREED    ACTIVE     ESTABLISH
    LEARNING   RING      BLOCKED
    LEARNING   LET_GO    GONE       PART FORGET
    RETURNING  LOST      HELD       PART PAUSE
    RETURNING  AGREED    ACTIVE     ESTABLISH
    RETURNING  RING      BLOCKED    CLOSE
    RETURNING  LET_GO    GONE       PART CLOSE FORGET
    ACTIVE     LOST      HELD       PART PAUSE
    ACTIVE     RING      BLOCKED    CLOSE
    ACTIVE     LET_GO    GONE       PART CLOSE FORGET
    BLOCKED    LOST      DOWN       PART
    BLOCKED    AGREED    ACTIVE     ESTABLISH
    BLOCKED    RING      BLOCKED
    BLOCKED    LET_GO    GONE       PART FORGET
    """,
)


# ---- a connection ------------------------------------------------------------------------


class GreetingState(Enum):
    """How far the greeting of one connection has come."""

    CONNECT = "waiting for CONNECT"
    AUTH = "waiting for AUTH"
    JUDGED = "being judged"
    CONNACK = "waiting for CONNACK"
    OPEN = "open"
    CLOSED = "closed"


class GreetingEvent(Enum):
    ASKED_IN = "CONNECT, and there is a secret to prove"
    PROVED = "the other node has proved itself, or need not"
    CHALLENGED = "AUTH"
    LET_IN = "it may come in"
    WELCOMED = "CONNACK"
    ENDED = "closed or lost"


class GreetingAction(Enum):
    CHALLENGE = "send AUTH with a nonce"
    PROVE = "send AUTH with the proof"
    WELCOME = "send CONNACK"


GREETING = table_of(
    (GreetingState, GreetingEvent, GreetingAction),
    """
    CONNECT  ASKED_IN    AUTH     CHALLENGE
    CONNECT  PROVED      JUDGED
    CONNECT  ENDED       CLOSED
    AUTH     PROVED      JUDGED
    AUTH     ENDED       CLOSED
    JUDGED   LET_IN      OPEN     WELCOME
    JUDGED   ENDED       CLOSED
    CONNACK  CHALLENGED  CONNACK  PROVE
    CONNACK  WELCOMED    OPEN
    CONNACK  ENDED       CLOSED
    OPEN     ENDED       CLOSED
    CLOSED   ENDED       CLOSED
    """,
)


# ---- a peer ------------------------------------------------------------------------------


class DialState(Enum):
    """Whether a peer is being dialed."""

    RESTING = "resting"
    """It is linked, or was until a moment ago."""
    WAITING = "waiting"
    DIALING = "dialing"
    """A set of connections is being opened."""
    FORGOTTEN = "forgotten"


class DialEvent(Enum):
    WANTED = "a link is wanted"
    DUE = "the pause is over"
    FAILED = "a lane cannot be opened"
    LINKED = "the link is up"
    REMOVED = "removed"


class DialAction(Enum):
    PAUSE = "set the timer"
    DIAL = "dial the first lane"
    STOP = "cancel the timer"


DIALING = table_of(
    (DialState, DialEvent, DialAction),
    """
    RESTING  WANTED   WAITING    PAUSE
    RESTING  REMOVED  FORGOTTEN  STOP
    WAITING  WANTED   WAITING
    WAITING  DUE      DIALING    DIAL
    WAITING  LINKED   RESTING
    WAITING  REMOVED  FORGOTTEN  STOP
    DIALING  WANTED   DIALING
    DIALING  FAILED   WAITING    PAUSE
    DIALING  LINKED   RESTING
    DIALING  REMOVED  FORGOTTEN  STOP
    """,
)
