"""Measurements survive whatever ends the search, and belong to one search only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.bench.limit import file as limit_file
from isthmus.bench.limit.file import LimitFile, find_limit, read_limit_file
from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions, Trial, TrialOutcome
from isthmus.bench.scenario import load_scenario
from isthmus.errors import LimitError
from isthmus.processes.children import Launch, end, launch
from support.waiting import wait_for

MS = 1_000_000
OPTIONS = SearchOptions(1 * MS, guided=True)
SCENARIO = load_scenario("C")
LABELS = {"broker": "mosquitto"}


def opened(path: Path) -> LimitFile:
    return LimitFile(path, SCENARIO, LABELS, OPTIONS)


class Killed(Exception):
    """Stands for whatever ends a process."""


class System:
    """Keeps up with 3.14 ms; remembers what was measured."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.measured: list[Trial] = []
        self._ends_after = ends_after

    def __call__(self, trial: Trial) -> TrialOutcome:
        if len(self.measured) == self._ends_after:
            raise Killed
        self.measured.append(trial)
        ok = trial.interval_ns >= 3.14 * MS
        egress = 1e10 / trial.interval_ns
        run = f"run-{trial.number}"
        return TrialOutcome(run, ok, 1.0 if ok else 0.9, egress / 10, egress, 0.0, True, "", ("é",))


def search(path: Path, system: Callable[[Trial], TrialOutcome]) -> Found:
    with opened(path) as file:
        return find_limit(system, LimitSearch(OPTIONS), file)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "limit.jsonl"


@pytest.mark.parametrize("stop", range(10))
def test_it_goes_on_where_it_stopped(path: Path, stop: int) -> None:
    whole = System()
    expected = search(path.with_name("whole.jsonl"), whole)
    first, second = System(stop), System()
    if stop < len(whole.measured):
        with pytest.raises(Killed):
            search(path, first)
    else:
        search(path, first)
    assert search(path, second) == expected
    assert first.measured + second.measured == whole.measured
    recorded = read_limit_file(path)
    assert [each.trial for each in recorded.measurements] == whole.measured
    assert recorded.header["scenario"]["scenario"]["name"] == "C"
    assert recorded.header["labels"] == LABELS
    assert not recorded.torn
    assert search(path, System(0)) == expected  # nothing left to measure


def test_a_line_torn_anywhere_is_measured_again(path: Path) -> None:
    expected = search(path, System())
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for length in range(last, len(data) + 1):
        path.write_bytes(data[:length])
        system = System()
        assert search(path, system) == expected
        assert len(system.measured) == (length < len(data))
        assert path.read_bytes() == data


def test_what_was_torn_is_said(path: Path) -> None:
    search(path, System())
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with opened(path) as file:
        assert "the last line was torn" in file.notes[0]
        assert "goes on after 8 measurements" in file.notes[1]
    path.write_bytes(data[:-20] + b"\0" * 19 + b"\n")  # as some file systems leave it
    with opened(path) as file:
        assert "the last line was torn" in file.notes[0]
        assert len(file.measurements) == 8
    assert path.read_bytes() == data[: data.rindex(b"\n", 0, -1) + 1]


def test_a_torn_first_line_begins_anew(path: Path) -> None:
    expected = search(path, System())
    header = path.read_bytes().split(b"\n")[0]
    for length in (0, 1, len(header) // 2, len(header)):
        path.write_bytes(header[:length])
        assert search(path, System()) == expected


def test_damage_elsewhere_is_refused_with_its_line(path: Path) -> None:
    search(path, System())
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged, words in (
        (b"garbage\n", r"limit.jsonl:3: is damaged: Invalid JSON"),
        (lines[2].replace(b'"kept_pace": true, ', b""), "3: is damaged: outcome.kept_pace"),
        (lines[2].replace(b'"kept_pace": true', b'"kept_pace": 1'), "outcome.kept_pace"),
        (lines[4], "limit.jsonl:3: is a measurement of Trial.number=3.* has been changed"),
    ):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
        before = path.read_bytes()
        with pytest.raises(LimitError, match=words):
            search(path, System())
        assert path.read_bytes() == before


def test_more_measurements_than_the_search_needs(path: Path) -> None:
    search(path, System())
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[-1])
    with pytest.raises(LimitError, match="where the search measures nothing more"):
        search(path, System())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            lambda path: LimitFile(path, load_scenario("D"), LABELS, OPTIONS),
            r'scenario.scenario.name is "C" there and "D" here.*scenario.place is ',
        ),
        (
            lambda path: LimitFile(
                path,
                SCENARIO.changed(broker="hivemq"),
                LABELS,
                OPTIONS,
            ),
            r'scenario.node\[0\].broker is "mosquitto" there and "hivemq" here',
        ),
        (lambda path: LimitFile(path, SCENARIO, {}, OPTIONS), 'labels.broker is "mosq.*and null'),
        (
            lambda path: LimitFile(path, SCENARIO, LABELS, replace(OPTIONS, guided=False)),
            "another search: options.guided is true there and false here",
        ),
        (
            lambda path: LimitFile(
                path, SCENARIO, LABELS, replace(OPTIONS, first_interval_ns=MS * 2)
            ),
            "options.first_interval_ns is 1000000 there and 2000000 here",
        ),
    ],
)
def test_a_file_of_another_search_is_refused(
    path: Path, other: Callable[[Path], LimitFile], words: str
) -> None:
    search(path, System(None))
    before = path.read_bytes()
    with pytest.raises(LimitError, match=words), other(path):
        pass
    assert path.read_bytes() == before


def test_another_version_is_refused(path: Path) -> None:
    search(path, System())
    data = path.read_bytes()
    version = f'"version": {limit_file.VERSION}'.encode()
    path.write_bytes(data.replace(version, b'"version": 99', 1))
    with pytest.raises(LimitError, match="has version 99 of the format, this is 3"), opened(path):
        pass


@pytest.mark.parametrize("content", [b"not ours", b"not ours\n", b"[]\n", b'{"a": 1}\n', b"\n"])
def test_a_strangers_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LimitError, match="is not a file of a limit search"), opened(path):
        pass
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="cannot be opened: Is a directory"), opened(tmp_path):
        pass
    with pytest.raises(LimitError, match="cannot be read: No such file"):
        read_limit_file(tmp_path / "none")


def test_two_searches_at_once_on_one_file(path: Path) -> None:
    busy = pytest.raises(LimitError, match="another search is writing")
    with opened(path), busy, opened(path):
        pass
    with opened(path):
        pass


def test_a_search_with_other_options_than_its_file(path: Path) -> None:
    with opened(path) as file, pytest.raises(LimitError, match="is open for"):
        find_limit(System(), LimitSearch(replace(OPTIONS, guided=False)), file)
    with pytest.raises(LimitError, match="is not open"):
        file.append(Trial(0, 1), System()(Trial(0, MS)))


def test_secrets_of_the_scenario_stay_out_of_it(path: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "own.toml"
    scenario.write_text(
        '[scenario]\nname = "own"\n[load]\nrate = 1\n[[place]]\nnode = "n1"\ntopic = "t"\n'
        'publishers = 1\n[[node]]\nid = "n1"\naddress = "192.0.2.7:1883"\n'
        'username = "bench"\npassword = "hunter2"\n'
    )
    with LimitFile(path, load_scenario(scenario), LABELS, OPTIONS):
        pass
    assert b"hunter2" not in path.read_bytes()


SEARCHING = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from unit.bench.limit.test_file import System, search
system = System()
def measure(trial):
    outcome = system(trial)
    if trial.number == {stop}:
        time.sleep(600)  # the test kills this process here, in the middle of a measurement
    return outcome
search(Path({path!r}), measure)
"""


def test_kill_9_in_the_middle_of_a_measurement(path: Path, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[3])
    code = SEARCHING.format(paths=[tests], path=str(path), stop=4)
    process = launch(Launch([sys.executable, "-c", code]), tmp_path / "log")
    try:
        wait_for(
            lambda: path.exists() and path.read_bytes().count(b"\n") == 5,
            30,
            f"four measurements: {(tmp_path / 'log').read_text()}",
        )
    finally:
        end(process, 0)
    system = System()
    search(path, system)
    numbers = [json.loads(line)["trial"]["number"] for line in path.open().readlines()[1:]]
    assert numbers == list(range(9))
    assert [trial.number for trial in system.measured] == [4, 5, 6, 7, 8]
