"""Every error Isthmus raises on purpose.

    IsthmusError
    ├── ConfigError              a configuration file is wrong: all mistakes: file, key and remedy
    ├── BrokerError              a broker that we start or use
    │   ├── BrokerMissing        it is not installed here; says how to get it
    │   └── BrokerFailed         it did not start, or died; carries the end of its log
    ├── AdminError               a running node could not be asked
    ├── AlgorithmError           no such cooperation algorithm, or a plug-in that cannot be used
    ├── NodeFailed               a node process that we started did not come up; carries its log
    └── ProtocolError            bytes that break MQTT; carries a v5 reason code and the section
        ├── LocalProtocolError   our own fault: we were about to send such bytes
        └── RemoteProtocolError  the peer's fault: it sent such bytes
            ├── MalformedPacket  cannot be parsed (0x81)
            ├── PacketTooLarge   longer than the limit (0x95)
            └── UnsupportedProtocolVersion  a CONNECT of an MQTT that we do not speak (0x84)

Errors carry data, so that a caller can act on them without parsing the message.  A
:class:`RemoteProtocolError` closes the connection it happened on and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "AdminError",
    "AlgorithmError",
    "BrokerError",
    "BrokerFailed",
    "BrokerMissing",
    "ConfigError",
    "ConfigMistake",
    "IsthmusError",
    "LocalProtocolError",
    "MalformedPacket",
    "NodeFailed",
    "PacketTooLarge",
    "ProtocolError",
    "RemoteProtocolError",
    "UnsupportedProtocolVersion",
]


class IsthmusError(Exception):
    """Base of everything Isthmus raises on purpose."""


@dataclass(frozen=True, slots=True)
class ConfigMistake:
    """One mistake in a configuration file: where, what, and what would be right."""

    file: str
    key: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.problem}" if self.key else f"{where}: {self.problem}"


class ConfigError(IsthmusError):
    """A configuration file is wrong; `mistakes` has one entry per mistake."""

    def __init__(self, mistakes: Sequence[ConfigMistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


class BrokerError(IsthmusError):
    """Something about a broker that we start or use."""


class BrokerMissing(BrokerError):
    """The broker is not installed here."""

    def __init__(self, broker: str, missing: str, remedy: str) -> None:
        super().__init__(f"{broker}: {missing} is missing; {remedy}")
        self.broker = broker
        self.missing = missing
        self.remedy = remedy


class BrokerFailed(BrokerError):
    """The broker did not come up, or died."""

    def __init__(self, broker: str, problem: str, log_tail: str = "") -> None:
        super().__init__(f"{broker}: {problem}" + (f"\n{log_tail}" if log_tail else ""))
        self.broker = broker
        self.problem = problem
        self.log_tail = log_tail


class AdminError(IsthmusError):
    """A running node's admin address did not answer as it should."""


class AlgorithmError(IsthmusError):
    """A cooperation algorithm cannot be had under this name; `available` lists those that can."""

    def __init__(self, name: str, problem: str, available: Sequence[str] = ()) -> None:
        listed = f"; there are {', '.join(available)}" if available else ""
        super().__init__(f"algorithm {name!r}: {problem}{listed}")
        self.name = name
        self.problem = problem
        self.available = tuple(available)


class NodeFailed(IsthmusError):
    """A node process that we started did not come up."""

    def __init__(self, node: str, problem: str, log_tail: str = "") -> None:
        super().__init__(f"node {node}: {problem}" + (f"\n{log_tail}" if log_tail else ""))
        self.node = node
        self.problem = problem
        self.log_tail = log_tail


class ProtocolError(IsthmusError):
    """Bytes or values that break MQTT.

    `reason_code` is MQTT 5's; `section` names the specification's statement or section,
    for example ``MQTT-3.3.2-2``.
    """

    default_reason_code = 0x82  # Protocol Error

    offset = 0
    """Where in the scanned bytes the offending frame begins, if the error comes from a scan."""

    def __init__(self, problem: str, *, section: str = "", reason_code: int | None = None) -> None:
        super().__init__(f"{problem} [{section}]" if section else problem)
        self.problem = problem
        self.section = section
        self.reason_code = self.default_reason_code if reason_code is None else reason_code


class LocalProtocolError(ProtocolError):
    """Our own fault: a packet was about to be encoded that the specification forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer's fault: it sent what the specification forbids."""


class MalformedPacket(RemoteProtocolError):
    """The packet cannot be parsed according to the specification."""

    default_reason_code = 0x81


class PacketTooLarge(RemoteProtocolError):
    """The packet is longer than the limit in force."""

    default_reason_code = 0x95


class UnsupportedProtocolVersion(RemoteProtocolError):
    """A CONNECT says MQTT, but of a protocol level that Isthmus does not speak."""

    default_reason_code = 0x84

    def __init__(self, level: int) -> None:
        super().__init__(
            f"protocol level {level} is not supported; 4 (MQTT 3.1.1) and 5 are",
            section="MQTT-3.1.2-2",
        )
        self.level = level
