"""The life of a client session: what becomes of what its client sends.

One table, whose state only `ClientInput.happens` changes.  What comes is handled at once in OPEN;
in CONNACK, LINK and TURN it is *parked*; in OVER and GONE nothing more is taken.  The client may
have hung up meanwhile: until its session is GONE it is an *orphan*, whose last words count.

`make life` draws the table into docs/explanation/relay.md; `make check` compares.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

from isthmus.tables import table_of

__all__ = ["CLIENT", "ClientAction", "ClientEvent", "ClientState"]


class ClientState(Enum):
    """What a client session waits for."""

    CONNECT = "waiting for CONNECT", False
    CONNACK = "waiting for the broker's CONNACK", False
    OPEN = "open", False
    LINK = "waiting for a link", False
    TURN = "waiting for its turn", False
    OVER = "over", True
    """It said DISCONNECT, was wrong, or was refused."""
    GONE = "gone", True
    """The connection has ended, and all that came by it is handled or discarded."""

    over: bool
    """Nothing more is taken from the client."""

    def __new__(cls, name: str, over: bool) -> Self:
        member = object.__new__(cls)
        member._value_ = name
        member.over = over
        return member


class ClientEvent(Enum):
    ASKED_IN = "CONNECT"
    GOES_ON = "CONNACK accepts it, a link has room, its turn comes"
    CONGESTED = "a link is congested"
    OUT_OF_TIME = "its slice is over"
    ENOUGH = "DISCONNECT, a fault, a refusal"
    FINISHED = "hung up, and all is handled"


class ClientAction(Enum):
    QUEUE = "queue for a slice"


CLIENT = table_of(
    (ClientState, ClientEvent, ClientAction),
    """
    CONNECT  ASKED_IN     CONNACK
    CONNECT  ENOUGH       OVER
    CONNECT  FINISHED     GONE
    CONNACK  GOES_ON      OPEN
    CONNACK  ENOUGH       OVER
    CONNACK  FINISHED     GONE
    OPEN     GOES_ON      OPEN
    OPEN     CONGESTED    LINK
    OPEN     OUT_OF_TIME  TURN  QUEUE
    OPEN     ENOUGH       OVER
    OPEN     FINISHED     GONE
    LINK     GOES_ON      OPEN
    LINK     OUT_OF_TIME  TURN  QUEUE
    LINK     ENOUGH       OVER
    LINK     FINISHED     GONE
    TURN     GOES_ON      OPEN
    TURN     ENOUGH       OVER
    TURN     FINISHED     GONE
    OVER     GOES_ON      OVER
    OVER     ENOUGH       OVER
    OVER     FINISHED     GONE
    GONE     GOES_ON      GONE
    GONE     ENOUGH       GONE
    GONE     FINISHED     GONE
    """,
)
