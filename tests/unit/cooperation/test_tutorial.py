"""The tutorial's page, the example it shows, and the example as an installed package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.cooperation import registry
from isthmus.cooperation.api import CooperationAlgorithm, ReceivedPacket, SessionInfo, SessionKind
from isthmus.errors import AlgorithmError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.mqtt.properties import Properties
from isthmus.sim.check import check_algorithm
from support.algorithm_network import FakeClient, FakeNetwork, FakePort
from support.examples import EXAMPLES, unpack

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tutorial" / "write-an-algorithm.md"
EXAMPLE = EXAMPLES / "isthmus-validation"
SOURCE = EXAMPLE / "src" / "isthmus_validation"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def run(code: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(path), str(ROOT / "src")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[CooperationAlgorithm]]:
    """The example's class, through the registry."""
    unpack(EXAMPLE.name, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield registry.load("validated-sf")
    sys.modules.pop("isthmus_validation", None)


def test_the_page_shows_the_example_as_it_is() -> None:
    assert blocks("python")[0] == (SOURCE / "__init__.py").read_text()
    assert blocks("toml")[0] in (EXAMPLE / "pyproject.toml").read_text()


def test_the_pages_programs_print_what_it_says(tmp_path: Path) -> None:
    unpack(EXAMPLE.name, tmp_path)
    programs, printed = blocks("python")[1:], blocks("text")
    assert len(programs) == len(printed) == 3
    for program, expected in zip(programs, printed, strict=True):
        assert run(program, tmp_path) == expected


def test_the_pages_configuration_fits(algorithm: type[CooperationAlgorithm]) -> None:
    options = tomllib.loads(blocks("toml")[1])["cooperation"]
    assert options.pop("algorithm") == algorithm.name
    algorithm(FakePort(), options)


def test_without_it_the_name_is_unknown() -> None:
    with pytest.raises(AlgorithmError, match="validated-sf"):
        registry.load("validated-sf")


@pytest.mark.parametrize(("key", "value"), [("json_prefix", 7), ("jsonprefix", "a/")])
def test_a_wrong_option_is_named(
    algorithm: type[CooperationAlgorithm], key: str, value: object
) -> None:
    with pytest.raises(ValueError, match=key):
        algorithm(FakePort(), {key: value})


@pytest.mark.parametrize("level", [4, 5])
def test_it_stops_what_is_not_json(algorithm: type[CooperationAlgorithm], level: int) -> None:
    port = FakePort()
    validated = port.clients.algorithm = algorithm(port, {})
    client = FakeClient(port, level).connect()
    assert client.says(Publish("json/a", b"[1]")) is True
    assert client.says(Publish("json/a", b"[1")) is False
    assert client.says(Publish("json/a", b"\xff")) is False
    assert client.says(Publish("other", b"[1")) is True
    assert validated.status()["refused"] == 2
    client.drop()


def test_it_knows_topic_aliases(algorithm: type[CooperationAlgorithm]) -> None:
    """The node knows the topic of an alias."""
    validated = algorithm(FakePort(), {})
    client = SessionInfo(1, SessionKind.LOCAL_CLIENT, "c")
    alias = encode(Publish("", b"?", properties=Properties(topic_alias=3)), 5)
    assert validated.mqtt_message_arrived(client, ReceivedPacket(alias, topic="json/a")) is False
    assert validated.mqtt_message_arrived(client, ReceivedPacket(alias, topic="other")) is True


def test_it_has_at_most_40_lines_and_passes_the_suite(
    algorithm: type[CooperationAlgorithm],
) -> None:
    assert len((SOURCE / "__init__.py").read_text().splitlines()) <= 40
    check_algorithm(algorithm, seeds=(0,), topologies=("ildm", "ring"), schedules=12)


def test_it_still_floods_subscriptions(algorithm: type[CooperationAlgorithm]) -> None:
    network = FakeNetwork(algorithm, "12")
    network.connect("1", "2")
    network.client("1").subscribe("json/+")
    network.settle()
    assert network.publish("2", "json/a").brokers == {"1": 1}
    assert network.publish("2", "other").brokers == {}


def installer() -> list[str] | None:
    """A command that installs a folder into `--target`, or None."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".tools" / "bin"))
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    for folder in (sys.prefix, sys.base_prefix):
        python = shutil.which("python3", path=str(Path(folder) / "bin"))
        if python is not None:
            pip = [python, "-m", "pip"]
            if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
                continue
            return [*pip, "install", "--quiet", "--disable-pip-version-check"]
    return None


def test_the_example_installs(tmp_path: Path) -> None:
    """A real wheel, built and installed; needs an installer and a package index."""
    command = installer()
    problem = "neither uv nor pip is here"
    if command is not None:
        project, target = tmp_path / "project", tmp_path / "target"
        shutil.copytree(EXAMPLE, project)
        done = subprocess.run(
            [*command, "--no-deps", "--target", str(target), str(project)],
            capture_output=True,
            text=True,
            check=False,
        )
        problem = done.stderr[-2000:] if done.returncode else ""
    if problem and not os.environ.get("CI"):
        pytest.skip(f"the example cannot be installed here: {problem}")
    assert not problem
    code = "from isthmus.cooperation import registry; print(registry.load('validated-sf').name)"
    assert run(code, target) == "validated-sf\n"
