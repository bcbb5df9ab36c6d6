"""Every error Isthmus raises on purpose.

    IsthmusError
    ├── ConfigError              a configuration file is wrong: all mistakes: file, key and remedy
    ├── BrokerError              a broker that we start or use
    │   ├── BrokerMissing        it is not installed here; says how to get it
    │   └── BrokerFailed         it did not start, or died; carries the end of its log
    ├── AdminError               a running node could not be asked
    ├── AlgorithmError           no such cooperation algorithm, or a plug-in that cannot be used
    ├── LoadError                a measurement that cannot be made
    │   ├── LoadFailed           a load process or an agent failed; says which and carries its log
    │   └── RunRefused           not under this name in this log
    ├── LimitError               a limit search that cannot begin, or not go on from its file
    ├── LogError                 a log that cannot be trusted: names the file and the reason
    ├── ProcessFailed            one that we started; BrokerFailed, LoadFailed, SparkFailed too
    │   ├── NodeFailed           a node did not come up; carries its log
    │   └── ShapingFailed        the proxy between emulated servers did not come up; has its log
    ├── QuotaUnavailable         no CPU quotas for emulated servers here; says what is missing
    ├── ReproduceError           a paper's experiments: no such one, or results that contradict
    ├── SimulationFailed         a simulated run did not come to its end: says when and why
    ├── SimulationTooLarge       one that does not fit into memory: says how much it would take
    ├── SparkError               Spark cannot be used as asked
    │   ├── JavaMissing          no Java here that Spark runs on; says how to get one
    │   └── SparkFailed          a session, cluster or server did not come up; carries its log
    ├── StateError               a node's state_dir is another's, or no folder
    └── ProtocolError            bytes that break MQTT; carries a v5 reason code and the section
        ├── LocalProtocolError   our own fault: we were about to send such bytes
        └── RemoteProtocolError  the other side's fault: it sent such bytes
            ├── MalformedPacket  cannot be parsed (0x81)
            ├── PacketTooLarge   longer than the limit (0x95)
            └── UnsupportedProtocolVersion  a CONNECT of an MQTT that we do not speak (0x84)

Errors carry data, so that a caller can act on them without parsing the message.  A
:class:`RemoteProtocolError` closes the connection it happened on and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AdminError",
    "AlgorithmError",
    "BrokerError",
    "BrokerFailed",
    "BrokerMissing",
    "ConfigError",
    "ConfigMistake",
    "IsthmusError",
    "JavaMissing",
    "LimitError",
    "LoadError",
    "LoadFailed",
    "LocalProtocolError",
    "LogError",
    "MalformedPacket",
    "NodeFailed",
    "PacketTooLarge",
    "ProcessFailed",
    "ProtocolError",
    "QuotaUnavailable",
    "RemoteProtocolError",
    "ReproduceError",
    "RunRefused",
    "ShapingFailed",
    "SimulationFailed",
    "SimulationTooLarge",
    "SparkError",
    "SparkFailed",
    "StateError",
    "UnsupportedProtocolVersion",
]


class IsthmusError(Exception):
    """Base of everything Isthmus raises on purpose."""


class ProcessFailed(IsthmusError):
    """A process that we started; `log_tail` is the end of what it printed."""

    kind: ClassVar[str] = ""

    def __init__(self, name: str, problem: str, log_tail: str = "") -> None:
        super().__init__(f"{self.kind}{name}: {problem}" + (f"\n{log_tail}" if log_tail else ""))
        self.name = name
        self.problem = problem
        self.log_tail = log_tail


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


class BrokerFailed(BrokerError, ProcessFailed):
    """The broker did not come up, or died."""


class AdminError(IsthmusError):
    """A running node's admin address did not answer as it should."""


class AlgorithmError(IsthmusError):
    """A cooperation algorithm cannot be had under this name; `available` lists those that can."""

    def __init__(self, name: str, problem: str, available: Sequence[str] = ()) -> None:
        listed = f"; known: {', '.join(available)}" if available else ""
        super().__init__(f"algorithm {name!r}: {problem}{listed}")
        self.name = name
        self.problem = problem
        self.available = tuple(available)


class LoadError(IsthmusError):
    """A measurement cannot be made."""


class LoadFailed(LoadError, ProcessFailed):
    """A load process, or the agent that runs it, failed; the measurement ended with it."""

    kind = "load process "


class RunRefused(LoadError):
    """A run cannot be recorded under this name in this log."""

    def __init__(self, run: str, problem: str) -> None:
        super().__init__(f"run {run!r}: {problem}")
        self.run = run
        self.problem = problem


class LimitError(IsthmusError):
    """A limit search cannot begin, or cannot go on from the file of its measurements."""


class LogError(IsthmusError):
    """A log, or one file of it, cannot be trusted; `where` names it, `problem` says why."""

    def __init__(self, where: object, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = str(where)
        self.problem = problem


class NodeFailed(ProcessFailed):
    """A node process that we started did not come up."""

    kind = "node "


class QuotaUnavailable(IsthmusError):
    """CPU quotas cannot be had on this machine, or not by this user."""


class ShapingFailed(ProcessFailed):
    """The process that shapes the links between emulated servers did not come up."""

    def __init__(self, problem: str, log_tail: str = "") -> None:
        super().__init__("link shaping", problem, log_tail)


class StateError(IsthmusError):
    """A node's state_dir cannot be used: it is not a folder, or another node's."""


class ReproduceError(IsthmusError):
    """A paper's experiments cannot be made as asked, or their results contradict each other."""


class SimulationFailed(IsthmusError):
    """A simulated run did not come to its end; `at_s` is virtual time."""

    def __init__(self, at_s: float, problem: str, tail: str = "") -> None:
        super().__init__(
            f"the simulation failed at {at_s:.3f} s: {problem}" + (f"\n{tail}" if tail else "")
        )
        self.at_s = at_s
        self.problem = problem


class SimulationTooLarge(IsthmusError):
    """A simulation that does not fit into memory, told before it begins."""

    def __init__(self, nodes: int, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"a simulation of {nodes:,} nodes takes about {needed_bytes / 2**30:.1f} GiB, "
            f"{free_bytes / 2**30:.1f} GiB of memory are free; simulate fewer nodes, or free some"
        )
        self.nodes = nodes
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class SparkError(IsthmusError):
    """Spark cannot be used as asked."""


class JavaMissing(SparkError):
    """No Java that Spark runs on; `tried` says of each place why its Java is of no use."""

    def __init__(self, tried: Sequence[str], remedy: str) -> None:
        super().__init__(f"Spark needs Java and none here will do ({'; '.join(tried)}); {remedy}")
        self.tried = tuple(tried)
        self.remedy = remedy


class SparkFailed(SparkError, ProcessFailed):
    """A session, or a process of a cluster, did not come up."""


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
    """The other side's fault: it sent what the specification forbids."""


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
            f"protocol level {level} is not supported; 3 (as MQIsdp), 4 and 5 (as MQTT) are",
            section="MQTT-3.1.2-2",
        )
        self.level = level
