"""The watch's samples, with nodes, sockets and quotas made up; processes are real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from isthmus.bench.watch import pause_frames, samples, tcp_info, watch
from isthmus.bench.watch.pause_frames import PauseFrames
from isthmus.bench.watch.samples import LinkRow, ResourceRow, Series, table
from isthmus.bench.watch.tcp_info import TcpInfo
from isthmus.bench.watch.watch import Watch, Watched, WatchedConnection, WatchedTables, machine_use
from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.pipeline.log.schema import LINKS, RESOURCES
from isthmus.processes.tree import Snapshot
from support.waiting import wait_for

EVERY_S = 0.01
OWN = os.getpid()
ADMIN = Address("127.0.0.1", 9883)
NOTHING = TcpInfo(*[0] * 9)


def row(t_ns: int) -> ResourceRow:
    return ResourceRow(t_ns, "n1", "broker", t_ns, 1, None)


# ---- samples -------------------------------------------------------------------------------


def test_rows_have_the_columns_of_the_schema() -> None:
    assert list(ResourceRow._fields) == RESOURCES.names
    assert list(LinkRow._fields) == LINKS.names


def test_a_table_of_several_series_and_of_none() -> None:
    one, other = Series(), Series()
    one.append([row(1), row(2)])
    other.append([row(3)])
    assert table([one, other], RESOURCES)["t_ns"].to_pylist() == [1, 2, 3]
    assert table([one], RESOURCES).schema == RESOURCES
    assert table([Series()], LINKS).num_rows == 0


def test_memory_is_bounded_by_leaving_samples_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_ROWS", 10)
    series = Series()
    for tick in range(100):
        if series.due(tick):
            series.append([row(tick), row(tick)])
            kept = [kept.t_ns for kept in series.rows() if isinstance(kept, ResourceRow)]
            assert len(kept) <= 10
            assert (kept[0], kept[-1]) == (0, tick)
    assert series.stride >= 16
    assert all(later - earlier <= series.stride for earlier, later in pairwise(kept))


def test_a_tick_that_was_missed_is_made_up_for_by_the_next() -> None:
    series = Series(stride=5)
    assert [tick for tick in (0, 1, 4, 6, 7, 10, 11, 12) if series.due(tick)] == [0, 6, 11]


def test_the_machine_has_used_more_than_we_have() -> None:
    own, machine = Snapshot().use([OWN]), machine_use()
    assert machine.cpu_ns >= own.cpu_ns
    assert machine.rss_bytes > 0


# ---- the watch -----------------------------------------------------------------------------


def watched_until(watching: Watch, condition: Callable[[], Any], **start: Any) -> WatchedTables:
    running = watching.start(**start)
    wait_for(condition, 10, "the samples")
    return running.stop()


class Calls:
    """Counts how often it was asked."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.times = 0

    def __call__(self, *_: object) -> Any:
        self.times += 1
        return self.answer(self.times)


def test_processes_and_the_machine() -> None:
    processes = Calls(lambda _: [Watched("n1", "broker", (OWN,))])
    load = [Watched("", "load:w0", (os.getppid(),))]
    seen = watched_until(Watch(processes, every_s=EVERY_S), lambda: processes.times >= 3, load=load)
    rows = seen.resources.to_pylist()
    assert {(r["node"], r["process"]) for r in rows} == {
        ("", "machine"),
        ("n1", "broker"),
        ("", "load:w0"),
    }
    ours = [r for r in rows if r["process"] == "broker"]
    assert len(ours) == processes.times
    assert all(a["t_ns"] < b["t_ns"] for a, b in pairwise(ours))
    assert all(a["cpu_ns"] <= b["cpu_ns"] for a, b in pairwise(ours))
    assert {r["throttled_ns"] for r in rows} == {None}
    assert seen.links.num_rows == 0
    assert seen.notes == ()


def test_waiting_for_a_quota_of_the_process_else_of_the_server() -> None:
    quotas = {("n1", "broker"): 1, ("n1", None): 10, ("n2", None): 20}
    names = [("n1", "broker"), ("n1", "node"), ("n2", "broker"), ("n3", "broker"), ("", "load:w0")]
    processes = [Watched(node, process, (OWN,)) for node, process in names]
    watching = Watch(lambda: processes, throttled=lambda *whom: quotas.get(whom), every_s=EVERY_S)
    rows = watching.start().stop().resources.to_pylist()
    waited = {(r["node"], r["process"]): r["throttled_ns"] for r in rows}
    assert [waited[name] for name in names] == [1, 10, 20, None, None]


def test_a_process_that_ended_is_noted_once() -> None:
    gone = 2**22 + 1
    processes = Calls(lambda _: [Watched("n1", "broker", (gone,)), Watched("n1", "node", (OWN,))])
    seen = watched_until(Watch(processes, every_s=EVERY_S), lambda: processes.times >= 3)
    assert seen.notes == (f"n1: broker (process {gone}) ended while it was watched",)
    assert "broker" not in set(seen.resources["process"].to_pylist())


def test_a_watch_is_used_again_and_keeps_nothing() -> None:
    processes = Calls(lambda _: [])
    watching = Watch(processes, every_s=EVERY_S)
    first = watched_until(watching, lambda: processes.times >= 5)
    times = processes.times
    second = watched_until(watching, lambda: processes.times >= times + 2)
    last_of_first = max(first.resources["t_ns"].to_pylist())
    assert min(second.resources["t_ns"].to_pylist()) > last_of_first


def test_a_run_shorter_than_a_second_has_two_samples() -> None:
    assert Watch(every_s=60).start().stop().resources.num_rows == 2


def test_an_error_of_the_watch_itself_is_raised_at_the_end() -> None:
    def broken(times: int) -> list[Watched]:
        if times > 1:
            raise LookupError("whom to watch?")
        return []

    watching = Watch(Calls(broken), every_s=EVERY_S)
    running = watching.start()
    with pytest.raises(LookupError, match="whom to watch"):
        running.stop()
    with pytest.raises(LookupError, match="whom to watch"):
        watching.start()


# ---- nodes ---------------------------------------------------------------------------------


def peer(neighbor: str | None, sent: int | None, dropped: int | None) -> dict[str, Any]:
    return {"neighbor": neighbor, "sent": sent, "dropped": dropped}


def test_links_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(times: int) -> dict[str, Any]:
        linked = peer("n2", 100 * times, 7 if times < 3 else 12)
        return {"peers": [linked, peer(None, None, None), peer("n3", None, None)]}

    asked = Calls(status)
    monkeypatch.setattr(watch, "fetch_peers", asked)
    seen = watched_until(Watch(admins={"n1": ADMIN}, every_s=EVERY_S), lambda: asked.times >= 4)
    rows = seen.links.to_pylist()
    assert {(r["kind"], r["node"], r["peer"]) for r in rows} == {("link", "n1", "n2")}
    assert [r["messages_out"] for r in rows] == [100 * (i + 1) for i in range(asked.times)]
    assert {r["bytes_out"] for r in rows} == {None}
    assert seen.dropped == {"n1 to n2": 5}


def test_a_node_that_does_not_answer_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def status(address: Address, timeout_s: float) -> dict[str, Any]:
        asked.append(address.host)
        if address.host == "hangs":
            raise AdminError("nobody there")
        return {"peers": []}

    monkeypatch.setattr(watch, "fetch_peers", status)
    admins = {"n1": Address("hangs", 1), "n2": Address("answers", 1)}
    seen = watched_until(Watch(admins=admins, every_s=EVERY_S), lambda: len(asked) >= 6)
    times = asked.count("hangs")
    assert seen.notes == (f"n1: its admin address gave no answer {times} times",)
    assert asked[-1] == "answers", "at the end, one that hangs is not waited for"


# ---- the servers' ends ---------------------------------------------------------------------


def subscriber(number: int, port: int = 1883, role: str = "subscriber") -> WatchedConnection:
    local = f"127.0.0.1:{40_000 + number}"
    return WatchedConnection(f"t-sub-{number}", "n1", role, local, Address("127.0.0.1", port))


def test_the_servers_ends_of_subscribers_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_frames, "take", lambda _: PauseFrames())

    def connections(times: int) -> dict[tuple[int, str], TcpInfo]:
        limited = TcpInfo(*[1_000 * times] * 9)
        return {(1883, "127.0.0.1:40001"): limited, (1883, "127.0.0.1:55555"): NOTHING}

    asked = Calls(connections)
    monkeypatch.setattr(tcp_info, "of_connections", asked)
    clients = [subscriber(1), subscriber(2), subscriber(3, role="publisher")]
    seen = watched_until(Watch(every_s=EVERY_S), lambda: asked.times >= 3, connections=clients)
    rows = seen.links.to_pylist()
    assert {(r["kind"], r["node"], r["peer"]) for r in rows} == {("server", "n1", "t-sub-1")}
    assert [r["rwnd_limited_us"] for r in rows] == [1_000 * (i + 1) for i in range(asked.times)]
    (end,) = seen.servers_ends
    assert (end.client, end.node) == ("t-sub-1", "n1")
    assert end.grown.rwnd_limited_us == 1_000 * (asked.times - 1)
    assert seen.notes == (
        "n1: its ends of some subscribers' connections are not on this machine, so how long "
        "subscribers held it back is not known from there",
    )


def test_a_kernel_that_tells_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> None:
        raise OSError(2, "No such file or directory")

    asked = Calls(refused)
    monkeypatch.setattr(tcp_info, "of_connections", asked)
    seen = watched_until(
        Watch(every_s=EVERY_S), lambda: asked.times >= 2, connections=[subscriber(1)]
    )
    assert seen.notes == (
        "pause frames are not reported by lo",
        "the servers' ends of connections cannot be seen: [Errno 2] No such file or directory",
    )


def test_many_connections_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    strides: list[int] = []

    def series(stride: int = 1) -> Series:
        strides.append(stride)
        return Series(stride)

    monkeypatch.setattr(watch, "Series", series)
    monkeypatch.setattr(watch, "CONNECTIONS_PER_S", 2)
    Watch(every_s=EVERY_S).start(connections=[subscriber(number) for number in range(10)]).stop()
    assert sorted(strides) == [1, 1, 5]


# ---- interfaces ----------------------------------------------------------------------------


def test_pause_frames_of_the_interfaces_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"192.0.2.7": "eth0", "198.51.100.1": None}
    monkeypatch.setattr(pause_frames, "interface_towards", ways.__getitem__)
    taken: list[list[str]] = []

    def take(interfaces: list[str]) -> PauseFrames:
        taken.append(interfaces)
        return PauseFrames({"eth0 rx_pause": 10 * len(taken)})

    monkeypatch.setattr(pause_frames, "take", take)
    clients = [
        WatchedConnection("t-pub-1", "n1", "publisher", "192.0.2.1:40001", Address(host, 1883))
        for host in ways
    ]
    seen = Watch(every_s=EVERY_S).start(connections=clients).stop()
    assert taken == [["eth0"], ["eth0"]]
    assert seen.pauses == {"eth0 rx_pause": 10}
    assert seen.notes == ("pause frames: no interface leads to 198.51.100.1",)
