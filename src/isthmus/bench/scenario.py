"""Scenarios: a fabric, and which clients publish and subscribe what, where and for how long.

    a fabric's file: [[node]] [cooperation] [discovery] [link] [limits] [log]
    and              [scenario] [load] [[place]] [latency]     who sends, how often
                     [emulation] [[emulation.link]]            how far apart, how broad, how small
                     [[cut]] [[crash]]                         what fails, and when

A scenario is a TOML file (``docs/reference/scenarios.md``), run for real by ``isthmus bench run``;
the paper's patterns ship with the package (`shipped`).  Mistakes are reported as in every other
file of ours: all at once, each with file, line, key and what would be right.

Source: ILDM §5.2 (t-clients and l-clients), §6.1 and Table 3 (the patterns).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from isthmus.config.faults import Crash, Cut, ends_late
from isthmus.config.fields import (
    AddressField,
    BrokerKind,
    Qos,
    Seconds,
    Section,
    fabric_broker,
    known_algorithm,
)
from isthmus.config.files import (
    NODE_ID,
    Cooperation,
    FabricConfig,
    FabricDiscovery,
    FabricNode,
    Limits,
    LinkTable,
    Log,
    load_file,
)
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
    "ScenarioNode",
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
    seed: int = Field(default=1, ge=0, examples=[1])
    """Of all that is random when it is simulated."""


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


class ScenarioNode(FabricNode):
    """``[[node]]``: a node and its broker, or a bare broker; started here, or running already."""

    broker: BrokerKind = Field(default="mosquitto", examples=["mosquitto"])
    with_node: bool = Field(default=True, examples=[True])
    address: AddressField | None = Field(default=None, examples=["192.0.2.7:1883"])
    """Where clients connect to one that runs already; then nothing is started for it.

    Its `admin` is then where it can be asked for the traffic of its links.
    """


def _two(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) != 2:
        raise ValueError(f'must name two nodes, not {len(names)}; like between = ["n1", "n2"]')
    return names


class EmulatedLink(Section):
    """``[[emulation.link]]``: the line between two nodes, where it is not as the others are."""

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
    """``[emulation]``: how small node and broker are together, and how far apart nodes are."""

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
    def ways(self) -> dict[tuple[str, str], tuple[float, float | None]]:
        """Delay in ms and Mbit/s from one node to another, where they are not as the others'."""
        found: dict[tuple[str, str], tuple[float, float | None]] = {}
        for line in self.link:
            one, other = line.between
            delay_ms = self.link_delay_ms if line.delay_ms is None else line.delay_ms
            mbit_s = self.link_mbit_s if line.mbit_s is None else line.mbit_s
            back_delay_ms = delay_ms if line.back_delay_ms is None else line.back_delay_ms
            back_mbit_s = mbit_s if line.back_mbit_s is None else line.back_mbit_s
            found[one, other] = (delay_ms, mbit_s)
            found[other, one] = (back_delay_ms, back_mbit_s)
        return found

    @property
    def longest_delay_s(self) -> float:
        """One way, between any two nodes."""
        delays_ms = [self.link_delay_ms]
        for line in self.link:
            delays_ms += [line.delay_ms or 0.0, line.back_delay_ms or 0.0]
        return max(delays_ms) / 1e3


class Scenario(Section):
    """The whole file: a fabric's, and what is done to it."""

    scenario: Overview
    node: Annotated[tuple[ScenarioNode, ...], Field(strict=False, min_length=1)]
    cooperation: Cooperation = Field(default_factory=Cooperation)
    discovery: FabricDiscovery = Field(default_factory=FabricDiscovery)
    link: LinkTable = Field(default_factory=LinkTable)
    limits: Limits = Field(default_factory=Limits)
    log: Log = Field(default_factory=Log)
    load: Load = Field(default_factory=Load)
    latency: Latency | None = None
    place: Annotated[tuple[Place, ...], Field(strict=False)] = ()
    emulation: Emulation = Field(default_factory=Emulation)
    cut: Annotated[tuple[Cut, ...], Field(strict=False)] = ()
    crash: Annotated[tuple[Crash, ...], Field(strict=False)] = ()

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

    @property
    def fabric(self) -> FabricConfig:
        """The nodes that are started here, each with its broker."""
        return FabricConfig(
            node=tuple(node for node in self.node if node.with_node and node.address is None),
            link=self.link,
            discovery=self.discovery,
            cooperation=self.cooperation,
            limits=self.limits,
            log=self.log,
        )

    def changed(
        self,
        *,
        broker: str | None = None,
        algorithm: str | None = None,
        duration_s: float | None = None,
        trim_s: float | None = None,
        interval_ns: int | None = None,
        seed: int | None = None,
    ) -> Scenario:
        """The same with another broker at every node, another algorithm, or other times.

        Keys of the algorithm that it had are left out with it.
        Raises `ValueError` for what a file could not say either.
        """
        from isthmus.bench.scenario_contradictions import too_short

        overview = {"duration_s": duration_s, "trim_s": trim_s, "seed": seed}
        changed = self.model_copy(
            update={
                "scenario": self.scenario.model_copy(
                    update={key: value for key, value in overview.items() if value is not None}
                ),
                "node": tuple(
                    node if broker is None else node.model_copy(update={"broker": broker})
                    for node in self.node
                ),
                "cooperation": self.cooperation
                if algorithm in (None, self.cooperation.algorithm)
                else Cooperation(algorithm=known_algorithm(algorithm or "")),
                "load": self.load
                if interval_ns is None
                else self.load.model_copy(update={"interval_ms": interval_ns / 1e6, "rate": None}),
            }
        )
        if problem := too_short(changed.scenario.duration_s, changed.scenario.trim_s):
            raise ValueError(problem)
        for key, faults in (("cut", self.cut), ("crash", self.crash)):
            for index, fault in enumerate(faults):
                if fault.end_s > changed.scenario.duration_s:
                    late = ends_late(changed.scenario.duration_s)
                    raise ValueError(f"{key}[{index}] {late}")
        if broker is not None:
            fabric_broker(broker)
        return changed


def load_scenario(path: str | Path, *, all_started: bool = False) -> Scenario:
    """Read and check a scenario; raises `ConfigError` with every mistake.

    A name without folder and suffix is that of a shipped one.  With `all_started` it is also a
    mistake if a node of it is not started, or a broker without a node.
    """
    from isthmus.bench.scenario_contradictions import (
        scenario_contradictions,
        started_contradictions,
    )

    path = Path(path)
    if path.name == str(path) and not path.suffix and not path.exists():
        known = shipped()
        if path.name not in known:
            problem = "there is no such file, and no such scenario among those that ship: "
            raise ConfigError([ConfigMistake(str(path), "", problem + ", ".join(known))])
        path = known[path.name]

    def contradictions(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from scenario_contradictions(data)
        if all_started:
            yield from started_contradictions(data)

    return load_file(path, Scenario, contradictions)


def shipped() -> dict[str, Path]:
    """The scenarios that come with the package, by name."""
    folder = Path(str(files("isthmus.bench") / "scenarios"))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}
