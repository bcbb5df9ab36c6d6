"""docs/howto/choose-an-algorithm.md says what `scripts/choose.py` measures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def choose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("choose", ROOT / "scripts" / "choose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_numbers_of_the_record(choose: ModuleType) -> None:
    record = json.loads(choose.RECORD.read_text())
    assert choose.page(record["messages and control"]) == choose.PAGE.read_text()


@pytest.mark.parametrize("algorithm", ["skipgraph", "topic-tree"])
@pytest.mark.parametrize("who", ["one node publishes", "every node publishes"])
def test_with_nobody_listening_nothing_is_sent(
    choose: ModuleType, who: str, algorithm: str
) -> None:
    """And it is what was recorded."""
    record = json.loads(choose.RECORD.read_text())["messages and control"]
    found = choose.measured(algorithm, choose.PUBLISHERS[who], choose.CASES["nobody"])
    assert found[0] == 0
    assert found == record[who]["nobody"][algorithm]
