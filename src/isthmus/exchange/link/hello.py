"""How two nodes greet each other when a connection between them is opened.

    dialing node                                   accepting node
    CONNECT (hello [, method, nonce]) ───────────▶
                         ◀─────── AUTH (nonce)                       only with a shared secret
    AUTH (proof) ────────────────────────────────▶                   only with a shared secret
                         ◀─────── CONNACK (hello [, proof]) or CONNACK (refusal with its cause)

A hello is the client id ``$isthmus/<node id>``, MQTT's Maximum Packet Size and user properties: the
version of this wire format, the incarnation (new at every start of a node), the algorithm, the
topology that it wants and how long its labels may be, what may cross the link as far as this node
says (`isthmus.cooperation.link_rules`), and which of how many connections of the link this one is.
Both sides must speak the same version and have the same algorithm, with the same
topology and labels.

With a shared secret both sides prove that they know it by an HMAC over both nonces, their role and
all that was said in the hellos, so that neither the secret nor anything reusable crosses the wire;
it is MQTT 5's enhanced authentication (§4.12) with the method ``isthmus-hmac-sha256``.  The
dialing side proves itself first: whoever connects and does not know the secret gets a nonce and a
refusal, and nothing that was made with the secret.  Whoever *is connected to* gets one proof to
guess at, so the key is derived from the secret by scrypt, which makes each guess dear.

Invariant: before the dialing node has proved itself it is judged by its hello's form alone; what
depends on this node (its links, its algorithm) is decided and told afterwards, and a refusal is
then proved like an acceptance.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.packets import Auth, ConnAck, Connect, Disconnect
from isthmus.mqtt.primitives import ReadLimits
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = [
    "AUTH_METHOD",
    "CONTROL_LIMITS",
    "NONCE_BYTES",
    "PROOF_BYTES",
    "WIRE_VERSION",
    "Hello",
    "LinkRefused",
    "auth_packet",
    "cause_of_goodbye",
    "goodbye",
    "is_link_connect",
    "link_key",
    "proof",
    "read_auth",
    "read_connack",
    "read_connect",
    "refusal",
    "write_connack",
    "write_connect",
]

WIRE_VERSION = "5"
AUTH_METHOD = "isthmus-hmac-sha256"
NONCE_BYTES = 16
PROOF_BYTES = 32
CLIENT_ID_PREFIX = "$isthmus/"
MAX_LANES = 64
MAX_PACKET_BYTES = 268_435_460
CONTROL_LIMITS = ReadLimits(property_bytes=8_192)
"""What a control packet may have of properties: reading them takes time."""
BEFORE_PROOF = frozenset(("authentication", "bad-hello", "not-a-node", "version"))
"""Causes for which a node is refused before it has proved itself, so that nobody proves them."""
CAUSES = BEFORE_PROOF | {
    "algorithm",
    "bad-lane",
    "duplicate",
    "labels",
    "removed",
    "retained",
    "rules",
    "same-id",
    "stopping",
    "too-many-links",
    "topology",
}
"""Why a link can be refused."""

_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS = re.compile(r"(?:(?:[A-Za-z0-9._%-]{1,255}|\[[0-9A-Za-z:.%-]{1,253}\]):[0-9]{1,5})?")
_LABELS = re.compile(r"[0-9]{1,3}")
_INCARNATION = re.compile(r"[0-9a-f]{1,32}")


class LinkRefused(RemoteProtocolError):
    """A connection that must not become part of a link; `cause` is counted and logged."""

    def __init__(
        self, cause: str, problem: str, reason_code: int = ReasonCode.NOT_AUTHORIZED
    ) -> None:
        super().__init__(problem, reason_code=reason_code)
        self.cause = cause
        self.by: Hello | None = None
        """Who refused, if it was the other node and it said so."""
        self.proof = b""

    @property
    def node_id(self) -> str:
        """Who refused, if it was the other node."""
        return self.by.node_id if self.by is not None else ""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says of itself and of this connection."""

    node_id: str
    incarnation: str
    algorithm: str
    lane: int = 0
    lanes: int = 1
    keeps_state: bool = False
    """Whether the node knows its neighbors after a restart, so that it is worth waiting for."""
    max_packet_bytes: int = MAX_PACKET_BYTES
    """The longest PUBLISH of a client that this node takes, without the property ``$i``."""
    topology: str = "tree"
    """What the algorithm wants."""
    address: str = ""
    """Where other nodes can dial this one; empty if it does not know."""
    max_label_bytes: int = 0
    """How long the labels of the algorithm's messages may be."""
    rules: LinkRules = NO_RULES
    """What may cross this link, as far as the node says."""
    retained: str = "everywhere"
    """Where retained messages go: ``everywhere``, or ``routed`` to where they are wanted."""

    def for_lane(self, lane: int, lanes: int) -> Hello:
        return replace(self, lane=lane, lanes=lanes)

    def user_properties(self) -> tuple[tuple[str, str], ...]:
        return (
            ("isthmus", WIRE_VERSION),
            ("node", self.node_id),
            ("incarnation", self.incarnation),
            ("algorithm", self.algorithm),
            ("topology", self.topology),
            ("labels", str(self.max_label_bytes)),
            ("address", self.address),
            ("lane", f"{self.lane}/{self.lanes}"),
            ("state", "1" if self.keeps_state else "0"),
            ("retained", self.retained),
            ("rules", self.rules.text()),
        )

    def said(self) -> list[object]:
        """All of it, for a proof."""
        return [self.max_packet_bytes, *self.user_properties()]


def is_link_connect(client_id: str) -> bool:
    """Whether a CONNECT with this client id comes from a node."""
    return client_id.startswith(CLIENT_ID_PREFIX)


def write_connect(hello: Hello, keep_alive_s: int, nonce: bytes) -> Connect:
    """`nonce` is empty without a shared secret."""
    return Connect(
        client_id=CLIENT_ID_PREFIX + hello.node_id,
        keep_alive=keep_alive_s,
        properties=_properties(hello, nonce),
    )


def read_connect(connect: Connect) -> tuple[Hello, bytes]:
    """The hello and the nonce (empty if there is none); raises `LinkRefused`."""
    if not is_link_connect(connect.client_id):
        raise LinkRefused("not-a-node", f"client id {connect.client_id!r} is not a node's")
    hello = _read_hello(connect.properties)
    if connect.client_id != CLIENT_ID_PREFIX + hello.node_id:
        raise LinkRefused("bad-hello", "client id and node id differ")
    return hello, _read_nonce(connect.properties)


def write_connack(hello: Hello, proof: bytes) -> ConnAck:
    """`proof` is empty without a shared secret."""
    return ConnAck(properties=_properties(hello, proof))


def refusal(error: LinkRefused, hello: Hello, proof: bytes) -> ConnAck:
    """`proof` is empty if the dialing node has not proved itself, or there is no secret."""
    said = replace(
        _properties(hello, proof),
        reason_string=error.problem,
        user_properties=(("cause", error.cause), *hello.user_properties()),
    )
    return ConnAck(reason_code=ReasonCode(error.reason_code), properties=said)


def _properties(hello: Hello, authentication: bytes) -> Properties:
    return Properties(
        authentication_method=AUTH_METHOD if authentication else None,
        authentication_data=authentication or None,
        maximum_packet_size=hello.max_packet_bytes,
        user_properties=hello.user_properties(),
    )


def read_connack(connack: ConnAck) -> tuple[Hello, bytes]:
    """The accepting node's hello and proof; raises `LinkRefused` with its cause if it refused."""
    properties = connack.properties
    proved = properties.authentication_method == AUTH_METHOD
    proof = (properties.authentication_data or b"") if proved else b""
    if connack.reason_code == ReasonCode.SUCCESS:
        return _read_hello(properties), proof
    cause = dict(properties.user_properties).get("cause", "")
    error = LinkRefused(
        cause if cause in CAUSES else "refused",  # it becomes a metric's label
        "the other node says: "
        + (properties.reason_string or f"reason code 0x{int(connack.reason_code):02x}"),
        int(connack.reason_code),
    )
    try:
        error.by, error.proof = _read_hello(properties), proof
    except LinkRefused:
        pass  # of another version, or not a node's: there is nothing to know about it
    raise error


def goodbye(error: LinkRefused) -> Disconnect:
    """How a dialing node refuses: it has been accepted already."""
    return Disconnect(
        ReasonCode(error.reason_code),
        properties=Properties(
            reason_string=error.problem, user_properties=(("cause", error.cause),)
        ),
    )


def cause_of_goodbye(disconnect: Disconnect) -> str:
    cause = dict(disconnect.properties.user_properties).get("cause", "")
    return cause if cause in CAUSES else ""


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
            f"wire format {version:.20}; this node speaks {WIRE_VERSION}",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    lane = re.fullmatch(r"(\d{1,2})/(\d{1,2})", given.get("lane", ""))
    node_id, incarnation = given.get("node", ""), given.get("incarnation", "")
    if (
        lane is None
        or not int(lane[1]) < int(lane[2]) <= MAX_LANES
        or not _NODE_ID.fullmatch(node_id)
        or not _INCARNATION.fullmatch(incarnation)
        or not _ADDRESS.fullmatch(given.get("address", ""))
        or not _LABELS.fullmatch(given.get("labels", ""))
    ):
        raise LinkRefused("bad-hello", "a hello that cannot be read", ReasonCode.PROTOCOL_ERROR)
    try:
        rules = LinkRules.parse(given.get("rules", ""))
    except ValueError as error:
        raise LinkRefused(
            "bad-hello", f"rules that cannot be read: {error}", ReasonCode.PROTOCOL_ERROR
        ) from None
    return Hello(
        node_id,
        incarnation,
        given.get("algorithm", ""),
        int(lane[1]),
        int(lane[2]),
        given.get("state") == "1",
        properties.maximum_packet_size or MAX_PACKET_BYTES,
        given.get("topology", ""),
        given.get("address", ""),
        int(given["labels"]),
        rules,
        given.get("retained", ""),
    )


def _read_nonce(properties: Properties) -> bytes:
    if properties.authentication_method is None:
        return b""
    data = properties.authentication_data or b""
    if properties.authentication_method != AUTH_METHOD or len(data) != NONCE_BYTES:
        raise LinkRefused(
            "authentication",
            f"authentication method {properties.authentication_method!r:.80}",
            ReasonCode.BAD_AUTHENTICATION_METHOD,
        )
    return data


# ---- the shared secret -------------------------------------------------------------------


@lru_cache(maxsize=8)
def link_key(secret: bytes) -> bytes:
    """What proofs are made with; empty without a secret.

    The salt is the same everywhere, because all nodes must come to the same key; it keeps tables
    that were made for something else from being of use.
    """
    if not secret:
        return b""
    return hashlib.scrypt(secret, salt=b"isthmus link 5", n=1 << 14, r=8, p=1, dklen=32)


def proof(key: bytes, role: str, dial: Hello, accept: Hello | None, nonces: bytes) -> bytes:
    """What only a holder of the secret can compute for this very handshake.

    `nonces`: the dialing node's and then the accepting node's.
    """
    said = [role, dial.said(), accept.said() if accept is not None else None, nonces.hex()]
    return hmac.digest(key, json.dumps(said).encode(), hashlib.sha256)


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
