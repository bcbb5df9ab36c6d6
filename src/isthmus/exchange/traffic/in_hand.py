"""Messages in hand: those of neighbors that are not safe yet, and who waits for whom.

    neighbor that it came from  ──waits for──▶ InHand ──waits for──▶ links, awaited neighbors,
    and whoever repeats it                                           the local broker

A message is *safe* when every branch that it was passed on to has acknowledged it; until it has
been routed it waits for this node itself (`HERE`).  Then it is acknowledged to the neighbor that it
came from.  A copy of it that comes meanwhile is acknowledged with it.  If the two neighbors have it
from each other, only the one nearer to its origin waits for the other: so they do not wait in a
circle, and from the origin on somebody waits for each who has it.

What waits for one branch of a node must not stop what goes to the others.  A branch that is away,
or slow, would fill the window of the lane (`lane.WINDOW`), and nothing would come over it any more,
for anybody.  So of what has come over a lane only the latest `MAX_UNSAFE` messages are left
unacknowledged, none after which `FAR` others have come, and no more bytes than leave room in the
queue of the neighbor, which else would hold its publishers back; what is older is *let go*:
acknowledged early, and from then on in this node's memory alone.  But what is to be confirmed to
its publisher is *taken*: the neighbor is told that it need not wait in its window any longer, keeps
it, and is told by name when it is safe, or somebody does without it.

With a `state_dir` nobody lets go: when too much waits, the branches that the oldest has waited for
`APART_AFTER_S` for are *set apart* (`isthmus.exchange.apart`).  All that is for them goes to disk,
and what is there is safe.  Only what cannot be set apart is let go: what waits for a path, for an
awaited neighbor, and for links where the algorithm finds the ways.

Letting go goes on while there is room where it waits:

    a link that is up        `queue_bytes`; beyond, nothing is let go: the neighbor waits
    a link that is down      `queue_bytes`; beyond, its neighbor is given up
    an awaited neighbor      likewise (`recovery`)
    the local broker         `queue_bytes` for each neighbor (`BrokerQueue`); beyond, the neighbor
                             waits; but when the broker has acknowledged nothing for `hold_s`, the
                             oldest are given up, so that one that is gone does not part the fabric
    who is set apart         what the disk has not taken: `queue_bytes`; beyond, the neighbor waits
                             (for the broker `apart_s` at most, then as above)

Invariants: a message is acknowledged once; letting go touches no queue, so order and numbers of
what waits stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final

from isthmus.cooperation.api import SessionInfo, SessionStatus
from isthmus.exchange.host import Host
from isthmus.exchange.link.lane import IN_HAND_BYTES, WINDOW, Incoming
from isthmus.exchange.link.link import SETTLED_AT_ONCE, SETTLED_TOPIC, Link, settled_line
from isthmus.exchange.traffic.message import Fate, Message
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish

__all__ = [
    "BROKER",
    "HERE",
    "MAX_UNSAFE",
    "BrokerQueue",
    "Confirmation",
    "InHand",
    "MessagesInHand",
]

HERE: Final = "this node"
BROKER: Final = "the broker"
"""Branches that are no neighbors; no node can be called so."""
MAX_UNSAFE: Final = WINDOW // 2
UNSAFE_PART: Final = 4
"""What part of a link's `queue_bytes` may be unacknowledged."""
LOOK_AGAIN_S: Final = 0.5
"""When it is looked again whether there is room."""
APART_AFTER_S: Final = 0.2
"""A branch for which something has waited for so long, when too much waits, is set apart."""
SOONEST_S: Final = 0.001
LET_GO_S: Final = 10.0
"""When those that wait for each other in a ring that is being cut stop doing so."""
PART: Final = 8
"""What is given up at once is this part of the bound."""
MAX_MISSED: Final = 20_000
"""Of how many messages it is known that somebody does without them, in case they come again."""
MAX_SHOWN: Final = 2_000
"""Of how many messages `status` says what they wait for: the oldest."""


class InHand:
    """A message of a neighbor, which waits to be acknowledged to it."""

    __slots__ = (
        "_copies",
        "_hand",
        "_with_broker",
        "copy_of",
        "incoming",
        "kept_for_broker",
        "let_go",
        "message",
        "number",
        "qos",
        "size",
        "taken",
        "waited",
        "waits_for",
    )

    def __init__(
        self, hand: MessagesInHand, message: Message, incoming: Incoming, number: int, qos: int
    ) -> None:
        self._hand = hand
        self.message = message
        self.size = message.cost
        self.incoming = incoming
        self.number = number
        """Its number in the stream `incoming`."""
        self.qos = qos
        self.waits_for = [HERE]
        self.let_go = False
        """It was acknowledged although it is not safe."""
        self.waited = False
        """For its coming again, in vain (`provisional`)."""
        self.taken = False
        """The neighbor knows that it is not safe, and does not wait for it in its window."""
        self.kept_for_broker = 0
        """How often it is on disk for the broker, which has not acknowledged it."""
        self.copy_of: InHand | None = None
        """The one that it is acknowledged with."""
        self._copies: list[InHand] | None = None
        self._with_broker: list[InHand] | None = None
        """The same with other labels, which wait for the broker to have this one."""

    def wait_for(self, branch: str) -> None:
        self.waits_for.append(branch)

    def acknowledged_by(self, branch: str) -> None:
        """`branch` has it, or does without it."""
        self.waits_for.remove(branch)
        if not self.waits_for:
            self._hand.forget(self)
            if self.taken:
                self.incoming.settled(self.number)
                self._hand.settled(self)
                self._answer_copies()
            elif not self.let_go:
                self.acknowledge()

    def acknowledge(self) -> None:
        """To the neighbor; if another stream runs there now, nobody waits for this."""
        message = self.message
        self._answer(message.fate if message.confirm else Fate.SAFE)
        self._answer_copies()

    def take(self) -> None:
        """Tell the neighbor that it is here, and not safe."""
        self.taken = True
        self._answer(Fate.TAKEN)

    def _answer(self, reason: int) -> None:
        answer = self.incoming.over(self.number, self.qos, reason)
        if self.incoming.answer is not None:
            self.incoming.answer(answer)

    def _answer_copies(self) -> None:
        if self._copies is not None:
            copies, self._copies = self._copies, None
            for copy in copies:
                copy.message.fate = self.message.fate
                copy.acknowledged_by(HERE)

    def add_copy(self, copy: InHand) -> None:
        """It came again: acknowledged with this one."""
        if self._copies is None:
            self._copies = []
        self._copies.append(copy)

    def take_copy(self, copy: InHand) -> None:
        """Have its neighbor told, once for all that come from there, as it names them alike."""
        copy.take()
        for older in self._copies or ():
            if older is not copy and older.taken and older.is_as(copy):
                older.incoming.settled(older.number)
                assert self._copies is not None
                self._copies.remove(older)
                return

    def is_as(self, other: InHand) -> bool:
        """Whether both are copies of one message, and their neighbor is told the same of them."""
        return (
            self.copy_of is other.copy_of
            and self.incoming is other.incoming
            and self.message.label == other.message.label
        )

    def give_in(self, copy: InHand) -> None:
        """`copy` waits no longer; whether it is safe, nobody knows, so it is not confirmed."""
        if self._copies and copy in self._copies:
            self._copies.remove(copy)
            copy.message.misses()
            copy.acknowledged_by(HERE)

    def wait_for_broker(self) -> Callable[[], None]:
        """It goes to the local broker; what is returned is to be called when that has it."""
        self.waits_for.append(BROKER)
        self._hand.broker_queue(self).put(self.size + IN_HAND_BYTES)
        self._hand.given(self)
        return self._broker_has_it

    def wait_with_broker(self, other: InHand) -> None:
        """`other` is the same message, of which the broker was given this one."""
        other.wait_for(BROKER)
        if self._with_broker is None:
            self._with_broker = []
        self._with_broker.append(other)

    def kept(self) -> None:
        """It is on disk for the broker: safe, unless its publisher is to know more."""
        if not self.message.confirm:
            self._broker_has_it()
            self.kept_for_broker += 1

    def _broker_has_it(self) -> None:
        if self.kept_for_broker:
            self.kept_for_broker -= 1
            return
        self._hand.broker_queue(self).acknowledged(self.size + IN_HAND_BYTES)
        came_from = self.message.came_from
        if came_from is None or came_from.status is not SessionStatus.ESTABLISHED:
            self._hand.neighbor_left(self.neighbor)
        self._hand.broker_has(self)
        others, self._with_broker = self._with_broker, None
        for other in others or ():
            if self.message.fate is not Fate.SAFE:
                other.message.misses(self.message.fate)
            other.acknowledged_by(BROKER)
        self.acknowledged_by(BROKER)

    def was_passed_to(self, session: SessionInfo | None) -> bool:
        return any(neighbor is session for neighbor, _ in self.message.passed_to)

    @property
    def neighbor(self) -> str:
        """Who waits."""
        return self.message.came_from.name if self.message.came_from is not None else ""


class Confirmation(InHand):
    """A message of a local client, which waits to be confirmed to it."""

    __slots__ = ("_confirmed",)

    def __init__(self, message: Message, confirmed: Callable[[Fate], None]) -> None:
        """`confirmed` is told, once, what has become of it."""
        self.message = message
        self.size = message.cost
        self.waits_for = [HERE]
        self.let_go = self.taken = self.waited = False
        self.copy_of = self._copies = None
        self._confirmed = confirmed

    def acknowledged_by(self, branch: str) -> None:
        self.waits_for.remove(branch)
        if not self.waits_for:
            self._confirmed(self.message.fate)


class MessagesInHand:
    """All of them, by origin, number and label.

    Another copy of a message can be in hand too: one that was believed only later.  Each is
    acknowledged by itself; who sends it again waits for the latest.
    """

    def __init__(
        self,
        host: Host,
        counters: Counter[str],
        has_room: Callable[[Message], bool],
        *,
        node_id: str,
        queue_bytes: int,
        hold_s: float,
        set_apart: Callable[[str, str], bool] | None = None,
        labeled: bool = False,
    ) -> None:
        """`has_room` says whether more may wait at the links that a message went to.

        `set_apart` has what waits for a branch, of those that a neighbor sent, put on disk; False
        if that cannot be, or is done.

        `labeled`: a message can come again with another label, and the broker gets it once.
        """
        self._host = host
        self._counters = counters
        self._has_room = has_room
        self._set_apart = set_apart
        self._node_id = node_id
        self._queue_bytes = queue_bytes
        self._hold_s = hold_s
        self._messages: dict[tuple[str, str, bytes], InHand] = {}
        self._at_broker: dict[str, BrokerQueue] = {}
        self._labeled = labeled
        self._given: dict[tuple[str, str], InHand] = {}
        """By origin and number, with labels: what the broker was given and has not acknowledged."""
        self._missed: dict[tuple[str, str], Fate] = {}
        """By origin and number, the oldest first: what is not here any more."""
        self._settled: dict[Incoming, list[bytes]] = {}
        """Of what was taken, and has come to its end in this turn."""
        self.only_here = 0
        """Messages that were let go and still wait: nobody before this node has them."""
        self.stopping = False

    def __len__(self) -> int:
        return len(self._messages)

    def take(self, in_hand: InHand) -> None:
        """It is on its way: for who sends it again meanwhile."""
        self._messages[_key(in_hand.message)] = in_hand
        in_hand.incoming.hold(in_hand.number, in_hand)

    def forget(self, in_hand: InHand) -> None:
        self.only_here -= in_hand.let_go
        self._forget_key(in_hand)
        message = in_hand.message
        if message.fate is not Fate.SAFE and message.confirm:
            self._missed[message.origin, message.number] = message.fate
            if len(self._missed) > MAX_MISSED:
                del self._missed[next(iter(self._missed))]

    def fate_of(self, message: Message) -> Fate:
        """What has become of one that is here no more, as far as it matters to its publisher.

        The neighbor may not have heard it: its link broke, or it has been restarted since.
        """
        if not self._missed or not message.confirm:
            return Fate.SAFE
        return self._missed.get((message.origin, message.number), Fate.SAFE)

    def _forget_key(self, in_hand: InHand) -> None:
        key = _key(in_hand.message)
        if self._messages.get(key) is in_hand:
            del self._messages[key]

    def retaken(self, in_hand: InHand, label: bytes) -> None:
        """It is forwarded once more, for another label."""
        self._forget_key(in_hand)
        in_hand.message.taken_as = label
        self._messages[_key(in_hand.message)] = in_hand

    def given(self, in_hand: InHand) -> None:
        if self._labeled:
            self._given[in_hand.message.origin, in_hand.message.number] = in_hand

    def broker_has(self, in_hand: InHand) -> None:
        """It has it, or does without it, or it is on disk."""
        key = in_hand.message.origin, in_hand.message.number
        if self._given.get(key) is in_hand:
            del self._given[key]

    def waits_for_broker(self, in_hand: InHand) -> None:
        """The broker was given it before: safe when it has acknowledged that."""
        message = in_hand.message
        first = self._given.get((message.origin, message.number))
        if first is not None and first is not in_hand:
            first.wait_with_broker(in_hand)

    def waits_with(self, in_hand: InHand, label: bytes) -> None:
        """It was forwarded for that label already, as another one: safe when that one is, too."""
        message = in_hand.message
        first = self._messages.get((message.origin, message.number, label))
        if first is not None and first is not in_hand and not first.let_go:
            in_hand.wait_for(HERE)
            first.add_copy(in_hand)
            self._host.call_later(LET_GO_S, lambda: first.give_in(in_hand))

    def repeated(self, copy: InHand) -> None:
        """It was here before: acknowledged when that one is safe, which it may be already."""
        first = self._messages.get(_key(copy.message))
        if first is None or first.let_go:
            copy.message.fate = self.fate_of(copy.message)
            copy.acknowledged_by(HERE)
            return
        is_nearer = (copy.message.hops - 1, copy.neighbor) < (first.message.hops, self._node_id)
        if not is_nearer and first.was_passed_to(copy.message.came_from):
            # A neighbor that has it from here too must not wait for us to wait for it.
            copy.acknowledged_by(HERE)
            return
        copy.copy_of = first
        copy.message.payload = copy.message.properties = b""  # nobody gets them from here
        first.add_copy(copy)
        copy.incoming.hold(copy.number, copy)
        if not is_nearer:
            # In a ring that is being cut, three or more may wait for each other.
            self._host.call_later(LET_GO_S, lambda: first.give_in(copy))

    def settled(self, in_hand: InHand) -> None:
        """What was taken is safe, or missed: its neighbor is told, with others of this turn."""
        if not self._settled:
            self._host.call_later(0.0, self._tell_settled)
        self._settled.setdefault(in_hand.incoming, []).append(settled_line(in_hand.message))

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, {}
        for incoming, lines in settled.items():
            for begin in range(0, len(lines), SETTLED_AT_ONCE):
                payload = b"\n".join(lines[begin : begin + SETTLED_AT_ONCE])
                if incoming.answer is not None:
                    incoming.answer(encode(Publish(SETTLED_TOPIC, payload), 5))

    # ---- letting go ----------------------------------------------------------------------

    def _leaves_too_much(self, incoming: Incoming, link: Link) -> bool:
        """Whether more of a lane of `link` is unacknowledged than may be, the last one apart."""
        count = len(incoming.unsafe)
        if not count:
            return False
        return (
            count > MAX_UNSAFE
            or incoming.is_far_ahead
            or (incoming.unsafe_bytes * link.lanes > self._queue_bytes // UNSAFE_PART and count > 1)
        )

    def relieve(self, incoming: Incoming, link: Link) -> None:
        """Let go what has waited longest of a lane of `link`, if there is room."""
        while self._leaves_too_much(incoming, link):
            oldest = next(iter(incoming.unsafe.values()))
            assert isinstance(oldest, InHand)
            if oldest.copy_of is not None:
                if oldest.message.confirm:
                    oldest.copy_of.take_copy(oldest)
                else:
                    oldest.copy_of.give_in(oldest)
                continue
            if self._set_apart is not None and (wait_s := self._apart_in(oldest)):
                self._relieve_later(incoming, link, wait_s)
                return
            at_broker = self._at_broker.get(oldest.neighbor)
            if (at_broker is None or at_broker.has_room()) and self._has_room(oldest.message):
                if oldest.waits_for and oldest.message.confirm:
                    oldest.take()
                elif oldest.waits_for:  # else it was given up to make room
                    oldest.let_go = True
                    self.only_here += 1
                    oldest.acknowledge()
                continue
            self._relieve_later(incoming, link, LOOK_AGAIN_S)
            return

    def _apart_in(self, oldest: InHand) -> float:
        """Have those set apart that it waits for; after how long to look again, 0 if it is let go.

        Those that acknowledge all the time are given that time.
        """
        assert self._set_apart is not None
        waited_s = self._host.now() - oldest.message.arrived_s
        if waited_s < APART_AFTER_S:
            return max(APART_AFTER_S - waited_s, SOONEST_S)
        apart = [self._set_apart(branch, oldest.neighbor) for branch in list(oldest.waits_for)]
        if not any(apart) or oldest.message.confirm:
            return 0.0
        at_broker = self._at_broker.get(oldest.neighbor)
        if BROKER in oldest.waits_for and at_broker is not None and at_broker.is_gone:
            return 0.0  # and there is no room on disk
        return LOOK_AGAIN_S

    def _relieve_later(self, incoming: Incoming, link: Link, wait_s: float) -> None:
        if not incoming.relieving:
            incoming.relieving = True
            self._host.call_later(wait_s, lambda: self._relieve_again(incoming, link))

    def _relieve_again(self, incoming: Incoming, link: Link) -> None:
        incoming.relieving = False
        if not self.stopping:
            self.relieve(incoming, link)

    # ---- the local broker ----------------------------------------------------------------

    def broker_queue(self, in_hand: InHand) -> BrokerQueue:
        """What waits for the broker of the messages of the neighbor that `in_hand` came from."""
        queue = self._at_broker.get(in_hand.neighbor)
        if queue is None:
            queue = self._at_broker[in_hand.neighbor] = BrokerQueue(
                self._host,
                in_hand.neighbor,
                self._counters,
                queue_bytes=self._queue_bytes,
                hold_s=self._hold_s,
            )
        return queue

    def neighbor_left(self, neighbor: str) -> None:
        """Forget what waits for the broker, unless something does; then this is called again."""
        queue = self._at_broker.get(neighbor)
        if queue is not None and queue.bytes == 0:
            del self._at_broker[neighbor]

    # ---- what people see -----------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Which neighbor waits for whom, and for how many messages."""
        waiting = Counter(
            (each.neighbor, branch)
            for each in islice(self._messages.values(), MAX_SHOWN)
            for branch in each.waits_for
        )
        return {
            "messages": len(self._messages),
            "only_here": self.only_here,
            "waiting": [
                {"neighbor": neighbor, "waits_for": branch, "messages": count}
                for (neighbor, branch), count in sorted(waiting.items())
            ],
        }


def _key(message: Message) -> tuple[str, str, bytes]:
    return message.origin, message.number, message.taken_as


class BrokerQueue:
    """What one neighbor has sent at QoS 1 and 2 and the local broker has not acknowledged."""

    __slots__ = (
        "_bound",
        "_counters",
        "_heard_s",
        "_hold_s",
        "_host",
        "_key",
        "_limit",
        "_told",
        "bytes",
    )

    def __init__(
        self, host: Host, key: str, counters: Counter[str], *, queue_bytes: int, hold_s: float
    ) -> None:
        self._host = host
        self._key = key
        self._counters = counters
        self._bound = self._limit = queue_bytes
        self._hold_s = hold_s
        self._heard_s = 0.0
        """When the broker acknowledged last, or had nothing to acknowledge."""
        self._told = False
        """It was told that messages are given up, and the broker has taken none since."""
        self.bytes = 0

    def put(self, cost: int) -> None:
        if self.bytes == 0:
            self._limit = self._bound
            if not self._told:
                self._heard_s = self._host.now()
        self.bytes += cost

    def acknowledged(self, cost: int) -> None:
        self.bytes -= cost
        self._heard_s = self._host.now()
        self._told = False

    @property
    def is_gone(self) -> bool:
        """Whether the broker has been silent for too long."""
        return self._host.now() - self._heard_s >= self._hold_s

    def has_room(self) -> bool:
        """Whether more may wait; room is made if the broker is gone."""
        if self.bytes <= self._limit:
            return True
        if not self.is_gone:
            return False
        heard_s, told = self._heard_s, self._told
        part = self._bound // PART
        lost = self._host.give_up_injected(self._key, self.bytes - self._bound + part)
        self._heard_s, self._told = heard_s, told or lost > 0
        # Of retained messages the newest are kept.
        self._limit = max(self._bound, self.bytes + part)
        self._counters["given_up"] += lost
        if self._told and not told:
            self._host.log(
                "warning",
                "messages given up: the broker does not take them and too many wait",
                neighbor=self._key,
                bytes=self.bytes,
            )
        return True
