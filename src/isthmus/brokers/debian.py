"""What a broker from a Debian package needs on this machine, and how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import BrokerMissing
from isthmus.processes.children import find_executable

__all__ = ["DebianPackages"]


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """`packages` have all of `programs` and `files`."""

    broker: str
    packages: str
    programs: Sequence[str]
    files: Sequence[Path] = ()

    def missing(self) -> BrokerMissing | None:
        """The first of its programs and files that is not here."""
        remedy = f"as root: apt-get install -y --no-install-recommends {self.packages}"
        for program in self.programs:
            if find_executable(program) is None:
                return BrokerMissing(self.broker, f"the program {program}", remedy)
        for file in self.files:
            if not file.exists():
                return BrokerMissing(self.broker, f"the file {file}", remedy)
        return None
