"""Virtual links: byte streams with delay and bandwidth that break, stall and vanish.

As with TCP, what arrives on a living connection arrives in order and complete, in chunks cut
anywhere; nothing is lost from its middle.  What can happen to it:

* it **breaks**: of what is in flight in either direction a prefix, cut at any byte, still arrives,
  and both ends are told;
* a **partition** stalls it: nobody is told.  If the partition ends while both ends still live, what
  was stalled arrives late; an end that has given up in the meantime answers with a reset;
* a process is **killed**: its machine closes the connection, after what was written or at once;
* a machine **vanishes**: nobody is told, and nothing answers until it is back.

The contract of `isthmus.exchange.host.Channel` is kept: every callback is an event of its own, and
`Links.lost` is called exactly once for each end whose node still runs.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

from isthmus.exchange.host import Channel
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.traffic.message import from_link
from isthmus.mqtt.framing import scan
from isthmus.mqtt.primitives import PacketType
from isthmus.mqtt.publish_layout import topic_start
from isthmus.sim.engine import Engine
from isthmus.sim.trace import Trace

__all__ = [
    "CONNECT_TIMEOUT_S",
    "DatagramSettings",
    "Endpoint",
    "HopRecord",
    "Network",
    "SimChannel",
    "WireSettings",
]

CONNECT_TIMEOUT_S = 2.0
LATE_S = 5.0
SOCKET_BUFFER_BYTES = 64 << 10
PIECE_S = 0.5
"""What takes longer on a wire arrives in pieces of this length at most."""
RECHUNK = 0.15
"""How often a chunk is cut in two on its way."""

_PINGS = frozenset((0xC0, 0xD0))
_PING_BYTES = frozenset((0xC0, 0xD0, 0x00))
_CONTROL = b"$isthmus/"
_FIN = b""


@dataclass(slots=True)
class WireSettings:
    """What lies between two nodes."""

    delay_s: float = 0.005
    bytes_per_s: float = 0.0
    """0 for unlimited."""
    lane_delay_s: float = 0.0
    """How much longer each lane of a link takes than the one before."""
    control_delay_s: float = 0.0
    """How much longer the first one takes, by which control packets go."""

    def delay_of(self, lane: int) -> float:
        return self.delay_s + (lane * self.lane_delay_s if lane else self.control_delay_s)


@dataclass(frozen=True, slots=True)
class DatagramSettings:
    """What becomes of datagrams, besides what cuts do to them."""

    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    """How often one is overtaken by others, by `LATE_S` at most."""
    unheard: frozenset[tuple[str, str]] = frozenset()
    """Of none of the first one's the second one hears, whatever else passes between them."""


class HopRecord(NamedTuple):
    """A message on one link."""

    at_s: float
    """When it was sent."""
    source: str
    target: str
    topic: str
    qos: int
    """The publisher's."""
    origin: str
    number: str
    label: bytes
    hops: int
    """Links crossed, this one included."""
    size: int
    """Bytes of its packet."""
    payload: bytes


class Endpoint(Protocol):
    """One life of a node, as the network sees it."""

    name: str
    alive: bool

    def accepted(self, channel: Channel) -> Connection: ...
    def received(self, connection: Connection, data: bytes) -> None: ...
    def lost(self, connection: Connection, cause: str) -> None: ...
    def announced(self, datagram: bytes, remote: str) -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class SimChannel:
    """One end of a connection."""

    _network: Network
    owner: Endpoint
    other: SimChannel = field(init=False)
    connection: Connection | None = None
    flight: deque[bytes] = field(default_factory=deque)
    """Written here and not yet arrived there; an empty chunk is the end of the stream."""
    flight_bytes: int = 0
    ended: bool = False
    """This end neither sends nor receives any more."""
    lost: bool = False
    severed: bool = False
    _owed: int = 0
    _free_s: float = 0.0
    _last_s: float = 0.0
    """When what was written last arrives; nothing arrives before it on a wire that becomes fast."""

    @property
    def remote(self) -> str:
        return self.other.owner.name

    @property
    def _wire(self) -> WireSettings:
        """As it is now: it may change while the connection stands."""
        return self._network.wire(self.owner.name, self.remote)

    # ---- what the exchange calls ---------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.ended and data:
            self._network.count(self.owner.name, self.remote, data)
            self._put(data)

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._put(_FIN)
            self._lose_soon(0.0, "closed here")

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            self._clear()
            self._put(_FIN)
            self._lose_soon(0.0, "aborted here")

    def hold_reading(self) -> None:
        """What arrives is delivered all the same, as a channel may."""

    def release_reading(self) -> None:
        pass

    def buffered_bytes(self) -> int:
        if self._owed == 0 and not self._wire.bytes_per_s:
            return 0
        return max(0, self.flight_bytes - SOCKET_BUFFER_BYTES)

    # ---- what happens to it --------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if self.severed:
            return
        lane = self.connection.lane if self.connection is not None else 0
        wire = self._wire
        delay_s = wire.delay_of(lane)
        start = 0
        if wire.bytes_per_s:
            piece = max(1, round(wire.bytes_per_s * PIECE_S))
            while len(data) - start > piece:
                self._put_piece(data[start : start + piece], delay_s, wire.bytes_per_s)
                start += piece
        self._put_piece(data[start:], delay_s, wire.bytes_per_s)

    def _put_piece(self, data: bytes, delay_s: float, bytes_per_s: float) -> None:
        self.flight.append(data)
        self.flight_bytes += len(data)
        engine = self._network.engine
        if not self._network.reachable(self.owner.name, self.remote):
            self._owed += 1
            return
        self._free_s = max(engine.now_s, self._free_s)
        if bytes_per_s:
            self._free_s += len(data) / bytes_per_s
        self._last_s = max(self._free_s + delay_s, self._last_s)
        engine.call_at(self._last_s, self._arrive)

    def _clear(self) -> None:
        self.flight.clear()
        self.flight_bytes = 0

    def _arrive(self) -> None:
        """The first chunk in flight is there."""
        if not self.flight:
            return
        if not self._network.reachable(self.owner.name, self.remote):
            self._owed += 1
            return
        data = self.flight.popleft()
        if len(data) > 1 and self._network.random.random() < RECHUNK:
            cut = self._network.random.randrange(1, len(data))
            self.flight.appendleft(data[cut:])
            data = data[:cut]
            self._network.engine.call_later(0.0, self._arrive)
        self.flight_bytes -= len(data)
        self.other._take(data)

    def resume(self) -> None:
        """The partition is over: what was stalled is sent again."""
        if self._owed:
            owed, self._owed = self._owed, 0
            delay_s = self._wire.delay_s + self._network.random.uniform(0.0, 0.5)
            for _ in range(owed):
                self._network.engine.call_later(delay_s, self._arrive)

    def _take(self, data: bytes) -> None:
        if data == _FIN:
            if not self.ended:
                self.ended = True
                self.lose("closed by the other end")
            return
        if self.ended or not self.owner.alive:
            # Nobody reads here any more: the machine, if it is there, answers with a reset.
            if self.owner.name not in self._network.off and not self.other.ended:
                self.other.ended = True
                self.other._lose_soon(self._wire.delay_s, "reset by the other end")
            return
        if self.connection is not None:
            if not _PING_BYTES.issuperset(data):
                self._network.engine.activity()
            self.owner.received(self.connection, data)

    def _lose_soon(self, delay_s: float, cause: str) -> None:
        self._network.engine.call_later(delay_s, lambda: self.lose(cause))

    def lose(self, cause: str) -> None:
        self.ended = True
        if not self.lost:
            self.lost = True
            self._network.forget(self)
            if self.owner.alive and self.connection is not None:
                self._network.engine.activity()
                self.owner.lost(self.connection, cause)

    def sever(self) -> None:
        """This direction of a connection that breaks."""
        rng = self._network.random
        rest = b"".join(self.flight)
        self._clear()
        if rest and rng.random() < 0.5:
            prefix = rest[: rng.randrange(len(rest))]
            if prefix and not self.other.ended:
                self._network.engine.call_later(0.0, lambda: self.other._take(prefix))
        self.severed = True
        self._lose_soon(rng.uniform(0.001, 0.1), "connection broken")

    def killed(self) -> None:
        """The process at this end is gone; its machine says so."""
        if not self.ended:
            self.ended = self.lost = True
            if self._network.random.random() < 0.5:
                self._clear()
            self._put(_FIN)
        self._network.forget(self)

    def vanished(self) -> None:
        """The machine at this end is gone; nobody says so."""
        self.ended = self.lost = self.severed = True
        self._clear()
        self._network.forget(self)


class Network:
    """Who can reach whom, and every connection there is."""

    def __init__(self, engine: Engine, trace: Trace, wire: WireSettings) -> None:
        self.engine = engine
        self.trace = trace
        self.random: random.Random = engine.random_for("network")
        self._dice = engine.random_for("datagrams")
        self.default_wire = wire
        self.off: set[str] = set()
        """Machines that are gone without a word."""
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self.datagrams = DatagramSettings()
        self.on_hop: Callable[[HopRecord], None] | None = None
        """Is told of every message that is sent on a link."""
        self._wires: dict[tuple[str, str], WireSettings] = {}
        """From one to another."""
        self._cut: set[tuple[str, str]] = set()
        """Who cannot send to whom."""
        self._listening: dict[str, Endpoint] = {}
        self._channels: dict[SimChannel, None] = {}

    # ---- shape ---------------------------------------------------------------------------

    def set_wire(self, one: str, other: str, wire: WireSettings) -> None:
        """Both ways."""
        self.set_way(one, other, wire)
        self.set_way(other, one, wire)

    def set_way(self, source: str, target: str, wire: WireSettings) -> None:
        """From `source` to `target`, also on connections that stand; back it may be another one."""
        self._wires[source, target] = wire

    def wire(self, source: str, target: str) -> WireSettings:
        """What lies between them for what `source` sends."""
        return self._wires.get((source, target), self.default_wire)

    def wires(self) -> list[WireSettings]:
        return [self.default_wire, *self._wires.values()]

    def reachable(self, one: str, other: str) -> bool:
        """Whether what `one` sends arrives at `other`; the other way round may differ."""
        return not self._cut or (one, other) not in self._cut

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing that the first of a pair sends arrives at the second."""
        self._cut |= set(pairs)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Every cut is over, or those of `pairs`."""
        if self._cut:
            self._cut -= self._cut.copy() if pairs is None else set(pairs)
            for channel in list(self._channels):
                channel.resume()

    @property
    def whole(self) -> bool:
        return not self._cut and not self.off

    # ---- connections ---------------------------------------------------------------------

    def listen(self, endpoint: Endpoint) -> None:
        self._listening[endpoint.name] = endpoint

    def stop_listening(self, name: str) -> None:
        self._listening.pop(name, None)

    def forget(self, channel: SimChannel) -> None:
        self._channels.pop(channel, None)

    def dial(
        self,
        source: Endpoint,
        address: str,
        opened: Callable[[Channel], Connection],
        failed: Callable[[str], None],
    ) -> None:
        target_name = address.partition(":")[0]
        wire, back = self.wire(source.name, target_name), self.wire(target_name, source.name)

        def fail(delay_s: float, problem: str) -> None:
            self.engine.call_later(delay_s, lambda: failed(problem) if source.alive else None)

        def syn_arrives() -> None:
            if not self.reachable(source.name, target_name) or target_name in self.off:
                fail(CONNECT_TIMEOUT_S, "timed out")
                return
            target = self._listening.get(target_name)
            if target is None:
                fail(back.delay_s, "connection refused")
                return
            here, there = SimChannel(self, source), SimChannel(self, target)
            here.other, there.other = there, here
            self._channels[here] = self._channels[there] = None
            there.connection = target.accepted(there)
            self.engine.call_later(back.delay_s, lambda: answered(here))

        def answered(here: SimChannel) -> None:
            if not source.alive:
                here.killed()
            elif not self.reachable(target_name, source.name):
                here.vanished()  # the other end's greeting will time out
                fail(CONNECT_TIMEOUT_S, "timed out")
            elif here.lost:
                failed("closed at once")
            else:
                here.connection = opened(here)

        self.engine.call_later(wire.delay_s, syn_arrives)

    def announce(self, source: Endpoint, datagram: bytes) -> None:
        """To every machine that listens, the sender's own included, or not."""
        settings = self.datagrams
        for name in self._listening:
            if not self.reachable(source.name, name) or name in self.off:
                continue
            if (source.name, name) in settings.unheard:
                continue
            copies = 1 + (self._dice.random() < settings.duplication)
            for _ in range(copies):
                if self._dice.random() < settings.loss:
                    continue
                delay_s = self.wire(source.name, name).delay_s
                if self._dice.random() < settings.late:
                    delay_s += self._dice.uniform(0.0, LATE_S)
                self.engine.call_later(
                    delay_s, partial(self._announced, name, datagram, source.name)
                )

    def _announced(self, name: str, datagram: bytes, source: str) -> None:
        target = self._listening.get(name)
        if target is not None and target.alive and name not in self.off:
            target.announced(datagram, source)

    def break_connections(self, one: str, other: str) -> int:
        """Every connection between two nodes breaks; how many there were."""
        pair = {one, other}
        broken = [c for c in self._channels if {c.owner.name, c.remote} == pair and not c.severed]
        for channel in broken:
            channel.sever()
        return len(broken) // 2

    def endpoint_gone(self, endpoint: Endpoint, *, silent: bool) -> None:
        """All ends at `endpoint` go with it."""
        if self._listening.get(endpoint.name) is endpoint:
            del self._listening[endpoint.name]
        if silent:
            self.off.add(endpoint.name)
        for channel in [c for c in self._channels if c.owner is endpoint]:
            if silent:
                channel.vanished()
            else:
                channel.killed()

    # ---- counting ------------------------------------------------------------------------

    def count(self, source: str, target: str, data: bytes) -> None:
        counts = self.counts.setdefault((source, target), Counter())
        for start, stop in pairwise(scan(data)):
            kind = PacketType(data[start] >> 4).name
            if kind == "PUBLISH" and data.startswith(_CONTROL, topic_start(data, start)):
                kind = "CONTROL"
            counts[kind] += 1
            if kind == "PUBLISH" and self.on_hop is not None:
                self.on_hop(self._hop(source, target, data[start:stop]))
            if data[start] not in _PINGS:
                self.engine.activity()
                if self.trace.on:
                    frame = data[start:stop]
                    self.trace.note(f"{source}->{target}", kind, bytes=_readable(frame))

    def _hop(self, source: str, target: str, frame: bytes) -> HopRecord:
        message, _ = from_link(frame, self.engine.now_s)
        return HopRecord(
            self.engine.now_s,
            source,
            target,
            message.topic.decode(),
            message.qos,
            message.origin,
            message.number,
            message.label,
            message.hops,
            len(frame),
            message.payload,
        )


def _readable(frame: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in frame[:100])
