"""The lives of a part, one client's session at one of several brokers, and of topics that move.

Of each one table, whose state only `Part.happens` and `Move.happens` change.  What a client sends
to a part is sent in OPEN; it waits in CONNECTING, GREETING, RESTORING and LOOKING; it is refused,
or held within bounds, in AWAY, and refused in REFUSED.

`make life` draws the tables into docs/explanation/ (several-brokers.md, geo.md); `make check`
compares.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

from isthmus.tables import table_of

__all__ = [
    "MOVE",
    "PART",
    "MoveAction",
    "MoveEvent",
    "MoveState",
    "PartAction",
    "PartEvent",
    "PartState",
]


class PartState(Enum):
    """How far the session with that broker is."""

    CONNECTING = "connecting", True
    GREETING = "waiting for CONNACK", True
    RESTORING = "restoring subscriptions", True
    OPEN = "open", False
    LOOKING = "lost, looking whether the broker stands", True
    AWAY = "waiting for the broker", False
    REFUSED = "refused by the broker", False
    CLOSED = "closed", False

    waits: bool
    """What is to be sent waits for what comes next, which comes soon."""

    def __new__(cls, name: str, waits: bool) -> Self:
        member = object.__new__(cls)
        member._value_ = name
        member.waits = waits
        return member


class PartEvent(Enum):
    CONNECTED = "the connection stands"
    UNREACHABLE = "no connection"
    ACCEPTED = "CONNACK, subscriptions to restore"
    RESTORED = "all subscriptions are there"
    TURNED_AWAY = "CONNACK refuses, or it closes on CONNECT"
    LOST = "the connection ends"
    GONE = "the broker is away"
    BACK = "the broker is back"
    ASKED = "subscriptions change by themselves"
    OVER = "the client's connection ends"


class PartAction(Enum):
    LOOK = "look whether the broker stands"


PART = table_of(
    (PartState, PartEvent, PartAction),
    """
    CONNECTING  CONNECTED    GREETING
    CONNECTING  UNREACHABLE  AWAY
    CONNECTING  OVER         CLOSED
    GREETING    ACCEPTED     RESTORING
    GREETING    TURNED_AWAY  REFUSED
    GREETING    LOST         LOOKING  LOOK
    GREETING    OVER         CLOSED
    RESTORING   RESTORED     OPEN
    RESTORING   LOST         LOOKING  LOOK
    RESTORING   OVER         CLOSED
    OPEN        ASKED        RESTORING
    OPEN        LOST         LOOKING  LOOK
    OPEN        OVER         CLOSED
    LOOKING     GONE         AWAY
    LOOKING     TURNED_AWAY  REFUSED
    LOOKING     OVER         CLOSED
    AWAY        BACK         CONNECTING
    AWAY        OVER         CLOSED
    REFUSED     LOST         REFUSED
    REFUSED     OVER         CLOSED
    CLOSED      OVER         CLOSED
    CLOSED      LOST         CLOSED
    CLOSED      UNREACHABLE  CLOSED
    """,
)


class MoveState(Enum):
    """How far topics are on their way to another broker (`isthmus.exchange.split.moving`)."""

    PREPARING = "preparing"
    HOLDING = "holding"
    COPYING = "copying"
    SUBSCRIBING = "subscribing"
    SETTLING = "settling"
    MOVED = "moved"
    FAILED = "failed"


class MoveEvent(Enum):
    HOLD = "what is published on them waits"
    DRAINED = "nothing is under way any more"
    COPIED = "what is retained is there"
    SUBSCRIBED = "who has subscribed is subscribed there"
    SWITCH = "they live there"
    FAIL = "something goes wrong"


class MoveAction(Enum):
    END = "tell the algorithm; what has waited goes on"


MOVE = table_of(
    (MoveState, MoveEvent, MoveAction),
    """
    PREPARING    HOLD        HOLDING
    PREPARING    FAIL        FAILED       END
    HOLDING      DRAINED     COPYING
    HOLDING      FAIL        FAILED       END
    COPYING      COPIED      SUBSCRIBING
    COPYING      FAIL        FAILED       END
    SUBSCRIBING  SUBSCRIBED  SETTLING
    SUBSCRIBING  FAIL        FAILED       END
    SETTLING     SWITCH      MOVED        END
    SETTLING     FAIL        FAILED       END
    """,
)
