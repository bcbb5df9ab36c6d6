"""Clients of paho-mqtt, which know nothing of Isthmus; every call returns when it is answered."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from isthmus.config.addresses import Address
from isthmus.errors import LoadError

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["PahoClient"]

ANSWER_S: Final = 20.0
KEEP_ALIVE_S: Final = 600


class PahoClient:
    """One that is connected when its constructor returns, at MQTT 3.1.1 as paho is by default.

    Raises `LoadError` where an answer does not come or is a refusal.
    """

    def __init__(self, client_id: str, address: Address) -> None:
        self.client_id = client_id
        self._answers: queue.SimpleQueue[list[ReasonCode]] = queue.SimpleQueue()
        self._arrived_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv311
        )
        put = self._answers.put
        self._paho.on_connect = lambda _c, _d, _f, code, _p: put([code])
        self._paho.on_subscribe = lambda _c, _d, _m, codes, _p: put(list(codes))
        self._paho.on_unsubscribe = lambda _c, _d, _m, codes, _p: put(list(codes))
        self._paho.on_message = lambda *_: self._arrived_s.put(time.perf_counter())
        try:
            self._paho.connect(address.host, address.port, KEEP_ALIVE_S)
        except OSError as error:
            raise LoadError(f"{client_id} cannot connect to {address}: {error}") from None
        self._paho.loop_start()
        try:
            self._await("CONNECT")
        except BaseException:
            self.close()
            raise

    def subscribe(self, topic_filter: str) -> None:
        self._paho.subscribe(topic_filter, qos=0)
        self._await("SUBSCRIBE")

    def unsubscribe(self, topic_filter: str) -> None:
        self._paho.unsubscribe(topic_filter)
        self._await("UNSUBSCRIBE")

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Returns when it is sent, with QoS acknowledged."""
        self._paho.publish(topic, payload, qos, retain).wait_for_publish(ANSWER_S)

    def fetch(self, topic: str) -> float:
        """Seconds from SUBSCRIBE to the retained message; then it is unsubscribed again."""
        began_s = time.perf_counter()
        self._paho.subscribe(topic, qos=0)
        try:
            arrived_s = self._arrived_s.get(timeout=ANSWER_S)
        except queue.Empty:
            raise LoadError(f"{self.client_id}: no retained message on {topic}") from None
        self._await("SUBSCRIBE")
        self.unsubscribe(topic)
        return arrived_s - began_s

    def close(self) -> None:
        self._paho.disconnect()
        self._paho.loop_stop()

    def _await(self, packet: str) -> None:
        try:
            codes = self._answers.get(timeout=ANSWER_S)
            refusal = ", ".join(str(code) for code in codes if code.is_failure)
        except queue.Empty:
            refusal = "no answer"
        if refusal:
            raise LoadError(f"{self.client_id}: {packet} was not accepted: {refusal}")
