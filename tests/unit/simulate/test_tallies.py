"""What a bulk simulation counted: the same bytes whoever counted; too large is told before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from isthmus.errors import SimulationTooLarge
from isthmus.pipeline.count.direct import run_tables
from isthmus.pipeline.log.reading import batches, list_runs, open_file, read_run
from isthmus.pipeline.log.schema import file_path
from isthmus.simulate.spread import check_memory, local_workers, shares, spread
from isthmus.simulate.tallies import WRITER, Counted, amount, histogram, is_recorded, record


@dataclass(frozen=True)
class Stub:
    """Counts what it is."""

    run: str
    part: int
    cost: float = 0.1
    memory_bytes: int = 1 << 30

    def counted(self) -> Iterator[Counted]:
        yield Counted(self.run, self.part, amount("messages", 2, 10 + self.part))
        for tally in histogram("hops", np.array([3, 1, 3]), np.array([7, 7, 7])):
            yield Counted(self.run, self.part, tally)


TASKS = [Stub("a", 0), Stub("a", 1), Stub("b", 0, cost=9.0)]
LABELS = {"a": {"method": "x"}, "b": {"method": "y"}}


def log_bytes(log: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log)): path.read_bytes() for path in log.rglob("*.parquet")}


def test_the_order_of_the_work_makes_no_difference(tmp_path: Path) -> None:
    for name, tasks in (("one", TASKS), ("two", TASKS[::-1])):
        record(tmp_path / name, "bulk", LABELS, spread(None, tasks))
    one, two = log_bytes(tmp_path / "one"), log_bytes(tmp_path / "two")
    assert one == two
    assert sorted(one) == [f"{t}/run={r}/s0.parquet" for t in ("runs", "tallies") for r in "ab"]


def test_another_part_makes_a_difference(tmp_path: Path) -> None:
    for name, tasks in (("one", TASKS), ("two", [Stub("a", 0), Stub("a", 2), TASKS[2]])):
        record(tmp_path / name, "bulk", LABELS, spread(None, tasks))
    assert log_bytes(tmp_path / "one") != log_bytes(tmp_path / "two")


def test_a_recorded_run_is_read_as_any_other(tmp_path: Path) -> None:
    assert not is_recorded(tmp_path, "a")
    record(tmp_path, "bulk", LABELS, spread(None, TASKS))
    record(tmp_path, "bulk", LABELS, spread(None, TASKS))  # one that was begun is replaced
    assert is_recorded(tmp_path, "a")
    assert list_runs(tmp_path) == ("a", "b")
    run = read_run(tmp_path, "a")
    assert run.labels == {"method": "x"}
    (file,) = run.files
    with open_file(tmp_path, "a", file) as opened:
        path = file_path(tmp_path, "tallies", "a", WRITER)
        rows = [row for batch in batches(path, opened, "tallies", 99) for row in batch.to_pylist()]
    assert rows[0] == {
        "part": 0, "what": "hops", "given": 7, "value": 1, "count": 1, "total": 1
    }  # fmt: skip
    assert [row["total"] for row in rows] == [1, 6, 10, 1, 6, 11]
    used = {row["table"]: row["rows"] for row in run_tables(tmp_path, "a")["rows"]}
    assert used["tallies"] == 6


def test_histograms_keep_every_thing() -> None:
    values = np.random.default_rng(1).integers(0, 9, 500)
    given = values % 3
    found = list(histogram("x", values, given))
    assert sum(tally.things for tally in found) == 500
    assert sum(tally.total for tally in found) == values.sum()
    assert all(tally.given == (tally.value or 0) % 3 for tally in found)
    assert {tally.given for tally in histogram("x", values)} == {None}


def test_long_tasks_begin_first_and_short_ones_go_together() -> None:
    tasks = [Stub("s", number, cost=0.1) for number in range(5)] + [Stub("l", 0, cost=3.0)]
    shared = shares(tasks)
    assert [len(share) for share in shared] == [1, 2, 2, 1]
    assert shared[0] == [tasks[-1]]
    assert sorted((task for share in shared for task in share), key=repr) == sorted(tasks, key=repr)
    assert shares([]) == []


@pytest.mark.parametrize(
    ("master", "workers"),
    [("local", 1), ("local[1]", 1), ("local[7]", 7), ("spark://h:7077", None)],
)
def test_workers_of_this_machine(master: str, workers: int | None) -> None:
    assert local_workers(master) == workers


def test_all_cores_are_workers() -> None:
    assert (local_workers("local[*]") or 0) >= 1


def test_what_does_not_fit_is_refused_with_an_estimate() -> None:
    tasks = [Stub("a", number, memory_bytes=number << 30) for number in range(1, 5)]
    alone = check_memory(10**7, tasks, 1, 64 << 30)
    both = check_memory(10**7, tasks, 2, 64 << 30)
    assert both - alone > 3 << 30  # the second largest beside the largest
    with pytest.raises(SimulationTooLarge, match=r"10,000,000 nodes takes about .* GiB") as caught:
        check_memory(10**7, tasks, 2, both - 1)
    assert caught.value.needed_bytes == both
