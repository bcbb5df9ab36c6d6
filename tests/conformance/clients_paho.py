"""paho-mqtt behind the scenarios' interface: a network thread per client, no reconnects."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from conformance.clients import Client, Connected, Options, plain_properties
from conformance.observation import Message, Plain
from isthmus.mqtt.packets import Subscription
from isthmus.mqtt.properties import NO_PROPERTIES, PROPERTIES, Properties

__all__ = ["PahoClient"]

_WINDOW = 8  # it does not look at the broker's Receive Maximum, and HiveMQ's is 10
_SELECTABLE = 1024  # it waits by select(), which takes no greater descriptors; it does not say so
_IRREGULAR = {
    "subscription_identifiers": "SubscriptionIdentifier",
    "user_properties": "UserProperty",
    "maximum_qos": "MaximumQoS",
}
_NAMES = {
    spec.name: _IRREGULAR.get(spec.name, spec.name.title().replace("_", "")) for spec in PROPERTIES
}


def _to_paho(properties: Properties, carrier: int) -> PahoProperties:
    result = PahoProperties(carrier)  # type: ignore[no-untyped-call]
    for name, paho_name in _NAMES.items():
        value = getattr(properties, name)
        if value is not None and value != ():
            setattr(result, paho_name, list(value) if isinstance(value, tuple) else value)
    return result


def _from_paho(properties: PahoProperties | None) -> tuple[tuple[str, Plain], ...]:
    values: dict[str, Plain] = {}
    for name, paho_name in _NAMES.items():
        value: Any = getattr(properties, paho_name, None)
        if value is not None:
            values[name] = _plain(value)
    return plain_properties(values)


def _plain(value: Any) -> Plain:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value  # type: ignore[no-any-return]


class PahoClient(Client):
    """One `paho.mqtt.client.Client`."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._v5 = options.level == 5
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            clean_session=None if self._v5 else options.clean,
            protocol=paho.MQTTv5 if self._v5 else paho.MQTTv311,
            reconnect_on_failure=False,
        )
        self._paho.max_inflight_messages_set(_WINDOW)
        if options.username is not None:
            self._paho.username_pw_set(options.username, options.password)
        if options.will is not None:
            will = options.will
            properties = _to_paho(will.properties, PacketTypes.WILLMESSAGE) if self._v5 else None
            self._paho.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        self._paho.on_connect = self._on_connect
        self._paho.on_message = self._on_message
        self._paho.on_subscribe = self._on_subscribe
        self._paho.on_unsubscribe = self._on_subscribe
        self._paho.on_publish = self._on_publish
        self._paho.on_disconnect = self._on_disconnect

    # ---- callbacks, in paho's thread -----------------------------------------------------

    def _on_connect(self, _c: Any, _u: Any, flags: Any, code: Any, _p: Any) -> None:
        self._connack_arrived(Connected(code.value, bool(flags.session_present)))

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        properties = _from_paho(message.properties)
        self._message_arrived(
            Message(message.topic, bytes(message.payload), message.qos, message.retain, properties)
        )

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, codes: Any, _p: Any) -> None:
        self._acknowledgment_arrived(mid, [code.value for code in codes])

    def _on_publish(self, _c: Any, _u: Any, mid: int, code: Any, _p: Any) -> None:
        self._acknowledgment_arrived(mid, [code.value])

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, code: Any, _p: Any) -> None:
        told = flags.is_disconnect_packet_from_server
        self._connection_ended(f"DISCONNECT 0x{code.value:02x}" if told else "closed")

    # ---- what the scenarios call ---------------------------------------------------------

    def connect(self) -> Connected:
        settings: dict[str, Any] = {}
        if self._v5:
            settings["clean_start"] = self.options.clean
            settings["properties"] = _to_paho(self.options.properties, PacketTypes.CONNECT)
        self._paho.connect("127.0.0.1", self.options.port, keepalive=60, **settings)
        connection = self._paho.socket()
        if isinstance(connection, socket.socket) and connection.fileno() >= _SELECTABLE:
            raise RuntimeError(f"{connection.fileno()} files are open: paho would hear nothing")
        self._paho.loop_start()
        self._wait(lambda: self._connack is not None, self.answer_s, until_lost=True)
        return self._connack or Connected(-1)

    def subscribe(
        self, subscriptions: Sequence[Subscription], identifier: int | None = None
    ) -> tuple[int, ...] | None:
        if self._v5:
            options = [
                (
                    each.topic_filter,
                    SubscribeOptions(
                        each.qos, each.no_local, each.retain_as_published, each.retain_handling
                    ),
                )
                for each in subscriptions
            ]
            properties = PahoProperties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            if identifier is not None:
                properties.SubscriptionIdentifier = identifier
            _, mid = self._paho.subscribe(options, properties=properties)
        else:
            _, mid = self._paho.subscribe([(each.topic_filter, each.qos) for each in subscriptions])
        return None if mid is None else self._await_acknowledgment(mid)

    def unsubscribe(self, topic_filter: str) -> bool:
        _, mid = self._paho.unsubscribe(topic_filter)
        return mid is not None and self._await_acknowledgment(mid) is not None

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> bool:
        converted = _to_paho(properties, PacketTypes.PUBLISH) if self._v5 else None
        mids = [
            self._paho.publish(topic, payload, qos, retain, converted).mid for payload in payloads
        ]
        # The first to stay out ends it.
        limit_s = self.publishing_s(len(payloads))
        return all(self._await_acknowledgment(mid, limit_s) is not None for mid in mids)

    def disconnect(self, reason_code: int = 0) -> None:
        code = PahoReasonCode(PacketTypes.DISCONNECT, identifier=reason_code) if self._v5 else None
        self._paho.disconnect(code)
        self.wait_lost()
        self._paho.loop_stop()

    def drop(self) -> None:
        connection = self._paho.socket()
        if isinstance(connection, socket.socket):
            connection.shutdown(socket.SHUT_RDWR)
        self.wait_lost()
        self._paho.loop_stop()

    def close(self) -> None:
        if self._connack is not None and self.lost is None:
            self._paho.disconnect()
        self._paho.loop_stop()
        # It closes its pair of sockets when it is collected: at once, if nothing here holds it.
        for event in ("connect", "message", "subscribe", "unsubscribe", "publish", "disconnect"):
            setattr(self._paho, f"on_{event}", None)
