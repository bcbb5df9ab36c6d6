"""Configuration files: what a node and a fabric may be told, and every mistake in it at once.

A file is TOML.  `load_node_config` and `load_fabric_config` either return a frozen model or
raise one :class:`~isthmus.errors.ConfigError` that lists *all* mistakes, each with the file, the
dotted key, the line, what was wrong and what would be right.

Invariants:

* unknown keys are mistakes, never ignored; values are not coerced (``"10"`` is not ``10``);
* relative paths are relative to the file's own folder, and files that are named exist;
* what the models here accept is documented in ``docs/reference/configuration.md``; a test
  compares the two.

Mistakes between keys (``mqtts`` without a certificate) are looked for in the raw tables rather
than in a validator of the model, because a validator only runs once every field is right, and
the user would then learn of them one run later.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    ValidationError,
    field_serializer,
)

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.config.fields import (
    AddressField,
    AlgorithmName,
    AnyGroupField,
    BrokerKind,
    BrokerUrlField,
    FileField,
    GroupField,
    HostName,
    InterestFilter,
    LinkFilters,
    LinkPrefix,
    PasswordField,
    PathField,
    PeerAddressField,
    Qos,
    Seconds,
    SecretField,
    SecretFileField,
    Section,
    TextFileField,
    TopicFilter,
    is_loopback,
)
from isthmus.config.toml_lines import KeyLines
from isthmus.cooperation.link_rules import LinkRules
from isthmus.errors import ConfigError, ConfigMistake

__all__ = [
    "PROTECT",
    "Address",
    "BrokerTable",
    "BrokerTls",
    "BrokerUrl",
    "Cooperation",
    "DiscoveryTable",
    "FabricConfig",
    "FabricDiscovery",
    "FabricNode",
    "InterestTable",
    "Limits",
    "LinkTable",
    "LinkTls",
    "Listen",
    "Log",
    "NodeConfig",
    "NodeIdentity",
    "PeerTable",
    "Tls",
    "is_fabric_file",
    "is_scenario_file",
    "is_simulation_file",
    "load_fabric_config",
    "load_file",
    "load_node_config",
    "located",
    "option_error",
    "peer_from",
]

MAX_PACKET_BYTES = 268_435_460  # 268,435,455 bytes remaining length + 5 of header [MQTT 2.1.4]
PROTECT = (
    "set link.tls (cert, key and ca) on all nodes, or, on a network where nobody else is, "
    "link.secret_file and link.private_network = true"
)
"""What to do about links that leave the machine."""
NODE_ID = r"^[A-Za-z0-9._-]{1,64}$"
MAX_BROKERS = 256
OF_SEVERAL = ("name", "topics", "away")
"""Keys of ``[broker]`` that one of several has."""
MAX_TOPIC_FILTERS = 1_000
"""Of one broker."""


class NodeIdentity(Section):
    """``[node]``: who this node is."""

    id: str = Field(pattern=NODE_ID, examples=["edge-1"])
    state_dir: PathField | None = Field(default=None, examples=["/var/lib/isthmus"])
    advertise: PeerAddressField | None = Field(default=None, examples=["node-1.example:7883"])


class Listen(Section):
    """``[listen]``: where clients, other nodes and operators reach the node."""

    mqtt: AddressField | None = Field(
        default=Address("127.0.0.1", 1883), examples=["127.0.0.1:1883"]
    )
    mqtts: AddressField | None = Field(default=None, examples=["0.0.0.0:8883"])
    ws: AddressField | None = Field(default=None, examples=["127.0.0.1:8080"])
    wss: AddressField | None = Field(default=None, examples=["0.0.0.0:8443"])
    link: AddressField | None = Field(default=None, examples=["127.0.0.1:7883"])
    admin: AddressField | None = Field(default=None, examples=["127.0.0.1:9883"])
    admin_hosts: Annotated[tuple[HostName, ...], Field(strict=False)] = Field(
        default=(), examples=[["node-1.example"]]
    )


class Tls(Section):
    """``[tls]``: the node's own certificate, shown to clients on mqtts and wss."""

    cert: FileField | None = Field(default=None, examples=["node.crt"])
    key: FileField | None = Field(default=None, examples=["node.key"])
    client_ca: FileField | None = Field(default=None, examples=["clients-ca.crt"])
    require_client_cert: bool = Field(default=False, examples=[True])


class BrokerTls(Section):
    """``[broker.tls]``: how an mqtts broker is checked, and what is shown to it."""

    ca: FileField | None = Field(default=None, examples=["broker-ca.crt"])
    cert: FileField | None = Field(default=None, examples=["node-client.crt"])
    key: FileField | None = Field(default=None, examples=["node-client.key"])
    server_name: str | None = Field(default=None, min_length=1, examples=["broker.example"])
    verify: bool = Field(default=True, examples=[True])


Source = Literal["clients", "broker"]


class BrokerTable(Section):
    """``[broker]``: the broker this node stands in front of; ``[[broker]]``: one of several.

    User name and password are for the node's own sessions, which publish what comes from other
    nodes; clients present their own.
    """

    name: str | None = Field(default=None, pattern=NODE_ID, examples=["main"])
    topics: Annotated[tuple[TopicFilter, ...], Field(strict=False)] | None = Field(
        default=None, max_length=MAX_TOPIC_FILTERS, examples=[["plant/#"]]
    )
    away: Literal["refuse", "hold"] = Field(default="refuse", examples=["refuse"])
    url: BrokerUrlField = Field(examples=["mqtt://127.0.0.1:1884"])
    username: str | None = Field(default=None, min_length=1, examples=["isthmus"])
    password: PasswordField | None = Field(default=None, repr=False)
    password_file: TextFileField | None = Field(default=None, examples=["broker.password"])
    source: Source = Field(default="clients", examples=["clients"])
    tls: BrokerTls = Field(default_factory=BrokerTls)

    def password_bytes(self) -> bytes | None:
        """The password, from wherever it was given; a file is read without its last line's end."""
        if self.password_file is not None:
            return self.password_file.read_bytes().rstrip(b"\r\n")
        return None if self.password is None else self.password.encode()


class LinkTls(Section):
    """``[link.tls]``: nodes show each other certificates; all three files, or none."""

    cert: FileField | None = Field(default=None, examples=["node.crt"])
    key: FileField | None = Field(default=None, examples=["node.key"])
    ca: FileField | None = Field(default=None, examples=["fabric-ca.crt"])


class LinkTable(Section):
    """``[link]``: how this node talks to other nodes, whoever connects."""

    qos: Qos = Field(default=1, examples=[1])
    lanes: int = Field(default=1, ge=1, le=64, examples=[1])
    spread: Literal["topic", "round-robin"] = Field(default="topic", examples=["topic"])
    dead_after_s: Seconds = Field(default=1.8, ge=0.2, le=60, examples=[1.8])
    hold_s: Seconds = Field(default=60.0, ge=0, le=86_400, examples=[60.0])
    queue_bytes: int = Field(default=16_777_216, ge=65_536, le=1 << 40, examples=[16_777_216])
    apart_bytes: int = Field(default=4_294_967_296, ge=0, le=1 << 50, examples=[4_294_967_296])
    apart_s: Seconds = Field(default=3600.0, ge=0, le=604_800, examples=[3600.0])
    pending_qos0: Literal["drop", "hold"] = Field(default="drop", examples=["drop"])
    secret: SecretField | None = Field(default=None, repr=False)
    secret_file: SecretFileField | None = Field(default=None, examples=["fabric.secret"])
    private_network: bool = Field(default=False, examples=[True])
    tls: LinkTls = Field(default_factory=LinkTls)

    def secret_bytes(self) -> bytes:
        """What both ends of a link must know; empty if nothing was said."""
        if self.secret_file is not None:
            return self.secret_file.read_bytes().strip()
        return b"" if self.secret is None else self.secret.encode()

    @property
    def leaves_the_machine(self) -> bool:
        """Whether it is safe to link with nodes on other machines."""
        return self.tls.cert is not None or (self.private_network and bool(self.secret_bytes()))

    def check_peer(self, address: Address) -> None:
        """`ValueError` if a node at `address` must not be linked with."""
        if not is_loopback(address.host) and not self.leaves_the_machine:
            raise ValueError(f"address: {address} is not on this machine; {PROTECT}")


class PeerTable(Section):
    """``[[peer]]``: another node, which this one connects to and keeps connected to."""

    model_config = ConfigDict(serialize_by_alias=True)

    address: PeerAddressField = Field(examples=["192.0.2.7:7883"])
    lanes: int | None = Field(default=None, ge=1, le=64, examples=[1])
    qos: Qos | None = Field(default=None, examples=[1])
    out: LinkFilters | None = Field(default=None, examples=[["plant/#"]])
    into: LinkFilters | None = Field(default=None, alias="in", examples=[["commands/#"]])
    prefix: LinkPrefix | None = Field(default=None, examples=["site-1/"])

    @property
    def rules(self) -> LinkRules:
        """What may cross the link."""
        return LinkRules(self.out, self.into, self.prefix or "")


class InterestTable(Section):
    """``[[interest]]``: what is wanted by subscribers that connect to the broker directly."""

    filter: InterestFilter = Field(examples=["sensors/#"])


Confirm = Literal["local", "fabric"]


class Cooperation(Section):
    """``[cooperation]``: the algorithm that decides which message goes where.

    The algorithm's own keys stand in the same table.  They are not known here: the algorithm
    itself judges them when the node starts.
    """

    model_config = ConfigDict(extra="allow")

    algorithm: AlgorithmName = Field(default="sf", examples=["sf"])
    retained: Literal["everywhere", "routed"] = Field(default="everywhere", examples=["everywhere"])
    confirm: Confirm = Field(default="local", examples=["local"])
    confirm_s: Seconds = Field(default=10.0, gt=0, le=3600, examples=[10.0])
    confirm_back_s: Seconds = Field(default=60.0, gt=0, le=86_400, examples=[60.0])
    confirm_topics: dict[str, Confirm] = Field(default={}, examples=[{"alarms/": "fabric"}])

    @property
    def options(self) -> Mapping[str, object]:
        """The algorithm's own keys."""
        return MappingProxyType(self.model_extra or {})


class Limits(Section):
    """``[limits]``: what bounds memory and waiting."""

    packet_bytes: int = Field(
        default=16_777_216, ge=128, le=MAX_PACKET_BYTES, examples=[16_777_216]
    )
    connect_bytes: int = Field(default=131_072, ge=128, le=MAX_PACKET_BYTES, examples=[131_072])
    property_bytes: int = Field(default=32_768, ge=128, le=65_536, examples=[32_768])
    filters_per_packet: int = Field(default=1_024, ge=1, le=1_000_000, examples=[1_024])
    filters_per_client: int = Field(default=10_000, ge=1, le=10_000_000, examples=[10_000])
    topic_levels: int = Field(default=128, ge=1, le=65_536, examples=[128])
    clients: int = Field(default=8_000, ge=1, le=1_000_000, examples=[8_000])
    connect_timeout_s: Seconds = Field(default=10.0, gt=0, le=3600, examples=[10.0])
    broker_timeout_s: Seconds = Field(default=5.0, gt=0, le=3600, examples=[5.0])
    buffer_bytes: int = Field(default=65_536, ge=1024, le=1_073_741_824, examples=[65_536])
    pending_bytes: int = Field(default=268_435_456, ge=65_536, le=1 << 40, examples=[268_435_456])
    pending_bytes_per_address: int = Field(
        default=67_108_864, ge=65_536, le=1 << 40, examples=[67_108_864]
    )
    drain_s: Seconds = Field(default=4.0, ge=0, le=300, examples=[4.0])
    rest_s: Seconds = Field(default=0.004, ge=0, le=0.1, examples=[0.004])


class DiscoveryTable(Section):
    """``[discovery]``: how nodes that do not know each other find each other."""

    group: GroupField | None = Field(default=None, examples=["239.255.77.84:7884"])
    interface: str | None = Field(default=None, min_length=1, examples=["192.0.2.7"])
    ttl: int = Field(default=1, ge=0, le=255, examples=[1])
    listen: AddressField | None = Field(default=None, examples=["0.0.0.0:7885"])
    seeds: Annotated[tuple[PeerAddressField, ...], Field(strict=False)] = Field(
        default=(), examples=[["edge-1.example:7885"]]
    )
    every_s: Seconds = Field(default=2.0, ge=0.1, le=600, examples=[2.0])
    link: bool = Field(default=True, examples=[True])

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to tell, or to hear from."""
        return self.group is not None or self.listen is not None or bool(self.seeds)


class Log(Section):
    """``[log]``: what is written to standard error, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", examples=["info"])
    format: Literal["text", "json"] = Field(default="text", examples=["json"])


def _as_tables(value: object) -> object:
    """One table ``[broker]`` stands for a list of one."""
    return [value] if isinstance(value, Mapping | BrokerTable) else value


class NodeConfig(Section):
    """The whole file of one node."""

    node: NodeIdentity
    listen: Listen = Field(default_factory=Listen)
    tls: Tls = Field(default_factory=Tls)
    brokers: Annotated[
        tuple[BrokerTable, ...], Field(strict=False), BeforeValidator(_as_tables)
    ] = Field(alias="broker", max_length=MAX_BROKERS)
    link: LinkTable = Field(default_factory=LinkTable)
    peer: Annotated[tuple[PeerTable, ...], Field(strict=False)] = ()
    interest: Annotated[tuple[InterestTable, ...], Field(strict=False)] = ()
    discovery: DiscoveryTable = Field(default_factory=DiscoveryTable)
    cooperation: Cooperation = Field(default_factory=Cooperation)
    limits: Limits = Field(default_factory=Limits)
    log: Log = Field(default_factory=Log)

    @field_serializer("brokers")
    def _as_written(self, brokers: tuple[BrokerTable, ...], info: FieldSerializationInfo) -> Any:
        """One that has no name is a table, without the keys of several."""
        mode = "json" if info.mode_is_json() else "python"
        tables = [table.model_dump(mode=mode) for table in brokers]
        if self.has_several_brokers:
            return tables
        return {key: each for key, each in tables[0].items() if key not in OF_SEVERAL}

    @property
    def broker(self) -> BrokerTable:
        """The only broker, or the first of several."""
        return self.brokers[0]

    @property
    def has_several_brokers(self) -> bool:
        """Whether it says ``[[broker]]``, if only once."""
        return self.broker.name is not None

    @property
    def broker_names(self) -> tuple[str, ...]:
        """Of several brokers; else nothing."""
        return tuple(str(each.name) for each in self.brokers) if self.has_several_brokers else ()

    @property
    def link_address(self) -> str:
        """Where other nodes can dial this one; empty if nobody can, or it is not known."""
        address = self.node.advertise or self.listen.link
        if address is None or address.port == 0 or address.host in ("0.0.0.0", "::"):
            return ""
        return str(address)


class FabricNode(Section):
    """``[[node]]`` of a fabric file: one node and the broker behind it."""

    id: str = Field(pattern=NODE_ID, examples=["edge-1"])
    broker: BrokerKind = Field(default="auto", examples=["mosquitto"])
    mqtt: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:1883"])
    ws: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:8080"])
    admin: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:9883"])
    link: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:7883"])
    peers: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), examples=[["edge-2"]]
    )
    username: str | None = Field(default=None, min_length=1, examples=["isthmus"])
    password: PasswordField | None = Field(default=None, repr=False)
    password_file: TextFileField | None = Field(default=None, examples=["broker.password"])
    source: Source = Field(default="clients", examples=["clients"])
    interest: Annotated[tuple[InterestFilter, ...], Field(strict=False)] = Field(
        default=(), examples=[["sensors/#"]]
    )


class FabricDiscovery(Section):
    """``[discovery]`` of a fabric file: its nodes, all on this machine, find each other."""

    group: AnyGroupField | None = Field(default=None, examples=["239.255.77.84:0"])
    interface: str | None = Field(default=None, min_length=1, examples=["127.0.0.1"])
    ttl: int = Field(default=0, ge=0, le=255, examples=[0])
    every_s: Seconds = Field(default=2.0, ge=0.1, le=600, examples=[2.0])

    @property
    def is_on(self) -> bool:
        return self.group is not None

    def of_nodes(self) -> DiscoveryTable:
        """What stands in the file of each of its nodes."""
        interface = self.interface or ("127.0.0.1" if self.is_on else None)
        return DiscoveryTable(
            group=self.group, interface=interface, ttl=self.ttl, every_s=self.every_s
        )


class FabricConfig(Section):
    """The whole file of a fabric of nodes and brokers on this machine."""

    node: Annotated[tuple[FabricNode, ...], Field(strict=False)]
    link: LinkTable = Field(default_factory=LinkTable)
    discovery: FabricDiscovery = Field(default_factory=FabricDiscovery)
    cooperation: Cooperation = Field(default_factory=Cooperation)
    limits: Limits = Field(default_factory=Limits)
    log: Log = Field(default_factory=Log)


Model = TypeVar("Model", bound=BaseModel)
Contradictions = Callable[[Mapping[str, Any]], Iterable[tuple[tuple[str | int, ...], str]]]
"""Finds mistakes between keys in the raw tables: where, and what would be right."""


def load_node_config(path: str | Path) -> NodeConfig:
    """Read and check a node's file; raises `ConfigError` with every mistake."""
    from isthmus.config.contradictions import node_contradictions

    return load_file(Path(path), NodeConfig, node_contradictions)


def load_fabric_config(path: str | Path) -> FabricConfig:
    """Read and check a fabric's file; raises `ConfigError` with every mistake."""
    from isthmus.config.contradictions import fabric_contradictions

    return load_file(Path(path), FabricConfig, fabric_contradictions)


def peer_from(data: object) -> PeerTable:
    """Check what would stand in a ``[[peer]]`` table; raises `ConfigError` with every mistake."""
    from isthmus.config.mistakes import describe, dotted

    try:
        return PeerTable.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            [
                ConfigMistake("", dotted(loc), describe(PeerTable, loc, item))
                for item in error.errors(include_url=False)
                for loc in [item["loc"][:1]]
            ]
        ) from None


def option_error(error: ValueError) -> ConfigError:
    """What an algorithm says of its own keys, ``KEY: PROBLEM``, as a mistake in the file."""
    key, _, problem = str(error).partition(": ")
    return ConfigError([ConfigMistake("", f"cooperation.{key}", problem)])


def located(error: ConfigError, path: str | Path) -> ConfigError:
    """`error` with file and line, for mistakes that only came to light when the node started."""
    lines = KeyLines(_read(Path(path))[0])
    return ConfigError(
        [
            mistake
            if mistake.file
            else ConfigMistake(
                str(path), mistake.key, mistake.problem, lines.find(tuple(mistake.key.split(".")))
            )
            for mistake in error.mistakes
        ]
    )


def is_fabric_file(path: str | Path) -> bool:
    """Whether the file describes a fabric: it has ``[[node]]`` tables, not one ``[node]``."""
    return isinstance(_read(Path(path))[1].get("node"), list)


def is_scenario_file(path: str | Path) -> bool:
    """Whether the file describes a benchmark: it has a table ``[scenario]``."""
    return "scenario" in _read(Path(path))[1]


def is_simulation_file(path: str | Path) -> bool:
    """Whether the file describes a simulation: it has a table ``[simulation]``."""
    return "simulation" in _read(Path(path))[1]


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and tables; an unreadable or malformed file is one `ConfigError`."""

    def fail(problem: str, line: int | None = None) -> ConfigError:
        return ConfigError([ConfigMistake(str(path), "", problem, line)])

    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise fail(f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        at = re.search(r"\(at line (\d+), column \d+\)", problem)
        last = text.count("\n") + (not text.endswith("\n"))
        raise fail(f"not valid TOML: {problem}", int(at[1]) if at else last) from None
    except ValueError:
        raise fail("has a number of thousands of digits") from None
    except RecursionError:
        raise fail("has lists or tables within each other, hundreds deep") from None


def load_file(path: Path, model: type[Model], contradictions: Contradictions) -> Model:
    """Read and check a file of the form `model`; raises `ConfigError` with every mistake."""
    from isthmus.config.mistakes import describe, dotted, key_of

    text, data = _read(path)
    found: dict[tuple[str | int, ...], str] = {}
    config: Model | None = None
    try:
        config = model.model_validate(data, context={"base": path.absolute().parent})
    except ValidationError as error:
        for item in error.errors(include_url=False):
            loc = key_of(data, item["loc"])
            found.setdefault(loc, describe(model, loc, item))
    for loc, problem in contradictions(data):
        found.setdefault(loc, problem)
    if config is None or found:
        lines = KeyLines(text)
        mistakes = [
            ConfigMistake(str(path), dotted(loc), problem, lines.find(loc))
            for loc, problem in found.items()
        ]
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line or 0))
    return config
