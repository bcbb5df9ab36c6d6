"""What a client may send."""

from __future__ import annotations

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.client.checks import MAX_ALIAS_BYTES, TopicAliases
from isthmus.mqtt.reason_codes import ReasonCode


def test_topic_aliases_are_bounded() -> None:
    aliases = TopicAliases()
    aliases.maximum = 100
    topic = b"x" * 60_000
    for alias in range(1, 1 + MAX_ALIAS_BYTES // len(topic)):
        aliases.topic(alias, topic)
        aliases.topic(alias, topic)  # again: nothing more is kept
    with pytest.raises(RemoteProtocolError) as caught:
        aliases.topic(99, topic)
    assert caught.value.reason_code == ReasonCode.QUOTA_EXCEEDED
