"""The plug-in API: what a cooperation algorithm is told, and what it can do.

The interworking paper gives a node five components (ILDM §2.2, Table 1).  Here they are:

    session manager    Port.create_session, close_session, send_message, get_paired_session
    message listener   CooperationAlgorithm.mqtt_message_arrived
    event listener     on_tcp_down, on_recv_failure
    status listener    on_session_established, on_session_closed,
                       on_node_stop, on_node_add, on_node_remove
    message generator  Port.create_mqtt_message

and beside them timers, a clock and a random generator, so that an algorithm needs nothing else: no
event loop, socket, thread, `time` or global `random`.  The port has two implementations, the
asyncio node and the exact simulator, and the very same algorithm object runs behind both.

An algorithm decides; it does not carry.  For each topic (and the session a message came from, and
the label it came with) the node asks `route` once and remembers the answer until the algorithm
calls `Port.routes_changed`; where all topics go the same way, `route_of_all` once for all of them.

Which links an algorithm gets to use is for it to say (`CooperationAlgorithm.topology`): of those
that are up as many as form a tree, or all; then it is for the algorithm to see that messages do not
go round in rings.

A session with a neighbor is the *link*, whatever TCP connections it is made of at the moment:

    ESTABLISHED ──on_tcp_down──▶ (kept for a while) ──on_session_established──▶ ESTABLISHED
                                        └──hold time over──▶ on_session_closed

While a link is down but kept, the node queues what `route` sends there, so an algorithm should not
forget what it knows of that neighbor before `on_session_closed`.

Statuses of sessions are those of ILDM Fig. 5 (a).  Those of a node, Fig. 5 (b), are hooks here: it
runs from `on_node_start` to `on_node_stop`, `on_node_add` and `on_node_remove` are its adding and
removing, which take no time that anybody could see.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol

from isthmus.cooperation.link_rules import MAX_LEVELS, NO_RULES, LinkRules
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import Packet, Publish
from isthmus.mqtt.primitives import PacketType

if TYPE_CHECKING:
    from isthmus.cooperation.link_rules import Crossing

__all__ = [
    "AS_CONFIGURED",
    "MAX_ANNOUNCEMENT_BYTES",
    "MAX_LABEL_BYTES",
    "MAX_LEVELS",
    "AnnouncedNode",
    "AtRest",
    "CooperationAlgorithm",
    "Hop",
    "LinkOptions",
    "LinkTraffic",
    "Moving",
    "Port",
    "ReceivedPacket",
    "Resend",
    "Resources",
    "Route",
    "SessionInfo",
    "SessionKind",
    "SessionStatus",
    "TopicMove",
    "Topology",
]

Topology = Literal["tree", "any"]

MAX_ANNOUNCEMENT_BYTES: Final = 700
"""The longest that an algorithm can announce at once."""
MAX_LABEL_BYTES: Final = 64
"""The longest label that a message can have on a link."""


class SessionStatus(Enum):
    """ILDM Fig. 5 (a)."""

    CLOSED = "closed"
    ESTABLISHED = "established"
    TERMINATING = "terminating"


class SessionKind(Enum):
    """Who is at the other end."""

    LOCAL_CLIENT = "client"
    LOCAL_BROKER = "broker"
    NEIGHBOR = "neighbor"


@dataclass(eq=False, slots=True)
class SessionInfo:
    """A session as an algorithm sees it: one object for the whole life of the session."""

    id: int
    kind: SessionKind
    name: str
    """A client's id, a neighbor's node id; empty where it is not known yet."""
    status: SessionStatus = SessionStatus.CLOSED
    level: int = 5
    """MQTT's protocol level, as it is spoken there: 5, or 4 for MQTT 3.1.1 (3 for 3.1)."""
    address: str = ""
    """Of a neighbor: where it is dialed or, if it dialed this node, where it came from."""
    advertised: str = ""
    """Of a neighbor: where it says that others can dial it; empty if it does not."""
    rtt_s: float = 0.0
    """Of a neighbor: the smoothed time until a ping is answered, what waits before it included; 0
    while it is not known."""
    crossing: Crossing | None = None
    """Of a neighbor: what may cross the link, as this end sees it; None if everything may, as it
    is.  It stays while the session is established, and may be another one when it is again."""


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """What a link has carried since it was made.  Data are messages and their acknowledgments."""

    data_sent: int
    data_sent_bytes: int
    data_received: int
    data_received_bytes: int
    control_sent: int
    control_sent_bytes: int
    control_received: int
    control_received_bytes: int


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a link is to be made; None is what ``[link]`` says."""

    lanes: int | None = None
    qos: int | None = None
    rules: LinkRules = NO_RULES
    """What may cross it; they are not the algorithm's to change."""


AS_CONFIGURED: Final = LinkOptions()


class Resources(NamedTuple):
    """What is free where the node runs, within the limits that the system sets it."""

    cores: float
    memory_bytes: int


class AnnouncedNode(NamedTuple):
    """A node that has announced itself; anybody who knows the fabric's secret may have."""

    node_id: str
    address: str
    """Where it can be dialed; empty if it does not know."""


class ReceivedPacket:
    """A packet that came: its bytes, and what they say, decoded when it is first asked for."""

    __slots__ = ("_level", "_packet", "_topic", "data", "type")

    def __init__(
        self, data: bytes, level: int = 5, packet: Packet | None = None, topic: str = ""
    ) -> None:
        """`packet` if it is decoded already; `topic` if it is a PUBLISH whose topic is known."""
        self.data = data
        self.type = PacketType(data[0] >> 4)
        self._level = level
        self._packet = packet
        self._topic = topic

    @property
    def packet(self) -> Packet:
        """Raises `RemoteProtocolError` if it cannot be decoded, which an algorithm may let pass.

        A PUBLISH has its real topic also where the client sent an alias of it.
        """
        if self._packet is None:
            self._packet = decode(self.data, self._level)
            if self._topic and isinstance(self._packet, Publish):
                self._packet = replace(self._packet, topic=self._topic)
        return self._packet


@dataclass(frozen=True, slots=True)
class AtRest:
    """A fabric in which nothing happens any more, for `CooperationAlgorithm.check_at_rest`."""

    algorithms: Mapping[str, CooperationAlgorithm]
    """By node id."""
    local_filters: Mapping[str, Collection[str]]
    """What the clients of each node want."""
    links: Mapping[str, Mapping[str, SessionInfo]]
    """Of each node: its neighbors, and its session with each."""
    side: Callable[[str, str], Iterable[str]]
    """The nodes on a node's own side of its link to a neighbor."""
    checked: Counter[str] = field(default_factory=Counter)
    """By name, how often what holds under a condition only was looked at: for whoever wants to know
    that it was at all."""


@dataclass(frozen=True, slots=True)
class TopicMove:
    """Topics that go from one of several brokers to another (`Port.move_topics`)."""

    name: str
    """What people call it."""
    parts: tuple[tuple[str, str, str], ...]
    """Filters that match all of them, each with the broker that has its topics and the one that is
    to have them."""
    broker_of: Callable[[str], str]
    brokers_of: Callable[[str], Sequence[str]]
    """What the algorithm answers of the same name when it is done."""
    copies: bool = True
    """Whether what is retained is moved, too; else another node does that."""
    waits: bool = False
    """Whether it goes on after each step only when it is told to (`Moving.go`), so that several
    nodes before the same brokers go in step."""


class Moving(Protocol):
    """A move that was begun."""

    def go(self, step: str) -> None:
        """Go on with the step of that name; `ValueError` if it is not the next, or not time yet."""
        ...

    def fail(self, problem: str) -> None:
        """Leave all as it was; nothing if it is over."""
        ...


Resend = Callable[[Set[bytes], Set[str], SessionInfo | None], bool]
"""Whether a message is to be sent again: see `Port.routes_changed`."""

Hop = tuple[SessionInfo, bytes]
"""A neighbor, and the label that a message has on the way there."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes next."""

    neighbors: tuple[SessionInfo, ...] = ()
    to_local_broker: bool = False
    """For a message from a neighbor; a local client's message has reached the broker anyway.

    The broker gets a message once, however often it comes with other labels.
    """
    pending: bool = False
    """The path is being set up: nothing goes to neighbors yet.  At QoS 1 and 2 messages wait, up to
    ``link.queue_bytes`` and ``link.hold_s``, until `Port.routes_changed`; at QoS 0 they are dropped
    or wait as well, as ``link.pending_qos0`` says."""
    labels: tuple[bytes, ...] = ()
    """Of what goes to each of `neighbors`, in their order; empty if none has one."""
    provisional: bool = False
    """The neighbor that it came from may rely on this node for others as well: at QoS 1 and 2 it
    goes to the broker alone.  It goes on, and is acknowledged, when after `Port.routes_changed`
    with `resend` its route is not provisional any more, or after ``link.hold_s``."""
    hops: tuple[Hop, ...] = field(init=False, compare=False, repr=False)
    """`neighbors` with their labels."""
    special: bool = field(init=False, compare=False, repr=False)
    """Whether it takes more than the same packet for all of `neighbors`."""

    def __post_init__(self) -> None:
        labels = self.labels or (b"",) * len(self.neighbors)
        if len(labels) != len(self.neighbors):
            raise ValueError(f"{len(labels)} labels for {len(self.neighbors)} neighbors")
        object.__setattr__(self, "hops", tuple(zip(self.neighbors, labels, strict=True)))
        object.__setattr__(self, "special", self.pending or bool(self.labels))

    @classmethod
    def labeled(
        cls, hops: Iterable[Hop], *, to_local_broker: bool = False, provisional: bool = False
    ) -> Route:
        """To neighbors with a label each; to one of them several times, if the labels differ."""
        pairs = tuple(hops)
        neighbors, labels = tuple(each for each, _ in pairs), tuple(label for _, label in pairs)
        return cls(neighbors, to_local_broker, labels=labels, provisional=provisional)


class Port(Protocol):
    """What an algorithm can do.  Nothing here blocks, and no hook is called from within a call.

    It can be used from the algorithm's `__init__` on.  Nothing happens until the node runs: then
    what is to be dialed is dialed, and the timers that have run out by then do.
    """

    @property
    def node_id(self) -> str: ...

    @property
    def address(self) -> str:
        """Where other nodes can dial this one; empty if it does not listen, or does not know."""
        ...

    @property
    def resources(self) -> Resources:
        """What is free now; of CPU, since it was last asked for."""
        ...

    def traffic_of(self, session: SessionInfo) -> LinkTraffic | None:
        """What the link with a neighbor has carried; None if there is none."""
        ...

    @property
    def local_filters(self) -> Collection[str]:
        """What local clients want: what `on_local_interest` has told, all of it."""
        ...

    def announce(self, data: bytes) -> bool:
        """Have all nodes that can be told (``[discovery]``) hear `data`, or some, or none.

        As `on_announcement`, each of them once at most.  False if there is nobody to tell.  Raises
        `ValueError` for more than `MAX_ANNOUNCEMENT_BYTES`.
        """
        ...

    def create_session(self, address: str, options: LinkOptions = AS_CONFIGURED) -> SessionInfo:
        """Begin a link to the node at `address`; it is kept up until it is closed.

        `on_session_established` follows for the session that is returned.  If it turns out that the
        node there is a neighbor already, which had dialed this one, then `on_session_closed` does:
        `name` says which neighbor it is, whose own session stays.
        """
        ...

    def close_session(self, session: SessionInfo) -> None:
        """End a session in an orderly way: it is TERMINATING, and `on_session_closed` follows.

        A neighbor is not dialed any more; it may itself dial this node and come back, with another
        session, unless the operator has removed it.
        """
        ...

    def send_message(self, session: SessionInfo, message: bytes) -> bool:
        """Send a packet; False if the session is not established, or cannot take it just now.

        Control packets between two ends of an established link arrive once and in order.  To a
        client, or to the broker in its name, a packet goes between those that are relayed: packet
        identifiers are theirs, and of what follows from it the node knows nothing.
        """
        ...

    def get_paired_session(self, session: SessionInfo) -> SessionInfo | None:
        """The broker's session of a local client, and the other way round."""
        ...

    def create_mqtt_message(self, packet: Packet, level: int = 5) -> bytes:
        """The bytes of a packet; links speak MQTT 5, of others see `SessionInfo.level`."""
        ...

    def refuse(self, session: SessionInfo, error: RemoteProtocolError) -> None:
        """Close a neighbor's session for what came on it: `error`, raised later than on arrival."""
        ...

    def broke_rules(self, session: SessionInfo, name: str) -> None:
        """A neighbor has said something of a topic or filter that must not cross the link.

        It is to be ignored; the node counts and tells it.
        """
        ...

    def synchronized(self, session: SessionInfo) -> None:
        """An algorithm that `synchronizes` has what it needs of this neighbor."""
        ...

    def compare_retained(self, session: SessionInfo) -> None:
        """Compare what is retained with this neighbor anew: until now no route led there.

        It is done when the link comes up; what was retained since then went without it.
        """
        ...

    @property
    def routes_retained(self) -> bool:
        """Whether `route` is to send retained messages only where they are wanted."""
        ...

    def retained_wanted(self, session: SessionInfo | None, filters: Iterable[str]) -> None:
        """A neighbor, or with None local clients, have come to want `filters`.

        Retained messages that match follow, if the node `routes_retained`.
        """
        ...

    def awaits_others(self, session: SessionInfo) -> bool:
        """Whether neighbors of the node's last life, other than this one, are not back yet.

        What the node tells a neighbor meanwhile may be incomplete.
        """
        ...

    def routes_changed(
        self, filters: Iterable[str] | None = None, *, resend: bool | Resend = False
    ) -> None:
        """Forget remembered routes of topics that `filters` match; all of them without.

        With `resend`, what was sent to neighbors on those topics, at QoS 1 and 2, and is not
        acknowledged yet goes also where `route` says now, if it has not gone there with that label;
        what comes after it on its topic waits until it has.  A function is asked of each message,
        before this returns: it is told the labels with which it has gone, the neighbors that have
        not acknowledged it, and the neighbor that it came from, if that one has it still.
        """
        ...

    def wanted_changed(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Neighbors have come to want these filters, and no longer want those (`follow_wanted`).

        What is removed is no longer wanted, or covered by what was added before it.
        """
        ...

    def move_topics(self, move: TopicMove) -> Moving:
        """Begin to bring topics, with all that is retained and subscribed, to other brokers.

        `on_topics_moved` follows.  Raises `ValueError` if that cannot be begun now.
        """
        ...

    @property
    def broker_names(self) -> tuple[str, ...]:
        """What the brokers behind the node are called, if it has several; else nothing."""
        ...

    def set_timer(self, delay_s: float, key: Hashable) -> None:
        """Call `on_timer(key)` after `delay_s`; a timer of the same key is replaced."""
        ...

    def cancel_timer(self, key: Hashable) -> None: ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    @property
    def random(self) -> random.Random: ...

    def load_state(self, name: str, version: int = 1) -> list[bytes]:
        """The records that are kept under `name`: what was saved last, then what was appended.

        They survive restarts if the node has a place for them (`state_dir`).  Each has a checksum:
        a damaged one is missing, which the node tells.  What has another version is refused and
        kept aside, which the node tells, too.  A name is of small letters and digits, with single
        hyphens between them, and the algorithm's own: others have other files.
        """
        ...

    def save_state(self, name: str, records: Iterable[bytes], version: int = 1) -> None:
        """Keep `records` in place of what is kept under `name`; all of them or none."""
        ...

    def append_state(self, name: str, records: Iterable[bytes]) -> None:
        """Add to what was saved; after a crash the last of them may be missing.

        Raises `ValueError` if nothing was: save first, if only no records.  If the disk does not
        take it, `on_state_lost` follows.
        """
        ...


class CooperationAlgorithm:
    """Base of every algorithm.  Each hook does nothing unless it is overridden."""

    name: ClassVar[str]
    """How the configuration calls it."""

    speaks: ClassVar[str] = ""
    """Which algorithm it is to its neighbors; empty: none but itself.  Nodes can be linked that
    speak the same."""

    places_topics: ClassVar[bool] = False
    """Whether it knows of every topic at which of several brokers it lives (`broker_of`): the
    configuration then says nothing of that."""

    topology: ClassVar[Topology] = "tree"
    """Which links it uses: ``tree``, those of all that are up that form no ring, as the nodes agree
    among themselves; or ``any``, every one that is up.  With ``any`` nothing is agreed on, and it
    is the algorithm that answers for messages not going round: a message that comes again, with the
    same label, is dropped whatever its QoS, and so is one that has come too far (`fabric_size`).
    """

    full_mesh: ClassVar[bool] = False
    """Whether it needs a link between any two nodes; for tests, which then have such fabrics."""

    mostly_full_mesh: ClassVar[bool] = False
    """Whether what is its own happens only with a link between any two nodes, though it can do
    without; for tests, most of whose fabrics then have them."""

    survives_changes: ClassVar[bool] = False
    """Whether at QoS 1 and 2 nothing is lost when the ways change, as long as nodes are connected;
    for tests, which then ask for that in fabrics that are no trees, too."""

    obeys_rules: ClassVar[bool] = False
    """Whether links may have rules (``out``, ``in`` and ``prefix`` of ``[[peer]]``): what it tells
    a neighbor of topics and filters is then what `SessionInfo.crossing` makes of them.  The node
    itself leaves neighbors out of a `Route` that a message may not cross to."""

    routes_retained: ClassVar[bool] = False
    """Whether retained messages can go only where they are wanted (`Port.routes_retained`): it
    then answers `wants` and `asks`, and tells `Port.retained_wanted`."""

    max_label_bytes: ClassVar[int] = 0
    """How long the labels of its messages may be; at most `MAX_LABEL_BYTES`."""

    inspects_publishes: ClassVar[bool] = False
    """Whether `mqtt_message_arrived` is called for PUBLISH too; costs a call per message."""

    holds_qos0: ClassVar[bool] = False
    """Whether also at QoS 0 messages wait while their path is pending, whatever
    ``link.pending_qos0`` says; for an algorithm whose paths are often so."""

    discovers: ClassVar[bool] = False
    """Whether it is for the algorithm to announce the node, and to link with who is heard of.

    Otherwise the node does both, as ``[discovery]`` says.
    """

    follows_publishers: ClassVar[bool] = False
    """Whether `on_local_publisher` is called; costs a look per message."""

    synchronizes: ClassVar[bool] = False
    """Whether a neighbor is of use only after `Port.synchronized` was called for it."""

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        """`options` are the algorithm's own keys of ``[cooperation]``.

        Raise `ValueError` naming the key for an option that is wrong or unknown.
        """
        if options:
            raise ValueError(f"{sorted(options)[0]}: algorithm {self.name!r} has no such option")
        self.port = port

    # ---- data plane ----

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        """Where a message on `topic` goes that came from `arrived_on`, with `label` if it has one.

        What a neighbor brings is forwarded once for each label, and given to the local broker once.
        """
        return Route()

    def route_of_all(self, arrived_on: SessionInfo) -> Route | None:
        """What `route` answers for every topic that does not begin with ``$``, if it is the same.

        Of messages from `arrived_on` that have no label and are not retained; None if it depends
        on the topic, or is not known.  Then topics cost no question each, and no memory: devices
        have a topic each.  It holds until `Port.routes_changed`, of whatever filters, and must not
        take long.  A class that overrides `route` and not this answers None.
        """
        return None

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "route" in cls.__dict__ and "route_of_all" not in cls.__dict__:
            # What a base class says of its own `route` need not be true of another one.
            cls.route_of_all = CooperationAlgorithm.route_of_all  # type: ignore[method-assign]

    def label_now(self, label: bytes, topic: bytes) -> bytes:
        """For which label a message is taken that comes with `label`; empty: from a client.

        Another one if `route` sends it on with another one: a message that has gone on with that
        label already does not again.
        """
        return label

    def reaches(self, node_id: str) -> bool | None:
        """Whether a node is among those that messages go to; None if that is not known.

        Asked only of an algorithm of the topology ``any``: of a neighbor that is given up, for
        whether what waited for it is lost; of a node that stands before the same broker.
        """
        return None

    def comes_again(self, session: SessionInfo, label: bytes) -> bool:
        """Whether what comes from this neighbor comes again: `label_now` is another than `label`.

        It will, with that label, since it is not acknowledged there; and until then it waits here,
        so that it does not overtake what is older.
        """
        return False

    def is_given_at_once(self, label: bytes) -> bool:
        """Of what `comes_again`: whether the broker gets it before it does.

        Not if older ones, which were on other ways, may come to this node with it only then.
        """
        return True

    @property
    def fabric_size(self) -> int:
        """How many nodes there are, as far as an algorithm of any topology knows; 0: unknown.

        A message may cross twice as many links, and 64 in any case.
        """
        return 0

    def wants(self, session: SessionInfo | None, topic: str) -> bool:
        """Whether a neighbor, or with None a local client, wants what is on `topic`.

        Asked only of one that `routes_retained`.
        """
        return True

    def asks(self, session: SessionInfo, topic: str) -> bool:
        """Whether this node has asked that neighbor for what is on `topic`; as `wants`."""
        return True

    def follow_wanted(self) -> bool:
        """The node takes messages from its broker: tell it what neighbors want, from now on.

        By `Port.wanted_changed`; it is asked once, before the node runs.  False if that is not
        known: then the node takes everything.
        """
        return False

    # ---- several brokers behind the node ----

    def broker_of(self, topic: str) -> str | None:
        """At which of `Port.broker_names` a topic lives, ``""`` at none; None: as is configured.

        A topic lives at one broker.  Asked only where there are several, once for each topic and
        again after `Port.routes_changed`, of topics that begin with ``$`` too.
        """
        return None

    def brokers_of(self, topic_filter: str) -> Sequence[str] | None:
        """At which brokers there are topics that `topic_filter` matches; None: as is configured.

        All that `broker_of` may say of them, at least.
        """
        return None

    def on_broker_down(self, name: str) -> None:
        """One of several brokers takes no connections, or does not answer."""

    def on_broker_up(self, name: str) -> None:
        """A broker that was down answers again."""

    def on_topics_moved(self, move: TopicMove, problem: str) -> None:
        """They live at the other brokers from now on; or, if there is a `problem`, where they did.

        From here on `broker_of` and `brokers_of` answer accordingly.
        """

    # ---- what people ask for ----

    def on_request(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """An operator asks for something (``POST /api/cooperation``); the answer is shown to them.

        Raise `ValueError` for what cannot be done.
        """
        raise ValueError(f"algorithm {self.name!r} takes no requests")

    # ---- message listener ----

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        """A packet came: from a local client, the local broker or a neighbor.

        Of a client CONNECT, SUBSCRIBE, UNSUBSCRIBE and DISCONNECT are shown, of the broker CONNACK,
        SUBACK and UNSUBACK, each before it is passed on; of a neighbor SUBSCRIBE, UNSUBSCRIBE,
        their acknowledgments, and PUBLISHes on ``$isthmus/`` topics.

        Return False to keep a client's PUBLISH (if `inspects_publishes`) from going any further:
        the node answers it, with reason code 0x83 where the client speaks MQTT 5.  A topic alias
        that it would have set is then not known to the broker.  For anything else the result does
        not matter.  A `RemoteProtocolError` closes the session with its reason code.
        """
        return True

    # ---- local clients ----

    def on_local_interest(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Topic filters that local clients have come to want, and that none of them wants any more.

        In normal form, none of them in both, of at most `MAX_LEVELS` levels: of a longer one the
        beginning is told, with ``/#``.  Filters that start with ``$`` are not told.
        """

    def on_local_publisher(
        self, session: SessionInfo, begun: Sequence[str], ended: Sequence[str]
    ) -> None:
        """Topics that a client publishes on for the first time, and that it no longer does.

        A topic ends with the client's connection, or when it has used a thousand others since.
        Wills are not its publishing.
        """

    # ---- discovery ----

    def on_announcement(self, node: AnnouncedNode, data: bytes) -> None:
        """A node has announced itself: it is there, or was a moment ago, linked or not."""

    # ---- event listener ----

    def on_tcp_down(self, session: SessionInfo) -> None:
        """A connection was lost unexpectedly."""

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        """What came on a session breaks the rules; the session, or its connection, is closed."""

    # ---- status listener ----

    def on_session_established(self, session: SessionInfo) -> None:
        """`session` can be used; for a link that was down: again."""

    def on_session_closed(self, session: SessionInfo) -> None:
        """`session` is gone for good."""

    def on_node_start(self) -> None:
        """The node runs: all hooks may be called from now on."""

    def on_node_stop(self) -> None:
        """The node is about to stop."""

    def on_neighbors_back(self) -> None:
        """The answer of `Port.awaits_others` may have changed."""

    def on_node_add(self, address: str, options: LinkOptions) -> None:
        """A neighbor is to be added (configuration or operator)."""
        self.port.create_session(address, options)

    def on_node_remove(self, session: SessionInfo) -> None:
        """The operator removes a neighbor: once it is closed it is refused until it is added."""
        self.port.close_session(session)

    # ---- timers ----

    def on_timer(self, key: Hashable) -> None:
        """A timer that was set has run out."""

    def on_state_lost(self, name: str) -> None:
        """What was appended under `name` could not be written: save all of it again."""

    # ---- what people and tests see ----

    def status(self) -> dict[str, object]:
        """JSON-able facts for `isthmus status`."""
        return {}

    @classmethod
    def check_at_rest(cls, fabric: AtRest) -> None:
        """Raise `AssertionError` if something is not as this algorithm wants it; for tests."""
