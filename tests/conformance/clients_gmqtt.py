"""gmqtt behind the scenarios' interface: all clients on one event loop in a thread of its own.

gmqtt reconnects unless told otherwise, and downgrades to 3.1.1 by itself; the first is switched
off here, and the second never happens because only brokers that speak 5 are asked to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any, TypeVar

import gmqtt
from gmqtt.mqtt.handler import MQTTConnectError
from gmqtt.storage import PersistentStorage

from conformance.clients import Client, Connected, Options, plain_properties
from conformance.observation import Message, Plain
from isthmus.mqtt.packets import Subscription
from isthmus.mqtt.properties import NO_PROPERTIES, PROPERTIES, Properties

__all__ = ["GmqttClient"]

T = TypeVar("T")

_IRREGULAR = {
    "payload_format_indicator": "payload_format_id",
    "subscription_identifiers": "subscription_identifier",
    "user_properties": "user_property",
    "maximum_qos": "max_qos",
}
_NAMES = {spec.name: _IRREGULAR.get(spec.name, spec.name) for spec in PROPERTIES}
_REPEATABLE = frozenset({"subscription_identifiers", "user_properties"})
_WINDOW = 8  # it raises rather than wait when the broker's Receive Maximum is reached
_NEVER = -2  # gmqtt takes -1 for "always", and for 0 still tries once


_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:  # the first clients come from several threads at once
        return _start_loop()


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    logging.getLogger("gmqtt").setLevel(logging.CRITICAL + 1)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gmqtt", daemon=True).start()
    return loop


def _to_gmqtt(properties: Properties) -> dict[str, Any]:
    values = {gmqtt_name: getattr(properties, name) for name, gmqtt_name in _NAMES.items()}
    return {name: value for name, value in values.items() if value is not None and value != ()}


def _from_gmqtt(properties: dict[str, Any]) -> tuple[tuple[str, Plain], ...]:
    values: dict[str, Plain] = {}
    for name, gmqtt_name in _NAMES.items():
        if gmqtt_name in properties:
            items = tuple(_plain(value) for value in properties[gmqtt_name])
            values[name] = items if name in _REPEATABLE else items[0]
    return plain_properties(values)


def _plain(value: Any) -> Plain:
    if isinstance(value, bytes):
        return value.hex()
    return value  # type: ignore[no-any-return]


class GmqttClient(Client):
    """One `gmqtt.Client`."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._storage = PersistentStorage()
        self._ended = asyncio.Event()
        self._gmqtt = self._in_loop(self._create)

    def _create(self) -> Any:
        options = self.options
        will = None
        if options.will is not None:
            given = options.will
            will = gmqtt.Message(
                given.topic, given.payload, given.qos, given.retain, **_to_gmqtt(given.properties)
            )
        client = gmqtt.Client(
            options.client_id,
            clean_session=options.clean,
            will_message=will,
            persistent_storage=self._storage,
            **_to_gmqtt(options.properties),
        )
        client.set_config({"reconnect_retries": _NEVER})
        if options.username is not None:
            client.set_auth_credentials(options.username, options.password)
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_subscribe = self._on_acknowledged
        client.on_unsubscribe = self._on_acknowledged
        client.on_disconnect = self._on_disconnect
        return client

    # ---- between the caller's thread and the event loop ----------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()

    def _in_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    def _on_connect(self, _client: Any, flags: int, code: int, _properties: Any) -> None:
        self._connack_arrived(Connected(code, bool(flags)))

    def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        retain = bool(properties["retain"])
        self._message_arrived(Message(topic, bytes(payload), qos, retain, _from_gmqtt(properties)))
        return 0

    def _on_acknowledged(self, _client: Any, mid: int, codes: Any, _properties: Any = None) -> None:
        self._acknowledgment_arrived(mid, codes)

    def _on_disconnect(self, _client: Any, packet: Any, _error: Any = None) -> None:
        self._ended.set()
        told = isinstance(packet, (bytes, bytearray)) and len(packet) > 0
        self._connection_ended(f"DISCONNECT 0x{packet[0]:02x}" if told else "closed")

    # ---- what the scenarios call ---------------------------------------------------------

    def connect(self) -> Connected:
        async def attempt() -> Connected:
            try:
                await asyncio.wait_for(
                    self._gmqtt.connect(
                        "127.0.0.1", self.options.port, keepalive=60, version=self.options.level
                    ),
                    self.answer_s,
                )
            except MQTTConnectError as error:
                return Connected(error._code)
            except TimeoutError:
                return Connected(-1)
            return self._connack or Connected(-1)

        return self._run(attempt())

    def subscribe(
        self, subscriptions: Sequence[Subscription], identifier: int | None = None
    ) -> tuple[int, ...] | None:
        wanted = [
            gmqtt.Subscription(
                each.topic_filter,
                qos=each.qos,
                no_local=each.no_local,
                retain_as_published=each.retain_as_published,
                retain_handling_options=each.retain_handling,
            )
            for each in subscriptions
        ]
        settings = {} if identifier is None else {"subscription_identifier": identifier}
        mid = self._in_loop(lambda: self._gmqtt.subscribe(wanted, **settings))
        return self._await_acknowledgment(mid)

    def unsubscribe(self, topic_filter: str) -> bool:
        mid = self._in_loop(lambda: self._gmqtt.unsubscribe(topic_filter))
        return self._await_acknowledgment(mid) is not None

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> bool:
        async def send() -> bool:
            for start in range(0, len(payloads), _WINDOW):
                for payload in payloads[start : start + _WINDOW]:
                    self._gmqtt.publish(topic, payload, qos, retain, **_to_gmqtt(properties))
                await self._storage.wait_empty()
            return True

        async def in_time() -> bool:
            sending = asyncio.ensure_future(send())
            ended = asyncio.ensure_future(self._ended.wait())
            both = (sending, ended)
            limit_s = self.publishing_s(len(payloads))
            await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            completed = sending.done()
            for task in both:
                task.cancel()
            return completed and sending.result()

        return self._run(in_time())

    def disconnect(self, reason_code: int = 0) -> None:
        settings = {"reason_code": reason_code} if reason_code else {}
        self._run(self._gmqtt.disconnect(**settings))

    def drop(self) -> None:
        self._in_loop(self._gmqtt._connection._transport.abort)
        self.wait_lost()

    def close(self) -> None:
        async def end() -> None:
            connection = self._gmqtt._connection
            if connection is None or connection.is_closing():
                return
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._gmqtt.disconnect(), 2)

        self._run(end())
