"""What a scenario saw, as plain values that can be compared, and what it might have seen.

Topics and client ids are unique to a run; an :class:`Observation` holds them with the run's own
prefix removed, so that two runs of one scenario are equal exactly if they saw the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Message", "Observation", "Plain", "Seen", "Stopped"]

Plain: TypeAlias = "str | int | bool | tuple[Plain, ...] | None"
Seen: TypeAlias = Mapping[str, Plain]


class Stopped(Exception):
    """The scenario could not go on: what failed is what was seen."""


@dataclass(frozen=True, slots=True)
class Message:
    """A PUBLISH as a client library hands it out; DUP is left out, it tells of timing."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: tuple[tuple[str, Plain], ...] = ()

    def __str__(self) -> str:
        if len(self.payload) <= 40:
            payload = repr(self.payload.decode(errors="backslashreplace"))
        else:
            from hashlib import sha256

            payload = f"{len(self.payload)} bytes {sha256(self.payload).hexdigest()[:12]}"
        retained = " retained" if self.retain else ""
        properties = "".join(f" {name}={value!r}" for name, value in self.properties)
        return f"{self.topic} {payload} qos{self.qos}{retained}{properties}"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run saw, and the outcomes that the standard allows.

    `allowed` is empty where the standard leaves the matter to the broker.
    """

    seen: Seen
    allowed: tuple[Seen, ...] = ()

    @property
    def keeps_the_standard(self) -> bool:
        return not self.allowed or self.seen in self.allowed

    @property
    def departure(self) -> str:
        """Where the nearest allowed outcome differs; empty if none does."""
        if self.keeps_the_standard:
            return ""
        return min((differences(self.seen, each) for each in self.allowed), key=len)


def differences(seen: Seen, wanted: Seen) -> str:
    """`key: seen, not wanted` for every key that differs."""
    if "stopped" in seen:
        return str(seen["stopped"])
    return "; ".join(
        f"{key} {_shown(seen.get(key))}, not {_shown(wanted.get(key))}"
        for key in dict.fromkeys((*wanted, *seen))
        if seen.get(key) != wanted.get(key)
    )


def _shown(value: Plain) -> str:
    if isinstance(value, tuple):
        shown = ", ".join(_shown(item) for item in value[:6])
        return f"[{shown}, … {len(value)}]" if len(value) > 6 else f"[{shown}]"
    return str(value)
