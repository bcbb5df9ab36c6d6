"""One connection to another node, from its first byte: the greeting, then packets.

Its state is that of `isthmus.exchange.link.life.GREETING`.  An accepted connection whose other end
has proved itself is *judged*: `Links` calls `accept` or `refuse`, at once or when it has found out
more.

What is sent is gathered and written once per turn, so that a write carries many packets.  A node
that breaks the rules raises `RemoteProtocolError`; the exchange then closes this connection only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.cooperation.link_rules import LinkRules
from isthmus.errors import MalformedPacket
from isthmus.exchange.host import Channel
from isthmus.exchange.link.hello import (
    BEFORE_PROOF,
    NONCE_BYTES,
    PROOF_BYTES,
    Hello,
    LinkRefused,
    auth_packet,
    goodbye,
    proof,
    read_auth,
    read_connack,
    read_connect,
    refusal,
    write_connack,
    write_connect,
)
from isthmus.exchange.link.life import (
    GREETING,
    GreetingAction,
    GreetingEvent,
    GreetingState,
)
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, frame_length, scan
from isthmus.mqtt.packets import Auth, ConnAck, Connect, Disconnect, Packet
from isthmus.mqtt.reason_codes import ReasonCode
from isthmus.tables import step

if TYPE_CHECKING:
    from isthmus.exchange.link.dialing import Peer
    from isthmus.exchange.link.link import Link

__all__ = ["Connection"]

MAX_GREETING_BYTES = 8_192
MAX_EARLY = 1_000
MAX_EARLY_BYTES = 1 << 20
PINGREQ = b"\xc0\x00"
_BEFORE_PROOF = (GreetingState.CONNECT, GreetingState.AUTH)
_TOLD = frozenset(("same-id", "removed"))
"""Causes for which a node that has accepted this one must not wait for it."""


class Connection:
    """A channel to a node, and the greeting over it."""

    __slots__ = (
        "_accept_nonce",
        "_buffer",
        "_dial_nonce",
        "_early",
        "_early_bytes",
        "_hello",
        "_key",
        "_max_packet_bytes",
        "_now",
        "_out",
        "_out_bytes",
        "_received_bytes",
        "_timed",
        "_timed_s",
        "_token_bytes",
        "_wake",
        "attempt",
        "backlog",
        "channel",
        "dialed",
        "dialed_for",
        "heard_s",
        "lane",
        "link",
        "opened_s",
        "other",
        "pings",
        "pongs",
        "state",
    )

    def __init__(
        self,
        channel: Channel,
        hello: Hello,
        *,
        dialed: bool,
        key: bytes,
        now: Callable[[], float],
        max_packet_bytes: int,
        token_bytes: Callable[[int], bytes],
        wake: Callable[[Connection], None],
    ) -> None:
        self.channel = channel
        self.dialed = dialed
        self.state = GreetingState.CONNACK if dialed else GreetingState.CONNECT
        self.other: Hello | None = None
        self.link: Link | None = None
        self.dialed_for: Peer | None = None
        self.attempt = 0
        self.backlog: list[bytes] | None = None
        """Packets that wait until the neighbor may be heard again."""
        self.lane = hello.lane
        self._now = now
        self.opened_s = self.heard_s = now()
        self.pings = self.pongs = 0
        """PINGREQs sent, and PINGRESPs that came."""
        self._timed, self._timed_s = 0, 0.0
        """Which PINGREQ is timed, if any, and when it was sent."""
        self._hello = hello
        self._key = key
        self._token_bytes = token_bytes
        self._wake = wake
        self._max_packet_bytes = max_packet_bytes
        self._buffer = FrameBuffer()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._dial_nonce = token_bytes(NONCE_BYTES) if key and dialed else b""
        self._accept_nonce = b""
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._received_bytes = 0
        """Since it was opened, but for the greeting."""

    def join(self, link: Link) -> None:
        """It is a lane of `link` from now on; what is still to be written is of the greeting."""
        self.link = link
        link.received_bytes += self._received_bytes
        link.sent_bytes -= self._out_bytes

    # ---- bytes ---------------------------------------------------------------------------

    def frames(self, data: bytes, now_s: float) -> list[bytes]:
        """The whole packets in what came; raises `RemoteProtocolError` for anything else."""
        self.heard_s = now_s
        self._received_bytes += len(data)
        if self.link is not None:
            self.link.received_bytes += len(data)
        data = self._buffer.push(data)
        if not data:
            return []
        offsets = scan(data, self._limit(data))
        self._buffer.keep(data[offsets[-1] :])
        return [data[start:stop] for start, stop in pairwise(offsets)]

    def _limit(self, data: bytes) -> int:
        """How long a packet may be: in the greeting short, but messages may come with a CONNACK."""
        if self.state is GreetingState.OPEN or (
            self.state is GreetingState.CONNACK and frame_length(data, 0) <= MAX_GREETING_BYTES
        ):
            return self._max_packet_bytes
        return MAX_GREETING_BYTES

    def send(self, data: bytes) -> None:
        """Write `data` at the end of this turn."""
        if not self._out:
            self._wake(self)
        self._out.append(data)
        self._out_bytes += len(data)

    def send_all(self, packets: Sequence[bytes], size: int) -> None:
        """The same with several, of `size` bytes together."""
        if not self._out:
            self._wake(self)
        self._out.extend(packets)
        self._out_bytes += size

    def flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            if self.state is not GreetingState.CLOSED:
                self.channel.write(data)
                if self.link is not None:
                    self.link.sent_bytes += len(data)

    def ping(self) -> int:
        """Ask whether the other end is there; it has answered when `pongs` is the result."""
        self.send(PINGREQ)
        self.pings += 1
        if self.link is not None:
            self.link.control_sent_bytes += len(PINGREQ)
        if self._timed <= self.pongs:
            self._timed, self._timed_s = self.pings, self._now()
        return self.pings

    def ponged(self) -> None:
        """A PINGRESP came."""
        self.pongs += 1
        if self.link is not None and self.pongs == self._timed:
            self.link.took(self._now() - self._timed_s)

    @property
    def host(self) -> str:
        """Where the other end is, without its port."""
        return self.channel.remote.rpartition(":")[0] or self.channel.remote

    @property
    def spoke(self) -> bool:
        """Whether the other end has said anything that made sense."""
        return self.state is not GreetingState.CONNECT

    def other_id(self) -> str:
        """The other node's id, empty before its hello."""
        return self.other.node_id if self.other is not None else ""

    def keep_early(self, frame: bytes) -> bool:
        """Keep a packet that came before the link is complete; whether there may be more."""
        self._early.append(frame)
        self._early_bytes += len(frame)
        return len(self._early) < MAX_EARLY and self._early_bytes < MAX_EARLY_BYTES

    def take_early(self) -> list[bytes]:
        early, self._early, self._early_bytes = self._early, [], 0
        return early

    def waiting_bytes(self) -> int:
        return self.channel.buffered_bytes() + self._out_bytes

    # ---- the greeting --------------------------------------------------------------------

    def begin(self, keep_alive_s: int) -> None:
        """Dialed: say hello."""
        self.send(encode(write_connect(self._hello, keep_alive_s, self._dial_nonce), 5))

    def happens(self, event: GreetingEvent) -> None:
        self.state, actions = step(GREETING, self.state, event)
        for action in actions:
            self._reply(self._packet_for(action))

    def _packet_for(self, action: GreetingAction) -> Packet:
        if action is GreetingAction.CHALLENGE:
            self._accept_nonce = self._token_bytes(NONCE_BYTES)
            return auth_packet(self._accept_nonce)
        if action is GreetingAction.PROVE:
            return auth_packet(self._prove("dial", self._hello, None))
        return write_connack(self._hello, self._own_proof("accept"))

    def greet(self, frame: bytes) -> bool:
        """Take one packet of the greeting; True when the other node has proved who it is.

        A connection that was dialed is open then; one that was accepted is to be judged.
        """
        self._received_bytes -= len(frame)
        self.happens(self._read(decode(frame, 5)))
        return self.state is GreetingState.JUDGED or self.state is GreetingState.OPEN

    def _read(self, packet: Packet) -> GreetingEvent:
        """What a packet of the greeting means; raises `RemoteProtocolError` if it is wrong."""
        state = self.state
        if state is GreetingState.CONNECT and isinstance(packet, Connect):
            return self._connect_came(packet)
        if state is GreetingState.AUTH and isinstance(packet, Auth):
            return self._proof_came(packet)
        if state is GreetingState.CONNACK and isinstance(packet, Auth):
            return self._challenge_came(packet)
        if state is GreetingState.CONNACK and isinstance(packet, ConnAck):
            return self._connack_came(packet)
        raise MalformedPacket(f"{type(packet).__name__} while {state.value}")

    def _connect_came(self, connect: Connect) -> GreetingEvent:
        other, self._dial_nonce = read_connect(connect)
        self.lane = other.lane
        self._hello = self._hello.for_lane(other.lane, other.lanes)
        if bool(self._key) != bool(self._dial_nonce):
            raise LinkRefused(
                "authentication",
                "it asks for a shared secret, and none was shown"
                if self._key
                else "a shared secret was shown, and it has none",
            )
        self.other = other
        return GreetingEvent.ASKED_IN if self._key else GreetingEvent.PROVED

    def _proof_came(self, auth: Auth) -> GreetingEvent:
        assert self.other is not None
        given = read_auth(auth, PROOF_BYTES)
        if not hmac.compare_digest(given, self._prove("dial", self.other, None)):
            raise LinkRefused("authentication", "the shared secrets differ")
        return GreetingEvent.PROVED

    def _challenge_came(self, auth: Auth) -> GreetingEvent:
        if not self._key:
            raise LinkRefused("authentication", "the other node asks for a shared secret")
        if self._accept_nonce:
            raise MalformedPacket("a second AUTH")
        self._accept_nonce = read_auth(auth, NONCE_BYTES)
        return GreetingEvent.CHALLENGED

    def _connack_came(self, connack: ConnAck) -> GreetingEvent:
        try:
            other, given = read_connack(connack)
        except LinkRefused as error:
            self._check_refusal(error)
            raise
        if self._key and not self._proved(given, "accept", other):
            raise LinkRefused("authentication", "the other node does not know the secret")
        self.other = other
        return GreetingEvent.WELCOMED

    def _check_refusal(self, error: LinkRefused) -> None:
        """Of who does not know the secret, a refusal is just one."""
        if not self._key or error.cause in BEFORE_PROOF:
            return
        if error.by is None or not self._proved(error.proof, f"refuse {error.cause}", error.by):
            error.cause, error.by = "refused", None

    def _proved(self, given: bytes, role: str, accept: Hello) -> bool:
        return bool(self._accept_nonce) and hmac.compare_digest(
            given, self._prove(role, self._hello, accept)
        )

    @property
    def rules(self) -> LinkRules:
        """What this node says, or has said, of what may cross the link."""
        return self._hello.rules

    def say_rules(self, rules: LinkRules) -> None:
        """Before it is accepted: now it is known who is there."""
        self._hello = replace(self._hello, rules=rules)

    def accept(self) -> None:
        """The other node may come in."""
        self.happens(GreetingEvent.LET_IN)

    def _own_proof(self, role: str) -> bytes:
        if not self._key or self.other is None or self.state in _BEFORE_PROOF:
            return b""
        return self._prove(role, self.other, self._hello)

    def _prove(self, role: str, dial: Hello, accept: Hello | None) -> bytes:
        return proof(self._key, role, dial, accept, self._dial_nonce + self._accept_nonce)

    def _reply(self, packet: Packet) -> None:
        self.send(encode(packet, 5))

    # ---- the end -------------------------------------------------------------------------

    def refuse(self, error: LinkRefused) -> None:
        """Tell the other node why, and close."""
        if self.state in _BEFORE_PROOF or self.state is GreetingState.JUDGED:
            proof = self._own_proof(f"refuse {error.cause}")
            self._reply(refusal(error, self._hello, proof))
        elif self.state is GreetingState.OPEN and error.cause in _TOLD:
            self._reply(goodbye(error))  # for other causes it is enough to be cut off
        self.close()

    def say_goodbye(self, code: ReasonCode) -> None:
        if self.state is GreetingState.OPEN:
            self._reply(Disconnect(code))
        self.close()

    def abort(self) -> None:
        self.channel.abort()

    def close(self) -> None:
        if self.state is not GreetingState.CLOSED:
            self.flush()
            self.happens(GreetingEvent.ENDED)
            self.channel.close()
