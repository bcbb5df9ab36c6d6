"""What comes from a client: in which order, how much of it, and when it is handled.

What its session waits for (`isthmus.exchange.client.life`) decides what becomes of what a client
sends.  Only when it is OPEN are packets handled as they come.  Else they are *parked*, with two
exceptions: AUTH passes before the CONNACK, which depends on it, and pings pass while a link is
congested, so that nobody takes the client for dead; `PASSING_FRAMES` of them in one read.

Invariants:

* packets are handled in the order in which they came, each whole and once;
* what is parked is bounded by `buffer_bytes` and one read; beyond it the client is not read;
* something is parked only while the session waits;
* frames are handled for one slice at a time (`isthmus.exchange.turns`);
* after bytes that are no packet nothing more is taken, and what came before them is handled.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.life import CLIENT, ClientEvent, ClientState
from isthmus.exchange.session import Session, SessionStatus
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.tables import step

if TYPE_CHECKING:
    from isthmus.exchange.client.relay import Relay

__all__ = ["ClientInput"]

SLICE_FRAMES = 1024
"""Frames that are handled in one go, if the slice is long enough."""

PASSING_FRAMES, PASSING_BYTES = 64, 16_384
"""AUTHs or pings of one read that pass what waits; the last one may be longer."""

COUNTED_BYTES = 1024
"""A packet that ends a little after a read is not worth counting."""

_PINGREQ, _AUTH = 0xC0, 0xF0


# Looked up at every read.
_CONNECT, _OPEN = ClientState.CONNECT, ClientState.OPEN
_ESTABLISHED = SessionStatus.ESTABLISHED


class ClientInput(Session):
    """The receiving half of a client's connection."""

    __slots__ = (
        "address",
        "buffer",
        "carried_bytes",
        "connect_frame",
        "deaf",
        "ends_s",
        "interrupted",
        "max_packet_bytes",
        "parked",
        "parked_bytes",
        "pending_bytes",
        "protocol_level",
        "reading_held",
        "relay",
        "state",
    )

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay.host, relay.limits.drain_s)
        self.relay = relay
        self.max_packet_bytes = relay.limits.packet_bytes
        self.buffer = FrameBuffer()
        self.carried_bytes = 0
        """Bytes that wait in what carries the session: of an incomplete WebSocket frame."""
        self.pending_bytes = 0
        """What `Pending` has counted for it."""
        self.address = ""
        """Whose it is counted as."""
        self.state = ClientState.CONNECT
        self.protocol_level = 4
        self.connect_frame = b""
        """The CONNECT, until it is answered."""
        self.interrupted = False
        """The frame being handled is the last one for now."""
        self.ends_s = 0.0
        """When the slice is over; 0 before anything costly was done in it."""
        self.parked: deque[bytes] = deque()
        self.parked_bytes = 0
        self.reading_held = False
        self.deaf = False
        """What is parked last is no packet: nothing behind it is to be read."""

    def happens(self, event: ClientEvent) -> None:
        self.state, actions = step(CLIENT, self.state, event)
        if actions:  # there is but one
            self.relay.turns.wait(self)

    @property
    def orphaned(self) -> bool:
        """The client is gone, but what it sent is not yet handled."""
        return self.status is SessionStatus.CLOSED and self.state is not ClientState.GONE

    # ---- what is done with it ------------------------------------------------------------

    @abstractmethod
    def _first_packet(self, data: bytes) -> None:
        """Expect a CONNECT in `data`, perhaps not all of it."""

    @abstractmethod
    def _relay(self, data: bytes, offsets: Sequence[int]) -> int:
        """Handle the whole frames in `data` until `interrupted`; how far it came."""

    @abstractmethod
    def _check_other(self, head: int, data: bytes, start: int, stop: int) -> None:
        """Check a packet that is not PUBLISH."""

    @abstractmethod
    def _forward(self, data: bytes, publishes: int) -> None:
        """Send whole packets to the broker."""

    @abstractmethod
    def fail(self, error: RemoteProtocolError) -> None:
        """The client sent what it must not: it is over."""

    @abstractmethod
    def end_for_pending(self, error: RemoteProtocolError) -> None:
        """It holds the most of what is held too much."""

    @abstractmethod
    def finish(self) -> None:
        """The client is gone, and everything it sent is handled or discarded."""

    # ---- bytes from the client -----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.status is not _ESTABLISHED or self.state.over:
            return
        if not self.relay.pacer.armed:
            self.relay.pacer.arm()
        buffer = self.buffer
        if buffer.pending_bytes and not (data := buffer.push(data)):
            self._count_pending()
            return
        if self.state is _CONNECT:
            self._first_packet(data)
            return
        try:
            offsets = scan(data, self.max_packet_bytes)
        except RemoteProtocolError as error:
            # The frames before the bad one are good; it ends the connection when they are done.
            good = data[: error.offset]
            self._many_received(good, scan(good))
            self._park_bad(data[error.offset :], error)
            return
        if self.state is not _OPEN or len(offsets) > SLICE_FRAMES:
            self._many_received(data, offsets)
            return
        if len(offsets) > 2:
            self.ends_s = 0.0
        whole = self._relay(data, offsets)
        if self.state.over:
            return
        if whole == len(data):
            if self.pending_bytes:
                self._count_pending()
            return
        if whole < offsets[-1]:
            self._put_back(data[whole : offsets[-1]])
        self._keep(data[offsets[-1] :])

    def _many_received(self, data: bytes, offsets: Sequence[int]) -> None:
        """Handle whole frames in pieces, or let them wait; keep the incomplete one behind them."""
        try:
            self._park(data, offsets)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        if self.state is _OPEN:
            self.go_on(self.relay.turns.slice_ends_s())
        if not self.state.over:
            self._keep(data[offsets[-1] :])

    # ---- what waits ----------------------------------------------------------------------

    def _park(self, data: bytes, offsets: Sequence[int], *, first: bool = False) -> None:
        """Let whole frames wait, in pieces of `SLICE_FRAMES`, behind the others or before them.

        Pings pass while a link is congested, so that nobody takes the client for dead; AUTH passes
        before the CONNACK, which depends on it.
        """
        begin = offsets[0]
        pieces: list[bytes] = []
        passes = 0
        if self.state is ClientState.LINK:
            passes = _PINGREQ
        elif (
            self.state is ClientState.CONNACK
            and self.paired is not None
            and self.protocol_level == 5
        ):
            passes = _AUTH
        if passes and data.count(passes):
            frames = size = 0
            for start, stop in pairwise(offsets):
                if data[start] == passes and (passes == _AUTH or stop - start == 2):
                    self._check_other(passes, data, start, stop)
                    self._forward(data[start:stop], 0)
                    pieces.append(data[begin:start])
                    begin = stop
                    frames += 1
                    size += stop - start
                    if frames == PASSING_FRAMES or size > PASSING_BYTES:
                        break  # who needs one sends no more than that: they wait like the rest
            pieces.append(data[begin : offsets[-1]])
        else:
            for at in range(SLICE_FRAMES, len(offsets) - 1, SLICE_FRAMES):
                pieces.append(data[begin : offsets[at]])
                begin = offsets[at]
            pieces.append(data[begin : offsets[-1]])
        pieces = [piece for piece in pieces if piece]
        if first:
            self.parked.extendleft(reversed(pieces))
        else:
            self.parked.extend(pieces)
        self.parked_bytes += sum(map(len, pieces))

    def _put_back(self, rest: bytes) -> None:
        """The frames in `rest` were taken up too early."""
        if self.state is _OPEN:
            self.happens(ClientEvent.OUT_OF_TIME)
        self._park(rest, scan(rest), first=True)
        self._hold_when_full()

    def _park_bad(self, rest: bytes, error: RemoteProtocolError) -> None:
        """What `rest` begins with is wrong: that ends the connection after what waits before it."""
        if self.state.over:
            return
        if self.state is _OPEN:
            self.fail(error)
            return
        self.parked.append(rest)
        self.parked_bytes += len(rest)
        self.deaf = True
        self._hold_reading()

    def _keep(self, rest: bytes) -> None:
        """Keep an incomplete frame until more of it arrives."""
        self.buffer.keep(rest)
        self._count_pending()

    def go_on(self, ends_s: float) -> None:
        """Handle what is parked, until it has to wait again."""
        self.happens(ClientEvent.GOES_ON)
        self.ends_s = ends_s
        parked = self.parked
        while parked and not self.state.over:
            if self.paired is None or self.paired.status is not SessionStatus.ESTABLISHED:
                self._forget_parked()  # nobody to give it to
                break
            piece = parked.popleft()
            self.parked_bytes -= len(piece)
            self._handle_piece(piece)
            if self.state is ClientState.LINK:
                self._read_pings()
                return
            if self.state is ClientState.TURN:
                return
            if parked and self.state is _OPEN and self.host.clock() > ends_s:
                self._put_back(b"")
                return
        if self.orphaned:
            self.finish()
        elif self.reading_held:
            self.reading_held = False
            self.release_reading()

    def _handle_piece(self, piece: bytes) -> None:
        fault: RemoteProtocolError | None = None
        bad = b""
        try:
            offsets = scan(piece, self.max_packet_bytes)
        except RemoteProtocolError as error:
            fault, bad, piece = error, piece[error.offset :], piece[: error.offset]
            offsets = scan(piece)
        if len(offsets) > SLICE_FRAMES + 1:
            self._park(piece + bad, [*offsets, offsets[-1] + len(bad)], first=True)
            return
        whole = self._relay(piece, offsets)
        if self.state.over:
            return
        if fault is not None:
            if whole == len(piece) and self.state is _OPEN:
                self.fail(fault)
                return
            self.parked.appendleft(bad)
            self.parked_bytes += len(bad)
        if whole < len(piece):
            self._put_back(piece[whole:])

    def _hold_when_full(self) -> None:
        waiting = self.parked_bytes + self.buffer.pending_bytes + self.carried_bytes
        if self.state is ClientState.TURN or waiting > self.relay.limits.buffer_bytes:
            self._hold_reading()

    def _read_pings(self) -> None:
        """A link is congested: go on reading what passes meanwhile, unless too much waits."""
        waiting = self.parked_bytes + self.buffer.pending_bytes + self.carried_bytes
        if self.reading_held and not self.deaf and waiting <= self.relay.limits.buffer_bytes:
            self.reading_held = False
            self.release_reading()

    def _hold_reading(self) -> None:
        if not self.reading_held:
            self.reading_held = True
            self.hold_reading()

    def _forget_parked(self) -> None:
        self.parked.clear()
        self.parked_bytes = 0

    def _forget_pending(self) -> None:
        self._forget_parked()
        self.buffer = FrameBuffer()
        self.connect_frame = b""
        self.carried_bytes = 0
        if self.pending_bytes:
            self.relay.pending.count(self, 0)

    def carrier_holds(self, size: int) -> None:
        """So many bytes of an incomplete WebSocket frame wait outside of this session."""
        if self.carried_bytes != size and not self.state.over:
            self.carried_bytes = size
            self._count_pending()

    def _count_pending(self) -> None:
        held = self.buffer.pending_bytes + self.carried_bytes
        if self.state is ClientState.CONNACK:
            held += self.parked_bytes + len(self.connect_frame)
        if not held or abs(held - self.pending_bytes) >= COUNTED_BYTES:
            self.relay.pending.count(self, held)
        if self.state is not _OPEN and self.state is not _CONNECT:
            self._hold_when_full()
