"""Imports point inwards, and the node's start stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus
from scripts.packages import imported_by

ROOT = Path(isthmus.__file__).parent
REPOSITORY = Path(__file__).parents[2]
FIGURE = REPOSITORY / "scripts" / "packages.py"

CORE = {"mqtt", "cooperation", "exchange"}
ALLOWED: dict[str, set[str]] = {
    "mqtt": set(),
    "cooperation": {"mqtt"},
    "exchange": {"mqtt", "cooperation"},
    "sim": CORE,
    "processes": set(),
    "brokers": {"mqtt", "processes"},
    "config": {"brokers", "cooperation", "mqtt"},
    "node": {*CORE, "config", "brokers", "processes"},
    "fabric": {"brokers", "config", "node", "processes"},
    "demo": {"brokers", "config", "fabric"},
    "pipeline": {"processes"},
    "bench": {"mqtt", "processes", "brokers", "config", "fabric", "pipeline"},
    "simulate": {*CORE, "config", "pipeline", "sim", "bench"},
    "reproduce": {
        *CORE,
        "brokers",
        "config",
        "fabric",
        "pipeline",
        "processes",
        "bench",
        "sim",
        "simulate",
    },
    "cli": {
        "cooperation",
        "config",
        "node",
        "fabric",
        "demo",
        "pipeline",
        "bench",
        "reproduce",
        "simulate",
    },
}
"""What each package may import; `errors`, `graph`, `logs` and `tables` belong to none."""


def test_every_package_is_listed() -> None:
    assert set(ALLOWED) == {each.parent.name for each in ROOT.glob("*/__init__.py")}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_inwards(package: str) -> None:
    allowed = ALLOWED[package] | {package, "errors", "graph", "tables"}
    if package not in CORE | {"sim"}:
        allowed.add("logs")
    for file in sorted((ROOT / package).rglob("*.py")):
        assert imported_by(file) <= allowed, file


def test_there_is_no_ring_of_packages() -> None:
    left = dict(ALLOWED)
    while left:
        free = {name for name, imports in left.items() if not imports & left.keys()}
        assert free, f"each of {sorted(left)} imports another of them"
        for name in free:
            del left[name]


def test_the_figure_of_the_packages_is_right() -> None:
    checked = subprocess.run(
        [sys.executable, str(FIGURE), "--check"], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


FORBIDDEN = {"asyncio", "socket", "time", "threading", "selectors", "uvloop", "datetime"}


@pytest.mark.parametrize("package", ["cooperation", "exchange", "mqtt"])
def test_no_io_no_clock_no_global_randomness_inside_the_core(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
        for item in ast.walk(ast.parse(file.read_text())):
            if isinstance(item, ast.Import):
                names = {alias.name.split(".")[0] for alias in item.names}
                assert not names & FORBIDDEN, file
            elif isinstance(item, ast.ImportFrom):
                assert (item.module or "").split(".")[0] not in FORBIDDEN, file
            elif isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
                # `random.Random` as a type is fine, `random.random()` is the global generator.
                assert item.value.id != "random" or item.attr == "Random", file


def test_starting_a_node_imports_nothing_heavy() -> None:
    code = (
        "import sys; import isthmus.cli.main, isthmus.node.runtime; "
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {"amqtt", "pyspark", "numpy", "prometheus_client", "h11", "websockets", "paho"}
    assert not heavy & set(loaded)
