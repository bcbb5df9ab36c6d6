"""docs/howto/choose-an-algorithm.md says what `scripts/choose.py` measures.

The whole table is measured again, cell by cell: one that is not looked at is wrong sooner or later.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("choose", ROOT / "scripts" / "choose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


choose = _load()


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, dict[str, list[int]]]]:
    found: dict[str, dict[str, dict[str, list[int]]]]
    found = json.loads(choose.RECORD.read_text())["messages and control"]
    return found


def test_the_page_has_the_numbers_of_the_record(
    recorded: dict[str, dict[str, dict[str, list[int]]]],
) -> None:
    assert choose.page(recorded) == choose.PAGE.read_text()


@pytest.mark.parametrize("case", choose.CASES)
@pytest.mark.parametrize("who", choose.PUBLISHERS)
@pytest.mark.parametrize("algorithm", choose.ALGORITHMS)
def test_each_cell_is_what_was_recorded(
    recorded: dict[str, dict[str, dict[str, list[int]]]], algorithm: str, who: str, case: str
) -> None:
    found = choose.measured(algorithm, choose.PUBLISHERS[who], choose.CASES[case])
    assert found == recorded[who][case][algorithm], "`make choose` measures and writes it anew"
    if case == "nobody" and algorithm in ("sf", "skipgraph", "topic-tree"):
        assert found[0] == 0
