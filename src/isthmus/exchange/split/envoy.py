"""A subscription in the name of a client that is away and has a session: for `moving`.

It says CONNECT as the client last did, SUBSCRIBE, acknowledges what is retained and comes for that,
and leaves; the session stays, and what is published there from now on waits for the client.  The
login is the client's own, of its last connection with this node; that is kept in memory alone, so
after a restart of the node it is the node's, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from isthmus.errors import ProtocolError
from isthmus.exchange.session import Session, Wire
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from isthmus.exchange.host import Cancellable
    from isthmus.exchange.session import SessionHost
    from isthmus.exchange.split.brokers import Brokers
    from isthmus.exchange.split.kept import KeptSession

__all__ = ["Envoy"]

ANSWER_S: Final = 5.0
GRACE_S: Final = 0.3
"""For retained messages that come for the subscription; MQTT 5 asks for none."""
FILTERS_AT_ONCE: Final = 100
MAX_BUFFER_BYTES: Final = 1 << 20


class Envoy:
    """For one client, at one broker; `back` is told what went wrong, or nothing."""

    def __init__(
        self,
        brokers: Brokers,
        client_id: str,
        kept: KeptSession,
        name: str,
        back: Callable[[Envoy, str], None],
    ) -> None:
        self._host = brokers.sessions
        self._brokers = brokers
        self.client_id = client_id
        self._kept = kept
        self.name = name
        self._back = back
        self._session: _EnvoySession | None = None
        self._over = False
        self._timer: Cancellable | None = None

    def go(self) -> None:
        connect = self._kept.connect
        if connect is not None and self._kept.logged_in and connect.username is None:
            connect = self._with_own_login(connect)
        if connect is None:
            self._host.call_soon(lambda: self.over("its login is not known since the last start"))
            return
        expiry = connect.properties.session_expiry_interval
        properties = NO_PROPERTIES
        if connect.protocol_level == 5:
            properties = Properties(session_expiry_interval=expiry)
        asked = replace(
            connect,
            client_id=self.client_id,
            clean_start=False,
            will=None,
            properties=properties,
        )
        session = self._session = _EnvoySession(self._host, self, asked)
        self._timer = self._host.call_later(ANSWER_S, self._too_late)
        self._brokers.connect(self.name, session, lambda cause: self.over(cause or "unreachable"))

    def _with_own_login(self, connect: Connect) -> Connect | None:
        """Of whom only the node's last life knew the login."""
        username, password = self._brokers.login_at(self.name)
        if username is None:
            return None
        return replace(connect, username=username, password=password)

    def _too_late(self) -> None:
        self.over("no answer")

    def is_back(self) -> bool:
        """Whether the client itself is there, or is coming."""
        return self._over or any(
            split.client_id == self.client_id for split in self._brokers.splits
        )

    def subscribe(self, session: _EnvoySession) -> None:
        kept = self._kept
        wanted = kept.wanted.get(self.name, {})
        asked = [wanted[each] for each in kept.untold.get(self.name, ()) if each in wanted]
        kept.asked.setdefault(self.name, set()).update(e.subscription.topic_filter for e in asked)
        by_identifier: dict[int, list[Subscription]] = {}
        for each in asked:
            by_identifier.setdefault(each.identifier, []).append(
                replace(each.subscription, retain_handling=2)
                if session.level == 5
                else each.subscription
            )
        for identifier, theirs in by_identifier.items():
            properties = (
                Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
            )
            for at in range(0, len(theirs), FILTERS_AT_ONCE):
                session.waits += 1
                some = tuple(theirs[at : at + FILTERS_AT_ONCE])
                session.say(Subscribe(65_535 - session.waits, some, properties))
        if not session.waits:
            self.granted()

    def granted(self) -> None:
        """Nothing is to be told any more; what is retained is on its way, in MQTT 3.1.1.

        What comes too late for the envoy comes to the client; it stays `quiet` until then.
        """
        self._kept.untold.pop(self.name, None)
        self._kept.asked.pop(self.name, None)
        self._kept.brokers[self.name] = None
        assert self._session is not None
        self._session.say(PingReq())

    def has_answered(self) -> None:
        """It has said what it had to say by then, or nearly."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._host.call_later(GRACE_S, lambda: self.over(""))

    def over(self, problem: str) -> None:
        if self._over:
            return
        self.close()
        self._back(self, problem)

    def close(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.leave()


class _EnvoySession(Session):
    def __init__(self, host: SessionHost, envoy: Envoy, connect: Connect) -> None:
        super().__init__(host, 1.0)
        self._envoy = envoy
        self._connect = connect
        self.level = connect.protocol_level
        self._buffer = FrameBuffer()
        self._greeting = True
        self._stands = False
        self.waits = 0
        """For so many SUBACKs."""

    def connection_made(self, wire: Wire) -> None:
        self.established(wire, MAX_BUFFER_BYTES)
        if self._envoy.is_back():
            wire.abort()  # rather than take the client's own session over
            return
        self._stands = True
        self.say(self._connect)

    def say(
        self, packet: Connect | Subscribe | PingReq | PubAck | PubRec | PubComp | Disconnect
    ) -> None:
        if self._stands:
            self.wire.write(encode(packet, self.level))

    def leave(self) -> None:
        if self._stands:
            self.say(Disconnect())
            self._stands = False
            self.close()

    def data_received(self, data: bytes) -> None:
        if not (data := self._buffer.push(data)):
            return
        try:
            offsets = scan(data)
            for start, stop in pairwise(offsets):
                self._frame(data[start:stop])
            self._buffer.keep(data[offsets[-1] :])
        except ProtocolError as error:
            self._envoy.over(f"the broker sent bad bytes: {error}")

    def _frame(self, frame: bytes) -> None:
        if not self._stands:
            return
        packet = decode(frame, self.level)
        match packet:
            case ConnAck(reason_code=code) if self._greeting:
                self._greeting = False
                if code:
                    self._envoy.over(f"the broker refuses the client (0x{code:02x})")
                else:
                    self._envoy.subscribe(self)
            case SubAck(reason_codes=codes):
                self.waits -= 1
                if max(codes, default=0) >= 0x80:
                    self._envoy.over("the broker refuses the subscription")
                elif not self.waits:
                    self._envoy.granted()
            case Publish(qos=qos, packet_id=packet_id, retain=True) if qos and self.level < 5:
                # MQTT 5 was told to send none; anything else is the client's.
                self.say((PubAck, PubRec)[qos - 1](packet_id))
            case PubRel(packet_id=packet_id):
                self.say(PubComp(packet_id))
            case PingResp():
                self._envoy.has_answered()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()
        self._stands = False
        self._envoy.over("the broker closed the connection")
