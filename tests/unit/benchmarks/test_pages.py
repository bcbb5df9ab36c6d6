"""Pages that show measured figures: what stands in them is what the record beside them says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pages import DOCS, publish, tables, with_tables

MEASURED = [
    page for page in sorted(DOCS.glob("*.md")) if f"<!-- {page.stem}: begin" in page.read_text()
]


def document(**changes: Any) -> dict[str, Any]:
    target = {
        "name": "rate",
        "unit": "x",
        "value": 0.934,
        "bound": 0.95,
        "at_least": True,
        "note": "",
        "met": False,
    }
    spread = {"median": 1234.5, "low": 1.5, "high": 2000.0, "iqr": 0.1}
    return {
        "commit": "abc",
        "time": "today",
        "machine": {
            "cores": 2,
            "cpu": "Some CPU",
            "memory_gib": 4,
            "kernel": "6",
            "python": "3",
            "uvloop": "0",
            "mosquitto": "2",
        },
        "doubts": ["one round was disturbed"],
        "targets": [target],
        "summary": {"rate direct": {"unit": "msg/s", "rounds": 5, "spread": spread}},
        "rounds": ["much"],
        **changes,
    }


def test_a_missed_target_is_said_to_be_missed() -> None:
    assert "| rate | ≥ 0.95 x | **0.934** x | **missed** |" in tables(document())


def test_what_was_not_measured_is_not_met() -> None:
    (target,) = document()["targets"]
    shown = tables(document(targets=[target | {"value": None}]))
    assert "| rate | ≥ 0.95 x | not measured | **missed** |" in shown


def test_the_spread_stands_beside_the_median_and_doubts_below() -> None:
    shown = tables(document())
    assert "| rate direct, msg/s | 1,234 | 1.500 | 2,000 | 5 |" in shown
    assert shown.endswith("one round was disturbed.\n")


def test_tables_of_its_own_stand_after_the_figures() -> None:
    table = {"caption": "Of sizes.", "headings": ["nodes", "s"], "rows": [["5", "0.1"]]}
    shown = tables(document(tables=[table]))
    assert "\n\nOf sizes.\n\n| nodes | s |\n|---|---|\n| 5 | 0.1 |\n\nCommit" in shown


def test_the_record_and_the_page_are_written_without_the_rounds(tmp_path: Path) -> None:
    page = tmp_path / "relay.md"
    page.write_text("before\n<!-- relay: begin -->\nold\n<!-- relay: end -->\nafter\n")
    publish(page, document())
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    record = json.loads(page.with_suffix(".json").read_text())
    assert "rounds" not in record
    assert with_tables(text, "relay", record) == text


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "relay.md"
    page.write_text("before\n<!-- relay: begin -->\nno end\n")
    with pytest.raises(ValueError, match="relay: the page has no"):
        publish(page, document())
    assert page.read_text().endswith("no end\n")


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.stem)
def test_the_documentation_says_what_was_measured(page: Path) -> None:
    record, text = page.with_suffix(".json"), page.read_text()
    if record.exists():
        assert with_tables(text, page.stem, json.loads(record.read_text())) == text
    else:
        nothing = f"<!-- {page.stem}: begin -->\n<!-- {page.stem}: end -->\n"
        assert nothing in text, "figures without a record"
