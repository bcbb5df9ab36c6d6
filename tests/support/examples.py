"""The packages of `examples/`, and algorithms of tests, as if they were installed."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from isthmus.cooperation.api import CooperationAlgorithm
from isthmus.cooperation.registry import GROUP

__all__ = ["EXAMPLES", "unpack", "unpack_algorithm"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def unpack(name: str, target: Path) -> None:
    """What installing an example's wheel leaves behind, without the network it takes to build."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    package = name.replace("-", "_")
    source = EXAMPLES / name / "src" / package
    shutil.copytree(source, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    _write_info(target, project["name"], project["version"], project["entry-points"])


def unpack_algorithm(algorithm: type[CooperationAlgorithm], target: Path) -> None:
    """The module of one algorithm as a package of its own, for nodes that are processes."""
    source = sys.modules[algorithm.__module__].__file__
    assert source is not None
    package = f"isthmus_{algorithm.name}"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target / f"{package}.py")
    entry = {algorithm.name: f"{package}:{algorithm.__name__}"}
    _write_info(target, package, "1", {GROUP: entry})


def _write_info(
    target: Path, name: str, version: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    info = target / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
