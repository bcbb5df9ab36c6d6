"""The node's own sessions with its broker: those by which it publishes, and one that asks.

They publish what comes over links (`Injector`) and ask what is retained (`RetainedReader`), and
share what they find out about the broker: the level that it speaks, whether it lets the node in,
what it closes on.  A neighbor has a session of its own, opened when its link comes up, as long as
there are not more than `MAX_SESSIONS`; then it shares the one that the fewest use.  Where a message
may come from any neighbor all share one, so that what comes of one publisher from several of them
stays in order.  A session is closed when those who use it are neighbors no more and all that they
sent is acknowledged.

What is called a *key* is a neighbor's name; a session has that of the first who used it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from isthmus.exchange.broker.aversions import Aversions
from isthmus.exchange.broker.injection import Injection
from isthmus.exchange.broker.injector import Injector
from isthmus.exchange.broker.retained_reader import RetainedReader
from isthmus.exchange.broker.set_apart import BROKER_SPOOL, BrokerApart, LeftOfAnother
from isthmus.exchange.broker.source import EXPIRY_S, RECEIVE_MAXIMUM, SOURCE_KEY, BrokerSource
from isthmus.exchange.retained.broker import OWN_KEY, WRITTEN_S
from isthmus.exchange.session import SessionHost
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.packets import Connect
from isthmus.mqtt.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from isthmus.exchange.exchange import Exchange

__all__ = ["MAX_SESSIONS", "Login", "OwnSessions", "SetAside", "own_client_id"]

RETIRE_S: Final = 0.5
MAX_SESSIONS: Final = 16
"""Sessions that publish: some brokers have few to give, and none costs nothing."""

Login = Callable[[], tuple[str | None, bytes | None]]
SetAside = Callable[[Message, str, str], None]


def own_client_id(node_id: str, key: str) -> str:
    """The client id of the session for the neighbor `key`; with none, what they all begin with."""
    return f"isthmus-{node_id}-{key}"


class OwnSessions:
    """What `isthmus.exchange.host.Host` has for the exchange, of the broker."""

    def __init__(
        self,
        host: SessionHost,
        node_id: str,
        *,
        broker: str = "",
        exchange: Callable[[], Exchange],
        login: Login,
        linger_s: float,
        set_aside: SetAside,
        shares: Callable[[], bool] = lambda: False,
        takes: bool = False,
        keeps: bool = False,
    ) -> None:
        """`set_aside` is told the message, the neighbor, and why; `shares`: all have one.

        `broker`: what it is called, if there are several.

        `takes`: there is one, which is also subscribed at the broker; `keeps`: for good.
        """
        self.host = host
        self._node_id = node_id
        self._at = f"@{broker}" if broker else ""
        self.login = login
        self._shares = shares
        self.linger_s = linger_s
        self._exchange = exchange
        self.set_aside = set_aside
        self.level = 5
        """What they speak with the broker; 4 once it is known to be older."""
        self._older = False
        """It has said so, or closed on MQTT 5 and then taken 3.1.1."""
        self.problem = ""
        """Why the broker refuses them."""
        self.aversions = Aversions()
        self.injectors: dict[str, Injector] = {}
        """By their own keys."""
        self._places: dict[str, Injector] = {}
        """By the neighbors' keys."""
        self._used: dict[Injector, set[str]] = {}
        """Of whom each has published something, those that are gone included."""
        self._joined: set[str] = set()
        self._left: list[str] = []
        """Whose messages of an earlier life wait for the source."""
        self.source = BrokerSource(self, keeps=keeps) if takes else None
        self._reader = RetainedReader(self)
        self.ask_retained = self._reader.ask

    @property
    def exchange(self) -> Exchange:
        return self._exchange()

    def start(self) -> None:
        """The node runs: what comes from the broker is taken from now on."""
        if self.source is not None:
            self.source.injector = Injector(self, SOURCE_KEY, self.source)
            self.injectors[SOURCE_KEY] = self.source.injector
            self._used[self.source.injector] = set()
            self.source.start()  # before there is a connection, which takes its time
            left, self._left = self._left, []
            for key in left:
                self._publish_by_source(key, self.source.injector)

    def want(self, added: Sequence[str], removed: Sequence[str]) -> None:
        if self.source is not None:
            self.source.want(added, removed)

    def retained_published(self, topic: bytes, payload: bytes) -> None:
        """A client publishes it through the node, retained."""
        if self.source is not None:
            self.source.note_retained(topic, payload)

    def stop_taking(self) -> None:
        if self.source is not None:
            self.source.stop()

    # ---- what comes over links -----------------------------------------------------------

    def inject(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> bool:
        if key == OWN_KEY:  # with a source, by a session that can be set apart
            return self._injector(key).inject(message, done, on_disk=False)
        return self._injector(key).inject(message, done, kept)

    def apart(self, injection: Injection, key: str) -> BrokerApart | None:
        """How what waits on a session of that key goes to disk, if it can."""
        exchange = self._exchange()
        if (
            key == OWN_KEY
            or (spool := exchange.spools.open(f"{BROKER_SPOOL}-{key}{self._at}")) is None
        ):
            return None
        host, queue_bytes = exchange.host, exchange.settings.link.queue_bytes
        return BrokerApart(injection, spool, queue_bytes, now=host.now, wall_ms=host.wall_ms)

    def set_apart(self, key: str) -> bool:
        injector = self._places.get(key)
        if injector is None or injector.apart is None:
            return False
        injector.apart.begin()
        return not injector.apart.spool.all_written

    def publish_left(self, key: str) -> None:
        """By a session of its own: the files are its session's.

        With a source by that one, as soon as it is there: what another session publishes would come
        back as somebody else's.
        """
        if self.source is not None:
            if key != SOURCE_KEY:
                self._left.append(key)
        elif key not in self.injectors:
            injector = self.injectors[key] = Injector(self, key)
            self._places[key] = injector
            self._used[injector] = {key}
            self.host.call_later(RETIRE_S, partial(self._retire, key))

    def _publish_by_source(self, key: str, injector: Injector) -> None:
        exchange = self._exchange()
        spool = exchange.spools.open(f"{BROKER_SPOOL}-{key}{self._at}")
        assert spool is not None  # or nothing would be left
        host = exchange.host
        LeftOfAnother(spool, injector.inject, now=host.now, wall_ms=host.wall_ms)

    def give_up_injected(self, key: str, size: int) -> int:
        injector = self._places.get(key)
        if injector is None:
            return 0
        is_shared = sum(each is injector for each in self._places.values()) > 1
        return injector.give_up(size, key if is_shared else "")

    def inject_plain(self, topics: Sequence[bytes], payloads: Sequence[bytes], key: str) -> int:
        return self._injector(key).inject_plain(topics, payloads)

    def _injector(self, key: str) -> Injector:
        injector = self._places.get(key)
        if injector is None:
            injector = self._places[key] = self._place(key)
            self._used.setdefault(injector, set()).add(key)
            if key not in self._joined:
                self.host.call_later(RETIRE_S, partial(self._retire, key))
        return injector

    def _place(self, key: str) -> Injector:
        """A session of its own, or if there are enough the one that the fewest use."""
        if self.source is not None:
            return self.source.injector
        if len(self.injectors) >= (1 if self._shares() else MAX_SESSIONS):
            users = Counter(self._places.values())
            return min(self.injectors.values(), key=lambda each: users[each])
        # Who left while others went on with its session has left its name to them.
        names = (key, *(f"{key}-{number}" for number in range(2, MAX_SESSIONS + 2)))
        name = next(name for name in names if name not in self.injectors)
        injector = self.injectors[name] = Injector(self, name)
        return injector

    def neighbor_joined(self, key: str) -> None:
        self._joined.add(key)
        self._injector(key)
        if self.source is not None:
            self.source.neighbor_joined()

    def neighbor_left(self, key: str) -> None:
        self._joined.discard(key)
        self._retire(key)

    def _retire(self, key: str) -> None:
        """Close the session of a neighbor that is gone, once all that it sent is acknowledged."""
        injector = self._places.get(key)
        if injector is None or key in self._joined:
            return
        if len(injector):
            self.host.call_later(RETIRE_S, partial(self._retire, key))
            return
        del self._places[key]
        if injector in self._places.values() or self.source is not None:
            # Others share it; what it has published of this one may be asked for a little longer.
            self.host.call_later(WRITTEN_S, partial(self._forget, injector, key))
            return
        injector.close()
        del self.injectors[injector.key], self._used[injector]
        if not self.injectors:
            self.refused("")

    def _forget(self, injector: Injector, key: str) -> None:
        if self._places.get(key) is not injector and injector in self._used:
            self._used[injector].discard(key)

    ask_retained: Callable[
        [Sequence[bytes], Callable[[Mapping[bytes, bytes | None] | None], None]], None
    ]

    def close(self) -> None:
        if self.source is not None:
            self.source.close()
        for injector in self.injectors.values():
            injector.close()
        self._reader.close()

    # ---- the exchange --------------------------------------------------------------------

    @property
    def counters(self) -> Counter[str]:
        return self._exchange().counters

    def session_lost(self, injector: Injector) -> None:
        """What the broker has been given by it may be lost."""
        for key in self._used.get(injector, ()):
            self._exchange().retention.broker.session_lost(key)

    # ---- the broker ----------------------------------------------------------------------

    def connect(self, key: str, keep_alive: int, level: int) -> Connect:
        username, password = self.login()
        properties = NO_PROPERTIES
        lasts = False
        if key == SOURCE_KEY and self.source is not None:
            lasts = self.source.keeps
            if level == 5:
                properties = Properties(
                    session_expiry_interval=EXPIRY_S if lasts else None,
                    receive_maximum=RECEIVE_MAXIMUM,
                )
        return Connect(
            client_id=own_client_id(self._node_id, key),
            clean_start=not lasts or (self.source is not None and self.source.fresh),
            properties=properties,
            keep_alive=keep_alive,
            username=username,
            password=password,
            protocol_level=level,
        )

    def says_it_is_older(self) -> None:
        """The broker has answered a CONNECT of MQTT 5 as one that does not know it."""
        self.level, self._older = 4, True

    def greeting_fell(self, level: int) -> None:
        """A CONNECT of that level was not answered: brokers that know no MQTT 5 just close.

        If it was something else that ended a greeting at 3.1.1, begin anew.
        """
        self.level = 4 if level == 5 else 5
        if level == 4:
            self._older = False

    def was_away(self) -> None:
        """The broker takes no connections: it may come back as another."""
        self._older = False

    def settles(self, level: int) -> bool:
        """A session of that level was accepted; False if it is to be tried with MQTT 5 once more.

        What fell at MQTT 5 may have fallen with the broker, or with a proxy before one that was not
        up: at 3.1.1 everything from other nodes would lose its properties, for as long as the
        session stands.
        """
        if level == 5:
            self.level, self._older = 5, False
        elif not self._older:
            self.level, self._older = 5, True
        return level == self.level

    def refused(self, cause: str) -> None:
        """The broker refused one of them, or (without a cause) took it."""
        if cause and cause != self.problem:
            self.host.log(
                "error",
                "broker refuses the node's own session, so nothing from other nodes reaches it; "
                "see [broker] username and password",
                cause=cause,
            )
        self.problem = cause

    @property
    def standing(self) -> int:
        """How many of those that publish stand."""
        return sum(injector.connected for injector in self.injectors.values())

    @property
    def silent(self) -> bool:
        """The broker was asked something and does not answer."""
        return any(injector.silent for injector in self.injectors.values())
