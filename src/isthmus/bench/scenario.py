"""Scenarios: which clients publish and subscribe what, where, how often and for how long.

A scenario is a TOML file (``docs/reference/scenarios.md``); the paper's patterns ship with the
package (`shipped`).  Mistakes are reported as in every other file of ours: all at once, each with
file, line, key and what would be right.

Source: ILDM §5.2 (t-clients and l-clients), §6.1 and Table 3 (the patterns).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from isthmus.config.fields import (
    AddressField,
    AlgorithmName,
    BrokerKind,
    PasswordField,
    Qos,
    Seconds,
    Section,
    fabric_broker,
    known_algorithm,
)
from isthmus.config.files import NODE_ID, load_file
from isthmus.errors import ConfigError, ConfigMistake
from isthmus.pipeline.log.payload import SIZE

__all__ = [
    "EmulatedLink",
    "Emulation",
    "Latency",
    "Load",
    "Overview",
    "Place",
    "Scenario",
    "Server",
    "load_scenario",
    "shipped",
]


class Overview(Section):
    """``[scenario]``: its name and how long it is measured."""

    name: str = Field(pattern=NODE_ID, examples=["C"])
    description: str = Field(default="", examples=["five brokers in a row, high locality"])
    duration_s: Seconds = Field(default=80.0, gt=0, le=86_400, examples=[80.0])
    trim_s: Seconds = Field(default=10.0, ge=0, le=3_600, examples=[10.0])
    """Cut at each end: what happens there is recorded and does not count."""


class Load(Section):
    """``[load]``: what every t-client that publishes sends."""

    interval_ms: Seconds | None = Field(default=None, ge=0.001, le=3_600_000, examples=[10.0])
    rate: Seconds | None = Field(default=None, gt=0, le=1_000_000, examples=[100.0])
    """Messages per second of each publisher; the other way to say `interval_ms`."""
    qos: Qos = Field(default=0, examples=[0])
    payload_bytes: int = Field(default=SIZE, ge=SIZE, le=1_048_576, examples=[SIZE])

    @property
    def interval_ns(self) -> int:
        """Between two messages of one publisher."""
        if self.interval_ms is not None:
            return round(self.interval_ms * 1e6)
        return round(1e9 / (self.rate or 1.0))


class Latency(Section):
    """``[latency]``: the l-clients, one publisher and one subscriber at each of some nodes."""

    topic: str = Field(default="topic6", min_length=1, examples=["topic6"])
    publisher: str = Field(examples=["n1"])
    subscribers: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = Field(
        examples=[["n1", "n2"]]
    )
    interval_s: Seconds = Field(default=1.0, ge=0.001, le=3_600, examples=[1.0])
    qos: Qos = Field(default=0, examples=[0])


class Place(Section):
    """``[[place]]``: t-clients of one topic at one node."""

    node: str = Field(pattern=NODE_ID, examples=["n1"])
    topic: str = Field(min_length=1, max_length=65_535, examples=["topic1"])
    publishers: int = Field(default=0, ge=0, le=100_000, examples=[10])
    subscribers: int = Field(default=0, ge=0, le=100_000, examples=[10])


class Server(Section):
    """``[[server]]``: a broker, with a node before it or bare; started here, or running already."""

    id: str = Field(pattern=NODE_ID, examples=["n1"])
    broker: BrokerKind = Field(default="mosquitto", examples=["mosquitto"])
    with_node: bool = Field(default=True, examples=[True])
    peers: Annotated[tuple[str, ...], Field(strict=False)] = Field(default=(), examples=[["n1"]])
    address: AddressField | None = Field(default=None, examples=["192.0.2.7:1883"])
    """Where clients connect to one that runs already; then nothing is started for it."""
    admin: AddressField | None = Field(default=None, examples=["192.0.2.7:9883"])
    """The admin address of a node that runs already, for the traffic of its links."""
    username: str | None = Field(default=None, min_length=1, examples=["bench"])
    password: PasswordField | None = Field(default=None, repr=False)


def _two(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) != 2:
        raise ValueError(f'must name two servers, not {len(names)}; like between = ["n1", "n2"]')
    return names


class EmulatedLink(Section):
    """``[[emulation.link]]``: the line between two servers, where it is not as the others are."""

    between: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_two)] = Field(
        examples=[["n1", "n2"]]
    )
    delay_ms: Seconds | None = Field(default=None, ge=0, le=60_000, examples=[20.0])
    """One way."""
    mbit_s: Seconds | None = Field(default=None, gt=0, le=1_000_000, examples=[10.0])
    """Each way."""
    back_delay_ms: Seconds | None = Field(default=None, ge=0, le=60_000, examples=[40.0])
    """From the second to the first."""
    back_mbit_s: Seconds | None = Field(default=None, gt=0, le=1_000_000, examples=[1.0])


class Emulation(Section):
    """``[emulation]``: how small each server is, and how far apart they are."""

    cpu: Seconds | None = Field(default=None, gt=0, le=1024, examples=[0.2])
    """Cores that a broker and its node have together; none: no quota."""
    cpu_per_process: Seconds | None = Field(default=None, gt=0, le=1024, examples=[0.1])
    """Cores that each process of them can use at most, as one thread cannot use two cores."""
    period_ms: Seconds = Field(default=20.0, ge=1, le=1000, examples=[20.0])
    link_delay_ms: Seconds = Field(default=0.0, ge=0, le=60_000, examples=[5.0])
    """One way, between nodes."""
    link_mbit_s: Seconds | None = Field(default=None, gt=0, le=1_000_000, examples=[100.0])
    link: Annotated[tuple[EmulatedLink, ...], Field(strict=False)] = ()
    """Lines that differ from that."""

    @property
    def longest_delay_s(self) -> float:
        """One way, between any two nodes."""
        delays_ms = [self.link_delay_ms]
        for line in self.link:
            delays_ms += [line.delay_ms or 0.0, line.back_delay_ms or 0.0]
        return max(delays_ms) / 1e3


class Scenario(Section):
    """The whole file."""

    scenario: Overview
    load: Load = Field(default_factory=Load)
    latency: Latency | None = None
    place: Annotated[tuple[Place, ...], Field(strict=False)] = ()
    server: Annotated[tuple[Server, ...], Field(strict=False, min_length=1)]
    algorithm: AlgorithmName = Field(default="sf", examples=["sf"])
    emulation: Emulation = Field(default_factory=Emulation)

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic, in the order of its first mention; those of l-clients last."""
        named = [place.topic for place in self.place]
        if self.latency is not None:
            named.append(self.latency.topic)
        return tuple(dict.fromkeys(named))

    @property
    def sp_ratio(self) -> float:
        """How many subscribers a message of a t-client has on average (ILDM, Definition 1)."""
        publishers: dict[str, int] = {}
        subscribers: dict[str, int] = {}
        for place in self.place:
            publishers[place.topic] = publishers.get(place.topic, 0) + place.publishers
            subscribers[place.topic] = subscribers.get(place.topic, 0) + place.subscribers
        total = sum(publishers.values())
        return sum(publishers[t] * subscribers[t] for t in publishers) / total if total else 0.0

    def changed(
        self,
        *,
        broker: str | None = None,
        algorithm: str | None = None,
        duration_s: float | None = None,
        trim_s: float | None = None,
        interval_ns: int | None = None,
    ) -> Scenario:
        """The same with another broker at every server, another algorithm, or other times.

        Raises `ValueError` for what a file could not say either.
        """
        from isthmus.bench.scenario_contradictions import too_short

        overview = {"duration_s": duration_s, "trim_s": trim_s}
        changed = self.model_copy(
            update={
                "scenario": self.scenario.model_copy(
                    update={key: value for key, value in overview.items() if value is not None}
                ),
                "server": tuple(
                    server if broker is None else server.model_copy(update={"broker": broker})
                    for server in self.server
                ),
                "algorithm": self.algorithm if algorithm is None else algorithm,
                "load": self.load
                if interval_ns is None
                else self.load.model_copy(update={"interval_ms": interval_ns / 1e6, "rate": None}),
            }
        )
        if problem := too_short(changed.scenario.duration_s, changed.scenario.trim_s):
            raise ValueError(problem)
        if broker is not None:
            fabric_broker(broker)
        if algorithm is not None:
            known_algorithm(algorithm)
        return changed


def load_scenario(path: str | Path) -> Scenario:
    """Read and check a scenario; raises `ConfigError` with every mistake.

    A name without folder and suffix is that of a shipped one.
    """
    from isthmus.bench.scenario_contradictions import scenario_contradictions

    path = Path(path)
    if path.name == str(path) and not path.suffix and not path.exists():
        known = shipped()
        if path.name not in known:
            problem = "there is no such file, and no such scenario among those that ship: "
            raise ConfigError([ConfigMistake(str(path), "", problem + ", ".join(known))])
        path = known[path.name]
    return load_file(path, Scenario, scenario_contradictions)


def shipped() -> dict[str, Path]:
    """The scenarios that come with the package, by name."""
    folder = Path(str(files("isthmus.bench") / "scenarios"))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}
