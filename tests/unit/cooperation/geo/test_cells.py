"""The tiling: which broker is in charge of a topic, and whom a filter concerns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest

from isthmus.cooperation.geo.cells import Cells

DIGITS = "0123"
PAPER = {"seoul": ["0"], "tokyo": ["1"], "sydney": ["2"], "oregon": ["3"]}
UNEVEN = {"a": ["0", "3"], "b": ["1", "2/0", "2/1"], "c": ["2/2/0", "2/2/1", "2/2/2"]}
UNEVEN["d"] = ["2/2/3", "2/3"]


def random_cells(rng: random.Random, k: int, brokers: str, other: str) -> Cells:
    """A tiling of cells of all depths."""
    waiting, of = list(DIGITS), {}
    while waiting:
        cell = waiting.pop()
        if len(cell) < 2 * k - 1 and rng.random() < 0.4:
            waiting += [f"{cell}/{digit}" for digit in DIGITS]
        else:
            of[cell] = rng.choice(brokers)
    return Cells(k, of, other)


def test_the_papers_four_brokers() -> None:
    cells = Cells.of_brokers(3, PAPER)
    assert cells.broker_of("0/1/2/temperature") == "seoul"
    assert cells.broker_of("3/3/3") == "oregon"
    assert cells.brokers_of("1/#") == ("tokyo",)
    assert cells.brokers_of("+/1/#") == cells.brokers == ("seoul", "tokyo", "sydney", "oregon")


@pytest.mark.parametrize(
    "topic", ["", "0", "0/1", "0/1/4", "0/1/x/t", "a/0/1/2", "00/1/2", "/0/1/2", "$SYS/0/1", "é"]
)
def test_topics_that_are_not_of_the_notation(topic: str) -> None:
    assert Cells.of_brokers(3, PAPER).broker_of(topic) == ""
    assert Cells.of_brokers(3, PAPER, "tokyo").broker_of(topic) == "tokyo"


def test_a_filter_concerns_the_other_broker_if_it_leaves_the_notation() -> None:
    cells = Cells.of_brokers(2, {**PAPER}, "rest")
    assert cells.brokers_of("0/1/#") == ("seoul",)
    assert cells.brokers_of("0/1/+/t") == ("seoul",)
    assert cells.brokers_of("0/#") == ("seoul", "rest")
    assert cells.brokers_of("0/+/t") == ("seoul", "rest")
    assert cells.brokers_of("0") == cells.brokers_of("0/x/#") == ("rest",)
    assert Cells.of_brokers(2, PAPER).brokers_of("plant/#") == ()


def topics_of(topic_filter: str, k: int) -> Iterator[str]:
    """Every kind of topic that it matches: a digit or ``x`` wherever it leaves that open."""
    levels = topic_filter.split("/")
    tails: list[tuple[str, ...]] = [()]
    if levels[-1] == "#":
        levels.pop()
        tails = [tail for length in range(k + 1) for tail in product("0123x", repeat=length)]
    for head in product(*("0123x" if level == "+" else (level,) for level in levels)):
        for tail in tails:
            yield "/".join((*head, *tail))


@pytest.mark.parametrize("seed", range(40))
def test_a_filter_concerns_all_whose_topics_it_matches_and_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    k = rng.randint(1, 3)
    cells = random_cells(rng, k, "abcdef", rng.choice(["", "other"]))
    for _ in range(40):
        levels = [rng.choice([*"0123", "+", "+", "x", "t"]) for _ in range(rng.randint(1, k + 1))]
        if rng.random() < 0.4:
            levels.append("#")
        topic_filter = "/".join(levels)
        concerned = {cells.broker_of(topic) for topic in topics_of(topic_filter, k)}
        assert set(cells.brokers_of(topic_filter)) == concerned - {""}, topic_filter


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({}, "no cells"),
        ({"a": ["0", "1", "2"]}, 'a gap: nobody has "3"'),
        ({"a": ["0", "1", "2", "3/0", "3/1", "3/2"]}, 'a gap: nobody has "3/3"'),
        ({"a": ["0", "1", "2", "3"], "b": ["1/2"]}, '"1", of a, and "1/2", of b, overlap'),
        ({"a": ["0", "1", "2", "3"], "b": ["1"]}, '"1" is of two brokers, a and b'),
        ({"a": ["0", "1", "2", "4"]}, "cell '4': digit 1 is '4'"),
        ({"a": ["0/"]}, "digit 2 is missing"),
        ({"a": ["0/1/2/3"]}, "cell '0/1/2/3' has 4 digits; topics have 3"),
        ({"a": [7]}, "7 is no cell"),
    ],
)
def test_cells_that_do_not_tile_are_refused(cells: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(ValueError, match="(?s).*" + problem.replace("(", r"\(")):
        Cells.of_brokers(3, cells)


def test_split_and_merge() -> None:
    cells = Cells.of_brokers(2, PAPER)
    split = cells.split("1", ["a", "b", "c", "d"])
    assert [split.broker_of(f"1/{digit}/t") for digit in DIGITS] == ["a", "b", "c", "d"]
    assert split.broker_of("0/0/t") == "seoul"
    assert split.within("1") == {"1/0": "a", "1/1": "b", "1/2": "c", "1/3": "d"}
    assert split.merge("1", "tokyo") == cells
    assert cells.merge("1", "a").broker_of("1/0") == "a"
    for wrong in ("1/0", "4", ""):
        with pytest.raises(ValueError, match=r"cell|digit"):
            cells.split(wrong, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="all 2 digits"):
        split.split("1/0", ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match='it lies in "0", of seoul'):
        split.merge("0/1", "a")


@pytest.mark.parametrize("k", [0, 25, True, "3", None])
def test_numbers_of_digits(k: object) -> None:
    with pytest.raises(ValueError, match="from 1 to 24"):
        Cells(k, dict.fromkeys(DIGITS, "a"))  # type: ignore[arg-type]


def test_a_hard_filter_is_answered_in_bounded_time_and_by_enough() -> None:
    """10 digits, as many brokers as cells have last digits, and a filter that fits one of them."""
    k = 7
    of = {"/".join(digits): digits[-1] for digits in product(DIGITS, repeat=k)}
    cells = Cells(k, of)
    assert "2" in cells.brokers_of("+/+/+/+/+/+/2/#")
    assert cells.brokers_of("0/+/0/0/+/0/2/#") == ("2",)
