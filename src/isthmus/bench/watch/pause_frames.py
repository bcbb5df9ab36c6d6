"""Ethernet flow control: the pause frames that an interface has counted.

ILDM §5.3 looks for Ethernet flow control, which a lack of bandwidth on the subscribers' side
causes.  Interfaces count pause frames in hardware; drivers hand the counters out under names of
their own, asked for with the `SIOCETHTOOL` ioctl as ``ethtool -S`` does.  Every counter whose name
says pause or XOFF (Intel's word) is taken.  The loopback has none, and most virtual interfaces
neither: then a run says that it does not know, it does not fail.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psutil

__all__ = ["PauseFrames", "counters", "grown", "interface_towards", "take"]

# linux/sockios.h and linux/ethtool.h
_SIOCETHTOOL: Final = 0x8946
_GET_DRIVER_INFO: Final = 0x03
_GET_STRINGS: Final = 0x1B
_GET_STATISTICS: Final = 0x1D
_STRINGS_OF_STATISTICS: Final = 1
_DRIVER_INFO_BYTES: Final = 196
_STATISTICS_AT: Final = 180  # in struct ethtool_drvinfo: how many counters there are
_NAME_BYTES: Final = 32
_MAX_COUNTERS: Final = 100_000

_LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True)
class PauseFrames:
    """Pause counters at one moment, as ``interface counter``, and who has none, with why."""

    counted: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def take(interfaces: Iterable[str]) -> PauseFrames:
    """The pause counters of `interfaces` now."""
    counted: dict[str, int] = {}
    notes: list[str] = []
    for interface in dict.fromkeys(interfaces):
        try:
            all_of_it = counters(interface)
        except OSError as error:
            why = "" if interface == _LOOPBACK else f" ({error.strerror})"
            notes.append(f"pause frames are not reported by {interface}{why}")
            continue
        found = {f"{interface} {name}": n for name, n in all_of_it.items() if _is_pause(name)}
        counted |= found
        if not found:
            notes.append(f"pause frames are not reported by {interface} (its driver counts none)")
    return PauseFrames(counted, tuple(notes))


def grown(before: PauseFrames, after: PauseFrames) -> dict[str, int]:
    """The counters that grew, and by how much."""
    return {
        name: n - before.counted[name]
        for name, n in after.counted.items()
        if name in before.counted and n > before.counted[name]
    }


def interface_towards(host: str) -> str | None:
    """The interface by which packets to `host` leave; None if that cannot be told."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # chooses the route; a datagram socket sends nothing by it
            own = str(probe.getsockname()[0])
    except OSError:
        return None
    if own == address[0]:
        return _LOOPBACK  # to itself the machine does not use its interface
    for interface, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == own for entry in addresses):
            return interface
    return None


def counters(interface: str) -> dict[str, int]:
    """Every counter that the driver of `interface` gives; `OSError` if it gives none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        file = any_socket.fileno()
        info = _ask(file, interface, struct.pack("=I", _GET_DRIVER_INFO), _DRIVER_INFO_BYTES)
        (number,) = struct.unpack_from("=I", info, _STATISTICS_AT)
        number = min(number, _MAX_COUNTERS)
        wanted = struct.pack("=III", _GET_STRINGS, _STRINGS_OF_STATISTICS, number)
        names = _ask(file, interface, wanted, len(wanted) + number * _NAME_BYTES)[len(wanted) :]
        wanted = struct.pack("=II", _GET_STATISTICS, number)
        values = _ask(file, interface, wanted, len(wanted) + number * 8)[len(wanted) :]
    return {
        names[i * _NAME_BYTES : (i + 1) * _NAME_BYTES].split(b"\0")[0].decode("latin-1"): value
        for i, (value,) in enumerate(struct.iter_unpack("=Q", values))
    }


def _ask(file: int, interface: str, wanted: bytes, size: int) -> bytes:
    """One `SIOCETHTOOL`: the command at the head of a buffer that the kernel fills."""
    name = os.fsencode(interface)
    if len(name) >= 16:
        raise OSError(19, f"no interface has so long a name: {interface!r}")
    buffer = ctypes.create_string_buffer(wanted, size)
    # struct ifreq: the interface's name, then a union of 24 bytes, a pointer in our case.
    request = struct.pack("16sP16x", name, ctypes.addressof(buffer))
    fcntl.ioctl(file, _SIOCETHTOOL, request)
    return buffer.raw


def _is_pause(name: str) -> bool:
    return "pause" in name.lower() or "xoff" in name.lower()
