"""SF as it is, and how long each of its decisions took: the algorithm ``timed-sf``.

A node runs it like any plug-in, through the entry-point group ``isthmus.algorithms``; `plug_in`
writes what an installed distribution would have there.  The times are part of its status.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from pathlib import Path

from isthmus.cooperation.api import Port, Route, SessionInfo
from isthmus.cooperation.registry import GROUP
from isthmus.cooperation.subscription_flooding.algorithm import SubscriptionFlooding

__all__ = ["TimedSubscriptionFlooding", "plug_in"]


class TimedSubscriptionFlooding(SubscriptionFlooding):
    """Notes the time of each call of `route`, in ns; nothing else differs."""

    name = "timed-sf"

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self._took_ns = array("Q")
        self._sent_to = array("B")

    def route(
        self, topic: str, arrived_on: SessionInfo, label: bytes = b"", *, retain: bool
    ) -> Route:
        begin = time.perf_counter_ns()
        found = super().route(topic, arrived_on, retain=retain)
        self._took_ns.append(time.perf_counter_ns() - begin)
        self._sent_to.append(len(found.neighbors))
        return found

    def status(self) -> dict[str, object]:
        times = {"took_ns": self._took_ns.tolist(), "sent_to": self._sent_to.tolist()}
        return super().status() | {"routes": times}


def plug_in(folder: Path) -> dict[str, str]:
    """Write a distribution into `folder`; the environment that has a node find it."""
    info = folder / "isthmus_bench-1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: isthmus-bench\nVersion: 1\n")
    cls = TimedSubscriptionFlooding
    info.joinpath("entry_points.txt").write_text(
        f"[{GROUP}]\n{cls.name} = {cls.__module__}:{cls.__qualname__}\n"
    )
    repository = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": f"{folder}:{repository}:{repository / 'src'}"}
