"""Imports point inwards, and the node's start stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus

ROOT = Path(isthmus.__file__).parent

ALLOWED = {
    "mqtt": {"errors", "mqtt"},
    "brokers": {"errors", "brokers"},
    "cooperation": {"errors", "mqtt", "cooperation"},
    "exchange": {"errors", "mqtt", "cooperation", "exchange"},
    "sim": {"errors", "mqtt", "cooperation", "exchange", "sim"},
    "node": {
        "errors",
        "mqtt",
        "cooperation",
        "exchange",
        "node",
        "config",
        "addresses",
        "logs",
        "brokers",  # only for `embedded:`
    },
    "pipeline": {"errors", "brokers", "pipeline"},
    "bench": {
        "errors",
        "mqtt",
        "brokers",
        "addresses",
        "admin_client",
        "config",
        "config_fields",
        "config_mistakes",
        "fabric",
        "fabric_brokers",
        "logs",
        "pipeline",
        "bench",
    },
    "reproduce": {"errors", "brokers", "fabric", "pipeline", "bench", "reproduce"},
}
"""What each package may import of ours."""


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for item in ast.walk(ast.parse(file.read_text())):
        if isinstance(item, ast.Import):
            names |= {alias.name for alias in item.names}
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, f"{file}: relative import"
            names |= {f"{item.module}.{alias.name}" for alias in item.names}
    return {name.split(".")[1] for name in names if name.startswith("isthmus.")} - {"__version__"}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_inwards(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
        assert imported(file) <= ALLOWED[package], file


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
