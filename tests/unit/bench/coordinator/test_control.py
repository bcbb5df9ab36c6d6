"""Lines over pipes: whole, in pieces, too long, not ours, too late, and files between them."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.coordinator.control import LineChannel, Target, item
from isthmus.errors import LoadFailed

MESSAGES = [{"is": "clock", "t_ns": 12}, {"is": "progress", "sent": 3}, {"is": "häufig"}]
STREAM = b"".join(json.dumps(message).encode() + b"\n" for message in MESSAGES)


class Pipes:
    """A channel and the other end's descriptors."""

    def __init__(self, **options: int) -> None:
        read, self.write = os.pipe()
        self.read, write = os.pipe()
        self.open = {read, write, self.read, self.write}
        self.channel = LineChannel("w7", read, write, **options)

    def end(self, *fds: int) -> None:
        for fd in list(fds or self.open):
            os.close(fd)
            self.open.remove(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes(max_line_bytes=1000)
    yield made
    made.end()


def drained(channel: LineChannel) -> list[object]:
    found: list[object] = []
    while (message := channel.next()) is not None:
        found.append(message)
    return found


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_any_chunking_gives_the_same_messages(cuts: set[int]) -> None:
    pipes = Pipes()
    try:
        edges = [0, *sorted(cuts), len(STREAM)]
        found: list[object] = []
        for start, end in pairwise(edges):
            os.write(pipes.write, STREAM[start:end])
            found += drained(pipes.channel)
        assert found == MESSAGES
    finally:
        pipes.end()


def test_the_end_comes_after_the_last_message(pipes: Pipes) -> None:
    os.write(pipes.write, STREAM + b'{"cut o')
    pipes.end(pipes.write)
    assert [pipes.channel.receive(1) for _ in MESSAGES] == MESSAGES
    with pytest.raises(EOFError):
        pipes.channel.receive(1)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "'GET / HTTP/1.1\\r', which is not a JSON object"),
        (b"[1]\n", "'[1]', which is not a JSON object"),
        (b"\xff\xfe\n", "which is not a JSON object"),
        (b"x" * 1001, "a line of more than 1000 bytes"),
    ],
)
def test_what_is_no_message_is_refused_by_name(pipes: Pipes, sent: bytes, said: str) -> None:
    os.write(pipes.write, sent)
    with pytest.raises(LoadFailed) as failed:
        drained(pipes.channel)
    assert failed.value.name == "w7"
    assert said in str(failed.value)


def test_nothing_waits_for_ever(pipes: Pipes) -> None:
    with pytest.raises(LoadFailed, match="w7: has not answered in time"):
        pipes.channel.receive(0.01)
    with pytest.raises(LoadFailed, match="w7: takes nothing more"):
        pipes.channel.send({"long": "x" * 1_000_000}, 0.01)
    os.write(pipes.write, b"12")
    with pytest.raises(LoadFailed, match="3 bytes of a file are missing"):
        pipes.channel.receive_bytes(5, io.BytesIO(), 0.01)


def test_a_long_message_passes_through_a_small_pipe(pipes: Pipes) -> None:
    got = bytearray()

    def take() -> None:
        while not got.endswith(b"\n"):
            got.extend(os.read(pipes.read, 1000))

    reader = threading.Thread(target=take)
    reader.start()
    pipes.channel.send({"long": "x" * 1_000_000}, 30)
    reader.join()
    assert json.loads(got) == {"long": "x" * 1_000_000}


def test_telling_one_who_is_gone_fails(pipes: Pipes) -> None:
    pipes.end(pipes.read)
    with pytest.raises(LoadFailed, match="w7: cannot be told anything more: Broken pipe"):
        pipes.channel.send({"do": "clock"}, 1)


def test_a_file_between_two_messages_is_taken_to_the_byte(pipes: Pipes) -> None:
    content = b"PAR1\n{}\n" * 50
    os.write(pipes.write, b'{"bytes":400}\n' + content + b'{"next":1}\n')
    assert pipes.channel.receive(1) == {"bytes": 400}
    file = io.BytesIO()
    pipes.channel.receive_bytes(400, file, 1)
    assert file.getvalue() == content
    assert pipes.channel.receive(1) == {"next": 1}


def test_a_file_that_is_cut_short_is_no_file(pipes: Pipes) -> None:
    os.write(pipes.write, b"half")
    pipes.end(pipes.write)
    with pytest.raises(EOFError):
        pipes.channel.receive_bytes(8, io.BytesIO(), 1)


def test_items_are_of_their_kind() -> None:
    message = {"is": "measured", "sent": 4, "sending": True, "name": "x"}
    assert item(message, "sent", int, "w0") == 4
    assert item(message, "sending", bool, "w0") is True
    for key, kind in (("received", int), ("name", int), ("sending", int), ("sent", str)):
        with pytest.raises(LoadFailed, match=f"w0: said 'measured' with {key}="):
            item(message, key, kind, "w0")


def test_a_target_does_not_show_its_password() -> None:
    assert "geheim" not in repr(Target("h", 1, "u", "geheim"))
