"""The phases of a node in a fabric that builds itself (Overlays Fig. 2), as a table.

The paper restarts from DISCOVERY when somebody new is heard, and from scratch when somebody is
lost.  Here a node that is in use stays in use: who is new is linked with, which is noticed
as a *stranger*, and who is lost leaves the tree in use until the next one is complete.

`make life` draws the table into docs/explanation/tree.md; `make check` compares.
"""

from __future__ import annotations

from enum import Enum

from isthmus.tables import table_of

__all__ = ["PHASES", "Phase", "PhaseAction", "PhaseEvent"]


class Phase(Enum):
    DISCOVERY = "looking for others"
    OTC = "building the first tree"
    RUNTIME = "running"
    RECOVERY = "running, while another tree is built"


class PhaseEvent(Enum):
    FOUND = "T_d is over, or there is nobody to find"
    ADOPTED = "a tree is complete"
    STRANGER = "a neighbor is not in the tree"
    BROKEN = "a link of the tree is lost"
    BETTER = "a better tree is likely"


class PhaseAction(Enum):
    BUILD = "begin a wave"
    USE = "send by the new tree, also again what is not acknowledged"


PHASES = table_of(
    (Phase, PhaseEvent, PhaseAction),
    """
    DISCOVERY  FOUND     OTC        BUILD
    DISCOVERY  ADOPTED   RUNTIME    USE
    DISCOVERY  STRANGER  OTC        BUILD
    DISCOVERY  BROKEN    DISCOVERY
    OTC        ADOPTED   RUNTIME    USE
    OTC        STRANGER  OTC        BUILD
    OTC        BROKEN    OTC        BUILD
    RUNTIME    ADOPTED   RUNTIME    USE
    RUNTIME    STRANGER  RECOVERY   BUILD
    RUNTIME    BROKEN    RECOVERY   BUILD
    RUNTIME    BETTER    RECOVERY   BUILD
    RECOVERY   ADOPTED   RUNTIME    USE
    RECOVERY   STRANGER  RECOVERY   BUILD
    RECOVERY   BROKEN    RECOVERY   BUILD
    RECOVERY   BETTER    RECOVERY   BUILD
    """,
)
