"""Names of runs, and counting what lies within the window on the coordinator's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.bench.coordinator.run_files import Counted, check_run, count_window, remove_run
from isthmus.errors import LogError, RunRefused
from isthmus.pipeline.log.reading import LoggedFile, write_table


@pytest.mark.parametrize("run", ["C-sf-10ms", "1", "a.b_c-D"])
def test_a_good_name(run: str, tmp_path: Path) -> None:
    check_run(tmp_path, run)


@pytest.mark.parametrize("run", ["", "..", ".hidden", "a/b", "a b", "ä", "x" * 201, "a\n"])
def test_a_bad_name_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(RunRefused, match="letters, digits") as refused:
        check_run(tmp_path, run)
    assert refused.value.run == run


def test_a_run_that_is_there_is_refused_until_it_is_removed(tmp_path: Path) -> None:
    write_table(tmp_path, "links", "r1", "w0", [])
    with pytest.raises(RunRefused, match="'r1': began and did not end in"):
        check_run(tmp_path, "r1")
    (tmp_path / "runs" / "run=r1").mkdir(parents=True)
    with pytest.raises(RunRefused, match=r"'r1': is in .* already"):
        check_run(tmp_path, "r1")
    check_run(tmp_path, "r2")
    remove_run(tmp_path, "r1")
    check_run(tmp_path, "r1")


def publish(t_send_ns: int) -> dict[str, int]:
    return {"publisher": 0, "message": t_send_ns, "topic": 0, "t_send_ns": t_send_ns}


def delivery(t_receive_ns: int) -> dict[str, int]:
    return publish(0) | {"subscriber": 1, "t_receive_ns": t_receive_ns}


def test_the_window_is_of_the_coordinators_clock(tmp_path: Path) -> None:
    files = []
    for writer, shift in (("w0", 0), ("w1", 1000), ("l0", 0)):
        sent = [publish(t + shift) for t in (99, 100, 150, 199, 200)]
        got = [delivery(t + shift) for t in (100, 101, 200)]
        for table, rows in (("publishes", sent), ("deliveries", got)):
            count = write_table(tmp_path, table, "r", writer, rows)  # type: ignore[arg-type]
            files.append(LoggedFile(table, writer, count))  # type: ignore[arg-type]
    files.append(LoggedFile("links", "c0", write_table(tmp_path, "links", "r", "c0", [])))
    offsets_ns = {"w0": 0, "w1": -1000}
    assert count_window(tmp_path, "r", files, offsets_ns, (100, 200)) == Counted(6, 4)

    with pytest.raises(LogError, match="has 5 rows; the run's row says 6"):
        count_window(tmp_path, "r", [LoggedFile("publishes", "w0", 6)], offsets_ns, (0, 1))
    with pytest.raises(LogError, match="is missing"):
        count_window(tmp_path, "r", [LoggedFile("publishes", "w9", 6)], offsets_ns, (0, 1))
