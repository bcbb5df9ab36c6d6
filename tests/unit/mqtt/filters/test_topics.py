"""Topic names and filters: every example of sections 4.7 and 4.8.2 of the specification."""

from __future__ import annotations

import pytest

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import (
    check_topic_filter,
    check_topic_name,
    is_valid_topic_name,
    matches,
    split_shared,
)

VALID_NAMES = [
    "sport",
    "/",
    "//",
    "/finance",
    "finance/",
    "Accounts payable",
    " ",
    "$SYS/broker/load",
    "$",
    "$share/x",
    "température/été",
    "\N{GRINNING FACE}",
    "\N{ZERO WIDTH NO-BREAK SPACE}a",
    "x" * 65_535,
    "é" * 32_767 + "x",
]

INVALID_NAMES = [
    ("", "MQTT-4.7.3-1"),
    ("a\0b", "MQTT-4.7.3-2"),
    ("\0", "MQTT-4.7.3-2"),
    ("x" * 65_536, "MQTT-4.7.3-3"),
    ("é" * 32_768, "MQTT-4.7.3-3"),
    ("+", "MQTT-3.3.2-2"),
    ("#", "MQTT-3.3.2-2"),
    ("a/+/b", "MQTT-3.3.2-2"),
    ("a/#", "MQTT-3.3.2-2"),
    ("a+", "MQTT-3.3.2-2"),
    ("c#", "MQTT-3.3.2-2"),
    ("a/\ud800", "MQTT-1.5.4-1"),
]

VALID_FILTERS = [
    "#",
    "+",
    "/",
    "/#",
    "/+",
    "+/+",
    "+/#",
    "sport/tennis/#",
    "+/tennis/#",
    "sport/+/player1",
    "sport/tennis/player1",
    "$SYS/#",
    "+//+",
    "$share/consumer1/sport/tennis/+",
    "$share/consumer1//finance",
    "$share/consumer1//",
    "$share/g/#",
    "$share/g/$SYS/#",
    "$share",
    "$shared/x",
    "x" * 65_535,
    "é/" * 21_845,
]

INVALID_FILTERS = [
    ("", "MQTT-4.7.3-1"),
    ("a/\0", "MQTT-4.7.3-2"),
    ("x" * 65_536, "MQTT-4.7.3-3"),
    ("é" * 32_768, "MQTT-4.7.3-3"),
    ("\udfff", "MQTT-1.5.4-1"),
    ("sport/tennis#", "MQTT-4.7.1-1"),
    ("sport/tennis/#/ranking", "MQTT-4.7.1-1"),
    ("#/", "MQTT-4.7.1-1"),
    ("##", "MQTT-4.7.1-1"),
    ("#/#", "MQTT-4.7.1-1"),
    ("a/#b", "MQTT-4.7.1-1"),
    ("+#", "MQTT-4.7.1-1"),
    ("sport+", "MQTT-4.7.1-2"),
    ("+sport/x", "MQTT-4.7.1-2"),
    ("a/++/b", "MQTT-4.7.1-2"),
    ("a/b+/#", "MQTT-4.7.1-2"),
    ("$share/g/a+", "MQTT-4.7.1-2"),
    ("$share/g/a#", "MQTT-4.7.1-1"),
]

INVALID_SHARES = [
    ("$share/", "MQTT-4.8.2-1"),
    ("$share//a", "MQTT-4.8.2-1"),
    ("$share//", "MQTT-4.8.2-1"),
    ("$share/g", "MQTT-4.8.2-2"),
    ("$share/g/", "MQTT-4.8.2-2"),
    ("$share/+/a", "MQTT-4.8.2-2"),
    ("$share/#", "MQTT-4.8.2-2"),
    ("$share/g+/a", "MQTT-4.8.2-2"),
]


@pytest.mark.parametrize("name", VALID_NAMES)
def test_valid_names(name: str) -> None:
    check_topic_name(name)
    assert is_valid_topic_name(name.encode())


@pytest.mark.parametrize(("name", "section"), INVALID_NAMES)
def test_invalid_names(name: str, section: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_topic_name(name)
    assert caught.value.reason_code == 0x82
    assert caught.value.section == section
    assert not is_valid_topic_name(name.encode(errors="surrogatepass"))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"a/\xc3",  # cut short
        b"\xc0\xaf",  # an overlong slash
        b"\xed\xa0\x80",  # a surrogate
        b"\xf4\x90\x80\x80",  # beyond U+10FFFF
    ],
)
def test_names_that_are_not_utf_8(raw: bytes) -> None:
    assert not is_valid_topic_name(raw)


@pytest.mark.parametrize("topic_filter", VALID_FILTERS)
def test_valid_filters(topic_filter: str) -> None:
    check_topic_filter(topic_filter)


@pytest.mark.parametrize(("topic_filter", "section"), INVALID_FILTERS + INVALID_SHARES)
def test_invalid_filters(topic_filter: str, section: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_topic_filter(topic_filter)
    assert caught.value.reason_code == 0x82
    assert caught.value.section == section


@pytest.mark.parametrize("topic_filter", ["$share/", "$share//a", "$share/g", "$share/+/a"])
def test_mqtt_3_has_no_shared_subscriptions(topic_filter: str) -> None:
    check_topic_filter(topic_filter, shared_subscriptions=False)
    with pytest.raises(RemoteProtocolError):
        check_topic_filter(topic_filter)


def test_messages_stay_short_and_printable() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_topic_name("\n\x1b[31m" + "x" * 70_000)
    message = str(caught.value)
    assert len(message) < 250
    assert message.isprintable()
    assert "70006 bytes" in message


MATCHES = [
    # 4.7.1.2, the multi-level wildcard
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport"),
    ("#", "/"),
    ("#", "a/b/c/d"),
    # 4.7.1.3, the single-level wildcard
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/tennis/+", "sport/tennis/player2"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "sport/tennis"),
    ("+/tennis/#", "sport/tennis/player1/ranking"),
    ("sport/+/player1", "sport/tennis/player1"),
    # 4.7.2, topics that begin with $
    ("$SYS/#", "$SYS/"),
    ("$SYS/#", "$SYS"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a/+", "a/$b"),
    ("a/#", "a/$b/c"),
    ("+/$b", "a/$b"),
    # 4.7.3, semantics
    ("/", "/"),
    ("+/#", "a"),
    ("+/#", "a/b"),
    ("Accounts payable", "Accounts payable"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("+/+/+", "//"),
    ("a/+/#", "a/"),
]

MISMATCHES = [
    ("sport/tennis/player1/#", "sport/tennis"),
    ("sport/tennis/player1/#", "sport/tennis/player10"),
    ("sport/#", "sports"),
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("#", "$SYS"),
    ("#", "$SYS/monitor/Clients"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+", "$SYS"),
    ("+/#", "$SYS/x"),
    ("ACCOUNTS", "Accounts"),
    ("/finance", "finance"),
    ("finance", "finance/"),
    ("a/+/#", "a"),
    ("a/+/b", "a/b"),
    ("/", "//"),
    ("+/+", "//"),
    ("a", "b"),
]


@pytest.mark.parametrize(("topic_filter", "topic"), MATCHES)
def test_matches(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic)


@pytest.mark.parametrize(("topic_filter", "topic"), MISMATCHES)
def test_does_not_match(topic_filter: str, topic: str) -> None:
    assert not matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "split"),
    [
        ("$share/consumer1/sport/tennis/+", ("consumer1", "sport/tennis/+")),
        ("$share/consumer2//finance", ("consumer2", "/finance")),
        ("$share/g//", ("g", "/")),
        ("$share/g/$share/h/a", ("g", "$share/h/a")),
        ("sport/tennis/+", (None, "sport/tennis/+")),
        ("$share", (None, "$share")),
        ("$SHARE/g/a", (None, "$SHARE/g/a")),
        ("$share/g", (None, "$share/g")),
        ("$share/g/", (None, "$share/g/")),
        ("$share//a", (None, "$share//a")),
    ],
)
def test_split_shared(topic_filter: str, split: tuple[str | None, str]) -> None:
    assert split_shared(topic_filter) == split
