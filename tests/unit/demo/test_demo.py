"""The demo's ledger and view: who should get what, and what is shown when something is missing."""

from __future__ import annotations

import io
import json
import time

from rich.console import Console

from isthmus.demo.ledger import PROBE, Ledger, SensorPlan, SubscriberPlan
from isthmus.demo.view import View

SUBSCRIBERS = (
    SubscriberPlan("house", "thermostat", "home/+/temperature", 0),
    SubscriberPlan("cloud", "archive", "home/#", 1),
)
WARM = SensorPlan("garden", "home/attic/temperature", "°C", 1, 0, 20.0)
DAMP = SensorPlan("house", "home/attic/humidity", "%", 1, 0, 50.0)


def new_ledger() -> Ledger:
    return Ledger(SUBSCRIBERS, (WARM, DAMP))


def payload(number: int) -> bytes:
    content = {"number": number, "sent_s": time.monotonic(), "value": "21.5 °C"}
    return json.dumps(content).encode()


def test_a_message_is_expected_by_those_whose_filter_matches_from_its_own_node() -> None:
    ledger = new_ledger()
    ledger.publish(WARM.topic, 0)
    ledger.publish(DAMP.topic, 0)
    rows = [(each.way, each.subscriber.name, each.expected) for each in ledger.accounts]
    assert rows == [
        ("garden → house", "thermostat", 1),
        ("garden → cloud", "archive", 1),
        ("house → cloud", "archive", 1),
    ]
    assert ledger.published == 2
    assert ledger.missing()


def test_complete_means_every_single_message_not_the_number_of_them() -> None:
    ledger = new_ledger()
    for sequence in (0, 1):
        ledger.publish(DAMP.topic, sequence)
        ledger.receive("archive", DAMP.topic, payload(0))
    (account,) = [each for each in ledger.accounts if each.publisher_node == "house"]
    assert (len(account.arrived), account.expected, account.duplicates) == (1, 2, 1)
    assert ledger.missing() == {"archive": [(DAMP.topic, 1)]}
    ledger.receive("archive", DAMP.topic, payload(1))
    assert not ledger.missing()


def test_a_users_own_message_is_shown_but_not_counted() -> None:
    ledger = new_ledger()
    for body in (b"open", b"\xff", b"[]", b'{"number": 1}', b'{"number": "x"}'):
        ledger.receive("archive", "home/hall/door", body)
        ledger.receive("archive", DAMP.topic, body)
    assert not any(each.arrived or each.expected for each in ledger.accounts)
    assert ledger.others == {"archive": (10, '{"number": "x"} attic/humidity')}
    assert "you → cloud" in summary(ledger)


def test_probes_count_for_nothing_but_the_way() -> None:
    ledger = new_ledger()
    assert ledger.unprobed() == {
        ("thermostat", WARM.topic),
        ("archive", WARM.topic),
        ("archive", DAMP.topic),
    }
    for sensor in (WARM, DAMP):
        ledger.receive("archive", sensor.topic, PROBE)
    assert ledger.unprobed() == {("thermostat", WARM.topic)}
    assert ledger.others == {}
    assert not ledger.missing()


def test_latency_and_last_value() -> None:
    ledger = new_ledger()
    ledger.publish(WARM.topic, 0)
    ledger.receive("thermostat", WARM.topic, payload(0))
    account = ledger.accounts[0]
    assert account.latency_ms is not None
    assert account.latency_ms >= 0
    assert account.last == "21.5 °C attic/temperature"
    assert "21.5 °C attic/temperature" in summary(ledger, width=120)


def summary(ledger: Ledger, width: int = 80, crossings: int | None = None) -> str:
    output = io.StringIO()
    View((), ledger, console=Console(file=output, width=width)).summary(3.0, crossings)
    return output.getvalue()


def test_the_summary_names_what_is_missing() -> None:
    ledger = new_ledger()
    for sequence in range(15):
        ledger.publish(DAMP.topic, sequence)
    text = summary(ledger)
    assert "15 messages published in 3.0 s." in text
    assert "archive misses 15:" in text
    assert "home/attic/humidity #9" in text
    assert "home/attic/humidity #10" not in text
    assert "and 5 more" in text
    assert "Every message that" not in text


def test_the_summary_of_a_complete_run() -> None:
    ledger = new_ledger()
    ledger.publish(DAMP.topic, 0)
    ledger.receive("archive", DAMP.topic, payload(0))
    text = summary(ledger, crossings=7)
    assert "Every message that should have arrived did." in text
    assert "The links carried 7 messages" in text


def test_a_narrow_terminal_cuts_no_number() -> None:
    ledger = new_ledger()
    for sequence in range(1234):
        ledger.publish(WARM.topic, sequence)
    header, first, *_ = summary(ledger, width=80).splitlines()
    assert header.split()[-3:] == ["received", "expected", "median"]
    assert first.split()[-3:] == ["0", "1234", "-"]
