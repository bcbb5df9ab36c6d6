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
from isthmus.simulate.fit import PROGRAM_BYTES, SPARK_BYTES, check_memory
from isthmus.simulate.parts import Parts
from isthmus.simulate.spread import BATCH_S, in_batches, local_workers, shares, spread
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
    alone = check_memory(10**7, tasks, 1, 64 << 30).needed_bytes
    both = check_memory(10**7, tasks, 2, 64 << 30).needed_bytes
    assert both - alone > 3 << 30  # the second largest beside the largest
    assert check_memory(10**7, tasks, 1, alone).needed_bytes == alone
    with pytest.raises(SimulationTooLarge, match=r"10,000,000 nodes takes about .* GiB") as caught:
        check_memory(10**7, tasks, 1, alone - 1)
    assert caught.value.needed_bytes == alone


@pytest.mark.parametrize("free_gib", [5.5, 6.5, 7.5, 8.0])
def test_large_tasks_that_do_not_fit_side_by_side_come_one_after_the_other(
    free_gib: float,
) -> None:
    """Whichever tasks the two workers have at a time, they fit."""
    tasks = [
        Stub("a", number, cost=number / 10, memory_bytes=number << 30) for number in range(1, 5)
    ]
    free = int(free_gib * 2**30)
    fit = check_memory(10**7, tasks, 2, free)
    assert fit.lanes == 1
    assert fit.needed_bytes <= free
    lane, *rest = shares(tasks, fit)
    assert [task for task in lane if fit.is_large(task)] == lane
    small = max((task.memory_bytes for share in rest for task in share), default=0)
    assert SPARK_BYTES + 2 * PROGRAM_BYTES + (4 << 30) + small == fit.needed_bytes
    assert sorted(map(repr, tasks)) == sorted(
        repr(task) for share in (lane, *rest) for task in share
    )
    assert check_memory(10**7, tasks, 2, 64 << 30).lanes == 2
    assert len(shares(tasks, check_memory(10**7, tasks, 2, 64 << 30))) == len(shares(tasks))


def test_long_simulations_come_in_batches() -> None:
    tasks = [Stub("a", number, cost=BATCH_S / 4) for number in range(20)]
    found = in_batches(tasks, 2)
    assert [task for batch in found for task in batch] == tasks
    assert len(found) == 3
    assert in_batches(tasks[:3], 2) == [tasks[:3]]
    assert in_batches([], 2) == []


def test_what_was_counted_so_far_is_there_later(tmp_path: Path) -> None:
    """In whatever pieces it was counted, the log is the same; unfinished files are nothing."""
    record(tmp_path / "one", "bulk", LABELS, spread(None, TASKS))
    parts = Parts(tmp_path / "parts", "x")
    assert parts.pieces() == set()
    for task in TASKS[::-1]:
        parts.keep(spread(None, [task]))
    (tmp_path / "parts" / "x-0009.part").write_bytes(b"torn")
    again = Parts(tmp_path / "parts", "x")
    assert again.pieces() == {("a", 0), ("a", 1), ("b", 0)}
    assert set(again.counted({("b", 0)})["run"].to_pylist()) == {"b"}
    assert Parts(tmp_path / "parts", "y").pieces() == set()
    record(tmp_path / "two", "bulk", LABELS, again.counted(again.pieces()))
    assert log_bytes(tmp_path / "one") == log_bytes(tmp_path / "two")
    again.clear()
    assert again.pieces() == set()
