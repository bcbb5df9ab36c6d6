"""Scenarios: which clients publish and subscribe what, where, how often and for how long.

A scenario is a TOML file (``docs/reference/scenarios.md``); the paper's patterns ship with the
package (`shipped`).  Mistakes are reported as in every other file of ours: all at once, each with
file, line, key and what would be right.

Source: ILDM §5.2 (t-clients and l-clients), §6.1 and Table 3 (the patterns).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isthmus.bench.payload import SIZE
from isthmus.config import NODE_ID, load_file
from isthmus.config_fields import (
    AddressField,
    AlgorithmName,
    BrokerKind,
    PasswordField,
    Qos,
    Seconds,
    Section,
)
from isthmus.errors import ConfigError, ConfigMistake

__all__ = [
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

    interval_ms: Seconds | None = Field(default=None, gt=0, le=3_600_000, examples=[10.0])
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
    interval_s: Seconds = Field(default=1.0, gt=0, le=3_600, examples=[1.0])
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
        """The same with another broker at every server, another algorithm, or other times."""
        over = {"duration_s": duration_s, "trim_s": trim_s}
        return self.model_copy(
            update={
                "scenario": self.scenario.model_copy(
                    update={key: value for key, value in over.items() if value is not None}
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


def load_scenario(path: str | Path) -> Scenario:
    """Read and check a scenario; raises `ConfigError` with every mistake.

    A name without folder and suffix is that of a shipped one.
    """
    path = Path(path)
    if path.name == str(path) and not path.suffix and not path.exists():
        known = shipped()
        if path.name not in known:
            raise ConfigError(
                [
                    ConfigMistake(
                        str(path),
                        "",
                        "there is no such file, and no such scenario among those that ship: "
                        + ", ".join(known),
                    )
                ]
            )
        path = known[path.name]
    return load_file(path, Scenario, _contradictions)


def shipped() -> dict[str, Path]:
    """The scenarios that come with the package, by name."""
    folder = Path(str(files("isthmus.bench") / "scenarios"))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def _contradictions(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    yield from _times(_table(data, "scenario"))
    load = _table(data, "load")
    if ("interval_ms" in load) == ("rate" in load):
        problem = "both say how often" if "rate" in load else "is required, or rate"
        yield ("load", "interval_ms"), f"{problem}; give one of them, like interval_ms = 10.0"
    servers = _tables(data, "server")
    ids = [server.get("id") for server in servers]
    for index, server in enumerate(servers):
        yield from _server(index, server, ids)
    known = ", ".join(str(name) for name in ids)
    for index, place in enumerate(_tables(data, "place")):
        if place.get("node") is not None and place["node"] not in ids:
            yield ("place", index, "node"), f"there is no [[server]] {place['node']!r}; {known} are"
        if not place.get("publishers") and not place.get("subscribers"):
            yield ("place", index), "places nobody; give publishers = 10 or subscribers = 10"
        if wild := _wild(place.get("topic")):
            yield ("place", index, "topic"), wild
    latency = _table(data, "latency")
    yield from _latency(latency, ids, [place.get("topic") for place in _tables(data, "place")])
    if not any(place.get("publishers") for place in _tables(data, "place")) and not latency:
        yield ("place",), "nobody publishes; give a [[place]] publishers = 10"


def _times(overview: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    duration, trim = overview.get("duration_s", 80.0), overview.get("trim_s", 10.0)
    numbers = all(isinstance(value, int | float) for value in (duration, trim))
    if numbers and 2 * trim >= duration:
        yield (
            ("scenario", "trim_s"),
            f"{trim:g} s cut at each end leave nothing of {duration:g} s; "
            f"at most {duration / 4:g} is sensible",
        )


def _server(
    index: int, server: Mapping[str, Any], ids: list[Any]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if server.get("id") in ids[:index]:
        yield ("server", index, "id"), f"{server['id']!r} is there twice; each has its own"
    peers = server.get("peers")
    for peer in peers if isinstance(peers, list) else ():
        if peer not in ids or peer == server.get("id"):
            yield ("server", index, "peers"), f"there is no other [[server]] {peer!r}"
    if peers and server.get("with_node") is False:
        yield ("server", index, "peers"), "a bare broker has no links; remove with_node = false"
    if peers and "address" in server:
        yield ("server", index, "peers"), "what runs already is linked by its own node's file"
    if "admin" in server and "address" not in server:
        yield ("server", index, "admin"), "is for one that runs already; give its address too"


def _latency(
    latency: Mapping[str, Any], ids: list[Any], topics: list[Any]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    named = latency.get("subscribers")
    for key, nodes in (
        ("publisher", [latency["publisher"]] if "publisher" in latency else []),
        ("subscribers", named if isinstance(named, list) else []),
    ):
        for node in nodes:
            if node not in ids:
                known = ", ".join(str(name) for name in ids)
                yield ("latency", key), f"there is no [[server]] {node!r}; {known} are"
    topic = latency.get("topic", "topic6")
    if latency and topic in topics:
        yield ("latency", "topic"), f"{topic!r} is a topic of t-clients; l-clients need their own"
    if wild := _wild(topic):
        yield ("latency", "topic"), wild


def _wild(topic: object) -> str:
    wild = isinstance(topic, str) and ("#" in topic or "+" in topic)
    return f"{topic!r} has a wildcard; name one topic" if wild else ""


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _tables(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []
