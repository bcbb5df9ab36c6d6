"""One connection to another node, from its first byte: the greeting, then packets.

    dialled:  send CONNECT ──▶ (AUTH ──▶ send AUTH) ──▶ CONNACK ──▶ open
    accepted: CONNECT ──▶ (send AUTH ──▶ AUTH) ──▶ send CONNACK ──▶ open

What is sent is gathered and written once per turn, so that a write carries many packets.  A peer
that breaks the rules raises `RemoteProtocolError`; the exchange then closes this connection only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.errors import MalformedPacket, RemoteProtocolError
from isthmus.exchange.hello import (
    NONCE_BYTES,
    Hello,
    LinkRefused,
    auth_packet,
    proof,
    read_auth,
    read_connack,
    read_connect,
    refusal,
    write_connack,
    write_connect,
)
from isthmus.exchange.host import Channel
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import Auth, ConnAck, Connect, Disconnect, Packet
from isthmus.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from isthmus.exchange.link import Link, Peer

__all__ = ["Connection", "Greeting"]

PROOF_BYTES = 32
MAX_GREETING_BYTES = 8_192
MAX_EARLY = 1_000


class Greeting(Enum):
    """How far the greeting has come."""

    CONNECT = "waiting for CONNECT"
    AUTH = "waiting for AUTH"
    CONNACK = "waiting for CONNACK"
    OPEN = "open"
    CLOSED = "closed"


class Connection:
    """A channel to a node, and the greeting over it."""

    __slots__ = (
        "_accept_nonce",
        "_buffer",
        "_dial_nonce",
        "_early",
        "_given_proof",
        "_hello",
        "_max_packet_bytes",
        "_out",
        "_out_bytes",
        "_secret",
        "_token_bytes",
        "_wake",
        "attempt",
        "channel",
        "dialled",
        "dialled_for",
        "heard_s",
        "lane",
        "link",
        "opened_s",
        "peer",
        "state",
    )

    def __init__(
        self,
        channel: Channel,
        hello: Hello,
        *,
        dialled: bool,
        secret: bytes,
        now_s: float,
        max_packet_bytes: int,
        token_bytes: Callable[[int], bytes],
        wake: Callable[[], None],
    ) -> None:
        self.channel = channel
        self.dialled = dialled
        self.state = Greeting.CONNACK if dialled else Greeting.CONNECT
        self.peer: Hello | None = None
        self.link: Link | None = None
        self.dialled_for: Peer | None = None
        self.attempt = 0
        self.lane = hello.lane
        self.opened_s = self.heard_s = now_s
        self._hello = hello
        self._secret = secret
        self._token_bytes = token_bytes
        self._wake = wake
        self._max_packet_bytes = max_packet_bytes
        self._buffer = FrameBuffer()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._dial_nonce = token_bytes(NONCE_BYTES) if secret and dialled else b""
        self._accept_nonce = b""
        self._given_proof = b""
        self._early: list[bytes] = []

    # ---- bytes ---------------------------------------------------------------------------

    def frames(self, data: bytes, now_s: float) -> Iterator[bytes]:
        """The whole packets in what came; raises `RemoteProtocolError` for anything else."""
        self.heard_s = now_s
        data = self._buffer.push(data)
        if not data:
            return
        limit = self._max_packet_bytes if self.state is Greeting.OPEN else MAX_GREETING_BYTES
        offsets = scan(data, limit)
        self._buffer.keep(data[offsets[-1] :])
        for start, stop in pairwise(offsets):
            yield data[start:stop]

    def send(self, data: bytes) -> None:
        """Write `data` at the end of this turn."""
        if not self._out:
            self._wake()
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            if self.state is not Greeting.CLOSED:
                self.channel.write(data)

    def peer_id(self) -> str:
        """The other node's id, empty before its hello."""
        return self.peer.node_id if self.peer is not None else ""

    def keep_early(self, frame: bytes) -> None:
        """Keep a packet that came before the link is complete."""
        if len(self._early) >= MAX_EARLY:
            raise RemoteProtocolError("too many packets before the link is complete")
        self._early.append(frame)

    def take_early(self) -> list[bytes]:
        early, self._early = self._early, []
        return early

    def waiting_bytes(self) -> int:
        return self.channel.buffered_bytes() + self._out_bytes

    # ---- the greeting --------------------------------------------------------------------

    def begin(self, keep_alive_s: int) -> None:
        """Dialled: say hello."""
        self.send(encode(write_connect(self._hello, keep_alive_s, self._dial_nonce), 5))

    def greet(self, frame: bytes, judge: Callable[[Hello], None]) -> bool:
        """Take one packet of the greeting; True when the connection is open.

        `judge` raises `LinkRefused` if the node that says hello must not be linked with.
        """
        packet = decode(frame, 5)
        if self.state is Greeting.CONNECT and isinstance(packet, Connect):
            return self._connect_came(packet, judge)
        if self.state is Greeting.AUTH and isinstance(packet, Auth):
            return self._proof_came(packet)
        if self.state is Greeting.CONNACK and isinstance(packet, Auth):
            self._challenge_came(packet)
            return False
        if self.state is Greeting.CONNACK and isinstance(packet, ConnAck):
            return self._connack_came(packet, judge)
        raise MalformedPacket(f"{type(packet).__name__} while {self.state.value}")

    def _connect_came(self, connect: Connect, judge: Callable[[Hello], None]) -> bool:
        peer, self._dial_nonce = read_connect(connect)
        self.lane = peer.lane
        self._hello = self._hello.for_lane(peer.lane, peer.lanes)
        if bool(self._secret) != bool(self._dial_nonce):
            raise LinkRefused(
                "authentication",
                "it asks for a shared secret, and none was shown"
                if self._secret
                else "a shared secret was shown, and it has none",
            )
        self.peer = peer
        judge(peer)
        if self._secret:
            self._accept_nonce = self._token_bytes(NONCE_BYTES)
            self._reply(auth_packet(self._accept_nonce + self._prove("accept", self._hello)))
            self.state = Greeting.AUTH
            return False
        return self._open()

    def _proof_came(self, auth: Auth) -> bool:
        assert self.peer is not None
        given = read_auth(auth, PROOF_BYTES)
        if not hmac.compare_digest(given, self._prove("dial", self.peer)):
            raise LinkRefused("authentication", "the shared secrets differ")
        return self._open()

    def _challenge_came(self, auth: Auth) -> None:
        if not self._secret:
            raise LinkRefused("authentication", "the other node asks for a shared secret")
        data = read_auth(auth, NONCE_BYTES + PROOF_BYTES)
        self._accept_nonce = data[:NONCE_BYTES]
        self._given_proof = data[NONCE_BYTES:]  # checked when CONNACK says who accepts
        self._reply(auth_packet(self._prove("dial", self._hello)))

    def _connack_came(self, connack: ConnAck, judge: Callable[[Hello], None]) -> bool:
        peer = read_connack(connack)
        if self._secret and not hmac.compare_digest(self._given_proof, self._prove("accept", peer)):
            raise LinkRefused("authentication", "the other node does not know the secret")
        self.peer = peer
        judge(peer)
        self.state = Greeting.OPEN
        return True

    def _open(self) -> bool:
        self.state = Greeting.OPEN
        self._reply(write_connack(self._hello))
        return True

    def _prove(self, role: str, hello: Hello) -> bytes:
        return proof(self._secret, role, hello, self._dial_nonce, self._accept_nonce)

    def _reply(self, packet: Packet) -> None:
        self.send(encode(packet, 5))

    # ---- the end -------------------------------------------------------------------------

    def refuse(self, error: LinkRefused) -> None:
        """Tell the other node why, and close."""
        if self.state in (Greeting.CONNECT, Greeting.AUTH):
            self._reply(refusal(error, self._hello))
        self.close()

    def say_goodbye(self, code: ReasonCode) -> None:
        if self.state is Greeting.OPEN:
            self._reply(Disconnect(code))
        self.close()

    def close(self) -> None:
        if self.state is not Greeting.CLOSED:
            self.flush()
            self.state = Greeting.CLOSED
            self.channel.close()
