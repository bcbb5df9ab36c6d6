"""The files of a run: rows in order, blocks of bounded number, errors that come out."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from isthmus.bench.load import recording
from isthmus.bench.load.recording import BLOCKS, Recorder
from isthmus.errors import RunRefused
from isthmus.pipeline.log.schema import DELIVERIES, FOOTER, LINKS, PUBLISHES, file_path

ROWS = 1000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BLOCK_ROWS", ROWS)


def publishes(first: int, count: int) -> dict[str, Any]:
    messages = np.arange(first, first + count)
    return {
        "publisher": (messages % 7).astype(np.uint32),
        "message": messages.astype(np.uint32),
        "topic": (messages % 3).astype(np.uint32),
        "t_send_ns": messages * 1000,
    }


def test_rows_come_back_in_order_whatever_their_portions(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "r1", "w0", ["publishes"])
    portions = (1, 999, 0, 1, 2500, 3, 1000, 496)
    first = 0
    for count in portions:
        recorder.add("publishes", publishes(first, count))
        first += count
    assert recorder.rows("publishes") == sum(portions)
    assert recorder.close() == {"publishes": 5000}

    file = pq.ParquetFile(file_path(tmp_path, "publishes", "r1", "w0"))
    assert file.schema_arrow.equals(PUBLISHES)
    table = file.read()
    expected = publishes(0, 5000)
    for name in PUBLISHES.names:
        assert table[name].to_numpy().tolist() == expected[name].tolist()
    assert {file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)} == {ROWS}


def test_the_footer_says_what_the_file_is(tmp_path: Path) -> None:
    Recorder(tmp_path, "r1", "w3", ["deliveries"]).close()
    file = pq.ParquetFile(file_path(tmp_path, "deliveries", "r1", "w3"))
    assert file.metadata.num_rows == 0
    assert file.schema_arrow.equals(DELIVERIES)
    footer = {
        key.decode(): value.decode()
        for key, value in file.schema_arrow.metadata.items()
        if key.decode().startswith(FOOTER)
    }
    assert footer == {
        "isthmus.table": "deliveries",
        "isthmus.run": "r1",
        "isthmus.writer": "w3",
        "isthmus.version": "3",
    }


def test_what_comes_seldom_is_a_row_group_with_nulls_where_nothing_is_known(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path, "r1", "w0", ["links"])
    row: dict[str, Any] = dict.fromkeys(LINKS.names)
    row |= {"t_ns": 5, "kind": "client", "node": "n1", "peer": "grün", "bytes_in": 7}
    other = row | {"peer": "", "bytes_in": None, "busy_us": 0}
    columns = {name: [row[name], other[name]] for name in LINKS.names}
    recorder.add_rows("links", columns)
    recorder.add_rows("links", {name: [row[name]] for name in LINKS.names})
    assert recorder.close() == {"links": 3}
    table = pq.read_table(file_path(tmp_path, "links", "r1", "w0"), partitioning=None)
    assert table.schema.equals(LINKS)
    assert table.to_pylist() == [row, other, row]


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    path = file_path(tmp_path, "deliveries", "r1", "w0")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"somebody's")
    with pytest.raises(RunRefused, match=r"r1.*w0\.parquet is there already"):
        Recorder(tmp_path, "r1", "w0", ["publishes", "deliveries"])
    assert path.read_bytes() == b"somebody's"


def test_when_the_thread_has_every_block_the_process_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, blocks = threading.Event(), []
    write = recording._BlockFile.write_block

    def slowly(self: recording._BlockFile, block: recording._Block) -> None:
        blocks.append(block)
        assert go_on.wait(30)
        write(self, block)

    monkeypatch.setattr(recording._BlockFile, "write_block", slowly)
    recorder = Recorder(tmp_path, "r1", "w0", ["publishes"])
    for number in range(BLOCKS - 1):  # one is always being filled
        recorder.add("publishes", publishes(number * ROWS, ROWS))
    assert recorder.stalled_ns == 0
    adding = threading.Thread(
        target=recorder.add, args=("publishes", publishes((BLOCKS - 1) * ROWS, ROWS + 1))
    )
    adding.start()
    adding.join(0.05)
    assert adding.is_alive()
    go_on.set()
    adding.join(30)
    assert recorder.stalled_ns > 0
    assert recorder.close() == {"publishes": BLOCKS * ROWS + 1}
    assert len({id(block) for block in blocks}) <= BLOCKS
    table = pq.read_table(file_path(tmp_path, "publishes", "r1", "w0"), partitioning=None)
    assert table["message"].to_numpy().tolist() == list(range(BLOCKS * ROWS + 1))


def test_an_error_of_the_thread_comes_out_and_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: recording._BlockFile, block: recording._Block) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording._BlockFile, "write_block", full)
    recorder = Recorder(tmp_path, "r1", "w0", ["publishes"])
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012 - whichever comes first
        for number in range(3 * BLOCKS):
            recorder.add("publishes", publishes(number * ROWS, ROWS))
        recorder.close()
    with pytest.raises(OSError, match="No space left"):
        recorder.close()


WITHOUT_PANDAS = """
import sys
from pathlib import Path

import numpy as np

import isthmus.bench.load.worker
from isthmus.bench.load.recording import Recorder
from isthmus.pipeline.log.schema import LINKS

recorder = Recorder(Path(sys.argv[1]), "r", "w", ["publishes", "links"])
ones = np.ones(9, np.uint32)
columns = {"publisher": ones, "message": ones, "topic": ones, "t_send_ns": ones}
recorder.add("publishes", columns)
texts = ("kind", "node", "peer")
recorder.add_rows("links", {name: ["x" if name in texts else 1] for name in LINKS.names})
recorder.close()
assert "pandas" not in sys.modules
"""


def test_recording_does_not_load_pandas(tmp_path: Path) -> None:
    """Which takes seconds and would do so in the middle of the first run."""
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)], check=True)
