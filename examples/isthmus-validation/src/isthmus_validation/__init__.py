"""Subscription flooding that lets only valid JSON through, below a prefix of topics."""

from __future__ import annotations

import json
from collections.abc import Mapping

from isthmus.cooperation.api import Port, SessionInfo, SessionKind
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.mqtt.decoding import decode, decode_connect
from isthmus.mqtt.packets import Publish
from isthmus.mqtt.primitives import PacketType


class ValidatedSubscriptionFlooding(SubscriptionFlooding):
    """Options: `json_prefix`, where topics begin whose payloads must be JSON."""

    name = "validated-sf"
    inspects_publishes = True

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        own = dict(options)
        prefix = own.pop("json_prefix", "json/")
        if not isinstance(prefix, str):
            raise ValueError(f"json_prefix: must be text, not {prefix!r}")
        super().__init__(port, own)
        self._prefix = prefix
        self._levels: dict[SessionInfo, int] = {}
        self._aliases: dict[SessionInfo, dict[int, str]] = {}
        self._refused = 0

    def mqtt_message_arrived(
        self, session: SessionInfo, packet_type: PacketType, message: bytes
    ) -> bool:
        passes = super().mqtt_message_arrived(session, packet_type, message)
        if session.kind is SessionKind.LOCAL_CLIENT:
            if packet_type is PacketType.CONNECT:
                self._levels[session] = decode_connect(message).protocol_level
            elif packet_type is PacketType.PUBLISH and not self._is_valid(session, message):
                self._refused += 1
                return False
        return passes

    def _is_valid(self, session: SessionInfo, message: bytes) -> bool:
        packet = decode(message, self._levels[session])
        assert isinstance(packet, Publish)
        topic, alias = packet.topic, packet.properties.topic_alias
        if alias is not None:
            aliases = self._aliases.setdefault(session, {})
            topic = aliases[alias] = topic or aliases.get(alias, "")
        if not topic.startswith(self._prefix):
            return True
        try:
            json.loads(packet.payload)
        except ValueError:
            return False
        return True

    def on_session_closed(self, session: SessionInfo) -> None:
        self._levels.pop(session, None)
        self._aliases.pop(session, None)
        super().on_session_closed(session)

    def status(self) -> dict[str, object]:
        return {**super().status(), "refused": self._refused}
