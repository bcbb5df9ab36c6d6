"""The matrix is what it is said to be: complete, and the page of the docs shows all of it."""

from __future__ import annotations

from conformance.catalog import SCENARIOS
from conformance.matrix import all_cells
from conformance.observation import Observation, Seen
from conformance.table import PAGE
from isthmus.brokers import broker_class, names

DEMANDED = {
    "paho": {"qos-0-to-0", "qos-1-to-1", "qos-2-to-2", "retained-0", "retained-1", "retained-2"}
    | {"will-0", "will-1", "will-2", "persistent-session-1", "persistent-session-2"},
    "gmqtt": {"qos-0-to-0", "qos-1-to-1", "qos-2-to-2", "retained-1", "will-1"}
    | {"persistent-session-1"},
}


def test_every_broker_and_version_is_asked_the_essentials_every_time() -> None:
    quick = {
        (cell.broker, cell.level, cell.library, cell.name) for cell in all_cells() if cell.quick
    }
    missing = {
        (broker, level, library, name)
        for broker in names()
        for level in broker_class(broker).protocol_levels
        for library, wanted in DEMANDED.items()
        for name in wanted
    } - quick
    assert not missing


def test_the_page_shows_every_scenario_and_every_broker() -> None:
    page = PAGE.read_text()
    absent = [name for name in SCENARIOS if f"| {name.replace('-', ' ')} |" not in page]
    assert not absent, "write the page anew: PYTHONPATH=tests python -m conformance.table"
    assert all(f"### {name}, MQTT" in page for name in names())
    assert f"Cells: {len(all_cells())}; the node made a difference in 0." in page


def test_a_departure_names_what_was_seen_and_what_was_wanted() -> None:
    wanted: Seen = {"granted": (2,), "messages": ("t 'm' qos2",)}
    seen = Observation({"granted": (1,), "messages": ("t 'm' qos2",)}, (wanted,))
    assert not seen.keeps_the_standard
    assert seen.departure == "granted [1], not [2]"
    assert Observation({"granted": (2,), "messages": ("t 'm' qos2",)}, (wanted,)).departure == ""
    assert Observation({"answer": "anything"}).keeps_the_standard
