"""Requests for sessions: which are refused, and what the others become."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import pytest

from isthmus.errors import SparkError, SparkFailed
from isthmus.pipeline.spark.settings import (
    SessionRequest,
    memory_bytes,
    runtime_settings,
    start_settings,
)


def request(
    master: str = "local[*]", *, connect: str | None = None, memory: str | None = None
) -> SessionRequest:
    return SessionRequest(master, connect, False, memory)


@pytest.mark.parametrize(
    "master", ["", "locals", "local[0]", "local[x]", "yarn", "spark://host", "sc://host:1", "spark"]
)
def test_other_masters_are_refused_with_those_that_are_known(master: str) -> None:
    with pytest.raises(SparkError, match=r"local\[\*\], local\[N\] and spark://HOST:PORT"):
        request(master)


@pytest.mark.parametrize("connect", ["", "host:15002", "spark://host:1", "sc://", "sc://h:p"])
def test_other_connect_addresses_are_refused(connect: str) -> None:
    with pytest.raises(SparkError, match="write sc://HOST:PORT"):
        request(connect=connect)


@pytest.mark.parametrize("memory", ["", "1", "2gb", "g", "-1g", "511m", "1.5g", "0g"])
def test_other_sizes_are_refused(memory: str) -> None:
    with pytest.raises(SparkError, match="for example 1g"):
        request(memory=memory)


def test_memory_is_not_ours_to_set_on_a_connect_server() -> None:
    with pytest.raises(SparkError, match="the server's to decide"):
        request(connect="sc://h", memory="1g")


@pytest.mark.parametrize(
    ("asked", "addresses", "loopback"),
    [
        (request("local"), (), True),
        (request("local[3]"), (), True),
        (request("spark://127.0.0.1:7077"), (("127.0.0.1", 7077),), True),
        (request("spark://a:1,b:2"), (("a", 1), ("b", 2)), False),
        (request("spark://localhost:1,b:2"), (("localhost", 1), ("b", 2)), False),
        (request("spark://[::1]:7077"), (("::1", 7077),), True),
        (request(connect="sc://h"), (("h", 15002),), False),
        (request(connect="sc://h:7/;token=x"), (("h", 7),), False),
    ],
)
def test_where_to_reach_it(
    asked: SessionRequest, addresses: tuple[tuple[str, int], ...], loopback: bool
) -> None:
    assert asked.addresses == addresses
    assert asked.loopback is loopback


def test_whoever_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and no listen
        port = closed.getsockname()[1]
        for asked in (
            request(f"spark://127.0.0.1:{port}"),
            request(connect=f"sc://127.0.0.1:{port}"),
        ):
            with pytest.raises(SparkFailed, match=f"127.0.0.1:{port} cannot be reached"):
                asked.check_reachable()


def test_one_of_several_masters_is_enough() -> None:
    with socket.socket() as closed, socket.socket() as open_one:
        closed.bind(("127.0.0.1", 0))
        open_one.bind(("127.0.0.1", 0))
        open_one.listen()
        ports = closed.getsockname()[1], open_one.getsockname()[1]
        request(f"spark://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}").check_reachable()


def test_local_settings_stay_on_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    settings = start_settings(request("local[3]", memory="700m"), folder, ("-Da=b c",))
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.driver.memory"] == "700m"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert shlex.split(settings["spark.driver.extraJavaOptions"]) == [
        f"-Djava.io.tmpdir={folder}",
        "-Da=b c",
    ]
    assert not [key for key in settings if key.startswith("spark.executor.")]


def test_a_clusters_memory_is_its_executors(tmp_path: Path) -> None:
    settings = start_settings(request("spark://h:1", memory="3g"), tmp_path, (), ("-Xa", "-Xb"))
    assert settings["spark.executor.memory"] == "3g"
    assert settings["spark.driver.memory"] != "3g"
    assert settings["spark.executor.extraJavaOptions"] == "-Xa -Xb"
    assert "spark.driver.host" not in settings


def test_the_heap_is_a_quarter_of_small_machines_and_2_gib_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("isthmus.pipeline.spark.settings._CGROUP_LIMITS", (str(limit), "/nowhere"))
    limit.write_text(f"{4 * 2**30}\n")
    assert memory_bytes() == min(4 * 2**30, memory_bytes())
    for limit_mib, heap in ((4096, "1024m"), (1024, "512m")):
        limit.write_text(f"{limit_mib * 2**20}\n")
        assert start_settings(request(), tmp_path, ())["spark.driver.memory"] == heap
    limit.write_text("max\n")
    monkeypatch.setattr("os.sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 2**24)
    assert memory_bytes() == 2**36
    assert start_settings(request(), tmp_path, ())["spark.driver.memory"] == "2048m"


def test_what_a_connect_session_may_set_is_what_every_session_has() -> None:
    remote = runtime_settings(request(connect="sc://h"))
    assert set(remote) == set(runtime_settings(request()))
