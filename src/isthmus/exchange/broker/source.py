"""Messages taken from the local broker: ``[broker] source = "broker"``.

The node subscribes at its own broker to what its neighbors want, and what comes by that enters the
fabric here.  What clients publish through the node goes to the broker alone and comes by the same
way; so do messages of clients that the node never sees, wills, and what other protocols bring.

    broker ──PUBLISH──▶ a second copy? the node's own? ──▶ retained? ──▶ fabric ──safe──▶ PUBACK
                              └────── swallowed ──────┘

**One session.**  It is the session that publishes what comes over links, so that MQTT 5's No Local
keeps the broker from sending that back; for the others, and to be sure, see `echoes`.

**Acknowledgment.**  A message at QoS 1 and 2 is acknowledged to the broker when all neighbors that
it went to have acknowledged it.  With a `state_dir` the session outlives the node (`EXPIRY_S`), so
what was not acknowledged, and what comes while the node is away, is delivered again; without one
the session ends with the connection; so it does if what it was subscribed to is not known any
more.  What would wait for a neighbor that is away, or for longer
than `LET_GO_S`, is *let go*: acknowledged, and in this node's memory alone, as what comes from
neighbors is (`isthmus.exchange.traffic.in_hand`).  A broker has no more than `RECEIVE_MAXIMUM`
messages unacknowledged, one of MQTT 3.1.1 as many as it chooses.  Reading is never stopped: by the
same session come the acknowledgments that others wait for.

**Again.**  What was in hand when a session fell comes again, with DUP set or under the same
identifier.  It is known by its content and not passed on twice.

**Retained.**  In MQTT 5 the flag comes with the message (Retain As Published), and what was
retained before is not sent (Retain Handling 2) but read beside (`RetainedReader.read`).  In 3.1.1 a
message with the flag is one from before, and is read beside as well; of live ones see
`retain_flags`.

**Another node at the same broker.**  Every node says its name on `PRESENCE`.  If one of the same
fabric answers, each would bring the other's messages back to the broker, without an end: then both
take nothing, and say so, until that node is in the fabric no more or does not answer any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

from isthmus.cooperation.api import Route, SessionKind
from isthmus.errors import RemoteProtocolError
from isthmus.exchange import kept_records
from isthmus.exchange.broker.echoes import Echoes
from isthmus.exchange.broker.retain_flags import RetainFlags
from isthmus.exchange.broker.retained_reader import READ_KEY, RetainedReader
from isthmus.exchange.broker.subscribing import BrokerSubscriptions
from isthmus.exchange.client.publishers import PublisherRoutes
from isthmus.exchange.host import Cancellable
from isthmus.exchange.retained.values import Retained, Version
from isthmus.exchange.traffic.in_hand import Confirmation
from isthmus.exchange.traffic.message import Fate, Message, from_publish
from isthmus.exchange.traffic.routes import decode_topic
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.filters.topics import is_valid_topic_name
from isthmus.mqtt.framing import body_offset
from isthmus.mqtt.packets import Publish, SubAck, UnsubAck
from isthmus.mqtt.publish_layout import (
    DUP,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    QOS,
    acknowledgment,
    packet_id_at,
    publish_answer,
    publish_id,
    topic_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isthmus.exchange.broker.injector import Injector
    from isthmus.exchange.broker.own_sessions import OwnSessions
    from isthmus.exchange.exchange import Exchange

__all__ = ["EXPIRY_S", "PRESENCE", "RECEIVE_MAXIMUM", "SOURCE_KEY", "BrokerSource"]

SOURCE_KEY: Final = "source"
EXPIRY_S: Final = 86_400
RECEIVE_MAXIMUM: Final = 1_000
LET_GO_S: Final = 2.0
LOOK_S: Final = 0.5
AGAIN_S: Final = 5.0
"""An acknowledgment that was written less than that before a session fell may not have come."""
MAX_BEFORE: Final = 10_000
"""Of messages that may come again and do not, over many sessions."""
PROOF_S: Final = 5.0
SWEPT_S: Final = 5.0
KEPT_S: Final = 10.0
"""For how long, at least, what was subscribed to in the last life still is."""
READ_FILTERS: Final = 8
RUN_FRAMES: Final = 64
PRESENCE: Final = "$isthmus/source"
MAX_LISTED: Final = 100
TELL_AGAIN_S: Final = 60.0
ASK_S: Final = 10.0
"""How often another node of the fabric is asked whether it is still here."""
GONE_S: Final = 30.0
"""Who has not answered for so long is gone."""

_STATE: Final = ("broker-source", 1)
_PRESENCE: Final = PRESENCE.encode()


class Taken(Confirmation):
    """A message from the broker, which waits to be acknowledged to it."""

    __slots__ = ("_source", "key", "over", "packet_id", "qos", "since_s")

    def __init__(self, source: BrokerSource, message: Message, packet_id: int, key: int) -> None:
        super().__init__(message, self._safe)
        self._source = source
        self.packet_id = packet_id
        self.qos = message.qos
        self.key = key
        """Its content."""
        self.since_s = message.arrived_s
        self.over = False
        """It is acknowledged."""

    def _safe(self, fate: Fate) -> None:
        self._source.safe(self)


class BrokerSource:
    """What one node takes from its broker."""

    def __init__(self, own: OwnSessions, *, keeps: bool) -> None:
        """`keeps`: the session outlives the node."""
        self._own = own
        self._host = own.host
        self.keeps = keeps
        self.fresh = False
        """It is not known what a session that the broker has kept is subscribed to: it is ended."""
        self.injector: Injector
        self.level = 0
        """0 while there is no session."""
        self._reader = RetainedReader(own, READ_KEY)
        self.echoes = Echoes(own.host.now)
        self.subscriptions = BrokerSubscriptions(
            lambda packet: self.injector.write(encode(packet, self.level)),
            granted=self._granted,
            refused=self._refused,
            save=self._save,
            always=(PRESENCE,),
        )
        self.flags = RetainFlags(
            own.host,
            self._reader.ask,
            go_on=self._go_on,
            found=self._found_on_topic,
            is_known=self._is_known_retained,
            unasked=self._not_asked,
        )
        self._waiting_for_flag: dict[Message, Taken | None] = {}
        self._unacknowledged: dict[int, Taken] = {}
        self._unreleased: dict[int, int] = {}
        """QoS 2: identifiers that were answered by PUBREC, and the content."""
        self._lately: deque[tuple[float, int]] = deque(maxlen=RECEIVE_MAXIMUM)
        """What was acknowledged last."""
        self._before: dict[int, list[Taken | None]] = {}
        """What may come again since a session fell, by its content; None if it is over."""
        self._routes: Mapping[bytes, Route]
        self._started_s = 0.0
        self._timer: Cancellable | None = None
        self._others: dict[str, float] = {}
        """Other nodes at this broker, and when they were heard."""
        self._present_s = self._asked_s = -1e9
        self._reads_again = False
        """What the broker has retained, when the node is not young any more."""
        self._told_s: dict[str, float] = {}
        self.problem = ""
        """Why nothing is taken."""
        self._stopping = False

    @property
    def _exchange(self) -> Exchange:
        return self._own.exchange

    @property
    def _counters(self) -> Counter[str]:
        return self._exchange.counters

    def _not_asked(self) -> None:
        self._counters["source_unasked"] += 1

    # ---- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """The node runs."""
        exchange = self._exchange
        self._routes = exchange.traffic.routes.of_clients
        if exchange.algorithm.follows_publishers:
            session = exchange.new_local_session(SessionKind.LOCAL_CLIENT, SOURCE_KEY)
            self._routes = PublisherRoutes(self._routes, session, exchange.clients.publishes)
        self._started_s = self._host.now()
        kept = exchange.host.load_state(*_STATE) if self.keeps else None
        found = kept_records.read(kept) if kept is not None else None
        if found is None or found.damage:
            self.fresh = True
            self._save(())
        else:
            self.subscriptions.keep(each.decode() for each in found.records)
        self._look_later()

    def stop(self) -> None:
        """Nothing more is taken, and so not acknowledged."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.stop()
        self._reader.close()

    def want(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Neighbors want other filters than before."""
        self.subscriptions.want(added, removed)

    def _save(self, filters: Sequence[str]) -> None:
        if self.keeps and not self._stopping:
            records = [each.encode() for each in filters]
            self._exchange.host.save_state(_STATE[0], kept_records.write(*_STATE, records))

    def _is_young(self) -> bool:
        """Whether neighbors may not have said yet what they want and have."""
        young = self._host.now() <= self._started_s + KEPT_S
        return young or self._exchange.recovery.active

    def _look_later(self) -> None:
        self._timer = self._host.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now_s = self._host.now()
        exchange = self._exchange
        if not self._is_young():
            self.subscriptions.forget_kept()
            if self._reads_again:
                self._reads_again = False
                self._read_retained(list(self.subscriptions.granted))
        for taken in list(islice(self._unacknowledged.values(), RECEIVE_MAXIMUM)):
            if taken.since_s > now_s - LET_GO_S:
                break
            if exchange.traffic.has_room_for(taken.message):
                self._let_go(taken)
        self._judge_others()
        self._look_later()

    # ---- the session ---------------------------------------------------------------------

    def opened(self, level: int) -> None:
        self.level = level
        self.echoes.opened(no_local=level == 5)
        self.injector.watch(self._published)
        # Whatever it says: ActiveMQ resumes a session and calls it a new one.
        self.subscriptions.opened(level, resumed=self.keeps)
        if PRESENCE in self.subscriptions.refused:
            self._host.call_soon(lambda: self._sweep(0))  # it is not asked for any more

    def lost(self) -> None:
        """What is in hand goes on; of a session that is kept it comes again, and is known then."""
        self.level = 0
        self.echoes.answers(False)
        self.subscriptions.lost()
        if self.keeps:
            self._remember_what_comes_again()
        else:
            self._unreleased.clear()
        self._unacknowledged = {}
        self._lately.clear()

    def _remember_what_comes_again(self) -> None:
        now_s = self._host.now()
        if len(self._before) > MAX_BEFORE:
            self._before = {}
        for done_s, key in self._lately:
            if done_s > now_s - AGAIN_S:
                self._before.setdefault(key, []).append(None)
        for taken in self._unacknowledged.values():
            self._before.setdefault(taken.key, []).append(taken)

    def _granted(self, filters: Sequence[str], qos: int) -> None:
        if PRESENCE in filters:
            self._sweep(qos)
            self._present(asks=True)
            filters = [each for each in filters if each != PRESENCE]
        self._read_retained(filters)

    def _read_retained(self, filters: Sequence[str]) -> None:
        for at in range(0, len(filters), READ_FILTERS):
            self._reader.read(filters[at : at + READ_FILTERS], self._found)

    def _sweep(self, qos: int) -> None:
        """The broker has said what it grants; RabbitMQ has no QoS 2, and chokes on PUBREL."""
        if qos == 2 or self.level == 5:
            self.injector.sweep()
            self._host.call_later(SWEPT_S, self.injector.swept)
        else:
            self.injector.swept()

    def _refused(self, topic_filter: str, code: int) -> None:
        if topic_filter == PRESENCE:
            self._sweep(0)
            return
        self._counters["source_filters_refused"] += 1
        self._host.log(
            "error",
            "broker refuses the node's own subscription: what is published there goes nowhere",
            filter=topic_filter,
            cause=f"0x{code:02x}",
        )

    # ---- what the session publishes -------------------------------------------------------

    def _published(self, topics: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        matches = self.subscriptions.matches
        published = self.echoes.published
        for topic, payload in zip(topics, payloads, strict=True):
            if matches(topic):
                published(topic, payload)

    def _proven(self, message: Message, session: int) -> None:
        """The broker has taken the node's presence, and may keep to No Local."""
        if message.fate is not Fate.REFUSED and self.subscriptions.matches(_PRESENCE):

            def over() -> None:
                if self.injector.sessions == session and self.level == 5:
                    self.echoes.proven()
                    if not self.echoes.on:
                        self.injector.watch(None)

            self._host.call_later(PROOF_S, over)

    # ---- what comes ----------------------------------------------------------------------

    def frames(self, data: bytes, offsets: Sequence[int]) -> list[bytes]:
        """Take the messages; what else came is returned."""
        others: list[bytes] = []
        run = self._exchange.client_run
        topics, payloads, routes = run.topics, run.payloads, self._routes
        v5 = self.level == 5
        looks = not v5 or bool(self.echoes) or self.subscriptions.changing
        taken = 0
        for start, stop in pairwise(offsets):
            head = data[start]
            if head & 0xF0 != PUBLISH:
                others.append(data[start:stop])
                continue
            if self._stopping:
                continue
            taken += 1
            if head == PUBLISH:  # the sums of `mqtt.publish_layout`, in place
                body = start + 2 if data[start + 1] < 0x80 else body_offset(data, start)
                end = body + 2 + (data[body] << 8 | data[body + 1]) if body + 2 <= stop else stop
                if end + v5 <= stop and not (v5 and data[end]):
                    topic = data[body + 2 : end]
                    payload = data[end + v5 : stop]
                    if looks and not self._is_plain(topic, payload):
                        continue
                    try:
                        route = routes[topic]
                    except RemoteProtocolError as error:
                        self._bad(data[start:stop], error)
                        continue
                    if route.neighbors and not self.problem:
                        if route is not run.route or len(topics) == RUN_FRAMES:
                            run.begin(route)
                        topics.append(topic)
                        payloads.append(payload)
                        continue
                    if not route.pending:
                        if topic == _PRESENCE:
                            self._heard(payload)
                        continue
            run.end()
            self._take(data[start:stop])
        run.end()
        self._counters["taken_from_broker"] += taken
        return others

    def _is_plain(self, topic: bytes, payload: bytes) -> bool:
        """Whether a message at QoS 0 goes on as it is; if not, it is dealt with."""
        if topic == _PRESENCE:
            self._heard(payload)
            return False
        if self.subscriptions.changing:
            if not is_valid_topic_name(topic):
                return True  # it is found out when its route is asked for
            if self.subscriptions.is_second(topic, payload):
                self._counters["source_doubled"] += 1
                return False
        if self.echoes and self.echoes.is_echo(topic, payload):
            self._echoed()
            return False
        if self.level == 5 or self.flags.is_plain(topic):
            return True
        if not is_valid_topic_name(topic):
            return True
        message = Message(topic, payload, origin=self._exchange.node_id, arrived_s=self._host.now())
        self._exchange.client_run.end()
        if self.flags.judge(message):
            self._pass_on(message, None)
        else:
            self._waiting_for_flag[message] = None
        return False

    def _take(self, frame: bytes) -> None:
        """A message that is not a plain one."""
        try:
            message, packet_id = self._read(frame)
        except (RemoteProtocolError, IndexError) as error:
            self._bad(frame, error)
            return
        topic = message.topic
        key = hash((topic, message.payload))
        if packet_id and self._is_again(frame, packet_id, key):
            return
        if self._is_swallowed(message):
            self._acknowledge(frame[0], packet_id, key)
            return
        taken = None
        if packet_id:
            taken = self._unacknowledged[packet_id] = Taken(self, message, packet_id, key)
        if self.level == 5 or self.flags.judge(message):
            self._pass_on(message, taken)
        else:
            self._waiting_for_flag[message] = taken

    def _read(self, frame: bytes) -> tuple[Message, int]:
        """The message in a PUBLISH of the broker, and its packet identifier."""
        start, end = topic_bounds(frame)
        topic = frame[start:end]
        decode_topic(topic)
        message = from_publish(frame, self.level, topic, self._exchange.node_id, self._host.now())
        return message, publish_id(frame) if message.qos else 0

    def _is_swallowed(self, message: Message) -> bool:
        topic, payload = message.topic, message.payload
        if topic == _PRESENCE:
            self._heard(payload)
            return True
        if self.level != 5 and message.retain:
            return True  # one from before, which is read beside
        if self.subscriptions.changing and self.subscriptions.is_second(topic, payload):
            self._counters["source_doubled"] += 1
            return True
        if self.echoes and self.echoes.is_echo(topic, payload):
            self._echoed()
            return True
        if self.problem:
            self._counters["source_not_taken"] += 1
        return bool(self.problem)

    def _is_again(self, frame: bytes, packet_id: int, key: int) -> bool:
        """Whether it was taken before; then it is acknowledged, or will be."""
        if self._unreleased.get(packet_id) == key and frame[0] & QOS == 0x04:
            self.injector.write(acknowledgment(publish_answer(frame[0]), packet_id))
            return True
        before = self._before.get(key)
        if not before:
            return False
        first = before[0]
        if not frame[0] & DUP and (first is None or first.packet_id != packet_id):
            return False
        before.pop(0)
        if not before:
            del self._before[key]
        self._counters["repeated"] += 1
        if first is None or first.over:
            self._acknowledge(frame[0], packet_id, key)
        else:
            first.packet_id = packet_id
            self._unacknowledged[packet_id] = first
        return True

    def _echoed(self) -> None:
        self._counters["echoes_swallowed"] += 1
        if self.level == 5:
            self._tell(
                "echo",
                "broker sends the node's own messages back although asked not to (No Local)",
            )

    def _bad(self, frame: bytes, error: Exception) -> None:
        """What the broker should not have sent must not come again and again."""
        self._counters["source_bad"] += 1
        self._tell("bad", "broker delivered what is no message", detail=str(error))
        if frame[0] & QOS:
            try:
                packet_id = publish_id(frame)
            except IndexError:
                return
            self._acknowledge(frame[0], packet_id, 0)

    def _go_on(self, message: Message, retain: bool) -> None:
        """It has waited for its flag."""
        taken = self._waiting_for_flag.pop(message)
        message.retain = retain
        # Others were numbered meanwhile: its place is among those of now.
        now_s = self._host.now()
        if message.expiry_s is not None:
            message.expiry_s = max(message.expiry_s - int(now_s - message.arrived_s), 0)
        message.arrived_s = now_s
        self._pass_on(message, taken)

    def _pass_on(self, message: Message, taken: Taken | None) -> None:
        if isinstance(self._routes, PublisherRoutes) and not message.topic.startswith(b"$"):
            self._routes[message.topic]  # which tells the algorithm who publishes
        self._exchange.traffic.broker_publish(message, taken)
        if taken is not None and not taken.over and self._is_away(taken):
            self._let_go(taken)

    def _is_away(self, taken: Taken) -> bool:
        """Whether it waits for nobody but neighbors whose link is down."""
        links = self._exchange.links.links
        return all(name in links and not links[name].state.up for name in taken.waits_for)

    # ---- acknowledging -------------------------------------------------------------------

    def safe(self, taken: Taken) -> None:
        """Everybody has it."""
        if taken.over:
            self._exchange.traffic.in_hand.only_here -= 1
        else:
            self._over(taken)

    def _let_go(self, taken: Taken) -> None:
        self._exchange.traffic.in_hand.only_here += 1
        self._counters["source_let_go"] += 1
        self._over(taken)

    def _over(self, taken: Taken) -> None:
        taken.over = True
        if self._unacknowledged.get(taken.packet_id) is taken:
            del self._unacknowledged[taken.packet_id]
            self._acknowledge(PUBLISH | taken.qos << 1, taken.packet_id, taken.key)

    def _acknowledge(self, head: int, packet_id: int, key: int) -> None:
        if not packet_id or not self.level:
            return
        self._lately.append((self._host.now(), key))
        if head & QOS == 0x04:
            self._unreleased[packet_id] = key
        self.injector.write(acknowledgment(publish_answer(head), packet_id))

    def answered(self, frame: bytes) -> bool:
        """A SUBACK, UNSUBACK or PUBREL of the broker; False if it is none of them."""
        head = frame[0]
        if head == PUBREL:
            packet_id = packet_id_at(frame, body_offset(frame, 0))
            self._unreleased.pop(packet_id, None)
            self.injector.write(acknowledgment(PUBCOMP, packet_id))
        elif head in (0x90, 0xB0):
            packet = decode(frame, self.level)
            assert isinstance(packet, SubAck | UnsubAck)
            self.subscriptions.answered(packet)
        else:
            return False
        return True

    # ---- retained messages ----------------------------------------------------------------

    def note_retained(self, topic: bytes, payload: bytes) -> None:
        """A client publishes it through the node, with the flag."""
        if self.level != 5 and self.subscriptions.matches(topic):
            self.flags.note(topic, payload)

    def _found(self, publish: Publish) -> None:
        """The broker has it retained."""
        topic = publish.topic.encode()
        if topic.startswith(b"$") or not publish.payload or self.flags.asks_for(topic):
            return
        frame = encode(publish, 5)
        message = from_publish(frame, 5, topic, self._exchange.node_id, self._host.now())
        self._is_retained(message)

    def _found_on_topic(self, topic: bytes, payload: bytes) -> None:
        if not topic.startswith(b"$"):
            self._is_retained(Message(topic, payload))

    def _is_known_retained(self, topic: bytes) -> bool:
        """Whether the fabric has something retained on `topic`, so that it can be deleted."""
        retained = self._exchange.retention.store.get(topic, self._exchange.host.wall_ms())
        return retained is not None and not retained.deleted

    def _is_retained(self, message: Message) -> None:
        retained = Retained(
            message.topic,
            message.payload,
            message.properties,
            message.qos,
            Version(0, 0, self._exchange.node_id),
            message.expiry_s,
        )
        is_young = self._is_young()
        if self._exchange.retention.found(retained, is_young=is_young):
            return
        if is_young:
            self._reads_again = True
        else:
            self._host.call_later(2 * LET_GO_S, lambda: self._check(message.topic))

    def _check(self, topic: bytes) -> None:
        if not self._stopping:
            self.flags.check(topic)

    # ---- other nodes at this broker --------------------------------------------------------

    def _present(self, *, asks: bool = False) -> None:
        """Say who is here, and perhaps ask who else is; not more than once a second."""
        now_s = self._host.now()
        if now_s < self._present_s + 1.0 or not self.level:
            return
        self._present_s = now_s
        said = self._exchange.node_id.encode() + (b"?" if asks else b"")
        message = Message(_PRESENCE, said, qos=1, arrived_s=now_s)
        session = self.injector.sessions
        self.injector.inject(message, lambda: self._proven(message, session), on_disk=False)

    def neighbor_joined(self) -> None:
        """There may be a way now to somebody at the same broker."""
        self._present(asks=True)

    def _heard(self, payload: bytes) -> None:
        said = payload.decode(errors="replace")[:65]
        node = said.removesuffix("?")
        if node == self._exchange.node_id:
            if self.echoes.is_echo(_PRESENCE, payload):
                self._echoed()
            return
        if len(self._others) < MAX_LISTED or node in self._others:
            self._others[node] = self._host.now()
        if said.endswith("?"):
            self._present()
        self._judge_others()

    def _judge_others(self) -> None:
        """Whether anybody of the fabric is here, who was heard lately; else he is asked."""
        now_s = self._host.now()
        reached = [each for each in self._others if self._exchange.is_reached(each)]
        if reached and now_s > self._asked_s + ASK_S:
            self._asked_s = now_s
            self._present(asks=True)
        here = [each for each in reached if self._others[each] > now_s - GONE_S]
        problem = ""
        if here:
            problem = (
                f"node {min(here)} of this fabric stands before the same broker; with source = "
                '"broker" nothing is taken from it: one broker, one node'
            )
        if problem and problem != self.problem:
            self._host.log("error", problem)
        elif self.problem and not problem:
            self._host.log("info", "messages are taken from the broker again")
        self.problem = problem

    # ---- what people see -----------------------------------------------------------------

    def _tell(self, what: str, event: str, **fields: object) -> None:
        now_s = self._host.now()
        if now_s >= self._told_s.get(what, 0.0):
            self._told_s[what] = now_s + TELL_AGAIN_S
            self._host.log("warning", event, **fields)

    def status(self) -> dict[str, Any]:
        granted = self.subscriptions.granted
        return {
            "filters": len(granted),
            "subscribed": list(islice(granted, MAX_LISTED)),
            "refused": dict(list(self.subscriptions.refused.items())[:MAX_LISTED]),
            "unacknowledged": len(self._unacknowledged),
            "echoing": self.level == 5 and self.echoes.swallowed > 0,
            "problem": self.problem,
        }
