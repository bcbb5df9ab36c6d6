"""What an algorithm keeps over restarts, under names of its own (`Port.save_state`)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from isthmus.exchange import kept_records
from isthmus.exchange.host import Host

__all__ = ["AlgorithmState"]


_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class AlgorithmState:
    """Records by name, in files of the form of `isthmus.exchange.kept_records`.

    Neither part of a file's name has two hyphens in a row, so that no two algorithms share one.
    """

    def __init__(self, host: Host, algorithm: str) -> None:
        self._host = host
        self._prefix = f"algorithm-{re.sub('[^a-z0-9]+', '-', algorithm.lower())}--"
        self._salts: dict[str, int] = {}
        """Of the files that stand."""

    def name_of(self, file: str) -> str | None:
        """The algorithm's own name of a file; None if it is somebody else's."""
        return file.removeprefix(self._prefix) if file.startswith(self._prefix) else None

    def _file(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be the name of a state: small letters, digits, hyphens between"
            )
        return self._prefix + name

    def load(self, name: str, version: int) -> list[bytes]:
        state = self._host.load_state(self._file(name), version)
        kept = kept_records.read(state or b"")
        if kept.header is not None:
            self._salts[name] = kept.header.salt
        return kept.records

    def save(self, name: str, records: Iterable[bytes], version: int) -> None:
        salt = int.from_bytes(self._host.token_bytes(4))
        bodies = (kept_records.record(record, salt) for record in records)
        file = self._file(name)
        header = kept_records.header(file, version, salt)
        self._host.save_state(file, b"".join((header, *bodies)))
        self._salts[name] = salt

    def append(self, name: str, records: Iterable[bytes]) -> None:
        if name not in self._salts:
            raise ValueError(f"nothing was saved under {name!r} that could be appended to")
        bodies = (kept_records.record(record, self._salts[name]) for record in records)
        self._host.append_state(self._file(name), b"".join(bodies))
