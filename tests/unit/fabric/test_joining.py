"""What is told of nodes that have come together."""

from __future__ import annotations

from typing import Any

from isthmus.fabric.joining import Joined
from isthmus.fabric.view import joined_lines


def status(parent: str, cost_ms: float, uptime_s: float, age_s: float) -> dict[str, Any]:
    tree = {"parent": parent, "cost_ms": cost_ms, "age_s": age_s}
    return {
        "node": {"uptime_s": uptime_s},
        "fabric": {"topology": {"wanted": "any"}, "algorithm": {"name": "tree", "tree": tree}},
    }


def test_the_tree_is_drawn_with_the_root_at_its_top() -> None:
    joined = Joined(
        {
            "a": status("c", 1.0, 5.0, 4.0),
            "b": status("a", 2.25, 4.5, 3.9),
            "c": status("", 0.0, 5.0, 4.0),
            "d": status("c", 1.5, 5.0, 4.0),
            "e\x1b[2J": status("a", 3.0, 5.0, 4.0),
        }
    )
    first, *drawn = joined_lines(joined)
    assert "0.60 s after the last of them was up" in first
    assert drawn == [
        "  c  root",
        "  ├─ a  1.0 ms",
        "  │  ├─ b  2.2 ms",
        "  │  └─ e\N{REPLACEMENT CHARACTER}[2J  3.0 ms",
        "  └─ d  1.5 ms",
    ]
    assert not joined.needs_tree


def test_who_builds_no_tree_has_none_drawn() -> None:
    plain = {"fabric": {"topology": {"wanted": "tree"}, "algorithm": {"name": "sf"}}}
    joined = Joined({"a": {"node": {"uptime_s": 2.5}, **plain}})
    assert joined_lines(joined) == []
    assert joined.took_s == 2.5
    assert joined.needs_tree
