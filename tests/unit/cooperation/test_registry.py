"""Algorithms by name: built-in ones, plug-ins, and plug-ins that cannot be used."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.cooperation import registry
from isthmus.cooperation.api import CooperationAlgorithm, Route, SessionInfo, SessionKind
from isthmus.errors import AlgorithmError
from support.algorithm_network import FakePort

GOOD = """
from isthmus.cooperation.api import CooperationAlgorithm
class Mine(CooperationAlgorithm):
    name = "mine"
class Other:
    name = "other"
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, entries: str, code: str = GOOD
) -> None:
    """What an installer leaves behind: a module and its metadata."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[isthmus.algorithms]\n{entries}\n")
    monkeypatch.syspath_prepend(folder)


def test_built_in_names_come_first() -> None:
    assert registry.names()[:3] == ("none", "pf", "sf")


@pytest.mark.parametrize("name", ["none", "pf", "sf"])
def test_built_in_classes_carry_their_name(name: str) -> None:
    assert registry.load(name).name == name


def test_alone_routes_nowhere() -> None:
    port = FakePort()
    alone = registry.load("none")(port, {})
    client = SessionInfo(1, SessionKind.LOCAL_CLIENT, "c")
    neighbor = SessionInfo(2, SessionKind.NEIGHBOR, "n")
    for session in (client, neighbor):
        assert alone.route("t", session, retain=True) == Route()


@pytest.mark.parametrize("name", ["none", "pf", "sf"])
def test_an_unknown_option_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="sped"):
        registry.load(name)(FakePort(), {"sped": 3})


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(AlgorithmError, match="none, pf, sf") as caught:
        registry.load("fs")
    assert caught.value.name == "fs"
    assert "sf" in caught.value.available


def test_a_plugin_is_found_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "plug-a", "mine = plug_a:Mine")
    assert "mine" in registry.names()
    assert "plug_a" not in sys.modules
    loaded = registry.load("mine")
    assert issubclass(loaded, CooperationAlgorithm)
    assert loaded.__module__ == "plug_a"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("other = plug_b:Other", "not a subclass"),
        ("missing = plug_b:Missing", "cannot be imported"),
        ("elsewhere = plug_b_is_nowhere:Mine", "cannot be imported"),
        ("else = plug_b:Mine", "calls itself 'mine'"),
    ],
)
def test_a_broken_plugin_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, problem: str
) -> None:
    install(tmp_path, monkeypatch, "plug-b", entry)
    monkeypatch.delitem(sys.modules, "plug_b", raising=False)
    with pytest.raises(AlgorithmError, match=problem) as caught:
        registry.load(entry.partition(" ")[0])
    assert "plug-b" in str(caught.value)


def test_a_plugin_that_raises_on_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "plug-c", "boom = plug_c:Boom", code="1 / 0")
    with pytest.raises(AlgorithmError, match=r"plug-c.*ZeroDivisionError"):
        registry.load("boom")


def test_a_built_in_name_cannot_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch, "plug-d", "sf = plug_d:Mine")
    with caplog.at_level(logging.WARNING):
        registry.check_options("sf", {})
    loaded = registry.load("sf")
    assert loaded.__module__ == "isthmus.cooperation.subscription_flooding.algorithm"
    assert "plug-d" in caplog.text
    assert registry.names().count("sf") == 1


def test_two_plugins_of_one_name_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "plug-e", "mine = plug_e:Mine")
    install(tmp_path, monkeypatch, "plug-f", "mine = plug_f:Mine")
    with pytest.raises(AlgorithmError, match="plug-e and plug-f"):
        registry.load("mine")


def test_asking_for_names_imports_no_algorithm() -> None:
    code = (
        "import sys; from isthmus.cooperation import registry; registry.names(); "
        "print(*(name for name in sys.modules if name.startswith('isthmus.cooperation.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert loaded == {
        "isthmus.cooperation.registry",
        "isthmus.cooperation.api",
        "isthmus.cooperation.link_rules",
    }
