"""The broker that needs nothing but PyPI: amqtt, in a Python process of its own.

It is what a node uses when its configuration says `broker.url = "embedded:"`; from an event
loop, call :meth:`~isthmus.brokers.base.Broker.async_start`.  It keeps nothing on disk: after a
crash it comes back empty.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from isthmus.brokers.base import Broker
from isthmus.errors import BrokerMissing
from isthmus.processes.children import Launch

__all__ = ["Embedded"]


class Embedded(Broker):
    """amqtt; MQTT 3.1.1, anonymous."""

    name = "embedded"
    protocol_levels = (4,)
    start_timeout_s = 30.0

    @classmethod
    def missing(cls) -> BrokerMissing | None:
        if find_spec("amqtt") is None:
            remedy = f"run: {sys.executable} -m pip install 'isthmus[embedded]'"
            return BrokerMissing(cls.name, "the Python package amqtt", remedy)
        return None

    def configure(self, folder: Path) -> Launch:
        program = [sys.executable, "-m", "isthmus.brokers.embedded_main"]
        return Launch([*program, "--port", str(self.port)], pipe_stdin=True)
