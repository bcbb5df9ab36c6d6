"""What people are shown of links that not everything may cross."""

from __future__ import annotations

from typing import Any

from isthmus.cooperation.link_rules import Crossing, LinkRules
from isthmus.fabric.view import rule_lines
from isthmus.node.metrics import _link_value

SITE = LinkRules(("plant/#",), (), "site-1/")


def row(crossing: Crossing | None, refused: int = 0) -> dict[str, Any]:
    shown = None if crossing is None else crossing.shown()
    return {"neighbor": "hub", "rules": shown, "rules_refused": refused}


def test_a_link_without_rules_has_no_line() -> None:
    assert rule_lines([row(None)]) == []


def test_both_ends_say_what_crosses() -> None:
    (here,) = rule_lines([row(Crossing(SITE, LinkRules()))])
    assert here == (
        "Link to hub: out plant/#, in nothing; topics get the prefix site-1/ when they leave "
        "(set by here)."
    )
    (there,) = rule_lines([row(Crossing(LinkRules(), SITE))])
    assert there == (
        "Link to hub: out nothing, in site-1/plant/#; what crosses begins with site-1/ here "
        "(set by the other end)."
    )


def test_what_is_wrong_is_told() -> None:
    crossing = Crossing(SITE, LinkRules(into=("site-1/plant/+",)))
    lines = rule_lines([row(crossing, refused=1_234)])
    assert "different rules" in lines[1]
    assert "'plant/#'" in lines[1]
    assert "'plant/+'" in lines[1]
    assert lines[2].startswith("1,234 times hub sent")
    assert _link_value(row(crossing), "rules_differ")
    assert not _link_value(row(Crossing(SITE, LinkRules())), "rules_differ")
    assert not _link_value(row(None), "rules_differ")


def test_equal_rules_do_not_differ() -> None:
    other = LinkRules(("x",), ("site-1/plant/#", "site-1/plant/a"))
    assert Crossing(LinkRules(("plant/#",), None, "site-1/"), other).differences() == ()
