from __future__ import annotations

import pytest

from isthmus.cooperation.registry import check_options


@pytest.mark.parametrize(
    "options",
    [{"base": 16}, {"forwarding": "mrf"}, {"links": "all"}, {"repair_s": 0.5}],
)
def test_options(options: dict[str, object]) -> None:
    check_options("skipgraph", options)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"base": 1}, "base"),
        ({"base": 257}, "base"),
        ({"base": 2.5}, "base"),
        ({"base": "2"}, "base"),
        ({"forwarding": "flood"}, "forwarding"),
        ({"links": "some"}, "links"),
        ({"roots": "balance"}, "roots"),
    ],
)
def test_options_that_are_wrong(options: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        check_options("skipgraph", options)
