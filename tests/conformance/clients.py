"""The one interface that the scenarios use, behind which independent client libraries stand.

A client is synchronous for its caller; whatever the library does in threads or event loops of
its own ends up in `received` and `lost`, and every wait has a deadline and ends early when the
connection is lost.  No client reconnects by itself.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.observation import Message, Plain
from isthmus.mqtt.packets import Subscription, Will
from isthmus.mqtt.properties import NO_PROPERTIES, Properties

__all__ = ["ANSWER_S", "LIBRARIES", "Client", "Connected", "Options", "library"]

LIBRARIES = ("paho", "gmqtt")

ANSWER_S = 10.0
"""For what every broker answers sooner or later, so that a busy machine makes no difference."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a client is told before it connects."""

    port: int
    level: int
    client_id: str
    clean: bool = True
    username: str | None = None
    password: str | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    patience_s: float = 4.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The CONNACK; `code` is -1 when none came, otherwise as the library names it."""

    code: int
    session_present: bool = False


class Client(ABC):
    """An MQTT client of some library."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.received: list[Message] = []
        self.lost: str | None = None
        """How the connection ended: `closed`, or `DISCONNECT 0x8e`."""
        self._changed = threading.Condition()
        self._acknowledged: dict[int, tuple[int, ...]] = {}
        self._connack: Connected | None = None

    @abstractmethod
    def connect(self) -> Connected: ...

    @abstractmethod
    def subscribe(
        self, subscriptions: Sequence[Subscription], identifier: int | None = None
    ) -> tuple[int, ...] | None:
        """The SUBACK's codes; None if it did not come."""

    @abstractmethod
    def unsubscribe(self, topic_filter: str) -> bool:
        """Whether UNSUBACK came."""

    @abstractmethod
    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> bool:
        """Publish them without waiting in between; whether every handshake was completed."""

    @abstractmethod
    def disconnect(self, reason_code: int = 0) -> None:
        """Say DISCONNECT and close."""

    @abstractmethod
    def drop(self) -> None:
        """Close the socket without a word."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind, whatever state it is in."""

    @property
    def answer_s(self) -> float:
        """How long it waits for a CONNACK, SUBACK or PUBACK."""
        return max(ANSWER_S, self.options.patience_s)

    def wait_messages(self, count: int, timeout_s: float | None = None) -> list[Message]:
        """What was received, as soon as it is `count` messages, or at the deadline."""
        self._wait(lambda: len(self.received) >= count, timeout_s, until_lost=True)
        with self._changed:
            return list(self.received)

    def publishing_s(self, count: int) -> float:
        """How long so many handshakes may take: brokers that write each to disk are slow."""
        return self.options.patience_s + 0.1 * (count - 1)

    def wait_lost(self, timeout_s: float | None = None) -> str | None:
        """How the connection ended; None if it did not."""
        self._wait(lambda: self.lost is not None, timeout_s, until_lost=False)
        return self.lost

    # ---- for the libraries' callbacks ----------------------------------------------------

    def _wait(
        self, condition: Callable[[], bool], timeout_s: float | None = None, *, until_lost: bool
    ) -> bool:
        deadline = time.monotonic() + (self.options.patience_s if timeout_s is None else timeout_s)
        with self._changed:
            while not condition():
                left_s = deadline - time.monotonic()
                if left_s <= 0 or (until_lost and self.lost is not None):
                    return False
                self._changed.wait(left_s)
            return True

    def _message_arrived(self, message: Message) -> None:
        with self._changed:
            self.received.append(message)
            self._changed.notify_all()

    def _connack_arrived(self, connack: Connected) -> None:
        with self._changed:
            self._connack = connack
            self._changed.notify_all()

    def _acknowledgment_arrived(self, packet_id: int, codes: Sequence[int] = ()) -> None:
        with self._changed:
            self._acknowledged[packet_id] = tuple(codes)
            self._changed.notify_all()

    def _connection_ended(self, how: str) -> None:
        with self._changed:
            if self.lost is None:  # a library may report the DISCONNECT and then the close
                self.lost = how
            self._changed.notify_all()

    def _await_acknowledgment(
        self, packet_id: int, timeout_s: float | None = None
    ) -> tuple[int, ...] | None:
        timeout_s = self.answer_s if timeout_s is None else timeout_s
        self._wait(lambda: packet_id in self._acknowledged, timeout_s, until_lost=True)
        with self._changed:
            return self._acknowledged.pop(packet_id, None)


def plain_properties(values: dict[str, Plain]) -> tuple[tuple[str, Plain], ...]:
    """In the order of their names: the order of different properties carries no meaning."""
    return tuple(sorted(values.items()))


def library(name: str) -> type[Client]:
    """The client class of a library, imported on demand."""
    if name == "paho":
        from conformance.clients_paho import PahoClient

        return PahoClient
    from conformance.clients_gmqtt import GmqttClient

    return GmqttClient
