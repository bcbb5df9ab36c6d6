"""The measurements of a limit search, kept as they are made, so that it can go on after anything.

JSON Lines: the first line says what is searched (scenario, labels, options, version), every other
line is one measurement.  Invariants:

* A measurement is on the disk (``fsync``) before the next one begins; none is ever changed.
* A file belongs to one search.  It is refused by name for another scenario, other labels or options
  or another version, and while another process searches with it.
* Only the last line can be torn, by a kill or a full disk.  It is dropped and said so; that one
  measurement is made again.  Damage anywhere else is refused.

Source: ILDM §5.3 (steps 1-5 take dozens of measurements of 80 s each).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from isthmus.bench.limit.search import Found, LimitSearch, SearchOptions, Trial, TrialOutcome
from isthmus.bench.scenario import Scenario
from isthmus.errors import LimitError

__all__ = ["VERSION", "LimitFile", "MeasuredTrial", "Recorded", "find_limit", "read_limit_file"]

WHAT: Final = "isthmus limit search"
VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class MeasuredTrial:
    """One line of the file."""

    trial: Trial
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file says."""

    header: Mapping[str, Any]
    """``what``, ``version``, ``scenario``, ``labels``, ``options``; empty for an empty file."""
    measurements: tuple[MeasuredTrial, ...]
    torn: bytes
    """The beginning of a line that was being written when the process ended."""


class LimitFile:
    """The file of one search, open for adding to it; a context manager."""

    def __init__(
        self,
        path: Path,
        scenario: Scenario,
        labels: Mapping[str, str],
        options: SearchOptions,
    ) -> None:
        self.path = path
        self.options = options
        self.measurements: list[MeasuredTrial] = []
        self.notes: list[str] = []
        """What is worth saying about the file as it was found."""
        self._header: dict[str, Any] = {
            "what": WHAT,
            "version": VERSION,
            "scenario": scenario.model_dump(mode="json"),
            "labels": dict(labels),
            "options": asdict(options),
        }
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", 0)
        except OSError as error:
            raise LimitError(f"{self.path}: cannot be opened: {error.strerror}") from None
        try:
            self._take_over(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()  # and so gives the lock back
            self._file = None

    def append(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Keep a measurement; it is on the disk when this returns."""
        measurement = MeasuredTrial(trial, outcome)
        self._write(asdict(measurement))
        self.measurements.append(measurement)

    def _take_over(self, file: IO[bytes]) -> None:
        """Lock the file, check that it is of this search, and cut what was torn."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LimitError(f"{self.path}: another search is writing to it") from None
        data = file.read()
        recorded = _parse(self.path, data, _line(self._header))
        if recorded.torn:
            file.truncate(len(data) - len(recorded.torn))
            self.notes.append(
                f"{self.path}: the last line was torn ({len(recorded.torn)} bytes) and is dropped; "
                "its measurement is made again"
            )
        file.seek(0, os.SEEK_END)
        if not recorded.header:
            self._write(self._header)
            _sync_folder(self.path.parent)
            return
        wanted = json.loads(_line(self._header))
        if differences := list(_differences(recorded.header, wanted)):
            raise LimitError(
                f"{self.path} is of another search: {'; '.join(differences)}; "
                "choose another folder, or remove the file to begin anew"
            )
        self.measurements = list(recorded.measurements)
        if self.measurements:
            self.notes.append(f"{self.path}: goes on after {len(self.measurements)} measurements")

    def _write(self, content: Mapping[str, Any]) -> None:
        if self._file is None:
            raise LimitError(f"{self.path}: is not open")
        line = memoryview(_line(content))
        while line:
            line = line[self._file.write(line) :]
        os.fsync(self._file.fileno())


def find_limit(
    measure: Callable[[Trial], TrialOutcome], search: LimitSearch, file: LimitFile
) -> Found:
    """Search on from where `file` stops until the limit is found, keeping every measurement."""
    if search.options != file.options:
        raise LimitError(f"{file.path}: is open for {file.options}, not for {search.options}")
    for number, done in enumerate(file.measurements):
        if done.trial != search.next():
            raise LimitError(
                f"{file.path}:{number + 2}: is a measurement of {done.trial}, where the search "
                f"measures {search.next() or 'nothing more'}; the file has been changed"
            )
        search.record(done.trial, done.outcome)
    while (trial := search.next()) is not None:
        outcome = measure(trial)
        file.append(trial, outcome)
        search.record(trial, outcome)
    found = search.limit
    assert found is not None, "a search without a next trial has ended"
    return found


def read_limit_file(path: Path) -> Recorded:
    """What a file says, for a report; raises `LimitError` for one that is not ours or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LimitError(f"{path}: cannot be read: {error.strerror}") from None
    return _parse(path, data)


def _parse(path: Path, data: bytes, would_be: bytes = b"") -> Recorded:
    """Take a file apart; `would_be` is the first line that a torn one can be the beginning of."""
    *lines, rest = data.split(b"\n")
    if not lines:
        if not would_be.startswith(rest):
            raise _not_ours(path)
        return Recorded({}, (), rest)
    header = _header(path, lines.pop(0))
    measurements: list[MeasuredTrial] = []
    for number, line in enumerate(lines, 2):
        try:
            measurements.append(_MEASUREMENT.validate_json(line, strict=True))
        except ValidationError as error:
            if number == len(lines) + 1 and not rest:
                rest = line + b"\n"
                break
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"]))
            problem = f"{key}: {first['msg']}" if key else first["msg"]
            raise LimitError(f"{path}:{number}: is damaged: {problem}") from None
    return Recorded(header, tuple(measurements), rest)


_MEASUREMENT: Final = TypeAdapter(MeasuredTrial)


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        raise _not_ours(path) from None
    if not isinstance(header, dict) or header.get("what") != WHAT:
        raise _not_ours(path)
    if header.get("version") != VERSION:
        raise LimitError(
            f"{path}:1: has version {header.get('version')!r} of the format, this is {VERSION}; "
            "go on with the Isthmus that wrote it, or choose another folder"
        )
    return header


def _not_ours(path: Path) -> LimitError:
    return LimitError(f"{path}: is not a file of a limit search; choose another folder")


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    """So that the file's name survives a power cut as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _differences(had: Any, wanted: Any, key: str = "") -> Iterator[str]:
    """Every key in which the file's first line is not as wanted."""
    if isinstance(had, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys([*had, *wanted]):
            inner = f"{key}.{name}" if key else name
            yield from _differences(had.get(name), wanted.get(name), inner)
    elif isinstance(had, list) and isinstance(wanted, list) and len(had) == len(wanted):
        for index, (one, other) in enumerate(zip(had, wanted, strict=True)):
            yield from _differences(one, other, f"{key}[{index}]")
    elif had != wanted:
        yield f"{key} is {_short(had)} there and {_short(wanted)} here"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
