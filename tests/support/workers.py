"""What two workers share where tests have brokers: a file's tests run in one of them.

So the brokers and nodes of a file are started once; and all files that use the Spark session of
their process run in the same worker, so that there is one.  Each worker has ports of its own.
Hooks, which `conftest.py` offers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from isthmus.processes.ports import share

__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_xdist_make_scheduler"]

SPARK: Final = {
    "test_index_everywhere",
    "test_index_job",
    "test_overlays_jobs",
    "test_reproduce_ildm",
    "test_reproduce_overlays",
    "test_reproduce_skipgraph",
    "test_simulate",
    "test_spark_session",
}
"""One that is missing here has another session at worst."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadfile`, with the files that use Spark as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if Path(file).stem in SPARK else file


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest together comes first, so that no worker has it left at the end."""
    items.sort(key=lambda item: item.path.stem not in SPARK)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None
