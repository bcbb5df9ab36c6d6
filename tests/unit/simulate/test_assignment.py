"""Client assignment: the thesis's formulas, a simulation that knows none of them, the command."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.errors import ConfigError
from isthmus.simulate.assignment import (
    Place,
    Way,
    advice,
    approximate_difference,
    extensive_ms,
    intensive_ms,
    peak,
    simulated_ms,
)
from isthmus.simulate.assignment_file import asked

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
OF_FIGURE = {"brokers": 10_000, "communication_ms": 1.0, "processing_ms": 0.01}


def thesis(subscribers: int) -> Place:
    return Place(10_000, subscribers, 1.0, 0.01)


def test_figure_4_9_has_its_peak_where_the_thesis_says() -> None:
    place = thesis(20_000_000)
    highest = peak(place)
    assert highest is not None
    assert round(highest) == 1_440_695
    there = approximate_difference(place, highest)
    sizes = [10_000 * 1.02**power for power in range(380)]
    assert max(approximate_difference(place, size) for size in sizes) <= there
    assert approximate_difference(place, highest) > max(
        approximate_difference(place, highest * factor) for factor in (0.99, 1.01)
    )


def test_figure_4_9_changes_its_side() -> None:
    """Upward convex from 10,000 on, downward below 2,000; larger with more subscribers."""
    place = thesis(20_000_000)

    def bend(size: float) -> float:
        values = [approximate_difference(place, size * factor) for factor in (0.999, 1, 1.001)]
        return values[0] - 2 * values[1] + values[2]

    assert all(bend(size) > 0 for size in (2, 10, 100, 500, 1_900))
    assert all(bend(size) < 0 for size in (1_000_000, 5_000_000, 15_000_000))
    for size in (100_000, 1_000_000):
        values = [
            approximate_difference(thesis(total), size) for total in (10**6, 10**7, 2 * 10**7)
        ]
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("place", "size", "intensive", "extensive"),
    [
        (thesis(20_000_000), 1, 1 + 0.01, 0.01),
        (thesis(20_000_000), 1_999, 1 + 19.99, 11 + 0.01),
        (thesis(20_000_000), 2_000, 1 + 20, 11 + 0.01),
        (thesis(20_000_000), 2_001, 2 + 20, 11 + 0.01),
        (thesis(20_000_000), 10_000, 3 + 20, 14 + 0.01),
        (thesis(20_000_000), 20_000_000, 14 + 20, 14 + 20),
        (thesis(100_000), 10, 1 + 0.1, 4 + 0.01),
        (Place(1, 10, 1.0, 1.0), 10, 1 + 10, 10),
    ],
)
def test_the_formulas(place: Place, size: int, intensive: float, extensive: float) -> None:
    assert intensive_ms(place, size) == pytest.approx(intensive)
    assert extensive_ms(place, size) == pytest.approx(extensive)


@pytest.mark.parametrize("total", [1, 7, 1_000, 100_000, 10**6, 2 * 10**7])
@pytest.mark.parametrize("brokers", [1, 2, 10, 4_096, 10_000])
def test_rounding_is_all_that_the_approximation_leaves_out(brokers: int, total: int) -> None:
    """Two logarithms are rounded up, by less than one each, and a number of brokers by one."""
    place = Place(brokers, total, 1.0, 0.01)
    for size in sorted(
        {1, 2, 3, *(10**power for power in range(8)), total} & set(range(1, total + 1))
    ):
        exact = intensive_ms(place, size) - extensive_ms(place, size)
        more_brokers = math.log2((size / place.share + 2) / (size / place.share + 1))
        assert abs(exact - approximate_difference(place, size)) < 1 + more_brokers


@pytest.mark.parametrize("way", ["intensive", "extensive"])
def test_brokers_that_do_it_take_as_long_as_the_formula_says(way: Way) -> None:
    formula = intensive_ms if way == "intensive" else extensive_ms
    for brokers in (1, 2, 3, 8, 16, 100, 1024):
        for total in (1, 5, 64, 1000, 4096, 65_536):
            place = Place(brokers, total, 1.0, 0.01)
            for size in {1, 2, 3, 7, 64, 100, 1000, total // 2, total} - {0}:
                if size > total:
                    continue
                took, said = simulated_ms(place, size, way), formula(place, size)
                assert took <= said + place.processing_ms + 1e-9  # a broker has no half subscribers
                assert took >= said - place.communication_ms - place.processing_ms * place.share


def test_where_nothing_is_rounded_it_is_the_same() -> None:
    """2^k - 1 brokers below the publisher's, or 2^k with it, all of them full."""
    place = Place(1024, 1024 * 50, 2.0, 0.5)
    for count in (1, 3, 7, 127, 1023):
        size = 50 * count
        assert simulated_ms(place, size, "intensive") == pytest.approx(intensive_ms(place, size))
    for size in (1, 2, 64, 1024, 10_240):
        assert simulated_ms(place, size, "extensive") == pytest.approx(extensive_ms(place, size))


def test_the_advice() -> None:
    found = {each.topic: each for each in advice(thesis(10**6), {"a": 10, "b": 90, "c": 900_000})}
    assert {name: each.way for name, each in found.items()} == {
        name: "extensive" if each.difference_ms > 0 else "intensive" for name, each in found.items()
    }
    assert found["a"].way == "intensive"
    assert advice(Place(4, 8, 1.0, 0.5), {"t": 8})[0].way == "extensive"


@pytest.mark.parametrize(
    "wrong",
    [(0, 1, 1.0, 1.0), (1, 0, 1.0, 1.0), (1, 1, 0.0, 1.0), (1, 1, 1.0, math.nan)],
)
def test_a_place_that_cannot_be(wrong: tuple[int, int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"1 each|no time above 0"):
        Place(*wrong)


def test_a_topic_that_cannot_be() -> None:
    for size in (0, 11):
        with pytest.raises(ValueError, match="there are 1 to 10"):
            intensive_ms(Place(2, 10, 1.0, 1.0), size)


# ---- the command -------------------------------------------------------------------------


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "assignment", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_example_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    section = PAGE.read_text().partition("## `isthmus simulate assignment")[2].partition("\n## ")[0]
    (command,) = re.findall(r"    isthmus simulate assignment (.*)\n", section)
    out = tmp_path / "all.csv"
    assert run(*command.split(), "--out", out, "--check") == 0
    shown = capsys.readouterr().out
    assert re.search(r"news +1,440,695 .* extensive", shown)
    assert re.search(r"lamp +40 .* intensive", shown)
    assert "about 1,440,695 subscribers" in shown
    with out.open() as file:
        assert [row["assignment"] for row in csv.DictReader(file)] == ["extensive", "intensive"]
    written = dict(re.findall(r"```(toml|csv)\n(.*?)```", section, re.DOTALL))
    for kind, text in written.items():
        (tmp_path / f"topics.{kind}").write_text(text)
    by_toml = asked(tmp_path / "topics.toml", {}, [])
    by_csv = asked(tmp_path / "topics.csv", {**OF_FIGURE, "subscribers": 20_000_000}, [])
    assert by_toml == by_csv
    assert asked(tmp_path / "topics.csv", {"brokers": 3}, ["more=7"]).place.subscribers == 91_207


def test_many_topics_are_in_the_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.csv"
    file.write_text("topic,subscribers\n" + "".join(f"t{number},5\n" for number in range(100)))
    assert run(file, "--brokers", 10) == 0
    assert "40 of 100 topics" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--brokers: is missing"),
        (["--brokers", "3"], "--topic: is missing"),
        (["--brokers", "0", "--topic", "a=1"], "--brokers: must be greater than or equal to 1"),
        (["--brokers", "3", "--topic", "a"], "--topic: 'a': write NAME=SUBSCRIBERS"),
        (["--brokers", "3", "--topic", "a=-4"], "--topic: 'a=-4': write NAME=SUBSCRIBERS"),
        (["--brokers", "3", "--topic", "a=0"], "topics.a: must be a whole number"),
        (
            ["--brokers", "3", "--topic", "a/#=1"],
            "topics.a/#: topic name 'a/#' contains a wildcard",
        ),
        (["--brokers", "3", "--topic", "a=5", "--subscribers", "4"], "--subscribers: 4 are fewer"),
        (
            ["--brokers", "3", "--topic", "a=5", "--communication-ms", "0"],
            "--communication-ms: must",
        ),
        (
            ["--brokers", "3", "--topic", "a=5", "--processing-ms", "nan"],
            "--processing-ms: must be",
        ),
        (["nowhere.csv", "--brokers", "3"], "nowhere.csv: cannot be read: No such file"),
        (["nowhere.toml", "--brokers", "3"], "nowhere.toml: cannot be read: No such file"),
    ],
)
def test_mistakes_in_options(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run(*options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "a,b\nx,1\n", "t.csv:1: must begin with the line topic,subscribers"),
        ("t.csv", "topic,subscribers\nx,1\nx,2\n", "t.csv:3: 'x' has a line already"),
        ("t.csv", "topic,subscribers\nx,many\n", "t.csv:2: 'x': must be a whole number"),
        ("t.csv", "topic,subscribers\nx\n", "t.csv:2: must be a topic and its subscribers"),
        ("t.csv", "topic,subscribers\n+/x,3\n", "t.csv:2: '+/x': topic name"),
        ("t.csv", "topic,subscribers\n\udcff,3\n", "t.csv: is no CSV in UTF-8"),
        ("t.toml", "[assignment]\nbroker = 3\n", "t.toml:2: assignment.broker: "),
        ("t.toml", '[topics]\n"a/+" = 3\n', "t.toml:2: topics.a/+: topic name"),
        ("t.toml", "[topics]\na = 1.5\n", "t.toml:2: topics.a: "),
        ("t.toml", "[assignment]\nsubscribers = 1\n[topics]\na = 2\n", "t.toml:2: assignment.sub"),
    ],
)
def test_mistakes_in_files(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        asked(file, {"brokers": 3}, [])
    assert any(said in str(mistake) for mistake in caught.value.mistakes), str(caught.value)


def test_more_brokers_than_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--brokers", 100_001, "--topic", "a=5", "--check") == 1
    assert "--check simulates 100,000 brokers at most" in capsys.readouterr().err
