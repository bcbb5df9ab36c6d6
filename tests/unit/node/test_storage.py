"""A node's state_dir: whose it is, what is written in which order, what becomes of faults."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.errors import StateError
from isthmus.exchange import kept_records
from isthmus.logs import TextLines
from isthmus.node import storage as storage_module
from isthmus.node.storage import Storage
from support.waiting import wait_for


@pytest.fixture
def open_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Storage]]:
    monkeypatch.setattr(storage_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(storage_module, "LONGEST_PAUSE_S", 0.02)
    opened: list[Storage] = []

    def make(node_id: str = "a", lost: Callable[[str], None] = lambda name: None) -> Storage:
        storage = Storage(tmp_path / "state", node_id, lost)
        storage.open()
        opened.append(storage)
        return storage

    yield make
    for storage in opened:
        storage.close()


class FullDisk:
    """Lets `os.fsync` fail: a disk that takes nothing, until told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, file: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._fsync(file)


def test_what_is_saved_and_appended_is_there_after_a_restart(
    open_storage: Callable[..., Storage],
) -> None:
    storage = open_storage()
    journal = kept_records.header("retained", 2, 7)
    storage.save("plain", kept_records.write("plain", 1, [b"anything"]))
    storage.save("plain", kept_records.write("plain", 1, [b"the last counts"]))
    storage.save("retained", journal)
    for number in range(20):
        storage.append("retained", kept_records.record(b"%d" % number, 7))
    rewrite = storage.rewrite("wills")
    rewrite.write(kept_records.header("wills", 1, 9))
    rewrite.write(kept_records.record(b"will", 9))
    rewrite.commit()
    storage.close()
    again = open_storage()
    assert kept_records.read(again.load("plain", 1) or b"").records == [b"the last counts"]
    kept = kept_records.read(again.load("retained", 2) or b"")
    assert kept.records == [b"%d" % number for number in range(20)]
    assert kept_records.read(again.load("wills", 1) or b"").records == [b"will"]
    assert again.load("nothing", 1) is None


def test_a_rewrite_that_is_not_committed_changes_nothing(
    open_storage: Callable[..., Storage],
) -> None:
    storage = open_storage()
    storage.save("retained", kept_records.write("retained", 2, [b"before"]))
    storage.rewrite("retained").write(b"half of")
    storage.close()
    assert kept_records.read(open_storage().load("retained", 2) or b"").records == [b"before"]


def test_a_folder_in_use_is_refused_and_says_by_whom(open_storage: Callable[..., Storage]) -> None:
    open_storage("a")
    with pytest.raises(StateError, match=rf"in use by node a, process {os.getpid()}"):
        open_storage("a")


def test_another_nodes_folder_is_refused(open_storage: Callable[..., Storage]) -> None:
    open_storage("a").close()
    with pytest.raises(StateError, match=r"belongs to node 'a', not 'b'.*remove .*owner.state"):
        open_storage("b")
    open_storage("a")


def test_a_file_in_its_place_is_refused(
    tmp_path: Path, open_storage: Callable[..., Storage]
) -> None:
    (tmp_path / "state").write_text("not a folder")
    with pytest.raises(StateError, match="not a folder"):
        open_storage()


@pytest.mark.parametrize("name", ["owner", "plain", "records", "lock"])
def test_no_file_keeps_a_node_from_starting(
    tmp_path: Path, open_storage: Callable[..., Storage], name: str
) -> None:
    storage = open_storage()
    storage.save("plain", kept_records.write("plain", 1, [b"one piece"]))
    storage.save("records", kept_records.write("records", 1, [b"one", b"two"]))
    storage.close()
    path = tmp_path / "state" / ("lock" if name == "lock" else f"{name}.state")
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        again = open_storage()
        plain = kept_records.read(again.load("plain", 1) or b"")
        records = kept_records.read(again.load("records", 1) or b"")
        assert plain.records in ([b"one piece"], [] if name == "plain" else [b"one piece"])
        assert len(records.records) >= (1 if name == "records" else 2)
        assert path.with_suffix(".damaged").exists() is (name in ("plain", "records", "owner"))
        again.close()
        path.with_suffix(".damaged").unlink(missing_ok=True)
        path.write_bytes(whole)


def test_a_folder_in_place_of_a_file_does_not_either(
    tmp_path: Path, open_storage: Callable[..., Storage]
) -> None:
    (tmp_path / "state" / "plain.state").mkdir(parents=True)
    assert open_storage().load("plain", 1) is None


def test_damage_is_told_with_its_place(
    tmp_path: Path, open_storage: Callable[..., Storage], caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage()
    storage.save("records", kept_records.write("records", 1, [b"one", b"two"]))
    storage.close()
    path = tmp_path / "state" / "records.state"
    data = bytearray(path.read_bytes())
    at = data.index(b"one")
    data[at] ^= 1
    path.write_bytes(data)
    open_storage().load("records", 1)
    (told,) = [record for record in caplog.records if "damaged" in record.getMessage()]
    line = TextLines().format(told)
    assert str(path) in line
    assert f"offset={at - 10} " in line
    assert path.with_suffix(".damaged").read_bytes() == data


def test_a_full_disk_is_a_problem_until_everything_is_written(
    open_storage: Callable[..., Storage],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = threading.Event()
    storage = open_storage(lost=lambda name: asked.set())
    storage.save("retained", kept_records.write("retained", 2, [b"old"]))
    wait_for(lambda: storage.load("retained", 2) is not None, 5, "the first save")
    disk = FullDisk(monkeypatch)
    disk.full = True
    storage.append("retained", b"is lost")
    storage.save("plain", kept_records.write("plain", 1, [b"waits"]))
    wait_for(lambda: storage.problem == "No space left on device", 5, "the fault")
    wait_for(lambda: int(str(storage.status()["failures"])) > 3, 5, "further tries")
    storage.save("plain", kept_records.write("plain", 1, [b"the last"]))
    assert sum("cannot be kept" in record.getMessage() for record in caplog.records) == 1
    assert not asked.is_set()
    disk.full = False
    assert asked.wait(5), "nobody was asked to write it anew"
    assert storage.problem
    rewrite = storage.rewrite("retained")
    rewrite.write(kept_records.write("retained", 2, [b"new"]))
    rewrite.commit()
    wait_for(lambda: not storage.problem, 5, "the fault to be over")
    storage.close()
    again = open_storage()
    assert kept_records.read(again.load("plain", 1) or b"").records == [b"the last"]
    assert kept_records.read(again.load("retained", 2) or b"").records == [b"new"]


def test_more_than_the_disk_takes_is_not_kept_in_memory(
    open_storage: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "MAX_WAITING_BYTES", 1000)
    hold, asked = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(file: int) -> None:
        hold.wait(10)
        fsync(file)

    storage = open_storage(lost=lambda name: asked.set())
    wait_for(lambda: storage.load("owner", 1) is not None, 5, "the owner's file")
    monkeypatch.setattr(os, "fsync", slow)
    for _ in range(100):
        storage.append("retained", bytes(100))
        assert storage.waiting_bytes <= 1000
    assert storage.problem == "the disk is too slow"
    hold.set()
    assert asked.wait(5)


def test_what_another_version_has_written_is_refused_and_kept_aside(
    tmp_path: Path, open_storage: Callable[..., Storage], caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage()
    storage.save("records", kept_records.write("records", 2, [b"of the future"]))
    storage.close()
    assert open_storage().load("records", 1) is None
    (told,) = [record for record in caplog.records if "version" in record.getMessage()]
    line = TextLines().format(told)
    assert 'found="records version 2" expected="records version 1"' in line
    aside = tmp_path / "state" / "records.refused"
    assert kept_records.read(aside.read_bytes()).records == [b"of the future"]


def test_client_sessions_are_found_where_the_version_before_kept_them(
    tmp_path: Path, open_storage: Callable[..., Storage]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    former = kept_records.write("client-sessions", 2, [b"a client"])
    (folder / "algorithm.state").write_bytes(former)
    storage = open_storage()
    assert storage.load("client-sessions", 2) == former
    storage.close()
    assert not (folder / "algorithm.state").exists()
    (folder / "algorithm.state").write_bytes(kept_records.write("client-sessions", 2, [b"old"]))
    assert open_storage().load("client-sessions", 2) == former


def test_what_was_to_be_appended_to_a_state_is_not_appended_to_the_next(
    open_storage: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage()
    full = FullDisk(monkeypatch)
    full.full = True
    storage.save("records", kept_records.header("records", 1, 1))
    storage.append("records", kept_records.record(b"old", 1))
    storage.save("records", kept_records.header("records", 1, 2))
    storage.append("records", kept_records.record(b"new", 2))
    full.full = False
    storage.close()
    kept = kept_records.read(open_storage().load("records", 1) or b"")
    assert (kept.records, kept.damage) == ([b"new"], [])


def test_what_fails_while_the_storage_is_being_closed_is_tried_once_more(
    open_storage: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage()
    wait_for((storage.folder / "owner.state").exists, 10, "the owner's name")
    sync, began = os.fsync, threading.Event()

    def fsync(file: int) -> None:
        if not began.is_set():
            began.set()
            wait_for(lambda: storage._closing, 10, "the storage to be closed")
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.save("records", kept_records.write("records", 1, [b"kept"]))
    assert began.wait(10)
    storage.close()
    assert kept_records.read(open_storage().load("records", 1) or b"").records == [b"kept"]
