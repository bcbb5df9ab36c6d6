"""Spark's servers on this machine: a failure says why, and nothing outlives whoever started them.

That jobs run on them is in test_index_everywhere.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.errors import SparkFailed
from isthmus.pipeline.spark.cluster import Cluster, ConnectServer
from isthmus.processes.tree import process_tree
from support.waiting import wait_for


def test_what_does_not_come_up_is_reported_with_its_log() -> None:
    cluster = Cluster(workers=1, memory="lots")
    with pytest.raises(SparkFailed, match="Spark's worker-0: ended with 1") as caught, cluster:
        pass
    assert "--memory MEM" in caught.value.log_tail  # Spark tells how it is called
    assert cluster.process_ids() == []


def test_the_command_starts_a_cluster_and_nothing_outlives_it() -> None:
    command = [sys.executable, "-m", "isthmus.pipeline.spark.cluster", "--workers", "1"]
    for how in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("--master spark://127.0.0.1:")
                children = Path(f"/proc/{process.pid}/task")
                pids = [
                    int(pid)
                    for task in children.iterdir()
                    for pid in (task / "children").read_text().split()
                ]
                assert len(pids) == 2
            finally:
                process.send_signal(how)
        assert process.returncode == (0 if how is signal.SIGINT else -how)
        wait_for(
            lambda pids=pids: not [pid for pid in pids if pid in process_tree(pid)],  # type: ignore[misc]
            30,
            "the master and the worker to end",
        )


def test_a_connect_server_needs_its_cluster() -> None:
    refused = pytest.raises(SparkFailed, match=r"127\.0\.0\.1:1 cannot be reached")
    with refused, ConnectServer("spark://127.0.0.1:1"):
        pass
