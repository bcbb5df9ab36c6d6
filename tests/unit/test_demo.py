"""The demo's ledger and view: who should get what, and what is shown when something is missing."""

from __future__ import annotations

import io
import json
import time

from rich.console import Console

from isthmus.demo_traffic import Ledger, Reading, SubscriberPlan
from isthmus.demo_view import View

PLANS = (
    SubscriberPlan("thermostat", "home/+/temperature", 0),
    SubscriberPlan("archive", "home/#", 1),
)


def payload(reading: Reading) -> bytes:
    return json.dumps(
        {
            "sensor": reading.sensor,
            "sequence": reading.sequence,
            "sent_s": time.monotonic(),
            "value": 21.5,
            "unit": "°C",
        }
    ).encode()


def test_a_message_is_expected_by_those_whose_filter_matches() -> None:
    ledger = Ledger(PLANS)
    ledger.publish(Reading("s", 0), "home/attic/temperature")
    ledger.publish(Reading("s", 1), "home/attic/humidity")
    assert [(row.subscriber, row.expected) for row in ledger.rows()] == [
        ("thermostat", 1),
        ("archive", 2),
    ]
    assert ledger.published == 2
    assert not ledger.complete()


def test_complete_means_every_single_message_not_the_number_of_them() -> None:
    ledger = Ledger(PLANS)
    first, second = Reading("s", 0), Reading("s", 1)
    for reading in (first, second):
        ledger.publish(reading, "home/attic/humidity")
        ledger.receive("archive", "home/attic/humidity", payload(first))
    (row,) = [row for row in ledger.rows() if row.subscriber == "archive"]
    assert (row.received, row.expected, row.duplicates) == (1, 2, 1)
    assert ledger.missing() == {"archive": {second: "home/attic/humidity"}}
    ledger.receive("archive", "home/attic/humidity", payload(second))
    assert ledger.complete()


def test_a_users_own_message_is_shown_but_not_counted() -> None:
    ledger = Ledger(PLANS)
    for body in (b"open", b"\xff", b"[]", b'{"sensor": 1}'):
        ledger.receive("archive", "home/hall/door", body)
    (row,) = [row for row in ledger.rows() if row.subscriber == "archive"]
    assert (row.received, row.expected) == (0, 0)
    assert row.last == '{"sensor": 1} hall/door'


def test_latency_and_rate() -> None:
    ledger = Ledger(PLANS)
    reading = Reading("s", 0)
    ledger.publish(reading, "home/a/temperature")
    ledger.receive("thermostat", "home/a/temperature", payload(reading))
    row = ledger.rows()[0]
    assert row.latency_ms is not None
    assert row.latency_ms >= 0
    assert row.rate_per_s > 0
    assert row.last == "21.5 °C a/temperature"


def summary(ledger: Ledger) -> str:
    output = io.StringIO()
    View((), ledger, 6, Console(file=output, width=100)).summary(3.0)
    return output.getvalue()


def test_the_summary_names_what_is_missing() -> None:
    ledger = Ledger(PLANS)
    for sequence in range(15):
        ledger.publish(Reading("s", sequence), "home/attic/light")
    text = summary(ledger)
    assert "15 messages published in 3.0 s." in text
    assert "archive misses 15:" in text
    assert "home/attic/light #9" in text
    assert "home/attic/light #10" not in text
    assert "and 5 more" in text
    assert "Every message" not in text


def test_the_summary_of_a_complete_run() -> None:
    ledger = Ledger(PLANS)
    ledger.publish(Reading("s", 0), "home/a/b")
    ledger.receive("archive", "home/a/b", payload(Reading("s", 0)))
    assert "Every message that should have arrived did." in summary(ledger)
