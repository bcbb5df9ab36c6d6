"""The node's own session with the local broker for one neighbor (ILDM §4.1).

What is sent, in which order, and what is blamed for what, is `isthmus.exchange.broker.injection`;
here is the session under it, without I/O.  A session is opened when the neighbor's link comes up,
which also tries the login, and speaks MQTT 5 if the broker does, else 3.1.1.  A broker that only
closes on MQTT 5 is asked twice: it may have been restarted just then.

    connecting ──CONNACK──▶ open ──lost──▶ pause ──▶ connecting
        └──refused, no answer──▶ pause, twice as long each time

The pause begins at `FIRST_PAUSE_S` again when a session stood for `STOOD_S` or a message was set
aside; while suspects are tried it is `TRIAL_PAUSE_S`.  It grows to `LONGEST_PAUSE_S`, but only to
`PROMPT_PAUSE_S` as long as the broker accepts sessions within `PROMPT_S` and gives no reason of its
own for ending them: then it stands, something that it was given is the cause, and whoever sends
that must not stop the others by it.

**The witness.**  While a suspect is in flight the node holds a second TCP connection to the broker,
on which it says nothing.  A broker that crashes, is stopped or restarted loses that too.  So a
message is blamed for the end of a session only if the witness stands when the next session is
accepted, and every attempt in between succeeded.

**Silence.**  A connection that stands says nothing about a broker that hangs, or whose machine is
gone: the kernel answers for the one, and nobody closes it for the other.  So the broker is asked
`PING_S` after it was heard.  If nothing at all comes for `ANSWER_S`, or after the CONNECT, it is
*silent* until something does.  Who hangs may wake up, and has what it was given: were it given
that again in another session it would have it twice.  So as long as the broker's machine is heard
(`SessionHost.silent_s`), the session stays.  It is ended when the machine is silent for `GONE_S`,
after `SILENT_S` if nobody can tell, and before its CONNACK after `GREETING_S`; no message is blamed
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from isthmus.exchange.broker.injection import (
    INNOCENT_FAREWELLS,
    MAX_WAITING_BYTES,
    InjectedMessage,
    Injection,
    SessionTerms,
)
from isthmus.exchange.broker.own_session import OwnSession
from isthmus.exchange.host import Cancellable
from isthmus.exchange.session import Session, SessionHost, SessionStatus, Wire
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.packet_ids import IDENTIFIERS
from isthmus.mqtt.packets import ConnAck, Disconnect
from isthmus.mqtt.publish_layout import PUBACK, PUBCOMP, PUBREC
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.broker.own_sessions import OwnSessions
    from isthmus.exchange.broker.source import BrokerSource

__all__ = ["Injector"]

PING_S = 5.0
ANSWER_S = 10.0
SILENT_S = 30.0
GREETING_S = 15.0
GONE_S = 150.0
"""Longer than a kernel pauses between two questions whether a peer that reads nothing has room."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
TRIAL_PAUSE_S = 0.05
PROMPT_S, PROMPT_PAUSE_S = 0.25, 0.25
STOOD_S = 5.0
TRIAL_S = 10.0
WITNESS_AGAIN_S = 1.0
SOURCE_IDENTIFIERS = 2_047
"""Of a session that the broker keeps: what an earlier life has left there is found among these."""

_PINGRESP, _DISCONNECT = 0xD0, 0xE0
_UNSUPPORTED = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


class Injector:
    """The node's session with the broker for one neighbor; reconnects until it is retired."""

    def __init__(self, own: OwnSessions, key: str, source: BrokerSource | None = None) -> None:
        """With a `source` the session is also subscribed, and what comes by that is for it."""
        self._own = own
        self._host = own.host
        self.now = own.host.now
        self.key = key
        self.source = source
        identifiers = IDENTIFIERS if source is None else SOURCE_IDENTIFIERS
        self._core = Injection(self, own.counters, own.aversions, identifiers=identifiers)
        self.apart = self._core.apart = own.apart(self._core, key)
        self.sweep, self.swept = self._core.sweep, self._core.swept
        self.sessions = 0
        """How many were opened."""
        self.inject = self._core.inject
        self.inject_plain = self._core.inject_plain
        self.give_up = self._core.give_up
        self.has_on = self._core.has_on
        self._session: InjectSession | None = None
        self._opened_s = -1.0
        self._pause_s = FIRST_PAUSE_S
        self._out: list[bytes] = []
        self.closed = False
        self.silent = False
        """The broker was asked something and does not answer."""
        self._accused: InjectedMessage | None = None
        self._cause = ""
        self._witness: _Witness | None = None
        self._timer: Cancellable | None = None
        self._connect()
        if self.apart is not None:
            self.apart.refill()

    def __len__(self) -> int:
        return len(self._core)

    @property
    def connected(self) -> bool:
        return self._session is not None

    def close(self) -> None:
        if self.closed:
            return
        self._flush()
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._dismiss_witness()
        if self._session is not None:
            self._session.send(Disconnect())
            self._session.close()

    # ---- what the injection asks for -----------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write at the end of this turn, so that a write carries many messages."""
        if not self._out:
            self._host.call_soon(self._flush)
        self._out.append(data)

    def watch(self, published: Callable[[Sequence[bytes], Sequence[bytes]], None] | None) -> None:
        """Who is told of what is written to the session, if anybody."""
        self._core.published = published

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        session = self._session
        if session is not None and session.status is SessionStatus.ESTABLISHED:
            session.wire.write(data)

    def prove(self) -> None:
        """Have a witness, then a PINGRESP."""
        if (session := self._session) is not None:
            self._call_witness(session, lambda: self._witnessed(session))

    def _witnessed(self, session: InjectSession) -> None:
        """There is a witness, or there can be none: then nobody will be blamed."""
        if self._session is session:
            session.ping(self._core.proven)
            self._watch_trial(session)

    def _watch_trial(self, session: InjectSession) -> None:
        """A broker that keeps the session and does not acknowledge must not stop the others."""
        before = self._core.acknowledgments

        def look() -> None:
            if self._session is session and self._core.on_trial:
                if self._core.acknowledgments == before:
                    self._core.acquit()
                if self._core.on_trial:
                    self._watch_trial(session)

        self._host.call_later(TRIAL_S, look)

    def _call_witness(self, session: InjectSession, called: Callable[[], None]) -> None:
        def came() -> None:
            if self._session is not session or self.closed:
                witness.close()  # it has not seen how the session fell
                return
            self._dismiss_witness()
            self._witness = witness
            called()

        if self._witness is not None and self._witness.stands:
            self._host.call_soon(called)
            return
        witness = _Witness(self._host, came, lambda: self._witness_gone(session))
        self._host.connect_broker(witness, lambda _: called())

    def _witness_gone(self, session: InjectSession) -> None:
        """With the broker, or because brokers close who says nothing: then another one follows."""

        def again() -> None:
            if self._session is session and self._core.on_trial:
                self._call_witness(session, lambda: None)

        self._host.call_later(WITNESS_AGAIN_S, again)

    def _dismiss_witness(self) -> None:
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    def set_aside(self, message: Message, cause: str) -> None:
        by = message.came_from.name if message.came_from is not None else self.key
        self._own.set_aside(message, by, cause)

    def refused(self, message: Message, code: int) -> None:
        self._host.log(
            "warning",
            "broker refused a message from another node",
            neighbor=self.key,
            topic=message.topic.decode(errors="replace"),
            cause=f"0x{code:02x}",
        )

    # ---- the session ---------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.closed:
            self._host.connect_broker(InjectSession(self._own, self), self._not_connected)

    def _not_connected(self, cause: str) -> None:
        self._own.was_away()
        self._broker_was_away()
        self._connect_later(self._longer_pause())

    def _connect_later(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()  # an attempt that ends twice is one attempt
        if not self.closed:
            self._timer = self._host.call_later(pause_s, self._connect)

    def _broker_was_away(self) -> None:
        self._accused = None
        self._core.forgive()

    def _longer_pause(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        return pause_s

    def heard(self, yes: bool) -> None:
        """The broker has said something, or is silent."""
        if not yes and not self.silent:
            self._host.log("warning", "broker does not answer", neighbor=self.key)
        elif yes and self.silent:
            self._host.log("info", "broker answers again", neighbor=self.key)
        self.silent = not yes
        if self.source is not None and self.connected:
            self.source.echoes.answers(yes)

    def is_open(self, session: InjectSession) -> bool:
        return self._session is session

    @property
    def ever_opened(self) -> bool:
        return self._opened_s >= 0.0

    def opened(self, session: InjectSession, connack: ConnAck) -> None:
        self._own.refused("")
        if self.closed or self._is_to_begin_anew(session):  # while the broker was being greeted
            session.send(Disconnect())
            session.close()
            return
        if self._accused is not None:
            if self._witness is not None and self._witness.stands:
                if self._core.blame(self._accused, self._cause):
                    self._pause_s = FIRST_PAUSE_S
            else:
                self._core.forgive()
            self._accused = None
        self._session = session
        self._opened_s = self.now()
        terms = SessionTerms.of(connack, session.level)
        self.sessions += 1
        if self.source is None:
            self._core.opened(terms)
        else:
            present = connack.session_present
            first = self.sessions == 1 or self._core.is_unswept
            # First it subscribes: of all that it publishes then, echoes may come.
            self.source.opened(session.level)
            self._core.opened(terms, resumed=present, unswept=present and first)
        if not self._core.on_trial:
            self._dismiss_witness()

    def _is_to_begin_anew(self, session: InjectSession) -> bool:
        """In MQTT 3.1.1 a clean session has ended the one before, and would not last itself."""
        source = self.source
        if source is None or not source.fresh:
            return False
        source.fresh = False
        return source.keeps and session.level != 5

    def may_write(self, session: InjectSession, yes: bool) -> None:
        if self._session is session:
            self._core.may_write(yes)

    def acknowledged(self, frame: bytes) -> None:
        self._core.acknowledged(frame)
        if self._witness is not None and not self._core.on_trial:
            self._dismiss_witness()

    def lost(self, session: InjectSession, cause: str) -> None:
        """What was in flight goes first when the session is back."""
        if self._session is session:
            self._session = None
            self._out.clear()  # what it was is in flight, or at QoS 0 and lost with the session
            on_trial = self._core.on_trial
            accused = self._core.lost()
            if self.source is not None:
                if self.source.subscriptions.waits:
                    accused = None  # it may be a filter that the broker closes on
                self.source.lost()
            if session.given_up or session.farewell in INNOCENT_FAREWELLS:
                accused = None
            self._accused, self._cause = accused, cause
            if self.closed:
                return
            self._host.log("info", "own broker session lost", neighbor=self.key, cause=cause)
            self._own.session_lost(self)
            if self.now() - self._opened_s >= STOOD_S:
                self._pause_s = FIRST_PAUSE_S
            if session.prompt and session.farewell not in INNOCENT_FAREWELLS:
                self._pause_s = min(self._pause_s, PROMPT_PAUSE_S)
            pause_s = TRIAL_PAUSE_S if on_trial else self._longer_pause()
        else:
            if not session.answered:
                self._broker_was_away()
            if not session.settled:
                self._pause_s = FIRST_PAUSE_S
            pause_s = self._longer_pause()
        self._connect_later(pause_s)


class InjectSession(OwnSession):
    """The connection under an :class:`Injector`."""

    __slots__ = (
        "_begun_s",
        "_heard",
        "_injector",
        "_pong",
        "_refused",
        "_silent_s",
        "answered",
        "farewell",
        "given_up",
        "prompt",
        "settled",
    )

    def __init__(self, own: OwnSessions, injector: Injector) -> None:
        super().__init__(own)
        self._injector = injector
        self._heard = False
        self._refused = False
        self._silent_s = 0.0
        self._pong: Callable[[], None] | None = None
        self.answered = False
        """A CONNACK came, whatever it said."""
        self.farewell: int | None = None
        """The reason code of the broker's DISCONNECT."""
        self._begun_s = 0.0
        self.settled = True
        """It was not ended just to try another version of MQTT."""
        self.prompt = False
        """It was accepted at once."""
        self.given_up = False
        """The broker was silent for so long that the node has ended it."""

    def connection_made(self, wire: Wire) -> None:
        if self.begin(wire, self._injector, MAX_WAITING_BYTES):
            self._begun_s = self.host.now()
            self._later()

    def pause_writing(self) -> None:
        self._injector.may_write(self, False)

    def resume_writing(self) -> None:
        self._injector.may_write(self, True)

    def _later(self) -> None:
        if self.status is SessionStatus.ESTABLISHED:
            self._timer = self.host.call_later(PING_S, self._look)

    def _look(self) -> None:
        if self._heard:
            self._heard = False
            self._silent_s = 0.0
            if not self.greeting:
                self.wire.write(b"\xc0\x00")
        else:
            self._silent_s += PING_S
            if self._silent_s >= ANSWER_S:
                self._injector.heard(False)
            if self._silent_s >= (GREETING_S if self.greeting else SILENT_S) and self._is_gone():
                self.given_up = True
                self.wire.abort()
                return
        self._later()

    def _is_gone(self) -> bool:
        machine_s = None if self.greeting else self.host.silent_s(self.wire)
        return machine_s is None or machine_s >= GONE_S

    def ping(self, answered: Callable[[], None]) -> None:
        """Send a PINGREQ; `answered` is called at the next PINGRESP."""
        self._pong = answered
        if self.status is SessionStatus.ESTABLISHED:
            self.wire.write(b"\xc0\x00")

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._injector.silent:
            self._injector.heard(True)
        super().data_received(data)

    def _frames(self, data: bytes, offsets: Sequence[int]) -> None:
        source = self._injector.source
        if source is not None and self.greeting and len(offsets) > 1:
            # What a session that is resumed is owed may come in one piece with its CONNACK.
            self._frame(data[offsets[0] : offsets[1]])
            offsets = offsets[1:]
        if source is None or not self._injector.is_open(self):
            super()._frames(data, offsets)
            return
        for frame in source.frames(data, offsets):
            if not source.answered(frame):
                self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        head = frame[0]
        if self.greeting:
            self._greeted(frame)
        elif head in (PUBACK, PUBREC, PUBCOMP):
            self._injector.acknowledged(frame)
        elif head == _PINGRESP and self._pong is not None:
            answered, self._pong = self._pong, None
            answered()
        elif head == _DISCONNECT:
            self.farewell = frame[2] if len(frame) > 2 else 0

    def _greeted(self, frame: bytes) -> None:
        connack = self._connack(frame)
        self.answered = connack is not None
        if connack is not None and connack.reason_code == 0:
            self.greeting = False
            self.settled = self._own.settles(self.level)
            if self.settled:
                self.prompt = self.host.now() - self._begun_s <= PROMPT_S
                self._injector.opened(self, connack)
            else:
                self.close()
            return
        older = connack is None or connack.reason_code == _UNSUPPORTED
        if self.level == 4 or not older:
            self._refused = True
            self._own.refused(
                connack.reason_code.name.lower().replace("_", " ") if connack else "no CONNACK"
            )
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        if (
            self.greeting
            and not self._refused
            and not (self.given_up and self._injector.ever_opened)
        ):
            self._own.greeting_fell(self.level)
        cause = "the broker closed the connection" if exc is None else str(exc)
        if self.given_up:
            cause = f"no answer within {self._silent_s:g} s"
        elif self.farewell is not None:
            cause = f"DISCONNECT 0x{self.farewell:02x}"
        self._injector.lost(self, cause)


class _Witness(Session):
    """A connection on which nothing is said: if it goes, the broker went."""

    def __init__(
        self, host: SessionHost, came: Callable[[], None], lost: Callable[[], None]
    ) -> None:
        super().__init__(host, 0.0)
        self._came = came
        self._lost = lost

    @property
    def stands(self) -> bool:
        return self.status is SessionStatus.ESTABLISHED

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, 0)
        self._came()

    def data_received(self, data: bytes) -> None:
        """A broker that speaks before it was spoken to."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._lost()
