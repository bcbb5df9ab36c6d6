"""Matching and validity agree with oracles that know nothing of levels."""

from __future__ import annotations

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.topics import (
    check_topic_filter,
    check_topic_name,
    is_valid_topic_name,
    matches,
    split_shared,
)
from support.topic_oracle import FILTERS, TOPICS, by_regular_expression, filters_for, topic_names


def _is_accepted_filter(text: str) -> bool:
    try:
        check_topic_filter(text)
    except RemoteProtocolError:
        return False
    return True


def test_matching_agrees_on_every_small_filter_and_name() -> None:
    for topic_filter in FILTERS:
        for topic in TOPICS:
            expected = by_regular_expression(topic_filter, topic)
            assert matches(topic_filter, topic) == expected, (topic_filter, topic)


@settings(deadline=None)
@given(st.data(), topic_names)
def test_matching_agrees_on_long_names(data: st.DataObject, topic: str) -> None:
    topic_filter = data.draw(filters_for(topic))
    check_topic_filter(topic_filter)
    assert matches(topic_filter, topic) == by_regular_expression(topic_filter, topic)


@settings(deadline=None)
@given(topic_names)
def test_a_valid_name_is_a_filter_that_matches_itself(topic: str) -> None:
    check_topic_name(topic)
    assert matches(topic, topic)
    assert matches("#", topic) == (topic[0] != "$")


@settings(deadline=None)
@given(st.binary(max_size=12))
@example(b"\xef\xbb\xbf")
def test_the_quick_check_says_what_the_slow_one_says(raw: bytes) -> None:
    accepted = False
    with contextlib.suppress(UnicodeDecodeError, RemoteProtocolError):
        check_topic_name(raw.decode())
        accepted = True
    assert is_valid_topic_name(raw) == accepted


def _is_valid_filter(text: str) -> bool:
    """Section 4.7.1 once more, character by character."""
    if not text or "\0" in text:
        return False
    for at, character in enumerate(text):
        before = text[at - 1] if at else "/"
        after = text[at + 1] if at + 1 < len(text) else "/"
        if character in "+#" and (before != "/" or after != "/"):
            return False
        if character == "#" and at + 1 < len(text):
            return False
    return True


@settings(deadline=None)
@given(st.text("ab/+#$\0", max_size=7))
def test_validity_of_filters(text: str) -> None:
    assert _is_accepted_filter(text) == _is_valid_filter(text)


@settings(deadline=None)
@given(st.text("ab/+#", max_size=4), st.text("ab/+#", max_size=5))
def test_validity_of_shared_subscriptions(share_name: str, shared: str) -> None:
    text = f"$share/{share_name}/{shared}"
    # A slash in the name only moves the place where the filter begins.
    name, _, rest = share_name.partition("/")
    topic_filter = f"{rest}/{shared}" if "/" in share_name else shared
    valid = bool(name) and not set("+#") & set(name) and _is_valid_filter(topic_filter)
    assert _is_accepted_filter(text) == valid
    if valid:
        assert split_shared(text) == (name, topic_filter)
