"""What a broker has shown that it closes on, so that the next message like it need not be tried.

Finding out which message ends sessions takes a few of them (`isthmus.exchange.broker.injection`),
and nothing else flows meanwhile: who sends many such messages would stop a neighbor's traffic for
as long as he likes.  A broker may close on control characters and noncharacters in a topic
[MQTT-1.5.4-3].  If a message that had to be set aside has some, what has them too is set aside
without a trial, for `MEMORY_S` or until the broker was away: it may have been told otherwise.

Nothing is learned from an ordinary topic: the cause may be in the payload, or in the moment.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MEMORY_S", "Aversions", "is_special"]

MEMORY_S: Final = 60.0

_LAST_TWO: Final = "".join(
    chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17)
)
_SPECIAL: Final = {
    "a control character in its topic": re.compile("[\x01-\x1f\x7f-\x9f]"),
    "a noncharacter in its topic": re.compile(f"[\ufdd0-\ufdef{_LAST_TWO}]"),
}
_ANY: Final = re.compile("|".join(found.pattern for found in _SPECIAL.values()))


def is_special(topic: bytes) -> bool:
    """Whether there is anything in it that a broker may close on."""
    return _ANY.search(topic.decode()) is not None


class Aversions(dict[str, float]):
    """What one broker closes on, and until when that is believed."""

    __slots__ = ()

    def learn(self, topic: bytes, now_s: float) -> None:
        """Sessions fell with a message on `topic`, and nothing else in flight."""
        for what, found in _SPECIAL.items():
            if found.search(topic.decode()):
                self[what] = now_s + MEMORY_S

    def to(self, topic: bytes, now_s: float) -> str:
        """Why the broker would close on a message on `topic`; empty if that is not known."""
        for what, until_s in list(self.items()):
            if until_s <= now_s:
                del self[what]
            elif _SPECIAL[what].search(topic.decode()):
                return what
        return ""
