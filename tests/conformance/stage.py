"""Where one run of one scenario takes place: an address, a library, names nobody else uses.

The stage hands out connected clients and raw connections, removes its own prefix from whatever
they saw, and takes down everything it handed out.  Absence is observed by a marker that is sent
behind what must not come, on a topic of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from conformance.clients import ANSWER_S, Client, Options, library, plain_properties
from conformance.observation import Message, Plain, Stopped
from isthmus.errors import ProtocolError
from isthmus.mqtt.packets import (
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscription,
    UnsubAck,
    Will,
)
from isthmus.mqtt.properties import NO_PROPERTIES, PROPERTIES, Properties
from support.raw import RawClient

__all__ = ["Address", "Stage", "plain"]


_ANY_PREFIX = re.compile(r"i[0-9a-f]{10}/")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, and as whom."""

    port: int
    username: str | None = None
    password: str | None = None


def plain(properties: Properties) -> tuple[tuple[str, Plain], ...]:
    """A decoded packet's properties as plain values."""
    values: dict[str, Plain] = {}
    for spec in PROPERTIES:
        value: Any = getattr(properties, spec.name)
        if value is not None and value != ():
            values[spec.name] = value.hex() if isinstance(value, bytes) else value
    return plain_properties(values)


class Stage:
    """One run; a context manager."""

    def __init__(self, address: Address, level: int, library_name: str, patience_s: float) -> None:
        self.address = address
        self.level = level
        self.library = library_name
        self.patience_s = patience_s
        self.prefix = "i" + os.urandom(5).hex()
        self._clients: list[Client] = []
        self._raw: list[RawClient] = []
        self._markers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._raw:
            connection.close()
        for client in self._clients:
            client.close()

    # ---- clients of a library ------------------------------------------------------------

    def topic(self, suffix: str) -> str:
        return f"{self.prefix}/{suffix}"

    def client(
        self,
        name: str,
        *,
        clean: bool = True,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> Client:
        """A client that has yet to connect.  In MQTT 5 a session that is not clean is kept."""
        if not clean and self.level == 5 and properties.session_expiry_interval is None:
            properties = replace(properties, session_expiry_interval=300)
        options = Options(
            port=self.address.port,
            level=self.level,
            client_id=self.prefix + name,
            clean=clean,
            username=self.address.username,
            password=self.address.password,
            will=will,
            properties=properties if self.level == 5 else NO_PROPERTIES,
            patience_s=self.patience_s,
        )
        client = library(self.library)(options)
        self._clients.append(client)
        return client

    def connected(self, name: str, **settings: Any) -> Client:
        return self.present(name, **settings)[0]

    def present(self, name: str, **settings: Any) -> tuple[Client, bool]:
        """A connected client, and whether the broker still had its session."""
        client = self.client(name, **settings)
        answer = client.connect()
        if answer.code:
            refusal = "no CONNACK" if answer.code < 0 else f"refused with {answer.code}"
            raise Stopped(f"CONNECT of client {name}: {refusal}")
        return client, answer.session_present

    def subscribe(
        self, client: Client, topic_filter: str, qos: int = 0, **options: Any
    ) -> tuple[int, ...]:
        identifier = options.pop("identifier", None)
        codes = client.subscribe([Subscription(topic_filter, qos, **options)], identifier)
        if codes is None:
            raise Stopped(f"SUBSCRIBE to {self.without_prefix(topic_filter)}: no SUBACK")
        return codes

    # ---- what was seen -------------------------------------------------------------------

    def without_prefix(self, text: str) -> str:
        return text.replace(f"{self.prefix}/", "").replace(self.prefix, "")

    def seen(self, messages: Iterable[Message]) -> tuple[str, ...]:
        mine = (each for each in messages if not each.topic.startswith("end/"))
        return tuple(
            self.without_prefix(str(each)) for each in mine if not self._is_foreign(each.topic)
        )

    def _is_foreign(self, topic: str) -> bool:
        """Another stage's: amqtt hands out retained messages to clients that never asked."""
        return _ANY_PREFIX.match(topic) is not None and not topic.startswith(self.prefix)

    def collect(
        self, client: Client, count: int, timeout_s: float | None = None
    ) -> tuple[str, ...]:
        """The first `count` messages, and whatever else a marker finds behind them."""
        client.wait_messages(count, timeout_s)
        return self.settle(client, client)

    def settle(self, subscriber: Client, publisher: Client) -> tuple[str, ...]:
        """All that the subscriber had before a marker that the publisher sends now."""
        self._markers += 1
        marker = f"end/{self.prefix}/{self._markers}"
        if subscriber.lost is None and subscriber.subscribe([Subscription(marker, 1)]):
            publisher.publish(marker, b"end", qos=1)
            deadline = time.monotonic() + self.patience_s
            while time.monotonic() < deadline and subscriber.lost is None:
                received = list(subscriber.received)
                if any(each.topic == marker for each in received):
                    break
                subscriber.wait_messages(len(received) + 1, deadline - time.monotonic())
            # The next settling counts messages: the marker is not one of them.
            subscriber.received = [each for each in subscriber.received if each.topic != marker]
        return self.seen(subscriber.received)

    # ---- raw connections -----------------------------------------------------------------

    def raw(self, *, level: int | None = None) -> RawClient:
        client = RawClient(self.address.port, level or self.level, timeout_s=self.patience_s)
        self._raw.append(client)
        return client

    def raw_connected(self, name: str, **fields: Any) -> RawClient:
        client = self.raw()
        answer = self.next_packet(
            client, self.connect_of(client, name, **fields), timeout_s=ANSWER_S
        )
        if not answer.startswith(("CONNACK 0x00", "CONNACK present 0x00")):
            raise Stopped(f"CONNECT of client {name}: {answer}")
        return client

    def connect_of(self, client: RawClient, name: str, **fields: Any) -> Packet:
        from isthmus.mqtt.packets import Connect

        password = self.address.password
        defaults: dict[str, Any] = {
            "client_id": self.prefix + name,
            "keep_alive": 60,
            "username": self.address.username,
            "password": None if password is None else password.encode(),
            "protocol_level": client.level,
        }
        return Connect(**(defaults | fields))

    def next_packet(
        self, client: RawClient, *to_send: bytes | Packet, timeout_s: float | None = None
    ) -> str:
        """Send, and describe the next packet that comes, or that none did."""
        return self.describe(self.exchange(client, *to_send, timeout_s=timeout_s))

    def exchange(
        self, client: RawClient, *to_send: bytes | Packet, timeout_s: float | None = None
    ) -> Packet | str:
        client.socket.settimeout(self.patience_s if timeout_s is None else timeout_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                for each in to_send:
                    client.send(each)
            while True:
                packet: Packet | str = client.receive() or "closed"
                if not (isinstance(packet, Publish) and self._is_foreign(packet.topic)):
                    return packet
        except TimeoutError:
            return "nothing"
        except ProtocolError as error:
            return f"malformed: {error}"

    def describe(self, packet: Packet | str) -> str:
        """In words; the broker's own packet identifiers and made-up names are left out."""
        match packet:
            case str():
                words = packet
            case ConnAck():
                properties = packet.properties
                if properties.assigned_client_identifier is not None:
                    properties = replace(properties, assigned_client_identifier="assigned")
                present = "present " if packet.session_present else ""
                words = f"CONNACK {present}0x{packet.reason_code:02x}{_words(properties)}"
            case Publish():
                message = Message(
                    packet.topic,
                    packet.payload,
                    packet.qos,
                    packet.retain,
                    plain(packet.properties),
                )
                words = f"PUBLISH {message}{' dup' if packet.dup else ''}"
            case PubAck() | PubRec() | PubRel() | PubComp():
                kind = type(packet).__name__.upper()
                words = f"{kind} 0x{packet.reason_code:02x}{_words(packet.properties)}"
            case SubAck() | UnsubAck():
                codes = "".join(f" 0x{code:02x}" for code in packet.reason_codes)
                kind = type(packet).__name__.upper()
                words = f"{kind} {packet.packet_id}{codes}{_words(packet.properties)}"
            case Disconnect() | Auth():
                kind = type(packet).__name__.upper()
                words = f"{kind} 0x{packet.reason_code:02x}{_words(packet.properties)}"
            case _:
                words = type(packet).__name__.upper()
        return self.without_prefix(words)


def _words(properties: Properties) -> str:
    return "".join(f" {name}={value!r}" for name, value in plain(properties))
