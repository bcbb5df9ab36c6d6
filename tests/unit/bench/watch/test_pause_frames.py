"""Pause counters against a driver that answers the ioctl as linux/ethtool.h says."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct

import pytest

from isthmus.bench.watch import pause_frames
from isthmus.bench.watch.pause_frames import PauseFrames, grown


class Drivers:
    """Interfaces and their counters, behind `fcntl.ioctl`."""

    def __init__(self, **interfaces: dict[str, int]) -> None:
        self.interfaces = interfaces

    def ioctl(self, file: int, request: int, argument: bytes) -> bytes:
        assert request == 0x8946
        assert len(argument) == 40
        name, pointer = struct.unpack_from("16sP", argument)
        counters = self.interfaces.get(name.rstrip(b"\0").decode())
        if counters is None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        (command,) = struct.unpack("=I", ctypes.string_at(pointer, 4))
        if command == 0x03:
            ctypes.memmove(pointer + 4, b"e1000e".ljust(32, b"\0"), 32)
            ctypes.memmove(pointer + 180, struct.pack("=I", len(counters)), 4)
        elif command == 0x1B:
            assert struct.unpack("=II", ctypes.string_at(pointer + 4, 8)) == (1, len(counters))
            names = b"".join(key.encode().ljust(32, b"\0") for key in counters)
            ctypes.memmove(pointer + 12, names, len(names))
        else:
            assert command == 0x1D
            values = struct.pack(f"={len(counters)}Q", *counters.values())
            ctypes.memmove(pointer + 8, values, len(values))
        return argument


def drivers(monkeypatch: pytest.MonkeyPatch, **interfaces: dict[str, int]) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Drivers(**interfaces).ioctl)


def test_all_counters_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"rx_packets": 5, "rx_pause": 3, "a_name_of_thirty_one_characters_": 2**63}
    drivers(monkeypatch, eth0=counters)
    assert pause_frames.counters("eth0") == counters


def test_the_names_that_drivers_give_pause_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers(
        monkeypatch,
        eth0={"rx_packets": 5, "rx_pause": 3, "Tx_Pause_Frames": 1},
        eth1={"rx_flow_control_xoff": 2, "rx_flow_control_xon": 2},
    )
    assert pause_frames.take(["eth0", "eth1", "eth0"]) == PauseFrames(
        {"eth0 rx_pause": 3, "eth0 Tx_Pause_Frames": 1, "eth1 rx_flow_control_xoff": 2}
    )


def test_who_reports_none_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers(monkeypatch, eth0={"rx_packets": 5}, eth1={})
    taken = pause_frames.take(["lo", "eth0", "eth1", "tun0", "a-name-longer-than-any"])
    assert taken.counted == {}
    assert taken.notes[:4] == (
        "pause frames are not reported by lo",
        "pause frames are not reported by eth0 (its driver counts none)",
        "pause frames are not reported by eth1 (its driver counts none)",
        "pause frames are not reported by tun0 (Operation not supported)",
    )
    assert "no interface has so long a name" in taken.notes[4]


def test_only_growth_counts() -> None:
    before = PauseFrames({"eth0 rx_pause": 3, "eth0 tx_pause": 4, "eth1 rx_pause": 9})
    after = PauseFrames({"eth0 rx_pause": 5, "eth0 tx_pause": 4, "eth2 rx_pause": 7})
    assert grown(before, after) == {"eth0 rx_pause": 2}


def test_the_way_to_this_machine_is_the_loopback() -> None:
    assert pause_frames.interface_towards("127.0.0.1") == "lo"


def test_a_host_without_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    assert pause_frames.interface_towards("broker.example") is None
