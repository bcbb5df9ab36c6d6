"""The kinds of value a configuration file holds: addresses, files, secrets, names of brokers.

Each is a type for the models of :mod:`isthmus.config.files` that reads what stands in the file,
says in a `ValueError` what would be right, and prints as it is read.

Secrets are the exception: they print as ``(hidden)`` wherever a model is shown, and only
`model_dump` in Python's own mode gives them away.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
)

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.cooperation.api import MAX_LEVELS
from isthmus.errors import AlgorithmError, RemoteProtocolError
from isthmus.mqtt.filters.topics import SHARE_PREFIX, check_topic_filter

__all__ = [
    "MIN_SECRET",
    "AddressField",
    "AlgorithmName",
    "AnyGroupField",
    "BrokerKind",
    "BrokerUrlField",
    "FileField",
    "GroupField",
    "HostName",
    "InterestFilter",
    "PasswordField",
    "PathField",
    "PeerAddressField",
    "Qos",
    "Seconds",
    "SecretField",
    "SecretFileField",
    "Section",
    "TextFileField",
    "TopicFilter",
    "fabric_broker",
    "ip_version",
    "is_loopback",
    "known_algorithm",
    "topic_filter",
]

MIN_SECRET = 16
MIN_DIFFERENT = 6
HIDDEN = "(hidden)"


class Section(BaseModel):
    """Base of every table: frozen, nothing unknown, nothing coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine as only this machine itself reaches it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def ip_version(host: str) -> int | None:
    """4 or 6; None if `host` is a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string in quotes, not {value!r}")
    return value


def _address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(_text(value))


def _peer_address(address: Address) -> Address:
    if address.port == 0:
        raise ValueError(
            f'"{address}" has no port to connect to; write the port of the [listen] link there'
        )
    if address.host in ("0.0.0.0", "::"):
        raise ValueError(
            f'"{address}" is where to listen, not where to connect to; write a host, '
            f'like "192.0.2.7:{address.port}"'
        )
    return address


def _multicast(address: Address) -> Address:
    try:
        group = ipaddress.ip_address(address.host)
    except ValueError:
        group = None
    if group is None or not group.is_multicast:
        raise ValueError(
            f'"{address}" is no multicast group; write one like "239.255.77.84:7884" or '
            '"[ff05::7784]:7884"'
        )
    return address


def _group(address: Address) -> Address:
    if _multicast(address).port == 0:
        raise ValueError(f'"{address}" has no port; all nodes of the group need the same')
    return address


def _host_name(value: object) -> str:
    name = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(
            f'{name!r} is not a host name; write the name alone, like "node-1.example", without '
            "http:// and without a port"
        )
    return name


def _broker_url(value: object) -> BrokerUrl:
    return value if isinstance(value, BrokerUrl) else BrokerUrl.parse(_text(value))


def _path(value: object, info: ValidationInfo) -> Path:
    path = value if isinstance(value, Path) else Path(_text(value)).expanduser()
    base: Path = (info.context or {}).get("base", Path())
    return base / path


def _existing_file(path: Path, kind: str = "PEM file") -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of an existing {kind}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return path


def _text_file(path: Path) -> Path:
    return _existing_file(path, "file")


def _long_enough(secret: str, where: str = "") -> str:
    """What comes out of a random generator passes; what somebody thought of often does not."""
    problem = ""
    if len(secret) < MIN_SECRET:
        problem = f"has {len(secret)} characters, a secret has {MIN_SECRET} or more"
    elif len(set(secret)) < MIN_DIFFERENT:
        problem = f"has only {len(set(secret))} different characters"
    elif any(secret == (secret[:n] * len(secret))[: len(secret)] for n in range(1, MIN_SECRET)):
        problem = "repeats itself"
    if problem:
        raise ValueError(f"{where}{problem}; for example what `openssl rand -hex 16` prints")
    return secret


def _secret_file(path: Path) -> Path:
    _long_enough(_text_file(path).read_bytes().strip().decode("latin-1"), f"{path} ")
    return path


def _not_a_boolean(value: object) -> object:
    if isinstance(value, bool):  # which is an integer to Python, and equal to 0 or 1
        raise ValueError(f"must be 0, 1 or 2, not {str(value).lower()}")
    return value


def _password(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string in quotes")  # and not repeated: it may be the secret
    return value


def _link_filter(text: str) -> str:
    from isthmus.cooperation.link_rules import check_filter

    check_filter(text)
    return text


def _link_prefix(text: str) -> str:
    from isthmus.cooperation.link_rules import check_prefix

    check_prefix(text)
    return text


def _interest_filter(value: object) -> str:
    topic_filter = _text(value)
    if topic_filter.startswith("$"):
        raise ValueError(
            f"{topic_filter!r} starts with $: shared subscriptions and what a broker says of "
            'itself stay with it; write what is wanted from others, like "sensors/#"'
        )
    try:
        check_topic_filter(topic_filter)
    except RemoteProtocolError as error:
        raise ValueError(
            f'{topic_filter!r} is no topic filter: {error}; write one like "sensors/#"'
        ) from None
    if topic_filter.count("/") >= MAX_LEVELS:
        raise ValueError(f"has more than {MAX_LEVELS} levels")
    return topic_filter


def known_algorithm(name: str) -> str:
    """`name` if there is such an algorithm; else a `ValueError` says which there are."""
    from isthmus.cooperation import registry

    try:
        registry.load(name)
    except AlgorithmError as error:
        near = difflib.get_close_matches(name, error.available, 1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        listed = f"; known: {', '.join(error.available)}" if error.available else ""
        raise ValueError(f'"{name}" {error.problem}{meant}{listed}') from None
    return name


def topic_filter(value: object) -> str:
    """What a broker has; else a `ValueError` says what is wrong with it."""
    text = _text(value)
    try:
        check_topic_filter(text, shared_subscriptions=False)
    except RemoteProtocolError as error:
        raise ValueError(error.args[0]) from None
    if text.startswith(SHARE_PREFIX):
        raise ValueError(f'"{text}" is a shared subscription; write the filter behind its name')
    return text


def fabric_broker(value: str) -> str:
    """A broker's kind, ``auto`` or a URL; else a `ValueError` says which there are."""
    if ":" in value:
        return str(BrokerUrl.parse(value))
    if value == "auto":
        return value
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
_hidden = PlainSerializer(lambda _: HIDDEN, return_type=str, when_used="json-unless-none")

AddressField = Annotated[Address, PlainValidator(_address), _as_text]
HostName = Annotated[str, PlainValidator(_host_name)]
InterestFilter = Annotated[str, PlainValidator(_interest_filter)]
GroupField = Annotated[AddressField, AfterValidator(_group)]
AnyGroupField = Annotated[AddressField, AfterValidator(_multicast)]
PeerAddressField = Annotated[AddressField, AfterValidator(_peer_address)]
BrokerUrlField = Annotated[BrokerUrl, PlainValidator(_broker_url), _as_text]
PathField = Annotated[Path, PlainValidator(_path), _as_text]
FileField = Annotated[PathField, AfterValidator(_existing_file)]
TextFileField = Annotated[PathField, AfterValidator(_text_file)]
SecretFileField = Annotated[PathField, AfterValidator(_secret_file)]
SecretField = Annotated[str, PlainValidator(_password), AfterValidator(_long_enough), _hidden]
PasswordField = Annotated[str, PlainValidator(_password), _hidden]
TopicFilter = Annotated[str, PlainValidator(topic_filter)]
AlgorithmName = Annotated[str, BeforeValidator(_text), AfterValidator(known_algorithm)]
BrokerKind = Annotated[str, BeforeValidator(_text), AfterValidator(fabric_broker)]
LinkFilter = Annotated[str, BeforeValidator(_text), AfterValidator(_link_filter)]
LinkFilters = Annotated[tuple[LinkFilter, ...], Field(strict=False, max_length=64)]
LinkPrefix = Annotated[str, BeforeValidator(_text), AfterValidator(_link_prefix)]
Qos = Annotated[Literal[0, 1, 2], BeforeValidator(_not_a_boolean)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
