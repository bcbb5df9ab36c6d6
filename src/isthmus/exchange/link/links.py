"""The links of a node: greeting, keeping alive, keeping for a while, letting go.

Every neighbor has one :class:`Link`, whoever dialed.  When two nodes dial each other, the
connections that the node with the lower id opened are kept, which both ends conclude alike.

A neighbor that says goodbye (DISCONNECT) is let go at once; one that just vanishes, or is silent
for longer than `dead_after_s`, is kept for `hold_s`, or for `apart_s` if what is for it waits on
disk.  Who is dialed is in `dialing`, who may come
in in `admission`, what may happen to a link in `life`.

A link belongs to a node, not to an address: if another node answers at a peer's address, that is
another link with a session of its own, and the former one is kept for `hold_s` like any other that
was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from struct import unpack
from typing import Protocol

from isthmus.cooperation.api import SessionInfo
from isthmus.cooperation.link_rules import NO_RULES, Crossing
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.host import Cancellable, Channel, Host
from isthmus.exchange.link.admission import Admission
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.dialing import LONGEST_PAUSE_S, Dialing, Peer, SessionOwner
from isthmus.exchange.link.greeting_room import GreetingRoom, Guest
from isthmus.exchange.link.hello import (
    CONTROL_LIMITS,
    Hello,
    LinkRefused,
    cause_of_goodbye,
    link_key,
)
from isthmus.exchange.link.life import (
    GreetingEvent,
    GreetingState,
    LinkAction,
    LinkEvent,
    LinkState,
)
from isthmus.exchange.link.link import MAX_CONTROL_BYTES, Link
from isthmus.exchange.link.same_id import SAME_ID_TOPIC, IdConflict, Probe
from isthmus.exchange.link.streams import STREAM_TOPIC, Streams
from isthmus.exchange.traffic.numbered import AT_QOS_1
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Disconnect, Publish
from isthmus.mqtt.publish_layout import PUBACK
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["LinkOwner", "LinkSettings", "Links"]

SAME_ID_PAUSE_S = 20.0
"""The longest pause of a node that is refused because another has its id."""
LINK_OVERHEAD_BYTES = 4_096
MAX_REFUSED = 4_096
"""Of how many nodes it is known why they were refused."""
SWEEP_S = 1.0
AT_ONCE = 10
"""Of packets that have waited, so many are taken in a turn, from each of 64 lanes perhaps."""
SOONEST_TICK_S = 0.01
MAX_ACKS = 256
"""Are taken together, of those that one read brings."""
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What the configuration says of links."""

    qos: int = 1
    lanes: int = 1
    round_robin: bool = False
    dead_after_s: float = 1.8
    hold_s: float = 60.0
    greeting_s: float = 5.0
    queue_bytes: int = 16 << 20
    packet_bytes: int = 16 << 20
    """The longest PUBLISH of a client that this node takes; neighbors are told."""
    secret: bytes = b""
    apart_bytes: int = 0
    """What may wait on disk for one destination that is set apart; none is with 0."""
    apart_s: float = 3600.0
    """How long a neighbor that is away is kept, if what is for it waits on disk."""
    holds_pending_qos0: bool = False
    """Whether messages at QoS 0 wait too while their path is being set up."""

    @property
    def max_packet_bytes(self) -> int:
        """What is read from a link: messages with what links add to them, and control packets."""
        return max(self.packet_bytes, MAX_CONTROL_BYTES) + LINK_OVERHEAD_BYTES

    @property
    def max_unread_bytes(self) -> int:
        """What may wait to be written on one lane.

        Messages stop at `queue_bytes`; answers to a neighbor that asks and does not read do not.
        """
        return 2 * self.queue_bytes + self.max_packet_bytes


class LinkOwner(SessionOwner, Protocol):
    """Who is told; the exchange."""

    def carry_out(self, link: Link, action: LinkAction) -> None:
        """Do what the table says."""
        ...

    def link_failed(self, link: Link, error: RemoteProtocolError) -> None:
        """What came on the link cannot be understood; it is going down."""
        ...

    def plain_arrived(self, link: Link, frames: Sequence[bytes], at: int) -> int:
        """Take the plain messages at `at` and next to it that are like others before; the end."""
        ...

    def numbered_arrived(self, link: Link, lane: int, frames: Sequence[bytes], at: int) -> int:
        """The same with messages at QoS 1."""
        ...

    def frame_arrived(self, link: Link, lane: int, frame: bytes) -> float | None:
        """A packet came; for how many seconds nothing more is to be heard on that lane, if any."""
        ...

    def new_link(self, link: Link) -> None:
        """A link is made, for a neighbor that had none."""
        ...

    def is_kept_apart(self, link: Link) -> bool:
        """Whether what is for a neighbor that is away waits on disk, and is not needed there."""
        ...

    def own_other_lives(self) -> tuple[str, ...]:
        """Incarnations of this node's id, other than its own, that the fabric knows of."""
        ...


class Links:
    """All links, by the neighbor's id, and the peers to dial, by address."""

    def __init__(self, host: Host, settings: LinkSettings, hello: Hello, owner: LinkOwner) -> None:
        self.host = host
        self.settings = settings
        self.hello = replace(hello, max_packet_bytes=settings.packet_bytes)
        self.owner = owner
        self.conflict = IdConflict(host, hello.node_id, 2 * settings.dead_after_s + 1)
        self.room = GreetingRoom()
        self._key = link_key(settings.secret)
        self._probes: dict[str, Probe] = {}
        self._sweeper: Cancellable | None = None
        self.links: dict[str, Link] = {}
        self.dialing = Dialing(
            host,
            owner,
            self.hello,
            keep_alive_s=max(1, round(settings.dead_after_s)),
            connect=lambda channel, hello: self._connection(channel, hello, dialed=True),
            abandon=self._abandon,
        )
        self.peers = self.dialing.peers
        self.admission = Admission(self.hello, self.links, self.dialing, self.conflict)
        self.removed = self.admission.removed
        self.refusals: Counter[str] = Counter()
        self._connections: dict[Connection, None] = {}
        self._unwritten: list[Connection] = []
        """Those that have something to write."""
        self._holds: dict[str, Cancellable] = {}
        self._lost_s: dict[str, float] = {}
        """Since when those are away that are kept."""
        self._ticker: Cancellable | None = None
        self._tick_due_s = host.now()
        self._paused = False  # the last tick was late
        self.streams = Streams(hello.incarnation)
        self._refused_for: dict[str, str] = {}
        self._stopped = False

    def start(self) -> None:
        self._tick()
        self.dialing.start()

    def stop(self) -> None:
        """Say goodbye to everybody."""
        self._stopped = self.admission.stopped = True
        self.dialing.stop()
        probes = (probe.timer for probe in self._probes.values())
        for timer in (self._ticker, self._sweeper, *self._holds.values(), *probes):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.say_goodbye(ReasonCode.SERVER_SHUTTING_DOWN)

    # ---- connections ---------------------------------------------------------------------

    def accepted(self, channel: Channel) -> Connection:
        """Somebody connected to the link port."""
        connection = self._connection(channel, self.hello, dialed=False)
        self.knocked(connection)
        return connection

    def knocked(self, guest: Guest) -> None:
        """Somebody is being greeted, or begins a TLS handshake; another may have to leave."""
        if (leaving := self.room.enter(guest)) is not None:
            self.refusals["too-many-greetings"] += 1
            leaving.abort()
        if self._sweeper is None:
            self._sweeper = self.host.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Cut off those that have been greeting for too long."""
        self._sweeper = None
        late_s = self.host.now() - self.settings.greeting_s
        for guest in self.room:
            if guest.opened_s <= late_s:
                self.refusals["greeting-timeout"] += 1
                self.room.leave(guest)
                guest.abort()
        if len(self.room) and not self._stopped:
            self._sweeper = self.host.call_later(SWEEP_S, self._sweep)

    def _connection(self, channel: Channel, hello: Hello, *, dialed: bool) -> Connection:
        connection = Connection(
            channel,
            hello,
            dialed=dialed,
            key=self._key,
            now=self.host.now,
            max_packet_bytes=self.settings.max_packet_bytes,
            token_bytes=self.host.token_bytes,
            wake=self._wake,
        )
        self._connections[connection] = None
        return connection

    def _wake(self, connection: Connection) -> None:
        self._unwritten.append(connection)
        self.host.wake()

    def received(self, connection: Connection, data: bytes) -> None:
        """Bytes came on `connection`; whatever is wrong with them ends only this link."""
        try:
            frames = connection.frames(data, self.host.now())
        except RemoteProtocolError as error:
            self.misbehaved(connection, error)
        else:
            self._take(connection, frames)

    def _take(self, connection: Connection, frames: Sequence[bytes]) -> None:
        at, end = 0, len(frames)
        try:
            while at < end and connection.state is not GreetingState.CLOSED:
                link = connection.link
                if connection.backlog is None and link is not None and link.state.up:
                    head = frames[at][0]
                    if head == PUBACK:
                        at = self._acknowledged(link, connection.lane, frames, at)
                    elif head == AT_QOS_1:
                        at = self.owner.numbered_arrived(link, connection.lane, frames, at)
                    else:
                        at = self.owner.plain_arrived(link, frames, at)
                    if at == end:
                        return
                frame = frames[at]
                at += 1
                if connection.backlog is not None:
                    connection.backlog.append(frame)
                elif connection.state is not GreetingState.OPEN:
                    if connection.greet(frame):
                        self._proved(connection)
                elif rest_s := self._frame(connection, frame):
                    self._rest(connection, rest_s)
        except LinkRefused as error:
            self._refused(connection, error)
        except RemoteProtocolError as error:
            self.misbehaved(connection, error)

    def _acknowledged(self, link: Link, lane: int, frames: Sequence[bytes], at: int) -> int:
        """Take the PUBACKs at `at` and next to it that say nothing else; where they end."""
        run = list(takewhile(_is_plain_ack, islice(frames, at, at + MAX_ACKS)))
        if run:
            packet_ids = unpack(f">{2 * len(run)}H", b"".join(run))[1::2]
            link.all_acknowledged(lane, packet_ids, self.host.now())
        return at + len(run)

    def _rest(self, connection: Connection, rest_s: float) -> None:
        """What came takes long: hear others before the rest of it."""
        self._hear_no_more(connection)
        self.host.call_later(rest_s, lambda: self._go_on(connection))

    def _hear_no_more(self, connection: Connection) -> list[bytes]:
        """Read no more; what comes nevertheless waits in what is returned."""
        if connection.backlog is None:
            connection.backlog = []
            connection.channel.hold_reading()
        return connection.backlog

    def _go_on(self, connection: Connection) -> None:
        backlog, connection.backlog = connection.backlog or [], None
        self._take(connection, backlog[:AT_ONCE])
        later = backlog[AT_ONCE:]
        if later and connection.state is not GreetingState.CLOSED:
            if connection.backlog is None:
                self._rest(connection, 0.0)
            self._hear_no_more(connection).extend(later)
        connection.channel.release_reading()

    def misbehaved(self, connection: Connection, error: RemoteProtocolError) -> None:
        """What came on `connection` breaks the rules: it is closed, and the link is down."""
        self.refusals["protocol-error"] += 1
        self.host.log(
            "warning", "bad bytes on a link", remote=self._name(connection), cause=str(error)
        )
        if connection.link is not None:
            self.owner.link_failed(connection.link, error)
        connection.say_goodbye(ReasonCode(error.reason_code))
        self._cut(connection, str(error))

    def _frame(self, connection: Connection, frame: bytes) -> float | None:
        """Take one packet; how long not to hear this neighbor, if that took long."""
        head = frame[0]
        link = connection.link
        if link is not None and head >= 0xC0:
            link.control_received_bytes += len(frame)
        if frame == PINGREQ:
            connection.send(PINGRESP)
            if link is not None:
                link.control_sent_bytes += len(PINGRESP)
        elif frame == PINGRESP:
            connection.ponged()
            if link is not None:
                if self._probes:
                    self._pong_came(link)
                link.look_for_room()
        elif head == 0xE0:
            self._goodbye_came(connection, frame)
        elif link is not None and link.state.up:
            return self.owner.frame_arrived(link, connection.lane, frame)
        # The other end has all lanes already; here one is still being opened, or judged.
        elif not connection.keep_early(frame):
            self._hear_no_more(connection)
        return None

    # ---- who may come in -----------------------------------------------------------------

    def _proved(self, connection: Connection) -> None:
        """The other node is who it says; whether it may come in."""
        self.room.is_neighbor(connection.host)
        hello = connection.other
        assert hello is not None
        self.admission.judge(connection, hello)
        link = self.links.get(hello.node_id)
        if link is not None and self.admission.stands(link, connection, hello):
            self._probe(link, connection)
        else:
            self._let_in(connection)

    def _let_in(self, connection: Connection) -> None:
        if not connection.dialed:
            assert connection.other is not None
            connection.say_rules(self.dialing.rules_for(connection.other))
            connection.accept()
            self.room.leave(connection)
        self._opened(connection)

    def _probe(self, link: Link, newcomer: Connection) -> None:
        """Ask the standing link whether it lives before anybody takes it over."""
        name = link.info.name
        probe = self._probes.get(name)
        if probe is None:
            standing = link.connections[0]
            assert standing is not None
            timer = self.host.call_later(
                self.settings.dead_after_s / 2, lambda: self._probe_over(name)
            )
            probe = self._probes[name] = Probe(link, standing, standing.ping(), timer)
        probe.newcomers.append(newcomer)

    def _pong_came(self, link: Link) -> None:
        probe = self._probes.get(link.info.name)
        if probe is None or not probe.answered:
            return
        del self._probes[link.info.name]
        probe.timer.cancel()
        name = link.info.name
        for newcomer in probe.newcomers:
            if newcomer.state is not GreetingState.CLOSED:
                where = newcomer.channel.remote
                self._refused(
                    newcomer,
                    LinkRefused("same-id", f"a node {name!r} is linked here already and answers"),
                )
                payload = f"another node {name!r} came to {self.hello.node_id!r} from {where}"
                link.send_control(encode(Publish(SAME_ID_TOPIC, payload.encode()), 5))

    def _probe_over(self, name: str) -> None:
        """No answer in time, or the standing link is down: the newcomer takes it over."""
        probe = self._probes.pop(name, None)
        if probe is None:
            return
        probe.timer.cancel()
        waiting = [each for each in probe.newcomers if each.state is not GreetingState.CLOSED]
        for number, newcomer in enumerate(waiting):
            try:
                assert newcomer.other is not None
                self.admission.judge(newcomer, newcomer.other)
                if number == 0:
                    self._let_in(newcomer)
                else:
                    self._proved(newcomer)
            except LinkRefused as error:
                self._refused(newcomer, error)

    def same_id_told(self, link: Link, payload: bytes) -> None:
        """A neighbor says that it has met another node of this node's id."""
        said = payload[:200].decode(errors="replace")
        self.conflict.told(f"{link.info.name!r} says: {said}", by=link.info.name)

    def _refused(self, connection: Connection, error: LinkRefused) -> None:
        if error.cause != "duplicate":
            self.refusals[error.cause] += 1
            self._log_refusal(connection, error)
        connection.refuse(error)
        self.room.leave(connection)
        peer = connection.dialed_for
        if peer is None or not self.dialing.wants(peer):
            return
        # Whom we dial we want, also if it was removed before; both ends may be waiting for that.
        self.removed.discard(error.node_id)
        if error.cause == "duplicate":
            link = self.links.get(error.node_id or connection.other_id())
            if link is not None:
                self.dialing.leads_to(peer, link)
                self._tell_rules(peer, link)
        if (
            error.cause == "same-id"
            and error.by is not None
            and not self.admission.is_self(error.by)
        ):
            self.conflict.told(error.problem)
        longest_s = SAME_ID_PAUSE_S if error.cause == "same-id" else LONGEST_PAUSE_S
        self.dialing.failed(peer, connection.attempt, error.problem, longest_s)

    def _log_refusal(self, connection: Connection, error: LinkRefused) -> None:
        """Once for each cause: who is refused usually tries again, for ever."""
        name = connection.other_id() or connection.channel.remote.rpartition(":")[0]
        if self._refused_for.get(name) == error.cause:
            return
        if len(self._refused_for) >= MAX_REFUSED:
            self._refused_for.clear()
        self._refused_for[name] = error.cause
        self.host.log(
            "warning",
            "link refused",
            remote=self._name(connection),
            cause=error.cause,
            detail=error.problem,
        )

    def _opened(self, connection: Connection) -> None:
        """The greeting is over: the connection becomes a lane of the neighbor's link."""
        hello = connection.other
        assert hello is not None
        initiator = self.hello.node_id if connection.dialed else hello.node_id
        peer = connection.dialed_for
        link = self.links.get(hello.node_id)
        if link is None:
            link = self._new_link(hello.node_id, peer)
        if peer is not None:
            self.dialing.leads_to(peer, link)
            link.qos = peer.qos
        elif not self.dialing.is_dialed(link):
            link.info.address = connection.channel.remote
        if connection.lane == 0:
            self._replaced(link)
            link.prepare(initiator, hello.incarnation, hello.lanes, self.streams.new())
            link.takes(hello.max_packet_bytes)
            self._cross(link, connection, hello)
            link.info.advertised = hello.address
        link.connections[connection.lane] = connection
        connection.join(link)
        if peer is not None and connection.lane == 0:
            self.dialing.other_lanes(peer)
        if link.complete():
            self._up(link, peer)

    def _cross(self, link: Link, connection: Connection, hello: Hello) -> None:
        """What may cross the link is what both ends allow, as they have just said."""
        before, crossing = link.crossing, Crossing.of(connection.rules, hello.rules)
        if crossing == before:
            return
        link.cross(crossing)
        if crossing is None:
            return
        for difference in crossing.differences():
            self.host.log(
                "warning",
                "the two ends of a link have different rules; what both allow crosses",
                neighbor=link.info.name,
                rules=difference,
            )

    def _tell_rules(self, peer: Peer, link: Link) -> None:
        """A neighbor that had dialed turns out to be a peer with rules: greet it anew."""
        connection = link.connections[0] if link.lanes else None
        own = link.crossing.own if link.crossing is not None else NO_RULES
        if connection is not None and peer.rules != own:
            connection.channel.abort()
            self._cut(connection, "it is greeted anew, with the rules of this end")

    def _new_link(self, node_id: str, peer: Peer | None) -> Link:
        settings = self.settings
        if peer is not None and not peer.info.name:
            info = peer.info
        else:  # connected to us, or at an address where another node was before
            info = self.owner.new_session(peer.address if peer is not None else "")
        info.name = node_id
        link = Link(
            info,
            self.streams.new(),
            qos=settings.qos,
            queue_bytes=settings.queue_bytes,
            round_robin=settings.round_robin,
        )
        self.links[node_id] = link
        self.owner.new_link(link)
        return link

    def _replaced(self, link: Link) -> None:
        """The neighbor connects anew although we did not notice that it was gone."""
        if link.state.up:
            self._down(link, "replaced by a new connection")
        else:
            link.disconnect()

    def _up(self, link: Link, peer: Peer | None) -> None:
        if peer is not None:
            self.dialing.linked(peer)
        self._refused_for.pop(link.info.name, None)
        if hold := self._holds.pop(link.info.name, None):
            hold.cancel()
        self._lost_s.pop(link.info.name, None)
        self.host.log("info", "link up", neighbor=link.info.name, lanes=link.lanes)
        stream = encode(Publish(STREAM_TOPIC, link.stream.encode()), 5)
        for connection in filter(None, link.connections):
            connection.send(stream)
            link.control_went(stream)
        self.happens(link, LinkEvent.COMPLETE)
        for connection in filter(None, link.connections):
            if early := connection.take_early():
                self._rest(connection, 0.0)
                self._hear_no_more(connection)[:0] = early

    # ---- their life ----------------------------------------------------------------------

    def happens(self, link: Link, event: LinkEvent) -> None:
        """`event` happens to `link`: the owner carries out what follows."""
        actions = link.happens(event)
        state = link.state
        for action in actions:
            if link.state is state:  # else more has happened meanwhile
                self.owner.carry_out(link, action)

    # ---- losing them ---------------------------------------------------------------------

    def lost(self, connection: Connection, cause: str) -> None:
        """The channel under `connection` is gone."""
        self._connections.pop(connection, None)
        self.room.leave(connection)
        connection.happens(GreetingEvent.ENDED)
        self._cut(connection, cause)
        if connection.dialed_for is not None:
            self.dialing.failed(connection.dialed_for, connection.attempt, cause)

    def _abandon(self, peer: Peer) -> None:
        """Not all lanes of a set can be opened."""
        for connection in list(self._connections):
            if connection.dialed_for is peer and connection.attempt == peer.attempt:
                self._cut(connection, "not all lanes can be opened")
                connection.close()

    def _cut(self, connection: Connection, cause: str) -> None:
        """A lane is gone, and with it the link."""
        link = connection.link
        if link is None:
            return
        if link.state.up:
            self._down(link, cause)
        else:
            link.disconnect()
            self._hold(link.info.name, self.settings.hold_s)
        self.dialing.again(link)

    def _down(self, link: Link, cause: str) -> None:
        self.host.log("warning", "link down", neighbor=link.info.name, cause=cause)
        link.disconnect()
        self.host.call_later(0.0, link.look_for_room)
        self.happens(link, LinkEvent.LOST)
        name = link.info.name
        self.conflict.gone(name)
        if name in self._probes:
            self.host.call_later(0.0, lambda: self._probe_over(name))
        if link.state is not LinkState.GONE:
            self._hold(name, self.settings.hold_s)

    def _hold_over(self, name: str) -> None:
        self._holds.pop(name, None)
        link = self.links.get(name)
        if link is None:
            return
        if any(link.connections):
            # It is coming back: some of its lanes are here, the others are being opened.
            self._hold(name, self.settings.greeting_s)
        elif self._is_kept_apart(link):
            self._hold(name, max(self.settings.hold_s, 1.0))
        else:
            self.let_go(link, "did not come back")

    def _is_kept_apart(self, link: Link) -> bool:
        """Whether it is kept although it has not come back within the hold time."""
        away_s = self.host.now() - self._lost_s.get(link.info.name, 0.0)
        return away_s < self.settings.apart_s and self.owner.is_kept_apart(link)

    def _hold(self, name: str, seconds: float) -> None:
        """Keep the neighbor for so long, unless that is limited already."""
        if name not in self._holds and not self._stopped:
            self._lost_s.setdefault(name, self.host.now())
            self._holds[name] = self.host.call_later(seconds, lambda: self._hold_over(name))

    def let_go(self, link: Link, cause: str) -> None:
        """The neighbor is no longer one, until it is linked again."""
        if link.state is LinkState.GONE:
            return  # for what follows from letting it go
        if hold := self._holds.pop(link.info.name, None):
            hold.cancel()
        self.links.pop(link.info.name, None)
        self._lost_s.pop(link.info.name, None)
        link.disconnect()
        self.host.log("info", "neighbor let go", neighbor=link.info.name, cause=cause)
        self.dialing.leads_nowhere(link)
        self.happens(link, LinkEvent.LET_GO)
        self.conflict.gone(link.info.name)
        self.streams.left(link.info.name)

    def _goodbye_came(self, connection: Connection, frame: bytes) -> None:
        """A node that stops and will know us again is kept, like one that crashed."""
        link, hello = connection.link, connection.other
        connection.close()
        packet = decode(frame, 5, CONTROL_LIMITS)
        assert isinstance(packet, Disconnect)
        if cause_of_goodbye(packet) == "same-id":
            own, other = self.hello.node_id, connection.other_id()
            self.conflict.told(f"{other!r} is linked with another node {own!r}")
        if link is None:
            return
        stops = packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        if stops and hello is not None and hello.keeps_state:
            connection.link = link
            self._cut(connection, "it stops, and may be back")
        else:
            self.let_go(link, "it said goodbye")

    def remove(self, name: str) -> Link | Peer | None:
        """The operator removes a neighbor, by its id or address, until it is added again.

        Its link is returned and still to be closed.  If another address leads to the same node,
        only this one is not wanted.
        """
        peer = self.peers.get(name)
        link = peer.link if peer is not None else self.links.get(name)
        if peer is not None:
            self.dialing.forget(peer)
            if link is None or self.dialing.is_dialed(link):
                return peer
        if link is not None:
            self.dialing.forget_session(link.info)
            self.removed.add(link.info.name)
        return link

    def knows(self, session: SessionInfo) -> bool:
        """Whether a link has it, or is to have it: it is not gone for good."""
        linked = any(link.info is session for link in self)
        return linked or any(peer.info is session for peer in self.peers.values())

    def close(self, link: Link) -> None:
        """Say goodbye to a neighbor that is no longer wanted."""
        for connection in link.connections:
            if connection is not None:
                connection.say_goodbye(ReasonCode.ADMINISTRATIVE_ACTION)
        removed = link.info.name in self.removed
        self.let_go(link, "removed by the operator" if removed else "closed by the algorithm")

    # ---- every turn, every tick ----------------------------------------------------------

    def flush(self) -> None:
        """Write what was sent in this turn: on few of very many connections, perhaps."""
        unwritten, self._unwritten = self._unwritten, []
        for connection in unwritten:
            connection.flush()

    def _tick(self) -> None:
        """Ping every lane; cut those that are silent, or do not read, for too long.

        The next time is when the first of them would have been silent for too long.  A tick that
        is late tells of this node's own pause: what came meanwhile has not been read yet, so
        nobody is cut until the next one.
        """
        now_s, dead_after_s = self.host.now(), self.settings.dead_after_s
        self._paused = not self._paused and now_s - self._tick_due_s > dead_after_s / 3
        next_s = dead_after_s / 3
        for connection in list(self._connections):
            silent_s = now_s - connection.heard_s
            if connection.state is GreetingState.OPEN:
                if silent_s >= dead_after_s and not self._paused:
                    connection.channel.abort()
                    self._cut(connection, f"silent for {silent_s:.1f} s")
                elif (waiting := connection.waiting_bytes()) > self.settings.max_unread_bytes:
                    connection.channel.abort()
                    self._cut(connection, f"it does not read: {waiting} bytes wait for it")
                else:
                    connection.ping()
                    next_s = min(next_s, max(dead_after_s - silent_s, SOONEST_TICK_S))
            elif connection.state is GreetingState.CONNACK and now_s - connection.opened_s > (
                self.settings.greeting_s
            ):
                self.refusals["greeting-timeout"] += 1
                connection.channel.abort()
        self.conflict.announced(self.owner.own_other_lives())
        self._tick_due_s = now_s + next_s
        self._ticker = self.host.call_later(next_s, self._tick)

    def _name(self, connection: Connection) -> str:
        return connection.other_id() or connection.channel.remote

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links.values())


def _is_plain_ack(frame: bytes) -> bool:
    return frame[0] == PUBACK and len(frame) == 4
