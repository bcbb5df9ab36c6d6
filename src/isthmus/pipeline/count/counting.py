"""A file of a run goes in, its partial counts come out; for Spark's tasks and without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from isthmus.errors import LogError
from isthmus.pipeline.count.hops import HopCount
from isthmus.pipeline.count.kernel import BATCH_ROWS, DeliveryCount
from isthmus.pipeline.count.partials import Partial
from isthmus.pipeline.count.published import Numbers, PublishCount
from isthmus.pipeline.count.samples import sample_partials
from isthmus.pipeline.log.reading import LoggedFile, Run, batches, open_file
from isthmus.pipeline.log.schema import TABLES, Table, file_path

__all__ = ["NEED_PUBLISHED", "count_file", "survey"]

NEED_PUBLISHED: Final[tuple[Table, ...]] = ("deliveries", "hops")
"""Tables that are counted after `publishes`: their rows count only if the message was published."""


def survey(run: Run) -> Iterator[Partial]:
    """What is known of a run before any file is opened: its files, and how many rows it has."""
    for file in run.files:
        yield Partial(run.run, "file", f"{file.table}/{file.writer}", amount=file.rows)
    for table in TABLES:
        if table != "runs":
            rows = sum(file.rows for file in run.files_of(table))
            yield Partial(run.run, "read", table, amount=rows)


def count_file(
    log: Path, run: Run, file: LoggedFile, published: Mapping[int, Numbers]
) -> Iterator[Partial]:
    """All that `file` adds to the indexes; `published` is for :data:`NEED_PUBLISHED` only."""
    path = file_path(log, file.table, run.run, file.writer)
    with open_file(log, run.run, file) as opened:
        read = batches(path, opened, file.table, BATCH_ROWS)
        if file.table in ("links", "resources"):
            rows = pa.Table.from_batches(read, schema=TABLES[file.table])
            yield from sample_partials(run, file.table, file.writer, rows)
            return
        if file.table == "tallies":  # counts already; whether it can be read is looked at
            for _ in read:
                pass
            return
        count: PublishCount | DeliveryCount | HopCount
        if file.table == "publishes":
            count = PublishCount(run, file.writer, path)
        elif file.table == "deliveries":
            count = DeliveryCount(run, file.writer, published, path)
        elif file.table == "hops":
            count = HopCount(run, published, path)
        else:
            raise LogError(path, "is of a table that has no counts")
        _keep_freed_memory()
        for batch in read:
            count.add(batch)
    yield from count.partials()


def _keep_freed_memory() -> None:
    """Let the C library keep freed arrays instead of handing each back to the kernel.

    glibc asks the kernel for blocks over 128 KiB, which then come as unmapped pages; freeing one of
    31 MiB makes it serve smaller ones from its own heap from then on.  It halves the CPU time.
    """
    np.empty(31 << 20, np.uint8)
