"""The Geo paper's model: messages that a broker receives and transmits in a unit of time, eq. 1-6.

    System 1   every broker gets every message                          eq. 1, 2
    System 2   a broker gets what its subscribers want                  eq. 3, 4
    Proposed   a client's messages go to the broker in charge           eq. 5, 6

There are 4^k areas with a broker each; in each of them N_P publishers send a message every T_P and
N_S subscribers change their subscription every T_S, to a topic of another area with probability p.
A subscriber listens to one publisher at a time: else eq. 2, 4 and 6 would have more than N_S / T_P.

The equations are here twice: as printed (`printed`), and with their own assumptions kept to
throughout (`consistent`).  They differ where

* a broker of System 2 hands what comes from others on to the p·N_S subscribers that want it, which
  eq. 4 leaves out;
* what a broker sends to another one the other one receives: of changes eq. 4 sends p·N_S and eq. 3
  receives (4^k - 1) / 4^k of it;
* eq. 3 has messages from *another* area for all p·N_S, while (4^k - 1) / 4^k elsewhere says that it
  may turn out to be the same one;
* then those 1 / 4^k of p·N_S stay at their broker, and eq. 5 and 6 have them nowhere.

Source: Geo §IV.  The values of Tables I and II are in `isthmus.reproduce.geo.printed_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

__all__ = [
    "CASES",
    "SYSTEMS",
    "Parameters",
    "Rates",
    "Reading",
    "System",
    "consistent",
    "printed",
    "reduction",
]

System = Literal["system-1", "system-2", "proposed"]
SYSTEMS: Final[Mapping[System, str]] = MappingProxyType(
    {"system-1": "System 1", "system-2": "System 2", "proposed": "Proposed"}
)
"""As the paper's tables call them."""

Reading = Literal["another", "any"]
"""With probability p a subscriber listens to *another* area, or to *any*, its own among them."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of the model; the paper's letters in brackets."""

    k: int
    publishers: int
    """Of each area (N_P)."""
    subscribers: int
    """Of each area (N_S)."""
    publish_every_s: float = 10.0
    """T_P"""
    subscribe_every_s: float = 30.0
    """T_S"""
    remote: float = 0.2
    """p"""

    @property
    def areas(self) -> int:
        return int(4**self.k)


class Rates(NamedTuple):
    """Messages of one broker in a second."""

    received_publish: float
    received_subscribe: float
    transmitted_publish: float
    transmitted_subscribe: float

    @property
    def total(self) -> float:
        return sum(self)


CASES: Final[Mapping[str, Parameters]] = MappingProxyType(
    {
        "A": Parameters(4, 10_000, 1_000),
        "B": Parameters(4, 10_000, 10_000),
        "C": Parameters(4, 1_000, 10_000),
    }
)
"""Geo §IV-D."""


def printed(system: System, parameters: Parameters) -> Rates:
    """Eq. 1 and 2, 3 and 4, or 5 and 6, exactly as they are printed."""
    return _PRINTED[system](parameters)


def _system_1(of: Parameters) -> Rates:
    n_p, n_s, t_p, t_s = of.publishers, of.subscribers, of.publish_every_s, of.subscribe_every_s
    return Rates(
        received_publish=of.areas * n_p / t_p,
        received_subscribe=n_s / t_s,
        transmitted_publish=n_s / t_p + n_p / t_p * (of.areas - 1),
        transmitted_subscribe=0.0,
    )


def _system_2(of: Parameters) -> Rates:
    n_p, n_s, t_p, t_s = of.publishers, of.subscribers, of.publish_every_s, of.subscribe_every_s
    p, elsewhere = of.remote, (of.areas - 1) / of.areas
    return Rates(
        received_publish=n_p / t_p + p * n_s / t_p,
        received_subscribe=n_s / t_s + p * n_s / t_s * elsewhere,
        transmitted_publish=(1 - p) * n_s / t_p + p * n_s / t_p * elsewhere,
        transmitted_subscribe=p * n_s / t_s,
    )


def _proposed(of: Parameters) -> Rates:
    n_p, n_s, t_p, t_s = of.publishers, of.subscribers, of.publish_every_s, of.subscribe_every_s
    p, elsewhere = of.remote, (of.areas - 1) / of.areas
    return Rates(
        received_publish=n_p / t_p,
        received_subscribe=n_s * (1 - p) / t_s + p * n_s / t_s * elsewhere,
        transmitted_publish=(1 - p) * n_s / t_p + p * n_s / t_p * elsewhere,
        transmitted_subscribe=0.0,
    )


_PRINTED: Final[Mapping[System, Callable[[Parameters], Rates]]] = MappingProxyType(
    {"system-1": _system_1, "system-2": _system_2, "proposed": _proposed}
)


def consistent(system: System, parameters: Parameters, reading: Reading = "another") -> Rates:
    """What the assumptions give: what one broker sends to another is what that one receives.

    In System 2 no two subscribers of an area listen to the same publisher of another one, as a
    message would be sent for them once.
    """
    of = parameters
    n_p, n_s, t_p, t_s = of.publishers, of.subscribers, of.publish_every_s, of.subscribe_every_s
    p = of.remote if reading == "another" else of.remote * (of.areas - 1) / of.areas
    if system == "system-1":
        return _system_1(of)
    if system == "proposed":
        return Rates(n_p / t_p, n_s / t_s, n_s / t_p, 0.0)
    return Rates(
        received_publish=(n_p + p * n_s) / t_p,
        received_subscribe=(n_s + p * n_s) / t_s,
        transmitted_publish=(n_s + p * n_s) / t_p,
        transmitted_subscribe=p * n_s / t_s,
    )


def reduction(than: Rates, other: Rates) -> float:
    """By what share a broker has less to receive and transmit with `other` (Geo §IV-D)."""
    return (than.total - other.total) / than.total
