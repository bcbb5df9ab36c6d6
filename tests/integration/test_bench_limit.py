"""The limit search with the real load tool against brokers whose capacity is known.

    searching process (killed once) ── load processes ──▶ stand-in of 4,370 messages/s ──▶ …

The grid's 5 % and the 1 % of Definition 1 are the only errors allowed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from isthmus.bench.coordinator.control import Target
from isthmus.bench.coordinator.session import LoadSession
from isthmus.bench.limit.file import LimitFile, find_limit, read_limit_file
from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions
from isthmus.bench.limit.trial import measuring
from isthmus.bench.scenario import load_scenario
from isthmus.pipeline.count.direct import summarize
from isthmus.pipeline.log.reading import list_runs
from isthmus.processes.children import Launch, end, launch
from support.stand_in_broker import StandInBroker
from support.waiting import wait_for

pytestmark = pytest.mark.alone

CAPACITY = 4_370
LONG_QUEUE = CAPACITY
SHORT_QUEUE = CAPACITY * 3 // 20
SCENARIO = """
[scenario]
name = "stand-in"
duration_s = {duration_s}
trim_s = 0.4
[load]
interval_ms = 40.0
[[node]]
id = "n1"
address = "127.0.0.1:{port}"
[[place]]
node = "n1"
topic = "topic1"
publishers = 10
subscribers = 10
"""


def search_limit(port: int, folder: Path, duration_s: float = 3.0) -> Found:
    """Search on in `folder`; what `isthmus bench limit` does without its servers."""
    file = folder / "scenario.toml"
    file.write_text(SCENARIO.format(port=port, duration_s=duration_s))
    scenario = load_scenario(file)
    options = SearchOptions(scenario.load.interval_ns, guided=True)
    targets = {"n1": Target("127.0.0.1", port)}
    log = folder / "log"
    with (
        LimitFile(folder / "limit.jsonl", scenario, {}, options) as measurements,
        LoadSession(scenario, targets, log, writers=1) as session,
    ):
        measure = measuring(session, log, scenario, options, prefix="limit")
        return find_limit(measure, LimitSearch(options), measurements)


def search_undisturbed(port: int, folder: Path, duration_s: float = 3.0) -> tuple[Found, Path]:
    """Search; three times at most if the search itself says that the machine was too busy."""
    for attempt in range(3):
        again = folder / f"attempt-{attempt}" if attempt else folder
        again.mkdir(exist_ok=True)
        found = search_limit(port, again, duration_s)
        if not found.is_lower_bound:
            break
    return found, again


def check(found: Found, folder: Path) -> None:
    assert found.verdict == "found", found
    assert (found.limited_by, found.is_lower_bound) == ("brokers", False), found
    assert found.outcome is not None
    assert 0.94 * CAPACITY <= found.outcome.egress <= 1.01 * CAPACITY, found
    assert found.interval_ns is not None
    assert found.smaller_interval_ns is not None
    assert found.interval_ns <= 1.05 * found.smaller_interval_ns + 1
    # Every measurement is kept, in the file and in the log.
    measured = read_limit_file(folder / "limit.jsonl").measurements
    assert [each.trial.number for each in measured] == list(range(found.measurements))
    assert {each.outcome.run for each in measured} <= set(list_runs(folder / "log"))
    for each in measured:
        summary = summarize(folder / "log", each.outcome.run)
        assert (summary.egress, summary.ingress) == (each.outcome.egress, each.outcome.ingress)


SEARCHING = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from integration.test_bench_limit import search_limit
search_limit({port}, Path({folder!r}))
"""


def test_a_capacity_is_found_within_5_percent_though_the_search_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file, log = folder / "limit.jsonl", tmp_path / "search.log"
    with StandInBroker(tmp_path, capacity=CAPACITY, queue=LONG_QUEUE) as broker:
        code = SEARCHING.format(
            tests=str(Path(__file__).parents[1]), port=broker.port, folder=str(folder)
        )
        searching = launch(Launch([sys.executable, "-c", code]), log)
        try:

            def measures_the_fourth() -> bool:
                assert searching.poll() is None, log.read_text()
                return any(folder.glob("log/publishes/run=limit-003-*/*"))

            wait_for(measures_the_fourth, 60, "the fourth measurement")
            os.kill(searching.pid, signal.SIGKILL)
        finally:
            end(searching, 0)
        before = file.read_bytes()
        assert before.count(b"\n") == 4, "what is searched, and three measurements"
        found, last = search_undisturbed(broker.port, folder)
    assert file.read_bytes().startswith(before)
    check(found, last)


@pytest.mark.slow
def test_a_broker_that_drops_what_it_cannot_send(tmp_path: Path) -> None:
    with StandInBroker(tmp_path, capacity=CAPACITY, queue=SHORT_QUEUE) as broker:
        # Long enough that 4 % too much, at 22 ms, fill the queue.
        found, last = search_undisturbed(broker.port, tmp_path, 6.0)
    check(found, last)
    assert found.smaller is not None
    assert found.smaller.loss_rate > 0
