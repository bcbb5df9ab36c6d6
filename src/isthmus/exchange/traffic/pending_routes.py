"""Messages whose path is being set up: they wait until the algorithm says where they go.

A `Route` that is *pending* has the node hold what comes on a topic; after `Port.routes_changed` the
algorithm is asked again.  What waits on a topic is sent in the order in which it came, and what
comes meanwhile waits behind it: until nothing waits on it any more a topic's routes count as
pending, whatever the algorithm has answered since.

There may be tens of thousands of topics and messages, so both asking again and giving up are done
in steps, `STEP` in a turn, and only topics are asked for again whose routes have changed.

Bounds: with `queue_bytes` waiting, publishers are held back, and neighbors wait, who get no
acknowledgment; what has waited for `hold_s` is given up, and counted.  At QoS 0 messages are
dropped and counted (`pending_dropped`), or wait as well, if they are retained, or that is
configured, and there is room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from isthmus.cooperation.api import Route
from isthmus.exchange.host import Cancellable, Host
from isthmus.exchange.link.lane import Held
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.filters.topics import matches

__all__ = ["PATH", "PendingRoutes"]

PATH = "the path"
"""What a message in hand waits for; no node can be called so."""
STEP = 200
"""So many are looked at in a turn."""
SWEEP_S = 1.0
AGAIN_S = 0.05
"""When it is looked again if the algorithm says, while it is asked, that routes have changed."""
MAX_COMPARISONS = 2_000
"""Of filters with topics; more than that, and all topics are looked at."""


@dataclass(slots=True)
class _Waiting:
    message: Message
    in_hand: Held | None
    since_s: float
    given: bool
    """The local broker has it."""
    missed: str
    """A neighbor that is given up and had not acknowledged it."""


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
        reaches: Callable[[str], bool | None],
        queue_bytes: int,
        hold_s: float,
        holds_qos0: bool,
    ) -> None:
        """`present` asks the algorithm where, `reaches` whom it reaches by now, if it knows;
        `send` passes on, `settled` is told of topics done with."""
        self._host = host
        self._counters = counters
        self._present = present
        self._send = send
        self._settled = settled
        self._reaches = reaches
        self._queue_bytes = queue_bytes
        self._hold_s = hold_s
        self._holds_qos0 = holds_qos0
        self._topics: dict[bytes, deque[_Waiting]] = {}
        self._turns: OrderedDict[bytes, None] = OrderedDict()
        """Topics to look at."""
        self._looking = self._stopped = False
        self._sweeper: Cancellable | None = None
        self._sweeping: deque[bytes] = deque()
        """Topics of which it is still to be looked whether something has waited for too long."""
        self._lost = 0
        """Given up since the sweep began."""
        self._nowhere = 0
        """Given up because the path does not lead to anybody new, since that was told."""
        self._when_room: list[Callable[[], None]] = []
        self.is_blocked: Callable[[bytes], bool] = lambda _topic: False
        """Whether older messages on a topic are still to be put before what waits."""
        self.begins: Callable[[], None] = lambda: None
        """Is told when something waits and nothing did."""
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def __bool__(self) -> bool:
        return bool(self._topics)

    def has(self, topic: bytes) -> bool:
        """Whether anything waits on `topic`."""
        return topic in self._topics

    def put(
        self,
        message: Message,
        in_hand: Held | None,
        *,
        given: bool = True,
        missed: str = "",
    ) -> None:
        """Hold `message`; `given` if the local broker has it, `missed` who is given up with it."""
        holds = self._holds_qos0 or message.retain  # what is retained all brokers are to have
        if not message.qos and not (holds and self.has_room()):
            self._counters["pending_dropped"] += 1
            return
        if in_hand is not None:
            in_hand.wait_for(PATH)
        waiting = _Waiting(message, in_hand, self._host.now(), given, missed)
        if not self._topics:
            self.begins()
        on_topic = self._topics.setdefault(message.topic, deque())
        if on_topic and on_topic[-1].message.place > message.place:
            # What was on its way to a neighbor that is given up came before what waits here.
            on_topic.insert(bisect_right(on_topic, message.place, key=_place), waiting)
        else:
            on_topic.append(waiting)
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

    def routes_changed(self, filters: list[str] | None) -> None:
        """Look at what waits on topics that `filters` match, soon; at everything without.

        Not at once: the algorithm must not be asked from a call of its own.
        """
        if not self._topics:
            return
        self._turns.update(dict.fromkeys(self._matching(filters)))
        if self._turns:
            self._look_soon(0.0)

    def _matching(self, filters: list[str] | None) -> Iterable[bytes]:
        if filters is None:
            return self._topics
        wild = [each for each in filters if "+" in each or each.endswith("#")]
        if len(wild) * len(self._topics) > MAX_COMPARISONS:
            return self._topics
        found = [topic for topic in map(str.encode, filters) if topic in self._topics]
        for topic in self._topics if wild else ():
            name = topic.decode()
            if any(matches(each, name) for each in wild):
                found.append(topic)
        return found

    def _look_soon(self, delay_s: float) -> None:
        if not self._looking and not self._stopped:
            self._looking = True
            self._host.call_later(delay_s, self._look)

    def _look(self) -> None:
        turns, self._turns = self._turns, OrderedDict()
        left = STEP
        try:
            while turns and left > 0 and not self._stopped:
                topic, _ = turns.popitem(last=False)
                left = self._look_at(topic, left)
                if left <= 0:
                    turns[topic] = None
                    turns.move_to_end(topic, last=False)
        finally:
            again, self._turns = self._turns, turns
            self._turns.update(again)
            self._looking = False
            if self._turns:
                self._look_soon(AGAIN_S if again else 0.0)
            elif self._nowhere:
                self._host.log(
                    "warning",
                    "messages given up: they were for neighbors that were, and there is no other",
                    messages=self._nowhere,
                )
                self._nowhere = 0

    def _look_at(self, topic: bytes, most: int) -> int:
        """Send what waits on `topic`, `most` at once; 0 if there may be more of it."""
        waiting = self._topics.get(topic)
        while waiting and not self.is_blocked(topic):
            if most <= 0:
                return 0
            most -= 1
            each = waiting[0]
            route = self._present(each.message)
            if route.pending:
                break
            waiting.popleft()
            # Of those neighbors that have had it on another path, none gets it again.
            hops = [hop for hop in route.hops if hop not in each.message.passed_to]
            to_broker = route.to_local_broker and not each.given
            route = Route.labeled(hops, to_local_broker=to_broker, provisional=route.provisional)
            if each.missed and self._is_missed(each.missed, sent=bool(hops)):
                each.message.misses()
            self._send(each.message, route, each.in_hand)
            self._finished(each)
        if waiting is not None and not waiting:
            del self._topics[topic]
            self._settled(topic)
        return most

    def _is_missed(self, neighbor: str, *, sent: bool) -> bool:
        """Whether `neighbor`, which is given up, does without it."""
        reached = self._reaches(neighbor)
        if sent:
            self._counters["rerouted"] += 1
        missed = not (sent if reached is None else reached)
        if missed:
            self._counters["given_up"] += 1
            self._nowhere += 1
        return missed

    # ---- ends ----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Give up what has waited for too long."""
        self._sweeping.extend(self._topics)
        self._sweep_on()

    def _sweep_on(self) -> None:
        late_s = self._host.now() - self._hold_s
        left = STEP
        while self._sweeping and left > 0:
            waiting = self._topics.get(topic := self._sweeping[0])
            while waiting and left > 0 and waiting[0].since_s <= late_s:
                left -= 1
                each = waiting.popleft()
                each.message.misses()
                self._lost += each.message.qos > 0
                self._counters["given_up"] += each.message.qos > 0
                self._counters["pending_dropped"] += each.message.qos == 0
                self._finished(each)
            if left > 0:
                self._sweeping.popleft()
            if waiting is not None and not waiting:
                del self._topics[topic]
                self._settled(topic)
        self._sweeper = None
        if self._sweeping:
            self._sweeper = self._host.call_later(0.0, self._sweep_on)
            return
        if self._lost:
            self._host.log(
                "warning", "messages given up: no path was set up for them", messages=self._lost
            )
            self._lost = 0
        if self._topics:
            self._sweeper = self._host.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        self._stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()

    def only_here(self) -> int:
        """How many messages at QoS 1 and 2 of this node's own clients wait."""
        everything = (each for waiting in self._topics.values() for each in waiting)
        return sum(each.message.came_from is None and each.message.qos > 0 for each in everything)


def _place(each: _Waiting) -> tuple[float, str]:
    return each.message.place
