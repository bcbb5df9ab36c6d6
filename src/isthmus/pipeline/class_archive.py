"""Spark's classes as a file that Java maps instead of loading them: half the start-up time.

Java calls it a dynamic AppCDS archive.  It belongs to one Java and one Spark, takes about 160 MB,
and is kept in the cache beside the launchers (:mod:`isthmus.pipeline.java`).  The first quick
session that finds none has its JVM write one when it ends, which takes about ten seconds once;
`python -m isthmus.pipeline.session --time` does it too.

Invariants: an archive appears whole or not at all, so any number of processes may make one at the
same time; the last one stays.  Java verifies the checksums of what it maps and without a word goes
on without an archive that is broken or not its own; :func:`drop_if_unused` then removes that file,
so that the next session makes a good one.  Nothing but time depends on an archive.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from isthmus.pipeline.java import Java, cache_folder

__all__ = ["SHORT_LIVED", "NewArchive", "archive_path", "drop_if_unused", "reading"]

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a JVM that lives for seconds: the quick compiler only, and no threads for the collector."""

_QUIET = "-Xlog:cds*=off"
_DUMP_TIMEOUT_S = 60.0
_STALE_S = 3600.0


def archive_path(java: Java, spark_home: Path) -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    # A jar of another size is another jar: Spark's version alone would miss an added one.
    jars = sorted((jar.name, jar.stat().st_size) for jar in (spark_home / "jars").glob("*.jar"))
    key = hashlib.sha256(repr((java.key, str(spark_home), jars)).encode()).hexdigest()[:12]
    return cache_folder() / f"classes-{key}.jsa"


def reading(archive: Path) -> tuple[str, ...]:
    """The options with which a JVM uses the archive, none if it is not there."""
    if not archive.exists():
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", _QUIET)


def drop_if_unused(archive: Path, pid: int) -> bool:
    """Remove the archive if the JVM `pid`, told to use it, did not; whether it was removed."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # not Linux, or the JVM is gone: nothing is known
        return False
    if str(archive) in maps:
        return False
    archive.unlink(missing_ok=True)
    return True


class NewArchive:
    """One that a JVM is told to write when it ends."""

    def __init__(self, java: Java, archive: Path) -> None:
        self.archive = archive
        self._base: Path | None = None
        archive.parent.mkdir(parents=True, exist_ok=True)
        self._clear_stale()
        # A folder of its own: Java wants to create the file itself.
        self._folder = Path(tempfile.mkdtemp(prefix=".making-", dir=archive.parent))
        self._partial = self._folder / "classes.jsa"
        if not (java.home / "lib" / "server" / "classes.jsa").exists():
            self._base = self._dump_base(java)

    @property
    def options(self) -> tuple[str, ...]:
        """What the JVM needs to be told."""
        base = () if self._base is None else (f"-XX:SharedArchiveFile={self._base}",)
        return (f"-XX:ArchiveClassesAtExit={self._partial}", *base, _QUIET)

    def finish(self, *, keep: bool) -> None:
        """After the JVM's end: put what it wrote in its place, or forget about it."""
        if keep and self._partial.exists():
            os.replace(self._partial, self.archive)
        shutil.rmtree(self._folder)

    def _dump_base(self, java: Java) -> Path:
        """Java's own classes, which an archive stands on and a stripped JRE comes without.

        The archive remembers the path of its base, so that one stays under its name.
        """
        base = cache_folder() / f"base-{java.key}.jsa"
        if not base.exists():
            partial = self._folder / "base.jsa"
            subprocess.run(
                [java.executable, "-Xshare:dump", *SHORT_LIVED, f"-XX:SharedArchiveFile={partial}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_DUMP_TIMEOUT_S,
                check=False,
            )
            if partial.exists():
                os.replace(partial, base)
        return base

    def _clear_stale(self) -> None:
        """What killed processes left behind."""
        for folder in self.archive.parent.glob(".making-*"):
            try:
                if time.time() - folder.stat().st_mtime > _STALE_S:
                    shutil.rmtree(folder)
            except FileNotFoundError:  # another process was faster
                continue
