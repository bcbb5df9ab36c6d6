"""A load session: every client of a scenario connected, and one measurement after the other.

    with LoadSession(scenario, targets, log, watch=watch, progress=Progress()) as session:
        record = session.measure("C-sf-10ms")

The coordinator itself touches no message: load processes (:mod:`isthmus.bench.coordinator.workers`)
play the clients, here or at agents on other machines, and write what they saw.  The coordinator
gives them one common moment to start at, each by its own clock, waits until all has arrived or no
more comes, and writes the run's row last. l-clients have a process of their own, at the
coordinator.

Whatever goes wrong ends the session: every load process is ended and what the failed measurement
had written is removed.  So a log holds whole runs only, unless the coordinator itself is killed.

Source: ILDM §5.2 (clients, logs, gathering), §6.1 (what is cut off at both ends).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from isthmus.bench.coordinator.clocks import Offset, between
from isthmus.bench.coordinator.control import ControlMessage, Target, item
from isthmus.bench.coordinator.crew import Crew
from isthmus.bench.coordinator.faults import Breakable, Making
from isthmus.bench.coordinator.progress import Progress
from isthmus.bench.coordinator.run_record import Measured, RunRecord, record_run
from isthmus.bench.coordinator.workers import COMMAND, LoadProcess, LocalWorker, RemoteWorker
from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.expected import QUIET_S, Arrivals, Ending, Report, fan_out
from isthmus.bench.load.plan import plan_clients
from isthmus.bench.scenario import Scenario
from isthmus.bench.watch.watch import Watch, Watched, WatchedConnection, WatchedTables
from isthmus.config.addresses import Address
from isthmus.errors import LoadError, LoadFailed
from isthmus.pipeline.log.reading import LoggedFile
from isthmus.pipeline.log.run_files import check_run, remove_run
from isthmus.processes.folders import OwnedFolder

__all__ = ["LoadSession", "RunRecord"]

LATENCY_WRITER: Final = "l0"
LEAD_S: Final = 0.5
"""From telling everybody until they start; on top of it a moment for each thousand clients."""
LEAD_PER_CLIENT_S: Final = 20e-6
FINISH_S: Final = 300.0
SILENT_S: Final = 30.0
"""Load processes report twice a second; one that is silent for that long hangs."""
LISTEN_S: Final = 0.25
COME_BACK_S: Final = 5.0
"""After a fault nothing may come for so long, beyond what a neighbor needs to be given up: nodes
dial each other again, and clients their nodes."""
DRAIN_S: Final = 60.0
"""Long, because what overloaded brokers still hold would be load in the next measurement; it ends
as soon as nothing more arrives."""


class LoadSession:
    """Connects all clients on entry and ends everything on exit.

    `targets` says for each server of the scenario where the load processes reach it.  `writers` is
    the number of processes for t-clients, at each agent if there are any, else here.  `drain_s` is
    how long to wait at most, after the last message was sent, for those that still arrive.
    `rig` is where the scenario's faults are made.
    `notes` are of the servers and go into every run's row; what is added to them later, into those
    of later runs.
    """

    def __init__(
        self,
        scenario: Scenario,
        targets: Mapping[str, Target],
        log: Path,
        *,
        writers: int = 2,
        agents: Sequence[Address] = (),
        token: bytes | None = None,
        labels: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        watch: Watch | None = None,
        progress: Progress | None = None,
        rig: Breakable | None = None,
        drain_s: float = DRAIN_S,
        connect_s: float = 60.0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        if writers < 1:
            raise LoadError(f"{writers} load processes: at least 1 is needed; 2 is the default")
        if agents and not token:
            raise LoadError("agents ask for a token; give the file that they were started with")
        self._agents = tuple(agents)
        self._writers = writers
        names = [f"w{number}" for number in range(writers * max(1, len(agents)))]
        self.plan = plan_clients(scenario, names, LATENCY_WRITER)
        missing = sorted({client.node for client in self.plan.clients} - targets.keys())
        if missing:
            raise LoadError(f"no target for {', '.join(missing)}, where the scenario has clients")
        self._scenario = scenario
        self._targets = dict(targets)
        self._log = log
        self._token = token or b""
        self._labels = dict(labels or {})
        self._notes = notes
        self._watch = watch
        self._progress = progress
        self._rig = rig
        self._drain_s = drain_s
        self._connect_s = connect_s
        self._command = command
        self._stack = ExitStack()
        self._crew: Crew | None = None
        self._connections: list[WatchedConnection] = []
        self._left_over = ""
        """The last run, if messages of it were still arriving when it ended."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = OwnedFolder("load")
            stack.callback(folder.remove)
            workers: list[LoadProcess] = []
            for writer in self.plan.writers:
                workers.append(self._start(writer, folder.path))
                stack.callback(workers[-1].close)
            crew = Crew(workers)
            stack.callback(crew.close)
            self._connect(crew)
            self._crew = crew
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect all clients and end every load process."""
        self._crew = None
        self._stack.close()

    def measure(
        self,
        run: str,
        *,
        interval_ns: int | None = None,
        duration_s: float | None = None,
        trim_s: float | None = None,
    ) -> RunRecord:
        """Measure once, under the name `run`; what is not given is the scenario's."""
        if self._crew is None:
            raise LoadError("the load session is closed; open another one to measure")
        try:
            scenario = self._scenario.changed(
                interval_ns=interval_ns, duration_s=duration_s, trim_s=trim_s
            )
        except ValueError as error:
            raise LoadError(f"run {run!r}: {error}") from None
        if scenario.load.interval_ns <= 0:
            raise LoadError(f"run {run!r}: the interval must be longer than {interval_ns} ns")
        check_run(self._log, run)
        try:
            record = self._measure(self._crew, run, scenario)
        except BaseException:
            if self._progress is not None:
                self._progress.end()
            self.close()  # first, so that nobody writes any more
            remove_run(self._log, run)
            raise
        if self._progress is not None:
            self._progress.end(record.in_words)
        return record

    # ---- the load processes --------------------------------------------------------------

    def _start(self, writer: str, folder: Path) -> LoadProcess:
        if self._agents and writer != LATENCY_WRITER:
            agent = self._agents[int(writer[1:]) // self._writers]
            return RemoteWorker(writer, agent, self._token)
        return LocalWorker(writer, folder, self._command)

    def _connect(self, crew: Crew) -> None:
        clients = {client.name: client for client in self.plan.clients}
        if self._progress is not None:
            self._progress.say(f"connecting {len(clients)} clients")
        crew.clocks()  # nobody connects before everybody has started
        answers = crew.ask(self._connect_message, "connected", self._connect_s + SILENT_S)
        for writer, answer in answers.items():
            for name, local in item(answer, "sockets", dict, writer).items():
                client = clients[name]
                target = self._targets[client.node]
                server = Address(target.host, target.port)
                self._connections.append(
                    WatchedConnection(name, client.node, client.role, str(local), server)
                )

    def _connect_message(self, worker: LoadProcess) -> ControlMessage:
        load, latency = self._scenario.load, self._scenario.latency
        return {
            "do": "connect",
            "clients": [asdict(client) for client in self.plan.of(worker.writer)],
            "topics": list(self.plan.topics),
            "targets": {node: asdict(target) for node, target in self._targets.items()},
            "qos": {"t": load.qos, "l": latency.qos if latency is not None else 0},
            "payload_bytes": load.payload_bytes,
            "timeout_s": self._connect_s,
            "returning": sorted({crash.node for crash in self._scenario.crash}),
        }

    # ---- one measurement -----------------------------------------------------------------

    def _measure(self, crew: Crew, run: str, scenario: Scenario) -> RunRecord:
        before = crew.clocks()
        lead_s = LEAD_S + LEAD_PER_CLIENT_S * len(self.plan.clients)
        with self._watched(crew) as watched:
            # Not before: the watch's first look, at thousands of connections, takes its time.
            start_ns = now_ns() + round(lead_s * 1e9)
            crew.tell(lambda worker: self._measure_message(worker, run, scenario, start_ns, before))
            start_s = time.monotonic() + (start_ns - now_ns()) / 1e9
            with Making(scenario.cut, scenario.crash, self._rig, start_s) as faults:
                arrivals, ending = self._await_end(crew, run, scenario, start_s, faults)
        answers = crew.ask(lambda _: {"do": "finish"}, "measured", FINISH_S)
        after = crew.clocks()
        measured = Measured(
            run=run,
            scenario=scenario,
            plan=self.plan,
            labels=self._labels,
            start_ns=start_ns,
            ended_ns=now_ns(),
            clocks=_clocks(crew, before, after),
            files=self._gather(crew, run, answers),
            answers=answers,
            ending=ending,
            most_held=arrivals.most_held,
            drain_s=self._drain_s,
            watched=watched[0] if watched else None,
            notes=self._began_notes(),
            faults=tuple(faults.made),
        )
        self._left_over = run if ending == "drained" else ""
        return record_run(self._log, measured)

    def _began_notes(self) -> tuple[str, ...]:
        if not self._left_over:
            return tuple(self._notes)
        began = f"began while messages of run {self._left_over} were still arriving"
        return (*self._notes, began)

    @contextmanager
    def _watched(self, crew: Crew) -> Iterator[list[WatchedTables]]:
        """Within, the watch runs; after it, the list holds what it saw."""
        seen: list[WatchedTables] = []
        if self._watch is None:
            yield seen
            return
        load = [Watched("", f"load:{w.writer}", w.pids) for w in crew.workers if w.pids]
        watching = self._watch.start(load, self._connections)
        try:
            yield seen
        finally:
            seen.append(watching.stop())

    def _measure_message(
        self,
        worker: LoadProcess,
        run: str,
        scenario: Scenario,
        start_ns: int,
        clocks: Mapping[str, Offset],
    ) -> ControlMessage:
        latency_s = scenario.latency.interval_s if scenario.latency is not None else 1.0
        return {
            "do": "measure",
            "run": run,
            "log": str(self._log),
            "start_ns": start_ns - clocks[worker.writer].offset_ns,
            "duration_s": scenario.scenario.duration_s,
            "interval_ns": {"t": scenario.load.interval_ns, "l": round(latency_s * 1e9)},
        }

    def _await_end(
        self, crew: Crew, run: str, scenario: Scenario, start_s: float, faults: Making
    ) -> tuple[Arrivals, Ending]:
        duration_s = scenario.scenario.duration_s
        last_s = start_s + duration_s + self._drain_s + SILENT_S
        # Messages can be on a line, one after the other, between every two nodes.
        under_way_s = scenario.emulation.longest_delay_s * (len(scenario.node) - 1)
        quiet_s = QUIET_S + under_way_s
        if scenario.cut or scenario.crash:
            quiet_s += scenario.link.dead_after_s + COME_BACK_S
        arrivals = Arrivals(fan_out(self.plan), self.plan.writers, self._drain_s, quiet_s=quiet_s)
        heard_s = dict.fromkeys(self.plan.writers, start_s)
        if self._progress is not None:
            self._progress.begin(run, duration_s)
        while True:
            faults.check()
            ending = arrivals.ending(time.monotonic())
            if ending is not None and faults.over_for_s >= (quiet_s if ending == "quiet" else 0):
                return arrivals, ending
            for worker, said in crew.listen(LISTEN_S):
                name = worker.channel.name
                if said.get("is") != "progress":
                    raise LoadFailed(name, f"said {said.get('is')!r} while it measures")
                heard_s[worker.writer] = time.monotonic()
                report = Report.read(said, name, len(self.plan.topics))
                arrivals.report(worker.writer, report, heard_s[worker.writer])
            _check_heard(heard_s, time.monotonic(), last_s)
            if self._progress is not None:
                self._progress.report(time.monotonic() - start_s, arrivals.totals)

    def _gather(
        self, crew: Crew, run: str, answers: Mapping[str, ControlMessage]
    ) -> tuple[LoggedFile, ...]:
        files: list[LoggedFile] = []
        for worker in crew.workers:
            for entry in item(answers[worker.writer], "files", list, worker.channel.name):
                file = LoggedFile(entry["table"], worker.writer, entry["rows"])
                worker.gather(file.table, run, self._log)
                files.append(file)
        return tuple(files)


def _clocks(
    crew: Crew, before: Mapping[str, Offset], after: Mapping[str, Offset]
) -> list[dict[str, Any]]:
    return [
        {"writer": worker.writer, "machine": worker.machine}
        | asdict(between(before[worker.writer], after[worker.writer]))
        for worker in crew.workers
    ]


def _check_heard(heard_s: Mapping[str, float], now_s: float, last_s: float) -> None:
    for writer, at_s in heard_s.items():
        if now_s - at_s > SILENT_S:
            raise LoadFailed(writer, f"has not reported for {SILENT_S:g} s")
    if now_s > last_s:
        raise LoadFailed(", ".join(heard_s), "did not finish the measurement in time")
