"""Messages set aside: the list, the file, and the bounds of both."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from isthmus.exchange.traffic.message import Message
from isthmus.node import set_aside
from isthmus.node.set_aside import SetAside


def test_list_and_file_have_what_a_person_needs(tmp_path: Path) -> None:
    aside = SetAside(tmp_path)
    payload = bytes(range(256)) * 1000
    aside.keep(Message(b"t/\xff", payload, qos=1, origin="a"), "b", "three falls")
    (record,) = aside.listed()
    assert record["neighbor"] == "b"
    assert record["topic"] == "t/\\xff"
    assert record["payload_bytes"] == len(payload)
    (line,) = (tmp_path / "set-aside.jsonl").read_text().splitlines()
    kept = base64.b64decode(json.loads(line)["payload_base64"])
    assert kept == payload[: set_aside.MAX_PAYLOAD_BYTES]


def test_list_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_aside, "MAX_FILE_BYTES", 10_000)
    monkeypatch.setattr(set_aside, "MAX_PER_S", 1_000_000)
    aside = SetAside(tmp_path)
    for number in range(500):
        aside.keep(Message(b"t", b"%d" % number, qos=1), "b", "x")
    assert len(aside.listed()) == set_aside.MAX_LISTED
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["set-aside.jsonl", "set-aside.old.jsonl"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 10_000 + 1_000


def test_many_at_once_fill_neither_log_nor_file(tmp_path: Path) -> None:
    aside = SetAside(tmp_path)
    for _ in range(1_000):
        aside.keep(Message(b"t", b"x", qos=1), "b", "x")
    lines = (tmp_path / "set-aside.jsonl").read_text().splitlines()
    assert len(lines) < 1_000


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    aside = SetAside(tmp_path / "missing")
    aside.keep(Message(b"t", b"x", qos=1), "b", "x")
    assert len(aside.listed()) == 1
