"""The packages of `examples/`, as if they were installed."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

__all__ = ["EXAMPLES", "unpack"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def unpack(name: str, target: Path) -> None:
    """What installing an example's wheel leaves behind, without the network it takes to build."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    package = name.replace("-", "_")
    source = EXAMPLES / name / "src" / package
    shutil.copytree(source, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    info = target / f"{package}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
