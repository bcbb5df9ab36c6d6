"""How a client comes in where there are several brokers: who is asked, and what it is told.

    CONNECT ──▶ the first broker that can be reached, the default one before the others
                  refuses ──▶ its CONNACK is the client's, and that is all
                  accepts ──▶ the broker in charge of the will, with the will;
                              where the client has, or may have, a session to go on with or to end
                                └──each has answered, or is away──▶ CONNACK

Everybody else is greeted when something is to be published or subscribed there: with the same id,
login and properties, but a share of the client's Receive Maximum, and no Topic Alias Maximum.

Session present is what any of them says: who has lost its part is given it back.  If none has a
session there is none, whatever the node remembers, and nobody who is greeted later is to have one.
The broker in charge of the will can refuse the client, too; of all others only the topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from isthmus.exchange.split.kept import KeptSession
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.packets import ConnAck, Connect
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.split.part import Part
    from isthmus.exchange.split.split import Split

__all__ = ["Greeting"]

FOR_EVER: Final = 0xFFFF_FFFF


class Greeting:
    """The CONNECT of one client, and what becomes of it."""

    __slots__ = (
        "_answer",
        "_known",
        "_resumes",
        "_split",
        "_untried",
        "_waits",
        "_will_broker",
        "client_id",
        "connect",
        "expiry_s",
        "first",
        "over",
    )

    def __init__(self, split: Split, connect: Connect) -> None:
        self._split = split
        self.connect = connect
        self.client_id = connect.client_id
        """As it says, or as the first broker has assigned it."""
        self.expiry_s = 0
        """How long its session outlives its connection."""
        self.first: Part | None = None
        """Who has let it in."""
        self.over = False
        """It has its CONNACK."""
        self._untried: Iterator[str] = iter(())
        self._answer: tuple[ConnAck, bytes] = ConnAck(), b""
        self._waits: set[Part] = set()
        """Whose answer the client's CONNACK waits for."""
        self._will_broker = ""
        self._known: KeptSession | None = None
        """What is remembered of the session that it goes on with, or ends."""
        self._resumes = False

    def begin(self) -> None:
        brokers, will = self._split.brokers, self.connect.will
        if will is not None:
            self._will_broker = brokers.of(will.topic.encode())
            if not self._will_broker:
                self._split.host.call_soon(self._will_is_nobodys)
                return
        names = dict.fromkeys((brokers.home, *brokers.names))
        standing = [name for name in names if not brokers.is_away(name)]
        self._untried = iter(standing or list(names))
        self._try_next("")

    def _will_is_nobodys(self) -> None:
        """MQTT 3.1.1 has no code for it."""
        if self.connect.protocol_level == 5:
            self._split.answer(encode(ConnAck(False, ReasonCode.TOPIC_NAME_INVALID), 5))
        self._split.end()

    def _try_next(self, cause: str) -> None:
        name = next(self._untried, None)
        if name is not None:
            self._split.part(name, try_anyway=True)
        else:
            self._split.nobody_there(cause)

    # ---- the brokers' answers --------------------------------------------------------------

    def accepted(self, part: Part, connack: ConnAck, frame: bytes) -> None:
        if self.over:
            return
        if self.first is None:
            self.first = part
            self._answer = connack, frame
            self._take_up(connack)
            self._greet_others()
        self._answered(part)

    def _take_up(self, connack: ConnAck) -> None:
        """Whose session it is, and for how long that is kept."""
        connect, granted = self.connect, connack.properties
        self.client_id = granted.assigned_client_identifier or self.client_id
        self._known = self._split.sessions.of(self.client_id)
        if connect.protocol_level != 5:
            self.expiry_s = 0 if connect.clean_start else FOR_EVER
        elif granted.session_expiry_interval is not None:
            self.expiry_s = granted.session_expiry_interval
        else:
            self.expiry_s = connect.properties.session_expiry_interval or 0

    def _greet_others(self) -> None:
        wanted = dict.fromkeys([self._will_broker] if self._will_broker else [])
        if self._known is not None:
            wanted |= self._known.brokers
        elif not self.connect.clean_start:
            wanted |= dict.fromkeys(self._split.brokers.names)
        for name in wanted:
            if not self._split.has_part(name):
                self._waits.add(self._split.part(name))

    def refused(self, part: Part, frame: bytes) -> None:
        """`frame`: its CONNACK; empty if it just closes."""
        if not self.over and (self.first is None or part.name == self._will_broker):
            if frame:
                self._split.answer(frame)
            self._split.end()
            return
        self._split.host.log(
            "warning", "broker refuses a client", broker=part.name, client_id=self.client_id
        )
        self._answered(part)

    def away(self, part: Part) -> None:
        if self.first is None:
            self._split.drop(part)
            self._try_next(f"{part.name}: {self._split.brokers.problems()[part.name]}")
        else:
            self._answered(part)

    def _answered(self, part: Part) -> None:
        self._waits.discard(part)
        if self.over or self._waits or self.first is None:
            return
        connack, frame = self._answer
        self._resumes = self._split.any_present()
        kept = self._known if self._resumes and not self.connect.clean_start else None
        if self._resumes != connack.session_present:
            connack = replace(connack, session_present=self._resumes)
            frame = encode(connack, self.connect.protocol_level)
        self.over = True
        if kept is None:
            kept = KeptSession()
            kept.identifiers.is_new = self._resumes
        self._split.let_in(connack, frame, kept)

    # ---- what each is told -----------------------------------------------------------------

    def connect_for(self, part: Part, kept: KeptSession) -> bytes:
        """The client's CONNECT, as it goes to one of the brokers."""
        connect = self.connect
        properties, clean_start = connect.properties, connect.clean_start
        if connect.protocol_level == 5:
            most = properties.receive_maximum or IDENTIFIERS
            share = max(1, most // len(self._split.brokers.names))
            properties = replace(properties, receive_maximum=share)
            if part.was_accepted and not self.expiry_s:
                clean_start = True  # it ended with the connection; HiveMQ has it, but empty
            else:
                clean_start = part.name not in kept.brokers and (
                    clean_start or (self.over and not self._resumes)
                )
            if part is not self.first and self.first is not None:
                properties = replace(
                    properties,
                    topic_alias_maximum=None,
                    authentication_method=None,
                    authentication_data=None,
                )
        asked = replace(
            connect,
            client_id=self.client_id,
            clean_start=clean_start,
            will=connect.will if part.name == self._will_broker else None,
            properties=properties,
        )
        return encode(asked, connect.protocol_level)
