"""Messages that the broker closed the node's session on: kept for people to look at.

The last `MAX_LISTED` are in the status, without their payloads.  With a `state_dir` each is a line
of JSON in `set-aside.jsonl`, with the payload up to `MAX_PAYLOAD_BYTES`; a file of more than
`MAX_FILE_BYTES` becomes `set-aside.old.jsonl` in place of the one before.  File and log have the
first `MAX_PER_S` of a second; the log says how many were left out.
"""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from isthmus.exchange.traffic.message import Message
from isthmus.logs import get_logger

__all__ = ["SetAside"]

MAX_LISTED: Final = 100
MAX_PAYLOAD_BYTES: Final = 65_536
MAX_FILE_BYTES: Final = 8 << 20
MAX_PER_S: Final = 10

log = get_logger(__name__)


class SetAside:
    """What one node has set aside."""

    def __init__(self, state_dir: Path | None) -> None:
        self._file = None if state_dir is None else state_dir / "set-aside.jsonl"
        self._listed: deque[dict[str, Any]] = deque(maxlen=MAX_LISTED)
        self._second = 0
        self._logged = self._left_out = 0
        self._write_problem = ""

    def keep(self, message: Message, neighbor: str, cause: str) -> None:
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "neighbor": neighbor,
            "topic": message.topic.decode(errors="backslashreplace"),
            "origin": message.origin,
            "qos": message.qos,
            "retain": message.retain,
            "payload_bytes": len(message.payload),
            "cause": cause,
        }
        self._listed.append(record)
        if self._say(record) and self._file is not None:
            kept = base64.b64encode(message.payload[:MAX_PAYLOAD_BYTES]).decode()
            self._write(self._file, json.dumps({**record, "payload_base64": kept}) + "\n")

    def listed(self) -> list[dict[str, Any]]:
        return list(self._listed)

    def _say(self, record: dict[str, Any]) -> bool:
        """Log it, unless there were many in this second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= MAX_PER_S:
            self._left_out += 1
            return False
        self._logged += 1
        fields = {name: record[name] for name in ("neighbor", "topic", "payload_bytes", "cause")}
        if self._left_out:
            fields["not_logged_before"], self._left_out = self._left_out, 0
        log.warning("message set aside: the broker does not take it", **fields)
        return True

    def _write(self, path: Path, line: str) -> None:
        try:
            if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
                path.replace(path.with_suffix(".old.jsonl"))
            with path.open("a") as file:
                file.write(line)
        except OSError as error:
            if str(error) != self._write_problem:
                log.error("set-aside message cannot be written", file=str(path), cause=str(error))
            self._write_problem = str(error)
        else:
            self._write_problem = ""
