"""The page stands alone and nothing from outside can break out of its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from isthmus.bench.limit.file import MeasuredTrial
from isthmus.bench.limit.search import Trial, TrialOutcome
from isthmus.bench.report import sections
from isthmus.bench.report.page import PageSection, folded, page, paragraph, table
from isthmus.bench.report.plots import Point
from isthmus.bench.report.results import IndexTables, Result, result_of
from isthmus.bench.report.sections import search_points
from support.made_up_runs import losses_rows, summary_row, usage_rows


class Balance(HTMLParser):
    """Checks that tags are closed in order; knows the void ones that occur."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(html: str) -> set[str]:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.tags


def test_text_from_outside_is_escaped() -> None:
    evil = "<script>alert('x')</script>&"
    html = page(evil, evil, [PageSection(evil, paragraph(evil) + table([evil], [[evil]]))])
    assert "<script" not in html
    assert "script" not in balanced(html)


def test_numbers_stand_to_the_right_and_verdicts_are_badges() -> None:
    html = table(["n", "holds", "text"], [[1234, "yes", "x"], [None, "within noise", "y"]])
    assert '<td class="n">1,234</td>' in html
    assert '<td class="n"></td>' in html
    assert '<span class="yes">yes</span>' in html
    assert '<span class="noise">within noise</span>' in html
    assert "<td>x</td>" in html


def test_notes_are_folded_and_escaped() -> None:
    html = table(["notes"], [[folded(["a < b", "c"])], [folded([])]])
    assert "<summary>2 notes</summary><ul><li>a &lt; b</li><li>c</li></ul>" in html
    assert "<td></td>" in html


def test_cells() -> None:
    html = table(["a"], [[0.12345], [12345.6], [True], ["≥ 5"]])
    assert re.findall(r"<td[^>]*>(.*?)</td>", html) == ["0.123", "12,346", "yes", "≥ 5"]


def whole_page(
    results: list[Result],
    tables: IndexTables,
    searches: dict[str, list[Point]],
    *,
    setup: dict[str, str],
) -> str:
    """Every section there is."""
    made = [
        sections.limits_section("Throughput and latency", "", results),
        sections.loss_section(results),
        sections.bottleneck_section(results),
        sections.cpu_section(results, 2),
        sections.seconds_section(results, tables),
        sections.search_section(searches),
        sections.key_section("What it ran on", setup),
    ]
    return page("A broker", "What it can do.", [each for each in made if each])


def test_a_report_of_any_benchmark_needs_nothing_beside_it() -> None:
    tables = {
        "summary": [summary_row("r1")],
        "usage": usage_rows("r1", 1),
        "losses": losses_rows("r1"),
        "per_second": [
            {"run": "r1", "second": 0, "in_window": True, "ingress": 5, "egress": 50},
        ],
    }
    measurement = MeasuredTrial(
        Trial(0, 25_000_000), TrialOutcome("r1", True, 1.0, 2e3, 2e4, 0.0, True)
    )
    points = search_points([measurement], 50, 10.0)
    assert points[0].offered == 20_000.0
    html = whole_page(
        [result_of(tables, "r1")], tables, {"r1": points}, setup={"processor": "2 cores"}
    )
    tags = balanced(html)
    assert "svg" in tags
    assert not tags & {"script", "link", "img", "iframe"}
    # Names of XML namespaces are no addresses to fetch.
    assert not re.findall(r'(?:src|href)="(?!#)[^"]+"', html)
    for title in ("Throughput and latency", "Loss at the limit", "Who was the bottleneck", "CPU"):
        assert f"<h2>{title}</h2>" in html
    for title in ("Per second", "The search", "What it ran on"):
        assert f"<h2>{title}</h2>" in html


def test_sections_without_data_are_left_out() -> None:
    tables = {"summary": [summary_row("r1")], "usage": [], "per_second": [], "losses": []}
    results = [result_of(tables, "r1")]
    html = whole_page(results, tables, {}, setup={})
    assert "<h2>CPU</h2>" not in html
    assert "<h2>The search</h2>" not in html
    assert "nobody watched" not in html  # the run says what limited it
