"""What the coefficient of Fig. 3.13 depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.reproduce.skipgraph import variants as module
from isthmus.reproduce.skipgraph.variants import coefficient_of, variants, write_variants


def test_the_share_that_forwards_once_decides() -> None:
    found = {each.change: each for each in variants(topics=40, subscribers=400)}
    for change, each in found.items():
        if "send" not in change and change != "topics of 40 subscribers":  # one in 40 is much
            expected = coefficient_of(each.once, range(1, 41))
            assert each.coefficient == pytest.approx(expected, abs=0.012), change
    assert found["base 4"].once > found["nothing"].once + 0.03
    assert found["queries enter the range in the middle"].once == pytest.approx(
        found["nothing"].once, abs=0.02
    )


def test_the_thesis_means_more_nodes_that_forward_once() -> None:
    sent = range(1, 101)
    assert coefficient_of(0.41, sent) == pytest.approx(0.5426, abs=0.001)
    assert coefficient_of(0.445, sent) == pytest.approx(0.5540, abs=0.001)
    assert coefficient_of(0.0, sent) == pytest.approx(0.444, abs=0.001)  # a complete binary tree


def test_the_page_gets_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(variants(topics=5, subscribers=50))
    monkeypatch.setattr(module, "variants", lambda: iter(few))
    page = tmp_path / "reproduce-skipgraph.md"
    page.write_text("a\n<!-- variants: begin -->\nx\n<!-- variants: end -->\nb\n")
    folder = tmp_path / "skipgraph"
    folder.mkdir()
    assert write_variants(folder) == few
    kept = json.loads((folder / "skipgraph-variants.json").read_text())["variants"]
    assert [each["change"] for each in kept] == [each.change for each in few]
    text = page.read_text()
    assert text.startswith("a\n<!-- variants: begin -->\n| changed |")
    assert text.endswith("\n<!-- variants: end -->\nb\n")
    assert f"| base 3 | {kept[11]['once']:.3f} |" in text
