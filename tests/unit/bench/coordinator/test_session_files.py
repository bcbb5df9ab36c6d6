"""Names of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import RunRefused
from isthmus.pipeline.log.run_files import check_run, remove_run
from isthmus.pipeline.log.writing import write_table


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
