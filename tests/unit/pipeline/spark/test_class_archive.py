"""Archives of classes in the cache: found, replaced and dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.pipeline.spark.class_archive import NewArchive, drop_if_unused, find_archive, reading
from isthmus.pipeline.spark.java import Java


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path))
    return tmp_path / "java"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """One with an archive of its own classes, so that no base need be made."""
    own = tmp_path / "jdk" / "lib" / "server" / "classes.jsa"
    own.parent.mkdir(parents=True)
    own.touch()
    return Java(tmp_path / "jdk" / "bin" / "java", "17.0.1", "PATH")


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").write_bytes(b"12")
    return tmp_path / "spark"


def make(java: Java, spark: Path, content: bytes, *, keep: bool = True) -> None:
    """What a session does, with `content` as the JVM's work."""
    new = NewArchive(java, spark)
    written = new.options[0].partition("=")[2]
    Path(written).write_bytes(content)
    new.finish(keep=keep)


def test_a_kept_archive_is_found_and_a_later_one_takes_its_place(
    cache: Path, java: Java, spark: Path
) -> None:
    assert find_archive(java, spark) is None
    make(java, spark, b"one")
    make(java, spark, b"another")
    archive = find_archive(java, spark)
    assert archive is not None
    assert archive.read_bytes() == b"another"
    assert list(cache.iterdir()) == [archive]
    assert reading(archive)[0] == f"-XX:SharedArchiveFile={archive}"


def test_one_of_a_session_that_failed_is_not_kept(cache: Path, java: Java, spark: Path) -> None:
    make(java, spark, b"one", keep=False)
    assert list(cache.iterdir()) == []
    assert reading(find_archive(java, spark)) == ()


def test_a_jvm_that_wrote_none_leaves_none(cache: Path, java: Java, spark: Path) -> None:
    NewArchive(java, spark).finish(keep=True)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_another_java_and_another_spark_have_others(java: Java, spark: Path) -> None:
    make(java, spark, b"one")
    assert find_archive(Java(java.executable, "17.0.2", "PATH"), spark) is None
    (spark / "jars" / "added.jar").write_bytes(b"")
    assert find_archive(java, spark) is None


@pytest.mark.usefixtures("cache")
def test_a_shortened_one_is_dropped(java: Java, spark: Path) -> None:
    make(java, spark, b"one")
    archive = find_archive(java, spark)
    assert archive is not None
    archive.write_bytes(b"on")
    assert find_archive(java, spark) is None
    assert not archive.exists()


@pytest.mark.usefixtures("cache")
def test_one_that_the_jvm_does_not_map_is_dropped(java: Java, spark: Path) -> None:
    make(java, spark, b"one")
    archive = find_archive(java, spark)
    assert archive is not None
    drop_if_unused(archive, java, 2**22 + 1)  # no such process: nothing is known
    assert archive.exists()
    drop_if_unused(archive, java, os.getpid())
    assert not archive.exists()


def test_what_killed_sessions_left_is_cleared_after_a_while(
    cache: Path, java: Java, spark: Path
) -> None:
    abandoned, recent = NewArchive(java, spark), NewArchive(java, spark)
    folders = [Path(new.options[0].partition("=")[2]).parent for new in (abandoned, recent)]
    (folders[0] / "classes.jsa").write_bytes(b"half")
    os.utime(folders[0], (0, 0))
    make(java, spark, b"one")
    assert [folder.exists() for folder in folders] == [False, True]
    assert len(list(cache.iterdir())) == 2
