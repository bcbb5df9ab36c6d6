"""What ``isthmus simulate assignment`` is asked: options, a TOML file, or a CSV file of topics.

    [assignment]                        topic,subscribers
    brokers = 10000                     sensors/a,1200
    communication_ms = 1.0              sensors/b,90000
    processing_ms = 0.01

    [topics]
    "sensors/a" = 1200
    "sensors/b" = 90000

Mistakes are reported all at once, each with its place and what would be right.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from isthmus.config.fields import Section
from isthmus.config.files import load_file
from isthmus.config.mistakes import Loc, describe, dotted, key_of, raw_table
from isthmus.errors import ConfigError, ConfigMistake, RemoteProtocolError
from isthmus.mqtt.filters.topics import check_topic_name
from isthmus.simulate.assignment import Place

__all__ = ["Question", "asked"]

MAX_TOPICS: Final = 1_000_000
MOST: Final = 10**15
_COMMAND: Final = "isthmus simulate assignment"
_HEADER: Final = ["topic", "subscribers"]


class Setting(Section):
    """``[assignment]``: Table 4.1."""

    brokers: int | None = Field(default=None, ge=1, le=MOST, examples=[10_000])
    subscribers: int | None = Field(default=None, ge=1, le=MOST, examples=[20_000_000])
    """Of all topics; the sum of `topics` if not given."""
    communication_ms: float = Field(default=1.0, gt=0, le=1e9, allow_inf_nan=False, strict=False)
    processing_ms: float = Field(default=0.01, gt=0, le=1e9, allow_inf_nan=False, strict=False)


class Question(Section):
    """The whole file."""

    assignment: Setting = Field(default_factory=Setting)
    topics: dict[str, int] = Field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Of a question that was checked."""
        assert self.assignment.brokers is not None
        return Place(
            self.assignment.brokers,
            self.assignment.subscribers or sum(self.topics.values()),
            self.assignment.communication_ms,
            self.assignment.processing_ms,
        )


def asked(
    file: Path | None, settings: Mapping[str, int | float | None], topics: Sequence[str]
) -> Question:
    """A file's question, with options that count before it; raises `ConfigError`."""
    given = {key: value for key, value in settings.items() if value is not None}
    base = Question()
    if file is not None:
        base = _from_csv(file) if file.suffix == ".csv" else load_file(file, Question, _impossible)
    data = base.model_dump()
    data["assignment"] |= given
    mistakes = list(_take_topics(data["topics"], topics))
    found: Question | None = None
    try:
        found = Question.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            loc = key_of(data, item["loc"])
            mistakes.append(_mistake(loc, describe(Question, loc, item), given))
    if not mistakes:
        mistakes += [_mistake(loc, problem, given) for loc, problem in _incomplete(data)]
        mistakes += [_mistake(loc, problem, given) for loc, problem in _impossible(data)]
    if found is None or mistakes:
        raise ConfigError(mistakes)
    return found


def _mistake(loc: Loc, problem: str, given: Mapping[str, object]) -> ConfigMistake:
    key = str(loc[-1])
    option = "--" + key.replace("_", "-")
    shown = option if loc[0] == "assignment" and (key in given or key == "brokers") else dotted(loc)
    return ConfigMistake(_COMMAND, "--topic" if shown == "topics" else shown, problem)


def _take_topics(into: dict[str, int], written: Sequence[str]) -> Iterator[ConfigMistake]:
    for text in written:
        name, _, size = text.rpartition("=")
        if not name or not (size.isascii() and size.isdigit()) or len(size) > 16:
            yield ConfigMistake(
                _COMMAND, "--topic", f"{text[:80]!r}: write NAME=SUBSCRIBERS, like sensors/a=1200"
            )
        else:
            into[name] = int(size)


def _incomplete(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    if data["assignment"]["brokers"] is None:
        yield ("assignment", "brokers"), "is missing; say how many brokers there are"
    if not data["topics"]:
        yield ("topics",), "is missing; give at least one topic, or a file of them"


def _impossible(data: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Topics that cannot be, alone or all together."""
    topics = raw_table(data, "topics")
    if len(topics) > MAX_TOPICS:
        yield ("topics",), f"{len(topics):,} topics; {MAX_TOPICS:,} are possible"
        return
    for name, size in topics.items():
        if problem := _wrong(name, size):
            yield ("topics", name), problem
    total = raw_table(data, "assignment").get("subscribers")
    sizes = [size for size in topics.values() if isinstance(size, int)]
    if isinstance(total, int) and sum(sizes) > total:
        yield (
            ("assignment", "subscribers"),
            f"{total:,} are fewer than the {sum(sizes):,} of all topics; leave it out, or raise it",
        )


def _wrong(name: str, size: object) -> str:
    try:
        check_topic_name(name)
    except RemoteProtocolError as error:
        return str(error)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
        return f"must be a whole number of subscribers from 1 to {MOST:,}, not {size!r}"
    return ""


def _from_csv(path: Path) -> Question:
    """One line for each topic, after the names of the columns."""
    mistakes: list[ConfigMistake] = []
    topics: dict[str, int] = {}

    def wrong(problem: str, line: int | None = None) -> None:
        mistakes.append(ConfigMistake(str(path), "", problem, line))

    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            for row in rows:
                line = rows.line_num
                if line == 1:
                    if row != _HEADER:
                        wrong(f"must begin with the line {','.join(_HEADER)}", line)
                        break
                    continue
                if not row:
                    continue
                size = row[-1].strip()
                number: object = int(size) if size.isdecimal() and len(size) < 17 else size
                if len(row) != len(_HEADER):
                    wrong(f"must be a topic and its subscribers, not {len(row)} columns", line)
                elif row[0] in topics:
                    wrong(f"{row[0]!r} has a line already; each topic has one", line)
                elif problem := _wrong(row[0], number):
                    wrong(f"{row[0]!r}: {problem}", line)
                elif isinstance(number, int):
                    topics[row[0]] = number
                if len(topics) > MAX_TOPICS or len(mistakes) >= 20:
                    wrong(f"has too many topics ({MAX_TOPICS:,} are possible) or mistakes", line)
                    break
    except OSError as error:
        raise ConfigError(
            [ConfigMistake(str(path), "", f"cannot be read: {error.strerror or error}")]
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError([ConfigMistake(str(path), "", f"is no CSV in UTF-8: {error}")]) from None
    if mistakes:
        raise ConfigError(mistakes)
    return Question(topics=topics)
