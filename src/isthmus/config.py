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
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from isthmus.addresses import Address, BrokerUrl
from isthmus.errors import ConfigError, ConfigMistake
from isthmus.toml_lines import KeyLines

__all__ = [
    "Address",
    "Broker",
    "BrokerTls",
    "BrokerUrl",
    "FabricConfig",
    "FabricNode",
    "Limits",
    "Listen",
    "Log",
    "NodeConfig",
    "NodeIdentity",
    "Tls",
    "is_fabric_file",
    "load_fabric_config",
    "load_node_config",
]

MAX_PACKET_BYTES = 268_435_460  # 268,435,455 bytes remaining length + 5 of header [MQTT 2.1.4]
NODE_ID = r"^[A-Za-z0-9._-]{1,64}$"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string in quotes, not {value!r}")
    return value


def _address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(_text(value))


def _broker_url(value: object) -> BrokerUrl:
    return value if isinstance(value, BrokerUrl) else BrokerUrl.parse(_text(value))


def _path(value: object, info: ValidationInfo) -> Path:
    path = value if isinstance(value, Path) else Path(_text(value)).expanduser()
    base: Path = (info.context or {}).get("base", Path())
    return base / path


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of an existing PEM file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return path


def _fabric_broker(value: str) -> str:
    if ":" in value:
        return str(BrokerUrl.parse(value))
    if value == "auto":
        return value
    import difflib

    from isthmus.brokers import names

    known = names()
    if value not in known:
        near = difflib.get_close_matches(value, known, 1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f'{value!r} is not a known kind of broker{meant}; write "auto", a URL like '
            f'"mqtt://host:1883", or one of {", ".join(known)}'
        )
    return value


_as_text = PlainSerializer(str, return_type=str)
AddressField = Annotated[Address, PlainValidator(_address), _as_text]
BrokerUrlField = Annotated[BrokerUrl, PlainValidator(_broker_url), _as_text]
PathField = Annotated[Path, PlainValidator(_path), _as_text]
FileField = Annotated[PathField, AfterValidator(_existing_file)]
BrokerKind = Annotated[str, BeforeValidator(_text), AfterValidator(_fabric_broker)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every table: frozen, nothing unknown, nothing coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class NodeIdentity(Section):
    """``[node]``: who this node is."""

    id: str = Field(pattern=NODE_ID, examples=["edge-1"])
    state_dir: PathField | None = Field(default=None, examples=["/var/lib/isthmus"])


class Listen(Section):
    """``[listen]``: where clients and operators reach the node."""

    mqtt: AddressField | None = Field(
        default=Address("127.0.0.1", 1883), examples=["127.0.0.1:1883"]
    )
    mqtts: AddressField | None = Field(default=None, examples=["0.0.0.0:8883"])
    ws: AddressField | None = Field(default=None, examples=["127.0.0.1:8080"])
    wss: AddressField | None = Field(default=None, examples=["0.0.0.0:8443"])
    admin: AddressField | None = Field(default=None, examples=["127.0.0.1:9883"])


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


class Broker(Section):
    """``[broker]``: the broker this node stands in front of."""

    url: BrokerUrlField = Field(examples=["mqtt://127.0.0.1:1884"])
    tls: BrokerTls = Field(default_factory=BrokerTls)


class Limits(Section):
    """``[limits]``: what bounds memory and waiting."""

    packet_bytes: int = Field(
        default=16_777_216, ge=128, le=MAX_PACKET_BYTES, examples=[16_777_216]
    )
    clients: int = Field(default=8_000, ge=1, le=1_000_000, examples=[8_000])
    connect_timeout_s: Seconds = Field(default=10.0, gt=0, le=3600, examples=[10.0])
    broker_timeout_s: Seconds = Field(default=5.0, gt=0, le=3600, examples=[5.0])
    buffer_bytes: int = Field(default=65_536, ge=1024, le=1_073_741_824, examples=[65_536])
    pending_bytes: int = Field(default=268_435_456, ge=65_536, le=1 << 40, examples=[268_435_456])
    drain_s: Seconds = Field(default=4.0, ge=0, le=300, examples=[4.0])


class Log(Section):
    """``[log]``: what is written to standard error, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", examples=["info"])
    format: Literal["text", "json"] = Field(default="text", examples=["json"])


class NodeConfig(Section):
    """The whole file of one node."""

    node: NodeIdentity
    listen: Listen = Field(default_factory=Listen)
    tls: Tls = Field(default_factory=Tls)
    broker: Broker
    limits: Limits = Field(default_factory=Limits)
    log: Log = Field(default_factory=Log)


class FabricNode(Section):
    """``[[node]]`` of a fabric file: one node and the broker behind it."""

    id: str = Field(pattern=NODE_ID, examples=["edge-1"])
    broker: BrokerKind = Field(default="auto", examples=["mosquitto"])
    mqtt: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:1883"])
    ws: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:8080"])
    admin: AddressField = Field(default=Address("127.0.0.1", 0), examples=["127.0.0.1:9883"])


class FabricConfig(Section):
    """The whole file of a fabric of nodes and brokers on this machine."""

    node: Annotated[tuple[FabricNode, ...], Field(strict=False)]
    limits: Limits = Field(default_factory=Limits)
    log: Log = Field(default_factory=Log)


Model = TypeVar("Model", NodeConfig, FabricConfig)


def load_node_config(path: str | Path) -> NodeConfig:
    """Read and check a node's file; raises `ConfigError` with every mistake."""
    return _load(Path(path), NodeConfig)


def load_fabric_config(path: str | Path) -> FabricConfig:
    """Read and check a fabric's file; raises `ConfigError` with every mistake."""
    return _load(Path(path), FabricConfig)


def is_fabric_file(path: str | Path) -> bool:
    """Whether the file describes a fabric: it has ``[[node]]`` tables, not one ``[node]``."""
    return isinstance(_read(Path(path))[1].get("node"), list)


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


def _load(path: Path, model: type[Model]) -> Model:
    from isthmus.config_mistakes import (
        describe,
        dotted,
        fabric_contradictions,
        key_of,
        node_contradictions,
    )

    text, data = _read(path)
    found: dict[tuple[str | int, ...], str] = {}
    config: Model | None = None
    try:
        config = model.model_validate(data, context={"base": path.absolute().parent})
    except ValidationError as error:
        for item in error.errors(include_url=False):
            loc = key_of(data, item["loc"])
            found.setdefault(loc, describe(model, loc, item))
    check = node_contradictions if model is NodeConfig else fabric_contradictions
    for loc, problem in check(data):
        found.setdefault(loc, problem)
    if config is None or found:
        lines = KeyLines(text)
        mistakes = [
            ConfigMistake(str(path), dotted(loc), problem, lines.find(loc))
            for loc, problem in found.items()
        ]
        raise ConfigError(sorted(mistakes, key=lambda mistake: mistake.line or 0))
    return config
