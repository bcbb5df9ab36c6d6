"""What can be said about the brokers without starting one."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import require_broker
from isthmus.brokers import artifacts, broker_class, create, embedded, names
from isthmus.brokers.__main__ import main
from isthmus.brokers.artifacts import Artifact, MavenJars, cache_folder
from isthmus.brokers.base import Broker
from isthmus.brokers.mosquitto import Mosquitto, TlsListener
from isthmus.brokers.probe import connect_answer
from isthmus.errors import BrokerFailed, BrokerMissing
from isthmus.processes import children as processes

EIGHT = {
    "embedded",
    "mosquitto",
    "rabbitmq",
    "activemq",
    "ejabberd",
    "aedes",
    "moquette",
    "hivemq",
}


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(processes, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)


# ---- the registry ------------------------------------------------------------------------


def test_there_are_eight() -> None:
    assert set(names()) == EIGHT
    assert len(names()) == 8


@pytest.mark.parametrize("name", names())
def test_each_carries_its_name_and_its_versions(name: str) -> None:
    broker = create(name)
    assert broker.name == name
    assert set(broker.protocol_levels) <= {4, 5}
    assert 4 in broker.protocol_levels
    assert not broker.running
    assert broker.process_ids() == []


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'nosuch'.*mosquitto"):
        create("nosuch")


def test_only_the_chosen_module_is_imported() -> None:
    code = (
        "import sys; from isthmus.brokers import create; create('mosquitto'); "
        "print(*(name for name in sys.modules if name.startswith('isthmus.brokers.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.rpartition(".")[2] for name in run.stdout.split()}
    assert loaded & EIGHT == {"mosquitto"}


# ---- what is missing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mosquitto", "apt-get install -y --no-install-recommends mosquitto"),
        ("rabbitmq", "apt-get install -y --no-install-recommends rabbitmq-server"),
        ("ejabberd", "apt-get install -y --no-install-recommends ejabberd"),
        ("activemq", "apt-get install -y --no-install-recommends activemq libmqtt-client-java"),
        ("aedes", "apt-get install -y --no-install-recommends nodejs"),
        ("moquette", "apt-get install -y --no-install-recommends default-jre-headless"),
        ("hivemq", "apt-get install -y --no-install-recommends default-jre-headless"),
        ("embedded", "pip install 'isthmus[embedded]'"),
    ],
)
@pytest.mark.usefixtures("bare_machine")
def test_a_missing_broker_says_how_to_get_it(name: str, remedy: str) -> None:
    broker = create(name)
    with pytest.raises(BrokerMissing) as caught:
        broker.start()
    assert caught.value.broker == name
    assert caught.value.remedy.endswith(remedy)
    assert broker.folder is None


@pytest.mark.parametrize("name", ["aedes", "moquette", "hivemq"])
def test_what_was_not_fetched_names_the_command_that_fetches_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(artifacts, "find_executable", lambda program: f"/bin/{program}")
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path))
    missing = broker_class(name).missing()
    assert missing is not None
    assert missing.remedy == f"run: {sys.executable} -m isthmus.brokers install {name}"


@pytest.mark.usefixtures("bare_machine")
def test_without_a_broker_a_test_fails_in_ci_and_is_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="mosquitto is missing"):
        require_broker("mosquitto")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="mosquitto is missing"):
        require_broker("mosquitto")


# ---- the command line --------------------------------------------------------------------


@pytest.mark.usefixtures("bare_machine")
def test_list_shows_every_broker_and_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[1:]} == EIGHT
    assert all("is missing" in line for line in lines[1:])


@pytest.mark.usefixtures("bare_machine")
def test_install_fails_with_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "hivemq"]) == 1
    message = capsys.readouterr().err
    assert "hivemq: the program java is missing" in message
    assert "default-jre-headless maven default-jdk-headless" in message


def test_install_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["install", "nosuch"])
    assert caught.value.code == 2
    assert "nosuch" in capsys.readouterr().err


# ---- fetching ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parcel(Artifact):
    """An artifact that needs no network: a file, then the given program."""

    run_needs: ClassVar = {}
    fetch_needs: ClassVar = {sys.executable: "python3"}
    program: str = ""

    def fill(self, folder: Path) -> None:
        (folder / "half").touch()
        if self.program:
            self.run([sys.executable, "-c", self.program], folder)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_fetched_appears_whole(cache: Path) -> None:
    parcel = Parcel(broker="parcel", version="1")
    assert parcel.missing() is not None
    said: list[str] = []
    parcel.install(said.append)
    assert parcel.missing() is None
    assert [path.name for path in cache.iterdir()] == ["parcel-1"]
    assert (cache / "parcel-1" / "half").exists()
    parcel.install(said.append)
    assert "already" in said[-1]


def test_what_fails_leaves_nothing_and_shows_the_end_of_the_output(cache: Path) -> None:
    parcel = Parcel(broker="parcel", version="1", program="raise SystemExit('no such parcel')")
    with pytest.raises(BrokerFailed, match="status 1") as caught:
        parcel.install(lambda line: None)
    assert caught.value.log_tail == "no such parcel"
    assert list(cache.iterdir()) == []


def test_another_process_may_be_faster(cache: Path) -> None:
    made = f"import os; os.makedirs({str(cache / 'parcel-1' / 'other')!r})"
    Parcel(broker="parcel", version="1", program=made).install(lambda line: None)
    assert [path.name for path in cache.iterdir()] == ["parcel-1"]
    assert [path.name for path in (cache / "parcel-1").iterdir()] == ["other"]


def test_maven_is_given_the_pinned_artifact(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(MavenJars, "run", lambda self, argv, folder: ran.append(list(argv)))
    cache.mkdir()
    jars = MavenJars(broker="b", version="1.2", group="org.example", artifact="thing")
    jars.fill(cache)
    pom = (cache / "pom.xml").read_text()
    assert "<groupId>org.example</groupId>" in pom
    assert "<artifactId>thing</artifactId>" in pom
    assert "<version>1.2</version>" in pom
    assert f"-DoutputDirectory={cache}" in ran[0]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/isthmus/brokers")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/isthmus/brokers")
    monkeypatch.setenv("ISTHMUS_CACHE", "/c")
    assert cache_folder() == Path("/c")


# ---- configuration and probe -------------------------------------------------------------


def test_mosquitto_with_tls_has_two_listeners(tmp_path: Path) -> None:
    tls = TlsListener(Path("/c.pem"), Path("/k.pem"), Path("/ca.pem"), require_certificate=True)
    broker = Mosquitto(port=12345, tls=tls, extra=["max_packet_size 1000"])
    broker.tls_port = 12346
    broker.configure(tmp_path)
    lines = (tmp_path / "mosquitto.conf").read_text().splitlines()
    assert lines[-6:] == [
        "max_packet_size 1000",
        "listener 12346 127.0.0.1",
        "certfile /c.pem",
        "keyfile /k.pem",
        "cafile /ca.pem",
        "require_certificate true",
    ]
    assert "listener 12345 127.0.0.1" in lines


def test_ejabberd_never_connects_without_a_password() -> None:
    broker = create("ejabberd")
    assert broker.username
    assert broker.password


@pytest.mark.parametrize(
    ("level", "login", "expected"),
    [
        (4, {}, "10 1f 0004 4d515454 04 02 001e 0013"),
        (5, {}, "10 20 0004 4d515454 05 02 001e 00 0013"),
        (4, {"username": "u", "password": "pw"}, "10 26 0004 4d515454 04 c2 001e 0013"),
    ],
)
def test_the_probe_is_a_valid_connect(level: int, login: dict[str, Any], expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        probe = partial(connect_answer, "127.0.0.1", port, level=level, **login)
        answer = pool.submit(probe)
        with server.accept()[0] as probed:
            packet = probed.recv(100)
            probed.sendall(b"\x20\x03\0\x85\0" if level == 5 else b"\x20\x02\0\x05")
        assert answer.result(10) == (0x85 if level == 5 else 5)
    assert packet.startswith(bytes.fromhex(expected) + b"isthmus")
    assert packet.endswith(b"\0\1u\0\2pw") == bool(login)


def test_a_broker_that_does_not_run_has_no_pid() -> None:
    broker: Broker = create("mosquitto")
    with pytest.raises(BrokerFailed, match="not running"):
        _ = broker.pid
    broker.stop()
    broker.kill()
