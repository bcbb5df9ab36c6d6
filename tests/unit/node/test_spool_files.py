"""The folder of what waits for destinations that are set apart."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from isthmus.node.spool_files import SpoolFiles


def test_what_is_no_file_hides_no_files(tmp_path: Path) -> None:
    (tmp_path / "link-b.0000000001").write_bytes(b"12345")
    (tmp_path / "link-c.0000000001").mkdir()
    (tmp_path / "link-d.0000000001").symlink_to(tmp_path / "nowhere")
    loop = asyncio.new_event_loop()
    files = SpoolFiles(tmp_path, loop)
    try:
        assert files.sizes() == {"link-b.0000000001": 5}
        assert files.load("link-b.0000000001", 3) == b"123"
        assert files.load("link-c.0000000001", 3) == b""
    finally:
        files.close()
        loop.close()


def test_what_will_never_be_read_is_nothing_and_a_part_of_a_write_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "link-b.0000000001"
    (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "link-c.0000000001").mkdir()
    loop = asyncio.new_event_loop()
    files = SpoolFiles(tmp_path, loop)
    write, room, told = os.pwrite, [3, 0], list[object]()

    def pwrite(handle: int, data: memoryview, offset: int) -> int:
        if not (size := room.pop(0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:size], offset)

    try:
        files.read("link-d.0000000001", 0, 3, told.append)
        files.read("link-c.0000000001", 0, 3, told.append)
        files.read(name, 2, 30, told.append)
        monkeypatch.setattr(os, "pwrite", pwrite)
        files.write(name, 5, b"6789", told.append)
        while len(told) < 4:
            loop.run_until_complete(asyncio.sleep(0.01))
    finally:
        files.close()
        loop.close()
    assert told == [b"", None, b"345", "No space left on device"]
    assert (tmp_path / name).read_bytes() == b"12345"
