"""Structured logs on standard error: an event in a few fixed words, and fields beside it.

    log = get_logger(__name__)
    log.info("client connected", client_id="sensor-7", remote="127.0.0.1:50122")

prints, as text or as one JSON object per line,

    2026-02-03T04:05:06.789Z INFO client connected client_id=sensor-7 remote=127.0.0.1:50122
    {"time": "2026-02-03T04:05:06.789Z", "level": "info", "event": "client connected", …}

Built on the standard library's `logging`, so other libraries' records come out in the same form.

Invariants: one record is one line (a traceback of a text record apart), whatever somebody put into
a field: anything but plain printable text is quoted and escaped, so a client id cannot forge a
record.  A field that cannot be rendered never breaks the caller.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import IO, Any, Literal

__all__ = ["Logger", "configure", "get_logger"]

_PLAIN = re.compile(r"[!#-<>-~]+")  # printable ASCII without space, '"' and '='
_FIELDS = "isthmus_fields"


class Logger:
    """A named source of records."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def _emit(
        self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            # '%' in an event stays as it is: without arguments logging does not format.
            self._logger.log(level, event, exc_info=exc_info, extra={_FIELDS: fields})


def get_logger(name: str) -> Logger:
    """The logger of a module; pass ``__name__``."""
    return Logger(name)


def configure(
    level: str = "info",
    format: Literal["text", "json"] = "text",  # the key's name in [log]
    stream: IO[str] | None = None,
) -> None:
    """Send Isthmus' records of `level` and above, and other libraries' warnings, to `stream`.

    May be called again; the last call counts.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, (JsonLines, TextLines))]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("isthmus").setLevel(level.upper())


class TextLines(logging.Formatter):
    """``time LEVEL event key=value …`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {record.levelname} {_one_line(record.getMessage())}"
        for key, value in _fields(record).items():
            line += f" {key}={_value(value)}"
        if not hasattr(record, _FIELDS):  # another library's record: say whose
            line += f" logger={record.name}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object per record, for machines; always a single line of ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        for key, value in _fields(record).items():
            entry[f"field_{key}" if key in entry else key] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=_text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, _FIELDS, None)
    return fields if isinstance(fields, dict) else {}


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - whatever a field's __str__ raises
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _value(value: object) -> str:
    text = _text(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)
