"""One measurement and what is kept of it: ``OUT/measured/NAME.json``.

The file is written last, in one piece: a measurement that has it is whole, and is not made again.
Beside what was counted it has what was to be counted (`expected`), and of how many brokers the two
are not the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from isthmus.errors import ReproduceError
from isthmus.reproduce.geo.delay import Delays, Network, measure_delays
from isthmus.reproduce.geo.expected import Counts, expected, mean_rates
from isthmus.reproduce.geo.experiments import CONTENDERS, Contender, DelayPoint, Point
from isthmus.reproduce.geo.live import measure_live
from isthmus.reproduce.geo.model import Parameters, Rates, System, consistent, printed
from isthmus.reproduce.geo.simulated import simulate
from isthmus.reproduce.geo.workload import Workload

__all__ = ["Measured", "measure", "measure_delay", "read_delays", "read_measured"]

DIGITS: Final = 7
"""Of a delay in seconds: a tenth of a microsecond."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One system of one size."""

    name: str
    where: str
    contender: Contender
    shape: str
    case: str
    of: Parameters
    rates: Rates
    """Of the average broker, in a second."""
    expected: Rates
    """What they must be, by workload and graph."""
    least: Rates
    most: Rates
    """Of any one broker."""
    different: int
    """Brokers of which one of the four counts is not what it must be."""
    unsubscribes: float
    """Received by the average broker, in a second; a change is one of these and a SUBSCRIBE."""
    took_s: float

    @property
    def system(self) -> System:
        return CONTENDERS[self.contender].system

    @property
    def printed(self) -> Rates:
        return printed(self.system, self.of)

    @property
    def consistent(self) -> Rates:
        return consistent(self.system, self.of)


def measure(out: Path, point: Point, seed: int, broker: str) -> Measured:
    """Make it and keep it; raises `IsthmusError` if it could not be made."""
    workload = Workload(point.of, seed)
    if point.where == "sim":
        counted = simulate(point.contender, workload, point.shape)
    else:
        counted = measure_live(point.contender, workload, broker, point.shape)
    wanted = expected(CONTENDERS[point.contender].way, workload, point.shape)
    window_s = workload.window_s
    one_by_one = [mean_rates([each], window_s) for each in counted.counts]
    measured = Measured(
        name=point.name,
        where=point.where,
        contender=point.contender,
        shape=point.shape,
        case=point.case,
        of=point.of,
        rates=mean_rates(counted.counts, window_s),
        expected=mean_rates(wanted, window_s),
        least=Rates(*map(min, zip(*one_by_one, strict=True))),
        most=Rates(*map(max, zip(*one_by_one, strict=True))),
        different=_different(counted.counts, wanted),
        unsubscribes=counted.unsubscribes / len(wanted) / window_s,
        took_s=round(counted.took_s, 2),
    )
    _keep(out, point.name, asdict(measured))
    return measured


def _different(found: list[Counts], wanted: list[Counts]) -> int:
    return sum(one != other for one, other in zip(found, wanted, strict=True))


def measure_delay(out: Path, point: DelayPoint, broker: str) -> Delays:
    """The same of the delay experiment."""
    delays = measure_delays(point.network, point.times, broker)
    series = {
        kind: [round(each_s, DIGITS) for each_s in some] for kind, some in delays.series.items()
    }
    kept = replace(delays, series=series)
    _keep(out, point.name, asdict(kept))
    return kept


def read_measured(out: Path, point: Point) -> Measured | None:
    """What was measured already; None if it was not, or not to the end."""
    found = _read(out, point.name)
    if found is None:
        return None
    try:
        rates = {key: Rates(*found[key]) for key in ("rates", "expected", "least", "most")}
        return Measured(**{**found, **rates, "of": Parameters(**found["of"])})
    except (KeyError, TypeError) as error:
        raise _no_measurement(out, point.name, error) from None


def read_delays(out: Path, point: DelayPoint) -> Delays | None:
    """The same of the delay experiment."""
    found = _read(out, point.name)
    if found is None:
        return None
    try:
        return Delays(Network(**found["network"]), found["series"])
    except (KeyError, TypeError) as error:
        raise _no_measurement(out, point.name, error) from None


def _path(out: Path, name: str) -> Path:
    return out / "measured" / f"{name}.json"


def _keep(out: Path, name: str, kept: Mapping[str, Any]) -> None:
    path = _path(out, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _read(out: Path, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(_path(out, name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _no_measurement(out, name, error) from None
    return found


def _no_measurement(out: Path, name: str, error: Exception) -> ReproduceError:
    return ReproduceError(f"{_path(out, name)}: is no measurement: {error}; remove it")
