"""The folder of what waits for destinations that are set apart."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
