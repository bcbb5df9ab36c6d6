"""Subscription flooding that lets only valid JSON through, below a prefix of topics."""

from __future__ import annotations

import json
from collections.abc import Mapping

from isthmus.cooperation.api import Port, ReceivedPacket, SessionInfo, SessionKind
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding
from isthmus.mqtt.packets import Publish


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
        self._prefix, self._refused = prefix, 0

    def mqtt_message_arrived(self, session: SessionInfo, message: ReceivedPacket) -> bool:
        packet = message.packet if session.kind is SessionKind.LOCAL_CLIENT else None
        if isinstance(packet, Publish) and packet.topic.startswith(self._prefix):
            try:
                json.loads(packet.payload)
            except ValueError:
                self._refused += 1
                return False
        return super().mqtt_message_arrived(session, message)

    def status(self) -> dict[str, object]:
        return {**super().status(), "refused": self._refused}
