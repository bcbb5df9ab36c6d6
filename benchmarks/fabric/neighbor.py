"""A neighbor that inter-subscribes to very many filters, and does nothing else.

It is a real exchange, so greeting, keep-alive, streams and topology guard are the product's own,
on one blocking socket in a thread.  Its algorithm only announces, in SF's packets and with SF's
window, and counts what was acknowledged; it keeps no table of a million filters of its own.
"""

from __future__ import annotations

import heapq
import itertools
import random
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.fabric.timed import TimedSubscriptionFlooding

from isthmus.cooperation.api import (
    CooperationAlgorithm,
    Port,
    ReceivedPacket,
    Resources,
    SessionInfo,
)
from isthmus.cooperation.subscription_flooding.algorithm import SYNC_BEGIN, SYNC_END, SYNC_TOPIC
from isthmus.cooperation.subscription_flooding.neighbor import BATCH_FILTERS, WINDOW, take_batch
from isthmus.errors import IsthmusError, LoadError
from isthmus.exchange.exchange import Exchange, ExchangeSettings
from isthmus.exchange.host import Cancellable, Channel, StateRewrite
from isthmus.exchange.link.connection import Connection
from isthmus.exchange.link.links import LinkSettings
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.packets import Publish, SubAck, Subscribe, Subscription
from isthmus.mqtt.primitives import PacketType

__all__ = ["Announcer", "Neighbor", "running_neighbor"]

PATIENCE_S = 60.0  # the node under test may be busy for long: that is measured, not punished
RECEIVE_BYTES = 1 << 18
TURN_S = 0.02


class Announcer(CooperationAlgorithm):
    """Inter-subscribes to everything in `filters` and counts the acknowledgments."""

    name = TimedSubscriptionFlooding.name

    def __init__(
        self, port: Port, options: Mapping[str, object], filters: Iterable[str] = ()
    ) -> None:
        super().__init__(port, options)
        self.acknowledged = 0
        self.done = False
        self.messages = 0
        self._filters = iter(filters)
        self._next: dict[str, None] = {}
        self._packet_ids = itertools.cycle(range(1, 65_536))
        self._unacknowledged: set[int] = set()

    def on_session_established(self, session: SessionInfo) -> None:
        self._send(session, Publish(SYNC_TOPIC, SYNC_BEGIN))
        self._announce(session)

    def on_tcp_down(self, session: SessionInfo) -> None:
        raise LoadError("the node under test closed the link")

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        if message.type is PacketType.SUBACK:
            packet = message.packet
            assert isinstance(packet, SubAck)
            self._unacknowledged.remove(packet.packet_id)
            self.acknowledged += len(packet.reason_codes)
            self._announce(session)
        return True

    def _announce(self, session: SessionInfo) -> None:
        while len(self._unacknowledged) < WINDOW and not self.done:
            missing = BATCH_FILTERS - len(self._next)
            self._next.update(dict.fromkeys(itertools.islice(self._filters, missing)))
            if not self._next:
                self.done = True
                self._send(session, Publish(SYNC_TOPIC, SYNC_END))
                return
            packet_id = next(self._packet_ids)
            self._unacknowledged.add(packet_id)
            wanted = tuple(
                Subscription(each, qos=2, no_local=True, retain_as_published=True)
                for each in take_batch(self._next)
            )
            self._send(session, Subscribe(packet_id, wanted))

    def _send(self, session: SessionInfo, packet: Publish | Subscribe) -> None:
        self.port.send_message(session, self.port.create_mqtt_message(packet))


class _Timer:
    """A timer of the thread's loop, in the order of their times."""

    __slots__ = ("at_s", "callback")

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return self.at_s < other.at_s

    def cancel(self) -> None:
        self.callback = None


class _SocketChannel:
    """The exchange's `Channel` on a blocking socket: the node under test always reads."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.remote = "127.0.0.1"

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.close()

    abort = close

    def hold_reading(self) -> None:
        """Nothing: it is read when it is asked for."""

    def release_reading(self) -> None:
        pass

    def buffered_bytes(self) -> int:
        return 0


class Neighbor:
    """The exchange's `Host`, its one connection, and the loop that serves both."""

    keeps_state = False

    def __init__(
        self, node_id: str, filters: Iterable[str], algorithm: str = Announcer.name
    ) -> None:
        self.random = random.Random(node_id)
        self.problem = ""
        self.injected = 0
        self._timers: list[_Timer] = []
        self._woken = False
        self._channel: _SocketChannel | None = None
        self._connection: Connection | None = None
        patient = LinkSettings(dead_after_s=PATIENCE_S, greeting_s=PATIENCE_S)
        settings = ExchangeSettings(node_id, algorithm, {}, patient)
        self.exchange = Exchange(
            self, settings, lambda port, options: Announcer(port, options, filters)
        )

    @property
    def announcer(self) -> Announcer:
        """The algorithm; reading its counters from another thread is safe."""
        algorithm = self.exchange.algorithm
        assert isinstance(algorithm, Announcer)
        return algorithm

    # ---- Host ----------------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def token_bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        timer = _Timer(self.now() + delay_s, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def wake(self) -> None:
        self._woken = True

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        host, _, port = address.rpartition(":")

        def connect() -> None:
            try:
                sock = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            except OSError as error:
                failed(str(error))
                return
            self._channel = _SocketChannel(sock)
            self._connection = opened(self._channel)

        self.call_later(0.0, connect)

    def resources(self) -> Resources:
        return Resources(1.0, 1 << 30)

    def announce(self, datagram: bytes) -> None:
        """To nobody."""

    def neighbor_joined(self, key: str) -> None:
        """There is no broker here."""

    def neighbor_left(self, key: str) -> None:
        """There is no broker here."""

    def inject(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> bool:
        self.injected += 1
        return True

    def set_broker_apart(self, key: str) -> bool:
        return False

    def publish_left(self, key: str) -> None:
        """Nothing is kept."""

    def give_up_injected(self, key: str, size: int) -> int:
        return 0

    def inject_plain(self, topics: Sequence[bytes], payloads: Sequence[bytes], key: str) -> int:
        self.injected += len(topics)
        return 0

    def take_from_broker(self) -> None:
        """Nor is anything taken from one."""

    def want(self, added: Sequence[str], removed: Sequence[str]) -> None:
        pass

    def stop_taking(self) -> None:
        pass

    def ask_retained(
        self, topics: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        self.call_later(0.0, lambda: answer(None))

    def rewrite_state(self, name: str) -> StateRewrite:
        raise NotImplementedError("nothing is kept")

    def load_state(self, name: str, version: int) -> bytes | None:
        return None

    def save_state(self, name: str, state: bytes) -> None:
        """Nothing is kept."""

    def append_state(self, name: str, more: bytes) -> None:
        """Nothing is kept."""

    def spools(self) -> Mapping[str, int]:
        return {}

    def load_spool(self, file: str, size: int) -> bytes:
        raise NotImplementedError("nothing is kept")

    def write_spool(self, file: str, offset: int, data: bytes, done: Callable[[str], None]) -> None:
        raise NotImplementedError("nothing is kept")

    def read_spool(
        self, file: str, offset: int, size: int, done: Callable[[bytes | None], None]
    ) -> None:
        raise NotImplementedError("nothing is kept")

    def drop_spool(self, file: str) -> None:
        raise NotImplementedError("nothing is kept")

    def log(self, level: str, event: str, **fields: object) -> None:
        if level in ("warning", "error"):
            self.problem = f"{event} {fields}"

    # ---- the loop ------------------------------------------------------------------------

    def serve(self, address: str, stopping: threading.Event) -> None:
        """Keep up the link to `address` until `stopping`; a problem is left for the starter."""
        try:
            self.exchange.start()
            self.exchange.add_peer(address)
            while not stopping.is_set():
                self._turn()
            self.exchange.stop()
            self.exchange.flush()
        except (LoadError, IsthmusError, OSError) as error:
            self.problem = str(error) or type(error).__name__
        finally:
            if self._channel is not None:
                self._channel.close()

    def _turn(self) -> None:
        while self._timers and self._timers[0].at_s <= self.now():
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()
        if self._woken:
            self._woken = False
            self.exchange.flush()
        if self._channel is None or self._connection is None:
            time.sleep(TURN_S)
            return
        if select.select([self._channel.sock], [], [], TURN_S)[0]:
            data = self._channel.sock.recv(RECEIVE_BYTES)
            if not data:
                raise LoadError("the node under test closed the link")
            self.exchange.links.received(self._connection, data)


@contextmanager
def running_neighbor(
    node_id: str,
    address: str,
    filters: Iterable[str],
    algorithm: str = Announcer.name,
    *,
    begin: Callable[[Neighbor], None] = lambda _: None,
) -> Iterator[Neighbor]:
    """A neighbor of the node at `address`; it says goodbye on leaving.

    `begin` is called with it in its own thread, before it dials.
    """
    neighbor = Neighbor(node_id, filters, algorithm)
    neighbor.call_later(0.0, lambda: begin(neighbor))
    stopping = threading.Event()
    thread = threading.Thread(
        target=neighbor.serve, args=(address, stopping), name=node_id, daemon=True
    )
    thread.start()
    try:
        yield neighbor
    finally:
        stopping.set()
        thread.join(PATIENCE_S)
