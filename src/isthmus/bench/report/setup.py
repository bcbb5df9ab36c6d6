"""What a benchmark ran on: the machine, and the versions of what was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from isthmus import __version__

__all__ = ["broker_version", "machine"]

_FROM_DEBIAN: Final = {
    "mosquitto": "mosquitto",
    "ejabberd": "ejabberd",
    "rabbitmq": "rabbitmq-server",
    "activemq": "activemq",
}
UNKNOWN: Final = "version not known"


def machine() -> Mapping[str, str]:
    """What of this machine bears on the figures."""
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "uvloop": _package("uvloop"),
        "Spark": _package("pyspark"),
        "Isthmus": __version__,
    }


def broker_version(broker: str) -> str:
    """The version of a broker of :mod:`isthmus.brokers` that is installed here."""
    if broker == "embedded":
        return f"amqtt {_package('amqtt')}"
    if broker in _FROM_DEBIAN:
        return _debian(_FROM_DEBIAN[broker])
    artifact = getattr(import_module(f"isthmus.brokers.{broker}"), "ARTIFACT", None)
    return UNKNOWN if artifact is None else str(artifact.version)


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return UNKNOWN


def _debian(package: str) -> str:
    try:
        answer = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return answer.stdout.strip() or UNKNOWN


def _processor() -> str:
    try:
        lines: Iterable[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = ()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
