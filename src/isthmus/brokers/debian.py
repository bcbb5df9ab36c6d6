"""What a broker from a Debian package needs on this machine, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from isthmus.errors import BrokerMissing
from isthmus.processes.children import find_executable

__all__ = ["missing_from_debian"]


def missing_from_debian(
    broker: str, packages: str, *, programs: Iterable[str] = (), files: Iterable[Path | str] = ()
) -> BrokerMissing | None:
    """The first of `programs` and `files` that is not here; `packages` has them all."""
    remedy = f"as root: apt-get install -y --no-install-recommends {packages}"
    for program in programs:
        if find_executable(program) is None:
            return BrokerMissing(broker, f"the program {program}", remedy)
    for file in files:
        if not Path(file).exists():
            return BrokerMissing(broker, f"the file {file}", remedy)
    return None
