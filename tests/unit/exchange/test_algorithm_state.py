"""What an algorithm keeps: names and files."""

from __future__ import annotations

from typing import cast

import pytest

from isthmus.exchange.algorithm_state import AlgorithmState
from isthmus.exchange.host import Host
from isthmus.sim.disk import Disk


class DiskHost:
    """Keeps state on a disk that several algorithms use, one after another."""

    def __init__(self) -> None:
        self.disk = Disk()

    def token_bytes(self, size: int) -> bytes:
        return bytes(range(size))

    def load_state(self, name: str, version: int) -> bytes | None:
        return self.disk.load(name, version)

    def save_state(self, name: str, state: bytes) -> None:
        self.disk.save(name, state, 0.0)

    def append_state(self, name: str, more: bytes) -> None:
        self.disk.append(name, more, 0.0)


def state_of(host: DiskHost, algorithm: str) -> AlgorithmState:
    return AlgorithmState(cast("Host", host), algorithm)


def test_what_is_saved_and_appended_is_loaded() -> None:
    host = DiskHost()
    state = state_of(host, "sf")
    state.save("tree", [b"one"], 3)
    state.append("tree", [b"two"])
    assert state_of(host, "sf").load("tree", 3) == [b"one", b"two"]
    assert state_of(host, "sf").load("tree", 4) == []


def test_no_two_algorithms_share_a_file() -> None:
    """Once `sf` with "v2-tree" had the file of a plug-in `sf-v2` with "tree"."""
    host = DiskHost()
    state_of(host, "sf").save("v2-tree", [b"ours"], 1)
    state_of(host, "sf-v2").save("tree", [b"theirs"], 1)
    assert state_of(host, "sf").load("v2-tree", 1) == [b"ours"]
    assert state_of(host, "sf-v2").load("tree", 1) == [b"theirs"]


def test_whose_a_file_is() -> None:
    state = state_of(DiskHost(), "My.SF")
    assert state.name_of("algorithm-my-sf--tree") == "tree"
    for other in ("algorithm-my--sf-tree", "algorithm-my-sf-v2--tree", "wills", "retained"):
        assert state.name_of(other) is None


@pytest.mark.parametrize(
    "name",
    ["", "Tree", "a b", "../up", "a--b", "-a", "a-", "\N{LATIN SMALL LETTER A WITH DIAERESIS}"],
)
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    state = state_of(DiskHost(), "sf")
    with pytest.raises(ValueError, match="cannot be the name of a state"):
        state.save(name, [], 1)
    with pytest.raises(ValueError, match="cannot be the name of a state"):
        state.load(name, 1)
