"""How two nodes greet each other when a connection between them is opened.

    dialling node                                   accepting node
    CONNECT (hello [, method, nonce]) ───────────▶
                         ◀─────── AUTH (nonce, proof)                only with a shared secret
    AUTH (proof) ────────────────────────────────▶                   only with a shared secret
                         ◀─────── CONNACK (hello) or CONNACK (refusal with its cause)

A hello is the client id ``$isthmus/<node id>`` and user properties: the version of this wire
format, the incarnation (new at every start of a node), the algorithm, and which of how many
connections of the link this one is.  Both sides must speak the same version and the same algorithm.

With a shared secret both sides prove that they know it by an HMAC over both nonces, both ids and
their role, so that neither the secret nor anything reusable crosses the wire; it is MQTT 5's
enhanced authentication (§4.12) with the method ``isthmus-hmac-sha256``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, replace

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.packets import Auth, ConnAck, Connect
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "AUTH_METHOD",
    "NONCE_BYTES",
    "WIRE_VERSION",
    "Hello",
    "LinkRefused",
    "auth_packet",
    "is_link_connect",
    "proof",
    "read_auth",
    "read_connack",
    "read_connect",
    "refusal",
    "write_connack",
    "write_connect",
]

WIRE_VERSION = "1"
AUTH_METHOD = "isthmus-hmac-sha256"
NONCE_BYTES = 16
CLIENT_ID_PREFIX = "$isthmus/"
MAX_LANES = 64
CAUSES = frozenset(
    (
        "algorithm",
        "authentication",
        "bad-hello",
        "bad-lane",
        "duplicate",
        "not-a-node",
        "removed",
        "same-id",
        "stopping",
        "version",
    )
)
"""Why a link can be refused."""

_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_INCARNATION = re.compile(r"[0-9a-f]{1,32}")


class LinkRefused(RemoteProtocolError):
    """A connection that must not become part of a link; `cause` is counted and logged."""

    def __init__(
        self, cause: str, problem: str, reason_code: int = ReasonCode.NOT_AUTHORIZED
    ) -> None:
        super().__init__(problem, reason_code=reason_code)
        self.cause = cause
        self.node_id = ""
        """Who refused, if it was the other node."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says of itself and of this connection."""

    node_id: str
    incarnation: str
    algorithm: str
    lane: int = 0
    lanes: int = 1
    keeps_state: bool = False
    """Whether the node knows its neighbours after a restart, so that it is worth waiting for."""

    def for_lane(self, lane: int, lanes: int) -> Hello:
        return replace(self, lane=lane, lanes=lanes)

    def user_properties(self) -> tuple[tuple[str, str], ...]:
        return (
            ("isthmus", WIRE_VERSION),
            ("node", self.node_id),
            ("incarnation", self.incarnation),
            ("algorithm", self.algorithm),
            ("lane", f"{self.lane}/{self.lanes}"),
            ("state", "1" if self.keeps_state else "0"),
        )


def is_link_connect(client_id: str) -> bool:
    """Whether a CONNECT with this client id comes from a node."""
    return client_id.startswith(CLIENT_ID_PREFIX)


def write_connect(hello: Hello, keep_alive_s: int, nonce: bytes) -> Connect:
    """`nonce` is empty without a shared secret."""
    return Connect(
        client_id=CLIENT_ID_PREFIX + hello.node_id,
        clean_start=True,
        keep_alive=keep_alive_s,
        properties=Properties(
            authentication_method=AUTH_METHOD if nonce else None,
            authentication_data=nonce or None,
            user_properties=hello.user_properties(),
        ),
        protocol_level=5,
    )


def read_connect(connect: Connect) -> tuple[Hello, bytes]:
    """The hello and the nonce (empty if there is none); raises `LinkRefused`."""
    if not is_link_connect(connect.client_id):
        raise LinkRefused("not-a-node", f"client id {connect.client_id!r} is not a node's")
    hello = _read_hello(connect.properties)
    if connect.client_id != CLIENT_ID_PREFIX + hello.node_id:
        raise LinkRefused("bad-hello", "client id and node id differ")
    return hello, _read_nonce(connect.properties)


def write_connack(hello: Hello) -> ConnAck:
    return ConnAck(
        reason_code=ReasonCode.SUCCESS,
        properties=Properties(user_properties=hello.user_properties()),
    )


def refusal(error: LinkRefused, hello: Hello) -> ConnAck:
    return ConnAck(
        reason_code=ReasonCode(error.reason_code),
        properties=Properties(
            reason_string=error.problem,
            user_properties=(("cause", error.cause), ("node", hello.node_id)),
        ),
    )


def read_connack(connack: ConnAck) -> Hello:
    """The hello of the accepting node; raises `LinkRefused` with its cause if it refused."""
    if connack.reason_code != ReasonCode.SUCCESS:
        given = dict(connack.properties.user_properties)
        cause = given.get("cause", "")
        error = LinkRefused(
            cause if cause in CAUSES else "refused",  # it becomes a metric's label
            "the other node says: "
            + (connack.properties.reason_string or f"reason code 0x{int(connack.reason_code):02x}"),
            int(connack.reason_code),
        )
        error.node_id = given.get("node", "")
        raise error
    return _read_hello(connack.properties)


def _read_hello(properties: Properties) -> Hello:
    given = dict(properties.user_properties)
    version = given.get("isthmus")
    if version is None:
        raise LinkRefused(
            "not-a-node", "that is not a node's [listen] link but MQTT of some other kind"
        )
    if version != WIRE_VERSION:
        raise LinkRefused(
            "version",
            f"wire format {version}; this node speaks {WIRE_VERSION}",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    lane = re.fullmatch(r"(\d{1,2})/(\d{1,2})", given.get("lane", ""))
    node_id, incarnation = given.get("node", ""), given.get("incarnation", "")
    if (
        lane is None
        or not int(lane[1]) < int(lane[2]) <= MAX_LANES
        or not _NODE_ID.fullmatch(node_id)
        or not _INCARNATION.fullmatch(incarnation)
    ):
        raise LinkRefused("bad-hello", "a hello that cannot be read", ReasonCode.PROTOCOL_ERROR)
    return Hello(
        node_id,
        incarnation,
        given.get("algorithm", ""),
        int(lane[1]),
        int(lane[2]),
        given.get("state") == "1",
    )


def _read_nonce(properties: Properties) -> bytes:
    if properties.authentication_method is None:
        return b""
    data = properties.authentication_data or b""
    if properties.authentication_method != AUTH_METHOD or len(data) != NONCE_BYTES:
        raise LinkRefused(
            "authentication",
            f"authentication method {properties.authentication_method!r}",
            ReasonCode.BAD_AUTHENTICATION_METHOD,
        )
    return data


# ---- the shared secret -------------------------------------------------------------------


def proof(secret: bytes, role: str, hello: Hello, dial_nonce: bytes, accept_nonce: bytes) -> bytes:
    """What only a holder of `secret` can compute for this very handshake."""
    said = "\n".join((role, WIRE_VERSION, hello.node_id, hello.incarnation, str(hello.lane)))
    return hmac.digest(secret, said.encode() + dial_nonce + accept_nonce, hashlib.sha256)


def auth_packet(data: bytes) -> Auth:
    return Auth(
        reason_code=ReasonCode.CONTINUE_AUTHENTICATION,
        properties=Properties(authentication_method=AUTH_METHOD, authentication_data=data),
    )


def read_auth(auth: Auth, size: int) -> bytes:
    data = auth.properties.authentication_data or b""
    if auth.properties.authentication_method != AUTH_METHOD or len(data) != size:
        raise LinkRefused("authentication", "an AUTH that cannot be read")
    return data
