"""Messages whose path is being set up: they wait until the algorithm says where they go.

A `Route` that is *pending* has the node hold what comes on a topic; after `Port.routes_changed` the
algorithm is asked again.  What waits on a topic is sent in the order in which it came, and what
comes meanwhile waits behind it: until nothing waits on it any more a topic's routes count as
pending, whatever the algorithm has answered since.

Bounds: with `queue_bytes` waiting, publishers are held back, and neighbors wait, who get no
acknowledgment; what has waited for `hold_s` is given up, and counted.  At QoS 0 messages are
dropped and counted (`pending_dropped`), or wait as well, if that is configured and there is room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.cooperation.api import Route
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.lane import Held
from isthmus.exchange.traffic.message import Message

__all__ = ["PATH", "PendingRoutes"]

PATH = "the path"
"""What a message in hand waits for; no node can be called so."""
STEP = 200
"""So many are looked at in a turn."""
SWEEP_S = 1.0


@dataclass(slots=True)
class _Waiting:
    message: Message
    in_hand: Held | None
    since_s: float
    given: bool
    """The local broker has it."""


class PendingRoutes:
    """What waits, by topic."""

    def __init__(
        self,
        host: Host,
        counters: Counter[str],
        *,
        present: Callable[[Message], Route],
        send: Callable[[Message, Route, Held | None], None],
        settled: Callable[[bytes], None],
        queue_bytes: int,
        hold_s: float,
        holds_qos0: bool,
    ) -> None:
        """`present` asks the algorithm, `send` passes on, `settled` is told of topics done with."""
        self._host = host
        self._counters = counters
        self._present = present
        self._send = send
        self._settled = settled
        self._queue_bytes = queue_bytes
        self._hold_s = hold_s
        self._holds_qos0 = holds_qos0
        self._topics: dict[bytes, deque[_Waiting]] = {}
        self._turns: deque[bytes] = deque()
        """Topics to look at."""
        self._looking = self._stopped = False
        self._sweeper: Cancellable | None = None
        self._when_room: list[Callable[[], None]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def has(self, topic: bytes) -> bool:
        """Whether anything waits on `topic`."""
        return topic in self._topics

    def put(self, message: Message, in_hand: Held | None, *, given: bool = True) -> None:
        """Hold `message`; `given` if the local broker has it."""
        if not message.qos and not (self._holds_qos0 and self.has_room()):
            self._counters["pending_dropped"] += 1
            return
        if in_hand is not None:
            in_hand.wait_for(PATH)
        waiting = _Waiting(message, in_hand, self._host.now(), given)
        on_topic = self._topics.setdefault(message.topic, deque())
        # What was on its way to a neighbor that is given up came before what waits here.
        later: list[_Waiting] = []
        while on_topic and on_topic[-1].message.arrived_s > message.arrived_s:
            later.append(on_topic.pop())
        on_topic.append(waiting)
        on_topic.extend(reversed(later))
        self.bytes += message.cost
        if self._sweeper is None:
            self._sweeper = self._host.call_later(SWEEP_S, self._sweep)

    # ---- room ----------------------------------------------------------------------------

    def has_room(self) -> bool:
        return self.bytes <= self._queue_bytes

    @property
    def overfull(self) -> bool:
        """Beyond that not even one more of a client may wait."""
        return self.bytes > 2 * self._queue_bytes

    def when_room(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there is room again."""
        self._when_room.append(go_on)

    def _finished(self, each: _Waiting) -> None:
        self.bytes -= each.message.cost
        if each.in_hand is not None:
            each.in_hand.acknowledged_by(PATH)
        if self._when_room and self.bytes <= self._queue_bytes // 2:
            waiting, self._when_room = self._when_room, []
            for go_on in waiting:
                go_on()

    # ---- when routes have changed --------------------------------------------------------

    def routes_changed(self) -> None:
        """Look at all that waits, soon: the algorithm must not be asked from a call of its own."""
        if self._topics:
            self._turns = deque(self._topics)
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._host.call_later(0.0, self._look)

    def _look(self) -> None:
        self._looking = False
        left = STEP
        while self._turns and left > 0 and not self._stopped:
            topic = self._turns.popleft()
            left = self._look_at(topic, left)
            if left <= 0:
                self._turns.appendleft(topic)
        if self._turns and not self._stopped:
            self._look_soon()

    def _look_at(self, topic: bytes, most: int) -> int:
        """Send what waits on `topic`, `most` at once; how many more could have been."""
        waiting = self._topics.get(topic)
        while waiting and most > 0:
            most -= 1
            each = waiting[0]
            route = self._present(each.message)
            if route.pending:
                return max(most, 1)
            waiting.popleft()
            # Of those neighbors that have had it on another path, none gets it again.
            hops = [hop for hop in route.hops if hop not in each.message.passed_to]
            to_broker = route.to_local_broker and not each.given
            route = Route.labeled(hops, to_local_broker=to_broker)
            self._send(each.message, route, each.in_hand)
            self._finished(each)
        if waiting is not None and not waiting:
            del self._topics[topic]
            self._settled(topic)
        return most

    # ---- ends ----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Give up what has waited for too long."""
        self._sweeper = None
        late_s = self._host.now() - self._hold_s
        lost = 0
        for topic, waiting in list(self._topics.items()):
            while waiting and waiting[0].since_s <= late_s:
                each = waiting.popleft()
                lost += each.message.qos > 0
                self._counters["pending_dropped"] += each.message.qos == 0
                self._finished(each)
            if not waiting:
                del self._topics[topic]
                self._settled(topic)
        if lost:
            self._counters["given_up"] += lost
            self._host.log(
                "warning", "messages given up: no path was set up for them", messages=lost
            )
        if self._topics and self._sweeper is None:
            self._sweeper = self._host.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        self._stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()

    def only_here(self) -> int:
        """How many messages at QoS 1 and 2 of this node's own clients wait."""
        everything = (each for waiting in self._topics.values() for each in waiting)
        return sum(each.in_hand is None and each.message.qos > 0 for each in everything)
