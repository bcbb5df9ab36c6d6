"""One flood of the load tool's subscribers, and its publishers at a rate that is asked of them.

Everything sent must stand in the files, once and in order.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from benchmarks.load.tool import Peer, running_peer, running_tool
from benchmarks.relay.processes import cpu_ns, machine_busy_ns, peak_bytes

from isthmus.errors import LoadError
from isthmus.pipeline.log.schema import file_path

__all__ = [
    "Crowd",
    "Flood",
    "Plan",
    "Sending",
    "check_rows",
    "measure_crowd",
    "measure_flood",
    "measure_sending",
]

RUN = "run"
ARRIVAL_S = 10.0
FRAME_BYTES = 42
"""Of a PUBLISH at QoS 0 to ``topicN`` with 32 bytes of payload."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done how often."""

    rounds: int = 5
    seconds: float = 4.0
    clients: int = 50
    processes: tuple[int, ...] = (1, 2)
    per_write: tuple[int, ...] = (1500, 10, 1)
    """Messages in one write of the source; brokers under load are near the small end."""
    asked: tuple[int, ...] = (50_000, 250_000)
    """Messages per second that all publishers together are to send."""
    crowd: int = 10_000
    """Idle clients of one process."""


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood of `processes` load processes; times until the files were written."""

    processes: int
    per_write: int
    messages: int
    elapsed_s: float
    tool_cpu_ns: int
    source_cpu_ns: int
    others_cores: float
    stalled_ms: float
    peak_memory_bytes: int
    file_bytes: int

    @property
    def rate(self) -> float:
        """Messages received and recorded per second."""
        return self.messages / self.elapsed_s

    def line(self) -> str:
        """For a human who watches."""
        return (
            f"{self.processes} load process{'es' if self.processes > 1 else ''}, "
            f"{self.per_write:>4} per write: {self.rate:>10,.0f} msg/s recorded, "
            f"tool {self.tool_cpu_ns / self.messages / 1000:.3f} µs/msg, "
            f"source {self.source_cpu_ns / self.messages / 1000:.3f} µs/msg, "
            f"{self.file_bytes / self.messages:.1f} B/msg, "
            f"{self.peak_memory_bytes / 2**20:.0f} MiB, others {self.others_cores:.2f} cores"
        )


def measure_flood(plan: Plan, processes: int, per_write: int) -> Flood:
    """Start everything afresh, flood, check the files."""
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-bench-load-") as name,
        running_peer("source", plan.clients, per_write, RUN, folder=Path(name)) as source,
        running_tool(processes, Path(name)) as tool,
    ):
        folder = Path(name)
        tool.connect(source.port, "subscriber", plan.clients)
        source.wait_until_ready()
        tool_before = sum(cpu_ns(pid) for pid in tool.pids)
        source_before, machine_before = cpu_ns(source.pid), machine_busy_ns()
        began = time.perf_counter()
        tool.measure(RUN, folder / "log")
        source.order(f"{plan.seconds}")
        sent = source.answer()["sent"]
        tool.wait_for(sum(sent))
        measured = tool.finish()
        elapsed_s = time.perf_counter() - began
        tool_ns = sum(cpu_ns(pid) for pid in tool.pids) - tool_before
        source_ns = cpu_ns(source.pid) - source_before
        others_ns = machine_busy_ns() - machine_before - tool_ns - source_ns
        if any(said["strays"] or said["notes"] for said in measured):
            raise LoadError(f"strays or notes in a clean flood: {measured}")
        files = [file_path(folder / "log", "deliveries", RUN, writer) for writer in tool.writers]
        check_rows(files, sent)
        return Flood(
            processes=processes,
            per_write=per_write,
            messages=sum(sent),
            elapsed_s=elapsed_s,
            tool_cpu_ns=tool_ns,
            source_cpu_ns=source_ns,
            others_cores=others_ns / elapsed_s / 1e9,
            stalled_ms=sum(said["headroom"]["stalled_ms"] for said in measured),
            peak_memory_bytes=max(peak_bytes(pid) for pid in tool.pids),
            file_bytes=sum(file.stat().st_size for file in files),
        )


@dataclass(frozen=True, slots=True)
class Sending:
    """All publishers in one load process, against a sink that takes everything."""

    asked: int
    sent: int
    offered: int
    elapsed_s: float
    tool_cpu_ns: int
    late_ms_max: float
    late_share: float

    def line(self) -> str:
        """For a human who watches."""
        return (
            f"1 load process, {self.asked:>7,} msg/s asked: "
            f"{self.sent / self.offered:.1%} of {self.offered:,} sent, "
            f"tool {self.tool_cpu_ns / self.sent / 1000:.3f} µs/msg, "
            f"{self.late_share:.2%} late, at most {self.late_ms_max:.1f} ms"
        )


def measure_sending(plan: Plan, asked: int) -> Sending:
    """Start everything afresh, publish, and compare with what the sink got."""
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-bench-load-") as name,
        running_peer("sink", plan.clients, folder=Path(name)) as sink,
        running_tool(1, Path(name)) as tool,
    ):
        log = Path(name, "log")
        tool.connect(sink.port, "publisher", plan.clients)
        sink.wait_until_ready()
        before_ns, began = cpu_ns(tool.pids[0]), time.perf_counter()
        tool.measure(
            RUN, log, duration_s=plan.seconds, interval_ns=plan.clients * 1_000_000_000 // asked
        )
        tool.wait_for_the_end()
        (measured,) = tool.finish()
        elapsed_s, used_ns = time.perf_counter() - began, cpu_ns(tool.pids[0]) - before_ns
        check_sent(file_path(log, "publishes", RUN, "w0"), measured["sent"], plan.clients)
        deadline = time.monotonic() + ARRIVAL_S
        while (got := _bytes(sink)) != measured["sent"] * FRAME_BYTES:
            if time.monotonic() > deadline:
                raise LoadError(f"{measured['sent']} messages sent, {got / FRAME_BYTES} arrived")
        headroom = measured["headroom"]
        return Sending(
            asked=asked,
            sent=measured["sent"],
            offered=measured["offered"],
            elapsed_s=elapsed_s,
            tool_cpu_ns=used_ns,
            late_ms_max=headroom["late_ms_max"],
            late_share=headroom["late_share"],
        )


def _bytes(sink: Peer) -> int:
    sink.order("how many")
    return int(sink.answer())


@dataclass(frozen=True, slots=True)
class Crowd:
    """Many clients of one load process that do nothing."""

    clients: int
    connect_s: float
    memory_bytes: int
    memory_before_bytes: int

    def line(self) -> str:
        """For a human who watches."""
        return (
            f"{self.clients:,} idle clients connected in {self.connect_s:.1f} s, "
            f"{self.memory_bytes / 2**20:.0f} MiB ({self.memory_before_bytes / 2**20:.0f} before)"
        )


def measure_crowd(clients: int) -> Crowd:
    """Connect so many, measure a run in which nothing is due, and look at the memory."""
    with (
        tempfile.TemporaryDirectory(prefix="isthmus-bench-load-") as name,
        running_peer("sink", clients, folder=Path(name)) as sink,
        running_tool(1, Path(name)) as tool,
    ):
        tool.clock()
        before_bytes = peak_bytes(tool.pids[0])
        began = time.perf_counter()
        tool.connect(sink.port, "publisher", clients)
        sink.wait_until_ready()
        connect_s = time.perf_counter() - began
        tool.measure(RUN, Path(name, "log"))
        tool.finish()
        return Crowd(clients, connect_s, peak_bytes(tool.pids[0]), before_bytes)


def check_sent(file: Path, sent: int, publishers: int) -> None:
    """Every publisher's messages are numbered from 0, in order, once."""
    table = pq.read_table(file, partitioning=None)
    publisher, message = table["publisher"].to_numpy(), table["message"].to_numpy()
    if len(message) != sent:
        raise LoadError(f"{file}: {len(message)} rows for {sent} messages")
    for number in range(publishers):
        numbers = message[publisher == number]
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise LoadError(f"{file}: the messages of publisher {number} are not in order")


def check_rows(files: Sequence[Path], sent: Sequence[int]) -> None:
    """Every subscriber has all messages of one publisher, numbered from 0, in order, once."""
    publishers = []
    for file in files:
        table = pq.read_table(file, partitioning=None)
        column = {name: table[name].to_numpy() for name in table.column_names}
        if not (column["t_receive_ns"] >= column["t_send_ns"]).all():
            raise LoadError(f"{file}: received before it was sent")
        for subscriber in np.unique(column["subscriber"]):
            rows = column["subscriber"] == subscriber
            publisher = int(column["publisher"][rows][0])
            publishers.append(publisher)
            expected = np.arange(sent[publisher])
            if (
                not np.array_equal(column["message"][rows], expected)
                or not (column["publisher"][rows] == publisher).all()
            ):
                raise LoadError(f"{file}: the rows of subscriber {subscriber} are not what it got")
    if sorted(publishers) != [number for number, count in enumerate(sent) if count]:
        raise LoadError(f"{len(publishers)} subscribers have rows, {len(sent)} were flooded")
