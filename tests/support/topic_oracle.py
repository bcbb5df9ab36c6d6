"""A second opinion on filters: as regular expressions, and by listing every name there is.

Nothing here shares an idea with the code under test.  `mask` turns a filter into the set of names
of `TOPICS` it matches, as the bits of a number, so that covering is a question about subsets.
`TOPICS` has every name of up to four levels made of the literals in `LITERALS` and of ``z``, which
no filter of `FILTERS` contains; these have up to three levels and perhaps ``#``.  Names that are
one level deeper than every filter, and a level that no filter mentions, tell apart all filters
that any name tells apart.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product

from hypothesis import strategies as st

LITERALS = ("a", "b", "", "$s")


def by_regular_expression(topic_filter: str, topic: str) -> bool:
    pattern = re.escape(topic_filter)
    if pattern == r"\#":
        pattern = r".*"
    elif pattern.endswith(r"/\#"):
        pattern = pattern.removesuffix(r"/\#") + r"(/.*)?"
    pattern = pattern.replace(r"\+", r"[^/]*")
    if topic_filter[0] in "+#":
        pattern = r"(?!\$)" + pattern
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


def _joined(levels: tuple[str, ...], depth: int) -> list[str]:
    """All texts of one to `depth` levels but the empty one, which is no name and no filter."""
    texts = ["/".join(chosen) for n in range(1, depth + 1) for chosen in product(levels, repeat=n)]
    return [text for text in texts if text]


def all_filters(levels: tuple[str, ...], depth: int) -> list[str]:
    closed = _joined((*levels, "+"), depth)
    opened = [text + "/#" for text in closed] + ["/#"] * ("" in levels)
    return [*closed, *opened, "#"]


TOPICS = _joined((*LITERALS, "z"), 4)
FILTERS = all_filters(LITERALS, 3)


@cache
def mask(topic_filter: str) -> int:
    """The names of `TOPICS` that the filter matches."""
    bits = 0
    for at, topic in enumerate(TOPICS):
        if by_regular_expression(topic_filter, topic):
            bits |= 1 << at
    return bits


def contains(outer: int, inner: int) -> bool:
    return inner & ~outer == 0


def naive_maximal(topic_filters: list[str]) -> set[str]:
    """The filters whose names are not a proper subset of another's."""
    masks = {topic_filter: mask(topic_filter) for topic_filter in topic_filters}
    return {
        topic_filter
        for topic_filter, own in masks.items()
        if not any(contains(other, own) and other != own for other in masks.values())
    }


listed_filters = st.sampled_from(FILTERS)
# Fewer different levels, so that filters often have to do with each other.
close_filters = st.sampled_from(all_filters(("a", "$s"), 3))

_characters = st.characters(codec="utf-8", exclude_characters="/+#\0")
_levels = st.one_of(st.sampled_from(LITERALS), st.text(_characters, max_size=3))
topic_names = st.lists(_levels, min_size=1, max_size=6).map("/".join).filter(bool)


@st.composite
def filters_for(draw: st.DrawFn, topic: str) -> str:
    """A filter that looks like the name and often matches it."""
    levels = topic.split("/")
    levels = [draw(st.sampled_from([level, level, "+", "a"])) for level in levels]
    if draw(st.booleans()):
        levels = [*levels[: draw(st.integers(0, len(levels)))], "#"]
    return "/".join(levels) or "+"
