"""What happened, one line each; a run without a trace pays nothing for it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from isthmus.mqtt.packets import Publish
from isthmus.sim.engine import Engine

__all__ = ["Trace"]

MAX_LINES = 200_000


@dataclass(eq=False, repr=False, slots=True)
class Trace:
    """Lines with the time in front.

    A run is a function of its seed, so a failure is searched for without a trace and run again
    with one.
    """

    _engine: Engine
    _: KW_ONLY
    on: bool
    lines: list[str] = field(default_factory=list)
    accusations: list[str] = field(default_factory=list)
    """Where a node found another at fault; all are honest here, so each is a fault of ours."""
    departures: list[tuple[float, str, str]] = field(default_factory=list)
    """When which machine let which neighbor go."""
    arrivals: list[tuple[float, str, str]] = field(default_factory=list)
    """When which machine was linked with which neighbor."""

    def linked(self, who: str, neighbor: str) -> None:
        self.arrivals.append((self._engine.now_s, who, neighbor))

    def let_go(self, who: str, neighbor: str) -> None:
        self.departures.append((self._engine.now_s, who, neighbor))

    def accuse(self, who: str, fields: dict[str, object]) -> None:
        self.accusations.append(f"{self._engine.now_s:.4f} {who}: {fields}")

    def note(self, who: str, what: str, **fields: object) -> None:
        if not self.on or len(self.lines) >= MAX_LINES:
            return
        rest = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        self.lines.append(f"{self._engine.now_s:10.4f} {who}: {what}{rest}")

    def publish(self, who: str, what: str, packet: Publish) -> None:
        if self.on:
            names = ("topic", "payload", "qos", "retain")
            self.note(who, what, **{name: getattr(packet, name) for name in names})

    def text(self) -> str:
        return "\n".join(self.lines)


def _shown(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
