"""The links of a node: dialling, greeting, keeping alive, keeping for a while, letting go.

Every neighbour has one :class:`Link`, whoever dialled.  When two nodes dial each other, the
connections that the node with the lower id opened are kept, which both ends conclude alike.

A peer that was told to be dialled is dialled for ever, with a growing, jittered pause.  A neighbour
that says goodbye (DISCONNECT) is let go at once; one that just vanishes, or is silent for longer
than `dead_after_s`, is kept for `hold_s`.  One that the operator removed is refused until it is
added again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from isthmus.cooperation.api import SessionInfo
from isthmus.errors import RemoteProtocolError
from isthmus.exchange.connection import Connection, Greeting
from isthmus.exchange.hello import Hello, LinkRefused
from isthmus.exchange.host import Cancellable, Channel, Host
from isthmus.exchange.lane import Incoming
from isthmus.exchange.link import Link, LinkStatus, Peer
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.mqtt.reason_codes import ReasonCode

__all__ = ["STREAM_TOPIC", "LinkOwner", "LinkSettings", "Links"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STREAM_TOPIC = "$isthmus/stream"
MAX_STREAMS = 4_096
MAX_GREETING = 256
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What the configuration says of links."""

    qos: int = 1
    sessions: int = 1
    round_robin: bool = False
    dead_after_s: float = 3.0
    hold_s: float = 60.0
    greeting_s: float = 5.0
    queue_bytes: int = 16 << 20
    max_packet_bytes: int = 17 << 20
    secret: bytes = b""


class LinkOwner(Protocol):
    """Who is told; the exchange."""

    def new_session(self, address: str) -> SessionInfo: ...
    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_gone(self, link: Link) -> None: ...
    def frame_arrived(self, link: Link, lane: int, frame: bytes) -> None: ...


class Links:
    """All links, by the neighbour's id, and the peers to dial, by address."""

    def __init__(self, host: Host, settings: LinkSettings, hello: Hello, owner: LinkOwner) -> None:
        self.host = host
        self.settings = settings
        self.hello = hello
        self.owner = owner
        self.links: dict[str, Link] = {}
        self.peers: dict[str, Peer] = {}
        self.removed: set[str] = set()
        self.refusals: Counter[str] = Counter()
        self._connections: dict[Connection, None] = {}
        self._holds: dict[str, Cancellable] = {}
        self._ticker: Cancellable | None = None
        self._streams = 0
        self._refused_for: dict[str, str] = {}
        self._incoming: dict[tuple[str, int, bytes], Incoming] = {}
        self._stopped = False

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        """Say goodbye to everybody."""
        self._stopped = True
        for timer in (self._ticker, *self._holds.values()):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.say_goodbye(ReasonCode.SERVER_SHUTTING_DOWN)

    # ---- peers ---------------------------------------------------------------------------

    def dial(self, address: str, sessions: int, qos: int) -> Peer:
        """Begin to keep up a link to `address`."""
        if address in self.peers:
            return self.peers[address]
        peer = Peer(address, sessions, qos, self.owner.new_session(address))
        self.peers[address] = peer
        self._dial_soon(peer, 0.0)
        return peer

    def _dial_soon(self, peer: Peer, delay_s: float) -> None:
        if not peer.dialling and peer.timer is None:
            peer.timer = self.host.call_later(delay_s, lambda: self._dial_now(peer))

    def _dial_now(self, peer: Peer) -> None:
        peer.timer = None
        if self._stopped or self.peers.get(peer.address) is not peer:
            return
        if peer.link is not None and peer.link.status is LinkStatus.UP:
            return  # the other node was faster
        peer.dialling = True
        peer.attempt += 1
        self._dial_lane(peer, 0)

    def _dial_lane(self, peer: Peer, lane: int) -> None:
        attempt = peer.attempt
        mine = self.hello.for_lane(lane, peer.sessions)

        def opened(channel: Channel) -> Connection:
            connection = self._connection(channel, mine, dialled=True)
            connection.dialled_for = peer
            connection.attempt = attempt
            if peer.dialling and peer.attempt == attempt:
                connection.begin(max(1, round(self.settings.dead_after_s)))
            else:
                connection.close()  # another lane of its set has failed meanwhile
            return connection

        def failed(problem: str) -> None:
            self._dial_failed(peer, attempt, problem)

        self.host.dial(peer.address, opened, failed)

    def _dial_failed(self, peer: Peer, attempt: int, problem: str) -> None:
        """One lane could not be opened: try the whole set again, later."""
        if not peer.dialling or peer.attempt != attempt:
            return  # of a set that is given up already
        if problem != peer.problem:
            self.host.log("warning", "cannot link", address=peer.address, cause=problem)
        peer.problem = problem
        peer.dialling = False
        peer.failures += 1
        for connection in list(self._connections):
            if connection.dialled_for is peer and connection.attempt == attempt:
                if connection.link is not None:
                    connection.link.went_down()
                connection.close()
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(peer.failures, 10))
        self._dial_soon(peer, pause_s * self.host.random.uniform(0.5, 1.0))

    # ---- connections ---------------------------------------------------------------------

    def accepted(self, channel: Channel) -> Connection:
        """Somebody connected to the link port."""
        greeting = sum(other.state is not Greeting.OPEN for other in self._connections)
        connection = self._connection(channel, self.hello, dialled=False)
        if greeting >= MAX_GREETING:
            self.refusals["too-many-greetings"] += 1
            channel.abort()
        return connection

    def _connection(self, channel: Channel, hello: Hello, *, dialled: bool) -> Connection:
        connection = Connection(
            channel,
            hello,
            dialled=dialled,
            secret=self.settings.secret,
            now_s=self.host.now(),
            max_packet_bytes=self.settings.max_packet_bytes,
            token_bytes=self.host.token_bytes,
            wake=self.host.wake,
        )
        self._connections[connection] = None
        return connection

    def received(self, connection: Connection, data: bytes) -> None:
        """Bytes came on `connection`; whatever is wrong with them ends only this link."""
        try:
            for frame in connection.frames(data, self.host.now()):
                if connection.state is Greeting.CLOSED:
                    return
                if connection.state is not Greeting.OPEN:
                    if connection.greet(frame, lambda peer: self._judge(connection, peer)):
                        self._opened(connection)
                else:
                    self._frame(connection, frame)
        except LinkRefused as error:
            self._refused(connection, error)
        except RemoteProtocolError as error:
            self.refusals["protocol-error"] += 1
            self.host.log(
                "warning", "bad bytes on a link", peer=self._name(connection), cause=str(error)
            )
            connection.say_goodbye(ReasonCode(error.reason_code))
            self._cut(connection, str(error))

    def _frame(self, connection: Connection, frame: bytes) -> None:
        head = frame[0]
        if frame == PINGREQ:
            connection.send(PINGRESP)
        elif frame == PINGRESP:
            pass
        elif head == 0xE0:
            self._goodbye_came(connection, frame)
        elif connection.link is not None:
            if connection.link.status is LinkStatus.UP:
                self.owner.frame_arrived(connection.link, connection.lane, frame)
            else:
                # The other end has all lanes already; here one is still being opened.
                connection.keep_early(frame)

    def _judge(self, connection: Connection, peer: Hello) -> None:
        """Whether `peer` may be linked with; raises `LinkRefused`."""
        if self._stopped:
            raise LinkRefused("stopping", "this node is stopping", ReasonCode.SERVER_SHUTTING_DOWN)
        if peer.node_id == self.hello.node_id:
            raise LinkRefused("same-id", f"both nodes are called {peer.node_id!r}")
        if peer.algorithm != self.hello.algorithm:
            raise LinkRefused(
                "algorithm", f"algorithm {peer.algorithm!r} here {self.hello.algorithm!r}"
            )
        wanted = connection.dialled_for
        if wanted is not None and self.peers.get(wanted.address) is wanted:
            self.removed.discard(peer.node_id)  # it was added again
        elif wanted is not None or peer.node_id in self.removed:
            raise LinkRefused("removed", f"{peer.node_id!r} was removed here")
        link = self.links.get(peer.node_id)
        if link is None or link.status is LinkStatus.DOWN:
            return
        ours, theirs = self.hello.node_id, peer.node_id
        initiator = ours if connection.dialled else theirs
        if link.initiator != initiator and link.initiator == min(ours, theirs):
            raise LinkRefused("duplicate", "there is a link already")

    def _refused(self, connection: Connection, error: LinkRefused) -> None:
        if error.cause != "duplicate":
            self.refusals[error.cause] += 1
            self._log_refusal(connection, error)
        connection.refuse(error)
        peer = connection.dialled_for
        if peer is None:
            return
        if self.peers.get(peer.address) is not peer:
            return  # no longer wanted
        # Whom we dial we want, also if it was removed before; both ends may be waiting for that.
        self.removed.discard(error.node_id)
        if error.cause == "duplicate":
            peer.link = self.links.get(error.node_id or connection.peer_id(), peer.link)
        self._dial_failed(peer, connection.attempt, error.problem)

    def _log_refusal(self, connection: Connection, error: LinkRefused) -> None:
        """Once for each cause: who is refused usually tries again, for ever."""
        name = connection.peer_id() or connection.channel.peer.rpartition(":")[0]
        if self._refused_for.get(name) == error.cause:
            return
        if len(self._refused_for) >= MAX_STREAMS:
            self._refused_for.clear()
        self._refused_for[name] = error.cause
        self.host.log(
            "warning",
            "link refused",
            peer=self._name(connection),
            cause=error.cause,
            detail=error.problem,
        )

    def _opened(self, connection: Connection) -> None:
        """The greeting is over: the connection becomes a lane of the neighbour's link."""
        hello = connection.peer
        assert hello is not None
        self._judge(connection, hello)  # what was right when the greeting began may not be now
        initiator = self.hello.node_id if connection.dialled else hello.node_id
        peer = connection.dialled_for
        link = self.links.get(hello.node_id)
        if link is None:
            link = self._new_link(hello.node_id, peer)
        if peer is not None:
            peer.link = link
            link.qos = peer.qos
        if connection.lane == 0:
            self._replaced(link)
            link.prepare(initiator, hello.incarnation, hello.lanes, self._new_stream())
        elif (
            link.initiator != initiator
            or link.incarnation != hello.incarnation
            or connection.lane >= link.lanes
            or link.connections[connection.lane] is not None
        ):
            raise LinkRefused("bad-lane", "a lane that belongs to no link that is being made")
        link.connections[connection.lane] = connection
        connection.link = link
        if peer is not None and connection.lane == 0:
            for lane in range(1, peer.sessions):
                self._dial_lane(peer, lane)
        if link.complete():
            self._up(link, peer)

    def _new_link(self, node_id: str, peer: Peer | None) -> Link:
        settings = self.settings
        info = peer.info if peer is not None else self.owner.new_session("")
        info.peer = node_id
        link = Link(
            info,
            self._new_stream(),
            qos=settings.qos,
            queue_bytes=settings.queue_bytes,
            round_robin=settings.round_robin,
        )
        self.links[node_id] = link
        return link

    def _new_stream(self) -> str:
        self._streams += 1
        return f"{self.hello.incarnation}.{self._streams}"

    def stream_arrived(self, link: Link, lane: int, payload: bytes) -> None:
        """The neighbour says which numbers follow on this lane: take up where they were left."""
        key = (link.info.peer, lane, payload)
        incoming = self._incoming.pop(key, None) or Incoming()
        self._incoming[key] = link.incoming[lane] = incoming
        if len(self._incoming) > MAX_STREAMS:
            del self._incoming[next(iter(self._incoming))]

    def _replaced(self, link: Link) -> None:
        """The neighbour connects anew although we did not notice that it was gone."""
        if link.status is LinkStatus.UP:
            self._down(link, "replaced by a new connection")
        else:
            link.went_down()

    def _up(self, link: Link, peer: Peer | None) -> None:
        link.status = LinkStatus.UP
        link.up_since_s = self.host.now()
        if peer is not None:
            peer.failures, peer.problem, peer.dialling = 0, "", False
        self._refused_for.pop(link.info.peer, None)
        if hold := self._holds.pop(link.info.peer, None):
            hold.cancel()
        self.host.log("info", "link up", neighbor=link.info.peer, lanes=link.lanes)
        stream = encode(Publish(STREAM_TOPIC, link.stream.encode()), 5)
        for connection in filter(None, link.connections):
            connection.send(stream)
        self.owner.link_up(link)
        for connection in filter(None, list(link.connections)):
            for frame in connection.take_early():
                self._frame(connection, frame)

    # ---- losing them ---------------------------------------------------------------------

    def lost(self, connection: Connection, cause: str) -> None:
        """The channel under `connection` is gone."""
        self._connections.pop(connection, None)
        connection.state = Greeting.CLOSED
        self._cut(connection, cause)
        if connection.dialled_for is not None:
            self._dial_failed(connection.dialled_for, connection.attempt, cause)

    def _cut(self, connection: Connection, cause: str) -> None:
        """A lane is gone, and with it the link."""
        link = connection.link
        if link is None:
            return
        if link.status is LinkStatus.UP:
            self._down(link, cause)
        else:
            link.went_down()
        self._redial(link)

    def _down(self, link: Link, cause: str) -> None:
        self.host.log("warning", "link down", neighbor=link.info.peer, cause=cause)
        link.went_down()
        self.owner.link_down(link)
        if not self._stopped:
            name = link.info.peer
            self._holds[name] = self.host.call_later(
                self.settings.hold_s, lambda: self._hold_over(name)
            )

    def _hold_over(self, name: str) -> None:
        self._holds.pop(name, None)
        if link := self.links.get(name):
            self.let_go(link, "did not come back")

    def let_go(self, link: Link, cause: str) -> None:
        """The neighbour is no longer one, until it is linked again."""
        if hold := self._holds.pop(link.info.peer, None):
            hold.cancel()
        self.links.pop(link.info.peer, None)
        if link.status is LinkStatus.UP:
            link.went_down()
            self.owner.link_down(link)
        self.host.log("info", "neighbour let go", neighbor=link.info.peer, cause=cause)
        for peer in self.peers.values():
            if peer.link is link:
                peer.link = None
                peer.info = self.owner.new_session(peer.address)
                self._dial_soon(peer, FIRST_PAUSE_S * self.host.random.uniform(0.5, 1.5))
        self.owner.link_gone(link)

    def _goodbye_came(self, connection: Connection, frame: bytes) -> None:
        """A node that stops and will know us again is kept, like one that crashed."""
        link, peer = connection.link, connection.peer
        connection.close()
        if link is None:
            return
        stops = len(frame) > 2 and frame[2] == ReasonCode.SERVER_SHUTTING_DOWN
        if stops and peer is not None and peer.keeps_state:
            connection.link = link
            self._cut(connection, "it stops, and may be back")
        else:
            self.let_go(link, "it said goodbye")

    def _redial(self, link: Link) -> None:
        for peer in self.peers.values():
            if peer.link is link:
                self._dial_soon(peer, FIRST_PAUSE_S * self.host.random.uniform(0.5, 1.5))

    def _leads_elsewhere(self, link: Link, peer: Peer) -> bool:
        return any(other.link is link and other is not peer for other in self.peers.values())

    def _forget_peer(self, peer: Peer) -> None:
        self.peers.pop(peer.address, None)
        if peer.timer is not None:
            peer.timer.cancel()

    def remove(self, name: str) -> bool:
        """The operator removes a neighbour, by its id or address."""
        peer = self.peers.get(name)
        link = peer.link if peer is not None else self.links.get(name)
        if peer is None and link is None:
            return False
        if peer is not None and link is not None and self._leads_elsewhere(link, peer):
            # Another address leads to the same node: only this one is not wanted.
            self._forget_peer(peer)
            return True
        for other in list(self.peers.values()):
            if other is peer or (link is not None and other.link is link):
                self._forget_peer(other)
        if link is not None:
            self.removed.add(link.info.peer)
            for connection in link.connections:
                if connection is not None:
                    connection.say_goodbye(ReasonCode.ADMINISTRATIVE_ACTION)
            self.let_go(link, "removed by the operator")
        return True

    # ---- every turn, every tick ----------------------------------------------------------

    def flush(self) -> None:
        for connection in self._connections:
            connection.flush()

    def _tick(self) -> None:
        """Ping every lane; cut those that have been silent for too long."""
        now_s = self.host.now()
        for connection in list(self._connections):
            silent_s = now_s - connection.heard_s
            if connection.state is Greeting.OPEN:
                if silent_s > self.settings.dead_after_s:
                    connection.channel.abort()
                    self._cut(connection, f"silent for {silent_s:.1f} s")
                else:
                    connection.send(PINGREQ)
            elif (
                connection.state is not Greeting.CLOSED
                and now_s - connection.opened_s > self.settings.greeting_s
            ):
                self.refusals["greeting-timeout"] += 1
                connection.channel.abort()
        self._ticker = self.host.call_later(self.settings.dead_after_s / 3, self._tick)

    def _name(self, connection: Connection) -> str:
        return connection.peer_id() or connection.channel.peer

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links.values())
