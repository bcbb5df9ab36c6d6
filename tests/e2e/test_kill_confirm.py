"""kill -9 of any process under QoS 1 load with ``confirm = "fabric"``, nodes without a `state_dir`.

The fabric, its load and the account are those of `test_kill`.  What is promised is less to be had
and more: not one message that was acknowledged to its publisher is missing at any broker with an
interested subscriber, whatever is killed; who is killed keeps nothing.  A broker that is killed
itself may forget what it had acknowledged (Mosquitto writes behind its PUBACK), and then its own
subscriber alone misses that.

The table on the page of the guarantees is that of docs/explanation/kill-confirm.json, which
`make kill` writes: the slow test records where the variable ``KILL_CONFIRM_RECORD`` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from e2e.test_kill import (
    DOWN_S,
    EVERY,
    HUB,
    LINKS,
    RATE_PER_S,
    Account,
    Fault,
    run,
)
from support.recording import recorded

CONFIRM = {"confirm": "fabric", "confirm_s": 60.0}
ROUNDS = {"sf": 10, "pf": 5, "tree": 5, "skipgraph": 5}
AT_ONCE = 4
"""Fabrics: they wait most of the time."""
OTHERS = [
    Fault("node", "side", "ingress and egress"),
    Fault("broker", "hub", "egress"),
    Fault("broker", "relay", "nobody's"),
    Fault("broker", "side", "ingress and egress"),
]


def check(accounts: list[Account]) -> None:
    """A broker may have had it long after it was published, and have been killed only then."""
    killed_later: set[str] = set()
    for each in reversed(accounts):
        if each.fault.startswith("broker"):
            killed_later.add(each.fault.split()[1])
        missing_at = {way.split()[-1] for way in each.lost_on}
        assert missing_at <= killed_later, each
    assert sum(each.acknowledged for each in accounts) > 20 * len(accounts)


def test_a_node_that_keeps_nothing_is_killed(tmp_path: Path) -> None:
    """One that is transit and egress at once."""
    accounts = run(tmp_path, [HUB], state=False, cooperation=CONFIRM)
    check(accounts)
    assert not any(each.lost for each in accounts)


def every_process(folder: Path, rounds: Mapping[str, int]) -> str:
    """Kills everything so many times with each algorithm; the record of it."""
    faults = [*EVERY, *OTHERS]

    def kill_all(algorithm: str, number: int) -> list[Account]:
        own = folder / f"{algorithm}-{number}"
        own.mkdir()
        return run(own, faults, algorithm, state=False, cooperation=CONFIRM)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        accounts = {
            algorithm: [pool.submit(kill_all, algorithm, number) for number in range(times)]
            for algorithm, times in rounds.items()
        }
    runs: list[dict[str, Any]] = []
    for algorithm, of_rounds in accounts.items():
        found = [each for of_round in of_rounds for each in of_round.result()]
        runs.append(
            {
                "algorithm": algorithm,
                "state_dir": False,
                "confirm": "fabric",
                "rounds": len(of_rounds),
                "faults": [asdict(each) for each in found],
            }
        )
        for of_round in of_rounds:
            check(of_round.result())
    plan = {
        "nodes": 5,
        "links": LINKS,
        "publishers": ["source", "side"],
        "subscribers": ["sink", "side", "hub", "source"],
        "qos": 1,
        "messages_per_s_and_publisher": RATE_PER_S,
        "restart_after_s": DOWN_S,
    }
    return recorded(plan, runs)


@pytest.mark.slow
@pytest.mark.timeout(5_400)
def test_every_process_many_times(tmp_path: Path) -> None:
    record = every_process(tmp_path, ROUNDS)
    if "KILL_CONFIRM_RECORD" in os.environ:
        Path(os.environ["KILL_CONFIRM_RECORD"]).write_text(record)
