"""One file, run for real and simulated: a node is killed, another is cut off.

a ══ b ══ c ══ a    all find each other; c is killed and comes back, then b is cut off
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import require_broker
from isthmus.bench.coordinator.faults import MadeFault
from isthmus.bench.experiment import labels_of, limit_of, loaded
from isthmus.bench.limit.search import SearchOptions
from isthmus.bench.scenario import load_scenario
from isthmus.config.faults import Crash
from isthmus.errors import LimitError
from isthmus.pipeline.count.direct import RunSummary, summarize
from isthmus.pipeline.log.reading import read_run
from isthmus.simulate.exact import ExactRun
from isthmus.simulate.plan import planned_scenario

FILE = """
[scenario]
name = "one-file"
duration_s = 4.0
trim_s = 0.0
[load]
interval_ms = 50.0
qos = 1
[latency]
publisher = "b"
subscribers = ["c"]
interval_s = 0.2
qos = 1
[cooperation]
algorithm = "routed-tree"
[discovery]
group = "239.255.77.84:0"
[link]
dead_after_s = 1.0
[emulation]
link_delay_ms = 5.0
[[crash]]
node = "c"
at_s = 0.5
for_s = 0.5
[[cut]]
source = ["b"]
target = ["a", "c"]
at_s = 2.5
for_s = 1.2
[[node]]
id = "a"
[[node]]
id = "b"
[[node]]
id = "c"
[[place]]
node = "a"
topic = "t"
publishers = 2
subscribers = 1
[[place]]
node = "b"
topic = "t"
publishers = 1
subscribers = 1
[[place]]
node = "c"
topic = "t"
subscribers = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    require_broker("mosquitto")
    path = tmp_path / "scenario.toml"
    path.write_text(FILE)
    return path


def seen(summary: RunSummary) -> tuple[int, int, int]:
    """Expected, delivered and lost."""
    return summary.expected, summary.expected - summary.lost, summary.lost


def test_both_send_and_deliver_the_same(file: Path, tmp_path: Path) -> None:
    log, scenario = tmp_path / "log", load_scenario(file, all_started=True)
    notes: list[str] = []
    with loaded(scenario, log, labels_of(scenario), notes=notes) as session:
        record = session.measure("real")
    ExactRun(planned_scenario(scenario), log, "simulated").record()
    real, simulated = summarize(log, "real"), summarize(log, "simulated")
    # Nobody publishes at the node that is killed, so everybody sends all the time.
    assert record.sent == record.offered == 3 * 80
    assert (record.lost_clients, record.ending) == (0, "complete")
    assert seen(real) == seen(simulated)
    assert real.lost == 0
    assert real.expected == 3 * 80 * 4
    for run in ("real", "simulated"):
        recorded = read_run(log, run)
        assert [client.client for client in recorded.clients] == list(range(9))
        assert any(note.startswith("c was killed at ") for note in recorded.notes), run
        assert any(note.startswith("nothing passed between b and a, c") for note in recorded.notes)
    assert any(note.startswith("clients of c were cut off and came back") for note in real.notes)
    with pytest.raises(LimitError, match="a limit is searched without faults"):
        limit_of(
            tmp_path / "limit.jsonl", log, scenario, SearchOptions(10_000_000), {}, prefix="limit"
        )
    crash, cut = record.faults
    _check_times(crash, read_run(log, "real").started_ns)
    _check_times(cut, read_run(log, "real").started_ns)


def _check_times(made: MadeFault, started_ns: int) -> None:
    assert made.began_ns - started_ns >= made.fault.at_s * 1e9
    assert made.ended_ns is not None
    assert made.ended_ns - started_ns >= made.fault.end_s * 1e9
    assert (made.ready_ns is not None) == isinstance(made.fault, Crash)
