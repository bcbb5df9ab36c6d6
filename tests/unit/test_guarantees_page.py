"""The page of guarantees: every row names its tests, and these exist."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from e2e.kill_table import (
    APART_RECORD,
    CONFIRM_RECORD,
    RECORD,
    TREE_PAGE,
    TREE_RECORD,
    with_apart_table,
    with_confirm_table,
    with_table,
    with_tree_table,
)
from scripts import five_brokers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
NAME = re.compile(r"`(test_\w+)::(\w+)`")


def rows() -> Iterator[str]:
    """The rows of every table with a column for tests."""
    named = False
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            named = False
        elif line.endswith("| test |"):
            named = True
        elif named and not line.startswith("|---"):
            yield line


def all_tests() -> set[tuple[str, str]]:
    """File and function of every test there is."""
    return {
        (path.stem, node.name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_row_names_a_test() -> None:
    last = [row.split("|")[-2].strip() for row in rows()]
    assert len(last) > 30
    assert [cell for cell in last if not NAME.search(cell)] == []


def test_every_test_that_is_named_exists() -> None:
    pages = (PAGE, PAGE.with_name("geo.md"))
    named = {each for page in pages for each in NAME.findall(page.read_text())}
    assert named - all_tests() == set()


def test_the_table_of_brokers_that_hang_is_that_of_the_record() -> None:
    page = PAGE.read_text()
    assert page == with_apart_table(page, json.loads(APART_RECORD.read_text())), (
        "write it anew: PYTHONPATH=tests python -m e2e.kill_table"
    )


def test_the_table_of_kills_is_that_of_the_record() -> None:
    page = PAGE.read_text()
    record = json.loads(RECORD.read_text())
    assert page == with_table(page, record), (
        "write it anew: PYTHONPATH=tests python -m e2e.kill_table"
    )
    assert f"Commit {record['commit']}" in page


def test_the_table_of_kills_with_confirmation_is_that_of_the_record() -> None:
    page, record = PAGE.read_text(), json.loads(CONFIRM_RECORD.read_text())
    assert page == with_confirm_table(page, record), (
        "write it anew: PYTHONPATH=tests python -m e2e.kill_table"
    )
    assert f"Commit {record['commit']}" in page
    for each in (fault for run in record["runs"] for fault in run["faults"]):
        assert not each["lost"] or each["fault"].startswith("broker")


def test_the_table_of_killed_nodes_of_a_tree_is_that_of_the_record() -> None:
    page, record = TREE_PAGE.read_text(), json.loads(TREE_RECORD.read_text())
    assert page == with_tree_table(page, record), (
        "write it anew: PYTHONPATH=tests python -m e2e.kill_table"
    )
    assert f"Commit {record['commit']}" in page
    kills = [each for run in record["runs"] for each in run["kills"]]
    assert sum(each["lost"] + each["doubled"] for each in kills) == 0


def test_the_five_brokers_that_are_shown_are_those_of_the_record() -> None:
    page = five_brokers.PAGE.read_text()
    record = json.loads(five_brokers.RECORD.read_text())
    assert page == five_brokers.shown(page, record), "write it anew: python scripts/five_brokers.py"
    assert f"commit {record['commit']}" in page
