"""An algorithm knows only its port: nothing that waits, draws or keeps time is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import isthmus.cooperation

FOLDER = Path(isthmus.cooperation.__file__).parent
FORBIDDEN = {"asyncio", "concurrent", "multiprocessing", "os", "select", "selectors", "signal"}
FORBIDDEN |= {"socket", "ssl", "subprocess", "threading", "time", "datetime", "secrets"}


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.stem)
def test_algorithms_know_only_their_port(file: Path) -> None:
    tree = ast.parse(file.read_text())
    names = [
        alias.name
        for item in ast.walk(tree)
        if isinstance(item, ast.Import)
        for alias in item.names
    ]
    names += [item.module or "" for item in ast.walk(tree) if isinstance(item, ast.ImportFrom)]
    assert not {name.partition(".")[0] for name in names} & FORBIDDEN
    ours = {name for name in names if name.startswith("isthmus")}
    allowed = ("cooperation", "mqtt", "errors", "graph", "tables")
    assert {name.split(".")[1] for name in ours} <= {*allowed}
    # `random` is for the type of `Port.random` only: the generator is the port's.
    assert "random" not in names or file.name == "api.py"
