"""Topic names and topic filters: validity, matching, and the parts of a shared subscription.

The rules are those of section 4.7 of MQTT 5, whose statement numbers the errors carry; MQTT 3.1.1
has the same rules under slightly different numbers.  A topic is a list of *levels* between
slashes, and a level may be empty: ``/finance`` has two, and differs from ``finance``.

* ``+`` stands for exactly one level, empty or not;
* ``#`` stands for any number of levels from the parent on, so ``sport/#`` matches ``sport``;
* a filter that starts with a wildcard matches no name that starts with ``$`` [MQTT-4.7.2-1];
  further on a ``$`` is a character like any other.

`matches` trusts its arguments: check them where they enter.  It takes no ``$share/...`` filter;
split it with `split_shared` first.
"""

from __future__ import annotations

from typing import Final

from isthmus.errors import RemoteProtocolError

__all__ = [
    "MAX_TOPIC_BYTES",
    "SHARE_PREFIX",
    "check_topic_filter",
    "check_topic_name",
    "is_valid_topic_name",
    "matches",
    "split_shared",
]

MAX_TOPIC_BYTES: Final = 65_535
SHARE_PREFIX: Final = "$share/"

_SHOWN_CHARACTERS: Final = 80


def check_topic_name(text: str) -> None:
    """Raise `RemoteProtocolError` unless a message may be published on `text`.

    An empty name is an error here; that a v5 PUBLISH with a topic alias may leave its name empty
    is for the reader of that packet to know.
    """
    _check_string(text, "topic name")
    if "+" in text or "#" in text:
        raise RemoteProtocolError(
            f"topic name {_shown(text)} contains a wildcard; "
            "+ and # belong in the filters of subscriptions only",
            section="MQTT-3.3.2-2",
        )


def check_topic_filter(text: str, *, shared_subscriptions: bool = True) -> None:
    """Raise `RemoteProtocolError` unless one may subscribe to `text`.

    With `shared_subscriptions`, what starts with ``$share/`` must be ``$share/NAME/FILTER``
    (MQTT 5, section 4.8.2).  MQTT 3.1.1 knows no such thing: to it this is a filter as any other.
    """
    _check_string(text, "topic filter")
    if shared_subscriptions and text.startswith(SHARE_PREFIX):
        _check_share_name(text)
    if "+" in text or "#" in text:
        _check_wildcards(text)


def is_valid_topic_name(raw: bytes) -> bool:
    """Whether `raw` is a topic name as it may stand in a PUBLISH: the quick form of the check."""
    if not raw or len(raw) > MAX_TOPIC_BYTES or b"+" in raw or b"#" in raw or b"\0" in raw:
        return False
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
    return True


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a subscription to `topic_filter` receives what is published on `topic`."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    if "+" not in topic_filter and not topic_filter.endswith("#"):
        return topic_filter == topic
    patterns = topic_filter.split("/")
    levels = topic.split("/")
    if patterns[-1] == "#":
        patterns.pop()
        if len(levels) < len(patterns):
            return False
    elif len(levels) != len(patterns):
        return False
    # Without strict: under `#` the levels may go on beyond the patterns.
    return all(pattern in ("+", level) for pattern, level in zip(patterns, levels, strict=False))


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """The share name, or None, and the filter that messages are matched against.

    What only looks like a shared subscription (``$share/x``, which `check_topic_filter` refuses
    and MQTT 3.1.1 allows) comes back whole.
    """
    if topic_filter.startswith(SHARE_PREFIX):
        share_name, slash, shared = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if share_name and slash and shared:
            return share_name, shared
    return None, topic_filter


def _check_string(text: str, kind: str) -> None:
    """What holds for names and filters alike [MQTT-4.7.3-1] to [MQTT-4.7.3-3]."""
    if not text:
        raise RemoteProtocolError(
            f"{kind} is empty; it must have at least one character",
            section="MQTT-4.7.3-1",
        )
    if "\0" in text:
        raise RemoteProtocolError(
            f"{kind} {_shown(text)} contains the null character U+0000",
            section="MQTT-4.7.3-2",
        )
    if text.isascii():
        length = len(text)
    else:
        try:
            length = len(text.encode())
        except UnicodeEncodeError as error:
            raise RemoteProtocolError(
                f"{kind} {_shown(text)} contains half of a surrogate pair, "
                f"U+{ord(text[error.start]):04X}, and has no UTF-8 form",
                section="MQTT-1.5.4-1",
            ) from None
    if length > MAX_TOPIC_BYTES:
        raise RemoteProtocolError(
            f"{kind} {_shown(text)} takes {length} bytes in UTF-8; "
            f"at most {MAX_TOPIC_BYTES} are allowed",
            section="MQTT-4.7.3-3",
        )


def _check_share_name(text: str) -> None:
    share_name, slash, shared = text[len(SHARE_PREFIX) :].partition("/")
    if not share_name:
        problem, section = "has an empty share name", "MQTT-4.8.2-1"
    elif "+" in share_name or "#" in share_name:
        problem, section = "has a wildcard in its share name", "MQTT-4.8.2-2"
    elif not (slash and shared):
        problem, section = "has no filter after its share name", "MQTT-4.8.2-2"
    else:
        return
    raise RemoteProtocolError(
        f"shared subscription {_shown(text)} {problem}; it must read $share/NAME/FILTER",
        section=section,
    )


def _check_wildcards(text: str) -> None:
    hash_at = text.find("#")
    if hash_at >= 0 and (hash_at != len(text) - 1 or (hash_at and text[hash_at - 1] != "/")):
        raise RemoteProtocolError(
            f"topic filter {_shown(text)} has a # that is not the whole of its last level",
            section="MQTT-4.7.1-1",
        )
    if any("+" in level and level != "+" for level in text.split("/")):
        raise RemoteProtocolError(
            f"topic filter {_shown(text)} has a + that is not the whole of its level",
            section="MQTT-4.7.1-2",
        )


def _shown(text: str) -> str:
    """The text for a message: quoted, ASCII, and never longer than a line of a log."""
    short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
    return ascii(short)
