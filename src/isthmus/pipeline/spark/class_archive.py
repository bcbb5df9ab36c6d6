"""Spark's classes as a file that Java maps instead of loading them: half the start-up time.

Java calls it a dynamic AppCDS archive.  It belongs to one Java and one Spark, takes about 170 MB,
and is kept in the cache beside the launchers (:mod:`isthmus.pipeline.spark.java`).  The first quick
session on this machine that finds none has its JVM write one when it ends, which takes some ten
seconds, once.

Invariants: an archive appears whole or not at all, so any number of processes may make one at the
same time; the last one stays.  One that was damaged later does no harm: :func:`find_archive` drops
a shortened one, on which Java 17 would crash; Java verifies the checksums of what it maps and goes
on without an archive that is broken or not its own, without a word; :func:`drop_if_unused` removes
that one, so that the next session makes another.  Nothing but time depends on an archive.
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

from isthmus.pipeline.spark.java import Java, cache_folder

__all__ = ["SHORT_LIVED", "NewArchive", "drop_if_unused", "find_archive", "reading"]

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a JVM that lives for seconds: the quick compiler only, and no threads for the collector."""

_MAKING = ".making-"
_QUIET = "-Xlog:cds*=off"
_DUMP_TIMEOUT_S = 60.0
_STALE_S = 3600.0


def _name(java: Java, spark_home: Path) -> str:
    """What the names of archives for this Java and this Spark begin with; their size follows."""
    # A jar of another size is another jar; Spark's version alone would miss an added one.
    jars = sorted((jar.name, jar.stat().st_size) for jar in (spark_home / "jars").glob("*.jar"))
    key = hashlib.sha256(repr((java.key, str(spark_home), jars)).encode()).hexdigest()[:12]
    return f"classes-{key}-"


def find_archive(java: Java, spark_home: Path) -> Path | None:
    """The archive for this Java and this Spark, if there is one."""
    for archive in cache_folder().glob(f"{_name(java, spark_home)}*.jsa"):
        try:
            if archive.stem.rpartition("-")[2] == str(archive.stat().st_size):
                return archive
            archive.unlink()
        except FileNotFoundError:  # another process has just put a new one in its place
            continue
    return None


def reading(archive: Path | None) -> tuple[str, ...]:
    """The options with which a JVM uses the archive; none without one."""
    if archive is None:
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", _QUIET)


def drop_if_unused(archive: Path, java: Java, pid: int) -> None:
    """Remove the archive and its base if the JVM `pid`, which was told to use it, did not."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # not Linux, or the JVM is gone: nothing is known
        return
    if str(archive) not in maps:
        archive.unlink(missing_ok=True)
        _base(java).unlink(missing_ok=True)


def _base(java: Java) -> Path:
    return cache_folder() / f"base-{java.key}.jsa"


class NewArchive:
    """One that a JVM is told to write when it ends."""

    def __init__(self, java: Java, spark_home: Path) -> None:
        self._name = _name(java, spark_home)
        self._base: Path | None = None
        cache_folder().mkdir(parents=True, exist_ok=True)
        _clear_stale()
        # A folder of its own: Java wants to create the file itself.
        self._folder = Path(tempfile.mkdtemp(prefix=_MAKING, dir=cache_folder()))
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
            for older in cache_folder().glob(f"{self._name}*.jsa"):
                older.unlink(missing_ok=True)
            size = self._partial.stat().st_size
            os.replace(self._partial, cache_folder() / f"{self._name}{size}.jsa")
        shutil.rmtree(self._folder)

    def _dump_base(self, java: Java) -> Path:
        """Java's own classes, which an archive stands on and a stripped JRE comes without.

        The archive remembers the path of its base, so that one stays under its name.
        """
        base = _base(java)
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


def _clear_stale() -> None:
    """What killed processes left behind."""
    for folder in cache_folder().glob(f"{_MAKING}*"):
        try:
            if time.time() - folder.stat().st_mtime > _STALE_S:
                shutil.rmtree(folder)
        except FileNotFoundError:  # another process was faster
            continue
