"""Schedules: who does what when.

A schedule is plain data, so that a failing one can be printed, made smaller and run again.  The
profiles of `PROFILES` stand in the order of what they allow, and so of how much can be asked of the
outcome:

`outages`  a tree that stays; connections break, partitions come and go within the hold time
`oneway`   likewise, and of two sides only one hears the other
`kills`    a tree that stays; nodes without clients of their own are killed and come back soon
`churn`    links are added and removed anywhere, rings included, clients come and go
`found`    no link is configured: nodes find each other by announcements, a third of which is lost,
           others come twice or late; one direction is cut, nodes crash and come back
`chaos`    nodes and brokers crash, vanish, stop and come back as well

Those of `ATTACKS` each have one kind of malice, on a tree that stays but for `storms`, with a
promise of its own (`isthmus.sim.promises`), and the last one has all of them:

`double`      two nodes are killed at once, and one of them is back late, within the hold time
`outlast`     links are cut, and nodes are away, for longer than the hold time
`expiry`      messages expire on links that are cut, now and then tens of thousands of them
`renamed`     another node answers at a node's address
`duplicates`  a second node of the same id joins, anywhere, and leaves
`clocks`      clocks are minutes or years wrong, and jump
`brokers`     brokers are slow, and close sessions on certain topics
`clients`     clients that may not connect speak all the same; others take their own sessions over
`torn`        nodes are killed while they write, and bits of their files flip
`storms`      many faults at once, on a graph with rings in which some nodes stay connected
`attack`      all of this, and what `chaos` has

That of `CONFIRMED` is for ``confirm = "fabric"``:

`forgetful`   nodes that keep nothing are killed, ingress, transit and egress alike, and brokers

And one of its own, in which what waits is on disk (`isthmus.sim.aparts`):

`apart`       brokers hang, nodes and brokers are away for longer than the hold time, disks fill
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isthmus.exchange.link.links import LinkSettings

__all__ = [
    "ATTACKS",
    "CONFIRMED",
    "EVERY_PROFILE",
    "FILTERS",
    "POISON",
    "PROFILES",
    "RETAINED",
    "STEADY",
    "TOPICS",
    "Action",
    "ClientSpec",
    "NodeSpec",
    "Schedule",
]

PROFILES: Final = ("outages", "oneway", "kills", "churn", "found", "chaos")
STEADY: Final = ("outages", "oneway", "kills")
"""Profiles in which subscribers and configured links stay."""
ATTACKS: Final = (
    "double",
    "outlast",
    "expiry",
    "renamed",
    "duplicates",
    "clocks",
    "brokers",
    "clients",
    "torn",
    "storms",
    "attack",
)
CONFIRMED: Final = ("forgetful",)
"""Profiles that promise something only of what is confirmed by the whole fabric."""
EVERY_PROFILE: Final = (*PROFILES, *ATTACKS, *CONFIRMED, "apart")
TOPICS: Final = ("t/a", "t/b", "t/a/x", "u/a", "u")
FILTERS: Final = (*TOPICS, "t/+", "t/#", "+/a", "#", "+/+/x", "u/#", "t/a/#", "w/#")
RETAINED: Final = ("r/a", "r/b")
"""Retained messages have topics of their own, because a late subscriber gets them too."""
POISON: Final = "t/poison"
"""What some brokers close a session on."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that somebody does, or that happens."""

    at_s: float
    kind: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_s:9.4f} {self.kind} {' '.join(self.args)}"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    state_dir: bool = True
    persistent_broker: bool = True
    broker_level: int = 5
    clock_ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClientSpec:
    client_id: str
    node: str
    level: int = 5
    session_expiry_s: int = 0
    will_topic: str = ""
    filters: tuple[str, ...] = ()
    """What it subscribes to from the start."""
    refused: bool = False
    """Its broker does not let it connect."""
    packet_ids: int = 65_535
    subscribes_again: bool = True
    """Also where its session is present."""
    repeats_qos1: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything a run depends on, besides the algorithm."""

    seed: int
    profile: str
    nodes: tuple[NodeSpec, ...]
    clients: tuple[ClientSpec, ...]
    links: tuple[tuple[str, str], ...]
    delay_s: float = 0.005
    bytes_per_s: float = 0.0
    lane_delay_s: float = 0.0
    control_delay_s: float = 0.0
    settings: LinkSettings = field(default_factory=LinkSettings)
    discovery: bool = False
    """Nodes find each other."""
    actions: tuple[Action, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"schedule {self.seed} ({self.profile}): wires {self.delay_s:g} s "
            f"{self.bytes_per_s:g} B/s, {self.lane_delay_s:g} s for each lane, "
            f"{self.control_delay_s:g} s for the first, {self.settings}",
            *(f"  {node}" for node in self.nodes),
            *(f"  {client}" for client in self.clients),
            f"  links {' '.join('-'.join(pair) for pair in self.links)}",
            *(f"  {action}" for action in self.actions),
        ]
        return "\n".join(lines)
