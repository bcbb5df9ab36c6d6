"""The folder of a reproduction: it holds experiments of one kind, so that they can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.errors import ReproduceError

__all__ = ["check_kind"]

NAME: Final = "kind.json"


def check_kind(out: Path, kind: Mapping[str, Any]) -> None:
    """Make `out` a folder of this kind; raises `ReproduceError` if it is one of another."""
    path = out / NAME
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kind) + "\n", encoding="utf-8")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if found != kind:
        raise ReproduceError(
            f"{out} holds experiments of another kind: {path.name} says {found}, asked "
            f"for is {dict(kind)}; choose another folder with --out"
        )
