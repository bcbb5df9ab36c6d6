"""The examples on the simulator's page run, and its figures are those of the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isthmus.sim.figures import DOCS, main, with_figures

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "exact-simulator.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str) -> None:
    exec(compile(example, str(PAGE), "exec"), {})


@pytest.mark.parametrize("name", ["soak", "fuzz-node"])
def test_the_page_says_what_the_record_says(name: str) -> None:
    record = DOCS / f"{name}.json"
    assert record.exists(), f"make {name} writes it"
    assert record.stat().st_size < 10_000
    shown = PAGE.read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    assert "The last long run" in shown
    assert main(["--check"]) == 0, "python -m isthmus.sim.figures writes them"


def test_a_figure_that_was_typed_is_noticed() -> None:
    page = PAGE.read_text()
    assert with_figures(page.replace("failures", "faults"), DOCS) != page.replace(
        "failures", "faults"
    )
